//! STAMP (RFC 8762): loss, delay and its variation, there and back.

use super::{Probe, count};
use crate::trials::session::{Ended, Session};
use netstage_core::measure::trial::{Delays, Load};
use netstage_core::measure::{Histogram, clopper_pearson};
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;
use netstage_scenario::plan::{Direction, ROUND_TRIP};

pub fn run(session: &mut Session, probe: &Probe, interval: Duration, trial: Duration) -> Result<(), Ended> {
    let name = session.test.name.clone();
    let load = Load(1.0 / interval.as_secs_f64());
    let (sent, _) = count(session, probe, load, trial, 1)?;
    let (round_trips, ways) = (session.take_travel_times(), session.take_ways());
    let Some([there, back]) = ways.lost else {
        return Err(Ended::Void(format!("{name}: the stage did not tell what reached the reflector")));
    };
    session.find(Metric::TestSent, &name, sent as f64);
    let reflected = sent.saturating_sub(there);
    let ways_taken = [(Direction::Forward, sent, there), (Direction::Backward, reflected, back)];
    for ((direction, sent, lost), delays) in ways_taken.into_iter().zip(&ways.delays) {
        tell(session, direction.name(), sent, lost, delays);
    }
    tell(session, ROUND_TRIP, sent, there + back, &round_trips);
    session.find(Metric::TestClockError, &name, ways.clock_error.unwrap_or(f64::NAN));
    session.say(format!(
        "{name}: {there} of {sent} packets were lost on the way there, {back} of {reflected} answers on the way back"
    ));
    session.say(match ways.clock_error {
        Some(0.0) => format!("{name}: both ends read one clock, which one-way delays are told by"),
        Some(error) => {
            let error = crate::format::quantity(error, "s");
            format!("{name}: one-way delays are within {error}, as far as the clocks of both ends agree")
        }
        None => format!(
            "{name}: how far the clocks of both ends agree is not known; delay variation holds all the same"
        ),
    });
    Ok(())
}

/// Keeps the loss and the delays of one part.
fn tell(session: &mut Session, part: &str, sent: u64, lost: u64, delays: &Histogram) {
    let (subject, lost) = (session.test.part(part), lost.min(sent));
    if sent > 0 {
        let exact = clopper_pearson(lost, sent, 0.95);
        let ratio = lost as f64 / sent as f64;
        session.find_within(Metric::TestLossRatio, &subject, ratio, (exact.lower, exact.upper));
    }
    let Some(delays) = Delays::of(delays) else { return };
    for (metric, delay) in [
        (Metric::TestLatency, delays.mean),
        (Metric::TestLatencyLeast, delays.minimum),
        (Metric::TestLatencyMedian, delays.median),
        (Metric::TestLatency99, delays.p99),
        (Metric::TestLatency999, delays.p999),
        (Metric::TestLatencyMost, delays.maximum),
        (Metric::TestDelayVariation, delays.p999 - delays.minimum),
    ] {
        session.find(metric, &subject, delay.as_secs_f64());
    }
}
