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
}
