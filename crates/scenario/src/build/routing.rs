//! Routers that run another project's routing daemons, and checks of their configuration.

use super::{Builder, NodeGraph};
use crate::error::{SourceRange, did_you_mean};
use crate::file::service::{Frr, ServiceTable};
use crate::plan::{EdgeRouter, NodeKind, RoutingService};
use crate::scalar::NodeName;
use crate::table::{List, Located};
use netstage_core::time::Duration;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Minimum hold time of BGP.
const MIN_HOLD: Duration = Duration::from_secs(3);
/// Transmission intervals of FRR's bfdd.
const BFD_INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

impl Builder<'_, '_> {
    /// Returns the routing service, if the file has one; `None` if problems were reported.
    pub(super) fn routing(&mut self, network: &NodeGraph) -> Option<Option<RoutingService>> {
        let file = self.file;
        let services = file.service.0.iter().filter_map(|member| match member.value.as_deref() {
            Some(ServiceTable::Frr(frr)) => Some((member, frr)),
            _ => None,
        });
        let mut found: Vec<_> = services.collect();
        let Some((first, frr)) = found.pop() else { return Some(None) };
        if let Some((other, _)) = found.pop() {
            let message = format!("`{}` already runs routing daemons", other.name);
            self.problems.push_help(first.place, message, "list all routers in one [service.NAME]");
            return None;
        }
        let before = self.problems.found();
        let routing = self.frr(&first.name, frr, network);
        self.check_explicit_paths(&routing);
        (self.problems.found() == before).then_some(Some(routing))
    }

    fn frr(&mut self, name: &str, frr: &Frr, network: &NodeGraph) -> RoutingService {
        let mut core = Vec::new();
        for named in frr.core.iter().flat_map(|core| &core.value.0) {
            let Some(node) = self.node(named) else { continue };
            if core.contains(&node) {
                self.problems.push(named.place, format!("`{}` is listed twice", named.value.0));
            }
            core.push(node);
            self.check_router(network, node, named.place);
        }
        let mut edges = Vec::new();
        for member in frr.edges.0.iter() {
            let Some(node) = self.file.node.index(&member.name) else {
                let help = did_you_mean(&member.name, self.file.node.names());
                let message = format!("unknown node `{}`", member.name.escape_debug());
                self.problems.push_with_help(member.place, message, help);
                continue;
            };
            if core.contains(&node) {
                let message = format!("`{}` is already a core router", member.name);
                self.problems.push_help(member.place, message, "core routers do not run BGP: list it once");
            }
            self.check_router(network, node, member.place);
            let Some(system) = &member.value else { continue };
            edges.push(EdgeRouter { node, system: system.0 as u32 });
            if !core.is_empty() && !is_attached(network, node, &core) {
                let message = format!("no link connects `{}` to the core", member.name);
                self.problems.push_help(member.place, message, "an edge needs a link to a core router");
            }
        }
        if !core.is_empty() {
            self.check_core_connects(&core, &edges, frr.edges.place, network);
        }
        if frr.edges.0.len() < 2 {
            self.problems.push(frr.edges.place, "LSPs run between edges: list at least two");
        }
        let lan = if frr.core.is_none() { self.common_lan(frr, &edges, network) } else { None };
        if lan.is_some() || frr.core.is_some() {
            self.no_other_lan(&core, &edges, lan, frr.edges.place, network);
        }
        let whole = |span: Duration| span >= Duration::from_secs(1) && span.0.is_multiple_of(1_000_000_000);
        for span in [&frr.hello, &frr.dead] {
            if !whole(span.value.0) || span.value.0 > Duration::from_secs(65_535) {
                self.problems.push(span.place, "expected a whole number of seconds, from 1 s to 65535 s");
            }
        }
        if frr.dead.value.0 <= frr.hello.value.0 {
            let help = "four times `hello` is usual";
            self.problems.push_help(frr.dead.place, "`dead` must be longer than `hello`", help);
        }
        if lan.is_some() && frr.dead.value.0 < MIN_HOLD {
            let help = "set 3 s or more (RFC 4271 section 4.2)";
            self.problems.push_help(frr.dead.place, "`dead` is less than the minimum hold time of BGP", help);
        }
        let is_bfd_interval =
            |span: Duration| BFD_INTERVALS.contains(&span) && span.0.is_multiple_of(1_000_000);
        if let Some(bfd) = frr.bfd.as_ref().filter(|bfd| !is_bfd_interval(bfd.value.0)) {
            self.problems.push(bfd.place, "expected a whole number of milliseconds, from 10 ms to 60 s");
        }
        RoutingService {
            name: name.into(),
            core,
            lan,
            edges,
            ipv6: frr.ipv6,
            hello: frr.hello.value.0,
            dead: frr.dead.value.0,
            bfd: frr.bfd.as_ref().map(|bfd| bfd.value.0),
            ready_timeout: frr.patience.0,
        }
    }

    /// Reports edges between which the core has no path, so that their sessions would never be up.
    fn check_core_connects(
        &mut self,
        core: &[usize],
        edges: &[EdgeRouter],
        place: SourceRange,
        network: &NodeGraph,
    ) {
        let mut attached = edges.iter().filter(|edge| is_attached(network, edge.node, core));
        let Some(first) = attached.next().map(|edge| edge.node) else { return };
        let mut reached = BTreeSet::from([first]);
        let mut pending = vec![first];
        while let Some(node) = pending.pop() {
            // Only core routers carry the routes of others.
            if node != first && !core.contains(&node) {
                continue;
            }
            pending.extend(network.topology.neighbors(node).filter(|end| reached.insert(*end)));
        }
        if let Some(edge) = attached.find(|edge| !reached.contains(&edge.node)) {
            let [first, other] = [first, edge.node].map(|node| &network.names[node]);
            let message = format!("the core has no path from `{first}` to `{other}`");
            self.problems.push_help(place, message, "link the routers of `core` to each other");
        }
    }

    /// Returns the LAN that connects all edges.
    fn common_lan(&mut self, frr: &Frr, edges: &[EdgeRouter], network: &NodeGraph) -> Option<usize> {
        let is_lan = |node: &usize| matches!(network.kinds[*node], NodeKind::Lan);
        let lans = (0..network.kinds.len()).filter(is_lan);
        let missing_edge = |lan: usize| {
            let is_on = |edge: &&EdgeRouter| network.topology.neighbors(edge.node).any(|node| node == lan);
            edges.iter().find(|edge| !is_on(edge))
        };
        let nearest = lans.map(|lan| (lan, missing_edge(lan))).min_by_key(|(_, missing)| missing.is_some());
        let message = match nearest {
            Some((lan, None)) => return Some(lan),
            Some((lan, Some(edge))) => {
                format!("no link connects `{}` to the LAN `{}`", network.names[edge.node], network.names[lan])
            }
            None => "these edges share neither a core nor a LAN".to_owned(),
        };
        let help =
            "list the routers between them as `core`, or connect every edge to one node of kind \"lan\"";
        self.problems.push_help(frr.edges.place, message, help);
        None
    }

    /// Reports other LANs: daemons run only on the LAN over which edges peer.
    fn no_other_lan(
        &mut self,
        core: &[usize],
        edges: &[EdgeRouter],
        lan: Option<usize>,
        place: SourceRange,
        network: &NodeGraph,
    ) {
        let driven = core.iter().copied().chain(edges.iter().map(|edge| edge.node));
        for node in driven {
            let mut others = network.topology.neighbors(node);
            if let Some(other) =
                others.find(|end| matches!(network.kinds[*end], NodeKind::Lan) && lan != Some(*end))
            {
                let [node, other] = [node, other].map(|node| &network.names[node]);
                let message = format!("`{node}` is connected to the LAN `{other}`, on which no daemon runs");
                self.problems.push_help(place, message, "put a router between them");
            }
        }
    }

    fn check_router(&mut self, network: &NodeGraph, node: usize, place: SourceRange) {
        if network.kinds[node] != NodeKind::Router {
            let message = format!("`{}` is not a router", network.names[node]);
            self.problems.push_help(place, message, "set kind = \"router\"");
        }
    }

    /// Reports explicit paths through routers whose daemons choose the paths of flows.
    fn check_explicit_paths(&mut self, routing: &RoutingService) {
        let file = self.file;
        let is_driven = |via: &Located<List<Located<NodeName>>>| {
            via.0.iter().any(|name| file.node.index(&name.value.0).is_some_and(|node| routing.contains(node)))
        };
        let flows = file.flow.0.iter().filter_map(|member| member.value.as_ref());
        let paths = flows.flat_map(|flow| [flow.via.as_ref(), flow.reverse_via.as_ref()]);
        for via in paths.flatten().filter(|via| is_driven(via)) {
            let help = "remove it; OSPF chooses by link rate";
            self.problems.push_help(via.place, "routing daemons choose the path through these nodes", help);
        }
    }
}

/// Returns whether a link connects a node to a core router.
fn is_attached(network: &NodeGraph, node: usize, core: &[usize]) -> bool {
    core.contains(&node) || network.topology.neighbors(node).any(|neighbor| core.contains(&neighbor))
}
