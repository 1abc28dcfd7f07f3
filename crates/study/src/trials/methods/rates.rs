//! Rate searches that tolerate loss: MLRsearch (RFC 9971), and the plateau of the received rate.

use super::{FrameProbe, add_rate, add_tester_limit, bits, maximum, megabits, pauses, short_trials, void};
use crate::trials::session::{TestAbort, TestSession};
use netstage_core::measure::mlrsearch::{Goal, IrregularReason, MlrConfig, MlrSearch};
use netstage_core::measure::plateau::{Plateau, PlateauConfig, PlateauError};
use netstage_core::measure::trial::{FaultTolerance, OfferedLoad};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;

/// Packets in the first trial of a plateau search. With fewer, random loss would be mistaken for congestion.
const FIRST_PACKETS: f64 = 1000.0;

pub fn mlrsearch(
    session: &mut TestSession,
    probe: &FrameProbe,
    max_rate: Option<BitRate>,
    goal: Goal,
) -> Result<(), TestAbort> {
    let mut machine = MlrSearch::new(MlrConfig {
        goals: vec![goal],
        frame: probe.frame,
        minimum: OfferedLoad(1.0 / goal.initial_trial_duration.as_secs_f64()),
        maximum: maximum(session, probe, max_rate),
        pauses: pauses(session),
        patience: FaultTolerance::default(),
    });
    let found = session.search(&probe.subject, &mut machine)?;
    let subject = &probe.subject;
    if found.trials == 0 {
        return Err(void(session, subject, &found.faults));
    }
    let goal = found.goals[0];
    match goal.irregular {
        None => {}
        Some(IrregularReason::AtMaximum) => {
            session.add_verdict(format!(
                "{subject}: the goal is met at the maximum rate; the capacity may be higher"
            ));
        }
        Some(IrregularReason::AtMinimum) => {
            session.add_verdict(format!("{subject}: the goal is met at no rate"))
        }
        Some(IrregularReason::ShortTrials) => {
            session.add_verdict(short_trials(subject, goal.goal.final_trial_duration));
        }
        Some(IrregularReason::TesterLimit | IrregularReason::Unfinished) => {
            if goal.conditional_throughput.is_none() {
                return Err(void(session, subject, &found.faults));
            }
            match (found.tester_limit, goal.upper) {
                (Some(limit), _) => add_tester_limit(session, probe, limit, &found.faults),
                (None, upper) => {
                    let open = upper.map_or("higher".into(), |load| {
                        format!("up to {}", megabits(bits(load, probe.frame)))
                    });
                    let verdict = format!(
                        "{subject}: the tester could not keep its schedule; the capacity may be {open}"
                    );
                    session.add_shortfall(format!("{verdict}: {}", session.last_reason(&found.faults)));
                    session.add_verdict(verdict);
                }
            }
        }
    }
    let bound = |load: Option<OfferedLoad>| load.map_or(f64::NAN, |load| load.0);
    // Without a lower bound, the throughput is unknown, and 0 only if the search has reached the minimum.
    let at_minimum = (goal.irregular == Some(IrregularReason::AtMinimum)).then_some(OfferedLoad(0.0));
    if let Some(throughput) = goal.conditional_throughput.or(at_minimum) {
        add_rate(session, probe, throughput, (bound(goal.lower), bound(goal.upper)));
    }
    Ok(())
}

pub fn plateau(
    session: &mut TestSession,
    probe: &FrameProbe,
    max_rate: Option<BitRate>,
    trial: Duration,
    repeats: u32,
) -> Result<(), TestAbort> {
    if let Some(capacity) = find_plateau(session, probe, max_rate, trial, repeats)? {
        let (value, half) = (bits(capacity.0, probe.frame), bits(capacity.1, probe.frame));
        session.add_value_within(Metric::TestPlateau, &probe.subject, value, (value - half, value + half));
    }
    Ok(())
}

/// Searches for the plateau and returns its load and half of its interval, or `None` if there is no plateau.
pub fn find_plateau(
    session: &mut TestSession,
    probe: &FrameProbe,
    max_rate: Option<BitRate>,
    trial: Duration,
    repeats: u32,
) -> Result<Option<(OfferedLoad, OfferedLoad)>, TestAbort> {
    let maximum = maximum(session, probe, max_rate);
    let first = FIRST_PACKETS / trial.as_secs_f64();
    let first = OfferedLoad(first.clamp(maximum.0 / 64.0, maximum.0 / 16.0));
    let mut machine = Plateau::new(PlateauConfig {
        repeats,
        duration: trial,
        pauses: pauses(session),
        ..PlateauConfig::new(probe.frame, first, maximum)
    });
    let found = session.search(&probe.subject, &mut machine)?;
    let subject = &probe.subject;
    if let Some(loss) = found.loss_when_idle.filter(|&loss| loss > 0.0) {
        let loss = crate::format::number(loss * 100.0);
        session.add_verdict(format!("{subject}: the path loses {loss} % of packets without congestion"));
    }
    match found.capacity {
        Ok(capacity) => return Ok(Some((OfferedLoad(capacity.mean), OfferedLoad(capacity.half_width)))),
        Err(PlateauError::AboveMaximum) => {
            session.add_verdict(format!(
                "{subject}: no plateau up to the maximum rate {}",
                megabits(bits(maximum, probe.frame))
            ));
        }
        Err(PlateauError::NothingReceived) => {
            session.add_verdict(format!("{subject}: no packets were received"))
        }
        Err(PlateauError::TesterLimit | PlateauError::Unfinished) => {
            return Err(void(session, subject, &found.faults));
        }
    }
    Ok(None)
}
