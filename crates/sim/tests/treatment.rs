//! Per-VPN settings of a PE in the simulator: traffic classes, minimum and maximum rate, idle probing, and
//! the action when the far end is silent.

mod support;

use netstage_core::edge::{EdgeEvent, SentPacket};
use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::plan::Plan;
use support::plan_of;

/// Returns a plan with a VPN across one line, with settings `vpn` and flows `flows`.
fn plan(line: &str, vpn: &str, flows: &str) -> Plan {
    let text = format!(
        r#"
        [scenario]
        duration = "20 s"
        [measure]
        delay = true
        [defaults.link]
        rate = "1 Gbit/s"
        buffer = "10000 packets"
        [defaults.flow]
        from = "a"
        to = "b"
        vpn = "red"
        transport = "udp"
        [node.a]
        [node.b]
        [node.west]
        kind = "pe"
        [node.east]
        kind = "pe"
        [link.a]
        ends = ["a", "west"]
        [link.line]
        ends = ["west", "east"]
        {line}
        [link.b]
        ends = ["east", "b"]
        [vpn.red]
        ingress = "west"
        egress = "east"
        {vpn}
        {flows}"#
    );
    plan_of(&text)
}

fn run(plan: &Plan) -> RunOutcome {
    netstage_sim::run(plan, 1, &|| false).unwrap()
}

/// Returns the values from 5 s on.
fn settled<'a>(outcome: &'a RunOutcome, metric: Metric, subject: &str) -> &'a [f64] {
    &outcome.get(metric, subject).unwrap().values[5..]
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

const GREEDY: &str = r#"
    [flow.greedy]
    traffic = { model = "cbr", rate = "20 Mbit/s", packet = "972 B" }"#;

#[test]
fn sparse_flow_in_its_own_class_does_not_wait_for_a_greedy_one() {
    let flows = GREEDY.to_owned()
        + r#"
        [flow.voice]
        udp = { dscp = 46 }
        traffic = { model = "cbr", rate = "64 kbit/s", packet = "172 B" }"#;
    let control = r#"control = { kind = "fixed-rate", rate = "8 Mbit/s" }"#;
    let classes = r#"
        classes = [{ dscp = [46], buffer = "20 packets" }, { dscp = [], priority = 1 }]"#;
    let apart = r#"
        classes = [{ dscp = [], queue = { kind = "fq-codel", flows = 64 } }]"#;
    let voice = |queue: &str| {
        let outcome = run(&plan("delay = \"5 ms\"", &(control.to_owned() + queue), &flows));
        let carried = mean(settled(&outcome, Metric::VpnThroughput, "red"));
        assert!((carried / 8e6 - 1.0).abs() < 0.01, "{carried} bit/s with {queue:?}");
        // Bins without arrivals have no delay.
        let delays = settled(&outcome, Metric::FlowDelay, "voice").iter().copied();
        let delays: Vec<f64> = delays.filter(|delay| delay.is_finite()).collect();
        (mean(&delays), mean(settled(&outcome, Metric::FlowThroughput, "voice")))
    };
    let (in_order, some) = voice("");
    // A full queue of 128 packets of 1,000 bytes takes 128 ms, and fewer than half of the voice packets are
    // admitted.
    assert!(in_order > 0.12 && some < 40e3, "{in_order} s, {some} bit/s");
    for queue in [classes, apart] {
        let (delay, all) = voice(queue);
        assert!(delay < 0.009 && all > 63e3, "{delay} s, {all} bit/s with {queue:?}");
    }
}

#[test]
fn minimum_rate_is_kept_under_loss() {
    let line = "delay = \"50 ms\"\nloss = 0.14";
    let carried = |vpn: &str| {
        let outcome = run(&plan(line, vpn, GREEDY));
        mean(settled(&outcome, Metric::VpnThroughput, "red")) / (1.0 - 0.14)
    };
    let (without, with) =
        (carried("control = \"i2vfc\""), carried("control = \"i2vfc\"\nminimum = \"4 Mbit/s\""));
    assert!(without < 0.8e6, "{without} bit/s");
    // Management packets are lost like data packets, so some of the data in flight is reported late.
    assert!((3.6e6..4.4e6).contains(&with), "{with} bit/s");
}

#[test]
fn maximum_rate_is_used_but_not_exceeded() {
    for control in ["i2vfc", "rate-consensus", "none"] {
        let vpn = format!("control = \"{control}\"\nmaximum = \"5 Mbit/s\"");
        let outcome = run(&plan("delay = \"5 ms\"", &vpn, GREEDY));
        let rates = settled(&outcome, Metric::VpnThroughput, "red");
        // One packet may fall on either side of a bin boundary.
        assert!(rates.iter().all(|rate| (4.99e6..5.008e6).contains(rate)), "{control}: {rates:?}");
        assert!(mean(settled(&outcome, Metric::VpnQueueDrops, "red")) > 1000.0, "{control}");
    }
}

/// Returns the times of queries, seconds.
fn queries(plan: &Plan) -> Vec<f64> {
    let decisions = netstage_sim::decisions(plan, 1).remove(0);
    assert_eq!(decisions.vpns, [0]);
    let query_time = |event: &EdgeEvent| match event {
        EdgeEvent::Turn { at, sent, .. } if sent.iter().any(|sent| matches!(sent, SentPacket::Query(..))) => {
            Some(*at)
        }
        _ => None,
    };
    decisions.events.iter().filter_map(query_time).map(|at| at as f64 / 1e9).collect()
}

#[test]
fn idle_vpn_backs_off_its_probes() {
    let line = "delay = \"5 ms\"";
    let once = r#"
        [flow.once]
        traffic = { model = "cbr", rate = "8 kbit/s", packet = "500 B" }
        stop = "1 s""#;
    // The VPN queries after a second, then at the longest interval. A packet makes it query immediately and
    // restart the backoff.
    let idle = |vpn: &str, flows: &str| queries(&plan(line, vpn, flows));
    let nothing = "[flow.late]\nstart = \"19 s\"\ntraffic = { model = \"cbr\", rate = \"8 kbit/s\" }";
    let rarely = idle("control = { kind = \"i2vfc\", idle_probe = \"4 s\" }", nothing);
    assert_eq!(rarely[..5], [1.0, 5.0, 9.0, 13.0, 17.0], "{rarely:?}");
    let often = idle("control = { kind = \"i2vfc\", idle_probe = \"1 s\" }", nothing);
    assert_eq!(often[..18], (1..19).map(f64::from).collect::<Vec<f64>>()[..], "{often:?}");
    let backs_off = idle("control = \"i2vfc\"", once);
    let gaps: Vec<f64> = backs_off.windows(2).map(|pair| (pair[1] - pair[0]).round()).collect();
    assert!(gaps.ends_with(&[1.0, 2.0, 4.0, 8.0]), "{backs_off:?}");
}

#[test]
fn silent_far_end_closes_a_fail_closed_vpn() {
    let line = "delay = \"5 ms\"\nschedule = [{ at = \"6 s\", up = false }, { at = \"12 s\", up = true }]";
    let carried = |action: &str| {
        let vpn = format!(
            "control = \"i2vfc\"\nsilent_after = \"2 s\"\nwhen_silent = \"{action}\"\nmaximum = \"5 Mbit/s\""
        );
        let plan = plan(line, &vpn, GREEDY);
        let outcome = run(&plan);
        let sent = &outcome.get(Metric::LinkThroughput, "line.forward").unwrap().values;
        let decisions = netstage_sim::decisions(&plan, 1).remove(0);
        let data = |event: &EdgeEvent| match event {
            EdgeEvent::Turn { at, sent, .. } if (9_000_000_000..11_000_000_000).contains(at) => {
                sent.iter().filter(|sent| matches!(sent, SentPacket::Data(..))).count()
            }
            _ => 0,
        };
        (decisions.events.iter().map(data).sum::<usize>(), sent[19])
    };
    let (open, closed) = (carried("open"), carried("closed"));
    // Open: 625 packets of 1,000 bytes per second.
    assert!((1200..1300).contains(&open.0) && closed.0 == 0, "{open:?} {closed:?}");
    assert!(open.1 > 4.9e6 && closed.1 > 4.0e6, "{open:?} {closed:?}");
}
