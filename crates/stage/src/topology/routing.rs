//! What of a plan is left to routing daemons: between which links they find ways, and whom the routers at the
//! edge announce.

use netstage_scenario::plan::{Hop, Plan};
use std::collections::{BTreeMap, VecDeque};

/// Whether daemons drive a node's routes.
pub fn drives(plan: &Plan, node: usize) -> bool {
    plan.routing.as_ref().is_some_and(|routing| routing.drives(node))
}

/// Whether both ends of a link are such routers.
pub fn is_inside(plan: &Plan, link: usize) -> bool {
    plan.links[link].ends.iter().all(|end| drives(plan, *end))
}

/// Whether edges peer over this LAN.
fn is_between(plan: &Plan, lan: usize) -> bool {
    plan.routing.as_ref().is_some_and(|routing| routing.lan == Some(lan))
}

/// The ends of all these links: nodes, and the links there.
pub fn interfaces(plan: &Plan) -> impl Iterator<Item = (usize, usize)> {
    let inside = (0..plan.links.len()).filter(|link| is_inside(plan, *link));
    inside.flat_map(|link| plan.links[link].ends.map(|node| (node, link)))
}

/// The nodes behind each edge, which are reached by no other driven router, with the edge's hop to them.
pub fn behind(plan: &Plan, used: &[bool]) -> BTreeMap<usize, BTreeMap<usize, Hop>> {
    let edges = plan.routing.iter().flat_map(|routing| &routing.edges);
    edges.map(|edge| (edge.node, behind_one(plan, used, edge.node))).collect()
}

fn behind_one(plan: &Plan, used: &[bool], edge: usize) -> BTreeMap<usize, Hop> {
    let mut found: BTreeMap<usize, Hop> = BTreeMap::new();
    let mut reached = VecDeque::from([(edge, None)]);
    while let Some((node, by)) = reached.pop_front() {
        let links = plan.links.iter().enumerate().filter(|(index, _)| used[*index]);
        for (link, direction) in
            links.filter_map(|(index, link)| Some((index, link.ends.iter().position(|end| *end == node)?)))
        {
            let next = plan.links[link].ends[1 - direction];
            if next == edge
                || plan.lan_of(link).is_some_and(|lan| is_between(plan, lan))
                || drives(plan, next)
                || found.contains_key(&next)
            {
                continue;
            }
            let hop = by.unwrap_or(Hop { link, direction });
            found.insert(next, hop);
            reached.push_back((next, Some(hop)));
        }
    }
    found.retain(|node, _| !plan.is_lan(*node));
    found
}
