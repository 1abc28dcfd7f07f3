//! Y.1564 service activation against simulated services.

mod device;

use device::Device;
use netstage_core::measure::trial::{FrameSize, Layer, Load, TrialResult};
use netstage_core::measure::y1564::*;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;

const FRAME: FrameSize = FrameSize::ethernet_udp(1000);

fn service(name: &str, committed: u64, excess: u64) -> Service {
    Service {
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

/// A policer that lets this many bits per second through.
fn policer(rate: u64) -> Device {
    Device::new(Load::of_bits(BitRate(rate), Layer::Link, FRAME).0)
}

fn activate(services: Vec<Service>, devices: &mut [Device]) -> Activation {
    let mut test = Activation::new(services, ActivationConfig::DEFAULT);
    while let Some(run) = test.proposal() {
        let results: Vec<TrialResult> =
            run.trials.iter().map(|(index, trial)| devices[*index].perform(trial)).collect();
        test.record(&results);
    }
    test
}

#[test]
fn services_that_keep_their_promise_are_accepted() {
    let services = vec![service("voice", 10_000_000, 0), service("data", 50_000_000, 20_000_000)];
    let test = activate(services, &mut [policer(10_000_000), policer(70_000_000)]);
    assert_eq!(test.accepted(), Some(true));
    let offered: Vec<u64> =
        test.results().iter().map(|result| (result.offered / 1e4).round() as u64).collect();
    // Voice: steps of CIR and 125 % CIR; data: steps, CIR + EIR, CIR + 125 % EIR; both at CIR.
    assert_eq!(offered, [250, 500, 750, 1000, 1250, 1250, 2500, 3750, 5000, 7000, 7500, 1000, 5000]);
}

#[test]
fn a_missing_policer_is_told() {
    let test = activate(vec![service("data", 50_000_000, 0)], &mut [policer(100_000_000)]);
    assert_eq!(test.accepted(), Some(false));
    let last = test.results().last().unwrap();
    assert_eq!((last.step, last.broken), (Step::Policing, Some(Broken::NotPoliced)));
}

#[test]
fn a_service_that_breaks_below_its_rate_is_not_pushed_further() {
    let services = vec![service("weak", 50_000_000, 10_000_000), service("good", 10_000_000, 0)];
    let test = activate(services, &mut [policer(30_000_000), policer(10_000_000)]);
    assert_eq!(test.accepted(), Some(false));
    let steps: Vec<(usize, Step)> =
        test.results().iter().map(|result| (result.service, result.step)).collect();
    assert_eq!(steps[2], (0, Step::Committed(75)));
    assert_eq!(test.results()[2].broken, Some(Broken::Loss));
    // The other is still configured; the performance test of all is not run.
    assert_eq!(
        steps[3..],
        [25, 50, 75, 100]
            .map(|percent| (1, Step::Committed(percent)))
            .into_iter()
            .chain([(1, Step::Policing)])
            .collect::<Vec<_>>()
    );
}

#[test]
fn delay_and_its_absence_are_judged() {
    // A queue of 100 frames at 10 Mbit/s holds 80 ms, and fills within the step.
    let slow = Device { buffer: 100.0, ..policer(9_980_000) };
    let test = activate(vec![service("slow", 10_000_000, 0)], &mut [slow]);
    assert_eq!(test.results().last().unwrap().broken, Some(Broken::Delay));
    let mut test = Activation::new(vec![service("blind", 10_000_000, 0)], ActivationConfig::DEFAULT);
    let run = test.proposal().unwrap();
    let blind = TrialResult { delays: None, ..policer(10_000_000).perform(&run.trials[0].1) };
    test.record(&[blind]);
    assert_eq!(test.results()[0].broken, Some(Broken::DelayUnknown));
}

#[test]
fn the_testers_fault_is_not_the_services() {
    let weak = Device { generator: 100.0, ..policer(10_000_000) };
    let test = activate(vec![service("data", 10_000_000, 0)], &mut [weak]);
    let only = test.results().last().unwrap();
    assert!(only.fault.is_some() && !only.passed());
    assert_eq!((test.results().len(), test.accepted()), (1, Some(false)));
}
