//! The way packets take: the path with the fewest links, or a given one.
//!
//! Of several shortest paths, the one whose node names come first in order is taken, node
//! by node from the sender; of parallel links, the one whose name comes first. Hosts
//! forward nothing. Paths do not change when a link fails.

use super::{Hop, NodeKind};
use std::collections::VecDeque;

/// Who is joined to whom. Nodes and links are indices in the order of their names.
pub(crate) struct Topology {
    forwards: Vec<bool>,
    /// For each node its neighbours, each with the first link to it, in order.
    neighbours: Vec<Vec<(usize, Hop)>>,
}

/// Why there is no such path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoPath {
    /// Two nodes that follow each other, by their position in the list, have no link.
    NotAdjacent(usize),
    /// The node at this position was there before.
    Loop(usize),
    /// The node at this position is a host in the middle.
    HostInTheMiddle(usize),
}

impl Topology {
    pub fn new(kinds: &[NodeKind], links: impl IntoIterator<Item = (usize, [usize; 2])>) -> Topology {
        let mut neighbours = vec![Vec::new(); kinds.len()];
        for (link, ends) in links {
            neighbours[ends[0]].push((ends[1], Hop { link, direction: 0 }));
            neighbours[ends[1]].push((ends[0], Hop { link, direction: 1 }));
        }
        for list in &mut neighbours {
            list.sort();
            list.dedup_by_key(|(node, _)| *node);
        }
        Topology { forwards: kinds.iter().map(|k| *k != NodeKind::Host).collect(), neighbours }
    }

    /// The shortest path, or `None` where there is none.
    pub fn shortest(&self, from: usize, to: usize) -> Option<Vec<Hop>> {
        let mut distance = vec![usize::MAX; self.neighbours.len()];
        distance[to] = 0;
        let mut queue = VecDeque::from([to]);
        while let Some(node) = queue.pop_front() {
            for &(neighbour, _) in &self.neighbours[node] {
                if distance[neighbour] == usize::MAX {
                    distance[neighbour] = distance[node] + 1;
                    if self.forwards[neighbour] {
                        queue.push_back(neighbour);
                    }
                }
            }
        }
        if distance[from] == usize::MAX {
            return None;
        }
        let mut path = Vec::with_capacity(distance[from]);
        let mut node = from;
        while node != to {
            let next = self.neighbours[node].iter().find(|(neighbour, _)| {
                distance[*neighbour] == distance[node] - 1 && (self.forwards[*neighbour] || *neighbour == to)
            });
            let (neighbour, hop) = *next.expect("a node nearer to the destination");
            path.push(hop);
            node = neighbour;
        }
        Some(path)
    }

    /// The path through exactly these nodes.
    pub fn through(&self, nodes: &[usize]) -> Result<Vec<Hop>, NoPath> {
        let mut path = Vec::with_capacity(nodes.len().saturating_sub(1));
        for position in 1..nodes.len() {
            let (node, next) = (nodes[position - 1], nodes[position]);
            if nodes[..position].contains(&next) {
                return Err(NoPath::Loop(position));
            }
            if position + 1 < nodes.len() && !self.forwards[next] {
                return Err(NoPath::HostInTheMiddle(position));
            }
            match self.neighbours[node].iter().find(|(neighbour, _)| *neighbour == next) {
                Some((_, hop)) => path.push(*hop),
                None => return Err(NoPath::NotAdjacent(position)),
            }
        }
        Ok(path)
    }
}

/// The same links the other way.
pub(crate) fn mirrored(path: &[Hop]) -> Vec<Hop> {
    path.iter().rev().map(|hop| Hop { link: hop.link, direction: 1 - hop.direction }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use NodeKind::{Host, Router};

    /// h0 joined to r1 and r2, both joined to r3, r3 joined to h4; two links from r1 to r3.
    fn diamond() -> Topology {
        let links = [[0, 1], [0, 2], [1, 3], [3, 1], [2, 3], [3, 4]];
        Topology::new(&[Host, Router, Router, Router, Host], links.into_iter().enumerate())
    }

    #[test]
    fn ties_go_to_the_first_name() {
        let path = diamond().shortest(0, 4).unwrap();
        let hop = |link, direction| Hop { link, direction };
        assert_eq!(path, [hop(0, 0), hop(2, 0), hop(5, 0)]);
        assert_eq!(mirrored(&path), [hop(5, 1), hop(2, 1), hop(0, 1)]);
        assert_eq!(diamond().shortest(4, 0).unwrap(), mirrored(&path));
    }

    #[test]
    fn hosts_forward_nothing() {
        let chain = Topology::new(&[Router, Host, Router], [(0, [0, 1]), (1, [1, 2])]);
        assert_eq!(chain.shortest(0, 2), None);
        assert!(chain.shortest(0, 1).is_some());
        assert_eq!(chain.through(&[0, 1, 2]), Err(NoPath::HostInTheMiddle(1)));
    }

    #[test]
    fn given_paths_are_checked() {
        let topology = diamond();
        assert!(topology.through(&[0, 2, 3, 4]).is_ok());
        assert_eq!(topology.through(&[0, 3, 4]), Err(NoPath::NotAdjacent(1)));
        assert_eq!(topology.through(&[0, 1, 3, 1, 3, 4]), Err(NoPath::Loop(3)));
    }
}
