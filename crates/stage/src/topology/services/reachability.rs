//! Reachability probes: ICMP echoes between the ends of flows.

use crate::topology::assignments::PlacedFlow;
use netstage_host::netns::Namespace;
use netstage_scenario::plan::Plan;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Maximum wait for a reply, within one machine and without the delays of links.
const WAIT: Duration = Duration::from_millis(200);

/// Probe between the ends of a flow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReachabilityProbe {
    /// Index of the sender's node.
    pub node: usize,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
    /// Name of the flow.
    pub flow: String,
}

/// Returns the probes of all unicast flows.
pub fn probes(plan: &Plan, members: &[PlacedFlow]) -> Vec<ReachabilityProbe> {
    let single = members.iter().filter(|member| !member.destination.ip().is_multicast());
    let probe = |member: &PlacedFlow| {
        let flow = &plan.flows[member.group];
        let (source, destination) = (member.source, member.destination.ip());
        ReachabilityProbe { node: flow.from, source, destination, flow: flow.name.clone() }
    };
    single.map(probe).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Removes the probes that succeed, and returns a message for each of the others.
pub fn unreachable_flows(probes: &mut Vec<ReachabilityProbe>, nodes: &[Option<Namespace>]) -> Vec<String> {
    let mut lacking = Vec::new();
    probes.retain(|probe| {
        let namespace = nodes[probe.node].as_ref().expect("a node with a flow is used");
        let is_reachable = is_reachable(namespace, probe);
        if !is_reachable {
            lacking.push(format!("flow.{}: {} does not reply", probe.flow, probe.destination));
        }
        !is_reachable
    });
    lacking
}

/// Returns whether the destination replies.
fn is_reachable(namespace: &Namespace, probe: &ReachabilityProbe) -> bool {
    matches!(namespace.run(|| echo(probe)), Ok(Ok(())))
}

fn echo(probe: &ReachabilityProbe) -> io::Result<()> {
    let (protocol, request, reply) = match probe.source.is_ipv4() {
        true => (Protocol::ICMPV4, 8, 0),
        false => (Protocol::ICMPV6, 128, 129),
    };
    let socket =
        Socket::new(Domain::for_address(SocketAddr::new(probe.source, 0)), Type::DGRAM, Some(protocol))?;
    socket.set_read_timeout(Some(WAIT))?;
    socket.bind(&SockAddr::from(SocketAddr::new(probe.source, 0)))?;
    socket.connect(&SockAddr::from(SocketAddr::new(probe.destination, 0)))?;
    socket.send(&[request, 0, 0, 0, 0, 0, 0, 1])?;
    let mut packet = [0; 64];
    // The kernel delivers only replies to this socket's own requests, and ICMP errors as socket errors.
    let length = (&socket).read(&mut packet)?;
    match packet[..length].first() {
        Some(kind) if *kind == reply => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
