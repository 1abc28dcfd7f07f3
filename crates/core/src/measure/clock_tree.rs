//! Offsets among many clocks: a tree of the exchanges with the smallest errors, and the offset of any two
//! clocks along it.
//!
//! Two hosts on one link know each other's clocks to microseconds. A remote controller knows both only within
//! its round trip, yet the offsets it hands to the two hosts must agree with each other.

use super::ClockOffset;
use alloc::vec;
use alloc::vec::Vec;

/// Measured offset between two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownOffset {
    /// Clock of the requester.
    pub from: usize,
    /// Clock of the responder.
    pub to: usize,
    /// `to` minus `from`.
    pub offset: ClockOffset,
}

/// A tree of clocks; clock 0 is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockTree {
    /// Parent of each clock, and the offset from the parent; the root is its own parent.
    parents: Vec<(usize, ClockOffset)>,
    /// Number of exchanges from the root.
    depths: Vec<u32>,
    /// Offsets from the root.
    offsets: Vec<ClockOffset>,
}

impl ClockTree {
    /// Builds the minimum spanning tree of `clocks` clocks by error (Kruskal). The largest error on the path
    /// between two clocks is then the smallest possible. Clocks that cannot be reached have an unbounded
    /// error.
    pub fn new(clocks: usize, known: &[KnownOffset]) -> ClockTree {
        let mut by_error: Vec<&KnownOffset> = known.iter().collect();
        by_error.sort_by_key(|known| known.offset.error_ns);
        let mut sets: Vec<usize> = (0..clocks).collect();
        let mut neighbors: Vec<Vec<(usize, ClockOffset)>> = vec![Vec::new(); clocks];
        for &&KnownOffset { from, to, offset } in &by_error {
            let (one, other) = (representative(&mut sets, from), representative(&mut sets, to));
            if one != other {
                sets[one] = other;
                neighbors[from].push((to, offset));
                neighbors[to].push((from, offset.reversed()));
            }
        }
        let unknown = ClockOffset { offset_ns: 0, error_ns: u64::MAX, same_clock: false };
        let mut tree = ClockTree {
            parents: vec![(0, unknown); clocks],
            depths: vec![1; clocks],
            offsets: vec![unknown; clocks],
        };
        let mut reached: Vec<usize> = (0..clocks.min(1)).collect();
        for &root in &reached {
            tree.parents[root] = (root, ClockOffset::SAME_CLOCK);
            tree.depths[root] = 0;
            tree.offsets[root] = ClockOffset::SAME_CLOCK;
        }
        while let Some(clock) = reached.pop() {
            for &(next, offset) in &neighbors[clock] {
                if next != tree.parents[clock].0 {
                    tree.parents[next] = (clock, offset);
                    tree.depths[next] = tree.depths[clock] + 1;
                    tree.offsets[next] = tree.offsets[clock].chain(offset);
                    reached.push(next);
                }
            }
        }
        tree
    }

    /// Returns the offset of a clock from the root: `clock` minus root.
    pub fn offset(&self, clock: usize) -> ClockOffset {
        self.offsets[clock]
    }

    /// Returns the offset from one clock to another, using only the exchanges on the path between them.
    pub fn between(&self, from: usize, to: usize) -> ClockOffset {
        let (mut up, mut down) = (ClockOffset::SAME_CLOCK, ClockOffset::SAME_CLOCK);
        let (mut first, mut second) = (from, to);
        while first != second {
            if self.depths[first] >= self.depths[second] {
                let (parent, offset) = self.parents[first];
                up = up.chain(offset.reversed());
                first = parent;
            } else {
                let (parent, offset) = self.parents[second];
                down = offset.chain(down);
                second = parent;
            }
        }
        up.chain(down)
    }
}

/// Returns the representative of the set that contains a clock (union-find).
fn representative(sets: &mut [usize], mut clock: usize) -> usize {
    while sets[clock] != clock {
        sets[clock] = sets[sets[clock]];
        clock = sets[clock];
    }
    clock
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;

    fn known(from: usize, to: usize, offset_ns: i64, error_ns: u64) -> KnownOffset {
        KnownOffset { from, to, offset: ClockOffset { offset_ns, error_ns, same_clock: false } }
    }

    #[test]
    fn neighbors_agree_despite_a_distant_controller() {
        // Both clocks are 20 ms from the controller, with an error of the same size, and 50 us from each
        // other.
        let tree = ClockTree::new(
            3,
            &[
                known(0, 1, 1_020_000_000, 20_000_000),
                known(0, 2, 5_000_000_000, 21_000_000),
                known(1, 2, 4_000_010_000, 50_000),
            ],
        );
        let ClockOffset { offset_ns, error_ns, .. } = tree.between(1, 2);
        assert_eq!((offset_ns, error_ns), (4_000_010_000, 50_000));
        // The offsets from the controller differ by the same amount, so both hosts start at the same time.
        assert_eq!(tree.offset(2).offset_ns - tree.offset(1).offset_ns, 4_000_010_000);
        assert_eq!(tree.offset(2).error_ns, 20_050_000);
        assert_eq!(tree.between(2, 1), tree.between(1, 2).reversed());
        assert_eq!(tree.between(1, 1), ClockOffset::SAME_CLOCK);
    }

    #[test]
    fn unreachable_clock_has_unbounded_error() {
        let tree = ClockTree::new(3, &[known(0, 1, 5, 1)]);
        assert_eq!(tree.offset(2).error_ns, u64::MAX);
        assert_eq!(tree.between(2, 1).error_ns, u64::MAX);
        assert_eq!(ClockTree::new(1, &[]).offset(0), ClockOffset::SAME_CLOCK);
    }

    #[test]
    fn true_offset_of_random_clocks_is_within_the_error_bound() {
        let mut rng = RandomStream::new(7, "clocks");
        for _ in 0..200 {
            let clocks = 2 + rng.below(12) as usize;
            let truth: Vec<i64> = (0..clocks).map(|_| rng.below(2_000_000) as i64 - 1_000_000).collect();
            let mut exchange = |from: usize, to: usize| {
                let error = rng.below(5_000);
                let wrong = rng.below(2 * error + 1) as i64 - error as i64;
                known(from, to, truth[to] - truth[from] + wrong, error)
            };
            let mut all: Vec<KnownOffset> = (1..clocks).map(|to| exchange(0, to)).collect();
            for from in 1..clocks {
                all.extend((from + 1..clocks).filter(|to| (from + to) % 2 == 0).map(|to| exchange(from, to)));
            }
            let tree = ClockTree::new(clocks, &all);
            for from in 0..clocks {
                for to in 0..clocks {
                    let offset = tree.between(from, to);
                    let wrong = offset.offset_ns.abs_diff(truth[to] - truth[from]);
                    assert!(wrong <= offset.error_ns, "{from} to {to}: {offset:?}");
                }
            }
        }
    }
}
