//! Directed graph with costs, and distances in it.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Number of a vertex: a router, a LAN, or a destination.
pub type Vertex = usize;

/// Graph of a network. A LAN is a vertex to which its routers have their costs, and which has cost 0 to them. A destination
/// is a vertex to which the routers that advertise it have its costs.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    edges: Vec<Vec<(Vertex, u32)>>,
}

/// Distances from one vertex to all others.
#[derive(Clone, Debug)]
pub struct Distances(Vec<Option<u64>>);

impl Graph {
    /// Adds a vertex, and returns its number.
    pub fn add_vertex(&mut self) -> Vertex {
        self.edges.push(Vec::new());
        self.edges.len() - 1
    }

    /// Adds an edge.
    ///
    /// # Panics
    /// If a vertex does not exist.
    pub fn add_edge(&mut self, from: Vertex, to: Vertex, cost: u32) {
        assert!(to < self.edges.len(), "there is no vertex {to}");
        self.edges[from].push((to, cost));
    }

    /// Returns the distances from a vertex (Dijkstra 1959).
    ///
    /// # Panics
    /// If the vertex does not exist.
    pub fn distances(&self, from: Vertex) -> Distances {
        self.distances_where(from, |_| true)
    }

    /// Returns the distances from a vertex when another one has failed.
    ///
    /// # Panics
    /// If the vertex does not exist.
    pub fn distances_without(&self, from: Vertex, failed: Vertex) -> Distances {
        self.distances_where(from, |vertex| vertex != failed)
    }

    fn distances_where(&self, from: Vertex, works: impl Fn(Vertex) -> bool) -> Distances {
        let mut distances = vec![None; self.edges.len()];
        let mut next = BinaryHeap::from([Reverse((0_u64, from))]);
        while let Some(Reverse((distance, vertex))) = next.pop() {
            if distances[vertex].is_some() {
                continue;
            }
            distances[vertex] = Some(distance);
            let edges = self.edges[vertex].iter().filter(|(to, _)| works(*to));
            next.extend(edges.map(|(to, cost)| Reverse((distance + u64::from(*cost), *to))));
        }
        Distances(distances)
    }
}

impl Distances {
    /// Returns the distance to a vertex, or `None` if no path leads there.
    pub fn to(&self, vertex: Vertex) -> Option<u64> {
        self.0[vertex]
    }
}
