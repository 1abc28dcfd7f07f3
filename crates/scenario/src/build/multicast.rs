//! Receivers of a multicast flow: the ways to them form a tree, as packets are copied where ways part.

use super::flows::Way;
use super::{Builder, Network};
use crate::file::flow::{self, Flow};
use crate::plan::{Branch, Hop, NodeKind};
use crate::scalar::NodeName;
use crate::table::At;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// By which hop packets come to each node; the sender is not among them.
type Arrivals = BTreeMap<usize, Hop>;

impl Builder<'_, '_> {
    /// The receivers beside the first, and their ways.
    pub(super) fn branches(&mut self, flow: &Flow, network: &Network, way: &Way) -> Option<Vec<Branch>> {
        let mut receivers = vec![way.to];
        let mut branches = Vec::new();
        for named in &flow.to.0[1..] {
            if flow.transport.value != flow::Transport::Multicast {
                let help = "write transport = \"multicast\", or a flow for each receiver";
                self.problems.push_help(named.place, "only a multicast flow has several receivers", help);
                return None;
            }
            let to = self.host(network, named)?;
            if to == way.from {
                self.problems.push(named.place, "a flow goes to another host than it comes from");
                return None;
            }
            if receivers.contains(&to) {
                self.problems.push(named.place, format!("`{}` is listed twice", named.value.0));
                return None;
            }
            if let Some(via) = &flow.via {
                self.problems.push(via.place, "`via` leads to one receiver, and this flow has several");
                return None;
            }
            receivers.push(to);
            branches.push(Branch { to, path: self.shortest(network, way.from, to, named.place)? });
        }
        if flow.transport.value == flow::Transport::Multicast {
            self.check_tree(flow, network, way, &branches)?;
            self.check_scope(flow, way, &branches)?;
        }
        Some(branches)
    }

    /// Routers forward a group's packets from the link they expect them on, and a host sends each
    /// of them once.
    fn check_tree(&mut self, flow: &Flow, network: &Network, way: &Way, branches: &[Branch]) -> Option<()> {
        let mut arrivals = Arrivals::new();
        let ways = std::iter::once(&way.path).chain(branches.iter().map(|branch| &branch.path));
        for (path, named) in ways.zip(&flow.to.0) {
            let Some(first) = path.first() else { continue };
            if path[0] != way.path[0] {
                let link = |hop: &Hop| &self.file.link.0[hop.link].name;
                let message = format!(
                    "the ways to `{}` and `{}` leave `{}` by two links, `{}` and `{}`: a host sends to a group by one",
                    flow.to.0[0].value.0,
                    named.value.0,
                    flow.from.value.0,
                    link(&way.path[0]),
                    link(first),
                );
                let help = "join the sender by one link to a router behind which the ways part, or write a flow for each link";
                self.problems.push_help(named.place, message, help);
                return None;
            }
            self.add_way(network, path, named, &mut arrivals)?;
        }
        Some(())
    }

    fn add_way(
        &mut self,
        network: &Network,
        path: &[Hop],
        named: &At<NodeName>,
        arrivals: &mut Arrivals,
    ) -> Option<()> {
        for hop in path {
            let node = self.end_of(*hop)?;
            if matches!(network.kinds[node], NodeKind::Lan { .. }) {
                let message =
                    format!("the way to `{}` leads through the LAN `{}`", named.value.0, network.names[node]);
                let help = "multicast goes by links between two nodes: put a router there, or join the LAN's stations to one";
                self.problems.push_help(named.place, message, help);
                return None;
            }
            if *arrivals.entry(node).or_insert(*hop) != *hop {
                let name = &network.names[node];
                let message = format!(
                    "the way to `{}` comes to `{name}` by another link than the way to an earlier receiver",
                    named.value.0
                );
                let help = "only the first receiver's way follows `vpn`: leave it out, or write a flow for each receiver";
                self.problems.push_help(named.place, message, help);
                return None;
            }
        }
        Some(())
    }

    /// The node a hop leads to.
    fn end_of(&self, hop: Hop) -> Option<usize> {
        let ends = &self.file.link.0[hop.link].value.as_ref()?.ends;
        self.file.node.index(&ends[1 - hop.direction].value.0)
    }

    /// Some groups are never forwarded.
    fn check_scope(&mut self, flow: &Flow, way: &Way, branches: &[Branch]) -> Option<()> {
        let group = flow.multicast.as_ref().and_then(|multicast| multicast.value.group.as_ref());
        let Some(group) = group.filter(|group| stays_on_its_link(group.value.0)) else { return Some(()) };
        let forwarded = way.path.len() > 1 || branches.iter().any(|branch| branch.path.len() > 1);
        if !forwarded {
            return Some(());
        }
        let message = format!("no router forwards packets to `{}`, and this flow passes one", group.value.0);
        let help = "leave `group` out and one is chosen, or take one of 239.192.0.0/14 or ff18::/16";
        self.problems.push_help(group.place, message, help);
        None
    }
}

/// Groups of the link alone: 224.0.0.0/24 (RFC 5771 section 4), scopes 0 to 2 of IPv6 (RFC 7346).
fn stays_on_its_link(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.octets()[..3] == [224, 0, 0],
        IpAddr::V6(group) => scope(group) <= 2,
    }
}

fn scope(group: Ipv6Addr) -> u8 {
    group.octets()[1] & 0x0f
}
