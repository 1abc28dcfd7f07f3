//! Fair queueing isolates flows of all transports from each other.

use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::{LoadOptions, parse};

/// Runs one flow of each kind, all the first of their transport, behind a line with FQ-CoDel.
fn outcome() -> RunOutcome {
    let text = r#"
        [scenario]
        title = "isolation"
        duration = "20 s"
        [measure]
        delay = true
        [node.a]
        [node.b]
        [node.r]
        kind = "router"
        [link.access]
        ends = ["a", "r"]
        rate = "1 Gbit/s"
        buffer = "10000 packets"
        [link.line]
        ends = ["r", "b"]
        rate = "10 Mbit/s"
        delay = "5 ms"
        buffer = "500 packets"
        queue = { kind = "fq-codel" }
        [defaults.flow]
        from = "a"
        to = "b"
        [flow.bulk]
        [flow.greedy]
        transport = "udp"
        traffic = { model = "cbr", rate = "20 Mbit/s", packet = "1000 B" }
        [flow.probe]
        transport = "icmp-echo"
        traffic = { model = "cbr", rate = "64 kbit/s", packet = "160 B" }
    "#;
    let scenario = parse("isolation.toml", text, None, &LoadOptions::default()).unwrap();
    netstage_sim::run(&scenario.cells[0].plan, 1, &|| false).unwrap()
}

#[test]
fn first_flows_of_each_transport_have_separate_queues() {
    let outcome = outcome();
    let mean = |metric, subject| {
        let values = &outcome.get(metric, subject).unwrap().values;
        let later = &values[values.len() / 2..];
        later.iter().sum::<f64>() / later.len() as f64
    };
    // The greedy UDP flow and TCP share the line equally.
    let [bulk, greedy] = ["bulk", "greedy"].map(|flow| mean(Metric::FlowThroughput, flow));
    assert!((0.8..1.25).contains(&(bulk / greedy)), "{bulk} and {greedy}");
    // The probe waits for a packet of each of the two at most.
    let round_trip = mean(Metric::FlowRoundTrip, "probe");
    assert!(round_trip < 0.0145, "{round_trip}");
}
