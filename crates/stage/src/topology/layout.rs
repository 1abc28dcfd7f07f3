//! Addresses and routes for the paths of a plan, computed without side effects.
//!
//! The kernel routes by destination, a plan by flow. So each flow group has a destination address whose routes follow
//! its path, and a source address whose routes follow the reverse path. Groups share an address if their paths to it
//! never diverge and the kernel and the emulator treat them alike.

use super::address::{LANS, PER_NODE, STATIONS};
use super::distribution::{self, Tree};
use super::{lan, pe, routing};
use netstage_agent_api::task::TcpOptions;
use netstage_core::time::Duration;
use netstage_host::netns::multicast::MAX_LINKS;
use netstage_scenario::plan::{FlowGroup, FlowTransport, Hop, NodeKind, Plan};
use std::collections::BTreeMap;
use std::fmt;

/// Addresses and routes of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct AddressLayout {
    /// Addresses of each node of the plan.
    pub addresses: Vec<Vec<Address>>,
    /// Addresses of each flow group.
    pub groups: Vec<EndNumbers>,
    /// Ends of each VPN's tunnel, if PE routers are needed; the source is at the ingress.
    pub tunnels: Vec<Option<EndNumbers>>,
    /// Ends of the tunnels for references and news between PEs, by their nodes; the source is at the first node.
    pub message_tunnels: BTreeMap<(usize, usize), EndNumbers>,
    /// Outer ends of each tunnel between gateways; the source is at the first gateway.
    pub gateways: Vec<EndNumbers>,
    /// Distribution tree of each multicast flow group.
    pub trees: Vec<Option<Tree>>,
    /// Flag for each link that carries packets.
    pub used: Vec<bool>,
}

/// Address of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    /// Common properties of its packets.
    pub treatment: Treatment,
    /// Next hop to this address at each node of its paths.
    pub routes: BTreeMap<usize, Hop>,
    /// Index of the tunnel to this address at each gateway where a path enters a tunnel.
    pub tunnels: BTreeMap<usize, usize>,
}

/// Common properties of the packets to or from one address.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Treatment {
    /// VPN that carries them.
    pub vpn: Option<usize>,
    /// Whether they are background load.
    pub background: bool,
    /// TCP options of the route.
    pub tcp: Option<RouteOptions>,
    /// Index of the flow group of a service. Third-party programs choose their ports, so only the address identifies
    /// the flow.
    pub service: Option<usize>,
    /// Flow group and outgoing link of a multicast sender.
    pub multicast: Option<MulticastSending>,
}

/// Flow group that sends to a multicast group. It has a source address of its own, because routers forward by it. The
/// address is on the outgoing link, because sockets select that link by the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastSending {
    /// Index of the flow group.
    pub group: usize,
    /// Index of the link.
    pub link: usize,
}

/// TCP options that Linux takes from the route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOptions {
    /// Initial congestion window, segments.
    pub initial_window: u32,
    /// Minimum retransmission timeout.
    pub min_rto: Duration,
    /// Negotiate ECN.
    pub ecn: bool,
    /// Options that netstage sets on its own sockets but cannot set on those of third-party programs.
    pub socket: Option<SocketOptions>,
}

/// Socket options that a route can replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Maximum window to advertise, in bytes.
    pub window: u32,
    /// Maximum packet size at the IP layer, in bytes.
    pub mtu: u32,
    /// Name of the congestion control in the kernel.
    pub congestion_control: String,
}

/// Address numbers of a flow group at its two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndNumbers {
    /// Number at the sender.
    pub source: usize,
    /// Number at the receiver; 0 for a multicast group.
    pub destination: usize,
}

/// Error of a plan that this stage cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// A host needs more addresses than available.
    TooManyPaths {
        /// Name of the host.
        host: String,
    },
    /// A router forwards multicast between more links than the kernel supports.
    TooManyLinks {
        /// Name of the router.
        router: String,
    },
    /// The LANs, or the stations of a LAN, exceed the available addresses.
    TooManyStations {
        /// Name of the LAN.
        lan: String,
    },
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutError::TooManyPaths { host } => write!(
                f,
                "node.{host}: the flows have more than {PER_NODE} different paths; distribute them over several hosts"
            ),
            LayoutError::TooManyStations { lan } => write!(
                f,
                "node.{lan}: there are addresses for at most {LANS} LANs of {STATIONS} stations; place a router between \
                 some of them"
            ),
            LayoutError::TooManyLinks { router } => write!(
                f,
                "node.{router}: the kernel forwards multicast between at most {MAX_LINKS} links; place a \
                 router between it and some of the receivers"
            ),
        }
    }
}

impl AddressLayout {
    /// Assigns the addresses and routes of a plan.
    pub fn new(plan: &Plan) -> Result<AddressLayout, LayoutError> {
        let own_address =
            || Address { treatment: Treatment::default(), routes: BTreeMap::new(), tunnels: BTreeMap::new() };
        let mut layout = AddressLayout {
            addresses: plan.nodes.iter().map(|_| vec![own_address()]).collect(),
            groups: Vec::new(),
            tunnels: Vec::new(),
            message_tunnels: BTreeMap::new(),
            gateways: Vec::new(),
            trees: distribution::trees(plan)?,
            used: vec![false; plan.links.len()],
        };
        let lans = (0..plan.nodes.len()).filter(|node| plan.is_lan(*node));
        let mut too_large = lans
            .enumerate()
            .filter(|(number, node)| *number >= LANS || lan::links(plan, *node).nth(STATIONS).is_some());
        if let Some((_, node)) = too_large.next() {
            return Err(LayoutError::TooManyStations { lan: plan.nodes[node].name.clone() });
        }
        for (index, group) in plan.flows.iter().enumerate() {
            let treatment = Treatment {
                vpn: group.vpn,
                background: group.background,
                tcp: route_options(group),
                service: group.program.map(|_| index),
                multicast: layout.trees[index]
                    .as_ref()
                    .map(|tree| MulticastSending { group: index, link: tree.first }),
            };
            let placed = match layout.trees[index].is_some() {
                true => EndNumbers { source: layout.place_sender(plan, index, &treatment)?, destination: 0 },
                false => {
                    let destination = layout.place(plan, group.to, group.from, &group.path, &treatment)?;
                    let source = layout.place(plan, group.from, group.to, &group.reverse, &treatment)?;
                    EndNumbers { source, destination }
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
                tunnel = Some(EndNumbers { source, destination });
            }
            layout.tunnels.push(tunnel);
        }
        for (first, second) in pe::message_pairs(plan) {
            // Without a path, `pe::routers` returns an error.
            let Some(path) = plan.shortest(first, second) else { continue };
            let treatment = Treatment::default();
            let destination = layout.place(plan, second, first, &path, &treatment)?;
            let source = layout.place(plan, first, second, &mirrored(&path), &treatment)?;
            layout.message_tunnels.insert((first, second), EndNumbers { source, destination });
        }
        for tunnel in &plan.tunnels {
            let [first, second] = tunnel.ends;
            let treatment = Treatment::default();
            let destination = layout.place(plan, second, first, &tunnel.path, &treatment)?;
            let source = layout.place(plan, first, second, &tunnel.reverse, &treatment)?;
            layout.gateways.push(EndNumbers { source, destination });
        }
        // Routing daemons use all links of their routers.
        for (index, link) in plan.links.iter().enumerate() {
            layout.used[index] |= link.ends.iter().any(|end| routing::has_daemons(plan, *end));
        }
        // So do a route server and its members on their LAN.
        if let Some(server) = &plan.route_server {
            let nodes = server.members.iter().map(|member| member.node).chain([server.node]);
            for link in nodes.filter_map(|node| lan::link_to(plan, server.lan, node)) {
                layout.used[link] = true;
            }
        }
        Ok(layout)
    }

    /// Returns the number of the source address of a multicast flow group. Its routes follow the tree back to the
    /// sender, so that packets pass the reverse path check of the kernel.
    fn place_sender(
        &mut self,
        plan: &Plan,
        index: usize,
        treatment: &Treatment,
    ) -> Result<usize, LayoutError> {
        let group = &plan.flows[index];
        let mut number = None;
        for path in group.paths() {
            let reverse = mirrored(path);
            let [receiver, _] = plan.ends(reverse[0]);
            let placed = self.place(plan, group.from, receiver, &reverse, treatment)?;
            debug_assert!(number.is_none_or(|number| number == placed), "the paths of a flow form a tree");
            number = Some(placed);
        }
        Ok(number.expect("a flow has a receiver"))
    }

    /// Returns the number of an address of `to` whose routes follow the path.
    fn place(
        &mut self,
        plan: &Plan,
        to: usize,
        from: usize,
        path: &[Hop],
        treatment: &Treatment,
    ) -> Result<usize, LayoutError> {
        debug_assert_eq!(
            path.first().map(|hop| plan.ends(*hop)[0]),
            Some(from),
            "a path begins at its source"
        );
        debug_assert_eq!(
            path.last().map(|hop| plan.ends(*hop)[1]),
            Some(to),
            "a path ends at its destination"
        );
        let (mut routes, mut tunnels) = (BTreeMap::new(), BTreeMap::new());
        let crossings = plan.crossings(path);
        for (at, &hop) in path.iter().enumerate() {
            self.used[hop.link] = true;
            let crossing =
                crossings.iter().find(|crossing| (crossing.first_inside..crossing.first_after).contains(&at));
            if let Some(crossing) = crossing {
                // Routers inside a tunnel route by the outer address.
                if crossing.first_inside == at {
                    tunnels.insert(plan.ends(hop)[0], crossing.tunnel);
                }
                continue;
            }
            // Customer packets are routed by the PE routers at the ends of the tunnel, not by their kernels.
            let [node, _] = plan.ends(hop);
            if plan.nodes[to].kind == NodeKind::Pe || !pe::routes_hop(plan, treatment.vpn, node, hop) {
                routes.insert(node, hop);
            }
        }
        let addresses = &mut self.addresses[to];
        let is_compatible = |address: &Address| {
            let has_route = |(node, hop)| {
                address.routes.get(node).is_none_or(|other| other == hop)
                    && !address.tunnels.contains_key(node)
            };
            let has_tunnel = |(node, tunnel)| {
                address.tunnels.get(node).is_none_or(|other| other == tunnel)
                    && !address.routes.contains_key(node)
            };
            address.treatment == *treatment && routes.iter().all(has_route) && tunnels.iter().all(has_tunnel)
        };
        let number = match addresses.iter().skip(1).position(is_compatible) {
            Some(position) => position + 1,
            None if addresses.len() == PER_NODE => {
                return Err(LayoutError::TooManyPaths { host: plan.nodes[to].name.clone() });
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
        addresses[number].routes.extend(routes);
        addresses[number].tunnels.extend(tunnels);
        Ok(number)
    }
}

/// Returns the path in the opposite direction over the same links.
fn mirrored(path: &[Hop]) -> Vec<Hop> {
    path.iter().rev().map(|hop| Hop { link: hop.link, direction: 1 - hop.direction }).collect()
}

fn route_options(group: &FlowGroup) -> Option<RouteOptions> {
    let FlowTransport::Tcp(tcp) = &group.transport else { return None };
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

    /// Returns a plan with two paths from `a` to `b`: over `n` (first by name) and over `s`.
    fn diamond(flows: &str) -> Plan {
        let nodes = [("host", "a b"), ("router", "w n s e")];
        let network = network(&nodes, "aw:a,w eb:e,b wn:w,n ws:w,s ne:n,e se:s,e");
        let link = "rate = \"10 Mbit/s\"\nbuffer = \"10 packets\"";
        plan(&format!("[scenario]\nduration = \"1 s\"\n[defaults.link]\n{link}\n{network}{flows}"))
    }

    /// Returns the hops of packets from a node to an address.
    fn walk(plan: &Plan, layout: &AddressLayout, from: usize, to: usize, number: usize) -> Vec<Hop> {
        let (mut node, mut hops) = (from, Vec::new());
        while node != to {
            let hop = layout.addresses[to][number].routes[&node];
            hops.push(hop);
            node = plan.ends(hop)[1];
        }
        hops
    }

    fn assert_flows_take_their_paths(plan: &Plan, layout: &AddressLayout) {
        for (group, placed) in plan.flows.iter().zip(&layout.groups) {
            assert_eq!(walk(plan, layout, group.from, group.to, placed.destination), group.path);
            assert_eq!(walk(plan, layout, group.to, group.from, placed.source), group.reverse);
        }
    }

    #[test]
    fn diverging_paths_have_separate_addresses() {
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
        let layout = AddressLayout::new(&plan).unwrap();
        assert_flows_take_their_paths(&plan, &layout);
        let placement = |name: &str| layout.groups[plan.flows.iter().position(|f| f.name == name).unwrap()];
        assert_eq!(placement("north"), placement("north2"));
        assert_ne!(placement("north").destination, placement("south").destination);
        assert_eq!(placement("round").destination, placement("north").destination);
        assert_ne!(placement("round").source, placement("north").source);
    }

    #[test]
    fn flows_with_different_treatment_have_separate_addresses() {
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
        let layout = AddressLayout::new(&plan).unwrap();
        assert_flows_take_their_paths(&plan, &layout);
        let destinations: std::collections::BTreeSet<_> =
            layout.groups.iter().map(|placed| placed.destination).collect();
        assert_eq!(destinations.len(), 3);
    }

    #[test]
    fn a_multicast_flow_has_a_source_address_of_its_own_on_the_outgoing_link() {
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
        let layout = AddressLayout::new(&plan).unwrap();
        let link = |name: &str| plan.links.iter().position(|link| link.name == name).unwrap();
        let node = |name: &str| plan.nodes.iter().position(|node| node.name == name).unwrap();
        let sources: Vec<usize> = layout.groups.iter().map(|placed| placed.source).collect();
        assert_eq!(sources.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{sources:?}");
        for (index, flow) in plan.flows.iter().enumerate().filter(|(_, flow)| !flow.branches.is_empty()) {
            let address = &layout.addresses[flow.from][layout.groups[index].source];
            assert_eq!(
                address.treatment.multicast,
                Some(MulticastSending { group: index, link: link("aw") })
            );
            // Routes follow the tree back from each receiver.
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
    fn unused_links_are_omitted() {
        let plan = diamond("[flow.tcp]\nfrom = \"a\"\nto = \"b\"");
        let layout = AddressLayout::new(&plan).unwrap();
        let unused: Vec<&str> =
            plan.links.iter().zip(&layout.used).filter(|(_, u)| !**u).map(|(l, _)| l.name.as_str()).collect();
        assert_eq!(unused, ["se", "ws"]);
    }
}
