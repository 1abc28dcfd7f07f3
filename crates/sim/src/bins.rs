//! Sums per interval of time, filled in order of time.

use netstage_core::time::{Duration, Instant};

/// The intervals of a run.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Width of a bin.
    pub interval: Duration,
    /// Number of whole bins; what falls behind the last is not recorded.
    pub bins: usize,
}

/// One sum per bin. Times may only grow.
#[derive(Clone, Debug)]
pub struct Bins {
    values: Vec<u64>,
    interval: u64,
    at: usize,
    end: u64,
}

impl Bins {
    /// All zero.
    pub fn new(grid: Grid) -> Bins {
        // One more bin takes what happens after the last whole one.
        Bins { values: vec![0; grid.bins + 1], interval: grid.interval.0, at: 0, end: grid.interval.0 }
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

    /// Adds to the bin of `time`.
    #[inline]
    pub fn add(&mut self, time: Instant, amount: u64) {
        self.seek(time.0);
        self.values[self.at] += amount;
    }

    /// The whole bins, each turned into a float by `scale`.
    pub fn scaled(&self, scale: f64) -> Vec<f64> {
        self.values[..self.values.len() - 1].iter().map(|value| *value as f64 * scale).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_after_the_last_bin_is_left_out() {
        let mut bins = Bins::new(Grid { interval: Duration(10), bins: 2 });
        bins.add(Instant(9), 1);
        bins.add(Instant(10), 2);
        bins.add(Instant(20), 4);
        bins.add(Instant(1_000_000), 8);
        assert_eq!(bins.scaled(1.0), [1.0, 2.0]);
    }
}
