//! What a measurement found.

use super::order::Order;
use super::timeline::{Cell, Interval, Timeline};
use crate::controller::Loss;
use netstage_agent_api::results::{Counts, FlowResult};
use netstage_core::measure::ClockOffset;
use netstage_core::time::Duration;

/// A UDP sender that missed its packets by more than this did not offer what was asked for.
const LOAD_TOLERANCE: f64 = 0.01;

/// What a measurement found.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Each flow, forward ones first.
    pub flows: Vec<FlowOutcome>,
    /// The intervals, those omitted too.
    pub intervals: Vec<Interval>,
    /// What was measured over: from the end of what is omitted to the end of the run.
    pub measured: Duration,
    /// The clock there against the one here, before the run; none without an agent there.
    pub clock: Option<ClockOffset>,
    /// By how much one-way delays may be off, nanoseconds: the error of the comparison, and
    /// the drift during the run.
    pub clock_error_ns: Option<u64>,
    /// What a reader must know before trusting the figures.
    pub warnings: Vec<String>,
    /// Why the figures are void: this program itself fell short.
    pub void: Vec<String>,
    /// Agents that were lost during the run.
    pub lost: Vec<Loss>,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
}

/// What one flow did.
#[derive(Clone, Debug, Default)]
pub struct FlowOutcome {
    /// Its number.
    pub id: u32,
    /// Its name: a number, and R where bytes come from there.
    pub name: String,
    /// Whether bytes come from there.
    pub reverse: bool,
    /// What its sending side found; none where that side was lost before it told anything.
    pub sent: Option<FlowResult>,
    /// What its receiving side found; a one-ended sender's own.
    pub received: Option<FlowResult>,
    /// Counts of both sides after what is omitted.
    pub counts: Counts,
    /// Packets lost on the way, after what is omitted; those that the receiver's own socket
    /// dropped are not among them. None where packets are not counted.
    pub lost: Option<u64>,
    /// Segments sent again after what is omitted (TCP).
    pub retransmissions: Option<u64>,
}

impl FlowOutcome {
    /// Packets the receiver's socket dropped: not lost on the path.
    pub fn socket_drops(&self) -> u64 {
        self.received.as_ref().map_or(0, |result| result.socket_drops)
    }

    /// What ended each of its sides early.
    pub fn errors(&self) -> impl Iterator<Item = &str> {
        let sides = [&self.sent, &self.received];
        let errors: Vec<&str> =
            sides.into_iter().flatten().filter_map(|result| result.error.as_deref()).collect();
        // A one-ended flow's sides are the same.
        let same = errors.len() == 2 && errors[0] == errors[1];
        errors.into_iter().take(if same { 1 } else { 2 })
    }
}

impl Outcome {
    /// Puts together what the agents reported; of an agent that was lost, what it had told
    /// by then. `end` is when the run ended.
    pub fn of(
        order: &Order,
        here: Option<Vec<FlowResult>>,
        there: Option<Vec<FlowResult>>,
        timeline: &Timeline,
        end: Duration,
        interrupted: bool,
    ) -> Outcome {
        let reports = (&here, &there);
        let find = |side: &Option<Vec<FlowResult>>, name: &str| {
            side.as_ref().and_then(|flows| flows.iter().find(|flow| flow.name == name)).cloned()
        };
        let first_bin = (order.omit.0 / order.interval.0.max(1)) as usize;
        let mut outcome = Outcome { interrupted, ..Outcome::default() };
        for (id, reverse) in order.flows() {
            let name = order.name(id);
            let (sender, receiver) = if reverse { (reports.1, reports.0) } else { (reports.0, reports.1) };
            let sent = find(sender, &name).or_else(|| told(timeline, id, true, &name));
            let received = if order.is_one_ended() {
                sent.clone()
            } else {
                find(receiver, &name).or_else(|| told(timeline, id, false, &name))
            };
            outcome.flows.push(flow(order, (id, name, reverse), sent, received, first_bin, interrupted));
        }
        let transferred = outcome.flows.iter().filter_map(|f| f.received.as_ref()?.last_bytes_ns).max();
        let end = match transferred {
            // A transfer of a given size is over when its last byte is there.
            Some(last) if order.transfers() && !interrupted => Duration(last),
            _ => end,
        };
        let end = end.min(order.duration());
        outcome.measured = Duration(end.0.saturating_sub(order.omit.0));
        outcome.intervals = intervals(order, timeline, &outcome.flows, end);
        outcome.void.extend(outcome.flows.iter().filter_map(|flow| short(order, flow, interrupted)));
        outcome
    }
}

impl Order {
    /// Whether the run is over when so many bytes are there, not after a time.
    fn transfers(&self) -> bool {
        use netstage_core::traffic::Pattern;
        matches!(self.traffic, Pattern::Bulk { size: Some(_) })
    }
}

fn flow(
    order: &Order,
    (id, name, reverse): (u32, String, bool),
    sent: Option<FlowResult>,
    received: Option<FlowResult>,
    first_bin: usize,
    interrupted: bool,
) -> FlowOutcome {
    let after = |result: &Option<FlowResult>| {
        let bins = result.iter().flat_map(|result| result.bins.iter().skip(first_bin));
        bins.fold(Counts::default(), |mut sum, bin| {
            sum.add(bin);
            sum
        })
    };
    let (of_sender, of_receiver) = (after(&sent), after(&received));
    let counts = Counts {
        sent: of_sender.sent,
        sent_bytes: of_sender.sent_bytes,
        offered_bytes: of_sender.offered_bytes,
        ..of_receiver
    };
    let drops = received.as_ref().map_or(0, |result| result.socket_drops);
    let counts_packets = !matches!(order.method, super::Method::Tcp(_) | super::Method::Quic);
    // What is lost after the last packet that came is seen only by comparing with the sender.
    // Where both sides did not count the same packets, the receiver's gaps have to do.
    let comparable = first_bin == 0 && !interrupted && sent.is_some() && received.is_some();
    let lost = counts_packets.then(|| {
        if comparable {
            counts.sent.saturating_sub(counts.received).saturating_sub(drops)
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

/// What was told of a side while the run went on.
fn told(timeline: &Timeline, id: u32, sends: bool, name: &str) -> Option<FlowResult> {
    let mut result = FlowResult { name: name.to_owned(), sends, ..FlowResult::default() };
    let mut any = false;
    for interval in timeline.told() {
        let cell = interval.flows.get(&id).copied().unwrap_or_default();
        let counts = if sends { cell.sent } else { cell.received };
        any |= counts.is_some();
        // An interval of which nothing was told counts as empty: later ones keep their place.
        result.bins.resize(interval.number as usize, Counts::default());
        result.bins.push(counts.unwrap_or_default());
        if sends {
            result.tcp.extend(cell.tcp);
        } else {
            result.travel.extend(cell.travel);
        }
    }
    any.then_some(result)
}

/// The intervals up to the end of the run, as the reports have them.
fn intervals(order: &Order, timeline: &Timeline, flows: &[FlowOutcome], end: Duration) -> Vec<Interval> {
    let count = end.0.div_ceil(order.interval.0.max(1)) as u32;
    let interval = |number: u32| {
        let mut interval = timeline.blank(number);
        interval.to = interval.to.min(end);
        for flow in flows {
            let bin = number as usize;
            let tcp = |bin: usize| flow.sent.as_ref().and_then(|result| result.tcp.get(bin)).copied();
            let before = bin.checked_sub(1).and_then(tcp);
            let travel = flow.received.as_ref().and_then(|result| result.travel.get(bin)).copied();
            let counts = |side: &Option<FlowResult>| side.as_ref().and_then(|r| r.bins.get(bin)).copied();
            let cell = Cell::new(counts(&flow.sent), counts(&flow.received), tcp(bin), before, travel);
            interval.flows.insert(flow.id, cell);
        }
        interval
    };
    (0..count).map(interval).collect()
}

/// Says so where a sender with a schedule did not offer what was asked for.
fn short(order: &Order, flow: &FlowOutcome, interrupted: bool) -> Option<String> {
    // A stream's sender may be held back by the network: that is a finding.
    if matches!(order.method, super::Method::Tcp(_) | super::Method::Quic) || interrupted {
        return None;
    }
    let schedule = flow.sent.as_ref()?.schedule?;
    let missed = 1.0 - schedule.sent as f64 / schedule.asked.max(1) as f64;
    (missed > LOAD_TOLERANCE).then(|| {
        format!(
            "flow {}: the sender sent {} of {} packets: the load was not the one asked for",
            flow.name, schedule.sent, schedule.asked
        )
    })
}
