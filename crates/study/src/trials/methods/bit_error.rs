//! The bit error rate, from how loss grows with the size of packets.

use super::{Probe, count, lost};
use crate::trials::session::{Ended, Session};
use netstage_core::measure::bit_error::{LossOfSize, fit_loss};
use netstage_core::measure::trial::{Layer, Load};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;

/// Below this share of chances, loss does not grow with size as bit errors make it.
const DOUBTFUL: f64 = 0.01;

pub fn by_loss(session: &mut Session, probes: &[Probe], rate: BitRate, trial: Duration) -> Result<(), Ended> {
    let mut points = Vec::new();
    for probe in probes {
        let load = Load::of_bits(rate, Layer::Ip, probe.frame);
        let (sent, missing) = count(session, probe, load, trial, 1)?;
        lost(session, probe, load, sent, missing);
        points.push(LossOfSize { bits: u64::from(probe.frame.ip) * 8, sent, lost: missing });
    }
    let name = session.test.name.clone();
    let fit = match fit_loss(&points) {
        Ok(fit) => fit,
        Err(why) => {
            session.say(format!("{name}: {why}"));
            return Ok(());
        }
    };
    let (ber, base) = (fit.bit_error_ratio, fit.base_loss);
    session.find_within(Metric::TestBitErrorRate, &name, ber.estimate, (ber.lower, ber.upper));
    session.find_within(Metric::TestBaseLoss, &name, base.estimate, (base.lower, base.upper));
    if !fit.separated {
        session.say(format!("{name}: of one size all loss is taken for bit errors; give several sizes"));
    }
    if fit.goodness.is_some_and(|goodness| goodness < DOUBTFUL) {
        session.say(format!("{name}: loss does not grow with size as independent bit errors make it"));
    }
    Ok(())
}
