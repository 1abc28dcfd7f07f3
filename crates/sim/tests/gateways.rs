//! Gateways in the simulator: tunnel headers use a share of the line, and a gateway is limited by the service
//! rate of its program.

mod support;

use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::plan::Plan;
use support::plan_of;

fn plan(line: &str, service_rate: &str, packet: u32) -> Plan {
    let text = format!(
        r#"
        [scenario]
        duration = "10 s"
        [defaults.link]
        rate = "1 Gbit/s"
        [node.a]
        [node.b]
        [link.a]
        ends = ["a", "g1"]
        [link.line]
        ends = ["g1", "g2"]
        rate = "{line}"
        [link.b]
        ends = ["g2", "b"]
        [node.g1]
        kind = "openvpn"
        service_rate = "{service_rate}"
        [node.g2]
        kind = "openvpn"
        service_rate = "{service_rate}"
        [flow.stream]
        from = "a"
        to = "b"
        transport = "udp"
        traffic = {{ model = "cbr", rate = "50 Mbit/s", packet = "{packet} B" }}"#
    );
    plan_of(&text)
}

fn mean(outcome: &RunOutcome, metric: Metric, subject: &str) -> f64 {
    let series = outcome.series.iter().find(|s| s.metric == metric && s.subject == subject).unwrap();
    let values = &series.values[2..];
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn tunnel_headers_use_a_share_of_the_line() {
    let outcome = netstage_sim::run(&plan("20 Mbit/s", "1 Gbit/s", 972), 1, &|| false).unwrap();
    // 972 B of payload are 1000 B at the IP layer and 1052 B in the tunnel.
    let expected = 20e6 * 972.0 / 1052.0;
    let got = mean(&outcome, Metric::FlowThroughput, "stream");
    assert!((got / expected - 1.0).abs() < 1e-3, "{got}");
    assert!(
        (mean(&outcome, Metric::LinkThroughput, "b.forward") / (20e6 * 1000.0 / 1052.0) - 1.0).abs() < 1e-3
    );
}

#[test]
fn gateway_is_limited_by_its_service_rate() {
    let outcome = netstage_sim::run(&plan("1 Gbit/s", "10 Mbit/s", 972), 1, &|| false).unwrap();
    let got = mean(&outcome, Metric::FlowThroughput, "stream");
    assert!((got / (10e6 * 0.972) - 1.0).abs() < 1e-3, "{got}");
    let packets = outcome.totals;
    assert_eq!(packets.sent, packets.delivered + packets.lost + packets.in_flight);
}
