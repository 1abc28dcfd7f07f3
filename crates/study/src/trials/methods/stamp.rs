//! STAMP (RFC 8762): loss, delay and delay variation in both directions.

use super::{FrameProbe, answers_upper, count};
use crate::trials::session::{TestAbort, TestSession};
use netstage_core::measure::rfc2544::LossAtLoad;
use netstage_core::measure::trial::{DelayStatistics, OfferedLoad};
use netstage_core::measure::{FaultTime, Histogram, VoidReason, clopper_pearson};
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;
use netstage_scenario::plan::{FlowDirection, ROUND_TRIP};

pub fn run(
    session: &mut TestSession,
    probe: &FrameProbe,
    interval: Duration,
    trial: Duration,
) -> Result<(), TestAbort> {
    let name = session.test.name.clone();
    let load = OfferedLoad(1.0 / interval.as_secs_f64());
    let loss = count(session, probe, load, trial, 1)?;
    let LossAtLoad { sent, late, .. } = loss;
    let (round_trips, error) = session.take_travel_times();
    let directions = session.take_direction_results();
    let Some([lost_forward, lost_backward]) = directions.lost else {
        let fault = format!("did not report how many of {sent} packets the reflector received");
        let reason = VoidReason::new(format!("{name}: the stage"), fault, FaultTime::Within(trial));
        return Err(TestAbort::Void(reason.into()));
    };
    session.add_value(Metric::TestSent, &name, sent as f64);
    let reflected = sent.saturating_sub(lost_forward);
    let counts =
        [(FlowDirection::Forward, sent, lost_forward), (FlowDirection::Backward, reflected, lost_backward)];
    let copies = answers_upper(session, &name, &loss, 1.0);
    for ((direction, sent, lost), delays) in counts.into_iter().zip(&directions.delays) {
        let hides = copies.is_nan() && direction == FlowDirection::Backward;
        add_findings(session, direction.name(), (sent, lost, late, hides), (delays, error));
    }
    let lost = lost_forward + lost_backward;
    add_findings(session, ROUND_TRIP, (sent, lost, late, copies.is_nan()), (&round_trips, error));
    session.add_value(Metric::TestClockError, &name, directions.clock_error.unwrap_or(f64::NAN));
    session.add_verdict(format!(
        "{name}: {lost_forward} of {sent} packets were lost forward, {lost_backward} of {reflected} replies backward"
    ));
    session.add_verdict(match directions.clock_error {
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

/// Adds the findings of loss and delay of one direction or of the round trip. Late packets may have caused as many losses,
/// and the delays may be too long by up to `error`. If copies hide losses, the ratio has no upper bound.
fn add_findings(
    session: &mut TestSession,
    part: &str,
    (sent, lost, late, copies_hide): (u64, u64, u64, bool),
    (delays, error): (&Histogram, Duration),
) {
    let (subject, lost) = (session.test.part(part), lost.min(sent));
    if sent > 0 {
        let low = clopper_pearson(lost.saturating_sub(late), sent, 0.95).lower;
        let high = if copies_hide { f64::NAN } else { clopper_pearson(lost, sent, 0.95).upper };
        let ratio = lost as f64 / sent as f64;
        session.add_value_within(Metric::TestLossRatio, &subject, ratio, (low, high));
    }
    let Some(statistics) = DelayStatistics::from_histogram(delays) else { return };
    session.add_delay(Metric::TestLatency, &subject, statistics.mean, error);
    super::delays(session, &subject, Some(statistics), error);
    session.add_delay(Metric::TestDelayVariation, &subject, statistics.variation(), error);
}
