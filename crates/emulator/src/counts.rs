//! What one direction of a link counts, in bins of the measure interval: the simulator's
//! counts, with its edges (a moment at the edge of two bins belongs to the later one).

use netstage_core::time::{Duration, Instant};

/// The bins of a run.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Width of a bin.
    pub interval: Duration,
    /// Number of whole bins; what falls behind the last is not recorded.
    pub bins: usize,
}

impl Grid {
    /// The bins of a run of this length.
    pub fn new(interval: Duration, duration: Duration) -> Grid {
        Grid { interval, bins: (duration.0 / interval.0) as usize }
    }

    /// Where bin `index` ends; never for what is behind the last.
    fn end(self, index: usize) -> Instant {
        if index < self.bins { Instant((index as u64 + 1) * self.interval.0) } else { Instant::NEVER }
    }
}

/// One sum per bin.
#[derive(Clone, Debug)]
pub struct Bins {
    values: Vec<u64>,
    grid: Grid,
}

impl Bins {
    /// All zero.
    pub fn new(grid: Grid) -> Bins {
        Bins { values: vec![0; grid.bins], grid }
    }

    /// Adds to the bin of `time`.
    #[inline]
    pub fn add(&mut self, time: Instant, amount: u64) {
        if let Some(value) = self.values.get_mut((time.0 / self.grid.interval.0) as usize) {
            *value += amount;
        }
    }

    /// Adds `weight` for each nanosecond of [from, to), split at the edges of bins.
    pub fn spread(&mut self, from: Instant, to: Instant, weight: u64) {
        let mut start = from;
        let mut bin = (from.0 / self.grid.interval.0) as usize;
        while start < to && bin < self.values.len() {
            let end = to.min(self.grid.end(bin));
            self.values[bin] += end.since(start).0 * weight;
            (start, bin) = (end, bin + 1);
        }
    }

    /// The sum of a bin.
    pub fn of(&self, bin: usize) -> u64 {
        self.values.get(bin).copied().unwrap_or(0)
    }

    /// The sums.
    pub fn into_values(self) -> Vec<u64> {
        self.values
    }
}

/// From a total that only grows, what it grew by in each bin.
#[derive(Clone, Debug)]
pub struct Growth {
    values: Vec<u64>,
    before: u64,
}

impl Growth {
    /// Nothing yet.
    pub fn new(grid: Grid) -> Growth {
        Growth { values: Vec::with_capacity(grid.bins), before: 0 }
    }

    /// The next bin ended with this total.
    pub fn close(&mut self, total: u64) {
        self.values.push(total - self.before);
        self.before = total;
    }

    /// The growth in a bin; none before it is closed.
    pub fn of(&self, bin: usize) -> u64 {
        self.values.get(bin).copied().unwrap_or(0)
    }

    /// The growth in each bin closed so far.
    pub fn into_values(self) -> Vec<u64> {
        self.values
    }
}

/// The edges of bins, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Edges {
    grid: Grid,
    bin: usize,
}

impl Edges {
    /// From the end of the first bin on.
    pub fn new(grid: Grid) -> Edges {
        Edges { grid, bin: 0 }
    }

    /// The next edge; never after the last.
    #[inline]
    pub fn next(&self) -> Instant {
        self.grid.end(self.bin)
    }

    /// It is past.
    pub fn pass(&mut self) {
        self.bin += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: Grid = Grid { interval: Duration(10), bins: 3 };

    #[test]
    fn spans_are_split_exactly_at_the_edges() {
        let mut bins = Bins::new(GRID);
        for (from, to) in [(4, 25), (26, 28), (28, 99)] {
            bins.spread(Instant(from), Instant(to), 1);
        }
        assert_eq!(bins.into_values(), [6, 10, 5 + 2 + 2]);
    }

    #[test]
    fn an_edge_belongs_to_the_later_bin() {
        let mut bins = Bins::new(GRID);
        for (time, amount) in [(9, 1), (10, 2), (30, 4), (1_000_000, 8)] {
            bins.add(Instant(time), amount);
        }
        assert_eq!(bins.into_values(), [1, 2, 0]);
    }

    #[test]
    fn growth_is_per_bin_and_edges_end() {
        let (mut growth, mut edges) = (Growth::new(GRID), Edges::new(GRID));
        for total in [5, 5, 9] {
            assert!(edges.next() < Instant::NEVER);
            growth.close(total);
            edges.pass();
        }
        assert_eq!((growth.into_values(), edges.next()), (vec![5, 0, 4], Instant::NEVER));
    }
}
