//! Exact timers for a fixed set of sources: finds the source that acts next, to the nanosecond.
//!
//! A tree holds the earliest time of each subtree of four nodes. Setting a timer and finding the earliest
//! one both take up to log₄ n steps. Equal times go to the lower index, regardless of the order in which
//! they were set. For a hundred thousand timers of a real clock, [`crate::wheel`] is cheaper.

use crate::time::Instant;
use alloc::vec;
use alloc::vec::Vec;

/// Index of the root. After it, siblings are adjacent and start at a multiple of four.
const ROOT: usize = 3;

/// A tournament tree over the times of `n` sources.
#[derive(Clone, Debug)]
pub struct Tournament {
    /// Earliest time of each subtree, from the root to the leaves.
    nodes: Vec<u64>,
    /// Index of the first leaf.
    leaves: usize,
}

impl Tournament {
    /// Creates a tree of `n` sources, none of which is scheduled.
    pub fn new(n: usize) -> Tournament {
        let (mut leaves, mut width) = (ROOT + 1, 4);
        while width < n {
            leaves += width;
            width *= 4;
        }
        Tournament { nodes: vec![Instant::NEVER.0; leaves + width], leaves }
    }

    /// Grows the tree to `n` sources; existing sources keep their times.
    pub fn grow(&mut self, n: usize) {
        if self.leaves + n <= self.nodes.len() {
            return;
        }
        let mut larger = Tournament::new(n);
        for (index, at) in self.nodes[self.leaves..].iter().enumerate() {
            larger.set(index as u32, Instant(*at));
        }
        *self = larger;
    }

    /// Returns the time of the earliest source, or [`Instant::NEVER`] if none is scheduled.
    #[inline]
    pub fn first_time(&self) -> Instant {
        Instant(self.nodes[ROOT])
    }

    /// Returns the index of the earliest source.
    #[inline]
    pub fn first(&self) -> u32 {
        let (at, mut node) = (self.nodes[ROOT], ROOT);
        while node < self.leaves {
            let children = 4 * (node - ROOT) + ROOT + 1;
            let [first, second, third, _] = *self.four(children);
            let before = usize::from(first != at);
            let further = before & usize::from(second != at);
            node = children + before + further + (further & usize::from(third != at));
        }
        (node - self.leaves) as u32
    }

    /// Schedules source `index` for `at`; [`Instant::NEVER`] removes it.
    #[inline]
    pub fn set(&mut self, index: u32, at: Instant) {
        let mut node = self.leaves + index as usize;
        self.nodes[node] = at.0;
        while node > ROOT {
            let [first, second, third, fourth] = *self.four(node & !3);
            let earliest = first.min(second).min(third.min(fourth));
            node = node / 4 + ROOT - 1;
            if self.nodes[node] == earliest {
                return;
            }
            self.nodes[node] = earliest;
        }
    }

    #[inline]
    fn four(&self, from: usize) -> &[u64; 4] {
        self.nodes[from..].first_chunk().expect("siblings come in fours")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;

    #[test]
    fn always_yields_the_earliest_and_breaks_ties_by_index() {
        let mut stream = RandomStream::new(3, "tournament");
        for n in [1usize, 2, 3, 7, 64, 100] {
            let mut tournament = Tournament::new(n);
            let mut keys = vec![Instant::NEVER; n];
            for step in 0..2_000 {
                if step == 1_000 {
                    tournament.grow(n + 50);
                }
                let index = (stream.next_u64() % n as u64) as usize;
                let at = match stream.next_u64() % 20 {
                    0 => Instant::NEVER,
                    other => Instant(other),
                };
                keys[index] = at;
                tournament.set(index as u32, at);
                let earliest = keys.iter().enumerate().map(|(i, at)| (*at, i as u32)).min().unwrap();
                assert_eq!(tournament.first_time(), earliest.0);
                if earliest.0 != Instant::NEVER {
                    assert_eq!(tournament.first(), earliest.1);
                }
            }
        }
    }
}
