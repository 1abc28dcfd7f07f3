//! Routers that another project's daemons drive: who they are, and whether that can be.

use super::{Builder, Network};
use crate::error::{Place, did_you_mean};
use crate::file::service::{Frr, Service};
use crate::plan::{Edge, NodeKind, Routing};
use crate::scalar::NodeName;
use crate::table::{At, List};
use netstage_core::time::Duration;

impl Builder<'_, '_> {
    /// The routing there is, if any; `None` once what is wrong with it has been said.
    pub(super) fn routing(&mut self, network: &Network) -> Option<Option<Routing>> {
        let file = self.file;
        let services = file.service.0.iter().filter_map(|member| match &member.value {
            Some(Service::Frr(frr)) => Some((member, frr)),
            _ => None,
        });
        let mut found: Vec<_> = services.collect();
        let Some((first, frr)) = found.pop() else { return Some(None) };
        if let Some((other, _)) = found.pop() {
            let message = format!("`{}` drives routers already", other.name);
            self.problems.push_help(first.place, message, "put all of them into one [service.NAME]");
            return None;
        }
        let before = self.problems.len();
        let routing = self.frr(&first.name, frr, network);
        self.ways_are_left_to(&routing);
        (self.problems.len() == before).then_some(Some(routing))
    }

    fn frr(&mut self, name: &str, frr: &Frr, network: &Network) -> Routing {
        let mut core = Vec::new();
        for named in frr.core.iter().flat_map(|core| &core.value.0) {
            let Some(node) = self.node(named) else { continue };
            if core.contains(&node) {
                self.problems.push(named.place, format!("`{}` is named twice", named.value.0));
            }
            core.push(node);
            self.is_router(network, node, named.place);
        }
        let mut edges = Vec::new();
        for member in &frr.edges.0 {
            let Some(node) = self.file.node.index(&member.name) else {
                let help = did_you_mean(&member.name, self.file.node.names());
                let message = format!("there is no node `{}`", member.name.escape_debug());
                self.problems.push_with_help(member.place, message, help);
                continue;
            };
            if core.contains(&node) {
                let message = format!("`{}` is of the core already", member.name);
                self.problems.push_help(member.place, message, "core routers carry no BGP: name it once");
            }
            self.is_router(network, node, member.place);
            let Some(system) = &member.value else { continue };
            edges.push(Edge { node, system: system.0 as u32 });
            let joins = |ends: &[usize; 2]| ends.contains(&node) && ends.iter().any(|end| core.contains(end));
            if !core.is_empty() && !self.joined_nodes().iter().any(joins) {
                let message = format!("no link joins `{}` to the core", member.name);
                self.problems.push_help(
                    member.place,
                    message,
                    "an edge has a link to a core router at least",
                );
            }
        }
        if frr.edges.0.len() < 2 {
            self.problems.push(frr.edges.place, "LSPs lead from edge to edge: name two at least");
        }
        let lan = if frr.core.is_none() { self.common_lan(frr, &edges, network) } else { None };
        if lan.is_some() || frr.core.is_some() {
            self.no_other_lan(&core, &edges, lan, frr.edges.place, network);
        }
        let whole = |span: Duration| span >= Duration::from_secs(1) && span.0.is_multiple_of(1_000_000_000);
        for span in [&frr.hello, &frr.dead] {
            if !whole(span.value.0) || span.value.0 > Duration::from_secs(65_535) {
                self.problems.push(span.place, "daemons count in whole seconds, from 1 s to 65535 s");
            }
        }
        if frr.dead.value.0 <= frr.hello.value.0 {
            let help = "four greetings that are not heard are usual";
            self.problems.push_help(frr.dead.place, "a neighbour would be gone between two greetings", help);
        }
        Routing {
            name: name.into(),
            core,
            lan,
            edges,
            ipv6: frr.ipv6,
            hello: frr.hello.value.0,
            dead: frr.dead.value.0,
            patience: frr.patience.0,
        }
    }

    /// The LAN all edges are joined to.
    fn common_lan(&mut self, frr: &Frr, edges: &[Edge], network: &Network) -> Option<usize> {
        let joined = self.joined_nodes();
        let is_lan = |node: &usize| matches!(network.kinds[*node], NodeKind::Lan { .. });
        let lans = (0..network.kinds.len()).filter(is_lan);
        let lacks = |lan: usize| {
            let on =
                |edge: &&Edge| joined.iter().any(|ends| ends.contains(&edge.node) && ends.contains(&lan));
            edges.iter().find(|edge| !on(edge))
        };
        let nearest = lans.map(|lan| (lan, lacks(lan))).min_by_key(|(_, lacks)| lacks.is_some());
        let message = match nearest {
            Some((lan, None)) => return Some(lan),
            Some((lan, Some(edge))) => {
                format!("no link joins `{}` to the LAN `{}`", network.names[edge.node], network.names[lan])
            }
            None => "these edges have neither a core nor a LAN in common".to_owned(),
        };
        let help = "name the routers between them as `core`, or join every edge to one node of kind \"lan\"";
        self.problems.push_help(frr.edges.place, message, help);
        None
    }

    /// Daemons look for no way through a LAN but the one edges peer over.
    fn no_other_lan(
        &mut self,
        core: &[usize],
        edges: &[Edge],
        lan: Option<usize>,
        place: Place,
        network: &Network,
    ) {
        let joined = self.joined_nodes();
        let driven = core.iter().copied().chain(edges.iter().map(|edge| edge.node));
        for node in driven {
            let others = joined.iter().filter(|ends| ends.contains(&node)).flatten();
            let mut others = others
                .filter(|end| matches!(network.kinds[**end], NodeKind::Lan { .. }) && lan != Some(**end));
            if let Some(other) = others.next() {
                let [node, other] = [node, *other].map(|node| &network.names[node]);
                let message = format!("`{node}` is joined to the LAN `{other}`, which no daemon knows");
                self.problems.push_help(place, message, "put a router between them");
            }
        }
    }

    fn joined_nodes(&self) -> Vec<[usize; 2]> {
        let file = self.file;
        let links = file.link.0.iter().filter_map(|member| member.value.as_ref());
        let index = |name: &At<NodeName>| file.node.index(&name.value.0);
        links.filter_map(|link| Some([index(&link.ends[0])?, index(&link.ends[1])?])).collect()
    }

    fn is_router(&mut self, network: &Network, node: usize, place: Place) {
        if network.kinds[node] != NodeKind::Router {
            let message = format!("`{}` is no router", network.names[node]);
            self.problems.push_help(place, message, "kind = \"router\"");
        }
    }

    /// The daemons choose the ways of flows, so a file does not.
    fn ways_are_left_to(&mut self, routing: &Routing) {
        let file = self.file;
        let driven = |via: &At<List<At<NodeName>>>| {
            via.0.iter().any(|name| file.node.index(&name.value.0).is_some_and(|node| routing.drives(node)))
        };
        let flows = file.flow.0.iter().filter_map(|member| member.value.as_ref());
        let ways = flows.flat_map(|flow| [flow.via.as_ref(), flow.reverse_via.as_ref()]);
        for via in ways.flatten().filter(|via| driven(via)) {
            let help = "leave it out; link rates and OSPF decide";
            self.problems.push_help(via.place, "routing daemons choose the way through these nodes", help);
        }
    }
}
