//! Sums per time interval, filled in chronological order.

use netstage_core::time::{Duration, Instant};

/// Time intervals (bins) of a run.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Duration of a bin.
    pub interval: Duration,
    /// Number of whole bins; later values are not recorded.
    pub bins: usize,
}

/// One sum per bin. Values must be added in chronological order.
#[derive(Clone, Debug)]
pub struct BinnedSum {
    values: Vec<u64>,
    interval: u64,
    at: usize,
    end: u64,
}

impl BinnedSum {
    /// Creates bins of zero.
    pub fn new(grid: Grid) -> BinnedSum {
        // One extra bin for values after the last whole bin.
        BinnedSum { values: vec![0; grid.bins + 1], interval: grid.interval.0, at: 0, end: grid.interval.0 }
    }

    #[inline]
    fn seek(&mut self, time: u64) {
        while time >= self.end {
            if self.at + 1 == self.values.len() {
                self.end = u64::MAX;
                return;
            }
            self.at += 1;
            self.end += self.interval;
        }
    }

    /// Adds an amount to the bin of `time`.
    #[inline]
    pub fn add(&mut self, time: Instant, amount: u64) {
        self.seek(time.0);
        self.values[self.at] += amount;
    }

    /// Returns the whole bins, converted to floats and multiplied by `scale`.
    pub fn scaled(&self, scale: f64) -> Vec<f64> {
        self.values[..self.values.len() - 1].iter().map(|value| *value as f64 * scale).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_after_the_last_bin_are_left_out() {
        let mut bins = BinnedSum::new(Grid { interval: Duration(10), bins: 2 });
        bins.add(Instant(9), 1);
        bins.add(Instant(10), 2);
        bins.add(Instant(20), 4);
        bins.add(Instant(1_000_000), 8);
        assert_eq!(bins.scaled(1.0), [1.0, 2.0]);
    }
}
