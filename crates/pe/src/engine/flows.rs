//! VPN flows at their ingress as a configuration describes them, made alike for the engine and
//! for a replay of what it has decided.

use netstage_core::edge::Edge;
use netstage_core::packet::Packet;
use netstage_core::rng::Stream;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::pe::{Flow, Router};
use std::collections::HashMap;

/// All VPN flows, each with the index of its VPN: those of the first VPN first.
pub(crate) fn all(router: &Router) -> impl Iterator<Item = (usize, &Flow)> {
    let vpns = router.vpns.iter().enumerate();
    vpns.flat_map(|(vpn, of)| of.flows.iter().map(move |flow| (vpn, flow)))
}

/// The ingress of all VPN flows, in their order.
pub(crate) fn edge<H: Packet>(router: &Router, session_seed: u32, tick: Duration) -> Edge<H> {
    let mut edge = Edge::new(tick);
    for (key, (_, flow)) in all(router).enumerate() {
        let salts = Stream::new(session_seed.into(), "queues").fork(&key.to_string());
        edge.add(Instant::ZERO, &flow.settings, salts);
    }
    edge
}

/// VPN and peer of each flow, in their order.
pub(crate) fn names(router: &Router) -> impl Iterator<Item = (&str, &str)> {
    all(router).map(|(vpn, flow)| (&router.vpns[vpn].name[..], &router.peers[flow.peer].name[..]))
}

/// For each new flow the number of the old one of the same VPN and peer, where there is one.
pub(crate) fn known<'a>(
    old: impl Iterator<Item = (&'a str, &'a str)>,
    new: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<Option<usize>> {
    let old: HashMap<(&str, &str), usize> = old.enumerate().map(|(number, name)| (name, number)).collect();
    new.map(|name| old.get(&name).copied()).collect()
}
