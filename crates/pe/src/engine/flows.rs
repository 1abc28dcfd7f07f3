//! VPN flows of a configuration at their ingress, built identically for the engine and for a replay.

use netstage_core::edge::ProviderEdge;
use netstage_core::packet::QueuePacket;
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use netstage_scenario::pe::{PeConfig, VpnFlowConfig};
use std::collections::HashMap;

/// Returns all VPN flows, each with the index of its VPN, grouped by VPN.
pub(crate) fn all(router: &PeConfig) -> impl Iterator<Item = (usize, &VpnFlowConfig)> {
    let vpns = router.vpns.iter().enumerate();
    vpns.flat_map(|(number, vpn)| vpn.flows.iter().map(move |flow| (number, flow)))
}

/// Builds the ingress of all VPN flows, in their order.
pub(crate) fn edge<H: QueuePacket>(router: &PeConfig, session_seed: u32, tick: Duration) -> ProviderEdge<H> {
    let mut edge = ProviderEdge::new(tick);
    for (key, (_, flow)) in all(router).enumerate() {
        let salts = RandomStream::new(session_seed.into(), "queues").fork(&key.to_string());
        edge.add(Instant::ZERO, &flow.settings, salts);
    }
    edge
}

/// Returns the VPN and peer names of each flow, in flow order.
pub(crate) fn names(router: &PeConfig) -> impl Iterator<Item = (&str, &str)> {
    all(router).map(|(vpn, flow)| (&router.vpns[vpn].name[..], &router.peers[flow.peer].name[..]))
}

/// Returns, for each new flow, the number of the old flow with the same VPN and peer, if any.
pub(crate) fn matching_old_flows<'a>(
    old: impl Iterator<Item = (&'a str, &'a str)>,
    new: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<Option<usize>> {
    let old: HashMap<(&str, &str), usize> = old.enumerate().map(|(number, name)| (name, number)).collect();
    new.map(|name| old.get(&name).copied()).collect()
}
