//! A histogram of durations or other whole numbers over the whole range of `u64`, with
//! three significant digits: buckets as wide as those of HdrHistogram
//! (<http://hdrhistogram.org>) at that precision, so that two histograms add without loss
//! wherever they were taken.
//!
//! Values below 2048 have a bucket each; above, every octave is divided into 1024 buckets,
//! so that a value differs from its bucket's middle by less than 0.05 %.

use alloc::vec;
use alloc::vec::Vec;

/// Buckets of an octave, as a power of two.
const OCTAVE_BITS: u32 = 10;
const OCTAVE: usize = 1 << OCTAVE_BITS;

/// Counts of values. An octave takes memory once a value falls into it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Counts of the buckets of each octave, or nothing where none was hit; the first two
    /// hold 0 to 2047.
    octaves: Vec<Vec<u64>>,
    count: u64,
}

/// Octave and place in it of a value's bucket.
fn place(value: u64) -> (usize, usize) {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(OCTAVE_BITS + 1);
    let index = (value >> shift) as usize;
    (shift as usize + index / OCTAVE, index % OCTAVE)
}

/// The middle of a bucket, rounded down.
fn middle(octave: usize, place: usize) -> u64 {
    let shift = octave.saturating_sub(1);
    let index = if octave == 0 { place } else { OCTAVE + place };
    ((index as u64) << shift) + ((1u64 << shift) >> 1)
}

/// The value that stands for all that fall into the bucket of `value`: the bucket's middle.
pub fn rounded(value: u64) -> u64 {
    let (octave, place) = place(value);
    middle(octave, place)
}

impl Histogram {
    /// Counts a value.
    pub fn record(&mut self, value: u64) {
        self.record_many(value, 1);
    }

    /// Counts a value several times.
    pub fn record_many(&mut self, value: u64, times: u64) {
        if times == 0 {
            return;
        }
        let (octave, place) = place(value);
        if self.octaves.len() <= octave {
            self.octaves.resize_with(octave + 1, Vec::new);
        }
        let counts = &mut self.octaves[octave];
        if counts.is_empty() {
            *counts = vec![0; OCTAVE];
        }
        counts[place] = counts[place].saturating_add(times);
        self.count = self.count.saturating_add(times);
    }

    /// Counts all that another counted.
    pub fn add(&mut self, buckets: &[(u64, u64)]) {
        for &(value, times) in buckets {
            self.record_many(value, times);
        }
    }

    /// Values counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The middles of the buckets that hold something, ascending, each with its count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.octaves.iter().enumerate().flat_map(|(octave, counts)| {
            let held = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            held.map(move |(place, &count)| (middle(octave, place), count))
        })
    }

    /// The smallest value that at least a share `q` of all does not exceed; none where
    /// nothing was counted.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let rank = libm::ceil(q * self.count as f64).clamp(1.0, self.count.max(1) as f64) as u64;
        let mut below = 0u64;
        self.buckets()
            .find(|&(_, count)| {
                below = below.saturating_add(count);
                below >= rank
            })
            .map(|(value, _)| value)
    }

    /// The mean; NaN where nothing was counted.
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.buckets().map(|(value, count)| value as f64 * count as f64).sum();
        sum / self.count as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;
    use alloc::collections::BTreeMap;

    #[test]
    fn every_value_is_near_the_middle_of_its_bucket() {
        let mut stream = Stream::new(1, "values");
        let random = (0..100_000).map(|k| (stream.uniform() * (1u64 << (k % 64)) as f64) as u64);
        let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for value in random.chain(edges).chain([u64::MAX]) {
            let middle = rounded(value);
            // Half a bucket of the 1024 in an octave: 2⁻¹¹ of the value at most.
            assert!(middle.abs_diff(value) <= value >> 11, "{value} becomes {middle}");
            assert_eq!(rounded(middle), middle, "{value}");
        }
        assert!((0..2048).all(|value| rounded(value) == value));
    }

    #[test]
    fn buckets_ascend_add_up_and_are_those_of_hdr_histograms() {
        // HdrHistogram, three digits: 50 ms lies between 49,971,200 and 50,003,967 ns.
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
    fn quantiles_are_the_ordered_values() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
        assert!(histogram.mean().is_nan());
        (1..=1000).for_each(|value| histogram.record(value));
        let of = |q| histogram.quantile(q).unwrap();
        assert_eq!([of(0.0), of(0.001), of(0.5), of(0.99), of(1.0)], [1, 1, 500, 990, 1000]);
        assert_eq!(histogram.mean(), 500.5);
    }
}
