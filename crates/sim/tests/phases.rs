//! Phase effects at a full queue: a delay that differs by a part of a packet's time changes no mean over the seeds.

mod support;

use netstage_core::measure::Summary;
use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::plan::Plan;
use support::plan_of;

/// Time of a full packet on the bottleneck, in microseconds.
const PACKET_TIME: u64 = 706;

const RUNS: u64 = 12;

/// Returns the plan of two groups of flows through one full queue. The path of the second is longer, by `extra`
/// microseconds more in each direction.
fn plan(extra: u64) -> Plan {
    let ends = |name: &str, delay: u64| {
        format!(
            r#"
            [node.a-{name}]
            [node.b-{name}]
            [link.a-{name}]
            ends = ["a-{name}", "west"]
            delay = "{delay} us"
            [link.b-{name}]
            ends = ["east", "b-{name}"]
            [flow.{name}]
            from = "a-{name}"
            to = "b-{name}""#
        )
    };
    let text = format!(
        r#"
        [scenario]
        duration = "20 s"
        [defaults.link]
        rate = "100 Mbit/s"
        buffer = "1000 packets"
        [defaults.flow]
        stagger = "150 ms"
        tcp = {{ algorithm = "newreno", stack = "linux", window = "1 MiB" }}
        [node.west]
        kind = "router"
        [node.east]
        kind = "router"
        [link.core]
        ends = ["west", "east"]
        rate = "17 Mbit/s"
        buffer = "52 packets"
        delay = "14 ms"
        {}
        count = 2
        {}
        count = 4"#,
        ends("near", 4_000),
        ends("far", 25_000 + extra),
    );
    plan_of(&text)
}

/// Returns the throughput of a near flow, in Mbit/s: the mean over the seeds and its standard error.
fn near(extra: u64, first_seed: u64) -> (f64, f64) {
    let plan = plan(extra);
    let runs: Vec<f64> = (first_seed..first_seed + RUNS)
        .map(|seed| {
            let outcome = netstage_sim::run(&plan, seed, &|| false).unwrap();
            let values = &outcome.get(Metric::FlowThroughput, "near[0]").unwrap().values[5..];
            values.iter().sum::<f64>() / values.len() as f64 / 1e6
        })
        .collect();
    let summary = Summary::from_samples(&runs);
    (summary.mean, summary.standard_deviation / (RUNS as f64).sqrt())
}

#[test]
fn a_part_of_a_packet_time_changes_no_mean_over_the_seeds() {
    let seed = netstage_harness::seed("phases");
    let means: Vec<(f64, f64)> =
        (0..5).map(|part| near(PACKET_TIME * part / 5, seed % 1_000_000 + RUNS * part)).collect();
    println!("{means:.3?}");
    for (index, (mean, error)) in means.iter().enumerate() {
        for (other, other_error) in &means[..index] {
            // Two means of equal distributions differ by more with a probability of 5·10⁻⁵ (Student's t).
            let limit = 5.0 * error.hypot(*other_error);
            assert!(
                (mean - other).abs() < limit,
                "{mean:.3} and {other:.3} Mbit/s differ by more than {limit:.3}"
            );
        }
    }
}

/// Returns the share of lost packets of a flow with packets of this payload.
fn lost_share(outcome: &RunOutcome, flow: &str, payload: f64) -> f64 {
    let sum = |metric| outcome.get(metric, flow).unwrap().values.iter().sum::<f64>();
    // Bins have one second.
    let delivered = sum(Metric::FlowThroughput) / 8.0 / payload;
    let lost = sum(Metric::FlowLost);
    lost / (lost + delivered)
}

/// A host overloads its own line. Its segments arrive at random, as those of a probe, and find the queue full as often.
#[test]
fn segments_find_no_more_room_than_datagrams_of_the_same_host() {
    let text = r#"
        [scenario]
        duration = "20 s"
        [measure]
        flow_detail = true
        [node.a]
        [node.b]
        [link.line]
        ends = ["a", "b"]
        rate = "5 Mbit/s"
        delay = "9 ms"
        buffer = "100 packets"
        reverse = { rate = "100 Mbit/s" }
        [defaults.flow]
        from = "a"
        to = "b"
        [flow.load]
        count = 4
        transport = "udp"
        traffic = { model = "cbr", rate = "2 Mbit/s", packet = "128 B" }
        [flow.probe]
        transport = "udp"
        traffic = { model = "poisson", rate = "40 kbit/s", packet = "1448 B" }
        [flow.bulk]
        count = 4
        transport = "tcp"
        tcp = { stack = "linux", window = "16 KiB" }"#;
    let plan = plan_of(text);
    let seed = netstage_harness::seed("phases") % 1_000_000;
    let mut shares = [0.0; 2];
    for seed in seed..seed + RUNS {
        let outcome = netstage_sim::run(&plan, seed, &|| false).unwrap();
        let segments =
            (0..4).map(|flow| lost_share(&outcome, &format!("bulk[{flow}]"), 1_448.0)).sum::<f64>() / 4.0;
        shares[0] += segments / RUNS as f64;
        shares[1] += lost_share(&outcome, "probe", 1_420.0) / RUNS as f64;
    }
    let [segments, datagrams] = shares;
    assert!(
        segments > 0.75 * datagrams,
        "{segments:.2} of the segments are lost, {datagrams:.2} of the datagrams"
    );
}
