//! Highest steady rate: without loss and without growing delay.

use super::{FrameProbe, add_rate, add_tester_bound, add_tester_limit, bits, delays, maximum, megabits, pauses, void};
use crate::trials::session::{TestAbort, TestSession};
use netstage_core::measure::steady::{Steady, SteadyConfig, SteadyVerdict};
use netstage_core::measure::trial::{CountedLayer, FaultTolerance, OfferedLoad};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;

pub fn run(
    session: &mut TestSession,
    probe: &FrameProbe,
    max_rate: Option<BitRate>,
    (low, step): (BitRate, BitRate),
    (trial, search): (Duration, Duration),
) -> Result<(), TestAbort> {
    let load = |rate| OfferedLoad::from_bit_rate(rate, CountedLayer::Ip, probe.frame);
    let maximum = maximum(session, probe, max_rate);
    let mut machine = Steady::new(SteadyConfig {
        frame: probe.frame,
        low: OfferedLoad(load(low).0.min(maximum.0)),
        maximum,
        step: load(step),
        duration: trial,
        search,
        pauses: pauses(session),
        patience: FaultTolerance::default(),
    });
    while let Some(trial) = machine.next() {
        let (result, seconds) = session.perform_by_second(&probe.subject, &trial)?;
        machine.record(&result, &seconds);
    }
    let (found, subject) = (machine.result(), &probe.subject);
    let rate = |load: OfferedLoad| megabits(bits(load, probe.frame));
    let seconds = |time: f64| crate::format::quantity(time, "s");
    if let Some((load, verdict)) = found.beyond {
        let why = match verdict {
            SteadyVerdict::Steady => "the rate was steady".to_owned(),
            SteadyVerdict::Lost(packets) => format!("{packets} packets were lost"),
            SteadyVerdict::Slow { worst, low } => {
                format!(
                    "the mean delay over a second was {}, versus {} at the low rate",
                    seconds(worst),
                    seconds(low)
                )
            }
            SteadyVerdict::Growing { share } => format!("the mean delay increased by {:.0} %", share * 100.0),
        };
        session.add_verdict(format!("{subject}: at {} {why}", rate(load)));
    }
    if let Some(limit) = found.tester_limit {
        add_tester_limit(session, probe, limit, &found.faults);
    }
    let upper = found.beyond.map_or(f64::NAN, |(load, _)| load.0);
    let lowest = load(low).0.max(load(step).0);
    let fails_at_lowest = found.beyond.is_some_and(|(failed, _)| failed.0 <= lowest * 1.001);
    let load = match (found.rate, found.bound) {
        (Some(rate), _) => rate,
        _ if fails_at_lowest => {
            session.add_verdict(format!("{subject}: no rate was steady, down to one step"));
            OfferedLoad(0.0)
        }
        (None, Some(bound)) => {
            add_tester_bound(session, probe, bound, &found.faults);
            bound
        }
        (None, None) => return Err(void(session, subject, &found.faults)),
    };
    add_rate(session, probe, load, (load.0, upper));
    if let Some(trial) = found.trial
        && let Some(all) = trial.delays
    {
        session.add_delay(Metric::TestLatency, subject, all.mean, trial.delay_error());
        delays(session, subject, Some(all), trial.delay_error());
    }
    Ok(())
}
