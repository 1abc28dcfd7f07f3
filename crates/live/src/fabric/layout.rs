//! From a plan's paths to addresses and routes: pure, so it is tested without a network.
//!
//! The kernel routes by destination, a plan by flow. They agree where every flow group has
//! a destination address whose routes lead along its path, and a source address whose
//! routes lead along the way back. Groups share an address as long as their paths to it
//! never part, and the kernel and the emulator shall treat them alike.

use super::address::PER_NODE;
use crate::task::TcpOptions;
use netstage_core::time::Duration;
use netstage_scenario::plan::{FlowGroup, Hop, Plan, Transport};
use std::collections::BTreeMap;
use std::fmt;

/// Where every flow's ends are, and how packets find them.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    /// The addresses of each node of the plan.
    pub addresses: Vec<Vec<Address>>,
    /// Each flow group's addresses.
    pub groups: Vec<Placement>,
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
    /// At the receiver.
    pub destination: usize,
}

/// A host would need more addresses than there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooManyPaths {
    /// Name of the host.
    pub host: String,
}

impl fmt::Display for TooManyPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "node.{}: its flows take more than {PER_NODE} different ways; spread them over several hosts",
            self.host
        )
    }
}

impl Layout {
    /// Places a plan's flows.
    pub fn new(plan: &Plan) -> Result<Layout, TooManyPaths> {
        let own = || Address { treatment: Treatment::default(), routes: BTreeMap::new() };
        let mut layout = Layout {
            addresses: plan.nodes.iter().map(|_| vec![own()]).collect(),
            groups: Vec::new(),
            used: vec![false; plan.links.len()],
        };
        for (index, group) in plan.flows.iter().enumerate() {
            let treatment = Treatment {
                vpn: group.vpn,
                background: group.background,
                tcp: route_options(group),
                service: group.program.map(|_| index),
            };
            let destination = layout.place(plan, group.to, group.from, &group.path, &treatment)?;
            let source = layout.place(plan, group.from, group.to, &group.reverse, &treatment)?;
            layout.groups.push(Placement { source, destination });
        }
        Ok(layout)
    }

    /// An address at `to` that the path leads to; returns its number.
    fn place(
        &mut self,
        plan: &Plan,
        to: usize,
        from: usize,
        path: &[Hop],
        treatment: &Treatment,
    ) -> Result<usize, TooManyPaths> {
        let mut wanted = BTreeMap::new();
        let mut node = from;
        for &hop in path {
            wanted.insert(node, hop);
            self.used[hop.link] = true;
            node = plan.links[hop.link].ends[1 - hop.direction];
        }
        debug_assert_eq!(node, to, "a path leads to its end");
        let addresses = &mut self.addresses[to];
        let agrees = |address: &Address| {
            address.treatment == *treatment
                && wanted.iter().all(|(node, hop)| address.routes.get(node).is_none_or(|other| other == hop))
        };
        let number = match addresses.iter().skip(1).position(agrees) {
            Some(position) => position + 1,
            None if addresses.len() == PER_NODE => {
                return Err(TooManyPaths { host: plan.nodes[to].name.clone() });
            }
            None => {
                addresses.push(Address { treatment: treatment.clone(), routes: BTreeMap::new() });
                addresses.len() - 1
            }
        };
        addresses[number].routes.extend(wanted);
        Ok(number)
    }
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
    use netstage_scenario::{Options, parse};

    /// Two ways from `a` to `b`: over `n` (shorter by name) and over `s`.
    fn diamond(flows: &str) -> Plan {
        let text = format!(
            r#"
            [scenario]
            duration = "1 s"
            [defaults.link]
            rate = "10 Mbit/s"
            buffer = "10 packets"
            [node.a]
            [node.b]
            [node.w]
            kind = "router"
            [node.n]
            kind = "router"
            [node.s]
            kind = "router"
            [node.e]
            kind = "router"
            [link.aw]
            ends = ["a", "w"]
            [link.eb]
            ends = ["e", "b"]
            [link.wn]
            ends = ["w", "n"]
            [link.ws]
            ends = ["w", "s"]
            [link.ne]
            ends = ["n", "e"]
            [link.se]
            ends = ["s", "e"]
            {flows}"#
        );
        let scenario = parse("diamond.toml", &text, None, &Options::default()).unwrap();
        scenario.cells.into_iter().next().unwrap().plan
    }

    /// The hops packets to one address take from a node.
    fn walk(plan: &Plan, layout: &Layout, from: usize, to: usize, number: usize) -> Vec<Hop> {
        let (mut node, mut hops) = (from, Vec::new());
        while node != to {
            let hop = layout.addresses[to][number].routes[&node];
            hops.push(hop);
            node = plan.links[hop.link].ends[1 - hop.direction];
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
    fn links_nobody_uses_are_left_out() {
        let plan = diamond("[flow.tcp]\nfrom = \"a\"\nto = \"b\"");
        let layout = Layout::new(&plan).unwrap();
        let unused: Vec<&str> =
            plan.links.iter().zip(&layout.used).filter(|(_, u)| !**u).map(|(l, _)| l.name.as_str()).collect();
        assert_eq!(unused, ["se", "ws"]);
    }
}
