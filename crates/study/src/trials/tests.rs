//! Tests against a made-up network, whatever the stage.

use super::run;
use crate::fixture;
use netstage_core::measure::trial::FrameSize;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use netstage_scenario::finding::TestOutcome;
use netstage_scenario::outcome::{Load, Metric, Outcome, Series};
use netstage_scenario::plan::{FlowGroup, Method, Plan, Search, Test, Transport};
use std::cell::RefCell;
use std::sync::Mutex;

/// The fixture's plan with one test from its first host to its last.
fn plan(method: Method, sizes: &[u32]) -> Plan {
    let mut plan = fixture::plan();
    let probe = FlowGroup {
        name: "test.one".into(),
        vpn: None,
        transport: Transport::Udp,
        count: 1,
        background: false,
        ..plan.flows[0].clone()
    };
    plan.tests.push(Test {
        name: "one".into(),
        method,
        probe,
        frames: sizes.iter().map(|&size| FrameSize::ethernet_udp(size)).collect(),
        load: Vec::new(),
        warm_up: Duration::ZERO,
        drain: Duration::from_secs(2),
    });
    plan
}

fn search(trial: u64) -> Search {
    Search { max_rate: Some(BitRate(100_000_000)), resolution: 0.001, trial: Duration::from_secs(trial) }
}

/// What a network that carries `capacity` bit/s of IP, and a generator that sends `generator`
/// at most, make of a trial.
fn device(plan: &Plan, capacity: f64, generator: f64) -> Outcome {
    let probe = plan.flows.last().unwrap();
    let Some(&Pattern::Cbr { rate, packet }) = probe.traffic.pattern() else { panic!("{probe:?}") };
    let asked = rate.as_f64() * f64::from(packet + 28) / f64::from(packet);
    let offered = asked.min(generator);
    let seconds = (probe.stop.0 - probe.start.0) as f64 / 1e9;
    let packets = (offered * seconds / 8.0 / f64::from(packet + 28)).round();
    let passed = (packets * (capacity / offered).min(1.0)).floor();
    let subject = probe.name.clone();
    let bins = plan.duration.as_secs_f64();
    let series = |metric, value| Series { metric, subject: subject.clone(), values: vec![value] };
    Outcome {
        interval: plan.measure.interval,
        bins: 1,
        series: vec![
            series(Metric::FlowThroughput, passed * 8.0 * f64::from(packet) / bins),
            series(Metric::FlowSent, packets),
        ],
        loads: vec![Load {
            subject: subject.clone(),
            quantity: "rate".into(),
            unit: "bit/s".into(),
            layer: "payload".into(),
            asked,
            achieved: offered,
        }],
        ..Outcome::default()
    }
}

fn tested(plan: &Plan, capacity: f64, generator: f64) -> TestOutcome {
    let runner = |plan: &Plan, _: u64, _: &dyn Fn() -> bool| Ok(device(plan, capacity, generator));
    run(plan, 1, &runner, &|| false, &|_| {}).unwrap().remove(0)
}

#[track_caller]
fn value(test: &TestOutcome, metric: Metric, subject: &str) -> f64 {
    let found = test.findings.iter().find(|f| f.metric == metric.info().name && f.subject == subject);
    found.unwrap_or_else(|| panic!("{metric:?} of {subject} is missing: {test:?}")).value
}

#[test]
fn throughput_is_searched_for_each_frame_size() {
    let test = tested(&plan(Method::Throughput(search(10)), &[64, 1518]), 20e6, f64::INFINITY);
    for subject in ["one[64]", "one[1518]"] {
        let found = value(&test, Metric::TestThroughput, subject);
        // Within the resolution: 0.1 % of 100 Mbit/s.
        assert!((19.9e6..=20.0e6).contains(&found), "{subject}: {found}");
    }
    assert!(test.void.is_empty() && test.trials.len() > 10);
    assert_eq!(test.deviations, ["trials of 10 s instead of 60 s"]);
}

#[test]
fn a_trial_is_the_network_with_one_flow_and_what_runs_beside_it() {
    let mut plan = plan(Method::Throughput(search(10)), &[64]);
    plan.tests[0].load = vec![2];
    plan.tests[0].warm_up = Duration::from_secs(3);
    let (plans, seeds) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let runner = |plan: &Plan, seed: u64, _: &dyn Fn() -> bool| {
        plans.lock().unwrap().push(plan.clone());
        seeds.lock().unwrap().push(seed);
        Ok(device(plan, 20e6, f64::INFINITY))
    };
    let doing = RefCell::new(Vec::new());
    run(&plan, 1, &runner, &|| false, &|what| doing.borrow_mut().push(what.to_owned())).unwrap();
    let plans = plans.into_inner().unwrap();
    for derived in &plans {
        assert_eq!((&derived.nodes, &derived.links, &derived.vpns), (&plan.nodes, &plan.links, &plan.vpns));
        let names: Vec<&str> = derived.flows.iter().map(|flow| flow.name.as_str()).collect();
        assert_eq!(names, ["noise", "test.one"]);
        let probe = &derived.flows[1];
        assert_eq!(probe.start, fixture::at(3));
        // Sent for 10 s, waited for 2 s more; the load runs on to the end.
        assert_eq!(derived.duration.as_secs_f64().round(), 15.0);
        assert!(derived.flows[0].stop >= probe.stop && derived.tests.is_empty());
    }
    // Every trial meets chances of its own.
    let mut seeds = seeds.into_inner().unwrap();
    seeds.sort();
    seeds.dedup();
    assert_eq!(seeds.len(), plans.len());
    assert_eq!(doing.borrow()[1], "test one, trial 2");
}

#[test]
fn what_the_generator_cannot_send_is_not_the_networks_loss() {
    let test = tested(&plan(Method::Throughput(search(10)), &[64]), f64::INFINITY, 30e6);
    let found = value(&test, Metric::TestThroughput, "one");
    assert!((29.0e6..=30.1e6).contains(&found), "{found}");
    assert!(test.verdicts[0].contains("the tester sends no more than"), "{:?}", test.verdicts);
    assert!(test.trials[0].void.starts_with("the generator offered"), "{:?}", test.trials[0]);
    let loss = Method::Loss { rate: BitRate(100_000_000), trial: Duration::from_secs(10), repeats: 1 };
    let test = tested(&plan(loss, &[64]), f64::INFINITY, 30e6);
    assert!(test.findings.is_empty() && test.void.len() == 1, "{test:?}");
    assert_eq!(test.trials.len(), 3);
}

#[test]
fn a_stage_that_spoils_every_trial_voids_the_test() {
    let plan = plan(Method::Throughput(search(10)), &[64]);
    let runner = |plan: &Plan, _: u64, _: &dyn Fn() -> bool| {
        Ok(Outcome { void: vec!["the emulator was late".into()], ..device(plan, 20e6, f64::INFINITY) })
    };
    let test = run(&plan, 1, &runner, &|| false, &|_| {}).unwrap().remove(0);
    assert_eq!(test.void, ["one: 3 trials in a row were spoiled: the emulator was late"]);
    assert_eq!(test.trials.len(), 3);
}

#[test]
fn loss_at_a_rate_has_its_interval() {
    let loss = Method::Loss { rate: BitRate(40_000_000), trial: Duration::from_secs(10), repeats: 2 };
    let test = tested(&plan(loss, &[1518]), 20e6, f64::INFINITY);
    assert!((value(&test, Metric::TestLossRatio, "one") - 0.5).abs() < 1e-4);
    assert!((value(&test, Metric::TestDelivered, "one") - 20e6).abs() < 1e4);
    let found = &test.findings[0];
    // 66,667 packets: the interval is ± 1.96 · √(0.25 / n).
    assert!((found.high.unwrap() - found.low.unwrap() - 0.00759).abs() < 1e-4, "{found:?}");
}
