//! Receivers of a multicast flow. Their paths form a tree, because packets are copied where the paths part.

use super::flows::FlowPath;
use super::{Builder, NodeGraph};
use crate::file::flow::{self, FlowTable};
use crate::plan::{Branch, Hop, NodeKind};
use crate::scalar::NodeName;
use crate::table::Located;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

/// Hop on which packets arrive at each node except the sender.
type Arrivals = BTreeMap<usize, Hop>;

impl Builder<'_, '_> {
    /// Returns the receivers after the first, with their paths.
    pub(super) fn branches(
        &mut self,
        flow: &FlowTable,
        network: &NodeGraph,
        flow_path: &FlowPath,
    ) -> Option<Vec<Branch>> {
        let mut receivers = vec![flow_path.to];
        let mut branches = Vec::new();
        for named in &flow.to.0[1..] {
            if flow.transport.value != flow::TransportChoice::Multicast {
                let help = "set transport = \"multicast\", or define a flow for each receiver";
                self.problems.push_help(named.place, "only a multicast flow has several receivers", help);
                return None;
            }
            let to = self.host(network, named)?;
            if to == flow_path.from {
                self.problems.push(named.place, "sender and receiver are the same host");
                return None;
            }
            if receivers.contains(&to) {
                self.problems.push(named.place, format!("`{}` is listed twice", named.value.0));
                return None;
            }
            if let Some(via) = &flow.via {
                self.problems.push(via.place, "`via` cannot be used with several receivers");
                return None;
            }
            receivers.push(to);
            branches
                .push(Branch { to, path: self.shortest(network, flow_path.from, to, named.place)?.to_vec() });
        }
        if flow.transport.value == flow::TransportChoice::Multicast {
            self.check_tree(flow, network, flow_path, &branches)?;
            self.check_scope(flow, flow_path, &branches)?;
        }
        Some(branches)
    }

    /// Reports paths that are not a tree: routers forward a group's packets from the expected link only, and a
    /// host sends each packet once.
    fn check_tree(
        &mut self,
        flow: &FlowTable,
        network: &NodeGraph,
        flow_path: &FlowPath,
        branches: &[Branch],
    ) -> Option<()> {
        let mut arrivals = Arrivals::new();
        let paths = std::iter::once(&flow_path.path).chain(branches.iter().map(|branch| &branch.path));
        for (path, named) in paths.zip(flow.to.0.iter()) {
            let Some(first) = path.first() else { continue };
            if path[0] != flow_path.path[0] {
                let link = |hop: &Hop| &self.file.link.0[hop.link].name;
                let message = format!(
                    "the paths to `{}` and `{}` leave `{}` on two links, `{}` and `{}`; a host sends to a group on one",
                    flow.to.0[0].value.0,
                    named.value.0,
                    flow.from.value.0,
                    link(&flow_path.path[0]),
                    link(first),
                );
                let help = "connect the sender with one link to a router behind which the paths part, or define a flow for each link";
                self.problems.push_help(named.place, message, help);
                return None;
            }
            self.add_path(network, path, named, &mut arrivals)?;
        }
        Some(())
    }

    fn add_path(
        &mut self,
        network: &NodeGraph,
        path: &[Hop],
        named: &Located<NodeName>,
        arrivals: &mut Arrivals,
    ) -> Option<()> {
        for hop in path {
            let node = network.hop_ends(*hop)[1];
            if matches!(network.kinds[node], NodeKind::Lan) {
                let message =
                    format!("the path to `{}` crosses the LAN `{}`", named.value.0, network.names[node]);
                let help = "multicast needs links between two nodes: replace the LAN with a router";
                self.problems.push_help(named.place, message, help);
                return None;
            }
            if *arrivals.entry(node).or_insert(*hop) != *hop {
                let name = &network.names[node];
                let message = format!(
                    "the path to `{}` enters `{name}` on another link than the path to an earlier receiver",
                    named.value.0
                );
                let help = "only the path to the first receiver follows `vpn`: remove it, or define a flow for each receiver";
                self.problems.push_help(named.place, message, help);
                return None;
            }
        }
        Some(())
    }

    /// Reports a group that routers never forward, if the flow crosses a router.
    fn check_scope(&mut self, flow: &FlowTable, flow_path: &FlowPath, branches: &[Branch]) -> Option<()> {
        let group = flow.multicast.as_ref().and_then(|multicast| multicast.value.group.as_ref());
        let Some(group) = group.filter(|group| is_link_local(group.value.0)) else { return Some(()) };
        let forwarded = flow_path.path.len() > 1 || branches.iter().any(|branch| branch.path.len() > 1);
        if !forwarded {
            return Some(());
        }
        let message =
            format!("routers do not forward packets to `{}`, and this flow crosses a router", group.value.0);
        let help = "remove `group` to have one chosen, or use one from 239.192.0.0/14 or ff18::/16";
        self.problems.push_help(group.place, message, help);
        None
    }
}

/// Returns whether a group is limited to a link: 224.0.0.0/24 (RFC 5771 section 4), IPv6 scopes 0 to 2 (RFC 7346).
fn is_link_local(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(group) => group.octets()[..3] == [224, 0, 0],
        IpAddr::V6(group) => scope(group) <= 2,
    }
}

fn scope(group: Ipv6Addr) -> u8 {
    group.octets()[1] & 0x0f
}
