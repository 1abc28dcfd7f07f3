//! What happened to a flow's window, per bin of time: small however many events there are.

use super::event::{Cause, FlowEvent, Kind, Limit};
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// One flow's history. Hand it the flow's events in order, then call [`finish`](History::finish).
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    interval: Duration,
    bins: Vec<Bin>,
    /// Bins at most.
    most: usize,
    /// The last event, and what then held the sender back.
    since: Option<(Instant, Limit)>,
}

/// What happened in a bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// The largest congestion window, segments; none where nothing happened.
    pub peak: Option<f64>,
    /// What might be in flight last: the smaller of congestion window and peer's window, segments.
    pub usable: Option<f64>,
    /// How often the window changed, by cause in the order of [`Cause::ALL`].
    pub causes: [u32; Cause::ALL.len()],
    /// How long each held the sender back, in the order of [`Limit::ALL`].
    pub limited: [Duration; Limit::ALL.len()],
}

impl Bin {
    /// How often the window fell for congestion, of whichever kind.
    pub fn reductions(&self) -> u32 {
        let congestion = Cause::ALL.iter().zip(self.causes).filter(|(cause, _)| cause.is_congestion());
        congestion.map(|(_, count)| count).sum()
    }
}

impl History {
    /// Of so many bins; what comes later is not kept.
    pub fn new(interval: Duration, bins: usize) -> History {
        History { interval, bins: alloc::vec![Bin::default(); bins], most: bins, since: None }
    }

    /// Of as many bins as it takes, up to this many.
    pub fn growing(interval: Duration, most: usize) -> History {
        History { interval, bins: Vec::new(), most, since: None }
    }

    /// Something happened.
    pub fn handle(&mut self, event: &FlowEvent) {
        let snapshot = &event.snapshot;
        // What holds a sender back shows when an ACK comes: then most is in flight.
        let limit = match event.kind {
            Kind::Acknowledged => snapshot.limit(),
            _ => self.since.map_or(snapshot.limit(), |(_, limit)| limit),
        };
        if let Some((from, _)) = self.since {
            self.spread(from, event.time, limit);
        }
        self.since = (event.kind != Kind::Ended).then_some((event.time, limit));
        let Some(bin) = self.bin(event.time) else { return };
        let segments = |bytes: u64| bytes as f64 / f64::from(snapshot.segment.max(1));
        let cwnd = segments(snapshot.cwnd);
        bin.peak = Some(bin.peak.map_or(cwnd, |peak| peak.max(cwnd)));
        bin.usable = Some(segments(snapshot.window()));
        if let Kind::Window(cause) = event.kind {
            bin.causes[cause as usize] += 1;
        }
    }

    /// The bins, once nothing more happens before `end`.
    pub fn finish(mut self, end: Instant) -> Vec<Bin> {
        if let Some((from, limit)) = self.since {
            self.spread(from, end, limit);
        }
        self.bins
    }

    /// A bin as it stands at its end, if nothing more is told of it.
    pub fn ended(&self, index: usize) -> Bin {
        let mut bin = self.bins.get(index).copied().unwrap_or_default();
        let start = Instant::ZERO + self.interval * index as u64;
        let end = start + self.interval;
        if let Some((from, limit)) = self.since.filter(|(from, _)| *from < end) {
            let held = &mut bin.limited[limit as usize];
            *held = *held + end.since(from.max(start));
        }
        bin
    }

    fn bin(&mut self, at: Instant) -> Option<&mut Bin> {
        let index = (at.0 / self.interval.0) as usize;
        if index >= self.bins.len() && index < self.most {
            self.bins.resize(index + 1, Bin::default());
        }
        self.bins.get_mut(index)
    }

    fn spread(&mut self, from: Instant, to: Instant, limit: Limit) {
        let mut start = from;
        while start < to {
            let edge = Instant((start.0 / self.interval.0 + 1) * self.interval.0).min(to);
            let Some(bin) = self.bin(start) else { return };
            let held = &mut bin.limited[limit as usize];
            *held = *held + edge.since(start);
            start = edge;
        }
    }
}

/// The history of a flow of several connections, at once or one after the other. Hand it the bins of each.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    interval: Duration,
    bins: Vec<Bin>,
}

impl Joined {
    /// Of no connection yet.
    pub fn new(interval: Duration, bins: usize) -> Joined {
        Joined { interval, bins: alloc::vec![Bin::default(); bins] }
    }

    /// One bin of it alone.
    pub fn only(&self, bin: usize) -> Joined {
        let bin = self.bins.get(bin).copied().unwrap_or_default();
        Joined { interval: self.interval, bins: alloc::vec![bin] }
    }

    /// Adds a connection: windows are the largest there are, causes are counted together.
    pub fn add(&mut self, connection: &[Bin]) {
        let largest = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        };
        for (bin, of) in self.bins.iter_mut().zip(connection) {
            bin.peak = largest(bin.peak, of.peak);
            bin.usable = largest(bin.usable, of.usable);
            bin.causes.iter_mut().zip(of.causes).for_each(|(sum, count)| *sum += count);
            bin.limited.iter_mut().zip(of.limited).for_each(|(sum, time)| *sum = *sum + time);
        }
    }

    /// The bins. Where connections were held back at the same time, each counts for its share of it.
    pub fn finish(mut self) -> Vec<Bin> {
        for bin in &mut self.bins {
            let total: u128 = bin.limited.iter().map(|time| u128::from(time.0)).sum();
            let most = u128::from(self.interval.0);
            if total > most {
                let share = |time: Duration| Duration((u128::from(time.0) * most / total) as u64);
                bin.limited = bin.limited.map(share);
            }
        }
        self.bins
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::event::tests::SNAPSHOT;

    const SECOND: Duration = Duration::from_secs(1);

    fn event(millis: u64, kind: Kind, cwnd: u64) -> FlowEvent {
        let snapshot = super::super::event::Snapshot { cwnd, in_flight: cwnd, ..SNAPSHOT };
        FlowEvent { time: Instant::ZERO + Duration::from_millis(millis), kind, snapshot }
    }

    #[test]
    fn bins_hold_peaks_causes_and_what_held_the_sender_back() {
        let mut history = History::new(SECOND, 3);
        history.handle(&event(500, Kind::Began, 10_000));
        history.handle(&event(900, Kind::Acknowledged, 40_000));
        history.handle(&event(950, Kind::Window(Cause::FastRetransmit), 20_000));
        history.handle(&event(1_200, Kind::Window(Cause::IdleRestart), 80_000));
        // Looked at while it goes on, bins are what they will be.
        let ended = [0, 1, 2].map(|bin| history.ended(bin));
        // A hundredth of the time is after the last bin.
        let bins = history.finish(Instant::ZERO + Duration::from_millis(3_100));
        assert_eq!(bins, ended);
        assert_eq!((bins[0].peak, bins[0].usable), (Some(40.0), Some(20.0)));
        assert_eq!(bins[1].usable, Some(64.0), "the peer's window is the smaller one");
        assert_eq!((bins[0].reductions(), bins[1].reductions(), bins[2].peak), (1, 0, None));
        assert_eq!(bins[1].causes[Cause::IdleRestart as usize], 1);
        let held = bins.iter().map(|bin| bin.limited[Limit::CongestionWindow as usize]);
        assert_eq!(held.collect::<Vec<_>>(), [Duration::from_millis(500), SECOND, SECOND]);
    }

    #[test]
    fn connections_of_one_flow_are_told_together() {
        let mut histories = [(); 2].map(|()| History::growing(SECOND, 2));
        histories[0].handle(&event(0, Kind::Acknowledged, 10_000));
        histories[1].handle(&event(0, Kind::Began, 30_000));
        histories[1].handle(&event(500, Kind::Window(Cause::Timeout), 1_000));
        histories[1].handle(&event(500, Kind::Ended, 1_000));
        let mut joined = Joined::new(SECOND, 2);
        let end = Instant::ZERO + SECOND * 2;
        histories.into_iter().for_each(|history| joined.add(&history.finish(end)));
        let bins = joined.finish();
        assert_eq!((bins[0].peak, bins[0].usable, bins[0].reductions()), (Some(30.0), Some(10.0), 1));
        // The second was there for half of the first bin, and for nothing of the other.
        let held = |bin: &Bin| bin.limited.iter().map(|time| time.0).sum::<u64>();
        assert!(bins.iter().all(|bin| (999_999_990..=SECOND.0).contains(&held(bin))), "{bins:?}");
    }
}
