//! Puts together what the agents tell of each interval while the run goes on.

use netstage_agent_api::results::{Counts, EndedBin, TcpSample, Travel};
use netstage_core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// How long an interval is waited for after its end: agents tell four times a second.
const PATIENCE: Duration = Duration::from_millis(1500);

/// What each flow did in an interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Interval {
    /// Its number, from zero.
    pub number: u32,
    /// Its beginning and end in the run.
    pub from: Duration,
    /// Its end; of the last one, the end of the run.
    pub to: Duration,
    /// Whether it belongs to what is omitted.
    pub omitted: bool,
    /// What each flow did, by its number.
    pub flows: BTreeMap<u32, Cell>,
}

/// What one flow did in an interval; sides that did not tell are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cell {
    /// Counts of the sending side.
    pub sent: Option<Counts>,
    /// Counts of the receiving side; a one-ended sender's own.
    pub received: Option<Counts>,
    /// The sender's TCP at the end.
    pub tcp: Option<TcpSample>,
    /// Segments it sent again in the interval.
    pub retransmitted: Option<u64>,
    /// Travel times.
    pub travel: Option<Travel>,
    /// Pieces of it that have come.
    pieces: u32,
}

impl Cell {
    /// What both sides say; `before` is the sender's TCP an interval earlier.
    pub fn new(
        sent: Option<Counts>,
        received: Option<Counts>,
        tcp: Option<TcpSample>,
        before: Option<TcpSample>,
        travel: Option<Travel>,
    ) -> Cell {
        let tcp = tcp.filter(TcpSample::is_known);
        let retransmitted = tcp
            .map(|tcp| tcp.retransmissions.saturating_sub(before.map_or(0, |before| before.retransmissions)));
        Cell { sent, received, tcp, retransmitted, travel, pieces: 0 }
    }
}

/// Intervals as they are told.
#[derive(Clone, Debug)]
pub struct Timeline {
    interval: Duration,
    end: Duration,
    omit: Duration,
    one_ended: bool,
    /// Numbers of the flows.
    flows: BTreeSet<u32>,
    told: BTreeMap<u32, Interval>,
    /// The interval to hand out next.
    next: u32,
}

impl Timeline {
    /// Nothing told yet of so many flows.
    pub fn new(
        interval: Duration,
        omit: Duration,
        end: Duration,
        flows: impl IntoIterator<Item = u32>,
        one_ended: bool,
    ) -> Timeline {
        let flows = flows.into_iter().collect();
        Timeline { interval, end, omit, one_ended, flows, told: BTreeMap::new(), next: 0 }
    }

    /// An agent tells of one side of a flow. What cannot be of this run is passed over: the
    /// other host may send anything.
    pub fn push(&mut self, ended: EndedBin) {
        let begins = self.interval.0.saturating_mul(ended.bin.into());
        if begins >= self.end.0 || !self.flows.contains(&ended.flow) {
            return;
        }
        let blank = self.blank(ended.bin);
        let interval = self.told.entry(ended.bin).or_insert(blank);
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

    /// The next interval, if all has been told of it, or it is too late to wait.
    pub fn pop(&mut self, now: Duration) -> Option<Interval> {
        let interval = self.told.get(&self.next)?;
        // Both sides of a flow tell, and both halves of a one-ended sender.
        let complete =
            interval.flows.len() == self.flows.len() && interval.flows.values().all(|c| c.pieces >= 2);
        if !complete && now < interval.to + PATIENCE {
            return None;
        }
        let mut interval = interval.clone();
        let before = self.next.checked_sub(1).and_then(|number| self.told.get(&number));
        for (id, cell) in &mut interval.flows {
            let before = before.and_then(|before| before.flows.get(id)?.tcp);
            *cell = Cell::new(cell.sent, cell.received, cell.tcp, before, cell.travel);
        }
        self.next += 1;
        Some(interval)
    }

    /// All that was told.
    pub fn told(&self) -> impl Iterator<Item = &Interval> {
        self.told.values()
    }

    /// The interval to hand out next.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// An interval in which nothing has been told.
    pub fn blank(&self, number: u32) -> Interval {
        let from = Duration(self.interval.0.saturating_mul(number.into())).min(self.end);
        let to = Duration(from.0.saturating_add(self.interval.0)).min(self.end);
        Interval { number, from, to, omitted: from < self.omit, flows: BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(flow: u32, sends: bool, bin: u32) -> EndedBin {
        let counts = Counts { sent: u64::from(sends), received: u64::from(!sends), ..Counts::default() };
        EndedBin { flow, sends, bin, counts, tcp: None, travel: None }
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
        assert_eq!(timeline.pop(seconds(9)), None, "nothing told of the second");
        timeline.push(ended(3, true, 1));
        timeline.push(ended(1, true, 10));
        timeline.push(ended(1, true, u32::MAX));
        assert_eq!(timeline.told().count(), 1, "no such flow, and nothing after the end");
    }

    #[test]
    fn a_side_that_is_gone_does_not_hold_the_others_up() {
        let mut timeline = Timeline::new(seconds(1), seconds(0), seconds(10), [1], false);
        timeline.push(ended(1, true, 0));
        assert_eq!(timeline.pop(seconds(2)), None);
        let first = timeline.pop(seconds(3)).unwrap();
        assert_eq!((first.flows[&1].received, first.omitted), (None, false));
    }

    #[test]
    fn both_halves_of_a_one_ended_sender_make_one_flow() {
        let mut timeline = Timeline::new(seconds(1), seconds(0), seconds(10), [1], true);
        timeline.push(ended(1, true, 0));
        let mut answers = ended(1, true, 0);
        answers.counts = Counts { received: 1, ..Counts::default() };
        timeline.push(answers);
        let cell = timeline.pop(seconds(1)).unwrap().flows[&1];
        assert_eq!((cell.sent.unwrap().sent, cell.received.unwrap().received), (1, 1));
    }
}
