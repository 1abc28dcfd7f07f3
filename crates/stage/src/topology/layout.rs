//! From a plan's paths to addresses and routes: pure, so it is tested without a network.
//!
//! The kernel routes by destination, a plan by flow. They agree where every flow group has
//! a destination address whose routes lead along its path, and a source address whose
//! routes lead along the way back. Groups share an address as long as their paths to it
//! never part, and the kernel and the emulator shall treat them alike.

use super::address::{LANS, PER_NODE, STATIONS};
use super::distribution::{self, Tree};
use super::{lan, pe, routing};
use netstage_agent_api::task::TcpOptions;
use netstage_core::time::Duration;
use netstage_host::netns::multicast::MOST_LINKS;
use netstage_scenario::plan::{FlowGroup, Hop, NodeKind, Plan, Transport};
use std::collections::BTreeMap;
use std::fmt;

/// Where every flow's ends are, and how packets find them.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The addresses of each node of the plan.
    pub addresses: Vec<Vec<Address>>,
    /// Each flow group's addresses.
    pub groups: Vec<Placement>,
    /// The ends of each VPN's tunnel, where its PEs are routers of their own; the source is the ingress.
    pub tunnels: Vec<Option<Placement>>,
    /// The ends of the tunnels between PEs one of which tells the other of a reference, by their nodes;
    /// the source is at the first.
    pub tellings: BTreeMap<(usize, usize), Placement>,
    /// The outer ends of each tunnel between gateways; the source is the first of its ends.
    pub gateways: Vec<Placement>,
    /// How the packets of each multicast flow group spread.
    pub trees: Vec<Option<Tree>>,
    /// Whether a link carries anything.
    pub used: Vec<bool>,
}

/// One address of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    /// What its packets have in common.
    pub treatment: Treatment,
    /// From each node on a way to this address, the hop to take.
    pub routes: BTreeMap<usize, Hop>,
    /// At each gateway on a way to this address where a tunnel is entered: which one.
    pub tunnels: BTreeMap<usize, usize>,
}

/// What packets to or from one address have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Treatment {
    /// VPN that carries them.
    pub vpn: Option<usize>,
    /// Whether they are background load.
    pub background: bool,
    /// What the kernel's TCP is told by the route.
    pub tcp: Option<RouteOptions>,
    /// Index of the flow group, where other people's programs carry it: which ports they take is
    /// theirs to choose, so the address alone tells it from others.
    pub service: Option<usize>,
    /// Where they go to a multicast group: whose, and by which link they leave the sender.
    pub multicast: Option<Sending>,
}

/// A flow group that sends to a multicast group. Its source address is its own, since routers
/// forward by it, and lies on the link it sends by, as sockets choose that link by the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// Index of the flow group.
    pub group: usize,
    /// Index of the link.
    pub link: usize,
}

/// What Linux takes from a route rather than from a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOptions {
    /// Initial congestion window, segments.
    pub initial_window: u32,
    /// Lower bound of the retransmission timeout.
    pub min_rto: Duration,
    /// Negotiate ECN.
    pub ecn: bool,
    /// What netstage's own sockets are told directly, and other people's programs cannot be.
    pub socket: Option<SocketOptions>,
}

/// Settings of a socket that a route can stand in for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Largest window to advertise, bytes.
    pub window: u32,
    /// Largest packet at the IP layer, bytes.
    pub mtu: u32,
    /// Congestion control by the kernel's name for it.
    pub congestion_control: String,
}

/// Numbers of a flow group's addresses on its two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// At the sender.
    pub source: usize,
    /// At the receiver; its own, 0, where packets go to a multicast group instead.
    pub destination: usize,
}

/// Why a plan finds no place on this stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unplaceable {
    /// A host would need more addresses than there are.
    TooManyPaths {
        /// Name of the host.
        host: String,
    },
    /// A router would forward multicast between more links than the kernel does.
    TooManyLinks {
        /// Name of the router.
        router: String,
    },
    /// A LAN has more stations, or there are more LANs, than there are addresses.
    TooManyStations {
        /// Name of the LAN.
        lan: String,
    },
}

impl fmt::Display for Unplaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unplaceable::TooManyPaths { host } => write!(
                f,
                "node.{host}: its flows take more than {PER_NODE} different ways; spread them over several hosts"
            ),
            Unplaceable::TooManyStations { lan } => write!(
                f,
                "node.{lan}: there are addresses for {LANS} LANs of {STATIONS} stations; put a router between \
                 some of them"
            ),
            Unplaceable::TooManyLinks { router } => write!(
                f,
                "node.{router}: the kernel forwards multicast between at most {MOST_LINKS} links; put a \
                 router between it and some of the receivers"
            ),
        }
    }
}

impl Layout {
    /// Places a plan's flows.
    pub fn new(plan: &Plan) -> Result<Layout, Unplaceable> {
        let own =
            || Address { treatment: Treatment::default(), routes: BTreeMap::new(), tunnels: BTreeMap::new() };
        let mut layout = Layout {
            addresses: plan.nodes.iter().map(|_| vec![own()]).collect(),
            groups: Vec::new(),
            tunnels: Vec::new(),
            tellings: BTreeMap::new(),
            gateways: Vec::new(),
            trees: distribution::trees(plan)?,
            used: vec![false; plan.links.len()],
        };
        let lans = (0..plan.nodes.len()).filter(|node| plan.is_lan(*node));
        let mut crowded = lans
            .enumerate()
            .filter(|(number, node)| *number >= LANS || lan::links(plan, *node).nth(STATIONS).is_some());
        if let Some((_, node)) = crowded.next() {
            return Err(Unplaceable::TooManyStations { lan: plan.nodes[node].name.clone() });
        }
        for (index, group) in plan.flows.iter().enumerate() {
            let treatment = Treatment {
                vpn: group.vpn,
                background: group.background,
                tcp: route_options(group),
                service: group.program.map(|_| index),
                multicast: layout.trees[index]
                    .as_ref()
                    .map(|tree| Sending { group: index, link: tree.first }),
            };
            let placed = match layout.trees[index].is_some() {
                true => Placement { source: layout.place_sender(plan, index, &treatment)?, destination: 0 },
                false => {
                    let destination = layout.place(plan, group.to, group.from, &group.path, &treatment)?;
                    let source = layout.place(plan, group.from, group.to, &group.reverse, &treatment)?;
                    Placement { source, destination }
                }
            };
            layout.groups.push(placed);
        }
        for (index, vpn) in plan.vpns.iter().enumerate() {
            let mut tunnel = None;
            if pe::are_needed(plan) {
                let treatment = Treatment { vpn: Some(index), ..Treatment::default() };
                let destination = layout.place(plan, vpn.egress, vpn.ingress, &vpn.path, &treatment)?;
                let source = layout.place(plan, vpn.ingress, vpn.egress, &vpn.reverse, &treatment)?;
                tunnel = Some(Placement { source, destination });
            }
            layout.tunnels.push(tunnel);
        }
        for (first, second) in pe::tellings(plan) {
            // Where there is no way, the PEs are refused by name.
            let Some(path) = plan.shortest(first, second) else { continue };
            let treatment = Treatment::default();
            let destination = layout.place(plan, second, first, &path, &treatment)?;
            let source = layout.place(plan, first, second, &mirrored(&path), &treatment)?;
            layout.tellings.insert((first, second), Placement { source, destination });
        }
        for tunnel in &plan.tunnels {
            let [first, second] = tunnel.ends;
            let treatment = Treatment::default();
            let destination = layout.place(plan, second, first, &tunnel.path, &treatment)?;
            let source = layout.place(plan, first, second, &tunnel.reverse, &treatment)?;
            layout.gateways.push(Placement { source, destination });
        }
        // Daemons choose among all links of their routers.
        for (index, link) in plan.links.iter().enumerate() {
            layout.used[index] |= link.ends.iter().any(|end| routing::drives(plan, *end));
        }
        Ok(layout)
    }

    /// The address a multicast flow group is sent from. Routes lead back to it along its tree:
    /// where the kernel asks whether a packet comes from where its source is, it does.
    fn place_sender(
        &mut self,
        plan: &Plan,
        index: usize,
        treatment: &Treatment,
    ) -> Result<usize, Unplaceable> {
        let group = &plan.flows[index];
        let mut number = None;
        for path in group.paths() {
            let back = mirrored(path);
            let [receiver, _] = plan.ends(back[0]);
            let placed = self.place(plan, group.from, receiver, &back, treatment)?;
            debug_assert!(number.is_none_or(|number| number == placed), "the ways of a flow form a tree");
            number = Some(placed);
        }
        Ok(number.expect("a flow has a receiver"))
    }

    /// An address at `to` that the path leads to; returns its number.
    fn place(
        &mut self,
        plan: &Plan,
        to: usize,
        from: usize,
        path: &[Hop],
        treatment: &Treatment,
    ) -> Result<usize, Unplaceable> {
        debug_assert_eq!(path.first().map(|hop| plan.ends(*hop)[0]), Some(from), "a path has a start");
        debug_assert_eq!(path.last().map(|hop| plan.ends(*hop)[1]), Some(to), "a path leads to its end");
        let (mut wanted, mut tunnels) = (BTreeMap::new(), BTreeMap::new());
        let crossings = plan.crossings(path);
        for (at, &hop) in path.iter().enumerate() {
            self.used[hop.link] = true;
            let crossing = crossings.iter().find(|crossing| (crossing.first..crossing.behind).contains(&at));
            if let Some(crossing) = crossing {
                // Inside a tunnel nobody sees where a packet goes.
                if crossing.first == at {
                    tunnels.insert(plan.ends(hop)[0], crossing.tunnel);
                }
                continue;
            }
            // What a tunnel carries is known to the PEs at its ends, and to no kernel there.
            let [node, _] = plan.ends(hop);
            if plan.nodes[to].kind == NodeKind::Pe || !pe::route(plan, treatment.vpn, node, hop) {
                wanted.insert(node, hop);
            }
        }
        let addresses = &mut self.addresses[to];
        let agrees = |address: &Address| {
            let same = |(node, hop)| {
                address.routes.get(node).is_none_or(|other| other == hop)
                    && !address.tunnels.contains_key(node)
            };
            let entered = |(node, tunnel)| {
                address.tunnels.get(node).is_none_or(|other| other == tunnel)
                    && !address.routes.contains_key(node)
            };
            address.treatment == *treatment && wanted.iter().all(same) && tunnels.iter().all(entered)
        };
        let number = match addresses.iter().skip(1).position(agrees) {
            Some(position) => position + 1,
            None if addresses.len() == PER_NODE => {
                return Err(Unplaceable::TooManyPaths { host: plan.nodes[to].name.clone() });
            }
            None => {
                addresses.push(Address {
                    treatment: treatment.clone(),
                    routes: BTreeMap::new(),
                    tunnels: BTreeMap::new(),
                });
                addresses.len() - 1
            }
        };
        addresses[number].routes.extend(wanted);
        addresses[number].tunnels.extend(tunnels);
        Ok(number)
    }
}

/// The same links the other way.
fn mirrored(path: &[Hop]) -> Vec<Hop> {
    path.iter().rev().map(|hop| Hop { link: hop.link, direction: 1 - hop.direction }).collect()
}

fn route_options(group: &FlowGroup) -> Option<RouteOptions> {
    let Transport::Tcp(tcp) = &group.transport else { return None };
    let options = if tcp.timestamps { netstage_wire::TCP_TIMESTAMPS } else { 0 };
    let socket = SocketOptions {
        window: u32::try_from(tcp.window).unwrap_or(u32::MAX),
        mtu: tcp.max_segment_size + options + netstage_wire::TCP_HEADER + group.family.header(),
        congestion_control: TcpOptions::from(tcp).congestion_control.unwrap_or_default(),
    };
    Some(RouteOptions {
        initial_window: tcp.initial_window,
        min_rto: tcp.min_rto,
        ecn: tcp.ecn,
        socket: group.program.map(|_| socket),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::plan_of as plan;
    use netstage_harness::scenario::network;

    /// Two ways from `a` to `b`: over `n` (shorter by name) and over `s`.
    fn diamond(flows: &str) -> Plan {
        let nodes = [("host", "a b"), ("router", "w n s e")];
        let network = network(&nodes, "aw:a,w eb:e,b wn:w,n ws:w,s ne:n,e se:s,e");
        let link = "rate = \"10 Mbit/s\"\nbuffer = \"10 packets\"";
        plan(&format!("[scenario]\nduration = \"1 s\"\n[defaults.link]\n{link}\n{network}{flows}"))
    }

    /// The hops packets to one address take from a node.
    fn walk(plan: &Plan, layout: &Layout, from: usize, to: usize, number: usize) -> Vec<Hop> {
        let (mut node, mut hops) = (from, Vec::new());
        while node != to {
            let hop = layout.addresses[to][number].routes[&node];
            hops.push(hop);
            node = plan.ends(hop)[1];
        }
        hops
    }

    fn every_flow_takes_its_path(plan: &Plan, layout: &Layout) {
        for (group, placed) in plan.flows.iter().zip(&layout.groups) {
            assert_eq!(walk(plan, layout, group.from, group.to, placed.destination), group.path);
            assert_eq!(walk(plan, layout, group.to, group.from, placed.source), group.reverse);
        }
    }

    #[test]
    fn paths_that_part_get_addresses_of_their_own() {
        let plan = diamond(
            r#"
            [flow.north]
            from = "a"
            to = "b"
            [flow.north2]
            from = "a"
            to = "b"
            [flow.south]
            from = "a"
            to = "b"
            via = ["w", "s", "e"]
            [flow.round]
            from = "a"
            to = "b"
            via = ["w", "n", "e"]
            reverse_via = ["e", "s", "w"]"#,
        );
        let layout = Layout::new(&plan).unwrap();
        every_flow_takes_its_path(&plan, &layout);
        let of = |name: &str| layout.groups[plan.flows.iter().position(|f| f.name == name).unwrap()];
        assert_eq!(of("north"), of("north2"));
        assert_ne!(of("north").destination, of("south").destination);
        assert_eq!(of("round").destination, of("north").destination);
        assert_ne!(of("round").source, of("north").source);
    }

    #[test]
    fn what_is_treated_differently_is_addressed_differently() {
        let plan = diamond(
            r#"
            [flow.tcp]
            from = "a"
            to = "b"
            [flow.eager]
            from = "a"
            to = "b"
            tcp = { initial_window = 3 }
            [flow.background]
            from = "a"
            to = "b"
            transport = "udp"
            traffic = { model = "cbr", rate = "1 Mbit/s" }
            background = true"#,
        );
        let layout = Layout::new(&plan).unwrap();
        every_flow_takes_its_path(&plan, &layout);
        let destinations: std::collections::BTreeSet<_> =
            layout.groups.iter().map(|placed| placed.destination).collect();
        assert_eq!(destinations.len(), 3);
    }

    #[test]
    fn a_multicast_flow_has_an_address_of_its_own_on_the_link_it_is_sent_by() {
        let plan = diamond(
            r#"
            [node.c]
            [link.sc]
            ends = ["s", "c"]
            [flow.udp]
            from = "a"
            to = "b"
            transport = "udp"
            traffic = { model = "cbr", rate = "1 Mbit/s" }
            [flow.tv]
            from = "a"
            to = ["b", "c"]
            transport = "multicast"
            traffic = { model = "cbr", rate = "1 Mbit/s" }
            [flow.radio]
            from = "a"
            to = ["b", "c"]
            transport = "multicast"
            traffic = { model = "cbr", rate = "1 Mbit/s" }"#,
        );
        let layout = Layout::new(&plan).unwrap();
        let link = |name: &str| plan.links.iter().position(|link| link.name == name).unwrap();
        let node = |name: &str| plan.nodes.iter().position(|node| node.name == name).unwrap();
        let sources: Vec<usize> = layout.groups.iter().map(|placed| placed.source).collect();
        assert_eq!(sources.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{sources:?}");
        for (index, flow) in plan.flows.iter().enumerate().filter(|(_, flow)| !flow.branches.is_empty()) {
            let address = &layout.addresses[flow.from][layout.groups[index].source];
            assert_eq!(address.treatment.multicast, Some(Sending { group: index, link: link("aw") }));
            // Back along the tree from every receiver.
            for receiver in ["b", "c"] {
                let names = walk(&plan, &layout, node(receiver), flow.from, layout.groups[index].source);
                let mut names: Vec<&str> =
                    names.iter().map(|hop| plan.links[hop.link].name.as_str()).collect();
                names.reverse();
                let expected: &[&str] =
                    if receiver == "b" { &["aw", "wn", "ne", "eb"] } else { &["aw", "ws", "sc"] };
                assert_eq!(names, expected);
            }
        }
        assert!(layout.used.iter().zip(&plan.links).all(|(used, link)| *used == (link.name != "se")));
    }

    #[test]
    fn links_nobody_uses_are_left_out() {
        let plan = diamond("[flow.tcp]\nfrom = \"a\"\nto = \"b\"");
        let layout = Layout::new(&plan).unwrap();
        let unused: Vec<&str> =
            plan.links.iter().zip(&layout.used).filter(|(_, u)| !**u).map(|(l, _)| l.name.as_str()).collect();
        assert_eq!(unused, ["se", "ws"]);
    }
}
