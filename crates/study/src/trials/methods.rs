//! Test methods: search and findings of each.

mod activation;
mod bit_error;
mod convergence;
mod rates;
mod rfc2544;
mod stamp;
mod steady;
mod transfer;
mod tune;

use super::session::{TestAbort, TestSession, describe};
use netstage_core::measure::rfc2544::LossAtLoad;
use netstage_core::measure::trial::{
    CountedLayer, DelayStatistics, FaultTolerance, FrameSize, Length, OfferedLoad, Pauses, TesterFault, Trial,
};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;
use netstage_scenario::plan::{ErrorDetection, Method};

/// Runs a test.
pub fn run(session: &mut TestSession) -> Result<(), TestAbort> {
    let test = session.test;
    let probes: Vec<FrameProbe> = test.frames.iter().map(|&frame| FrameProbe::new(session, frame)).collect();
    match &test.method {
        Method::BitError { detection: ErrorDetection::Loss, rate, trial } => {
            return bit_error::by_loss(session, &probes, *rate, *trial);
        }
        Method::BitError { detection: ErrorDetection::Payload, rate, trial } => {
            return bit_error::by_payload(session, &probes, *rate, *trial);
        }
        Method::Activation { services, step, performance } => {
            return activation::run(session, services, *step, *performance);
        }
        Method::Transfer(transfer) => return transfer::run(session, transfer),
        Method::Tune(search) => return tune::run(session, search),
        Method::Stamp { interval, trial } => return stamp::run(session, &probes[0], *interval, *trial),
        _ => {}
    }
    for probe in &probes {
        match &test.method {
            Method::Throughput(search) => drop(rfc2544::throughput(session, probe, search)?),
            Method::Latency { rate, search, repeats } => {
                rfc2544::latency(session, probe, *rate, search, *repeats)?;
            }
            Method::FrameLoss { max_rate, trial, step } => {
                rfc2544::frame_loss(session, probe, *max_rate, *trial, *step)?;
            }
            Method::BackToBack { search, max_burst: longest, repeats } => {
                rfc2544::back_to_back(session, probe, search, *longest, *repeats)?;
            }
            Method::Mlrsearch { max_rate, goal } => rates::mlrsearch(session, probe, *max_rate, *goal)?,
            Method::Plateau { max_rate, trial, repeats } => {
                rates::plateau(session, probe, *max_rate, *trial, *repeats)?;
            }
            Method::Steady { max_rate, low, step, trial, search } => {
                steady::run(session, probe, *max_rate, (*low, *step), (*trial, *search))?;
            }
            Method::Convergence { rate, trial, networks } => {
                convergence::run(session, probe, *rate, *trial, *networks)?;
            }
            Method::Loss { rate, trial, repeats } => loss(session, probe, *rate, *trial, *repeats)?,
            Method::BitError { .. }
            | Method::Transfer(_)
            | Method::Tune(_)
            | Method::Activation { .. }
            | Method::Stamp { .. } => unreachable!("these methods test all sizes together"),
        }
    }
    Ok(())
}

/// One frame size of a test.
struct FrameProbe {
    subject: String,
    frame: FrameSize,
}

impl FrameProbe {
    /// Creates a probe of this frame size, including the framing of the sender's link.
    fn new(session: &TestSession, frame: FrameSize) -> FrameProbe {
        let line = frame.ip + session.line_overhead();
        FrameProbe { subject: session.test.subject(frame), frame: FrameSize { line, ..frame } }
    }
}

/// Returns the maximum load: that of `rate` at the IP layer, or the capacity of the sender's link.
fn maximum(session: &TestSession, probe: &FrameProbe, rate: Option<BitRate>) -> OfferedLoad {
    let line = probe.frame.maximum_load(session.line_rate());
    rate.map_or(line, |rate| OfferedLoad::from_bit_rate(rate, CountedLayer::Ip, probe.frame))
}

/// Returns the pauses of trials. RFC 2544's second pause, in which the device settles, is not needed: each trial has a
/// new network.
fn pauses(session: &TestSession) -> Pauses {
    Pauses { drain: session.test.drain, ..Pauses::RFC2544 }
}

/// Share of the limit of a sender's policy from which a rate is at that limit: packets of IPv6 may count 5 % more than they
/// take.
const LIMIT_SHARE: f64 = 0.94;

/// Share of the rate of the line from which a rate without losses was measured at the line: the last packets of a short trial
/// arrive late by the lateness of the stage.
const LINE_SHARE: f64 = 0.99;

/// Adds the findings of a lossless rate and its bounds (NaN: no bound). No rate exceeds that of the line, unless the line
/// stands for what the policy of the sender's host permits.
fn add_rate(session: &mut TestSession, probe: &FrameProbe, load: OfferedLoad, (low, high): (f64, f64)) {
    let rate = |load: f64| bits(OfferedLoad(load), probe.frame);
    let line = probe.frame.maximum_load(session.line_rate()).0;
    let limit = session.sender_limit().filter(|limit| rate(load.0) >= limit.as_f64() * LIMIT_SHARE);
    let is_at_line = high.is_nan() && load.0 >= line * LINE_SHARE;
    let high = if is_at_line && limit.is_none() { line.max(load.0) } else { high };
    if let Some(limit) = limit.filter(|_| is_at_line) {
        session.add_verdict(format!(
            "{}: the policy of the sending agent permits no more than {limit}; the capacity may be higher",
            probe.subject
        ));
    }
    session.add_value_within(Metric::TestThroughput, &probe.subject, rate(load.0), (rate(low), rate(high)));
    session.add_value_within(Metric::TestFrameRate, &probe.subject, load.0, (low, high));
    session.add_value(Metric::TestLineShare, &probe.subject, load.0 / line);
}

/// Adds the verdict that the tester cannot send more than this load, with the last of its faults.
fn add_tester_limit(
    session: &mut TestSession,
    probe: &FrameProbe,
    limit: OfferedLoad,
    faults: &[TesterFault],
) {
    let limit = megabits(bits(limit, probe.frame));
    session.add_verdict(format!(
        "{}: the tester cannot send more than {limit}; the capacity may be higher",
        probe.subject
    ));
    let reason = session.last_reason(faults);
    session.add_shortfall(format!("{}: the tester reached its limit of {limit}: {reason}", probe.subject));
}

/// Adds the verdict that the result is a lower bound, because no trial of full length at that load was valid.
fn add_tester_bound(
    session: &mut TestSession,
    probe: &FrameProbe,
    bound: OfferedLoad,
    faults: &[TesterFault],
) {
    let bound = megabits(bits(bound, probe.frame));
    let reason = session.last_reason(faults);
    session.add_shortfall(format!(
        "{}: the tester fell short: the highest mean rate without loss was {bound}, and the capacity may be higher: {reason}",
        probe.subject
    ));
}

/// Adds the findings of the delays, if known. They may be too long by up to `error`.
fn delays(session: &mut TestSession, subject: &str, delays: Option<DelayStatistics>, error: Duration) {
    let Some(delays) = delays else { return };
    for (metric, delay) in [
        (Metric::TestLatencyMin, Some(delays.minimum)),
        (Metric::TestLatencyMedian, Some(delays.median)),
        (Metric::TestLatency99, delays.p99),
        (Metric::TestLatency999, delays.p999),
        (Metric::TestLatencyMax, Some(delays.maximum)),
    ] {
        if let Some(delay) = delay {
            session.add_delay(metric, subject, delay, error);
        }
    }
}

fn bits(load: OfferedLoad, frame: FrameSize) -> f64 {
    load.bits_per_second(CountedLayer::Ip, frame)
}

/// Adds the findings of the loss ratio, with its 95 % interval, and of the delivered rate.
fn add_loss(session: &mut TestSession, probe: &FrameProbe, loss: &LossAtLoad) {
    let exact = loss.interval();
    let is_answered = session.test.probe.transport.is_one_ended();
    let upper =
        if is_answered { answers_upper(session, &probe.subject, loss, exact.upper) } else { exact.upper };
    session.add_value_within(Metric::TestLossRatio, &probe.subject, loss.ratio(), (exact.lower, upper));
    session.add_value(Metric::TestDelivered, &probe.subject, bits(loss.delivered, probe.frame));
}

/// Returns the upper end of an interval of the loss of answers. A host answers each copy of a probe, and the probe counts as
/// lost only if all its answers are lost.
fn answers_upper(session: &mut TestSession, subject: &str, loss: &LossAtLoad, upper: f64) -> f64 {
    if loss.duplicated == 0 {
        return upper;
    }
    session.add_verdict(format!(
        "{subject}: {} answers arrived more than once; copies hide losses, so the loss ratio is at least this",
        loss.duplicated
    ));
    f64::NAN
}

/// Returns the verdict about a search whose trials are too short.
fn short_trials(subject: &str, trial: Duration) -> String {
    format!(
        "{subject}: trials of {} s are too short: a queue of the path absorbed the excess load; use longer trials",
        crate::format::number(trial.as_secs_f64())
    )
}

fn loss(
    session: &mut TestSession,
    probe: &FrameProbe,
    rate: BitRate,
    trial: Duration,
    repeats: u32,
) -> Result<(), TestAbort> {
    let load = OfferedLoad::from_bit_rate(rate, CountedLayer::Ip, probe.frame);
    let loss = count(session, probe, load, trial, repeats)?;
    add_loss(session, probe, &loss);
    Ok(())
}

/// Performs several trials and returns the loss of the valid ones.
fn count(
    session: &mut TestSession,
    probe: &FrameProbe,
    load: OfferedLoad,
    trial: Duration,
    repeats: u32,
) -> Result<LossAtLoad, TestAbort> {
    let (frame, length, pauses) = (probe.frame, Length::Time(trial), pauses(session));
    let trial = Trial { load, frame, length, pauses, tag_after: None };
    let patience = FaultTolerance::default();
    let (mut valid, mut faults) = (Vec::new(), Vec::new());
    while (valid.len() as u32) < repeats {
        let result = session.perform(&probe.subject, &trial)?;
        match session.fault(&trial, &result) {
            None => valid.push(LossAtLoad::of(load, &result)),
            Some(fault) => {
                faults.push(fault);
                if faults.len() as u32 > patience.repeats {
                    return Err(void(session, &probe.subject, &faults));
                }
            }
        }
    }
    valid.into_iter().reduce(LossAtLoad::and).ok_or_else(|| void(session, &probe.subject, &faults))
}

/// Returns the error of a test whose trials the tester could not perform.
fn void(session: &TestSession, subject: &str, faults: &[TesterFault]) -> TestAbort {
    TestAbort::Void(format!("{subject}: {}", session.last_reason(faults)))
}

fn megabits(rate: f64) -> String {
    crate::format::quantity(rate, "bit/s")
}
