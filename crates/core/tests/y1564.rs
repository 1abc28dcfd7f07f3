//! Y.1564 service activation against simulated services.

mod device;

use device::SimulatedDevice;
use netstage_core::measure::trial::{CountedLayer, FrameSize, OfferedLoad, TrialResult};
use netstage_core::measure::y1564::*;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

const FRAME: FrameSize = FrameSize::ethernet_udp(1000);

fn service(name: &str, committed: u64, excess: u64) -> ServiceUnderTest {
    ServiceUnderTest {
        name: name.into(),
        frame: FRAME,
        committed: BitRate(committed),
        excess: BitRate(excess),
        acceptance: Acceptance {
            delay: Some(Duration::from_millis(5)),
            delay_variation: Some(Duration::from_millis(2)),
            loss_ratio: 0.001,
        },
        policed: true,
    }
}

/// Returns a policer with this rate, bits per second.
fn policer(rate: u64) -> SimulatedDevice {
    SimulatedDevice::new(OfferedLoad::from_bit_rate(BitRate(rate), CountedLayer::Link, FRAME).0)
}

fn activate(services: Vec<ServiceUnderTest>, devices: &mut [SimulatedDevice]) -> Activation {
    let mut test = Activation::new(services, ActivationConfig::DEFAULT);
    while let Some(run) = test.proposal() {
        let results: Vec<TrialResult> =
            run.trials.iter().map(|(index, trial)| devices[*index].perform(trial)).collect();
        test.record(&results);
    }
    test
}

#[test]
fn conforming_services_are_accepted() {
    let services = vec![service("voice", 10_000_000, 0), service("data", 50_000_000, 20_000_000)];
    let test = activate(services, &mut [policer(10_000_000), policer(70_000_000)]);
    assert_eq!(test.accepted(), Some(true));
    let offered: Vec<u64> =
        test.results().iter().map(|result| (result.offered / 1e4).round() as u64).collect();
    // Voice: steps of CIR, then 125 % CIR. Data: steps of CIR, CIR + EIR, CIR + 125 % EIR. Both at CIR.
    assert_eq!(offered, [250, 500, 750, 1000, 1250, 1250, 2500, 3750, 5000, 7000, 7500, 1000, 5000]);
}

#[test]
fn missing_policer_is_reported() {
    let test = activate(vec![service("data", 50_000_000, 0)], &mut [policer(100_000_000)]);
    assert_eq!(test.accepted(), Some(false));
    let last = test.results().last().unwrap();
    assert_eq!((last.step, last.broken), (ActivationStep::Policing, Some(ViolatedCriterion::NotPoliced)));
}

#[test]
fn service_that_fails_below_cir_is_not_tested_above() {
    let services = vec![service("weak", 50_000_000, 10_000_000), service("good", 10_000_000, 0)];
    let test = activate(services, &mut [policer(30_000_000), policer(10_000_000)]);
    assert_eq!(test.accepted(), Some(false));
    let steps: Vec<(usize, ActivationStep)> =
        test.results().iter().map(|result| (result.service, result.step)).collect();
    assert_eq!(steps[2], (0, ActivationStep::Committed(75)));
    assert_eq!(test.results()[2].broken, Some(ViolatedCriterion::Loss));
    // The other service is still tested; the performance test is not run.
    assert_eq!(
        steps[3..],
        [25, 50, 75, 100]
            .map(|percent| (1, ActivationStep::Committed(percent)))
            .into_iter()
            .chain([(1, ActivationStep::Policing)])
            .collect::<Vec<_>>()
    );
}

#[test]
fn excessive_and_unmeasured_delays_fail() {
    // A queue of 100 frames at 10 Mbit/s holds 80 ms, and fills within the step.
    let slow = SimulatedDevice { buffer: 100.0, ..policer(9_980_000) };
    let test = activate(vec![service("slow", 10_000_000, 0)], &mut [slow]);
    assert_eq!(test.results().last().unwrap().broken, Some(ViolatedCriterion::Delay));
    let mut test = Activation::new(vec![service("blind", 10_000_000, 0)], ActivationConfig::DEFAULT);
    let run = test.proposal().unwrap();
    let blind = TrialResult { delays: None, ..policer(10_000_000).perform(&run.trials[0].1) };
    test.record(&[blind]);
    assert_eq!(test.results()[0].broken, Some(ViolatedCriterion::DelayUnknown));
}

#[test]
fn tester_fault_is_reported_apart_from_the_service() {
    let weak = SimulatedDevice { generator: 100.0, ..policer(10_000_000) };
    let test = activate(vec![service("data", 10_000_000, 0)], &mut [weak]);
    let only = test.results().last().unwrap();
    assert!(only.fault.is_some() && !only.passed());
    assert_eq!((test.results().len(), test.accepted()), (1, Some(false)));
}
