//! MLRsearch (RFC 9971) against simulated devices.

mod device;

use device::{SimulatedDevice, forward};
use netstage_core::measure::Summary;
use netstage_core::measure::mlrsearch::*;
use netstage_core::measure::rfc2544::{Throughput, ThroughputConfig};
use netstage_core::measure::trial::{FaultTolerance, FrameSize, OfferedLoad, Pauses, run};
use netstage_core::rng::RandomStream;
use netstage_core::time::Duration;

const FRAME: FrameSize = FrameSize::ethernet_udp(64);
const LINE: OfferedLoad = OfferedLoad(1e6);
const SECOND: Duration = Duration::from_secs(1);

fn config(goals: Vec<Goal>) -> MlrConfig {
    MlrConfig {
        goals,
        frame: FRAME,
        minimum: OfferedLoad(100.0),
        maximum: LINE,
        pauses: Pauses::RFC2544,
        patience: FaultTolerance::default(),
    }
}

fn search(device: &mut SimulatedDevice, goals: Vec<Goal>) -> MlrResult {
    run(&mut MlrSearch::new(config(goals)), |trial| {
        assert!(trial.load >= OfferedLoad(100.0) && trial.load <= LINE && device.trials < 5000, "{trial:?}");
        device.perform(trial)
    })
}

#[test]
fn search_finds_the_capacity_of_a_steady_device() {
    for capacity in [150.0, 5_432.1, 333_333.0, 999_000.0] {
        let found = search(&mut SimulatedDevice::new(capacity), vec![Goal::rfc2544(0.005)]);
        let [goal] = found.goals[..] else { panic!("{found:?}") };
        let (lower, upper) = (goal.lower.unwrap().0, goal.upper.unwrap().0);
        assert_eq!(goal.irregular, None);
        assert!(lower <= capacity * 1.001 && upper >= capacity * 0.999, "{goal:?}");
        assert!(upper - lower <= 0.005 * upper && goal.conditional_throughput == goal.lower);
    }
}

#[test]
fn short_trials_are_faster_than_bisection() {
    let mut bisected = SimulatedDevice::new(333_333.0);
    let throughput = ThroughputConfig { resolution: 0.001, ..ThroughputConfig::rfc2544(FRAME, LINE) };
    run(&mut Throughput::new(throughput), |trial| bisected.perform(trial));
    let mut searched = SimulatedDevice::new(333_333.0);
    search(&mut searched, vec![Goal::rfc2544(0.003)]);
    assert!(searched.spent < 0.6 * bisected.spent, "{} s, bisection {} s", searched.spent, bisected.spent);
}

#[test]
fn goals_with_different_loss_ratios_share_trials() {
    let zero = Goal::majority(0.0, SECOND, 5, 0.005);
    let half_percent = Goal { loss_ratio: 0.005, ..zero };
    let found = search(&mut SimulatedDevice::new(200_000.0), vec![zero, half_percent]);
    let [ndr, pdr] = found.goals[..] else { panic!("{found:?}") };
    assert!(ndr.irregular.is_none() && pdr.irregular.is_none());
    // With 0.5 % loss allowed, a device may be offered 1/0.995 of its capacity.
    assert!((ndr.lower.unwrap().0 / 200_000.0 - 1.0).abs() < 0.006, "{ndr:?}");
    let pdr_lower = pdr.lower.unwrap().0;
    assert!(pdr_lower <= 200_000.0 / 0.995 * 1.0001 && pdr_lower > 200_000.0 * 0.994, "{pdr:?}");
    assert!(pdr.conditional_throughput.unwrap().0 <= 200_001.0);
    let mut alone = SimulatedDevice::new(200_000.0);
    let mut other = SimulatedDevice::new(200_000.0);
    let one = search(&mut alone, vec![zero]).trials + search(&mut other, vec![half_percent]).trials;
    assert!(found.trials < one, "{} trials together, {one} separately", found.trials);
}

// Stalls with packet loss occur every 40 s on average. Bisection with 10 s trials mistakes a stall for the
// capacity of the device, at a random load.
#[test]
fn mlrsearch_is_repeatable_on_a_noisy_device_unlike_bisection() {
    let noisy = |seed| {
        let stalls = SimulatedDevice {
            stall_rate: 0.025,
            stall_packets: 60_000.0,
            noise: 0.002,
            ..SimulatedDevice::new(300_000.0)
        };
        stalls.seeded(seed)
    };
    let bisect = |seed| {
        let duration = Duration::from_secs(10);
        let config = ThroughputConfig { duration, ..ThroughputConfig::rfc2544(FRAME, LINE) };
        let mut device = noisy(seed);
        let found = run(&mut Throughput::new(config), |trial| device.perform(trial));
        found.throughput.map_or(0.0, |load| load.0)
    };
    let mlr = |seed| {
        let found = search(&mut noisy(seed), vec![Goal::majority(0.0, SECOND, 21, 0.005)]);
        assert_eq!(found.goals[0].irregular, None, "{found:?}");
        found.goals[0].conditional_throughput.unwrap().0
    };
    let bisected = Summary::from_samples(&(0..60).map(bisect).collect::<Vec<f64>>());
    let searched = Summary::from_samples(&(0..60).map(mlr).collect::<Vec<f64>>());
    println!("bisection {bisected:?}\nMLRsearch {searched:?}");
    assert!((searched.mean / 300_000.0 - 1.0).abs() < 0.01, "{searched:?}");
    assert!(searched.standard_deviation < 0.01 * searched.mean, "{searched:?}");
    assert!(bisected.standard_deviation > 8.0 * searched.standard_deviation, "{bisected:?}");
}

#[test]
fn device_faster_than_the_line_gives_an_irregular_result() {
    let found = search(&mut SimulatedDevice::new(2e6), vec![Goal::rfc2544(0.005)]);
    let [goal] = found.goals[..] else { panic!("{found:?}") };
    assert_eq!(
        (goal.irregular, goal.upper, goal.lower),
        (Some(IrregularReason::AtMaximum), None, Some(LINE))
    );
    assert_eq!(goal.conditional_throughput, Some(LINE));
}

#[test]
fn device_that_forwards_nothing_gives_an_irregular_result() {
    let found =
        search(&mut SimulatedDevice { loss: 1.0, ..SimulatedDevice::new(2e6) }, vec![Goal::rfc2544(0.005)]);
    let [goal] = found.goals[..] else { panic!("{found:?}") };
    assert_eq!((goal.irregular, goal.lower), (Some(IrregularReason::AtMinimum), None));
    assert_eq!(goal.upper, Some(OfferedLoad(100.0)));
}

#[test]
fn tester_limit_is_reported_and_not_attributed_to_the_device() {
    let mut device = SimulatedDevice { generator: 150_000.0, ..SimulatedDevice::new(300_000.0) };
    let found = search(&mut device, vec![Goal::rfc2544(0.005), Goal::majority(0.01, SECOND, 3, 0.01)]);
    for goal in &found.goals {
        assert_eq!((goal.irregular, goal.upper), (Some(IrregularReason::TesterLimit), None), "{goal:?}");
        assert!((goal.lower.unwrap().0 - 150_000.0).abs() < 1.0);
    }
    assert!(found.tester_limit.is_some() && !found.faults.is_empty());
    let found = run(&mut MlrSearch::new(config(vec![Goal::rfc2544(0.01)])), |_| Default::default());
    assert_eq!((found.trials, found.goals[0].irregular), (0, Some(IrregularReason::Unfinished)));
}

#[test]
fn short_trials_through_a_queue_give_an_interval_with_the_truth_or_are_called_too_short() {
    let mut short = 0;
    for seed in 1..=500 {
        let mut stream = RandomStream::new(seed, "short trials");
        let capacity = 100.0 * (stream.uniform() * 6.0).exp();
        let trial = Duration::from_secs_f64(0.05 + stream.uniform() * 1.5);
        let first = Duration::from_secs_f64(trial.as_secs_f64() * (0.2 + 0.8 * stream.uniform()));
        let goal = Goal { initial_trial_duration: first, ..Goal::majority(0.0, trial, 1 + seed % 5, 0.01) };
        let mut search = MlrSearch::new(MlrConfig {
            maximum: OfferedLoad(capacity * (1.5 + 3.0 * stream.uniform())),
            minimum: OfferedLoad(capacity / 50.0),
            ..config(vec![goal])
        });
        let found = run(&mut search, |trial| forward(capacity, 64.0, trial)).goals[0];
        let about = format!("seed {seed}: {capacity} packets/s, trials of {trial:?}: {found:?}");
        // A window contains up to one gap more or less than packets.
        let packet = 1.0 / (capacity * trial.as_secs_f64());
        let lower = found.lower.map_or(0.0, |load| load.0);
        assert!(lower <= capacity * (1.0 + packet), "{about}");
        assert!(found.upper.is_none_or(|upper| upper.0 >= capacity * (1.0 - packet)), "{about}");
        match found.irregular {
            None => assert!(lower >= capacity * (0.98 - packet), "{about}"),
            Some(reason) => {
                assert_eq!(reason, IrregularReason::ShortTrials, "{about}");
                short += 1;
            }
        }
    }
    assert!((50..450).contains(&short), "{short} of 500 are short");
}
