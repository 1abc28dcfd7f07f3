//! Bit error rate, from the increase of loss with packet size, or from the comparison of payloads.

use super::{FrameProbe, add_loss, count};
use crate::trials::session::{TestAbort, TestSession};
use netstage_core::measure::bit_error::{LossAtSize, fit_loss};
use netstage_core::measure::clopper_pearson;
use netstage_core::measure::trial::{CountedLayer, OfferedLoad};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;

/// Significance level below which loss does not fit independent bit errors.
const SIGNIFICANCE: f64 = 0.01;

pub fn by_loss(
    session: &mut TestSession,
    probes: &[FrameProbe],
    rate: BitRate,
    trial: Duration,
) -> Result<(), TestAbort> {
    let mut points = Vec::new();
    for probe in probes {
        let load = OfferedLoad::from_bit_rate(rate, CountedLayer::Ip, probe.frame);
        let loss = count(session, probe, load, trial, 1)?;
        add_loss(session, probe, &loss);
        points.push(LossAtSize { bits: u64::from(probe.frame.ip) * 8, sent: loss.sent, lost: loss.lost });
    }
    let name = session.test.name.clone();
    let fit = match fit_loss(&points) {
        Ok(fit) => fit,
        Err(why) => {
            session.add_verdict(format!("{name}: {why}"));
            return Ok(());
        }
    };
    let (ber, base) = (fit.bit_error_ratio, fit.base_loss);
    session.add_value_within(Metric::TestBitErrorRate, &name, ber.estimate, (ber.lower, ber.upper));
    session.add_value_within(Metric::TestBaseLoss, &name, base.estimate, (base.lower, base.upper));
    if !fit.separated {
        session.add_verdict(format!(
            "{name}: with one frame size, all loss is attributed to bit errors; give several sizes"
        ));
    }
    if fit.goodness.is_some_and(|goodness| goodness < SIGNIFICANCE) {
        session.add_verdict(format!(
            "{name}: the increase of loss with size does not fit independent bit errors"
        ));
    }
    Ok(())
}

/// Bytes of each payload that are not compared: the transmission time (`netstage_wire::probe`).
const TIMESTAMP: u32 = 8;

pub fn by_payload(
    session: &mut TestSession,
    probes: &[FrameProbe],
    rate: BitRate,
    trial: Duration,
) -> Result<(), TestAbort> {
    let (mut bits, mut wrong) = (0, 0);
    for probe in probes {
        let load = OfferedLoad::from_bit_rate(rate, CountedLayer::Ip, probe.frame);
        session.take_bit_errors();
        let loss = count(session, probe, load, trial, 1)?;
        add_loss(session, probe, &loss);
        bits += (loss.sent - loss.lost) * 8 * u64::from(probe.frame.payload.saturating_sub(TIMESTAMP));
        wrong += session.take_bit_errors();
    }
    let name = session.test.name.clone();
    if bits == 0 {
        session.add_verdict(format!("{name}: no payload was received for comparison"));
        return Ok(());
    }
    let exact = clopper_pearson(wrong, bits, 0.95);
    let ratio = wrong as f64 / bits as f64;
    session.add_value_within(Metric::TestBitErrorRate, &name, ratio, (exact.lower, exact.upper));
    session.add_verdict(format!("{name}: {wrong} of {bits} compared bits were wrong"));
    Ok(())
}
