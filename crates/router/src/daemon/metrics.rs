//! Prometheus metrics of a router. Counters per prefix are included if the router is configured to count
//! prefixes.

use super::control::ControlState;
use super::state::{AlternatesState, LabelState, RouteFilter, RouteState, RouterInterface, RouterState};
use netstage_host::prometheus::{self, Page};
use netstage_host::startup_error::StartupError;
use netstage_scenario::router::CounterGranularity;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Maximum number of labels, and of prefixes, with samples; there may be millions.
const MAX_SAMPLES: usize = 10_000;

/// Metrics endpoint; closed on drop.
#[derive(Debug)]
pub(super) struct Metrics {
    closing: watch::Sender<bool>,
    runtime: Option<Runtime>,
}

impl Metrics {
    pub fn serve(
        address: SocketAddr,
        answering: Arc<ControlState>,
        count: CounterGranularity,
    ) -> Result<Metrics, StartupError> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.map_err(|error| StartupError::from_system("cannot serve metrics", &error))?;
        let closing = watch::Sender::new(false);
        let since = Instant::now();
        let source = Arc::new(move || render(&answering, count, since.elapsed()));
        runtime.block_on(prometheus::listen(address, source, closing.subscribe()))?;
        Ok(Metrics { closing, runtime: Some(runtime) })
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

fn render(answering: &ControlState, count: CounterGranularity, uptime: Duration) -> Option<String> {
    let state = answering.show()?;
    let mut labels = TruncatedList::default();
    let Ok(all) = answering.each_label::<Infallible>(None, &mut |label| {
        labels.add(label.packets.is_some_and(|packets| packets > 0), label);
        Ok(())
    });
    all?;
    let mut routes = TruncatedList::default();
    if count == CounterGranularity::Prefix {
        let Ok(all) = answering.each_route::<Infallible>(&RouteFilter::default(), &mut |route| {
            routes.add(route.packets.is_some_and(|packets| packets > 0), route);
            Ok(())
        });
        all?;
    }
    Some(text(&state, &labels, &routes, uptime))
}

/// First items of a list, and the number of further ones.
struct TruncatedList<T> {
    few: Vec<T>,
    beyond: usize,
}

impl<T> Default for TruncatedList<T> {
    fn default() -> TruncatedList<T> {
        TruncatedList { few: Vec::new(), beyond: 0 }
    }
}

impl<T> TruncatedList<T> {
    fn add(&mut self, counts: bool, one: T) {
        match counts {
            true if self.few.len() < MAX_SAMPLES => self.few.push(one),
            true => self.beyond += 1,
            false => {}
        }
    }
}

/// Function that reads a metric of an interface.
type InterfaceMetric<'a> = &'a dyn Fn(&RouterInterface) -> f64;

fn text(
    state: &RouterState,
    labels: &TruncatedList<LabelState>,
    routes: &TruncatedList<RouteState>,
    uptime: Duration,
) -> String {
    let mut page = Page::new("router", uptime);
    page.metric(
        "netstage_router_configurations_total",
        "counter",
        "Configurations applied, including the first.",
        state.configurations as f64,
    );
    page.metric(
        "netstage_router_configurations_refused_total",
        "counter",
        "Configurations rejected; the previous one stayed active.",
        state.refused_configurations as f64,
    );
    page.metric("netstage_router_routes", "gauge", "Routes in all tables.", state.routes as f64);
    page.metric("netstage_router_labels", "gauge", "Assigned labels.", state.labels as f64);
    page.begin_metric(
        "netstage_router_neighbors",
        "gauge",
        "Next-hop and other neighbors, by whether their MAC address is known.",
    );
    for (known, name) in [(true, "known"), (false, "unknown")] {
        let count = state.neighbors.iter().filter(|one| one.mac.is_some() == known).count();
        page.sample("netstage_router_neighbors", &[("station", name)], count as f64);
    }
    let metrics: [(&str, &str, &str, InterfaceMetric<'_>); 7] = [
        ("up", "gauge", "1 while the interface works.", &|one| f64::from(u8::from(one.failure.is_none()))),
        (
            "slow",
            "gauge",
            "1 while only the slow path sends to the interface, although an XDP program is attached.",
            &|one| f64::from(u8::from(one.slow.is_some())),
        ),
        ("received_packets_total", "counter", "Frames received for the router.", &|one| {
            one.received.packets as f64
        }),
        (
            "received_bytes_total",
            "counter",
            "Bytes received for the router, including Ethernet headers.",
            &|one| one.received.bytes as f64,
        ),
        ("sent_packets_total", "counter", "Frames sent.", &|one| one.sent.packets as f64),
        ("sent_bytes_total", "counter", "Bytes sent, including Ethernet headers.", &|one| {
            one.sent.bytes as f64
        }),
        ("queue_packets", "gauge", "Frames queued in the shaper of the interface.", &|one| one.queued as f64),
    ];
    for (name, kind, help, value) in metrics {
        let name = format!("netstage_router_interface_{name}");
        page.begin_metric(&name, kind, help);
        for interface in &state.interfaces {
            let labels = [("interface", interface.name.as_str()), ("table", interface.table.as_str())];
            page.sample(&name, &labels, value(interface));
        }
    }
    write_lsps(&mut page, state);
    write_sessions(&mut page, state);
    write_alternates(&mut page, state);
    write_events(&mut page, state);
    let label = |label: &LabelState| vec![("label", label.label.to_string())];
    write_samples(&mut page, "label", "with the label", labels, label, |one| (one.packets, one.bytes));
    let route = |route: &RouteState| vec![("table", route.table.clone()), ("prefix", route.prefix.clone())];
    write_samples(&mut page, "prefix", "by the prefix", routes, route, |one| (one.packets, one.bytes));
    page.text()
}

fn write_events(page: &mut Page, state: &RouterState) {
    page.begin_metric(
        "netstage_router_events_total",
        "counter",
        "Packets processed or noticed, by reason; `netstage router show counters` explains the reasons.",
    );
    for count in &state.counters {
        let labels = [
            ("path", count.path.as_str()),
            ("reason", count.name.as_str()),
            ("severity", count.severity.as_str()),
        ];
        page.sample("netstage_router_events_total", &labels, count.packets as f64);
    }
}

/// Writes the metrics of RSVP-TE.
fn write_lsps(page: &mut Page, state: &RouterState) {
    page.begin_metric("netstage_router_tunnel_up", "gauge", "1 while an LSP of the tunnel is established.");
    for tunnel in &state.tunnels {
        let labels = [("tunnel", tunnel.name.as_str())];
        page.sample("netstage_router_tunnel_up", &labels, f64::from(u8::from(tunnel.lsp.is_some())));
    }
    page.begin_metric(
        "netstage_router_lsps",
        "gauge",
        "LSPs of RSVP-TE that begin, pass or end here, by state.",
    );
    for (is_reserved, name) in [(true, "reserved"), (false, "requested")] {
        let count = state.lsps.iter().filter(|lsp| lsp.is_reserved == is_reserved).count();
        page.sample("netstage_router_lsps", &[("state", name)], count as f64);
    }
}

/// Writes the metric of BFD.
fn write_sessions(page: &mut Page, state: &RouterState) {
    page.begin_metric("netstage_router_bfd_up", "gauge", "1 while the BFD session with the neighbor is up.");
    for session in &state.bfd {
        let labels = [("neighbor", session.neighbor.as_str()), ("interface", session.interface.as_str())];
        page.sample("netstage_router_bfd_up", &labels, f64::from(u8::from(session.state == "up")));
    }
}

/// Writes the metric of loop-free alternates.
fn write_alternates(page: &mut Page, state: &RouterState) {
    page.begin_metric(
        "netstage_router_alternates",
        "gauge",
        "Paths to neighbors that have a loop-free alternate, by the failure in which it can be used.",
    );
    let AlternatesState { paths, without_neighbor } = state.alternates;
    for (count, failure) in [(without_neighbor, "neighbor"), (paths - without_neighbor, "link")] {
        page.sample("netstage_router_alternates", &[("failure", failure)], count as f64);
    }
}

fn write_samples<T>(
    page: &mut Page,
    what: &str,
    which: &str,
    many: &TruncatedList<T>,
    named: impl Fn(&T) -> Vec<(&'static str, String)>,
    counted: impl Fn(&T) -> (Option<u64>, Option<u64>),
) {
    for (unit, is_bytes) in [("packets", false), ("bytes", true)] {
        let name = format!("netstage_router_{what}_{unit}_total");
        let thing = if is_bytes { "Bytes of packets" } else { "Packets" };
        page.begin_metric(
            &name,
            "counter",
            &format!("{thing} forwarded by the XDP program {which}; nonzero counts only."),
        );
        for one in &many.few {
            let names = named(one);
            let names: Vec<(&str, &str)> =
                names.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let (packets, bytes) = counted(one);
            page.sample(&name, &names, if is_bytes { bytes } else { packets }.unwrap_or(0) as f64);
        }
    }
    let name = format!("netstage_router_{what}s_left_out");
    page.metric(
        &name,
        "gauge",
        &format!("Number of further {what}s with packets beyond the {MAX_SAMPLES} with samples."),
        many.beyond as f64,
    );
}

#[cfg(test)]
mod tests {
    use super::super::state::{CounterValue, FrameTotals};
    use super::*;

    #[test]
    fn every_sample_has_help_type_and_a_number() {
        let interface = RouterInterface {
            name: "core0".into(),
            table: "main".into(),
            mpls: true,
            failure: None,
            slow: Some("lost".into()),
            received: FrameTotals { packets: 3, bytes: 300 },
            sent: FrameTotals::default(),
            queued: 2,
        };
        let count = CounterValue {
            path: "kernel".into(),
            name: "unknown_label".into(),
            severity: "error".into(),
            meaning: "A label.".into(),
            packets: 9,
        };
        let state = RouterState {
            interfaces: vec![interface],
            counters: vec![count],
            routes: 7,
            ..RouterState::default()
        };
        let mut labels = TruncatedList::default();
        for number in 0..MAX_SAMPLES as u32 + 5 {
            let label = LabelState { label: number, to: "pop".into(), packets: Some(1), bytes: Some(64) };
            labels.add(number != 3, label);
        }
        let route = RouteState {
            table: "red".into(),
            prefix: "10.0.0.0/8".into(),
            to: "local".into(),
            packets: Some(4),
            bytes: Some(400),
        };
        let mut routes = TruncatedList::default();
        routes.add(true, route);
        let text = text(&state, &labels, &routes, Duration::from_secs(2));
        for line in [
            "netstage_router_routes 7",
            "netstage_router_interface_received_bytes_total{interface=\"core0\",table=\"main\"} 300",
            "netstage_router_interface_slow{interface=\"core0\",table=\"main\"} 1",
            "netstage_router_events_total{path=\"kernel\",reason=\"unknown_label\",severity=\"error\"} 9",
            "netstage_router_label_bytes_total{label=\"10000\"} 64",
            "netstage_router_labels_left_out 4",
            "netstage_router_prefix_packets_total{table=\"red\",prefix=\"10.0.0.0/8\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in the text");
        }
        assert!(!text.contains("label=\"3\""), "label 3 had no packets");
        let names = prometheus::scheme::check(&text, "router");
        assert!(names.len() > 15);
        let dashboard = include_str!("../../../../docs/dashboards/router.json");
        prometheus::scheme::check_dashboard(dashboard, "router", &names);
    }
}
