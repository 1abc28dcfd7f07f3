//! Many clocks, each known beside some others: the exchanges of smallest error between all of them, and what any
//! two are apart along these.
//!
//! Two hosts on one wire know each other's clocks to microseconds, and a controller far away knows neither
//! better than its round trip allows: what it tells both, is to agree between them.

use super::ClockOffset;
use alloc::vec;
use alloc::vec::Vec;

/// What one clock is known to be ahead of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The clock that asked.
    pub from: usize,
    /// The clock that answered.
    pub to: usize,
    /// The latter less the former.
    pub offset: ClockOffset,
}

/// A tree of clocks. The first is the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockTree {
    /// Of each clock, the one it is known by, and what it is ahead of that; its own for the root.
    parents: Vec<(usize, ClockOffset)>,
    /// Exchanges from the root.
    depths: Vec<u32>,
    /// From the root.
    offsets: Vec<ClockOffset>,
}

impl ClockTree {
    /// The tree of so many clocks whose errors are least in sum (Kruskal): no exchange on the way between two is
    /// then worse than any way between them must have. Clocks that nothing leads to, have an error without bound.
    pub fn new(clocks: usize, known: &[Known]) -> ClockTree {
        let mut by_error: Vec<&Known> = known.iter().collect();
        by_error.sort_by_key(|known| known.offset.error_ns);
        let mut sets: Vec<usize> = (0..clocks).collect();
        let mut neighbours: Vec<Vec<(usize, ClockOffset)>> = vec![Vec::new(); clocks];
        for &&Known { from, to, offset } in &by_error {
            let (one, other) = (representative(&mut sets, from), representative(&mut sets, to));
            if one != other {
                sets[one] = other;
                neighbours[from].push((to, offset));
                neighbours[to].push((from, offset.reversed()));
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
            for &(next, offset) in &neighbours[clock] {
                if next != tree.parents[clock].0 {
                    tree.parents[next] = (clock, offset);
                    tree.depths[next] = tree.depths[clock] + 1;
                    tree.offsets[next] = tree.offsets[clock].then(offset);
                    reached.push(next);
                }
            }
        }
        tree
    }

    /// A clock less the root.
    pub fn offset(&self, clock: usize) -> ClockOffset {
        self.offsets[clock]
    }

    /// One clock less another, by the exchanges that lie between them and no others.
    pub fn between(&self, from: usize, to: usize) -> ClockOffset {
        let (mut up, mut down) = (ClockOffset::SAME_CLOCK, ClockOffset::SAME_CLOCK);
        let (mut one, mut other) = (from, to);
        while one != other {
            if self.depths[one] >= self.depths[other] {
                let (parent, offset) = self.parents[one];
                up = up.then(offset.reversed());
                one = parent;
            } else {
                let (parent, offset) = self.parents[other];
                down = offset.then(down);
                other = parent;
            }
        }
        up.then(down)
    }
}

/// The clock that stands for all that are joined to one.
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
    use crate::rng::Stream;

    fn known(from: usize, to: usize, offset_ns: i64, error_ns: u64) -> Known {
        Known { from, to, offset: ClockOffset { offset_ns, error_ns, same_clock: false } }
    }

    #[test]
    fn neighbours_agree_however_far_the_controller_is() {
        // Both are 20 ms from the controller, which is wrong by all of that, and 50 us from each other.
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
        // What they are told, differs by as much: neither starts before the other.
        assert_eq!(tree.offset(2).offset_ns - tree.offset(1).offset_ns, 4_000_010_000);
        assert_eq!(tree.offset(2).error_ns, 20_050_000);
        assert_eq!(tree.between(2, 1), tree.between(1, 2).reversed());
        assert_eq!(tree.between(1, 1), ClockOffset::SAME_CLOCK);
    }

    #[test]
    fn a_clock_that_nothing_leads_to_is_not_known() {
        let tree = ClockTree::new(3, &[known(0, 1, 5, 1)]);
        assert_eq!(tree.offset(2).error_ns, u64::MAX);
        assert_eq!(tree.between(2, 1).error_ns, u64::MAX);
        assert_eq!(ClockTree::new(1, &[]).offset(0), ClockOffset::SAME_CLOCK);
    }

    #[test]
    fn the_truth_is_within_the_error_of_any_two_of_random_clocks() {
        let mut rng = Stream::new(7, "clocks");
        for _ in 0..200 {
            let clocks = 2 + rng.below(12) as usize;
            let truth: Vec<i64> = (0..clocks).map(|_| rng.below(2_000_000) as i64 - 1_000_000).collect();
            let mut exchange = |from: usize, to: usize| {
                let error = rng.below(5_000);
                let wrong = rng.below(2 * error + 1) as i64 - error as i64;
                known(from, to, truth[to] - truth[from] + wrong, error)
            };
            let mut all: Vec<Known> = (1..clocks).map(|to| exchange(0, to)).collect();
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
