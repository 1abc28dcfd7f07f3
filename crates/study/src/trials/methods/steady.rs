//! Highest steady rate: without loss and without growing delay.

use super::{
    FrameProbe, add_rate, add_tester_bound, add_tester_limit, bits, delays, maximum, megabits, pauses,
    rfc2544, void,
};
use crate::trials::session::{TestAbort, TestSession};
use netstage_core::measure::rfc2544::LossAtLoad;
use netstage_core::measure::steady::{Steady, SteadyConfig, SteadyVerdict};
use netstage_core::measure::trial::{CountedLayer, FaultTolerance, OfferedLoad};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;

/// Steps of the loss curve of a router that loses packets at every rate, as a share of the maximum.
const CURVE_STEP: f64 = 0.1;
/// Loss ratio of the partial drop rate (RFC 9971).
const PARTIAL_DROP: f64 = 0.005;

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
            SteadyVerdict::Absorbed { arrived } => {
                format!("the packets arrived at {}: a queue of the path absorbed the rest", rate(arrived))
            }
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
            if let Some((_, SteadyVerdict::Lost(_))) = found.beyond {
                add_loss_curve(session, probe, maximum, search)?;
            }
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

/// Measures the loss at rates up to the maximum, for a router that loses packets at every rate.
fn add_loss_curve(
    session: &mut TestSession,
    probe: &FrameProbe,
    maximum: OfferedLoad,
    trial: Duration,
) -> Result<(), TestAbort> {
    let found = rfc2544::loss_at_rates(session, probe, maximum, trial, CURVE_STEP)?;
    let subject = &probe.subject;
    let rate = |point: &LossAtLoad| megabits(bits(point.load, probe.frame));
    let percent = |ratio: f64| format!("{} %", crate::format::number(ratio * 100.0));
    let ratios = || found.points.iter().map(LossAtLoad::ratio);
    let (Some(highest), Some(lowest)) = (found.points.first(), found.points.last()) else {
        let reason = session.last_reason(&found.faults);
        session.add_shortfall(format!("{subject}: the loss at higher rates is unknown: {reason}"));
        return Ok(());
    };
    let [least, most] = [ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max)].map(percent);
    session.add_verdict(format!(
        "{subject}: loss of {least} to {most} in trials at {} to {}",
        rate(lowest),
        rate(highest)
    ));
    let partial = found.points.iter().find(|point| point.ratio() <= PARTIAL_DROP);
    session.add_verdict(match partial {
        Some(point) => {
            let bound =
                if point.load == maximum { "the maximum rate" } else { "the highest such rate tried" };
            format!("{subject}: loss of at most {} at {}, {bound}", percent(PARTIAL_DROP), rate(point))
        }
        None => format!("{subject}: loss of more than {} at every rate tried", percent(PARTIAL_DROP)),
    });
    if highest.load != maximum {
        let reason = session.last_reason(&found.faults);
        session.add_shortfall(format!("{subject}: the loss above {} is unknown: {reason}", rate(highest)));
    }
    Ok(())
}
