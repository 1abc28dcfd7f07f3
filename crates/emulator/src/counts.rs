//! Counters in bins of the measure interval. As in the simulator, the time at the edge of two bins belongs to the
//! later bin.

use netstage_core::time::{Duration, Instant};

/// Bins of a run.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Width of a bin.
    pub interval: Duration,
    /// Number of whole bins. Events after the last one are not recorded.
    pub bins: usize,
}

impl Grid {
    /// Returns the bins of a run of this length.
    pub fn new(interval: Duration, duration: Duration) -> Grid {
        Grid { interval, bins: (duration.0 / interval.0) as usize }
    }

    /// Returns the end of bin `index`; [`Instant::NEVER`] after the last one.
    fn end(self, index: usize) -> Instant {
        if index < self.bins { Instant((index as u64 + 1) * self.interval.0) } else { Instant::NEVER }
    }
}

/// Sum per bin.
#[derive(Clone, Debug)]
pub struct BinSums {
    values: Vec<u64>,
    grid: Grid,
}

impl BinSums {
    /// Creates bins with zero sums.
    pub fn new(grid: Grid) -> BinSums {
        BinSums { values: vec![0; grid.bins], grid }
    }

    /// Adds `amount` to the bin of `time`.
    #[inline]
    pub fn add(&mut self, time: Instant, amount: u64) {
        if let Some(value) = self.values.get_mut((time.0 / self.grid.interval.0) as usize) {
            *value += amount;
        }
    }

    /// Adds `weight` for each nanosecond of [from, to), split at the bin edges.
    pub fn spread(&mut self, from: Instant, to: Instant, weight: u64) {
        let mut start = from;
        let mut bin = (from.0 / self.grid.interval.0) as usize;
        while start < to && bin < self.values.len() {
            let end = to.min(self.grid.end(bin));
            self.values[bin] += end.since(start).0 * weight;
            (start, bin) = (end, bin + 1);
        }
    }

    /// Returns the sum of a bin.
    pub fn of(&self, bin: usize) -> u64 {
        self.values.get(bin).copied().unwrap_or(0)
    }

    /// Returns all sums.
    pub fn into_values(self) -> Vec<u64> {
        self.values
    }
}

/// Increase of a cumulative counter per bin.
#[derive(Clone, Debug)]
pub struct CounterBins {
    values: Vec<u64>,
    before: u64,
}

impl CounterBins {
    /// Creates a counter at zero.
    pub fn new(grid: Grid) -> CounterBins {
        CounterBins { values: Vec::with_capacity(grid.bins), before: 0 }
    }

    /// Closes the next bin, at whose end the counter is `total`.
    pub fn close(&mut self, total: u64) {
        self.values.push(total - self.before);
        self.before = total;
    }

    /// Returns the increase in a bin; 0 before it is closed.
    pub fn of(&self, bin: usize) -> u64 {
        self.values.get(bin).copied().unwrap_or(0)
    }

    /// Returns the increase in each closed bin.
    pub fn into_values(self) -> Vec<u64> {
        self.values
    }
}

/// Cursor over the edges of the bins.
#[derive(Clone, Copy, Debug)]
pub struct Edges {
    grid: Grid,
    bin: usize,
}

impl Edges {
    /// Starts at the end of the first bin.
    pub fn new(grid: Grid) -> Edges {
        Edges { grid, bin: 0 }
    }

    /// Returns the next edge; [`Instant::NEVER`] after the last one.
    #[inline]
    pub fn next(&self) -> Instant {
        self.grid.end(self.bin)
    }

    /// Advances to the following edge.
    pub fn advance(&mut self) {
        self.bin += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: Grid = Grid { interval: Duration(10), bins: 3 };

    #[test]
    fn spans_are_split_exactly_at_the_edges() {
        let mut bins = BinSums::new(GRID);
        for (from, to) in [(4, 25), (26, 28), (28, 99)] {
            bins.spread(Instant(from), Instant(to), 1);
        }
        assert_eq!(bins.into_values(), [6, 10, 5 + 2 + 2]);
    }

    #[test]
    fn an_edge_belongs_to_the_later_bin() {
        let mut bins = BinSums::new(GRID);
        for (time, amount) in [(9, 1), (10, 2), (30, 4), (1_000_000, 8)] {
            bins.add(Instant(time), amount);
        }
        assert_eq!(bins.into_values(), [1, 2, 0]);
    }

    #[test]
    fn increases_are_per_bin_and_edges_end() {
        let (mut growth, mut edges) = (CounterBins::new(GRID), Edges::new(GRID));
        for total in [5, 5, 9] {
            assert!(edges.next() < Instant::NEVER);
            growth.close(total);
            edges.advance();
        }
        assert_eq!((growth.into_values(), edges.next()), (vec![5, 0, 4], Instant::NEVER));
    }
}
