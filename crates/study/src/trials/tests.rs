//! Tests of the methods with a modeled network instead of a stage.

use super::{TrialCallbacks, run};
use crate::fixture;
use netstage_core::measure::trial::FrameSize;
use netstage_core::quantity::BitRate;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::Pattern;
use netstage_scenario::outcome::finding::TestOutcome;
use netstage_scenario::outcome::{
    AchievedLoad, Distribution, Metric, POLICY_LOAD, RunObserver, RunOutcome, Series, ThreadStall,
};
use netstage_scenario::plan::{FlowGroup, FlowTransport, Method, Plan, RateSearchConfig, TestPlan};
use std::cell::RefCell;
use std::sync::Mutex;

/// Callbacks that do nothing.
const QUIET: TrialCallbacks<'static> = TrialCallbacks { stop: &|| false, doing: &|_| {}, on_trial: &|_| {} };

/// Returns the fixture's plan with one test from the first host to the last.
fn plan(method: Method, sizes: &[u32]) -> Plan {
    let mut plan = fixture::plan();
    let probe = FlowGroup {
        name: "test.one".into(),
        vpn: None,
        transport: FlowTransport::Udp,
        count: 1,
        background: false,
        ..plan.flows[0].clone()
    };
    plan.tests.push(TestPlan {
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

fn search(trial: u64) -> RateSearchConfig {
    RateSearchConfig {
        max_rate: Some(BitRate(100_000_000)),
        resolution: 0.001,
        trial: Duration::from_secs(trial),
    }
}

/// Returns the outcome of a trial on a network with a capacity of `capacity` bit/s of IP and a generator limited to
/// `generator` bit/s.
fn device(plan: &Plan, capacity: f64, generator: f64) -> RunOutcome {
    let probe = plan.flows.last().unwrap();
    let Some(&Pattern::Cbr { rate, packet }) = probe.traffic.pattern() else { panic!("{probe:?}") };
    let requested = rate.as_f64() * f64::from(packet + 28) / f64::from(packet);
    let offered = requested.min(generator);
    let seconds = (probe.stop.0 - probe.start.0) as f64 / 1e9;
    let packets = (offered * seconds / 8.0 / f64::from(packet + 28)).round();
    let passed = (packets * (capacity / offered).min(1.0)).floor();
    let subject = probe.name.clone();
    let bin = plan.measure.interval.as_secs_f64();
    let series = |metric, value| Series { metric, subject: subject.clone(), values: vec![value] };
    RunOutcome {
        interval: plan.measure.interval,
        bins: 1,
        series: vec![
            series(Metric::FlowThroughput, passed * 8.0 * f64::from(packet) / bin),
            series(Metric::FlowSent, packets),
            // The delay increases with the load.
            series(Metric::FlowDelay, 1e-5 * (1.0 + offered / 0.97e6)),
        ],
        loads: vec![AchievedLoad {
            subject: subject.clone(),
            quantity: "rate".into(),
            unit: "bit/s".into(),
            layer: "payload".into(),
            requested,
            achieved: offered,
        }],
        ..RunOutcome::default()
    }
}

fn tested(plan: &Plan, capacity: f64, generator: f64) -> TestOutcome {
    let runner = |plan: &Plan, _: u64, _: &dyn RunObserver| Ok(device(plan, capacity, generator));
    run(plan, (1, 0), &runner, &QUIET).unwrap().remove(0)
}

#[track_caller]
fn value(test: &TestOutcome, metric: Metric, subject: &str) -> f64 {
    let found = test.findings.iter().find(|f| f.metric == metric.info().name && f.subject == subject);
    found.unwrap_or_else(|| panic!("{metric:?} of {subject} is missing: {test:?}")).value
}

#[test]
fn throughput_is_found_for_each_frame_size() {
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
fn a_trial_runs_the_probe_and_the_load_on_the_network() {
    let mut plan = plan(Method::Throughput(search(10)), &[64]);
    plan.tests[0].load = vec![2];
    plan.tests[0].warm_up = Duration::from_secs(3);
    let (plans, seeds) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let runner = |plan: &Plan, seed: u64, _: &dyn RunObserver| {
        plans.lock().unwrap().push(plan.clone());
        seeds.lock().unwrap().push(seed);
        Ok(device(plan, 20e6, f64::INFINITY))
    };
    let doing = RefCell::new(Vec::new());
    let record = |what: &str| doing.borrow_mut().push(what.to_owned());
    run(&plan, (1, 0), &runner, &TrialCallbacks { doing: &record, ..QUIET }).unwrap();
    let plans = plans.into_inner().unwrap();
    for derived in &plans {
        assert_eq!((&derived.nodes, &derived.links, &derived.vpns), (&plan.nodes, &plan.links, &plan.vpns));
        let names: Vec<&str> = derived.flows.iter().map(|flow| flow.name.as_str()).collect();
        assert_eq!(names, ["noise", "test.one"]);
        let probe = &derived.flows[1];
        assert_eq!(probe.start, fixture::at(3));
        // Warm-up of 3 s, 10 s of sending, 2 s of waiting; the load lasts until the end.
        assert_eq!(derived.duration.as_secs_f64().round(), 15.0);
        assert!(derived.flows[0].stop >= probe.stop && derived.tests.is_empty());
    }
    // Each trial has its own seed.
    let mut seeds = seeds.into_inner().unwrap();
    seeds.sort();
    seeds.dedup();
    assert_eq!(seeds.len(), plans.len());
    assert_eq!(doing.borrow()[1], "test one, trial 2");
}

#[test]
fn a_steady_rate_has_a_delay_similar_to_the_low_rate() {
    let steady = Method::Steady {
        max_rate: Some(BitRate(100_000_000)),
        low: BitRate(1_000_000),
        step: BitRate(1_000_000),
        trial: Duration::from_secs(10),
        search: Duration::from_secs(2),
    };
    // No loss up to 50 Mbit/s; from 21 Mbit/s on, the delay exceeds ten times that at 1 Mbit/s plus a burst.
    let test = tested(&plan(steady.clone(), &[64]), 50e6, f64::INFINITY);
    assert_eq!(value(&test, Metric::TestThroughput, "one"), 20e6);
    let verdicts = test.verdicts.join("; ");
    assert!(
        verdicts.contains(
            "at 21 Mbit/s the mean delay over a second was 226.5 µs, versus 20.31 µs at the low rate"
        ),
        "{verdicts}"
    );
    let test = tested(&plan(steady, &[64]), 5.5e6, f64::INFINITY);
    assert_eq!(value(&test, Metric::TestThroughput, "one"), 5e6);
    assert!(test.verdicts.join("; ").contains("packets were lost"), "{:?}", test.verdicts);
}

#[test]
fn a_generator_limit_is_not_counted_as_loss() {
    let test = tested(&plan(Method::Throughput(search(10)), &[64]), f64::INFINITY, 30e6);
    let found = value(&test, Metric::TestThroughput, "one");
    assert!((29.0e6..=30.1e6).contains(&found), "{found}");
    assert!(test.verdicts[0].contains("the tester cannot send more than"), "{:?}", test.verdicts);
    assert!(test.trials[0].void.starts_with("the generator offered"), "{:?}", test.trials[0]);
    let loss = Method::Loss { rate: BitRate(100_000_000), trial: Duration::from_secs(10), repeats: 1 };
    let test = tested(&plan(loss, &[64]), f64::INFINITY, 30e6);
    assert!(test.findings.is_empty() && test.void.len() == 1, "{test:?}");
    assert_eq!(test.trials.len(), 3);
}

/// A policy that drops what exceeds its rate, and a network that loses what exceeds a capacity.
#[test]
fn packets_that_a_policy_dropped_are_a_limit_of_the_tester() {
    let seed = netstage_harness::seed("policy");
    for case in 0..40 {
        let mut random = RandomStream::new(seed, &format!("case.{case}"));
        let [limit, capacity] = [0, 1].map(|_| 5e6 + 90e6 * random.uniform());
        let runner = |plan: &Plan, _: u64, _: &dyn RunObserver| {
            let mut outcome = device(plan, capacity.min(limit), f64::INFINITY);
            let sent: f64 = outcome.get(Metric::FlowSent, "test.one").unwrap().values.iter().sum();
            let passed = (sent * (limit / outcome.loads[0].achieved).min(1.0)).floor();
            if passed < sent {
                outcome.loads.push(AchievedLoad {
                    subject: "test.one".into(),
                    quantity: POLICY_LOAD.into(),
                    unit: "packets".into(),
                    layer: String::new(),
                    requested: sent,
                    achieved: passed,
                });
                outcome.late_senders.push(("test.one".into(), "policy of a: dropped some".into()));
            }
            Ok(outcome)
        };
        let test =
            run(&plan(Method::Throughput(search(10)), &[64]), (1, 0), &runner, &QUIET).unwrap().remove(0);
        let found = value(&test, Metric::TestThroughput, "one");
        assert!(
            (found / capacity.min(limit) - 1.0).abs() < 0.02,
            "case {case}: {found}, {limit}, {capacity}"
        );
        if limit < capacity * 0.98 {
            let bound = test
                .findings
                .iter()
                .find(|found| found.metric == Metric::TestThroughput.info().name)
                .unwrap();
            assert!(bound.high.is_none(), "case {case}: {bound:?}");
            let said = test.shortfalls.join("; ");
            assert!(said.contains("policy of a: dropped some"), "case {case}: {said}");
        }
    }
}

/// Draws trials in which the generator falls short, and threads that were late.
#[test]
fn a_void_trial_names_the_thread_the_time_and_the_lateness() {
    let seed = netstage_harness::seed("void trials");
    for case in 0..40 {
        let mut random = RandomStream::new(seed, &format!("case.{case}"));
        let stall = |thread: &str, flow: &str, random: &mut RandomStream| ThreadStall {
            flow: flow.into(),
            thread: thread.into(),
            lateness: Duration(1_000_000 + random.below(900_000_000)),
            due: Instant(random.below(10_000_000_000)),
        };
        let stalls = vec![
            stall("sender", "test.one", &mut random),
            stall("reflector", "test.one", &mut random),
            stall("sender", "other", &mut random),
        ];
        let worst = stalls[..2].iter().max_by_key(|stall| stall.lateness).unwrap();
        let share = 0.1 + 0.8 * random.uniform();
        let runner = |plan: &Plan, _: u64, _: &dyn RunObserver| {
            Ok(RunOutcome { stalls: stalls.clone(), ..device(plan, f64::INFINITY, 30e6 * share) })
        };
        let loss = Method::Loss { rate: BitRate(30_000_000), trial: Duration::from_secs(10), repeats: 1 };
        let test = run(&plan(loss, &[64]), (1, 0), &runner, &QUIET).unwrap().remove(0);
        let expected = [
            worst.thread.clone(),
            format!("{:.1} ms", worst.lateness.0 as f64 / 1e6),
            format!("at {:.3} s", worst.due.0 as f64 / 1e9),
        ];
        assert!(test.void.len() == 1 && !test.trials.is_empty(), "{test:?}");
        for reason in test.trials.iter().map(|trial| &trial.void).chain(&test.void) {
            assert!(
                expected.iter().all(|part| reason.contains(part)),
                "case {case}: {expected:?} in {reason}"
            );
        }
    }
}

#[test]
fn a_test_is_void_if_all_trials_are_void_or_failed() {
    let plan = plan(Method::Throughput(search(10)), &[64]);
    let late = RunOutcome { void: vec!["the emulator was late".into()], ..RunOutcome::default() };
    let failed = RunOutcome { failures: vec!["the agent of b ended".into()], ..RunOutcome::default() };
    for (spoiled, reason) in [(late, "the emulator was late"), (failed, "the agent of b ended")] {
        let runner = |plan: &Plan, _: u64, _: &dyn RunObserver| {
            let (void, failures) = (spoiled.void.clone(), spoiled.failures.clone());
            Ok(RunOutcome { void, failures, ..device(plan, 20e6, f64::INFINITY) })
        };
        for (retries, attempts) in [(0, 3), (4, 5)] {
            let test = run(&plan, (1, retries), &runner, &QUIET).unwrap().remove(0);
            assert_eq!(test.void, [format!("one: {attempts} consecutive trials were void: {reason}")]);
            assert_eq!(test.trials.len(), attempts);
        }
    }
}

#[test]
fn a_loss_ratio_has_a_confidence_interval() {
    let loss = Method::Loss { rate: BitRate(40_000_000), trial: Duration::from_secs(10), repeats: 2 };
    let test = tested(&plan(loss, &[1518]), 20e6, f64::INFINITY);
    assert!((value(&test, Metric::TestLossRatio, "one") - 0.5).abs() < 1e-4);
    assert!((value(&test, Metric::TestDelivered, "one") - 20e6).abs() < 1e4);
    let found = &test.findings[0];
    // 66,667 packets: the interval is ± 1.96 · √(0.25 / n).
    assert!((found.high.unwrap() - found.low.unwrap() - 0.00759).abs() < 1e-4, "{found:?}");
}

/// Returns the outcome of a STAMP session of 500 packets with this loss in each direction. `is_reported`: whether the
/// reflector reports its loss.
fn session(plan: &Plan, lost: [f64; 2], is_reported: bool) -> RunOutcome {
    let probe = plan.flows.last().unwrap();
    let Some(Pattern::Trace { packets, repeat: true }) = probe.traffic.pattern() else { panic!("{probe:?}") };
    assert_eq!((packets[0], packets.len()), ((Duration::from_millis(30), 954), 1));
    // 500.5 gaps, then 2 s for replies.
    assert_eq!((probe.stop.0, plan.duration.0), (15_015_000_000, 17_015_000_000));
    let bits = |packets: f64| packets * 8.0 * 954.0 / plan.duration.as_secs_f64();
    let series =
        |metric, subject: &str, value| Series { metric, subject: subject.into(), values: vec![value] };
    let reflected = if is_reported { lost } else { [f64::NAN; 2] };
    let delay = |metric, subject: &str, buckets| Distribution { metric, subject: subject.into(), buckets };
    RunOutcome {
        interval: plan.measure.interval,
        bins: 1,
        series: vec![
            series(Metric::FlowSent, "test.one", 500.0),
            series(Metric::FlowThroughput, "test.one", bits(500.0 - lost[0] - lost[1])),
            series(Metric::FlowLost, "test.one[forward]", reflected[0]),
            series(Metric::FlowLost, "test.one[backward]", reflected[1]),
            series(Metric::FlowClockError, "test.one", 2e-6),
        ],
        distributions: vec![
            delay(Metric::FlowRoundTrip, "test.one", vec![(3_000, 400), (3_100, 75)]),
            delay(Metric::FlowDelay, "test.one[forward]", vec![(1_000, 400), (1_100, 75)]),
            delay(Metric::FlowDelay, "test.one[backward]", vec![(2_000, 475)]),
        ],
        ..RunOutcome::default()
    }
}

/// At this size, an interval of 30 ms is not a whole number of bits per second.
const STAMP: Method = Method::Stamp { interval: Duration::from_millis(30), trial: Duration::from_secs(15) };

fn stamp_plan() -> Plan {
    let mut plan = plan(STAMP, &[1000]);
    plan.tests[0].probe.transport = FlowTransport::Stamp { interval: Duration::from_millis(30) };
    plan
}

#[test]
fn stamp_measures_loss_and_delay_of_each_direction() {
    let plan = stamp_plan();
    let runner = |plan: &Plan, _: u64, _: &dyn RunObserver| Ok(session(plan, [20.0, 5.0], true));
    let test = run(&plan, (1, 0), &runner, &QUIET).unwrap().remove(0);
    let near = |metric, subject: &str, expected: f64| {
        let found = value(&test, metric, subject);
        assert!((found / expected - 1.0).abs() < 1e-3, "{metric:?} of {subject}: {found}");
    };
    near(Metric::TestSent, "one", 500.0);
    near(Metric::TestClockError, "one", 2e-6);
    // Backward loss is relative to the reflected packets.
    near(Metric::TestLossRatio, "one[forward]", 20.0 / 500.0);
    near(Metric::TestLossRatio, "one[backward]", 5.0 / 480.0);
    near(Metric::TestLossRatio, "one[round-trip]", 25.0 / 500.0);
    for (part, min, max) in
        [("one[forward]", 1e-6, 1.1e-6), ("one[backward]", 2e-6, 2e-6), ("one[round-trip]", 3e-6, 3.1e-6)]
    {
        near(Metric::TestLatencyMin, part, min);
        near(Metric::TestLatencyMedian, part, min);
        near(Metric::TestLatency99, part, max);
        near(Metric::TestLatencyMax, part, max);
        let variation = value(&test, Metric::TestDelayVariation, part);
        assert!((variation - (max - min)).abs() < 2e-9, "{part}: {variation}");
    }
    // The findings are exactly those that the method declares; 500 packets are too few for 99.9 %.
    let found: Vec<_> =
        test.findings.iter().map(|found| (found.metric.clone(), found.subject.clone())).collect();
    for &metric in STAMP.metrics().iter().filter(|metric| **metric != Metric::TestLatency999) {
        for subject in plan.tests[0].subjects(metric) {
            assert!(found.contains(&(metric.info().name.into(), subject.clone())), "{metric:?} of {subject}");
        }
    }
    assert_eq!(found.len(), 3 * 7 + 2);
    assert_eq!(
        test.verdicts,
        [
            "one: 20 of 500 packets were lost forward, 5 of 480 replies backward",
            "one: one-way delays have a clock error of up to 2 µs"
        ]
    );
    assert_eq!((test.trials.len(), test.trials[0].sent, test.trials[0].lost), (1, 500, 25));
}

#[test]
fn a_stamp_test_without_the_reflectors_report_is_void() {
    let runner = |plan: &Plan, _: u64, _: &dyn RunObserver| Ok(session(plan, [20.0, 5.0], false));
    let test = run(&stamp_plan(), (1, 0), &runner, &QUIET).unwrap().remove(0);
    assert_eq!(test.void.len(), 1);
    assert!(test.void[0].starts_with("one: the stage did not report how many of "), "{:?}", test.void);
    assert!(test.void[0].contains(" packets the reflector received within the run of "), "{:?}", test.void);
    assert!(test.findings.is_empty());
}
