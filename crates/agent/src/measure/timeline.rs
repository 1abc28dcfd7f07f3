//! Assembly of the intervals that agents report during a measurement.

use netstage_agent_api::results::{BinCounts, CompletedBin, TcpSample, Travel};
use netstage_core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Time after the end of an interval at which missing reports are no longer awaited. Agents report four times
/// per second.
const REPORT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Figures of all flows in one interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasurementInterval {
    /// Number of the interval, from zero.
    pub number: u32,
    /// Start of the interval, relative to the start of the run.
    pub from: Duration,
    /// End of the interval, at most the end of the run.
    pub to: Duration,
    /// Set if the interval belongs to the omitted beginning.
    pub omitted: bool,
    /// Figures of each flow, by its number.
    pub flows: BTreeMap<u32, FlowInterval>,
}

/// Figures of one flow in one interval. Sides that have not reported are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowInterval {
    /// Counters of the sender.
    pub sent: Option<BinCounts>,
    /// Counters of the receiver, or those of a one-ended sender.
    pub received: Option<BinCounts>,
    /// Sender's TCP state at the end of the interval.
    pub tcp: Option<TcpSample>,
    /// Segments retransmitted in the interval.
    pub retransmitted: Option<u64>,
    /// Delays.
    pub travel: Option<Travel>,
    /// Number of reports received for this interval and flow.
    pieces: u32,
}

impl FlowInterval {
    /// Combines the figures of both sides. `before` is the sender's TCP state at the end of the previous
    /// interval.
    pub fn new(
        sent: Option<BinCounts>,
        received: Option<BinCounts>,
        tcp: Option<TcpSample>,
        before: Option<TcpSample>,
        travel: Option<Travel>,
    ) -> FlowInterval {
        let tcp = tcp.filter(TcpSample::is_known);
        let retransmitted = tcp
            .map(|tcp| tcp.retransmissions.saturating_sub(before.map_or(0, |before| before.retransmissions)));
        FlowInterval { sent, received, tcp, retransmitted, travel, pieces: 0 }
    }
}

/// Intervals of a measurement, assembled from the reports of both sides.
#[derive(Clone, Debug)]
pub struct Timeline {
    interval: Duration,
    end: Duration,
    omit: Duration,
    one_ended: bool,
    /// Numbers of the flows.
    flows: BTreeSet<u32>,
    reported: BTreeMap<u32, MeasurementInterval>,
    /// Number of the next interval that `pop` returns.
    next: u32,
}

impl Timeline {
    /// Returns an empty timeline for these flows.
    pub fn new(
        interval: Duration,
        omit: Duration,
        end: Duration,
        flows: impl IntoIterator<Item = u32>,
        one_ended: bool,
    ) -> Timeline {
        let flows = flows.into_iter().collect();
        Timeline { interval, end, omit, one_ended, flows, reported: BTreeMap::new(), next: 0 }
    }

    /// Adds a bin reported by an agent. Bins that cannot belong to the measurement are ignored, because a
    /// remote host may send anything.
    pub fn push(&mut self, ended: CompletedBin) {
        let start = self.interval.0.saturating_mul(ended.bin.into());
        if start >= self.end.0 || !self.flows.contains(&ended.flow) {
            return;
        }
        let blank = self.blank(ended.bin);
        let interval = self.reported.entry(ended.bin).or_insert(blank);
        let cell = interval.flows.entry(ended.flow).or_default();
        cell.pieces += 1;
        if ended.sends {
            cell.sent.get_or_insert_default().add(&ended.counts);
        }
        if !ended.sends || self.one_ended {
            cell.received.get_or_insert_default().add(&ended.counts);
        }
        cell.tcp = cell.tcp.or(ended.tcp);
        cell.travel = cell.travel.or(ended.travel);
    }

    /// Returns the next interval once its reports are complete, or the time to wait for them is over.
    pub fn pop(&mut self, now: Duration) -> Option<MeasurementInterval> {
        let interval = self.reported.get(&self.next)?;
        // Complete means one report from each side of a flow, or from each half of a one-ended sender.
        let complete =
            interval.flows.len() == self.flows.len() && interval.flows.values().all(|c| c.pieces >= 2);
        if !complete && now < interval.to + REPORT_TIMEOUT {
            return None;
        }
        let mut interval = interval.clone();
        let before = self.next.checked_sub(1).and_then(|number| self.reported.get(&number));
        for (id, cell) in &mut interval.flows {
            let before = before.and_then(|before| before.flows.get(id)?.tcp);
            *cell = FlowInterval::new(cell.sent, cell.received, cell.tcp, before, cell.travel);
        }
        self.next += 1;
        Some(interval)
    }

    /// Returns all intervals for which a report was received.
    pub fn reported(&self) -> impl Iterator<Item = &MeasurementInterval> {
        self.reported.values()
    }

    /// Returns the number of the next interval that [`pop`](Timeline::pop) returns.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Returns an interval without figures.
    pub fn blank(&self, number: u32) -> MeasurementInterval {
        let from = Duration(self.interval.0.saturating_mul(number.into())).min(self.end);
        let to = Duration(from.0.saturating_add(self.interval.0)).min(self.end);
        MeasurementInterval { number, from, to, omitted: from < self.omit, flows: BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(flow: u32, sends: bool, bin: u32) -> CompletedBin {
        let counts =
            BinCounts { sent: u64::from(sends), received: u64::from(!sends), ..BinCounts::default() };
        CompletedBin { flow, sends, bin, counts, tcp: None, travel: None }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_interval_waits_for_both_sides_of_every_flow() {
        let mut timeline = Timeline::new(seconds(1), seconds(1), seconds(10), [1, 2], false);
        timeline.push(ended(1, true, 0));
        timeline.push(ended(1, false, 0));
        timeline.push(ended(2, true, 0));
        assert_eq!(timeline.pop(seconds(1)), None);
        timeline.push(ended(2, false, 0));
        let first = timeline.pop(seconds(1)).unwrap();
        assert!(first.omitted);
        assert_eq!((first.from, first.to, first.flows.len()), (seconds(0), seconds(1), 2));
        assert_eq!(first.flows[&2].sent.unwrap().sent, 1);
        assert_eq!(first.flows[&2].received.unwrap().received, 1);
        assert_eq!(timeline.pop(seconds(9)), None, "no report of the second interval");
        timeline.push(ended(3, true, 1));
        timeline.push(ended(1, true, 10));
        timeline.push(ended(1, true, u32::MAX));
        assert_eq!(timeline.reported().count(), 1, "unknown flows and intervals after the end are ignored");
    }

    #[test]
    fn a_missing_side_does_not_delay_the_others() {
        let mut timeline = Timeline::new(seconds(1), seconds(0), seconds(10), [1], false);
        timeline.push(ended(1, true, 0));
        assert_eq!(timeline.pop(seconds(2)), None);
        let first = timeline.pop(seconds(3)).unwrap();
        assert_eq!((first.flows[&1].received, first.omitted), (None, false));
    }

    #[test]
    fn both_halves_of_a_one_ended_sender_form_one_flow() {
        let mut timeline = Timeline::new(seconds(1), seconds(0), seconds(10), [1], true);
        timeline.push(ended(1, true, 0));
        let mut answers = ended(1, true, 0);
        answers.counts = BinCounts { received: 1, ..BinCounts::default() };
        timeline.push(answers);
        let cell = timeline.pop(seconds(1)).unwrap().flows[&1];
        assert_eq!((cell.sent.unwrap().sent, cell.received.unwrap().received), (1, 1));
    }
}
