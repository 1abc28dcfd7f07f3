//! Timers without granularity: which of a fixed set of sources acts next, to the nanosecond.
//!
//! A tree holds the earliest time of each subtree of four; setting a timer costs up to log₄ n
//! steps, and so does finding whose the earliest one is. Equal times go to the lower index,
//! whatever was set first. For a hundred thousand timers of a real clock [`crate::wheel`] is cheaper.

use crate::time::Instant;
use alloc::vec;
use alloc::vec::Vec;

/// The root's place. From there on siblings lie together, at a multiple of four.
const ROOT: usize = 3;

/// The earliest of `n` times.
#[derive(Clone, Debug)]
pub struct Tournament {
    /// Earliest time of each subtree, from the root to the leaves.
    nodes: Vec<u64>,
    /// Where the leaves start.
    leaves: usize,
}

impl Tournament {
    /// `n` sources, none of which has anything to do.
    pub fn new(n: usize) -> Tournament {
        let (mut leaves, mut width) = (ROOT + 1, 4);
        while width < n {
            leaves += width;
            width *= 4;
        }
        Tournament { nodes: vec![Instant::NEVER.0; leaves + width], leaves }
    }

    /// Room for `n` sources; those that were there keep their times.
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

    /// The time of the earliest source; [`Instant::NEVER`] if none has anything to do.
    #[inline]
    pub fn first_time(&self) -> Instant {
        Instant(self.nodes[ROOT])
    }

    /// The earliest source.
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

    /// Source `index` acts at `at`; [`Instant::NEVER`] takes it out.
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
    use crate::rng::Stream;

    #[test]
    fn always_yields_the_earliest_and_breaks_ties_by_index() {
        let mut stream = Stream::new(3, "tournament");
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
