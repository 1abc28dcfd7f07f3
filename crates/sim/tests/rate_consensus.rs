//! VPNs under rate consensus share a bottleneck by weight, in bytes, whatever their round trips, packets and losses.

mod support;

use netstage_scenario::outcome::{Metric, RunOutcome};
use std::fmt::Write as _;
use support::plan_of;

/// A VPN across the bottleneck: fields of its table, one-way delay in milliseconds, fields of the link behind the
/// bottleneck, and fields of its flow.
struct Vpn<'a>(&'a str, u32, &'a str, &'a str);

const TCP: &str = "count = 10";

/// Runs VPNs across a line of 20 Mbit/s for 20 s. `line`: fields of the line.
fn run(line: &str, vpns: &[Vpn]) -> RunOutcome {
    let mut text = format!(
        r#"
        [scenario]
        duration = "20 s"
        [defaults.link]
        rate = "1 Gbit/s"
        buffer = "10000 packets"
        [defaults.vpn]
        control = "rate-consensus"
        [node.west]
        kind = "router"
        [node.east]
        kind = "router"
        [link.line]
        ends = ["west", "east"]
        {line}"#
    );
    for (number, Vpn(vpn, delay, tail, flow)) in vpns.iter().enumerate() {
        let _ = write!(
            text,
            r#"
            [node.a{number}]
            [node.b{number}]
            [node.in{number}]
            kind = "pe"
            [node.out{number}]
            kind = "pe"
            [link.a{number}]
            ends = ["a{number}", "in{number}"]
            [link.in{number}]
            ends = ["in{number}", "west"]
            delay = "{delay} ms"
            [link.out{number}]
            ends = ["east", "out{number}"]
            {tail}
            [link.b{number}]
            ends = ["out{number}", "b{number}"]
            [vpn.v{number}]
            ingress = "in{number}"
            egress = "out{number}"
            {vpn}
            [flow.f{number}]
            from = "a{number}"
            to = "b{number}"
            vpn = "v{number}"
            {flow}"#
        );
    }
    netstage_sim::run(&plan_of(&text), 1, &|| false).unwrap()
}

const LINE: &str = "rate = \"20 Mbit/s\"\nbuffer = \"100 packets\"";

/// Returns the mean rate of a VPN from one second to another, in Mbit/s.
fn rate(outcome: &RunOutcome, vpn: usize, from: usize, to: usize) -> f64 {
    let bins = outcome.get(Metric::VpnThroughput, &format!("v{vpn}")).unwrap();
    let per_second = (bins.values.len() / 20).max(1);
    let values = &bins.values[from * per_second..to * per_second];
    values.iter().sum::<f64>() / values.len() as f64 / 1e6
}

#[track_caller]
fn assert_shares(outcome: &RunOutcome, shares: &[f64], tolerance: f64) {
    let rates: Vec<f64> = (0..shares.len()).map(|vpn| rate(outcome, vpn, 5, 20)).collect();
    let (sum, whole) = (rates.iter().sum::<f64>(), shares.iter().sum::<f64>());
    assert!(sum > 18.0, "{rates:?}");
    for (rate, share) in rates.iter().zip(shares) {
        let ratio = rate / sum / (share / whole);
        assert!((ratio - 1.0).abs() < tolerance, "{rates:?}, wanted {shares:?}");
    }
}

#[test]
fn shares_follow_the_weights() {
    let outcome = run(LINE, &[Vpn("weight = 4", 20, "", TCP), Vpn("", 20, "", TCP)]);
    assert_shares(&outcome, &[4.0, 1.0], 0.05);
}

#[test]
fn shares_are_counted_in_bytes() {
    let datagrams =
        "transport = \"udp\"\ntraffic = { model = \"cbr\", rate = \"30 Mbit/s\", packet = \"172 B\" }";
    let outcome = run(LINE, &[Vpn("", 20, "", TCP), Vpn("", 20, "", datagrams)]);
    assert_shares(&outcome, &[1.0, 1.0], 0.05);
}

#[test]
fn shares_do_not_depend_on_round_trips() {
    let vpns = [2, 20, 100].map(|delay| Vpn("", delay, "", TCP));
    assert_shares(&run(LINE, &vpns), &[1.0; 3], 0.1);
}

#[test]
fn random_loss_is_not_taken_for_congestion() {
    let vpns = [Vpn("", 20, "", TCP), Vpn("", 20, "loss = 0.02", "count = 40")];
    assert_shares(&run(LINE, &vpns), &[1.0, 1.0], 0.1);
}

#[test]
fn a_queue_on_the_way_back_does_not_slow_a_vpn() {
    // Acknowledgments and replies wait in a queue that datagrams keep full.
    let line = format!("{LINE}\nreverse = {{ rate = \"2 Mbit/s\" }}");
    let back = "from = \"b0\"\nto = \"a0\"\ntransport = \"udp\"\ntraffic = { model = \"cbr\", rate = \"1.9 Mbit/s\" }";
    let flow = format!("{TCP}\n[flow.back]\n{back}");
    let outcome = run(&line, &[Vpn("", 20, "", &flow), Vpn("", 20, "", TCP)]);
    assert_shares(&outcome, &[1.0, 1.0], 0.05);
}

#[test]
fn a_vpn_that_leaves_frees_its_share() {
    let leaving = format!("{TCP}\nstop = \"10 s\"");
    let outcome = run(LINE, &[Vpn("", 20, "", TCP), Vpn("", 20, "", &leaving)]);
    let (before, after) = (rate(&outcome, 0, 5, 10), rate(&outcome, 0, 13, 20));
    assert!((8.5..10.5).contains(&before) && after > 18.0, "{before}, {after}");
}
