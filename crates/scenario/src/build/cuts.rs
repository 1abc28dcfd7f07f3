//! Warnings of flows that links cut off until they stop: links that have failed for good, or lose every packet.

use super::Builder;
use crate::plan::{FlowGroup, Hop, NodeKind, Plan};
use netstage_core::time::Instant;
use std::collections::BTreeSet;

impl Builder<'_, '_> {
    /// Warns of the flows that links cut off.
    pub(super) fn warn_of_cuts(&mut self, plan: &Plan) {
        let cuts = cut_links(plan);
        if cuts.is_empty() {
            return;
        }
        for flow in &plan.flows {
            let stop = flow.stop.min(Instant::ZERO + plan.duration);
            let warning = match plan.routing {
                None => warning_of_path(plan, flow, stop),
                Some(_) => warning_of_ends(plan, flow, stop, &cuts),
            };
            self.warnings.extend(warning);
        }
    }
}

/// Returns the links that carry nothing in one direction from a time on, in the order of these times.
fn cut_links(plan: &Plan) -> Vec<(Instant, usize)> {
    let cut = |index: usize| plan.links[index].directions.iter().filter_map(|link| link.cut_from()).min();
    let mut cuts: Vec<(Instant, usize)> =
        (0..plan.links.len()).filter_map(|index| Some((cut(index)?, index))).collect();
    cuts.sort();
    cuts
}

/// Warns of a cut on the path of a flow, which does not change without routing daemons.
fn warning_of_path(plan: &Plan, flow: &FlowGroup, stop: Instant) -> Option<String> {
    let cut = |hop: &Hop| Some((plan.hop(*hop).cut_from()?, &plan.links[hop.link].name));
    let hops = flow.hops();
    let (at, link) = hops.iter().chain(&flow.reverse).filter_map(cut).min().filter(|(at, _)| *at < stop)?;
    Some(format!(
        "flow.{}: link.{link} carries nothing from {} s on, and the path of the flow does not change, so the flow carries \
         nothing either",
        flow.name,
        at.0 as f64 / 1e9
    ))
}

/// Warns of a flow whose ends no path connects once routing daemons have found that links are cut. A link that is cut in one
/// direction serves neither.
fn warning_of_ends(
    plan: &Plan,
    flow: &FlowGroup,
    stop: Instant,
    cuts: &[(Instant, usize)],
) -> Option<String> {
    let branches = flow.branches.iter().map(|branch| branch.to);
    let ends: Vec<usize> = if flow.branches.is_empty() { vec![flow.to] } else { branches.collect() };
    let mut down = BTreeSet::new();
    for (at, link) in cuts.iter().filter(|(at, _)| *at < stop) {
        down.insert(*link);
        let reached = reached(plan, flow.from, &down);
        if ends.iter().any(|end| !reached.contains(end)) {
            return Some(format!(
                "flow.{}: link.{} carries nothing in one direction from {} s on, and no other path connects the ends of the \
                 flow",
                flow.name,
                plan.links[*link].name,
                at.0 as f64 / 1e9
            ));
        }
    }
    None
}

/// Returns the nodes that packets from a node can reach without these links.
fn reached(plan: &Plan, from: usize, down: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut reached = BTreeSet::from([from]);
    let mut pending = vec![from];
    while let Some(node) = pending.pop() {
        // Hosts do not forward.
        if node != from && plan.nodes[node].kind == NodeKind::Host {
            continue;
        }
        let usable = plan.links.iter().enumerate().filter(|(index, _)| !down.contains(index));
        for [one, other] in usable.map(|(_, link)| link.ends) {
            let end = if one == node { other } else { one };
            if (one == node || other == node) && reached.insert(end) {
                pending.push(end);
            }
        }
    }
    reached
}
