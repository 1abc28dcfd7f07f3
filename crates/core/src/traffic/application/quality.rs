//! Quality as observed by the user, and its sums per interval.

use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// An observation of the user.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observation {
    /// A request, transfer or lookup is complete.
    Transaction {
        /// Time.
        at: Instant,
        /// Time from the request to the last byte.
        took: Duration,
    },
    /// A request or connection failed.
    Failure {
        /// Time.
        at: Instant,
    },
    /// A page and all its objects are loaded.
    Page {
        /// Time.
        at: Instant,
        /// Load time.
        took: Duration,
    },
    /// Playout starts for the first time.
    Startup {
        /// Time.
        at: Instant,
        /// Time since the start of the flow.
        took: Duration,
    },
    /// Playout at a constant bit rate.
    Playing {
        /// Start.
        from: Instant,
        /// End.
        until: Instant,
        /// Bits per second of media time.
        rate: u64,
    },
    /// Stalled playout: the buffer is empty.
    Stalled {
        /// Start.
        from: Instant,
        /// End.
        until: Instant,
    },
    /// The bit rate changes with the next segment.
    Switched {
        /// Time.
        at: Instant,
    },
    /// Packets or frames that should have been played by now.
    Media {
        /// Time.
        at: Instant,
        /// Number expected.
        expected: u32,
        /// Number received in time.
        played: u32,
    },
    /// A packet or frame arrived, in time or not.
    Delay {
        /// Time.
        at: Instant,
        /// One-way delay.
        delay: Duration,
    },
    /// Mouth-to-ear delay of speech, including coding and the jitter buffer.
    MouthToEar {
        /// Time.
        at: Instant,
        /// The delay.
        delay: Duration,
    },
}

/// Sums of observations over one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quality {
    /// Completed transactions.
    pub transactions: u64,
    /// Sum of the transaction times, ns.
    pub transaction_ns: u64,
    /// Failed requests and connections.
    pub failures: u64,
    /// Loaded pages.
    pub pages: u64,
    /// Sum of the load times, ns.
    pub page_ns: u64,
    /// Playout startups.
    pub startups: u64,
    /// Sum of the startup times, ns.
    pub startup_ns: u64,
    /// Time spent playing, ns.
    pub playing_ns: u64,
    /// Time stalled, ns.
    pub stalled_ns: u64,
    /// Media bits played.
    pub played_bits: u64,
    /// Changes of bit rate.
    pub switches: u64,
    /// Packets or frames expected.
    pub expected: u64,
    /// Packets or frames received in time.
    pub played: u64,
    /// Packets or frames received.
    pub delayed: u64,
    /// Sum of their one-way delays, ns.
    pub delay_ns: u64,
    /// Number of mouth-to-ear delays.
    pub mouth_to_ear_count: u64,
    /// Sum of the mouth-to-ear delays, ns.
    pub mouth_to_ear_ns: u64,
}

/// [`Quality`] of each interval of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QualityBins {
    interval: u64,
    bins: Vec<Quality>,
}

impl QualityBins {
    /// Creates a number of empty intervals. Later observations are ignored.
    pub fn new(interval: Duration, bins: usize) -> QualityBins {
        QualityBins { interval: interval.0.max(1), bins: alloc::vec![Quality::default(); bins] }
    }

    /// Returns the intervals.
    pub fn bins(&self) -> &[Quality] {
        &self.bins
    }

    fn at(&mut self, at: Instant, add: impl FnOnce(&mut Quality)) {
        let bin = usize::try_from(at.0 / self.interval).ok();
        if let Some(quality) = bin.and_then(|bin| self.bins.get_mut(bin)) {
            add(quality);
        }
    }

    fn over(&mut self, from: Instant, until: Instant, add: impl Fn(&mut Quality, u64)) {
        let mut from = from.0;
        while from < until.0 {
            let edge = (from / self.interval).saturating_add(1).saturating_mul(self.interval);
            let end = until.0.min(edge);
            let bin = usize::try_from(from / self.interval).ok();
            let Some(quality) = bin.and_then(|bin| self.bins.get_mut(bin)) else { return };
            add(quality, end - from);
            from = end;
        }
    }

    /// Adds an observation to its intervals.
    pub fn add(&mut self, observation: Observation) {
        match observation {
            Observation::Transaction { at, took } => self.at(at, |quality| {
                quality.transactions += 1;
                quality.transaction_ns += took.0;
            }),
            Observation::Failure { at } => self.at(at, |quality| quality.failures += 1),
            Observation::Page { at, took } => self.at(at, |quality| {
                quality.pages += 1;
                quality.page_ns += took.0;
            }),
            Observation::Startup { at, took } => self.at(at, |quality| {
                quality.startups += 1;
                quality.startup_ns += took.0;
            }),
            Observation::Playing { from, until, rate } => self.over(from, until, |quality, span| {
                quality.playing_ns += span;
                quality.played_bits += (u128::from(span) * u128::from(rate) / 1_000_000_000) as u64;
            }),
            Observation::Stalled { from, until } => {
                self.over(from, until, |quality, span| quality.stalled_ns += span);
            }
            Observation::Switched { at } => self.at(at, |quality| quality.switches += 1),
            Observation::Media { at, expected, played } => self.at(at, |quality| {
                quality.expected += u64::from(expected);
                quality.played += u64::from(played);
            }),
            Observation::Delay { at, delay } => self.at(at, |quality| {
                quality.delayed += 1;
                quality.delay_ns += delay.0;
            }),
            Observation::MouthToEar { at, delay } => self.at(at, |quality| {
                quality.mouth_to_ear_count += 1;
                quality.mouth_to_ear_ns += delay.0;
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_split_between_intervals_and_end_with_the_last_one() {
        let mut bins = QualityBins::new(Duration(10), 3);
        bins.add(Observation::Stalled { from: Instant(4), until: Instant(25) });
        bins.add(Observation::Stalled { from: Instant(28), until: Instant(99) });
        bins.add(Observation::Failure { at: Instant(30) });
        let stalled: Vec<u64> = bins.bins().iter().map(|quality| quality.stalled_ns).collect();
        assert_eq!(stalled, [6, 10, 7]);
        assert!(bins.bins().iter().all(|quality| quality.failures == 0));
    }
}
