//! Link-state database and neighbors of FRR's ospfd, from the JSON of its `show` commands.

use netstage_core::lfa::Adjacency;
use netstage_core::lfa::graph::{Graph, Vertex};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// IPv4 prefix.
pub type Prefix = (Ipv4Addr, u8);

/// Age of LSAs that are being removed (RFC 2328 appendix B, MaxAge).
const MAX_AGE: u32 = 3_600;

/// Responses of ospfd.
#[derive(Clone, Copy, Debug)]
pub struct DatabaseText<'a> {
    /// `show ip ospf database router json`.
    pub routers: &'a str,
    /// `show ip ospf database external json`.
    pub external: &'a str,
    /// `show ip ospf neighbor json`.
    pub neighbors: &'a str,
}

/// Network as a router knows it.
#[derive(Clone, Debug)]
pub struct LinkState {
    /// Routers, LANs and prefixes.
    pub graph: Graph,
    /// Vertex of this router.
    pub here: Vertex,
    /// Vertices of all routers, by router ID.
    pub routers: BTreeMap<Ipv4Addr, Vertex>,
    /// Links to neighbors, in the order of `neighbors`.
    pub adjacencies: Vec<Adjacency>,
    /// Neighbors of this router.
    pub neighbors: Vec<OspfNeighbor>,
    /// Prefixes that routers advertise.
    pub prefixes: BTreeMap<Prefix, Vertex>,
}

/// Neighbor with which this router is adjacent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OspfNeighbor {
    /// Router ID.
    pub router: Ipv4Addr,
    /// Address on the link.
    pub address: Ipv4Addr,
    /// Name of the interface of this router.
    pub interface: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RouterDatabase {
    router_id: Ipv4Addr,
    #[serde(default)]
    router_link_states: Areas,
}

#[derive(Default, Deserialize)]
struct Areas {
    #[serde(default)]
    areas: BTreeMap<String, Vec<RouterLsa>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RouterLsa {
    lsa_age: u32,
    advertising_router: Ipv4Addr,
    #[serde(default)]
    router_links: BTreeMap<String, RouterLink>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RouterLink {
    neighbor_router_id: Option<Ipv4Addr>,
    designated_router_address: Option<Ipv4Addr>,
    router_interface_address: Option<Ipv4Addr>,
    network_address: Option<Ipv4Addr>,
    network_mask: Option<Ipv4Addr>,
    #[serde(rename = "tos0Metric")]
    metric: u32,
}

#[derive(Deserialize)]
struct ExternalDatabase {
    #[serde(default, rename = "asExternalLinkStates")]
    lsas: Vec<ExternalLsa>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExternalLsa {
    lsa_age: u32,
    link_state_id: Ipv4Addr,
    advertising_router: Ipv4Addr,
    network_mask: u8,
    metric_type: String,
    metric: u32,
    forward_address: Ipv4Addr,
}

#[derive(Deserialize)]
struct Neighbors {
    #[serde(default)]
    neighbors: BTreeMap<Ipv4Addr, Vec<Neighbor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Neighbor {
    /// State; earlier releases have both names.
    nbr_state: Option<String>,
    state: Option<String>,
    iface_address: Option<Ipv4Addr>,
    address: Option<Ipv4Addr>,
    /// Name of the interface, a colon, and the own address there.
    iface_name: String,
}

impl LinkState {
    /// Reads the responses of ospfd. Errors name what is unexpected.
    pub fn read(text: DatabaseText<'_>) -> Result<LinkState, String> {
        let wrong =
            |what: &'static str| move |error: serde_json::Error| format!("unexpected {what}: {error}");
        let routers: RouterDatabase = serde_json::from_str(text.routers).map_err(wrong("router LSAs"))?;
        let external: ExternalDatabase =
            serde_json::from_str(text.external).map_err(wrong("external LSAs"))?;
        let neighbors: Neighbors = serde_json::from_str(text.neighbors).map_err(wrong("neighbors"))?;
        let mut areas = routers.router_link_states.areas.into_values();
        let lsas = areas.next().unwrap_or_default();
        if areas.next().is_some() {
            return Err("this router is in several OSPF areas".into());
        }
        let lsas: Vec<RouterLsa> = lsas.into_iter().filter(|lsa| lsa.lsa_age < MAX_AGE).collect();
        let mut network = Network::of(&lsas);
        let Some(here) = network.routers.get(&routers.router_id).copied() else {
            return Err("ospfd has no LSA of this router".into());
        };
        let prefixes = network.add_prefixes(&lsas, &external.lsas);
        let own = lsas.iter().find(|lsa| lsa.advertising_router == routers.router_id);
        let (mut adjacencies, mut known) = (Vec::new(), Vec::new());
        for (router, all) in neighbors.neighbors {
            for neighbor in all {
                let state = neighbor.nbr_state.or(neighbor.state).unwrap_or_default();
                let Some(neighbor_address) = neighbor.iface_address.or(neighbor.address) else { continue };
                if !state.starts_with("Full") {
                    continue;
                }
                let Some((interface, address)) = neighbor.iface_name.split_once(':') else { continue };
                let Ok(address) = address.parse() else { continue };
                let is_link = |link: &&RouterLink| link.router_interface_address == Some(address);
                let Some(link) = own.iter().flat_map(|lsa| lsa.router_links.values()).find(is_link) else {
                    continue;
                };
                let Some(vertex) = network.routers.get(&router).copied() else { continue };
                let lan = link.designated_router_address.and_then(|lan| network.lans.get(&lan).copied());
                adjacencies.push(Adjacency { neighbor: vertex, lan, cost: link.metric });
                known.push(OspfNeighbor { router, address: neighbor_address, interface: interface.into() });
            }
        }
        let Network { graph, routers, .. } = network;
        Ok(LinkState { graph, here, routers, adjacencies, neighbors: known, prefixes })
    }
}

/// Graph under construction.
#[derive(Default)]
struct Network {
    graph: Graph,
    routers: BTreeMap<Ipv4Addr, Vertex>,
    /// LANs by the address of the designated router.
    lans: BTreeMap<Ipv4Addr, Vertex>,
}

impl Network {
    /// Builds the graph of routers and LANs. Links between routers count if both routers advertise them (RFC 2328 section
    /// 16.1).
    fn of(lsas: &[RouterLsa]) -> Network {
        let mut network = Network::default();
        for lsa in lsas {
            let vertex = network.graph.add_vertex();
            network.routers.insert(lsa.advertising_router, vertex);
        }
        let neighbors = |lsa: &RouterLsa| -> Vec<(Ipv4Addr, u32)> {
            let to = |link: &RouterLink| Some((link.neighbor_router_id?, link.metric));
            lsa.router_links.values().filter_map(to).collect()
        };
        for lsa in lsas {
            let from = network.routers[&lsa.advertising_router];
            for (neighbor, cost) in neighbors(lsa) {
                let mut back =
                    lsas.iter().filter(|lsa| lsa.advertising_router == neighbor).flat_map(neighbors);
                if back.any(|(router, _)| router == lsa.advertising_router) {
                    network.graph.add_edge(from, network.routers[&neighbor], cost);
                }
            }
            for link in lsa.router_links.values() {
                let Some(designated) = link.designated_router_address else { continue };
                let lan = *network.lans.entry(designated).or_insert_with(|| network.graph.add_vertex());
                network.graph.add_edge(from, lan, link.metric);
                network.graph.add_edge(lan, from, 0);
            }
        }
        network
    }

    /// Adds the prefixes that routers advertise. Those inside the area precede external ones, of which the first type
    /// precedes the second (RFC 2328 section 11).
    fn add_prefixes(&mut self, lsas: &[RouterLsa], external: &[ExternalLsa]) -> BTreeMap<Prefix, Vertex> {
        let mut advertised: BTreeMap<Prefix, Vec<(Preference, Vertex, u32)>> = BTreeMap::new();
        for lsa in lsas {
            let router = self.routers[&lsa.advertising_router];
            for link in lsa.router_links.values() {
                let (Some(address), Some(mask)) = (link.network_address, link.network_mask) else { continue };
                let prefix = prefix(address, u32::from(mask).leading_ones() as u8);
                advertised.entry(prefix).or_default().push((Preference::Inside, router, link.metric));
            }
        }
        let mut elsewhere = Vec::new();
        for lsa in external.iter().filter(|lsa| lsa.lsa_age < MAX_AGE && lsa.network_mask <= 32) {
            let prefix = prefix(lsa.link_state_id, lsa.network_mask);
            let Some(router) = self.routers.get(&lsa.advertising_router) else { continue };
            let (preference, cost) = match lsa.metric_type.starts_with("E1") {
                true => (Preference::FirstType, lsa.metric),
                // All paths of the best metric are equal, apart from the distance of their routers.
                false => (Preference::SecondType(lsa.metric), 0),
            };
            advertised.entry(prefix).or_default().push((preference, *router, cost));
            // The route leads to another router than the one that advertises it.
            if !lsa.forward_address.is_unspecified() {
                elsewhere.push(prefix);
            }
        }
        elsewhere.iter().for_each(|prefix| drop(advertised.remove(prefix)));
        let mut prefixes = BTreeMap::new();
        for (prefix, all) in advertised {
            let vertex = self.graph.add_vertex();
            let best = all.iter().map(|(preference, ..)| *preference).min();
            for (_, router, cost) in all.iter().filter(|(preference, ..)| Some(*preference) == best) {
                self.graph.add_edge(*router, vertex, *cost);
            }
            prefixes.insert(prefix, vertex);
        }
        prefixes
    }
}

/// Preference among the advertisements of a prefix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Preference {
    Inside,
    FirstType,
    /// With the external metric.
    SecondType(u32),
}

fn prefix(address: Ipv4Addr, length: u8) -> Prefix {
    let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
    (Ipv4Addr::from_bits(address.to_bits() & mask), length)
}
