//! RFC 2544 and RFC 9004: throughput, latency, frame loss and back-to-back bursts.

use super::{
    FrameProbe, add_loss, add_rate, add_tester_limit, bits, delays, maximum, megabits, pauses, short_trials,
    void,
};
use crate::trials::session::{TestAbort, TestSession};
use netstage_core::measure::rfc2544::{
    BackToBack, BackToBackConfig, Deviation, FrameLoss, FrameLossConfig, FrameLossResult, Latency,
    LatencyConfig, Throughput, ThroughputConfig,
};
use netstage_core::measure::trial::{CountedLayer, DelayStatistics, FaultTolerance, OfferedLoad};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;
use netstage_scenario::plan::RateSearchConfig;

pub fn throughput(
    session: &mut TestSession,
    probe: &FrameProbe,
    search: &RateSearchConfig,
) -> Result<Option<OfferedLoad>, TestAbort> {
    let mut machine = Throughput::new(ThroughputConfig {
        frame: probe.frame,
        maximum: maximum(session, probe, search.max_rate),
        resolution: search.resolution,
        duration: search.trial,
        pauses: pauses(session),
        patience: FaultTolerance::default(),
    });
    let found = session.search(&probe.subject, &mut machine)?;
    let subject = &probe.subject;
    add_deviations(session, &found.deviations);
    if found.trials == 0 && found.throughput.is_none() {
        return Err(void(session, subject, &found.faults));
    }
    if found.is_absorbed {
        session.add_verdict(short_trials(subject, search.trial));
    } else if let (Some(low), Some(high)) = (found.throughput, found.lossy)
        && high.0 - low.0 > 2.0 * search.resolution * maximum(session, probe, search.max_rate).0
        && !found.faults.is_empty()
    {
        let [low, high] = [low, high].map(|load| megabits(bits(load, probe.frame)));
        let verdict = format!(
            "{subject}: the tester could not keep its schedule; the throughput is between {low} and {high}"
        );
        session.add_shortfall(format!("{verdict}: {}", session.last_reason(&found.faults)));
        session.add_verdict(verdict);
    }
    if let Some(limit) = found.tester_limit {
        add_tester_limit(session, probe, limit, &found.faults);
    }
    let resolution = search.resolution * maximum(session, probe, search.max_rate).0;
    if found.throughput.is_none() && found.lossy.is_none_or(|lossy| lossy.0 > 2.0 * resolution) {
        // The tester could not perform the trials at lower loads.
        return Err(void(session, subject, &found.faults));
    }
    if found.throughput.is_none() {
        session.add_verdict(format!("{subject}: every trial had loss, down to the resolution of the search"));
    }
    // If every trial had loss, the throughput is zero.
    let load = found.throughput.unwrap_or(OfferedLoad(0.0));
    let upper = found.lossy.map_or(f64::NAN, |load| load.0);
    add_rate(session, probe, load, (load.0, upper));
    Ok(found.throughput)
}

pub fn latency(
    session: &mut TestSession,
    probe: &FrameProbe,
    rate: Option<BitRate>,
    search: &RateSearchConfig,
    repeats: u32,
) -> Result<(), TestAbort> {
    let load = match rate {
        Some(rate) => Some(OfferedLoad::from_bit_rate(rate, CountedLayer::Ip, probe.frame)),
        None => throughput(session, probe, search)?,
    };
    let Some(load) = load else { return Ok(()) };
    let mut machine = Latency::new(LatencyConfig {
        frame: probe.frame,
        load,
        duration: search.trial,
        repeats,
        pauses: pauses(session),
        patience: FaultTolerance::default(),
    });
    session.take_travel_times();
    let found = session.search(&probe.subject, &mut machine)?;
    let (all, error) = session.take_travel_times();
    let all = DelayStatistics::from_histogram(&all);
    add_deviations(session, &found.deviations);
    let subject = &probe.subject;
    if found.delays.is_empty() && found.lost == 0 {
        return Err(void(session, subject, &found.faults));
    }
    if found.frames_lost > 0 {
        session.add_verdict(format!(
            "{subject}: {} frames were lost; the rate exceeds the throughput",
            found.frames_lost
        ));
    }
    let summary = found.summary();
    let (mean, half) = (summary.mean, summary.half_width);
    let low = (mean - half - error.as_secs_f64()).max(0.0);
    session.add_value_within(Metric::TestLatency, subject, mean, (low, mean + half));
    delays(session, subject, all, error);
    Ok(())
}

/// Measures the loss from `maximum` down in steps, which are shares of it.
pub fn loss_at_rates(
    session: &mut TestSession,
    probe: &FrameProbe,
    maximum: OfferedLoad,
    trial: Duration,
    step: f64,
) -> Result<FrameLossResult, TestAbort> {
    let mut machine = FrameLoss::new(FrameLossConfig {
        frame: probe.frame,
        maximum,
        step,
        duration: trial,
        pauses: pauses(session),
        patience: FaultTolerance::default(),
    });
    session.search(&probe.subject, &mut machine)
}

pub fn frame_loss(
    session: &mut TestSession,
    probe: &FrameProbe,
    max_rate: Option<BitRate>,
    trial: Duration,
    step: f64,
) -> Result<(), TestAbort> {
    let maximum = maximum(session, probe, max_rate);
    let found = loss_at_rates(session, probe, maximum, trial, step)?;
    add_deviations(session, &found.deviations);
    // The result is the loss at the maximum rate. Lower rates only show where it ends.
    let Some(first) = found.points.first().filter(|point| point.load == maximum) else {
        return Err(void(session, &probe.subject, &found.faults));
    };
    add_loss(session, probe, first);
    let lossless = found.points.iter().find(|point| point.lost == 0);
    session.add_verdict(match lossless {
        Some(point) => {
            format!("{}: no loss at {} and below", probe.subject, megabits(bits(point.load, probe.frame)))
        }
        None => format!("{}: loss at every tested rate", probe.subject),
    });
    Ok(())
}

pub fn back_to_back(
    session: &mut TestSession,
    probe: &FrameProbe,
    search: &RateSearchConfig,
    longest: Duration,
    repeats: u32,
) -> Result<(), TestAbort> {
    let throughput = throughput(session, probe, search)?;
    let line = maximum(session, probe, search.max_rate);
    let mut machine = BackToBack::new(BackToBackConfig {
        max_burst: ((line.0 * longest.as_secs_f64()) as u64).max(1),
        repeats,
        pauses: pauses(session),
        ..BackToBackConfig::rfc9004(probe.frame, line, throughput)
    });
    let found = session.search(&probe.subject, &mut machine)?;
    add_deviations(session, &found.deviations);
    let subject = &probe.subject;
    if found.bursts.is_empty() {
        return Err(void(session, subject, &found.faults));
    }
    if found.unbounded {
        session.add_verdict(format!("{subject}: no loss with the longest burst; the buffer may be larger"));
    }
    let summary = found.summary();
    let (mean, half) = (summary.mean, summary.half_width);
    session.add_value_within(Metric::TestBackToBack, subject, mean, (mean - half, mean + half));
    let buffer = found.corrected_buffer_time().or(found.implied_buffer_time());
    session.add_value(Metric::TestBufferTime, subject, buffer.map_or(f64::NAN, |time| time.as_secs_f64()));
    Ok(())
}

fn add_deviations(session: &mut TestSession, deviations: &[Deviation]) {
    let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
    for deviation in deviations {
        session.add_deviation(match deviation {
            Deviation::ShortTrials { required, used } => {
                format!("trials of {} instead of {}", seconds(*used), seconds(*required))
            }
            Deviation::ShortPauses { required, used } => {
                format!(
                    "{} instead of {} of waiting for packets in flight",
                    seconds(used.drain),
                    seconds(required.drain)
                )
            }
            Deviation::FewRepeats { required, used } => format!("{used} trials instead of {required}"),
            Deviation::CoarseSteps { required, used } => {
                format!("steps of {} % instead of {} %", used * 100.0, required * 100.0)
            }
        });
    }
}
