//! STAMP (RFC 8762): loss, delay and delay variation in both directions.

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
    let (round_trips, directions) = (session.take_travel_times(), session.take_ways());
    let Some([lost_forward, lost_backward]) = directions.lost else {
        return Err(Ended::Void(format!(
            "{name}: the stage did not report the packets received by the reflector"
        )));
    };
    session.find(Metric::TestSent, &name, sent as f64);
    let reflected = sent.saturating_sub(lost_forward);
    let counts = [(Direction::Forward, sent, lost_forward), (Direction::Backward, reflected, lost_backward)];
    for ((direction, sent, lost), delays) in counts.into_iter().zip(&directions.delays) {
        add_findings(session, direction.name(), sent, lost, delays);
    }
    add_findings(session, ROUND_TRIP, sent, lost_forward + lost_backward, &round_trips);
    session.find(Metric::TestClockError, &name, directions.clock_error.unwrap_or(f64::NAN));
    session.say(format!(
        "{name}: {lost_forward} of {sent} packets were lost forward, {lost_backward} of {reflected} replies backward"
    ));
    session.say(match directions.clock_error {
        Some(0.0) => format!("{name}: one-way delays are exact: both ends use the same clock"),
        Some(error) => {
            let error = crate::format::quantity(error, "s");
            format!("{name}: one-way delays have a clock error of up to {error}")
        }
        None => {
            format!("{name}: one-way delays have an unknown clock error; delay variation is not affected")
        }
    });
    Ok(())
}

/// Adds the findings of loss and delay of one direction or of the round trip.
fn add_findings(session: &mut Session, part: &str, sent: u64, lost: u64, delays: &Histogram) {
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
