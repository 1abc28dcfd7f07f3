//! Loop-free alternates (RFC 5286): neighbors to which a router sends packets when a link or a neighbor fails, until the
//! routing protocol has calculated new paths. They are known before the failure, from the distances of the neighbors.
//! Where no neighbor is an alternate, another router may be one, to which a tunnel leads (remote alternates, RFC 7490 and
//! 8102).
//!
//! - [`graph`]: routers, LANs and destinations, and their distances.
//!
//! ```
//! use netstage_core::lfa::graph::Graph;
//! use netstage_core::lfa::{Adjacency, Alternates};
//!
//! // A square: the destination is two links away in both directions, one of which is better.
//! let mut graph = Graph::default();
//! let [here, left, right, far] = [0; 4].map(|_| graph.add_vertex());
//! for (a, b, cost) in [(here, left, 10), (left, far, 10), (here, right, 15), (right, far, 10)] {
//!     graph.add_edge(a, b, cost);
//!     graph.add_edge(b, a, cost);
//! }
//! let to = |neighbor, cost| Adjacency { neighbor, lan: None, cost };
//! let alternates = Alternates::new(&graph, here, vec![to(left, 10), to(right, 15)], &[]);
//! assert_eq!(alternates.primaries(far), [0]);
//! let alternate = alternates.of(0, far)[0];
//! assert_eq!(alternate.adjacency, 1);
//! assert!(alternate.protects_link && alternate.protects_neighbor);
//! ```
//!
//! Invariant: an alternate leads to the destination without this router, and without what it protects, while all other
//! routers forward as before the failure.

pub mod graph;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cmp::Reverse;
use graph::{Distances, Graph, Vertex};

/// Cost of links that carry no transit traffic (RFC 6987 section 2, MaxLinkMetric).
pub const MAX_LINK_METRIC: u32 = 0xffff;

/// Link of this router to a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adjacency {
    /// Vertex of the neighbor.
    pub neighbor: Vertex,
    /// Vertex of the LAN that connects them, if the link is not point-to-point.
    pub lan: Option<Vertex>,
    /// Cost of the link.
    pub cost: u32,
}

/// Alternate for packets that go to a neighbor before the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternate {
    /// Index of the adjacency.
    pub adjacency: usize,
    /// Router to which packets are tunneled over the adjacency; `None` if they are sent to the neighbor itself.
    pub tunnel: Option<Vertex>,
    /// The alternate can be used when the link has failed.
    pub protects_link: bool,
    /// The alternate can be used when the neighbor has failed.
    pub protects_neighbor: bool,
}

/// Distances that the alternates of a router depend on.
#[derive(Clone, Debug)]
pub struct Alternates {
    here: Vertex,
    adjacencies: Vec<Adjacency>,
    /// Routers to which packets can be tunneled.
    tunnels: Vec<Vertex>,
    from_here: Distances,
    /// Distances from the neighbors, their LANs, and the ends of tunnels.
    from: BTreeMap<Vertex, Distances>,
    /// Distances from here when a neighbor has failed.
    without: BTreeMap<Vertex, Distances>,
}

impl Alternates {
    /// Calculates the distances for the router `here` with these adjacencies. It can tunnel packets to the routers `tunnels`
    /// by their shortest paths.
    pub fn new(graph: &Graph, here: Vertex, adjacencies: Vec<Adjacency>, tunnels: &[Vertex]) -> Alternates {
        let vertices = adjacencies.iter().flat_map(|adjacency| [Some(adjacency.neighbor), adjacency.lan]);
        let vertices = vertices.flatten().chain(tunnels.iter().copied());
        let from = vertices.map(|vertex| (vertex, graph.distances(vertex))).collect();
        let failures = adjacencies.iter().map(|adjacency| adjacency.neighbor);
        let without = failures.map(|failed| (failed, graph.distances_without(here, failed))).collect();
        let from_here = graph.distances(here);
        Alternates { here, adjacencies, tunnels: tunnels.to_vec(), from_here, from, without }
    }

    /// Returns whether a destination can be reached when the neighbor of an adjacency has failed, once all routers know.
    pub fn survives(&self, adjacency: usize, destination: Vertex) -> bool {
        self.without[&self.adjacencies[adjacency].neighbor].to(destination).is_some()
    }

    /// Returns the adjacencies on the shortest paths to a destination.
    pub fn primaries(&self, destination: Vertex) -> Vec<usize> {
        let Some(shortest) = self.from_here.to(destination) else { return Vec::new() };
        let is_primary = |adjacency: &Adjacency| {
            let rest = self.from[&adjacency.neighbor].to(destination);
            rest.is_some_and(|rest| u64::from(adjacency.cost) + rest == shortest)
        };
        (0..self.adjacencies.len()).filter(|index| is_primary(&self.adjacencies[*index])).collect()
    }

    /// Returns the alternates of packets to a destination that go over the adjacency `primary` before the failure, best
    /// first.
    pub fn of(&self, primary: usize, destination: Vertex) -> Vec<Alternate> {
        let all = 0..self.adjacencies.len();
        let direct = all.clone().filter_map(|index| self.alternate(primary, index, None, destination));
        let tunneled = all.flat_map(|index| {
            let to = move |tunnel: &Vertex| self.alternate(primary, index, Some(*tunnel), destination);
            self.tunnels.iter().filter_map(to)
        });
        let mut found: Vec<Alternate> = direct.chain(tunneled).collect();
        found.sort_by_key(|alternate| {
            let is_downstream = self.is_downstream(alternate.adjacency, destination);
            let rank = (alternate.protects_neighbor, alternate.protects_link, alternate.tunnel.is_none());
            (Reverse((rank, is_downstream)), self.length(alternate, destination))
        });
        found
    }

    fn alternate(
        &self,
        primary: usize,
        index: usize,
        tunnel: Option<Vertex>,
        destination: Vertex,
    ) -> Option<Alternate> {
        let (failed, other) = (self.adjacencies[primary], self.adjacencies[index]);
        let shares_link = failed.lan.is_some() && failed.lan == other.lan;
        let is_redundant = tunnel.is_some_and(|tunnel| tunnel == other.neighbor || tunnel == self.here);
        if index == primary || other.cost >= MAX_LINK_METRIC || is_redundant {
            return None;
        }
        let avoids = |vertex: Vertex| match tunnel {
            None => self.avoids(other.neighbor, destination, vertex),
            Some(end) => self.avoids(other.neighbor, end, vertex) && self.avoids(end, destination, vertex),
        };
        // Inequality 1: the neighbor's shortest paths do not lead back here.
        if !avoids(self.here) {
            return None;
        }
        // Inequality 3: neither do they lead through the failed neighbor.
        let protects_neighbor = other.neighbor != failed.neighbor && avoids(failed.neighbor);
        // Inequality 4: nor through the LAN whose failure cannot be distinguished from that of the neighbor.
        let protects_link = !shares_link && failed.lan.is_none_or(avoids);
        (protects_link || protects_neighbor).then_some(Alternate {
            adjacency: index,
            tunnel,
            protects_link,
            protects_neighbor,
        })
    }

    /// Returns whether shortest paths lead from a router to a destination, and none of them through a vertex.
    fn avoids(&self, router: Vertex, destination: Vertex, vertex: Vertex) -> bool {
        let first = &self.from[&router];
        let second = if vertex == self.here { &self.from_here } else { &self.from[&vertex] };
        let Some(shortest) = first.to(destination) else { return false };
        let through = first.to(vertex).zip(second.to(destination));
        through.is_none_or(|(first, second)| shortest < first + second)
    }

    /// Inequality 2: the neighbor is closer to the destination than this router, so packets do not circle even if several
    /// links fail.
    fn is_downstream(&self, index: usize, destination: Vertex) -> bool {
        let rest = self.from[&self.adjacencies[index].neighbor].to(destination);
        rest.zip(self.from_here.to(destination)).is_some_and(|(rest, here)| rest < here)
    }

    /// Returns the length of the path of an alternate.
    fn length(&self, alternate: &Alternate, destination: Vertex) -> Option<u64> {
        let Adjacency { neighbor, cost, .. } = self.adjacencies[alternate.adjacency];
        let rest = match alternate.tunnel {
            None => self.from[&neighbor].to(destination)?,
            Some(end) => self.from[&neighbor].to(end)? + self.from[&end].to(destination)?,
        };
        Some(rest + u64::from(cost))
    }
}
