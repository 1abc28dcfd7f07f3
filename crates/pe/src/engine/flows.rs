//! VPN flows of a configuration at their ingress, built identically for the engine and for a replay.

use netstage_core::edge::Edge;
use netstage_core::packet::Packet;
use netstage_core::rng::Stream;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::pe::{Flow, Router};
use std::collections::HashMap;

/// Returns all VPN flows, each with the index of its VPN, grouped by VPN.
pub(crate) fn all(router: &Router) -> impl Iterator<Item = (usize, &Flow)> {
    let vpns = router.vpns.iter().enumerate();
    vpns.flat_map(|(number, vpn)| vpn.flows.iter().map(move |flow| (number, flow)))
}

/// Builds the ingress of all VPN flows, in their order.
pub(crate) fn edge<H: Packet>(router: &Router, session_seed: u32, tick: Duration) -> Edge<H> {
    let mut edge = Edge::new(tick);
    for (key, (_, flow)) in all(router).enumerate() {
        let salts = Stream::new(session_seed.into(), "queues").fork(&key.to_string());
        edge.add(Instant::ZERO, &flow.settings, salts);
    }
    edge
}

/// Returns the VPN and peer names of each flow, in flow order.
pub(crate) fn names(router: &Router) -> impl Iterator<Item = (&str, &str)> {
    all(router).map(|(vpn, flow)| (&router.vpns[vpn].name[..], &router.peers[flow.peer].name[..]))
}

/// Returns, for each new flow, the number of the old flow with the same VPN and peer, if any.
pub(crate) fn known<'a>(
    old: impl Iterator<Item = (&'a str, &'a str)>,
    new: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<Option<usize>> {
    let old: HashMap<(&str, &str), usize> = old.enumerate().map(|(number, name)| (name, number)).collect();
    new.map(|name| old.get(&name).copied()).collect()
}
