//! Rate searches that tolerate loss: MLRsearch (RFC 9971), and the plateau of the received rate.

use super::{Probe, add_rate, bits, maximum, megabits, pauses, void};
use crate::trials::session::{Ended, Session};
use netstage_core::measure::mlrsearch::{Goal, Irregular, MlrConfig, MlrSearch};
use netstage_core::measure::plateau::{NoPlateau, Plateau, PlateauConfig};
use netstage_core::measure::trial::{Load, Patience};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;

/// Packets in the first trial of a plateau search. With fewer, random loss would be mistaken for congestion.
const FIRST_PACKETS: f64 = 1000.0;

pub fn mlrsearch(
    session: &mut Session,
    probe: &Probe,
    max_rate: Option<BitRate>,
    goal: Goal,
) -> Result<(), Ended> {
    let mut machine = MlrSearch::new(MlrConfig {
        goals: vec![goal],
        frame: probe.frame,
        minimum: Load(1.0 / goal.initial_trial_duration.as_secs_f64()),
        maximum: maximum(session, probe, max_rate),
        pauses: pauses(session),
        patience: Patience::default(),
    });
    let found = session.search(&probe.subject, &mut machine)?;
    let subject = &probe.subject;
    if found.trials == 0 {
        return Err(void(subject, &found.faults));
    }
    let goal = found.goals[0];
    match goal.irregular {
        None => {}
        Some(Irregular::AtMaximum) => {
            session
                .say(format!("{subject}: the goal is met at the maximum rate; the capacity may be higher"));
        }
        Some(Irregular::AtMinimum) => session.say(format!("{subject}: the goal is met at no rate")),
        Some(Irregular::TesterLimit | Irregular::Unfinished) => {
            let limit = found.tester_limit.map_or(f64::NAN, |load| bits(load, probe.frame));
            session.say(format!("{subject}: the tester cannot send more than {}", megabits(limit)));
        }
    }
    let bound = |load: Option<Load>| load.map_or(f64::NAN, |load| load.0);
    let conditional = goal.conditional_throughput.unwrap_or(Load(0.0));
    add_rate(session, probe, conditional, (bound(goal.lower), bound(goal.upper)));
    Ok(())
}

pub fn plateau(
    session: &mut Session,
    probe: &Probe,
    max_rate: Option<BitRate>,
    trial: Duration,
    repeats: u32,
) -> Result<(), Ended> {
    if let Some(capacity) = find_plateau(session, probe, max_rate, trial, repeats)? {
        let (value, half) = (bits(capacity.0, probe.frame), bits(capacity.1, probe.frame));
        session.find_within(Metric::TestPlateau, &probe.subject, value, (value - half, value + half));
    }
    Ok(())
}

/// Searches for the plateau and returns its load and half of its interval, or `None` if there is no plateau.
pub fn find_plateau(
    session: &mut Session,
    probe: &Probe,
    max_rate: Option<BitRate>,
    trial: Duration,
    repeats: u32,
) -> Result<Option<(Load, Load)>, Ended> {
    let maximum = maximum(session, probe, max_rate);
    let first = FIRST_PACKETS / trial.as_secs_f64();
    let first = Load(first.clamp(maximum.0 / 64.0, maximum.0 / 16.0));
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
        session.say(format!("{subject}: the path loses {loss} % of packets without congestion"));
    }
    match found.capacity {
        Ok(capacity) => return Ok(Some((Load(capacity.mean), Load(capacity.half_width)))),
        Err(NoPlateau::AboveMaximum) => {
            session.say(format!(
                "{subject}: no plateau up to the maximum rate {}",
                megabits(bits(maximum, probe.frame))
            ));
        }
        Err(NoPlateau::NothingReceived) => session.say(format!("{subject}: no packets were received")),
        Err(NoPlateau::TesterLimit | NoPlateau::Unfinished) => return Err(void(subject, &found.faults)),
    }
    Ok(None)
}
