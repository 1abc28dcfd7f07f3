//! An ordered set of disjoint byte ranges, for the receiver's reassembly queue and the sender's scoreboard.

use alloc::collections::VecDeque;

/// Bytes from `start` to `end`, exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub start: u64,
    pub end: u64,
}

impl Range {
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Returns the number of bytes below `bound`.
    pub fn below(self, bound: u64) -> u64 {
        self.end.min(bound).saturating_sub(self.start)
    }
}

/// Disjoint ranges that do not touch, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(VecDeque<Range>);

impl Ranges {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn first(&self) -> Option<Range> {
        self.0.front().copied()
    }

    pub fn last(&self) -> Option<Range> {
        self.0.back().copied()
    }

    /// Returns the ranges in descending order.
    pub fn descending(&self) -> impl Iterator<Item = Range> + '_ {
        self.0.iter().rev().copied()
    }

    /// Returns the ranges that end above `seq`, in ascending order.
    pub fn ending_above(&self, seq: u64) -> impl Iterator<Item = Range> + '_ {
        let first = self.0.partition_point(|r| r.end <= seq);
        self.0.range(first..).copied()
    }

    /// Adds a range and returns the range that now contains it. Calls `absorbed` with each range that it overlaps or
    /// touches.
    pub fn insert(&mut self, range: Range, mut absorbed: impl FnMut(Range)) -> Range {
        debug_assert!(range.start < range.end);
        let from = self.0.partition_point(|r| r.end < range.start);
        let mut whole = range;
        let mut to = from;
        while let Some(old) = self.0.get(to).filter(|r| r.start <= range.end) {
            absorbed(*old);
            whole = Range { start: whole.start.min(old.start), end: whole.end.max(old.end) };
            to += 1;
        }
        if from == to {
            self.0.insert(from, whole);
        } else {
            self.0[from] = whole;
            if to > from + 1 {
                self.0.drain(from + 1..to);
            }
        }
        whole
    }

    /// Removes everything below `bound` and calls `removed` with each removed piece.
    pub fn remove_below(&mut self, bound: u64, mut removed: impl FnMut(Range)) {
        while let Some(first) = self.0.front_mut() {
            if first.start >= bound {
                break;
            }
            let end = first.end.min(bound);
            removed(Range { start: first.start, end });
            if first.end > bound {
                first.start = bound;
                break;
            }
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn inserting_merges_overlapping_and_adjacent_ranges() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (30, 40), (50, 60)] {
            assert_eq!(ranges.insert(range(start, end), |_| panic!("disjoint")), range(start, end));
        }
        let mut absorbed = Vec::new();
        assert_eq!(ranges.insert(range(20, 50), |r| absorbed.push(r)), range(10, 60));
        assert_eq!(absorbed, [range(10, 20), range(30, 40), range(50, 60)]);
        assert_eq!(ranges.insert(range(15, 16), |_| ()), range(10, 60));
        assert_eq!(ranges.descending().collect::<Vec<_>>(), [range(10, 60)]);
    }

    #[test]
    fn removing_trims_and_reports_ranges() {
        let mut ranges = Ranges::default();
        ranges.insert(range(10, 20), |_| ());
        ranges.insert(range(30, 40), |_| ());
        let mut bytes = 0;
        ranges.remove_below(35, |r| bytes += r.len());
        assert_eq!(bytes, 15);
        assert_eq!(ranges.first(), Some(range(35, 40)));
        assert_eq!(ranges.ending_above(40).count(), 0);
    }
}
