//! Quality as observed by the user: its sums per interval, and the distributions of a run.

use crate::measure::Histogram;
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

/// Distributions of the times observed at one end in a run, in nanoseconds: histograms, or their buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QualityDistributions<T> {
    /// Transaction times.
    pub transaction_time: T,
    /// Load times of pages.
    pub page_load_time: T,
    /// Startup times of playout.
    pub startup_delay: T,
    /// One-way delays of packets or frames.
    pub delay: T,
    /// Absolute differences of the delays of successive arrivals (RFC 3393).
    pub delay_variation: T,
}

impl<T: Default + PartialEq> QualityDistributions<T> {
    /// Returns whether all distributions are empty.
    pub fn is_empty(&self) -> bool {
        *self == QualityDistributions::default()
    }
}

impl<T> QualityDistributions<T> {
    /// Returns all distributions.
    pub fn all(&self) -> [&T; 5] {
        [
            &self.transaction_time,
            &self.page_load_time,
            &self.startup_delay,
            &self.delay,
            &self.delay_variation,
        ]
    }

    /// Converts every distribution.
    pub fn map<U>(&self, convert: impl Fn(&T) -> U) -> QualityDistributions<U> {
        QualityDistributions {
            transaction_time: convert(&self.transaction_time),
            page_load_time: convert(&self.page_load_time),
            startup_delay: convert(&self.startup_delay),
            delay: convert(&self.delay),
            delay_variation: convert(&self.delay_variation),
        }
    }
}

/// [`Quality`] of each interval of a run, and the distributions of the whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QualityBins {
    interval: u64,
    bins: Vec<Quality>,
    distributions: QualityDistributions<Histogram>,
    last_delay: Option<Duration>,
}

impl QualityBins {
    /// Creates a number of empty intervals. Later observations are ignored.
    pub fn new(interval: Duration, bins: usize) -> QualityBins {
        QualityBins {
            interval: interval.0.max(1),
            bins: alloc::vec![Quality::default(); bins],
            distributions: QualityDistributions::default(),
            last_delay: None,
        }
    }

    /// Returns the distributions of all observations within the intervals.
    pub fn distributions(&self) -> &QualityDistributions<Histogram> {
        &self.distributions
    }

    /// Returns the intervals.
    pub fn bins(&self) -> &[Quality] {
        &self.bins
    }

    /// Adds to the interval of a time. Returns whether there is one.
    fn at(&mut self, at: Instant, add: impl FnOnce(&mut Quality)) -> bool {
        let bin = usize::try_from(at.0 / self.interval).ok();
        let quality = bin.and_then(|bin| self.bins.get_mut(bin));
        quality.map(add).is_some()
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
            Observation::Transaction { at, took } => {
                let is_within = self.at(at, |quality| {
                    quality.transactions += 1;
                    quality.transaction_ns += took.0;
                });
                record(is_within, &mut self.distributions.transaction_time, took);
            }
            Observation::Failure { at } => {
                self.at(at, |quality| quality.failures += 1);
            }
            Observation::Page { at, took } => {
                let is_within = self.at(at, |quality| {
                    quality.pages += 1;
                    quality.page_ns += took.0;
                });
                record(is_within, &mut self.distributions.page_load_time, took);
            }
            Observation::Startup { at, took } => {
                let is_within = self.at(at, |quality| {
                    quality.startups += 1;
                    quality.startup_ns += took.0;
                });
                record(is_within, &mut self.distributions.startup_delay, took);
            }
            Observation::Playing { from, until, rate } => self.over(from, until, |quality, span| {
                quality.playing_ns += span;
                quality.played_bits += (u128::from(span) * u128::from(rate) / 1_000_000_000) as u64;
            }),
            Observation::Stalled { from, until } => {
                self.over(from, until, |quality, span| quality.stalled_ns += span);
            }
            Observation::Switched { at } => {
                self.at(at, |quality| quality.switches += 1);
            }
            Observation::Media { at, expected, played } => {
                self.at(at, |quality| {
                    quality.expected += u64::from(expected);
                    quality.played += u64::from(played);
                });
            }
            Observation::Delay { at, delay } => {
                let is_within = self.at(at, |quality| {
                    quality.delayed += 1;
                    quality.delay_ns += delay.0;
                });
                record(is_within, &mut self.distributions.delay, delay);
                if let Some(last) = self.last_delay.replace(delay) {
                    let variation = Duration(delay.0.abs_diff(last.0));
                    record(is_within, &mut self.distributions.delay_variation, variation);
                }
            }
            Observation::MouthToEar { at, delay } => {
                self.at(at, |quality| {
                    quality.mouth_to_ear_count += 1;
                    quality.mouth_to_ear_ns += delay.0;
                });
            }
        }
    }
}

fn record(is_within: bool, histogram: &mut Histogram, value: Duration) {
    if is_within {
        histogram.record(value.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;

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
    /// Divides the same observations among several ends at random: the sum of their distributions is that of one end.
    #[test]
    fn distributions_cover_the_intervals_and_are_additive() {
        for seed in 0..50 {
            let mut stream = RandomStream::new(seed, "observations");
            let observations: Vec<Observation> = (0..1 + stream.below(400))
                .map(|_| {
                    let (at, took) = (Instant(stream.below(40)), Duration(stream.exponential(1e7) as u64));
                    match stream.below(3) {
                        0 => Observation::Transaction { at, took },
                        1 => Observation::Page { at, took },
                        _ => Observation::Startup { at, took },
                    }
                })
                .collect();
            let mut whole = QualityBins::new(Duration(10), 3);
            let mut parts = [(); 3].map(|()| QualityBins::new(Duration(10), 3));
            for observation in &observations {
                whole.add(*observation);
                parts[stream.below(3) as usize].add(*observation);
            }
            let counted: u64 = whole.bins().iter().map(|bin| bin.transactions).sum();
            assert_eq!(whole.distributions().transaction_time.count(), counted, "seed {seed}");
            for field in 0..3 {
                let mut sum = Histogram::default();
                for part in &parts {
                    sum.add(&part.distributions().all()[field].buckets().collect::<Vec<_>>());
                }
                assert_eq!(&sum, whole.distributions().all()[field], "seed {seed}");
            }
        }
    }

    #[test]
    fn delay_variation_is_that_of_successive_arrivals() {
        let mut bins = QualityBins::new(Duration(1_000), 1);
        for (at, delay) in [(100, 30), (200, 10), (300, 50), (1_500, 900)] {
            bins.add(Observation::Delay { at: Instant(at), delay: Duration(delay) });
        }
        let buckets = bins.distributions().map(|histogram| histogram.buckets().collect::<Vec<_>>());
        assert_eq!(buckets.delay, [(10, 1), (30, 1), (50, 1)]);
        assert_eq!(buckets.delay_variation, [(20, 1), (40, 1)]);
    }
}
