//! Loop-free alternates in random networks, compared with all ways that packets can take after the failure. The ways are
//! those of routers that forward as before, by distances from another algorithm.

use netstage_core::lfa::graph::{Graph, Vertex};
use netstage_core::lfa::{Adjacency, Alternate, Alternates, MAX_LINK_METRIC};
use netstage_core::rng::RandomStream;
use netstage_harness::seed;
use std::collections::BTreeSet;

/// A random network: routers, LANs, and a destination that some routers advertise.
struct Network {
    edges: Vec<(Vertex, Vertex, u32)>,
    vertices: usize,
    destination: Vertex,
    adjacencies: Vec<Adjacency>,
    /// Routers to which the first one has tunnels.
    tunnels: Vec<Vertex>,
}

/// The router whose alternates are calculated.
const HERE: Vertex = 0;

impl Network {
    fn draw(random: &mut RandomStream) -> Network {
        let mut below = |bound: u64| random.below(bound);
        let routers = 2 + below(8) as usize;
        let lans = below(3) as usize;
        let destination = routers + lans;
        let largest = [1, 3, 30][below(3) as usize];
        let tunnels = (1..routers).filter(|_| below(2) == 0).collect();
        let mut network = Network {
            edges: Vec::new(),
            vertices: destination + 1,
            destination,
            adjacencies: Vec::new(),
            tunnels,
        };
        for _ in 0..routers + below(2 * routers as u64) as usize {
            let ends = [0; 2].map(|_| below(routers as u64) as usize);
            if ends[0] != ends[1] {
                let drain = below(20) == 0;
                let costs = [0; 2].map(|_| if drain { MAX_LINK_METRIC } else { 1 + below(largest) as u32 });
                network.link(ends, costs, None);
            }
        }
        for lan in routers..destination {
            let present: Vec<Vertex> = (0..routers).filter(|_| below(2) == 0).collect();
            let members: Vec<(Vertex, u32)> =
                present.into_iter().map(|router| (router, 1 + below(largest) as u32)).collect();
            for (member, cost) in &members {
                network.edges.push((*member, lan, *cost));
                network.edges.push((lan, *member, 0));
            }
            let own = members.iter().find(|(member, _)| *member == HERE).map(|(_, cost)| *cost);
            let others = members.iter().filter(|(member, _)| *member != HERE && own.is_some());
            let of = |(neighbor, _): &(Vertex, u32)| Adjacency {
                neighbor: *neighbor,
                lan: Some(lan),
                cost: own.unwrap_or_default(),
            };
            network.adjacencies.extend(others.map(of));
        }
        for _ in 0..=below(2) {
            network.edges.push((below(routers as u64) as usize, destination, below(largest) as u32));
        }
        network
    }

    fn link(&mut self, ends: [Vertex; 2], costs: [u32; 2], lan: Option<Vertex>) {
        for (from, to, cost) in [(ends[0], ends[1], costs[0]), (ends[1], ends[0], costs[1])] {
            self.edges.push((from, to, cost));
            if from == HERE {
                self.adjacencies.push(Adjacency { neighbor: to, lan, cost });
            }
        }
    }

    fn graph(&self) -> Graph {
        let mut graph = Graph::default();
        for _ in 0..self.vertices {
            graph.add_vertex();
        }
        self.edges.iter().for_each(|(from, to, cost)| graph.add_edge(*from, *to, *cost));
        graph
    }

    /// Returns the distances to a vertex (Bellman 1958).
    fn distances(&self, to: Vertex) -> Vec<Option<u64>> {
        let mut distances = vec![None; self.vertices];
        distances[to] = Some(0);
        for _ in 0..self.vertices {
            for (from, to, cost) in &self.edges {
                let over = distances[*to].map(|rest| rest + u64::from(*cost));
                distances[*from] = distances[*from].into_iter().chain(over).min();
            }
        }
        distances
    }

    /// Returns the vertices on all ways of packets from one vertex to another, or `None` if there is no way.
    fn visited(&self, from: Vertex, to: Vertex) -> Option<BTreeSet<Vertex>> {
        let distances = self.distances(to);
        distances[from]?;
        let (mut visited, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(vertex) = open.pop() {
            if visited.insert(vertex) {
                let is_next = |(begin, to, cost): &&(Vertex, Vertex, u32)| {
                    *begin == vertex
                        && distances[*to].map(|rest| rest + u64::from(*cost)) == distances[vertex]
                };
                open.extend(self.edges.iter().filter(is_next).map(|(_, to, _)| *to));
            }
        }
        Some(visited)
    }

    /// Returns whether packets can reach the destination when a router has failed.
    fn survives(&self, failed: Vertex) -> bool {
        let (mut reached, mut open) = (BTreeSet::from([failed]), vec![HERE]);
        while let Some(vertex) = open.pop() {
            if reached.insert(vertex) {
                open.extend(self.edges.iter().filter(|(from, ..)| *from == vertex).map(|(_, to, _)| *to));
            }
        }
        reached.contains(&self.destination)
    }

    /// Returns the alternate over an adjacency, through a tunnel or not, by the ways of packets.
    fn expected(&self, primary: usize, other: usize, tunnel: Option<Vertex>) -> Option<Alternate> {
        let (failed, chosen) = (self.adjacencies[primary], self.adjacencies[other]);
        if primary == other || chosen.cost == MAX_LINK_METRIC || tunnel == Some(chosen.neighbor) {
            return None;
        }
        let visited = match tunnel {
            None => self.visited(chosen.neighbor, self.destination)?,
            Some(end) => &self.visited(chosen.neighbor, end)? | &self.visited(end, self.destination)?,
        };
        let shares = failed.lan.is_some() && failed.lan == chosen.lan;
        let protects_link = !shares && failed.lan.is_none_or(|lan| !visited.contains(&lan));
        let protects_neighbor = !visited.contains(&failed.neighbor);
        let is_alternate = !visited.contains(&HERE) && (protects_link || protects_neighbor);
        is_alternate.then_some(Alternate { adjacency: other, tunnel, protects_link, protects_neighbor })
    }
}

#[test]
fn alternates_are_those_whose_packets_arrive() {
    let mut random = RandomStream::new(seed("lfa"), "lfa");
    let (mut found, mut remote, mut lost) = ([0; 3], 0, 0);
    for case in 0..10_000 {
        let network = Network::draw(&mut random);
        let alternates =
            Alternates::new(&network.graph(), HERE, network.adjacencies.clone(), &network.tunnels);
        let distances = network.distances(network.destination);
        let leads = |adjacency: &Adjacency| {
            let over = distances[adjacency.neighbor].map(|rest| rest + u64::from(adjacency.cost));
            over.is_some() && over == distances[HERE]
        };
        let all = 0..network.adjacencies.len();
        let primaries: Vec<usize> = all.clone().filter(|index| leads(&network.adjacencies[*index])).collect();
        assert_eq!(alternates.primaries(network.destination), primaries, "case {case}");
        for primary in primaries {
            let ends: Vec<Option<Vertex>> =
                [None].into_iter().chain(network.tunnels.iter().copied().map(Some)).collect();
            let mut expected = Vec::new();
            for end in &ends {
                expected.extend(all.clone().filter_map(|other| network.expected(primary, other, *end)));
            }
            let chosen = alternates.of(primary, network.destination);
            let protects = |alternate: &Alternate| (alternate.protects_neighbor, alternate.protects_link);
            assert!(chosen.is_sorted_by(|a, b| protects(a) >= protects(b)), "case {case}: {chosen:?}");
            match chosen.first() {
                None => lost += 1,
                Some(first) => {
                    remote += usize::from(first.tunnel.is_some());
                    found[usize::from(first.protects_link) + 2 * usize::from(first.protects_neighbor) - 1] +=
                        1;
                }
            }
            let survives = network.survives(network.adjacencies[primary].neighbor);
            assert_eq!(alternates.survives(primary, network.destination), survives, "case {case}");
            let mut chosen = chosen;
            chosen.sort_by_key(|alternate| (alternate.adjacency, alternate.tunnel));
            expected.sort_by_key(|alternate| (alternate.adjacency, alternate.tunnel));
            assert_eq!(chosen, expected, "case {case}");
        }
    }
    println!("best alternates of links, neighbors, both: {found:?}; {remote} are remote; {lost} without");
    assert!(found.iter().chain([&remote, &lost]).all(|count| *count > 100), "{found:?}, {remote}, {lost}");
}
