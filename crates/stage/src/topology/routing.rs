//! Part of a plan that routing daemons handle: the links on which they find routes, and the prefixes that edge routers
//! announce.

use netstage_scenario::plan::{Hop, Plan};
use std::collections::{BTreeMap, VecDeque};

/// Returns whether routing daemons set the routes of a node.
pub fn has_daemons(plan: &Plan, node: usize) -> bool {
    plan.routing.as_ref().is_some_and(|routing| routing.contains(node))
}

/// Returns whether both ends of a link are routers with routing daemons.
pub fn is_inside(plan: &Plan, link: usize) -> bool {
    plan.links[link].ends.iter().all(|end| has_daemons(plan, *end))
}

/// Returns whether edge routers peer over this LAN.
fn is_peering_lan(plan: &Plan, lan: usize) -> bool {
    plan.routing.as_ref().is_some_and(|routing| routing.lan == Some(lan))
}

/// Returns the ends of the links between routers with routing daemons, as pairs of node and link.
pub fn interfaces(plan: &Plan) -> impl Iterator<Item = (usize, usize)> {
    let inside = (0..plan.links.len()).filter(|link| is_inside(plan, *link));
    inside.flat_map(|link| plan.links[link].ends.map(|node| (node, link)))
}

/// Returns the nodes behind each edge router, with the hop to each. They are reached without another router with
/// routing daemons.
pub fn behind(plan: &Plan, used: &[bool]) -> BTreeMap<usize, BTreeMap<usize, Hop>> {
    let edges = plan.routing.iter().flat_map(|routing| &routing.edges);
    edges.map(|edge| (edge.node, behind_edge(plan, used, edge.node))).collect()
}

fn behind_edge(plan: &Plan, used: &[bool], edge: usize) -> BTreeMap<usize, Hop> {
    let mut found: BTreeMap<usize, Hop> = BTreeMap::new();
    let mut queue = VecDeque::from([(edge, None)]);
    while let Some((node, first_hop)) = queue.pop_front() {
        let links = plan.links.iter().enumerate().filter(|(index, _)| used[*index]);
        for (link, direction) in
            links.filter_map(|(index, link)| Some((index, link.ends.iter().position(|end| *end == node)?)))
        {
            let next = plan.links[link].ends[1 - direction];
            if next == edge
                || plan.lan_of(link).is_some_and(|lan| is_peering_lan(plan, lan))
                || has_daemons(plan, next)
                || found.contains_key(&next)
            {
                continue;
            }
            let hop = first_hop.unwrap_or(Hop { link, direction });
            found.insert(next, hop);
            queue.push_back((next, Some(hop)));
        }
    }
    found.retain(|node, _| !plan.is_lan(*node));
    found
}
