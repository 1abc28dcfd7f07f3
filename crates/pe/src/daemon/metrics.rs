//! What a router tells Prometheus.

use super::snapshot::{self, FlowState, ReferenceState, Snapshot};
use netstage_host::prometheus::Page;
use std::time::Duration;

/// A state as metrics.
pub(super) fn text(state: &Snapshot) -> String {
    let mut page = Page::new("pe", Duration::from_nanos(state.uptime_ns));
    page.one(
        "netstage_pe_configurations_total",
        "counter",
        "Configurations taken, the first included.",
        state.configurations as f64,
    );
    page.one(
        "netstage_pe_configurations_refused_total",
        "counter",
        "Configurations refused; the one before was kept.",
        state.refused_configurations as f64,
    );
    page.one("netstage_pe_buffers_free", "gauge", "Packet buffers that are free.", state.free_buffers as f64);
    flows(&mut page, state);
    references(&mut page, state);
    page.head("netstage_pe_peer_reachable", "gauge", "1 while the machine has a way to the peer.");
    for peer in &state.peers {
        let value = f64::from(u8::from(peer.way.is_some()));
        page.sample("netstage_pe_peer_reachable", &[("peer", &peer.name)], value);
    }
    let circuits: [(&str, &str, OfCircuit<'_>); 4] = [
        ("received_packets", "Packets taken from the circuit's customers.", &|c| c.received.packets),
        ("received_bytes", "Bytes taken from the circuit's customers, at the IP layer.", &|c| {
            c.received.bytes
        }),
        ("sent_packets", "Packets handed to the circuit's customers.", &|c| c.sent.packets),
        ("sent_bytes", "Bytes handed to the circuit's customers, at the IP layer.", &|c| c.sent.bytes),
    ];
    for (name, help, value) in circuits {
        let name = format!("netstage_pe_circuit_{name}_total");
        page.head(&name, "counter", help);
        for circuit in &state.circuits {
            let labels = [("circuit", circuit.name.as_str()), ("vpn", circuit.vpn.as_str())];
            page.sample(&name, &labels, value(circuit) as f64);
        }
    }
    page.head(
        "netstage_pe_port_missed_frames_total",
        "counter",
        "Frames nobody took in time, or longer than the interface's MTU allows.",
    );
    for port in &state.ports {
        page.sample(
            "netstage_pe_port_missed_frames_total",
            &[("interface", &port.interface)],
            port.missed as f64,
        );
    }
    page.head("netstage_pe_port_up", "gauge", "1 while the interface can be used.");
    for port in &state.ports {
        let value = f64::from(u8::from(port.failure.is_none()));
        page.sample("netstage_pe_port_up", &[("interface", &port.interface)], value);
    }
    page.head(
        "netstage_pe_events_total",
        "counter",
        "What was refused or noticed, by reason; `netstage pe show counters` says what each means.",
    );
    for (name, count) in &state.counters {
        let severity = snapshot::meaning(name).map_or("info", |(severity, _)| severity.name());
        page.sample("netstage_pe_events_total", &[("reason", name), ("severity", severity)], *count as f64);
    }
    page.text()
}

/// How a metric of a circuit is found.
type OfCircuit<'a> = &'a dyn Fn(&snapshot::CircuitState) -> u64;

/// How a metric of a reference is found.
type OfReference<'a> = &'a dyn Fn(&ReferenceState) -> Option<f64>;

/// How a metric of a flow is found.
type OfFlow<'a> = &'a dyn Fn(&FlowState) -> Option<f64>;

fn flows(page: &mut Page, state: &Snapshot) {
    let count = |value: u64| Some(value as f64);
    let metrics: [(&str, &str, &str, OfFlow<'_>); 16] = [
        ("sent_packets_total", "counter", "Data packets sent to the peer.", &|f| count(f.sent.packets)),
        ("sent_bytes_total", "counter", "Bytes sent to the peer, at the IP layer.", &|f| count(f.sent.bytes)),
        ("received_packets_total", "counter", "Data packets from the peer.", &|f| count(f.received.packets)),
        ("received_bytes_total", "counter", "Bytes from the peer, at the IP layer.", &|f| {
            count(f.received.bytes)
        }),
        (
            "marked_packets_total",
            "counter",
            "Packets from the peer with a congestion mark of the core.",
            &|f| count(f.marked),
        ),
        ("lost_packets_total", "counter", "Packets lost in the core, as the peer's counts tell.", &|f| {
            count(f.window.as_ref()?.lost)
        }),
        ("management_packets_total", "counter", "Queries sent to the peer.", &|f| {
            count(f.window.as_ref()?.queries)
        }),
        ("queue_packets", "gauge", "Packets that wait.", &|f| count(f.queue)),
        ("queue_dropped_packets_total", "counter", "Packets that found the queue full.", &|f| {
            count(f.counters.get("queue_full").copied().unwrap_or(0))
        }),
        ("window_packets", "gauge", "The window.", &|f| Some(f.window.as_ref()?.packets)),
        ("in_flight_packets", "gauge", "Packets sent and not yet confirmed.", &|f| {
            count(f.window.as_ref()?.in_flight)
        }),
        (
            "round_trip_seconds",
            "gauge",
            "Smoothed round trip to the peer and back; 0 before it is known.",
            &|f| Some(f.window.as_ref()?.round_trip_ns as f64 / 1e9),
        ),
        ("loss_ratio", "gauge", "Loss by the configured measure, once known.", &|f| f.window.as_ref()?.loss),
        ("weight", "gauge", "The configured weight.", &|f| Some(f.weight)),
        (
            "infeasible",
            "gauge",
            "1 while the weight asks for more than the window's parameters can give.",
            &|f| Some(f64::from(u8::from(f.window.as_ref()?.is_infeasible))),
        ),
        ("silent", "gauge", "1 while the peer does not answer.", &|f| Some(f64::from(u8::from(f.is_silent)))),
    ];
    for (name, kind, help, value) in metrics {
        let name = format!("netstage_pe_flow_{name}");
        page.head(&name, kind, help);
        for flow in &state.flows {
            if let Some(value) = value(flow) {
                page.sample(&name, &[("vpn", &flow.vpn), ("peer", &flow.peer)], value);
            }
        }
    }
}

fn references(page: &mut Page, state: &Snapshot) {
    let known = |reference: &ReferenceState, value: f64| reference.age_ns.map(|_| value);
    let metrics: [(&str, &str, &str, OfReference<'_>); 10] = [
        (
            "age_seconds",
            "gauge",
            "Since what is known of the reference was measured here, or arrived.",
            &|r| Some(r.age_ns? as f64 / 1e9),
        ),
        ("old", "gauge", "1 while that is too long, and the nominal flow is used.", &|r| {
            Some(f64::from(u8::from(r.is_old)))
        }),
        ("followers", "gauge", "VPN flows here that follow it.", &|r| Some(f64::from(r.followers))),
        ("weight", "gauge", "Its weight.", &|r| known(r, r.weight)),
        ("round_trip_seconds", "gauge", "Its round trip.", &|r| known(r, r.round_trip_ns as f64 / 1e9)),
        ("loss_ratio", "gauge", "Its loss by the measure configured for it, once known.", &|r| r.loss),
        ("decrease", "gauge", "Its multiplicative decrease.", &|r| known(r, r.decrease)),
        ("published_total", "counter", "Messages sent to peers about it.", &|r| Some(r.published as f64)),
        ("received_total", "counter", "Messages about it believed.", &|r| Some(r.received as f64)),
        ("refused_total", "counter", "Messages about it refused.", &|r| Some(r.refused as f64)),
    ];
    for (name, kind, help, value) in metrics {
        let name = format!("netstage_pe_reference_{name}");
        page.head(&name, kind, help);
        for reference in &state.references {
            if let Some(value) = value(reference) {
                page.sample(&name, &[("reference", &reference.name)], value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::snapshot::{TrafficState, WindowState};
    use netstage_host::prometheus::scheme;

    #[test]
    fn every_sample_has_help_type_and_a_number() {
        let window = WindowState { packets: 12.5, round_trip_ns: 25_000_000, ..WindowState::default() };
        let flow = FlowState {
            vpn: "red".into(),
            peer: "west".into(),
            sent: TrafficState { packets: 7, bytes: 700 },
            window: Some(window),
            ..FlowState::default()
        };
        let state = Snapshot {
            flows: vec![flow, FlowState::default()],
            references: vec![
                ReferenceState {
                    name: "gold".into(),
                    age_ns: Some(250_000_000),
                    received: 4,
                    ..ReferenceState::default()
                },
                ReferenceState { name: "silver".into(), is_old: true, ..ReferenceState::default() },
            ],
            counters: [("queue_full".to_owned(), 3)].into(),
            ..Snapshot::default()
        };
        let text = text(&state);
        for line in [
            "netstage_pe_flow_sent_bytes_total{vpn=\"red\",peer=\"west\"} 700",
            "netstage_pe_flow_round_trip_seconds{vpn=\"red\",peer=\"west\"} 0.025",
            "netstage_pe_events_total{reason=\"queue_full\",severity=\"info\"} 3",
            "# TYPE netstage_pe_flow_window_packets gauge",
            "netstage_pe_reference_age_seconds{reference=\"gold\"} 0.25",
            "netstage_pe_reference_received_total{reference=\"gold\"} 4",
            "netstage_pe_reference_old{reference=\"silver\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let named = scheme::check(&text, "pe");
        scheme::check_dashboard(include_str!("../../../../docs/dashboards/pe.json"), "pe", &named);
        // A flow without a window has no sample of one.
        assert_eq!(text.matches("netstage_pe_flow_window_packets{").count(), 1);
        // Nor has a reference an age of which nothing was heard.
        assert_eq!(text.matches("netstage_pe_reference_age_seconds{").count(), 1);
    }
}
