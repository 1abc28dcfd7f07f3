//! Histogram of durations or other whole numbers over the whole range of `u64`, with three significant
//! digits. Buckets have the widths of HdrHistogram (<http://hdrhistogram.org>) at that precision, so
//! histograms taken in different places can be added without loss.
//!
//! Values below 2048 have a bucket each. Above, every octave is divided into 1024 buckets, so that a value
//! differs from its bucket's midpoint by less than 0.05 %.

use super::binomial::incomplete_beta;
use alloc::vec;
use alloc::vec::Vec;

/// Buckets per octave, as a power of two.
const OCTAVE_BITS: u32 = 10;
const OCTAVE: usize = 1 << OCTAVE_BITS;

/// Probability with which a quantile is below its interval, and above it.
const TAIL: f64 = 0.025;

/// Quantile of a sample, with the 95 % confidence interval of the population's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantileEstimate {
    /// Quantile of the sample.
    pub value: u64,
    /// Lower end of the interval.
    pub low: u64,
    /// Upper end of the interval.
    pub high: u64,
}

/// Returns the number of values from which a quantile has an interval: with fewer, all of them may be on one side of it.
/// 6 for the median, 368 for 99 %, 3,688 for 99.9 %.
pub fn values_needed(q: f64) -> u64 {
    libm::ceil(libm::log(TAIL) / libm::log(q.max(1.0 - q))) as u64
}

/// Counts of values. Memory for an octave is allocated when the first value falls into it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Counts per bucket of each octave, empty for octaves without values; the first two octaves hold 0 to
    /// 2047.
    octaves: Vec<Vec<u64>>,
    count: u64,
}

/// Returns the octave and bucket index of a value.
fn bucket(value: u64) -> (usize, usize) {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(OCTAVE_BITS + 1);
    let index = (value >> shift) as usize;
    (shift as usize + index / OCTAVE, index % OCTAVE)
}

/// Returns the midpoint of a bucket, rounded down.
fn middle(octave: usize, bucket: usize) -> u64 {
    let shift = octave.saturating_sub(1);
    let index = if octave == 0 { bucket } else { OCTAVE + bucket };
    ((index as u64) << shift) + ((1u64 << shift) >> 1)
}

/// Returns the midpoint of the bucket that `value` falls into.
pub fn rounded(value: u64) -> u64 {
    let (octave, bucket) = bucket(value);
    middle(octave, bucket)
}

impl Histogram {
    /// Counts a value.
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Counts a value `times` times.
    pub fn record_many(&mut self, value: u64, times: u64) {
        if times == 0 {
            return;
        }
        let (octave, bucket) = bucket(value);
        if self.octaves.len() <= octave {
            self.octaves.resize_with(octave + 1, Vec::new);
        }
        let counts = &mut self.octaves[octave];
        if counts.is_empty() {
            *counts = vec![0; OCTAVE];
        }
        counts[bucket] = counts[bucket].saturating_add(times);
        self.count = self.count.saturating_add(times);
    }

    /// Adds the buckets of another histogram.
    pub fn add(&mut self, buckets: &[(u64, u64)]) {
        for &(value, times) in buckets {
            self.record_many(value, times);
        }
    }

    /// Returns the number of values counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the midpoint and count of every bucket that is not empty, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.octaves.iter().enumerate().flat_map(|(octave, counts)| {
            let held = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            held.map(move |(bucket, &count)| (middle(octave, bucket), count))
        })
    }

    /// Returns the smallest value that at least a share `q` of all values does not exceed; `None` if the
    /// histogram is empty.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        self.value_at(self.rank(q))
    }

    /// Returns a quantile in (0, 1) with its distribution-free 95 % interval; `None` with fewer values than
    /// [`values_needed`]. The interval holds for independent values: its ends are the order statistics between which the
    /// quantile of the population lies, by the binomial distribution (David and Nagaraja 2003, section 7.1).
    pub fn estimate(&self, q: f64) -> Option<QuantileEstimate> {
        if self.count < values_needed(q) {
            return None;
        }
        // Probability that at least k values are below the quantile. It decreases with k.
        let at_least = |k: u64| incomplete_beta(k as f64, (self.count - k + 1) as f64, q);
        let last = |holds: &dyn Fn(u64) -> bool| {
            let (mut low, mut high) = (0, self.count);
            while low < high {
                let middle = low + (high - low).div_ceil(2);
                if holds(middle) { low = middle } else { high = middle - 1 }
            }
            low
        };
        let low = last(&|k| at_least(k) >= 1.0 - TAIL).max(1);
        let high = (last(&|k| at_least(k) > TAIL) + 1).min(self.count);
        Some(QuantileEstimate {
            value: self.quantile(q)?,
            low: self.value_at(low)?,
            high: self.value_at(high)?,
        })
    }

    fn rank(&self, q: f64) -> u64 {
        libm::ceil(q * self.count as f64).clamp(1.0, self.count.max(1) as f64) as u64
    }

    /// Returns the value of this rank, from 1.
    fn value_at(&self, rank: u64) -> Option<u64> {
        let mut below = 0u64;
        self.buckets()
            .find(|&(_, count)| {
                below = below.saturating_add(count);
                below >= rank
            })
            .map(|(value, _)| value)
    }

    /// Returns the mean; NaN if the histogram is empty.
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.buckets().map(|(value, count)| value as f64 * count as f64).sum();
        sum / self.count as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;
    use alloc::collections::BTreeMap;

    #[test]
    fn every_value_is_near_the_midpoint_of_its_bucket() {
        let mut stream = RandomStream::new(1, "values");
        let random = (0..100_000).map(|k| (stream.uniform() * (1u64 << (k % 64)) as f64) as u64);
        let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for value in random.chain(edges).chain([u64::MAX]) {
            let middle = rounded(value);
            // Half of one of the octave's 1024 buckets: at most 2⁻¹¹ of the value.
            assert!(middle.abs_diff(value) <= value >> 11, "{value} becomes {middle}");
            assert_eq!(rounded(middle), middle, "{value}");
        }
        assert!((0..2048).all(|value| rounded(value) == value));
    }

    #[test]
    fn buckets_ascend_and_match_hdr_histogram() {
        // HdrHistogram with three digits: the bucket of 50 ms is 49,971,200 to 50,003,967 ns.
        assert_eq!(rounded(49_971_200), rounded(50_003_967));
        assert_ne!(rounded(49_971_199), rounded(49_971_200));
        assert_ne!(rounded(50_003_967), rounded(50_003_968));
        let (mut one, mut expected) = (Histogram::default(), BTreeMap::new());
        for value in [0, 7, 7, 2047, 2048, 2049, 50_000_000, u64::MAX] {
            one.record(value);
            *expected.entry(rounded(value)).or_insert(0) += 1;
        }
        let buckets: Vec<(u64, u64)> = one.buckets().collect();
        assert_eq!(buckets, expected.into_iter().collect::<Vec<_>>());
        let mut two = one.clone();
        two.add(&buckets);
        assert_eq!(two.count(), 16);
        assert!(two.buckets().eq(buckets.iter().map(|&(value, count)| (value, 2 * count))));
    }

    #[test]
    fn an_interval_needs_values_on_both_sides() {
        assert_eq!([0.5, 0.9, 0.95, 0.99, 0.999].map(values_needed), [6, 36, 72, 368, 3_688]);
        let of = |count: u64| {
            let mut histogram = Histogram::default();
            (1..=count).for_each(|value| histogram.record(value));
            histogram
        };
        for q in [0.5, 0.9, 0.99, 0.999] {
            let needed = values_needed(q);
            assert_eq!(of(needed - 1).estimate(q), None);
            assert_eq!(of(needed).estimate(q).unwrap().high, rounded(needed));
        }
        // Ranks of the median of 100 values by a table of the binomial distribution.
        assert_eq!(of(100).estimate(0.5), Some(QuantileEstimate { value: 50, low: 40, high: 61 }));
    }

    /// Draws samples of exponential distributions, and merges each from three histograms.
    #[test]
    fn intervals_contain_the_quantile_of_the_population() {
        const SAMPLES: u64 = 1_000;
        for (q, size) in [(0.5, 20), (0.9, 200), (0.99, 1_000)] {
            let mut contained = 0;
            for sample in 0..SAMPLES {
                let mut stream = RandomStream::new(sample, "samples");
                let mut merged = Histogram::default();
                for part in 0..3 {
                    let mut histogram = Histogram::default();
                    (0..size / 3 + u64::from(part < size % 3))
                        .for_each(|_| histogram.record(stream.exponential(1e6) as u64));
                    merged.add(&histogram.buckets().collect::<Vec<_>>());
                }
                let truth = rounded((-libm::log(1.0 - q) * 1e6) as u64);
                let estimate = merged.estimate(q).unwrap();
                contained += u64::from((estimate.low..=estimate.high).contains(&truth));
            }
            assert!(contained >= SAMPLES * 94 / 100, "{contained} of {SAMPLES} intervals of {q}");
        }
    }

    #[test]
    fn quantiles_match_the_sorted_values() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        assert!(histogram.mean().is_nan());
        (1..=1000).for_each(|value| histogram.record(value));
        let quantile = |q| histogram.quantile(q).unwrap();
        assert_eq!(
            [quantile(0.0), quantile(0.001), quantile(0.5), quantile(0.99), quantile(1.0)],
            [1, 1, 500, 990, 1000]
        );
        assert_eq!(histogram.mean(), 500.5);
    }
}
