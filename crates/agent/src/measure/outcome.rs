//! Results of a measurement.

use super::order::MeasurementParameters;
use super::timeline::{FlowInterval, MeasurementInterval, Timeline};
use crate::controller::AgentDisconnect;
use netstage_agent_api::results::{BinCounts, Drained, FlowResult, LoweredProbes};
use netstage_core::measure::{ClockOffset, FaultTime, VoidReason};
use netstage_core::time::{Duration, Instant};

/// Maximum share of packets that a UDP sender may fail to send.
const LOAD_TOLERANCE: f64 = 0.01;

/// Result of a measurement.
#[derive(Clone, Debug, Default)]
pub struct MeasurementOutcome {
    /// Flows, forward ones first.
    pub flows: Vec<FlowOutcome>,
    /// Intervals, including omitted ones.
    pub intervals: Vec<MeasurementInterval>,
    /// Measured time: from the end of the omitted beginning to the end of the run.
    pub measured: Duration,
    /// Offset of the remote clock from the local one before the run; `None` without a remote agent.
    pub clock: Option<ClockOffset>,
    /// Error bound of one-way delays, nanoseconds: error of the clock comparison, and drift during the run.
    pub clock_error_ns: Option<u64>,
    /// Warnings that limit the validity of the figures.
    pub warnings: Vec<String>,
    /// Reasons why the figures are invalid: this program itself fell short.
    pub void: Vec<VoidReason>,
    /// Agents lost during the run.
    pub lost: Vec<AgentDisconnect>,
    /// Set if the measurement was stopped before its end.
    pub interrupted: bool,
}

/// Result of one flow.
#[derive(Clone, Debug, Default)]
pub struct FlowOutcome {
    /// Number of the flow.
    pub id: u32,
    /// Name of the flow: a number, followed by R for a reverse flow.
    pub name: String,
    /// Set for a flow from the remote to the local host.
    pub reverse: bool,
    /// Results of the sender; `None` if it was lost before it reported anything.
    pub sent: Option<FlowResult>,
    /// Results of the receiver, or those of a one-ended sender.
    pub received: Option<FlowResult>,
    /// Counters of both sides after the omitted beginning.
    pub counts: BinCounts,
    /// Packets lost on the path after the omitted beginning, without those dropped by the receiver's own
    /// socket. `None` for transports that do not count packets.
    pub lost: Option<u64>,
    /// Segments retransmitted after the omitted beginning (TCP).
    pub retransmissions: Option<u64>,
}

impl FlowOutcome {
    /// Returns the rate at which the host answers at most, if it limits its answers to one-ended probes.
    pub fn answer_limit(&self) -> Option<f64> {
        self.received.as_ref()?.answer_limit
    }

    /// Returns the probes that were sent below that limit.
    pub fn lowered(&self) -> Option<LoweredProbes> {
        self.received.as_ref()?.lowered
    }

    /// Returns the packets lost on the path; `None` if the host limits its answers, so that they are unknown.
    pub fn known_loss(&self) -> Option<u64> {
        self.lost.filter(|_| self.answer_limit().is_none())
    }

    /// Returns the packets dropped by the receiver's socket, which were not lost on the path.
    pub fn socket_drops(&self) -> u64 {
        self.received.as_ref().map_or(0, |result| result.socket_drops)
    }

    /// Returns what arrived after the end of the run, which no rate includes.
    pub fn drained(&self) -> Drained {
        self.received.as_ref().map_or(Drained::default(), |result| result.drained)
    }

    /// Returns the errors that ended its sides early.
    pub fn errors(&self) -> impl Iterator<Item = &str> {
        let sides = [&self.sent, &self.received];
        let errors: Vec<&str> =
            sides.into_iter().flatten().filter_map(|result| result.error.as_deref()).collect();
        // Both sides of a one-ended flow are the same.
        let same = errors.len() == 2 && errors[0] == errors[1];
        errors.into_iter().take(if same { 1 } else { 2 })
    }
}

impl MeasurementOutcome {
    /// Combines the reports of the agents, or the intervals reported by an agent that was lost. `end` is the
    /// end of the run.
    pub fn of(
        parameters: &MeasurementParameters,
        here: Option<Vec<FlowResult>>,
        there: Option<Vec<FlowResult>>,
        timeline: &Timeline,
        end: Duration,
        interrupted: bool,
    ) -> MeasurementOutcome {
        let reports = (&here, &there);
        let find = |side: &Option<Vec<FlowResult>>, name: &str| {
            side.as_ref().and_then(|flows| flows.iter().find(|flow| flow.name == name)).cloned()
        };
        let first_bin = (parameters.omit.0 / parameters.interval.0.max(1)) as usize;
        let mut outcome = MeasurementOutcome { interrupted, ..MeasurementOutcome::default() };
        for (id, reverse) in parameters.flows() {
            let name = parameters.name(id);
            let (sender, receiver) = if reverse { (reports.1, reports.0) } else { (reports.0, reports.1) };
            let sent = find(sender, &name).or_else(|| from_timeline(timeline, id, true, &name));
            let received = if parameters.is_one_ended() {
                sent.clone()
            } else {
                find(receiver, &name).or_else(|| from_timeline(timeline, id, false, &name))
            };
            outcome.flows.push(flow(parameters, (id, name, reverse), sent, received, first_bin, interrupted));
        }
        // A side without a report is known only from the intervals that it sent during the run.
        let is_partial = here.is_none() || there.is_none();
        let known = timeline.reported().last().filter(|_| is_partial).map(|last| last.to);
        let end = known.map_or(end, |known| end.min(known));
        let transferred = outcome.flows.iter().filter_map(|f| f.received.as_ref()?.last_bytes_ns).max();
        let end = match transferred {
            // A transfer of a given size ends with its last byte.
            Some(last) if parameters.transfers() && !interrupted => Duration(last),
            _ => end,
        };
        let end = end.min(parameters.duration());
        outcome.measured = Duration(end.0.saturating_sub(parameters.omit.0));
        outcome.intervals = intervals(parameters, timeline, &outcome.flows, end);
        outcome
            .void
            .extend(outcome.flows.iter().filter_map(|flow| load_shortfall(parameters, flow, interrupted)));
        outcome
    }
}

impl MeasurementParameters {
    /// Reports whether the run ends after a number of bytes instead of a time.
    fn transfers(&self) -> bool {
        use netstage_core::traffic::Pattern;
        matches!(self.traffic, Pattern::Bulk { size: Some(_) })
    }
}

fn flow(
    parameters: &MeasurementParameters,
    (id, name, reverse): (u32, String, bool),
    sent: Option<FlowResult>,
    received: Option<FlowResult>,
    first_bin: usize,
    interrupted: bool,
) -> FlowOutcome {
    let after = |result: &Option<FlowResult>| {
        let bins = result.iter().flat_map(|result| result.bins.iter().skip(first_bin));
        bins.fold(BinCounts::default(), |mut sum, bin| {
            sum.add(bin);
            sum
        })
    };
    let (of_sender, of_receiver) = (after(&sent), after(&received));
    let counts = BinCounts {
        sent: of_sender.sent,
        sent_bytes: of_sender.sent_bytes,
        offered_bytes: of_sender.offered_bytes,
        ..of_receiver
    };
    let drops = received.as_ref().map_or(0, |result| result.socket_drops);
    let drained = received.as_ref().map_or(0, |result| result.drained.packets);
    let counts_packets = !matches!(parameters.method, super::Method::Tcp(_) | super::Method::Quic);
    // Losses after the last received packet are visible only in the comparison with the sender. Where the two
    // sides did not count the same packets, only the gaps seen by the receiver are known.
    let comparable = first_bin == 0 && !interrupted && sent.is_some() && received.is_some();
    let lost = counts_packets.then(|| {
        if comparable {
            counts.sent.saturating_sub(counts.received).saturating_sub(drained).saturating_sub(drops)
        } else {
            counts.lost.saturating_sub(drops)
        }
    });
    let samples = sent.as_ref().map_or(&[][..], |result| &result.tcp);
    let before = first_bin.checked_sub(1).and_then(|bin| samples.get(bin));
    let retransmissions = samples
        .iter()
        .map(|sample| sample.retransmissions)
        .max()
        .map(|last| last.saturating_sub(before.map_or(0, |sample| sample.retransmissions)));
    FlowOutcome { id, name, reverse, sent, received, counts, lost, retransmissions }
}

/// Builds the result of one side from the intervals it reported during the run.
fn from_timeline(timeline: &Timeline, id: u32, sends: bool, name: &str) -> Option<FlowResult> {
    let mut result = FlowResult { name: name.to_owned(), sends, ..FlowResult::default() };
    let mut any = false;
    for interval in timeline.reported() {
        let cell = interval.flows.get(&id).copied().unwrap_or_default();
        let counts = if sends { cell.sent } else { cell.received };
        any |= counts.is_some();
        // A missing interval counts as empty, so that later ones keep their index.
        result.bins.resize(interval.number as usize, BinCounts::default());
        result.bins.push(counts.unwrap_or_default());
        if sends {
            result.tcp.extend(cell.tcp);
        } else {
            result.travel.extend(cell.travel);
        }
    }
    any.then_some(result)
}

/// Returns the intervals up to the end of the run, with the figures of the reports.
fn intervals(
    parameters: &MeasurementParameters,
    timeline: &Timeline,
    flows: &[FlowOutcome],
    end: Duration,
) -> Vec<MeasurementInterval> {
    let count = end.0.div_ceil(parameters.interval.0.max(1)) as u32;
    let interval = |number: u32| {
        let mut interval = timeline.blank(number);
        interval.to = interval.to.min(end);
        for flow in flows {
            let bin = number as usize;
            let tcp = |bin: usize| flow.sent.as_ref().and_then(|result| result.tcp.get(bin)).copied();
            let before = bin.checked_sub(1).and_then(tcp);
            let travel = flow.received.as_ref().and_then(|result| result.travel.get(bin)).copied();
            let counts = |side: &Option<FlowResult>| side.as_ref().and_then(|r| r.bins.get(bin)).copied();
            let cell =
                FlowInterval::new(counts(&flow.sent), counts(&flow.received), tcp(bin), before, travel);
            interval.flows.insert(flow.id, cell);
        }
        interval
    };
    (0..count).map(interval).collect()
}

/// Returns a message if a sender with a schedule did not offer the requested load.
fn load_shortfall(
    parameters: &MeasurementParameters,
    flow: &FlowOutcome,
    interrupted: bool,
) -> Option<VoidReason> {
    // The network may hold back the sender of a stream, which is a valid result.
    if matches!(parameters.method, super::Method::Tcp(_) | super::Method::Quic) || interrupted {
        return None;
    }
    let schedule = flow.sent.as_ref()?.schedule?;
    let missed = 1.0 - schedule.sent as f64 / schedule.requested.max(1) as f64;
    (missed > LOAD_TOLERANCE).then(|| {
        let (lateness, due) = schedule.stall_ns;
        let fault = format!(
            "the sender sent only {} of {} packets, so the requested load was not offered; it was late by at most {:.1} ms",
            schedule.sent,
            schedule.requested,
            lateness as f64 / 1e6
        );
        VoidReason::new(format!("flow {}:", flow.name), fault, FaultTime::At(Instant(due)))
    })
}
