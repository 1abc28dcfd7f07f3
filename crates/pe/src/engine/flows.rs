//! VPN flows at their ingress as a configuration describes them, made alike for the engine and
//! for a replay of what it has decided.

use super::config::Vpn;
use netstage_core::edge::Edge;
use netstage_core::packet::Packet;
use netstage_core::rng::Stream;
use netstage_core::time::{Duration, Instant};
use std::collections::HashMap;

/// The flows of VPNs, in their order. Their classes must be right.
pub(crate) fn edge<H: Packet>(vpns: &[Vpn], session_seed: u32, tick: Duration) -> Edge<H> {
    let mut edge = Edge::new(tick);
    for (key, flow) in vpns.iter().flat_map(|vpn| &vpn.flows).enumerate() {
        let salts = Stream::new(session_seed.into(), "queues").fork(&key.to_string());
        edge.add(Instant::ZERO, &flow.settings, salts);
    }
    edge
}

/// VPN and peer of each flow, in their order.
pub(crate) fn names(vpns: &[Vpn]) -> impl Iterator<Item = (&str, &str)> {
    vpns.iter().flat_map(|vpn| vpn.flows.iter().map(|flow| (vpn.name.as_str(), flow.peer.as_str())))
}

/// For each new flow the number of the old one of the same VPN and peer, where there is one.
pub(crate) fn known<'a>(
    old: impl Iterator<Item = (&'a str, &'a str)>,
    new: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<Option<usize>> {
    let old: HashMap<(&str, &str), usize> = old.enumerate().map(|(number, name)| (name, number)).collect();
    new.map(|name| old.get(&name).copied()).collect()
}
