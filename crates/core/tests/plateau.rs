//! The plateau search against simulated devices.

mod device;

use device::SimulatedDevice;
use netstage_core::measure::plateau::*;
use netstage_core::measure::trial::{FrameSize, OfferedLoad, run};
use netstage_core::quantity::BitRate;

const FRAME: FrameSize = FrameSize::bare_udp(1000);

fn search(device: &mut SimulatedDevice) -> PlateauResult {
    let config = PlateauConfig::new(FRAME, OfferedLoad(50.0), OfferedLoad(1e5));
    run(&mut Plateau::new(config), |trial| {
        assert!(device.trials < 200);
        device.perform(trial)
    })
}

#[test]
fn plateau_matches_the_capacity() {
    for capacity in [80.0, 250.0, 12_345.0, 60_000.0] {
        let found = search(&mut SimulatedDevice { buffer: 20.0, ..SimulatedDevice::new(capacity) });
        let mean = found.capacity.unwrap().mean;
        // Packets in the buffer at the end of the trial are received after it.
        assert!((mean - capacity).abs() < 0.01 * capacity + 4.0, "{capacity}: {mean}");
        let (carried, full) = found.knee.unwrap();
        assert!(carried.0 <= capacity * 1.1 && full.0 >= capacity && full.0 - carried.0 <= 0.02 * full.0);
        assert_eq!(found.loss_when_idle, Some(0.0));
        assert!(found.curve.is_sorted_by(|one, other| one.offered <= other.offered));
    }
}

// The throughput of RFC 2544 collapses here (Figure 4 of the STAGE paper); the plateau does not.
#[test]
fn lossy_line_has_a_plateau() {
    let line = FRAME.maximum_load(BitRate(2_000_000)).0;
    for seed in 0..20 {
        let found = search(&mut SimulatedDevice { loss: 0.008, ..SimulatedDevice::new(line) }.seeded(seed));
        let mean = found.capacity.unwrap().mean;
        assert!((mean / line - 1.0).abs() < 0.02, "{mean}");
        assert!(found.loss_when_idle.unwrap() < 0.05);
    }
}

#[test]
fn noisy_path_has_a_confidence_interval() {
    let found = search(&mut SimulatedDevice { noise: 0.005, ..SimulatedDevice::new(1000.0) });
    let capacity = found.capacity.unwrap();
    assert!(capacity.count == 3 && capacity.half_width > 0.0);
    assert!((capacity.mean / 1000.0 - 1.0).abs() < 0.02, "{capacity:?}");
}

#[test]
fn missing_plateau_has_a_reason() {
    assert_eq!(search(&mut SimulatedDevice::new(1e6)).capacity, Err(PlateauError::AboveMaximum));
    let weak = &mut SimulatedDevice { generator: 700.0, ..SimulatedDevice::new(1e6) };
    assert_eq!(search(weak).capacity, Err(PlateauError::TesterLimit));
    let dead = &mut SimulatedDevice { loss: 1.0, ..SimulatedDevice::new(1e6) };
    assert_eq!(search(dead).capacity, Err(PlateauError::NothingReceived));
    // A generator slightly faster than the capacity is sufficient.
    let found = search(&mut SimulatedDevice { generator: 600.0, ..SimulatedDevice::new(500.0) });
    assert!((found.capacity.unwrap().mean - 500.0).abs() < 5.0);
}
