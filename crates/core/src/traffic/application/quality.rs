//! What a user notices, and its sums per interval of time.

use crate::time::{Duration, Instant};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Something a user noticed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observation {
    /// An answer, transfer or lookup is complete.
    Transaction {
        /// When.
        at: Instant,
        /// Time from the request to the last byte.
        took: Duration,
    },
    /// A request was given up.
    Failure {
        /// When.
        at: Instant,
    },
    /// A page and all its objects are there.
    Page {
        /// When.
        at: Instant,
        /// Time from asking for the page.
        took: Duration,
    },
    /// Play-out begins for the first time.
    Startup {
        /// When.
        at: Instant,
        /// Time since the user asked.
        took: Duration,
    },
    /// Play-out at one bit rate.
    Playing {
        /// From when.
        from: Instant,
        /// Until when.
        until: Instant,
        /// Bits per second of media time.
        rate: u64,
    },
    /// Play-out stood still because nothing was left to play.
    Stalled {
        /// From when.
        from: Instant,
        /// Until when.
        until: Instant,
    },
    /// The next segment has another bit rate than the one before.
    Switched {
        /// When.
        at: Instant,
    },
    /// Packets or frames that should have been played by now.
    Media {
        /// When.
        at: Instant,
        /// How many were expected.
        expected: u32,
        /// How many of them came, and in time.
        played: u32,
    },
    /// A packet or frame came, in time or not.
    Delay {
        /// When.
        at: Instant,
        /// One-way delay.
        delay: Duration,
    },
    /// Speech is heard this much after it was spoken, with coding and play-out buffer.
    MouthToEar {
        /// When.
        at: Instant,
        /// The delay.
        delay: Duration,
    },
}

/// Sums over one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quality {
    /// Transactions complete.
    pub transactions: u64,
    /// Their times in all, ns.
    pub transaction_ns: u64,
    /// Requests given up.
    pub failures: u64,
    /// Pages complete.
    pub pages: u64,
    /// Their load times in all, ns.
    pub page_ns: u64,
    /// Play-outs begun.
    pub startups: u64,
    /// Time from asking to playing in all, ns.
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
    /// Packets or frames that came in time.
    pub played: u64,
    /// Packets or frames that came.
    pub delayed: u64,
    /// Their one-way delays in all, ns.
    pub delay_ns: u64,
    /// Mouth-to-ear delays counted.
    pub heard: u64,
    /// Mouth-to-ear delays in all, ns.
    pub mouth_to_ear_ns: u64,
}

/// [`Quality`] of each interval of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QualityBins {
    interval: u64,
    bins: Vec<Quality>,
}

impl QualityBins {
    /// So many intervals without anything noticed. What comes later is left out.
    pub fn new(interval: Duration, bins: usize) -> QualityBins {
        QualityBins { interval: interval.0.max(1), bins: alloc::vec![Quality::default(); bins] }
    }

    /// The intervals.
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

    /// Adds what was noticed to the intervals it fell in.
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
                quality.heard += 1;
                quality.mouth_to_ear_ns += delay.0;
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_split_at_the_edges_and_end_with_the_run() {
        let mut bins = QualityBins::new(Duration(10), 3);
        bins.add(Observation::Stalled { from: Instant(4), until: Instant(25) });
        bins.add(Observation::Stalled { from: Instant(28), until: Instant(99) });
        bins.add(Observation::Failure { at: Instant(30) });
        let stalled: Vec<u64> = bins.bins().iter().map(|quality| quality.stalled_ns).collect();
        assert_eq!(stalled, [6, 10, 7]);
        assert!(bins.bins().iter().all(|quality| quality.failures == 0));
    }
}
