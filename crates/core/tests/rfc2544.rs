//! RFC 2544 and RFC 9004 against simulated devices.

mod device;

use device::{SimulatedDevice, forward};
use netstage_core::measure::rfc2544::*;
use netstage_core::measure::trial::{FrameSize, OfferedLoad, TesterFault, run};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

const FRAME: FrameSize = FrameSize::ethernet_udp(512);
const LINE: OfferedLoad = OfferedLoad(100_000.0);

fn throughput(device: &mut SimulatedDevice, config: ThroughputConfig) -> ThroughputResult {
    run(&mut Throughput::new(config), |trial| device.perform(trial))
}

#[test]
fn throughput_matches_the_capacity_within_the_resolution() {
    for capacity in [150.0, 1_000.0, 33_333.0, 99_950.0] {
        let mut device = SimulatedDevice::new(capacity);
        let found = throughput(&mut device, ThroughputConfig::rfc2544(FRAME, LINE));
        let (low, high) = (found.throughput.unwrap().0, found.lossy.unwrap().0);
        // A trial of 60 s detects the loss of one packet, so it distinguishes loads that differ by 1/60
        // packet per second.
        assert!(low <= capacity + 0.1 && high > capacity, "{found:?}");
        assert!(high - low <= 100.0 && found.deviations.is_empty() && found.trials <= 11);
    }
}

#[test]
fn device_at_line_rate_needs_one_trial() {
    let found = throughput(&mut SimulatedDevice::new(2e5), ThroughputConfig::rfc2544(FRAME, LINE));
    assert_eq!((found.throughput, found.lossy, found.trials), (Some(LINE), None, 1));
}

#[test]
fn device_that_forwards_nothing_has_no_throughput() {
    let found = throughput(&mut SimulatedDevice::new(1e-3), ThroughputConfig::rfc2544(FRAME, LINE));
    assert_eq!(found.throughput, None);
    assert!(found.lossy.unwrap().0 <= 100.0);
}

/// A trial at exactly the capacity comes first, so the arrivals of the absorbed loads do not raise the throughput.
#[test]
fn excess_absorbed_by_a_queue_is_told_and_no_throughput() {
    for share in [0.5, 0.375, 0.3, 0.07] {
        let (capacity, buffer) = (share * LINE.0, 0.03 * LINE.0);
        let mut search = Throughput::new(ThroughputConfig {
            resolution: 0.01,
            duration: Duration::from_secs(1),
            ..ThroughputConfig::rfc2544(FRAME, LINE)
        });
        let found = run(&mut search, |trial| forward(capacity, buffer, trial));
        assert!(found.is_absorbed && found.faults.is_empty(), "{found:?}");
        // Packets that are late by 5 ms and a gap may be so by the fault of an emulated link: 0.5 % of a trial of 1 s.
        let throughput = found.throughput.unwrap().0;
        assert!(throughput <= 1.006 * capacity && throughput >= capacity - 0.01 * LINE.0, "{found:?}");
        assert!(found.lossy.unwrap().0 > capacity, "{found:?}");
    }
}

#[test]
fn generator_limit_is_not_counted_as_loss() {
    let mut device = SimulatedDevice { generator: 40_000.0, ..SimulatedDevice::new(60_000.0) };
    let found = throughput(&mut device, ThroughputConfig::rfc2544(FRAME, LINE));
    assert!((found.throughput.unwrap().0 - 40_000.0).abs() < 1.0, "{found:?}");
    assert_eq!(found.lossy, None);
    assert!(found.tester_limit.is_some());
    assert!(found.faults.iter().all(|fault| matches!(fault, TesterFault::GeneratorShort { .. })));
    // A generator limit above the capacity of the device does not matter.
    let mut device = SimulatedDevice { generator: 80_000.0, ..SimulatedDevice::new(60_000.0) };
    let found = throughput(&mut device, ThroughputConfig::rfc2544(FRAME, LINE));
    assert!((found.throughput.unwrap().0 - 60_000.0).abs() <= 100.0, "{found:?}");
    assert!(found.lossy.is_some() && found.tester_limit.is_none());
}

#[test]
fn receiver_drops_are_not_counted_as_loss() {
    let mut device = SimulatedDevice { receiver: 50_000.0, ..SimulatedDevice::new(60_000.0) };
    let found = throughput(&mut device, ThroughputConfig::rfc2544(FRAME, LINE));
    let limit = found.throughput.unwrap().0;
    assert!(limit > 45_000.0 && limit <= 50_000.0 && found.lossy.is_none(), "{found:?}");
    assert!(found.faults.iter().all(|fault| matches!(fault, TesterFault::ReceiverDropped { .. })));
}

#[test]
fn dead_generator_ends_the_search() {
    let mut search = Throughput::new(ThroughputConfig::rfc2544(FRAME, LINE));
    let found = run(&mut search, |_| Default::default());
    assert_eq!((found.throughput, found.lossy, found.faults.len()), (None, None, 3));
}

// Figure 4 of the STAGE paper: on a line with random loss, the throughput of RFC 2544 does not show the
// capacity, and drops further with longer trials.
#[test]
fn throughput_collapses_on_a_lossy_line() {
    let frame = FrameSize::bare_udp(1000);
    let line = frame.maximum_load(BitRate(2_000_000));
    let found = |loss: f64, seconds: u64| {
        let samples = (0..40).map(|seed| {
            let mut device = SimulatedDevice { loss, ..SimulatedDevice::new(line.0) }.seeded(seed);
            let duration = Duration::from_secs(seconds);
            let config =
                ThroughputConfig { duration, resolution: 0.01, ..ThroughputConfig::rfc2544(frame, line) };
            throughput(&mut device, config).throughput.map_or(0.0, |load| load.0 / line.0)
        });
        samples.sum::<f64>() / 40.0
    };
    assert_eq!(found(0.0, 5), 1.0);
    let (five, twenty) = (found(0.008, 5), found(0.008, 20));
    assert!(five < 0.5 && twenty < five, "{five} {twenty}");
}

#[test]
fn short_trials_are_reported_as_deviation() {
    let config =
        ThroughputConfig { duration: Duration::from_secs(5), ..ThroughputConfig::rfc2544(FRAME, LINE) };
    let found = throughput(&mut SimulatedDevice::new(5e4), config);
    let (required, used) = (Duration::from_secs(60), Duration::from_secs(5));
    assert_eq!(found.deviations, [Deviation::ShortTrials { required, used }]);
}

#[test]
fn latency_is_the_mean_of_tagged_frames() {
    let config = LatencyConfig::rfc2544(FRAME, OfferedLoad(5e4));
    let mut device = SimulatedDevice::new(6e4);
    let found = run(&mut Latency::new(config), |trial| {
        assert_eq!(trial.tag_after, Some(Duration::from_secs(60)));
        device.perform(trial)
    });
    assert_eq!((found.delays.len(), found.lost, found.frames_lost), (20, 0, 0));
    assert!((found.summary().mean - 10e-6).abs() < 1e-9 && found.deviations.is_empty());
}

#[test]
fn frame_loss_ends_after_two_lossless_loads() {
    let mut device = SimulatedDevice::new(65_000.0);
    let config = FrameLossConfig::rfc2544(FRAME, LINE);
    let found = run(&mut FrameLoss::new(config), |trial| device.perform(trial));
    let loads: Vec<u64> = found.points.iter().map(|point| point.load.0.round() as u64).collect();
    assert_eq!(loads, [100_000, 90_000, 80_000, 70_000, 60_000, 50_000]);
    assert!((found.points[0].ratio() - 0.35).abs() < 1e-5);
    // With a device that always loses, the test ends at the last step above zero.
    let mut device = SimulatedDevice { loss: 0.5, ..SimulatedDevice::new(1e6) };
    let found = run(&mut FrameLoss::new(config), |trial| device.perform(trial));
    assert_eq!(found.points.len(), 10);
}

#[test]
fn bursts_reveal_the_buffer_size() {
    // Buffer of 1000 packets, line rate 100,000, service rate 60,000: a burst of n leaves 0.4 n queued.
    let mut device = SimulatedDevice { buffer: 1000.0, ..SimulatedDevice::new(60_000.0) };
    let config = BackToBackConfig::rfc9004(FRAME, LINE, Some(OfferedLoad(60_000.0)));
    let found = run(&mut BackToBack::new(config), |trial| device.perform(trial));
    assert_eq!((found.bursts.len(), found.unbounded), (50, false));
    assert!(found.bursts.iter().all(|&burst| (2499..=2501).contains(&burst)), "{found:?}");
    // Implied 2500 / 100,000 s, corrected by 60 %: 10 ms, the time of 1000 packets at line rate.
    assert!((found.implied_buffer_time().unwrap().as_secs_f64() - 0.025).abs() < 2e-5);
    assert!((found.corrected_buffer_time().unwrap().as_secs_f64() - 0.010).abs() < 1e-5);
    assert!(found.deviations.is_empty());
}

#[test]
fn bursts_on_a_noisy_device_vary() {
    let mut device = SimulatedDevice { buffer: 1000.0, noise: 0.02, ..SimulatedDevice::new(60_000.0) };
    let config = BackToBackConfig::rfc9004(FRAME, LINE, None);
    let found = run(&mut BackToBack::new(config), |trial| device.perform(trial));
    let summary = found.summary();
    assert!((summary.mean - 2500.0).abs() < 100.0 && summary.standard_deviation > 10.0, "{summary:?}");
    assert_eq!(found.corrected_buffer_time(), None);
}

#[test]
fn device_at_line_rate_has_no_burst_limit() {
    let config = BackToBackConfig { repeats: 2, ..BackToBackConfig::rfc9004(FRAME, LINE, None) };
    let mut device = SimulatedDevice::new(2e5);
    let found = run(&mut BackToBack::new(config), |trial| device.perform(trial));
    assert!(found.unbounded && found.bursts == [200_000, 200_000]);
    assert_eq!(found.deviations, [Deviation::FewRepeats { required: 50, used: 2 }]);
}
