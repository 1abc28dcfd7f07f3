//! Paths of packets: the path with the fewest links, or an explicit one.
//!
//! Ties between shortest paths are resolved by node name, node by node from the sender; between parallel links, by
//! link name. Hosts do not forward. Paths do not change when a link fails.

use super::{Hop, NodeKind};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Path, or `None` if there is none.
type ShortestPath = Option<Rc<[Hop]>>;

/// Adjacency of nodes. Nodes and links are indices in the order of their names.
pub(crate) struct NodeAdjacency {
    forwards: Vec<bool>,
    /// Neighbors of each node in order, each with the first link to it.
    neighbors: Vec<Vec<(usize, Hop)>>,
    /// Shortest paths found so far.
    known: RefCell<BTreeMap<(usize, usize), ShortestPath>>,
}

/// Reason why an explicit path is invalid.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ExplicitPathError {
    /// The node at this position has no link to the one before.
    NotAdjacent(usize),
    /// The node at this position occurs earlier on the path.
    Loop(usize),
    /// The node at this position is a host, and not an end of the path.
    HostInTheMiddle(usize),
}

impl NodeAdjacency {
    pub fn new(kinds: &[NodeKind], links: impl IntoIterator<Item = (usize, [usize; 2])>) -> NodeAdjacency {
        let mut neighbors = vec![Vec::new(); kinds.len()];
        for (link, ends) in links {
            neighbors[ends[0]].push((ends[1], Hop { link, direction: 0 }));
            neighbors[ends[1]].push((ends[0], Hop { link, direction: 1 }));
        }
        for list in &mut neighbors {
            list.sort();
            list.dedup_by_key(|(node, _)| *node);
        }
        let forwards = kinds.iter().map(|k| *k != NodeKind::Host).collect();
        NodeAdjacency { forwards, neighbors, known: RefCell::default() }
    }

    /// Returns the nodes with a link to a node.
    pub fn neighbors(&self, node: usize) -> impl Iterator<Item = usize> {
        self.neighbors[node].iter().map(|(neighbor, _)| *neighbor)
    }

    /// Returns the shortest path, or `None` if there is none.
    pub fn shortest(&self, from: usize, to: usize) -> ShortestPath {
        self.known.borrow_mut().entry((from, to)).or_insert_with(|| self.search(from, to)).clone()
    }

    fn search(&self, from: usize, to: usize) -> ShortestPath {
        let mut distance = vec![usize::MAX; self.neighbors.len()];
        distance[to] = 0;
        let mut queue = VecDeque::from([to]);
        while let Some(node) = queue.pop_front() {
            for &(neighbor, _) in &self.neighbors[node] {
                if distance[neighbor] == usize::MAX {
                    distance[neighbor] = distance[node] + 1;
                    if self.forwards[neighbor] {
                        queue.push_back(neighbor);
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
            let next = self.neighbors[node].iter().find(|(neighbor, _)| {
                distance[*neighbor] == distance[node] - 1 && (self.forwards[*neighbor] || *neighbor == to)
            });
            let (neighbor, hop) = *next.expect("a node nearer to the destination");
            path.push(hop);
            node = neighbor;
        }
        Some(path.into())
    }

    /// Returns the path through exactly these nodes.
    pub fn explicit(&self, nodes: &[usize]) -> Result<Vec<Hop>, ExplicitPathError> {
        let mut path = Vec::with_capacity(nodes.len().saturating_sub(1));
        for position in 1..nodes.len() {
            let (node, next) = (nodes[position - 1], nodes[position]);
            if nodes[..position].contains(&next) {
                return Err(ExplicitPathError::Loop(position));
            }
            if position + 1 < nodes.len() && !self.forwards[next] {
                return Err(ExplicitPathError::HostInTheMiddle(position));
            }
            match self.neighbors[node].iter().find(|(neighbor, _)| *neighbor == next) {
                Some((_, hop)) => path.push(*hop),
                None => return Err(ExplicitPathError::NotAdjacent(position)),
            }
        }
        Ok(path)
    }
}

/// Returns the path in the opposite direction over the same links.
pub(crate) fn reversed(path: &[Hop]) -> Vec<Hop> {
    path.iter().rev().map(|hop| Hop { link: hop.link, direction: 1 - hop.direction }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use NodeKind::{Host, Router};

    /// h0 connected to r1 and r2, both connected to r3, r3 connected to h4; two links from r1 to r3.
    fn diamond() -> NodeAdjacency {
        let links = [[0, 1], [0, 2], [1, 3], [3, 1], [2, 3], [3, 4]];
        NodeAdjacency::new(&[Host, Router, Router, Router, Host], links.into_iter().enumerate())
    }

    #[test]
    fn ties_are_resolved_by_name() {
        let path = diamond().shortest(0, 4).unwrap();
        let hop = |link, direction| Hop { link, direction };
        assert_eq!(*path, [hop(0, 0), hop(2, 0), hop(5, 0)]);
        assert_eq!(reversed(&path), [hop(5, 1), hop(2, 1), hop(0, 1)]);
        assert_eq!(*diamond().shortest(4, 0).unwrap(), reversed(&path));
    }

    #[test]
    fn hosts_do_not_forward() {
        let chain = NodeAdjacency::new(&[Router, Host, Router], [(0, [0, 1]), (1, [1, 2])]);
        assert_eq!(chain.shortest(0, 2), None);
        assert!(chain.shortest(0, 1).is_some());
        assert_eq!(chain.explicit(&[0, 1, 2]), Err(ExplicitPathError::HostInTheMiddle(1)));
    }

    #[test]
    fn explicit_paths_are_checked() {
        let topology = diamond();
        assert!(topology.explicit(&[0, 2, 3, 4]).is_ok());
        assert_eq!(topology.explicit(&[0, 3, 4]), Err(ExplicitPathError::NotAdjacent(1)));
        assert_eq!(topology.explicit(&[0, 1, 3, 1, 3, 4]), Err(ExplicitPathError::Loop(3)));
    }
}
