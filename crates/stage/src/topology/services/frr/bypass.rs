//! Bypass LSPs of core routers: for each link to another core router, an LSP by RSVP-TE on the shortest other way to it.
//! Packets take it from the detection of a failure until OSPF has found new routes.

use super::configuration::{neighbors, own};
use crate::topology::network::node_interface;
use netstage_scenario::plan::{Plan, RoutingService};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::net::IpAddr;

/// Returns the links between a core router and others, with the other router and its address on the link.
fn core_links(plan: &Plan, routing: &RoutingService, node: usize) -> Vec<(usize, usize, IpAddr)> {
    neighbors(plan, node).filter(|(neighbor, ..)| routing.core.contains(neighbor)).collect()
}

/// Returns the addresses of the routers on the shortest way from `from` to `to` that avoids a link.
fn detour(
    plan: &Plan,
    routing: &RoutingService,
    [from, to]: [usize; 2],
    avoided: usize,
) -> Option<Vec<IpAddr>> {
    let mut ways = BTreeMap::from([(from, Vec::new())]);
    let mut queue = VecDeque::from([from]);
    while let Some(node) = queue.pop_front() {
        for (neighbor, link, address) in core_links(plan, routing, node) {
            if link != avoided && !ways.contains_key(&neighbor) {
                let way = ways[&node].iter().copied().chain([address]).collect();
                ways.insert(neighbor, way);
                queue.push_back(neighbor);
            }
        }
    }
    ways.remove(&to)
}

/// Returns the settings of RSVP-TE in the configuration of a core router.
pub fn settings(plan: &Plan, routing: &RoutingService, node: usize) -> String {
    let mut text = format!("[rsvp]\nrouter_id = \"{}\"\n", own(node));
    let links = core_links(plan, routing, node);
    for (_, link, _) in &links {
        let _ = writeln!(text, "[rsvp.interface.{}]", node_interface(*link));
    }
    for (neighbor, link, protected) in links {
        let Some(way) = detour(plan, routing, [node, neighbor], link) else { continue };
        let way: Vec<String> = way.iter().map(|address| format!("\"{address}\"")).collect();
        let _ = writeln!(
            text,
            "[rsvp.tunnel.around-{}]\nto = \"{}\"\nroute = [{}]\nprotects = \"{protected}\"",
            node_interface(link),
            own(neighbor),
            way.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::plan_of;
    use netstage_harness::scenario::network;

    #[test]
    fn each_core_link_is_bypassed_on_the_shortest_other_way() {
        let scenario = r#"
            [scenario]
            duration = "1 s"
            [defaults.link]
            rate = "10 Mbit/s"
            [service.exchange]
            program = "frr"
            core = ["a", "b", "c", "d"]
            edges = { e = 65001, f = 65002 }
            bfd = "50 ms"
            [flow.x]
            from = "h"
            to = "i"
            "#;
        let nodes = [("host", "h i"), ("router", "a b c d e f")];
        // A square a-b-c-d with a diagonal b-d, and an edge at a and at c.
        let links = "k:a,b l:b,c m:c,d n:d,a o:b,d p:a,e q:c,f r:h,e s:i,f";
        let plan = &plan_of(&format!("{scenario}{}", network(&nodes, links)));
        let routing = plan.routing.as_ref().unwrap();
        let node = |name: &str| plan.nodes.iter().position(|node| node.name == name).unwrap();
        let way = |from: &str, to: &str| {
            let (from, to) = (node(from), node(to));
            let (_, link, _) =
                core_links(plan, routing, from).into_iter().find(|(other, ..)| *other == to).unwrap();
            let way = detour(plan, routing, [from, to], link).unwrap();
            let name = |address: &IpAddr| {
                let at = |node: &usize| neighbors(plan, *node).any(|(.., known)| known == *address);
                // The router of an address is the neighbor of the one that lists it.
                let lister = (0..plan.nodes.len()).find(at).unwrap();
                let (router, ..) = neighbors(plan, lister).find(|(.., known)| known == address).unwrap();
                plan.nodes[router].name.clone()
            };
            way.iter().map(name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(way("a", "b"), "d b");
        assert_eq!(way("b", "a"), "d a");
        assert_eq!(way("c", "d"), "b d");
        let text = settings(plan, routing, node("a"));
        assert_eq!(text.matches("[rsvp.interface.").count(), 2, "not to the edge: {text}");
        assert_eq!(text.matches("protects").count(), 2, "{text}");
        assert_eq!(settings(plan, routing, node("b")).matches("[rsvp.tunnel.").count(), 3);
    }
}
