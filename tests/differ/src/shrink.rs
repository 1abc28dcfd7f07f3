//! Reduces a scenario with a violation to its essential parts.

use crate::network::*;
use std::time::{Duration, Instant};

/// Time spent on one scenario.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns a scenario, as small as possible, that still `fails`.
pub fn shrink(network: &Network, fails: impl Fn(&Network) -> bool) -> Network {
    let start = Instant::now();
    let mut smallest = network.clone();
    'smaller: loop {
        for candidate in candidates(&smallest) {
            if start.elapsed() > LIMIT {
                return smallest;
            }
            if fails(&candidate) {
                smallest = candidate;
                continue 'smaller;
            }
        }
        return smallest;
    }
}

/// Returns scenarios with one part less, or one setting simpler.
fn candidates(network: &Network) -> Vec<Network> {
    let mut candidates: Vec<Network> =
        (0..network.flows.len()).map(|flow| without_flow(network, flow)).collect();
    candidates.retain(|candidate| !candidate.flows.is_empty());
    candidates.extend((0..network.vpns.len()).map(|vpn| without_vpn(network, vpn)));
    candidates.extend(without_unused_nodes(network));
    let mut change = |simplify: &dyn Fn(&mut Network) -> bool| {
        let mut candidate = network.clone();
        if simplify(&mut candidate) {
            candidates.push(candidate);
        }
    };
    change(&|network| {
        let bins = network.duration / network.interval;
        network.duration = bins.div_ceil(2) * network.interval;
        bins > 10
    });
    for node in 0..network.nodes.len() {
        change(&|network| network.nodes[node].device.take().is_some());
    }
    for (link, direction) in (0..network.links.len()).flat_map(|link| [(link, 0), (link, 1)]) {
        for simplify in DIRECTIONS {
            change(&|network| simplify(&mut network.links[link].directions[direction]));
        }
    }
    for flow in 0..network.flows.len() {
        for simplify in FLOWS {
            change(&|network| {
                let twin = network.flows[flow].twin;
                let twins = (0..network.flows.len())
                    .filter(|other| Some(*other) == twin || network.flows[*other].twin == Some(flow));
                let equal: Vec<usize> = twins.chain([flow]).collect();
                equal.into_iter().all(|flow| simplify(&mut network.flows[flow]))
            });
        }
    }
    candidates
}

/// Simplifications of a link direction; each returns whether it changed something.
const DIRECTIONS: &[fn(&mut Direction) -> bool] = &[
    |direction| !std::mem::take(&mut direction.schedule).is_empty(),
    |direction| direction.jitter.take().is_some(),
    |direction| std::mem::replace(&mut direction.loss, 0.0) > 0.0,
    |direction| std::mem::replace(&mut direction.bit_errors, 0.0) > 0.0,
    |direction| std::mem::replace(&mut direction.duplicate, 0.0) > 0.0,
    |direction| std::mem::replace(&mut direction.overhead, 0) > 0,
    |direction| !matches!(std::mem::replace(&mut direction.queue, Queue::DropTail), Queue::DropTail),
    |direction| !matches!(std::mem::replace(&mut direction.buffer, Buffer::Packets(50)), Buffer::Packets(50)),
    |direction| std::mem::replace(&mut direction.delay, 1_000_000) != 1_000_000,
];

/// Simplifications of a flow.
const FLOWS: &[fn(&mut Flow) -> bool] = &[
    |flow| std::mem::replace(&mut flow.count, 1) > 1,
    |flow| std::mem::replace(&mut flow.stagger, 0) > 0,
    |flow| flow.stop.take().is_some(),
    |flow| std::mem::replace(&mut flow.background, false),
    |flow| match flow.traffic {
        Traffic::Poisson { rate, packet }
        | Traffic::OnOff { rate, packet, .. }
        | Traffic::Pareto { rate, packet, .. } => {
            flow.traffic = Traffic::Cbr { rate, packet };
            true
        }
        _ => false,
    },
    |flow| match &mut flow.transport {
        Transport::Tcp(tcp) => std::mem::replace(&mut tcp.algorithm, "newreno") != "newreno",
        _ => false,
    },
    |flow| match &mut flow.transport {
        Transport::Tcp(tcp) => {
            std::mem::replace(&mut tcp.rack, false) | std::mem::replace(&mut tcp.ecn, false)
        }
        _ => false,
    },
];

fn without_flow(network: &Network, gone: usize) -> Network {
    let mut network = network.clone();
    network.flows.remove(gone);
    for flow in &mut network.flows {
        flow.twin = flow.twin.filter(|twin| *twin != gone).map(|twin| twin - usize::from(twin > gone));
    }
    network
}

fn without_vpn(network: &Network, gone: usize) -> Network {
    let mut network = network.clone();
    let vpn = network.vpns.remove(gone);
    for flow in network.flows.iter_mut().filter(|flow| flow.vpn.as_ref() == Some(&vpn.name)) {
        flow.vpn = None;
    }
    network
}

/// Returns the network without the nodes that no flow uses; `None` if all are used.
fn without_unused_nodes(network: &Network) -> Option<Network> {
    let mut used: Vec<String> =
        network.flows.iter().flat_map(|flow| network.path(&flow.from, &flow.to)).collect();
    used.extend(network.vpns.iter().flat_map(|vpn| network.path(&vpn.ingress, &vpn.egress)));
    let mut smaller = network.clone();
    smaller.nodes.retain(|node| used.contains(&node.name));
    smaller.links.retain(|link| link.ends.iter().all(|end| used.contains(end)));
    (smaller.nodes.len() < network.nodes.len()).then_some(smaller)
}
