//! The event queue: which of a fixed set of sources acts next.
//!
//! Packets wait in their link's ring, in order, so only the head of each ring and one
//! timer per endpoint compete. A winner tree over these finds the earliest in log₂ n
//! comparisons; equal times go to the lower index, whatever was inserted first.

use netstage_core::time::Instant;

/// The earliest of `n` keys.
#[derive(Clone, Debug)]
pub struct Tournament {
    /// Node 1 is the root; leaves start at `leaves`. Each holds its winner: time above
    /// index in one number, so that one comparison settles both.
    nodes: Vec<u128>,
    leaves: usize,
}

fn entry(at: Instant, index: u32) -> u128 {
    u128::from(at.0) << 32 | u128::from(index)
}

impl Tournament {
    /// `n` sources, none of which has anything to do.
    pub fn new(n: usize) -> Tournament {
        let leaves = n.next_power_of_two().max(2);
        let leftmost_leaf = |node: usize| ((node << (leaves.ilog2() - node.ilog2())) - leaves) as u32;
        let nodes = (0..2 * leaves).map(|node| entry(Instant::NEVER, leftmost_leaf(node.max(1))));
        Tournament { nodes: nodes.collect(), leaves }
    }

    /// The earliest source and its time.
    #[inline]
    pub fn first(&self) -> (Instant, u32) {
        (Instant((self.nodes[1] >> 32) as u64), self.nodes[1] as u32)
    }

    /// Source `index` acts at `at`; [`Instant::NEVER`] takes it out.
    #[inline]
    pub fn set(&mut self, index: u32, at: Instant) {
        let mut node = self.leaves + index as usize;
        let mut winner = entry(at, index);
        self.nodes[node] = winner;
        while node > 1 {
            winner = winner.min(self.nodes[node ^ 1]);
            node /= 2;
            if self.nodes[node] == winner {
                return;
            }
            self.nodes[node] = winner;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rng::Stream;

    #[test]
    fn always_yields_the_earliest_and_breaks_ties_by_index() {
        let mut stream = Stream::new(3, "tournament");
        for n in [1usize, 2, 3, 7, 64, 100] {
            let mut tournament = Tournament::new(n);
            let mut keys = vec![Instant::NEVER; n];
            for _ in 0..2_000 {
                let index = (stream.next_u64() % n as u64) as usize;
                let at = match stream.next_u64() % 20 {
                    0 => Instant::NEVER,
                    other => Instant(other),
                };
                keys[index] = at;
                tournament.set(index as u32, at);
                let earliest = keys.iter().enumerate().map(|(i, at)| (*at, i as u32)).min().unwrap();
                if earliest.0 == Instant::NEVER {
                    assert_eq!(tournament.first().0, Instant::NEVER);
                } else {
                    assert_eq!(tournament.first(), earliest);
                }
            }
        }
    }
}
