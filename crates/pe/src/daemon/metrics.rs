//! Prometheus metrics of a router.

use super::snapshot::{self, FlowState, PeSnapshot, ReferenceState};
use netstage_host::prometheus::Page;
use std::time::Duration;

/// Formats a state as metrics.
pub(super) fn text(state: &PeSnapshot) -> String {
    let mut page = Page::new("pe", Duration::from_nanos(state.uptime_ns));
    page.metric(
        "netstage_pe_configurations_total",
        "counter",
        "Configurations applied, including the first.",
        state.configurations as f64,
    );
    page.metric(
        "netstage_pe_configurations_refused_total",
        "counter",
        "Configurations rejected; the previous one stayed active.",
        state.refused_configurations as f64,
    );
    page.metric("netstage_pe_buffers_free", "gauge", "Free packet buffers.", state.free_buffers as f64);
    flows(&mut page, state);
    references(&mut page, state);
    peers(&mut page, state);
    page.begin_metric(
        "netstage_pe_alarm",
        "gauge",
        "1 while packets of this kind, which only an attacker or a faulty core sends, arrive; `netstage pe show` explains it.",
    );
    for alarm in &state.alarms {
        page.sample("netstage_pe_alarm", &[("alarm", &alarm.name)], 1.0);
    }
    let circuits: [(&str, &str, CircuitMetric<'_>); 4] = [
        ("received_packets", "Packets received from customers on the circuit.", &|c| c.received.packets),
        ("received_bytes", "IP-layer bytes received from customers on the circuit.", &|c| c.received.bytes),
        ("sent_packets", "Packets sent to customers on the circuit.", &|c| c.sent.packets),
        ("sent_bytes", "IP-layer bytes sent to customers on the circuit.", &|c| c.sent.bytes),
    ];
    for (name, help, value) in circuits {
        let name = format!("netstage_pe_circuit_{name}_total");
        page.begin_metric(&name, "counter", help);
        for circuit in &state.circuits {
            let labels = [("circuit", circuit.name.as_str()), ("vpn", circuit.vpn.as_str())];
            page.sample(&name, &labels, value(circuit) as f64);
        }
    }
    page.begin_metric(
        "netstage_pe_port_missed_frames_total",
        "counter",
        "Frames lost because they were not read in time or exceeded the interface MTU.",
    );
    for port in &state.ports {
        page.sample(
            "netstage_pe_port_missed_frames_total",
            &[("interface", &port.interface)],
            port.missed as f64,
        );
    }
    page.begin_metric("netstage_pe_port_up", "gauge", "1 while the interface works.");
    for port in &state.ports {
        let value = f64::from(u8::from(port.failure.is_none()));
        page.sample("netstage_pe_port_up", &[("interface", &port.interface)], value);
    }
    page.begin_metric(
        "netstage_pe_events_total",
        "counter",
        "Packets dropped or noticed, by reason; `netstage pe show counters` explains the reasons.",
    );
    for (name, count) in &state.counters {
        let severity = snapshot::meaning(name).map_or("info", |(severity, _)| severity.name());
        page.sample("netstage_pe_events_total", &[("reason", name), ("severity", severity)], *count as f64);
    }
    page.text()
}

/// Function that reads a metric of a circuit.
type CircuitMetric<'a> = &'a dyn Fn(&snapshot::CircuitState) -> u64;

/// Function that reads a metric of a reference.
type ReferenceMetric<'a> = &'a dyn Fn(&ReferenceState) -> Option<f64>;

/// Function that reads a metric of a flow.
type FlowMetric<'a> = &'a dyn Fn(&FlowState) -> Option<f64>;

fn peers(page: &mut Page, state: &PeSnapshot) {
    page.begin_metric("netstage_pe_peer_reachable", "gauge", "1 while the peer is reachable.");
    for peer in &state.peers {
        let value = f64::from(u8::from(peer.route.is_some()));
        page.sample("netstage_pe_peer_reachable", &[("peer", &peer.name)], value);
    }
    page.begin_metric(
        "netstage_pe_peer_session_age_seconds",
        "gauge",
        "Age of the present session of encryption with the peer; no sample without one.",
    );
    for peer in &state.peers {
        if let Some(age) = peer.session_age_ns {
            let value = age as f64 / 1e9;
            page.sample("netstage_pe_peer_session_age_seconds", &[("peer", &peer.name)], value);
        }
    }
    page.begin_metric(
        "netstage_pe_peer_path_mtu_bytes",
        "gauge",
        "MTU of the path to the peer, found by probes; below that of the first link, a router of the core drops larger packets.",
    );
    for peer in &state.peers {
        if let Some(route) = &peer.route {
            page.sample("netstage_pe_peer_path_mtu_bytes", &[("peer", &peer.name)], route.path_mtu.into());
        }
    }
}

fn flows(page: &mut Page, state: &PeSnapshot) {
    let count = |value: u64| Some(value as f64);
    let metrics: [(&str, &str, &str, FlowMetric<'_>); 17] = [
        ("sent_packets_total", "counter", "Data packets sent to the peer.", &|f| count(f.sent.packets)),
        ("sent_bytes_total", "counter", "IP-layer bytes sent to the peer.", &|f| count(f.sent.bytes)),
        ("received_packets_total", "counter", "Data packets received from the peer.", &|f| {
            count(f.received.packets)
        }),
        ("received_bytes_total", "counter", "IP-layer bytes received from the peer.", &|f| {
            count(f.received.bytes)
        }),
        ("marked_packets_total", "counter", "Packets from the peer that were marked in the core.", &|f| {
            count(f.marked)
        }),
        (
            "lost_packets_total",
            "counter",
            "Packets lost in the core, computed from the peer's counters.",
            &|f| count(f.lost()?),
        ),
        ("management_packets_total", "counter", "Queries sent to the peer.", &|f| {
            count(f.window.as_ref().map(|w| w.queries).or_else(|| Some(f.rate.as_ref()?.queries))?)
        }),
        ("queue_packets", "gauge", "Queued packets.", &|f| count(f.queue)),
        (
            "queue_dropped_packets_total",
            "counter",
            "Packets dropped by the queue or one of its classes.",
            &|f| count(f.queue_drops()),
        ),
        (
            "bad_replies_total",
            "counter",
            "Responses of the peer ignored because they repeated another or reported an impossible count.",
            &|f| count(f.window.as_ref()?.bad_replies),
        ),
        ("window_packets", "gauge", "Window size.", &|f| Some(f.window.as_ref()?.packets)),
        ("in_flight_packets", "gauge", "Packets sent and not yet acknowledged.", &|f| {
            count(f.window.as_ref().map(|w| w.in_flight).or_else(|| Some(f.rate.as_ref()?.in_flight))?)
        }),
        (
            "round_trip_seconds",
            "gauge",
            "Smoothed round-trip time to the peer; 0 before the first reply.",
            &|f| Some(f.round_trip_ns()? as f64 / 1e9),
        ),
        ("loss_ratio", "gauge", "Loss by the configured estimator, once known.", &|f| {
            f.window.as_ref().map_or_else(|| Some(f.rate.as_ref()?.loss), |w| w.loss)
        }),
        ("weight", "gauge", "Configured weight.", &|f| Some(f.weight)),
        ("infeasible", "gauge", "1 while the weight exceeds the range the window parameters allow.", &|f| {
            Some(f64::from(u8::from(f.window.as_ref()?.is_infeasible)))
        }),
        ("silent", "gauge", "1 while the peer does not answer.", &|f| Some(f64::from(u8::from(f.is_silent)))),
    ];
    write_flows(page, state, &metrics);
    rates(page, state);
}

/// Writes the state of flows under rate consensus.
fn rates(page: &mut Page, state: &PeSnapshot) {
    let metrics: [(&str, &str, &str, FlowMetric<'_>); 6] = [
        ("rate_permitted_bits_per_second", "gauge", "Rate that rate consensus permits.", &|f| {
            Some(f.rate.as_ref()?.permitted_bps)
        }),
        ("level", "gauge", "Logarithm of the permitted rate per weight, in bytes per second.", &|f| {
            Some(f.rate.as_ref()?.level)
        }),
        ("price", "gauge", "Price of the limiting link: 1 at the target of its queue.", &|f| {
            Some(f.rate.as_ref()?.price)
        }),
        ("use_ratio", "gauge", "Share of time with a backlog.", &|f| Some(f.rate.as_ref()?.used)),
        ("share_ratio", "gauge", "Share of the rates of all flows of the limiting link.", &|f| {
            f.rate.as_ref()?.share
        }),
        ("owed_share_ratio", "gauge", "Share of the weights of the flows with a backlog.", &|f| {
            f.rate.as_ref()?.owed_share
        }),
    ];
    write_flows(page, state, &metrics);
}

fn write_flows(page: &mut Page, state: &PeSnapshot, metrics: &[(&str, &str, &str, FlowMetric<'_>)]) {
    for (name, kind, help, value) in metrics {
        let name = format!("netstage_pe_flow_{name}");
        page.begin_metric(&name, kind, help);
        for flow in &state.flows {
            if let Some(value) = value(flow) {
                page.sample(&name, &[("vpn", &flow.vpn), ("peer", &flow.peer)], value);
            }
        }
    }
}

fn references(page: &mut Page, state: &PeSnapshot) {
    let known = |reference: &ReferenceState, value: f64| reference.age_ns.map(|_| value);
    let metrics: [(&str, &str, &str, ReferenceMetric<'_>); 10] = [
        (
            "age_seconds",
            "gauge",
            "Time since the values of the reference were measured here or arrived.",
            &|r| Some(r.age_ns? as f64 / 1e9),
        ),
        ("old", "gauge", "1 while the values are too old and the nominal flow is used.", &|r| {
            Some(f64::from(u8::from(r.is_old)))
        }),
        ("followers", "gauge", "VPN flows on this router that follow the reference.", &|r| {
            Some(f64::from(r.followers))
        }),
        ("weight", "gauge", "Weight of the reference.", &|r| known(r, r.weight)),
        ("round_trip_seconds", "gauge", "Round-trip time of the reference.", &|r| {
            known(r, r.round_trip_ns as f64 / 1e9)
        }),
        ("loss_ratio", "gauge", "Loss of the reference by its configured estimator, once known.", &|r| {
            r.loss
        }),
        ("decrease", "gauge", "Multiplicative decrease of the reference.", &|r| known(r, r.decrease)),
        ("published_total", "counter", "Messages sent to peers about the reference.", &|r| {
            Some(r.published as f64)
        }),
        ("received_total", "counter", "Messages accepted about the reference.", &|r| Some(r.received as f64)),
        ("refused_total", "counter", "Messages rejected about the reference.", &|r| Some(r.refused as f64)),
    ];
    for (name, kind, help, value) in metrics {
        let name = format!("netstage_pe_reference_{name}");
        page.begin_metric(&name, kind, help);
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
        let window = WindowState {
            packets: 12.5,
            round_trip_ns: 25_000_000,
            bad_replies: 2,
            ..WindowState::default()
        };
        let flow = FlowState {
            vpn: "red".into(),
            peer: "west".into(),
            sent: TrafficState { packets: 7, bytes: 700 },
            window: Some(window),
            counters: [("queue_full".to_owned(), 3), ("queue_dropped".to_owned(), 4)].into(),
            ..FlowState::default()
        };
        let state = PeSnapshot {
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
            ..PeSnapshot::default()
        };
        let text = text(&state);
        for line in [
            "netstage_pe_flow_sent_bytes_total{vpn=\"red\",peer=\"west\"} 700",
            "netstage_pe_flow_round_trip_seconds{vpn=\"red\",peer=\"west\"} 0.025",
            "netstage_pe_events_total{reason=\"queue_full\",severity=\"info\"} 3",
            "# TYPE netstage_pe_flow_window_packets gauge",
            "netstage_pe_flow_queue_dropped_packets_total{vpn=\"red\",peer=\"west\"} 7",
            "netstage_pe_flow_bad_replies_total{vpn=\"red\",peer=\"west\"} 2",
            "netstage_pe_reference_age_seconds{reference=\"gold\"} 0.25",
            "netstage_pe_reference_received_total{reference=\"gold\"} 4",
            "netstage_pe_reference_old{reference=\"silver\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        let names = scheme::check(&text, "pe");
        scheme::check_dashboard(include_str!("../../../../docs/dashboards/pe.json"), "pe", &names);
        // A flow without a window has no window samples.
        assert_eq!(text.matches("netstage_pe_flow_window_packets{").count(), 1);
        // A reference without values has no age sample.
        assert_eq!(text.matches("netstage_pe_reference_age_seconds{").count(), 1);
    }
}
