//! What each kind of test searches for, and what it makes of the answer.

use super::session::{Ended, Session, describe};
use netstage_core::measure::rfc2544::{
    BackToBack, BackToBackConfig, Deviation, FrameLoss, FrameLossConfig, Latency, LatencyConfig, Throughput,
    ThroughputConfig,
};
use netstage_core::measure::trial::{Fault, FrameSize, Layer, Length, Load, Patience, Pauses, Trial};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Metric;
use netstage_scenario::plan::{Method, Search};

/// Runs a test to its end, for each of its frame sizes.
pub fn run(session: &mut Session) -> Result<(), Ended> {
    for &frame in &session.test.frames {
        let probe = Probe { subject: session.test.subject(frame), frame: on_line(session, frame) };
        match session.test.method {
            Method::Throughput(search) => drop(throughput(session, &probe, &search)?),
            Method::Latency { rate, search, repeats } => latency(session, &probe, rate, &search, repeats)?,
            Method::FrameLoss { max_rate, trial, step } => {
                frame_loss(session, &probe, max_rate, trial, step)?
            }
            Method::BackToBack { search, longest, repeats } => {
                back_to_back(session, &probe, &search, longest, repeats)?;
            }
            Method::Loss { rate, trial, repeats } => loss(session, &probe, rate, trial, repeats)?,
        }
    }
    Ok(())
}

/// One frame size of a test.
struct Probe {
    subject: String,
    frame: FrameSize,
}

/// A frame as it fills the sender's own link.
fn on_line(session: &Session, frame: FrameSize) -> FrameSize {
    FrameSize { line: frame.ip + session.line_overhead(), ..frame }
}

/// The highest load: that of a rate at the IP layer, or what the sender's own link carries.
fn maximum(session: &Session, probe: &Probe, rate: Option<BitRate>) -> Load {
    let line = probe.frame.maximum_load(session.line_rate());
    rate.map_or(line, |rate| Load::of_bits(rate, Layer::Ip, probe.frame))
}

/// Every trial has a network of its own, staged for it: what RFC 2544's second pause is for,
/// that the device settle, is always given.
fn pauses(session: &Session) -> Pauses {
    Pauses { drain: session.test.drain, ..Pauses::RFC2544 }
}

fn bits(load: Load, frame: FrameSize) -> f64 {
    load.bits_per_second(Layer::Ip, frame)
}

fn throughput(session: &mut Session, probe: &Probe, search: &Search) -> Result<Option<Load>, Ended> {
    let mut machine = Throughput::new(ThroughputConfig {
        frame: probe.frame,
        maximum: maximum(session, probe, search.max_rate),
        resolution: search.resolution,
        duration: search.trial,
        pauses: pauses(session),
        patience: Patience::default(),
    });
    let found = session.search(&probe.subject, &mut machine)?;
    let subject = &probe.subject;
    note(session, &found.deviations);
    if found.trials == 0 {
        return Err(gave_up(subject, &found.faults));
    }
    if let Some(limit) = found.tester_limit {
        let limit = megabits(bits(limit, probe.frame));
        session.say(format!("{subject}: the tester sends no more than {limit}; the network may carry more"));
    }
    if found.throughput.is_none() {
        session.say(format!("{subject}: no trial was without loss, down to the resolution of the search"));
    }
    // Where every trial had loss, that is what was found: nothing goes through without loss.
    let load = found.throughput.unwrap_or(Load(0.0));
    let upper = found.lossy.map_or(f64::NAN, |load| load.0);
    let rate = |load: f64| bits(Load(load), probe.frame);
    session.find_within(Metric::TestThroughput, subject, rate(load.0), (rate(load.0), rate(upper)));
    session.find_within(Metric::TestFrameRate, subject, load.0, (load.0, upper));
    Ok(found.throughput)
}

fn latency(
    session: &mut Session,
    probe: &Probe,
    rate: Option<BitRate>,
    search: &Search,
    repeats: u32,
) -> Result<(), Ended> {
    let load = match rate {
        Some(rate) => Some(Load::of_bits(rate, Layer::Ip, probe.frame)),
        None => throughput(session, probe, search)?,
    };
    let Some(load) = load else { return Ok(()) };
    let mut machine = Latency::new(LatencyConfig {
        frame: probe.frame,
        load,
        duration: search.trial,
        repeats,
        pauses: pauses(session),
        patience: Patience::default(),
    });
    let found = session.search(&probe.subject, &mut machine)?;
    note(session, &found.deviations);
    let subject = &probe.subject;
    if found.delays.is_empty() && found.lost == 0 {
        return Err(gave_up(subject, &found.faults));
    }
    if found.frames_lost > 0 {
        session.say(format!("{subject}: {} frames were lost: this rate is no throughput", found.frames_lost));
    }
    let summary = found.summary();
    let (mean, half) = (summary.mean, summary.half_width);
    session.find_within(Metric::TestLatency, subject, mean, (mean - half, mean + half));
    Ok(())
}

fn frame_loss(
    session: &mut Session,
    probe: &Probe,
    max_rate: Option<BitRate>,
    trial: Duration,
    step: f64,
) -> Result<(), Ended> {
    let mut machine = FrameLoss::new(FrameLossConfig {
        frame: probe.frame,
        maximum: maximum(session, probe, max_rate),
        step,
        duration: trial,
        pauses: pauses(session),
        patience: Patience::default(),
    });
    let found = session.search(&probe.subject, &mut machine)?;
    note(session, &found.deviations);
    let Some(first) = found.points.first() else { return Err(gave_up(&probe.subject, &found.faults)) };
    lost(session, probe, first.load, first.sent, first.lost);
    let lossless = found.points.iter().find(|point| point.lost == 0);
    session.say(match lossless {
        Some(point) => {
            format!(
                "{}: nothing is lost from {} down",
                probe.subject,
                megabits(bits(point.load, probe.frame))
            )
        }
        None => format!("{}: frames are lost at every rate tried", probe.subject),
    });
    Ok(())
}

/// Keeps a loss ratio with its 95 % interval, and what came through.
fn lost(session: &mut Session, probe: &Probe, load: Load, sent: u64, lost: u64) {
    let ratio = lost as f64 / sent as f64;
    session.find_within(Metric::TestLossRatio, &probe.subject, ratio, wilson(lost, sent));
    session.find(Metric::TestDelivered, &probe.subject, bits(Load(load.0 * (1.0 - ratio)), probe.frame));
}

fn back_to_back(
    session: &mut Session,
    probe: &Probe,
    search: &Search,
    longest: Duration,
    repeats: u32,
) -> Result<(), Ended> {
    let throughput = throughput(session, probe, search)?;
    let line = maximum(session, probe, search.max_rate);
    let mut machine = BackToBack::new(BackToBackConfig {
        longest: ((line.0 * longest.as_secs_f64()) as u64).max(1),
        repeats,
        pauses: pauses(session),
        ..BackToBackConfig::rfc9004(probe.frame, line, throughput)
    });
    let found = session.search(&probe.subject, &mut machine)?;
    note(session, &found.deviations);
    let subject = &probe.subject;
    if found.bursts.is_empty() {
        return Err(gave_up(subject, &found.faults));
    }
    if found.unbounded {
        session.say(format!("{subject}: the longest burst tried lost nothing; the buffer may hold more"));
    }
    let summary = found.summary();
    let (mean, half) = (summary.mean, summary.half_width);
    session.find_within(Metric::TestBackToBack, subject, mean, (mean - half, mean + half));
    let buffer = found.corrected_buffer_time().or(found.implied_buffer_time());
    session.find(Metric::TestBufferTime, subject, buffer.map_or(f64::NAN, |time| time.as_secs_f64()));
    Ok(())
}

fn loss(
    session: &mut Session,
    probe: &Probe,
    rate: BitRate,
    trial: Duration,
    repeats: u32,
) -> Result<(), Ended> {
    let trial = Trial {
        load: Load::of_bits(rate, Layer::Ip, probe.frame),
        frame: probe.frame,
        length: Length::Time(trial),
        pauses: pauses(session),
        tag_after: None,
    };
    let patience = Patience::default();
    let (mut sent, mut missing, mut faults) = (0, 0, Vec::new());
    let mut counted = 0;
    while counted < repeats {
        let result = session.perform(&probe.subject, &trial)?;
        match result.fault(&trial, patience.tolerance) {
            Some(fault) if faults.len() as u32 >= patience.repeats => {
                faults.push(fault);
                return Err(gave_up(&probe.subject, &faults));
            }
            Some(fault) => faults.push(fault),
            None => {
                counted += 1;
                sent += result.sent;
                missing += result.lost();
            }
        }
    }
    lost(session, probe, trial.load, sent, missing);
    Ok(())
}

/// The tester could not perform what the method asks for.
fn gave_up(subject: &str, faults: &[Fault]) -> Ended {
    let why = faults.last().map_or_else(|| "no trial counted".into(), describe);
    Ended::Void(format!("{subject}: {why}"))
}

fn note(session: &mut Session, deviations: &[Deviation]) {
    let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
    for deviation in deviations {
        session.deviates(match deviation {
            Deviation::ShortTrials { required, used } => {
                format!("trials of {} instead of {}", seconds(*used), seconds(*required))
            }
            Deviation::ShortPauses { required, used } => {
                format!(
                    "{} instead of {} for packets under way",
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

fn megabits(rate: f64) -> String {
    crate::format::quantity(rate, "bit/s")
}

/// Wilson's 95 % interval of a proportion.
fn wilson(hits: u64, of: u64) -> (f64, f64) {
    const Z: f64 = 1.959_963_984_540_054;
    let (n, p) = (of as f64, hits as f64 / of as f64);
    let centre = (p + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    ((centre - half).max(0.0), (centre + half).min(1.0))
}
