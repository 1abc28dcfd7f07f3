//! Window changes of a flow per time bin. The size does not depend on the number of events.

use super::event::{FlowEvent, FlowEventKind, SendLimit, WindowChangeCause};
use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// History of one flow. Pass the flow's events in order to [`handle`](WindowHistory::handle), then call
/// [`finish`](WindowHistory::finish).
#[derive(Clone, Debug, PartialEq)]
pub struct WindowHistory {
    interval: Duration,
    bins: Vec<Bin>,
    max_bins: usize,
    /// Time of the last event and the limit since then.
    last: Option<(Instant, SendLimit)>,
}

/// Window changes and limits in one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// Maximum congestion window, in segments; `None` without events.
    pub peak: Option<f64>,
    /// Last usable window, in segments: the smaller of the congestion window and the peer's window.
    pub usable: Option<f64>,
    /// Number of window changes by cause, in the order of [`WindowChangeCause::ALL`].
    pub causes: [u32; WindowChangeCause::ALL.len()],
    /// Time spent under each limit, in the order of [`SendLimit::ALL`].
    pub limited: [Duration; SendLimit::ALL.len()],
}

impl Bin {
    /// Returns the number of window reductions due to congestion.
    pub fn reductions(&self) -> u32 {
        let congestion =
            WindowChangeCause::ALL.iter().zip(self.causes).filter(|(cause, _)| cause.is_congestion());
        congestion.map(|(_, count)| count).sum()
    }
}

impl WindowHistory {
    /// Creates a history of `bins` bins. Later events are not kept.
    pub fn new(interval: Duration, bins: usize) -> WindowHistory {
        WindowHistory { interval, bins: alloc::vec![Bin::default(); bins], max_bins: bins, last: None }
    }

    /// Creates a history that grows as needed, up to `max_bins` bins.
    pub fn growing(interval: Duration, max_bins: usize) -> WindowHistory {
        WindowHistory { interval, bins: Vec::new(), max_bins, last: None }
    }

    /// Records an event.
    pub fn handle(&mut self, event: &FlowEvent) {
        let snapshot = &event.snapshot;
        // The limit is known when an ACK arrives, because most data is in flight then.
        let limit = match event.kind {
            FlowEventKind::Acknowledged => snapshot.limit(),
            _ => self.last.map_or(snapshot.limit(), |(_, limit)| limit),
        };
        if let Some((from, _)) = self.last {
            self.add_limit(from, event.time, limit);
        }
        self.last = (event.kind != FlowEventKind::Ended).then_some((event.time, limit));
        let Some(bin) = self.bin(event.time) else { return };
        let segments = |bytes: u64| bytes as f64 / f64::from(snapshot.segment.max(1));
        let cwnd = segments(snapshot.cwnd);
        bin.peak = Some(bin.peak.map_or(cwnd, |peak| peak.max(cwnd)));
        bin.usable = Some(segments(snapshot.window()));
        if let FlowEventKind::Window(cause) = event.kind {
            bin.causes[cause as usize] += 1;
        }
    }

    /// Returns the bins. The last limit lasts until `end`.
    pub fn finish(mut self, end: Instant) -> Vec<Bin> {
        if let Some((from, limit)) = self.last {
            self.add_limit(from, end, limit);
        }
        self.bins
    }

    /// Returns a bin as it will be at its end if no more events occur in it.
    pub fn bin_at_end(&self, index: usize) -> Bin {
        let mut bin = self.bins.get(index).copied().unwrap_or_default();
        let start = Instant::ZERO + self.interval * index as u64;
        let end = start + self.interval;
        if let Some((from, limit)) = self.last.filter(|(from, _)| *from < end) {
            let limited = &mut bin.limited[limit as usize];
            *limited = *limited + end.since(from.max(start));
        }
        bin
    }

    fn bin(&mut self, at: Instant) -> Option<&mut Bin> {
        let index = (at.0 / self.interval.0) as usize;
        if index >= self.bins.len() && index < self.max_bins {
            self.bins.resize(index + 1, Bin::default());
        }
        self.bins.get_mut(index)
    }

    fn add_limit(&mut self, from: Instant, to: Instant, limit: SendLimit) {
        let mut start = from;
        while start < to {
            let bin_end = Instant((start.0 / self.interval.0 + 1) * self.interval.0).min(to);
            let Some(bin) = self.bin(start) else { return };
            let limited = &mut bin.limited[limit as usize];
            *limited = *limited + bin_end.since(start);
            start = bin_end;
        }
    }
}

/// History of a flow with several connections, concurrent or successive. Pass the bins of each connection to
/// [`add`](JoinedHistory::add).
#[derive(Clone, Debug, PartialEq)]
pub struct JoinedHistory {
    interval: Duration,
    bins: Vec<Bin>,
}

impl JoinedHistory {
    /// Creates a history without connections.
    pub fn new(interval: Duration, bins: usize) -> JoinedHistory {
        JoinedHistory { interval, bins: alloc::vec![Bin::default(); bins] }
    }

    /// Returns a history of one of the bins.
    pub fn single_bin(&self, bin: usize) -> JoinedHistory {
        let bin = self.bins.get(bin).copied().unwrap_or_default();
        JoinedHistory { interval: self.interval, bins: alloc::vec![bin] }
    }

    /// Adds a connection. Windows are the maximum over the connections; counts and times are summed.
    pub fn add(&mut self, connection: &[Bin]) {
        let largest = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        };
        for (bin, added) in self.bins.iter_mut().zip(connection) {
            bin.peak = largest(bin.peak, added.peak);
            bin.usable = largest(bin.usable, added.usable);
            bin.causes.iter_mut().zip(added.causes).for_each(|(sum, count)| *sum += count);
            bin.limited.iter_mut().zip(added.limited).for_each(|(sum, time)| *sum = *sum + time);
        }
    }

    /// Returns the bins. The times of concurrent connections are scaled down if they exceed the interval.
    pub fn finish(mut self) -> Vec<Bin> {
        for bin in &mut self.bins {
            let total: u128 = bin.limited.iter().map(|time| u128::from(time.0)).sum();
            let interval = u128::from(self.interval.0);
            if total > interval {
                let share = |time: Duration| Duration((u128::from(time.0) * interval / total) as u64);
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

    fn event(millis: u64, kind: FlowEventKind, cwnd: u64) -> FlowEvent {
        let snapshot = super::super::event::FlowSnapshot { cwnd, in_flight: cwnd, ..SNAPSHOT };
        FlowEvent { time: Instant::ZERO + Duration::from_millis(millis), kind, snapshot }
    }

    #[test]
    fn bins_hold_peaks_causes_and_limits() {
        let mut history = WindowHistory::new(SECOND, 3);
        history.handle(&event(500, FlowEventKind::Began, 10_000));
        history.handle(&event(900, FlowEventKind::Acknowledged, 40_000));
        history.handle(&event(950, FlowEventKind::Window(WindowChangeCause::FastRetransmit), 20_000));
        history.handle(&event(1_200, FlowEventKind::Window(WindowChangeCause::IdleRestart), 80_000));
        // A bin read before the end equals the final one.
        let early = [0, 1, 2].map(|bin| history.bin_at_end(bin));
        // The last 100 ms are after the last bin.
        let bins = history.finish(Instant::ZERO + Duration::from_millis(3_100));
        assert_eq!(bins, early);
        assert_eq!((bins[0].peak, bins[0].usable), (Some(40.0), Some(20.0)));
        assert_eq!(bins[1].usable, Some(64.0), "the peer's window is the smaller one");
        assert_eq!((bins[0].reductions(), bins[1].reductions(), bins[2].peak), (1, 0, None));
        assert_eq!(bins[1].causes[WindowChangeCause::IdleRestart as usize], 1);
        let limited = bins.iter().map(|bin| bin.limited[SendLimit::CongestionWindow as usize]);
        assert_eq!(limited.collect::<Vec<_>>(), [Duration::from_millis(500), SECOND, SECOND]);
    }

    #[test]
    fn connections_of_one_flow_are_merged() {
        let mut histories = [(); 2].map(|()| WindowHistory::growing(SECOND, 2));
        histories[0].handle(&event(0, FlowEventKind::Acknowledged, 10_000));
        histories[1].handle(&event(0, FlowEventKind::Began, 30_000));
        histories[1].handle(&event(500, FlowEventKind::Window(WindowChangeCause::Timeout), 1_000));
        histories[1].handle(&event(500, FlowEventKind::Ended, 1_000));
        let mut joined = JoinedHistory::new(SECOND, 2);
        let end = Instant::ZERO + SECOND * 2;
        histories.into_iter().for_each(|history| joined.add(&history.finish(end)));
        let bins = joined.finish();
        assert_eq!((bins[0].peak, bins[0].usable, bins[0].reductions()), (Some(30.0), Some(10.0), 1));
        // The second connection existed for half of the first bin, and not in the second bin.
        let limited = |bin: &Bin| bin.limited.iter().map(|time| time.0).sum::<u64>();
        assert!(bins.iter().all(|bin| (999_999_990..=SECOND.0).contains(&limited(bin))), "{bins:?}");
    }
}
