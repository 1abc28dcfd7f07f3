//! Whether packets arrive: an ICMP echo from one address to another, through all that is between.

use crate::topology::assignments::Member;
use netstage_host::netns::Namespace;
use netstage_scenario::plan::Plan;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Longest wait for an answer, within one machine and without the links' delays.
const WAIT: Duration = Duration::from_millis(200);

/// A flow's ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Probe {
    /// Index of the sender's node.
    pub node: usize,
    /// The sender's address.
    pub source: IpAddr,
    /// The receiver's address.
    pub destination: IpAddr,
    /// Name of the flow.
    pub flow: String,
}

/// The ends of all flows to a single receiver.
pub fn probes(plan: &Plan, members: &[Member]) -> Vec<Probe> {
    let single = members.iter().filter(|member| !member.destination.ip().is_multicast());
    let probe = |member: &Member| {
        let flow = &plan.flows[member.group];
        let (source, destination) = (member.source, member.destination.ip());
        Probe { node: flow.from, source, destination, flow: flow.name.clone() }
    };
    single.map(probe).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Leaves those whose packets do not arrive yet, and says so of each.
pub fn lacking(probes: &mut Vec<Probe>, nodes: &[Option<Namespace>]) -> Vec<String> {
    let mut lacking = Vec::new();
    probes.retain(|probe| {
        let namespace = nodes[probe.node].as_ref().expect("a node with a flow is used");
        let arrives = arrives(namespace, probe);
        if !arrives {
            lacking.push(format!("flow.{}: {} does not answer", probe.flow, probe.destination));
        }
        !arrives
    });
    lacking
}

/// Whether its destination answers.
fn arrives(namespace: &Namespace, probe: &Probe) -> bool {
    matches!(namespace.run(|| echo(probe)), Ok(Ok(())))
}

fn echo(probe: &Probe) -> io::Result<()> {
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
    let mut answer = [0; 64];
    // A socket of this kind hears answers to its own requests alone; errors about them come as errors.
    let length = (&socket).read(&mut answer)?;
    match answer[..length].first() {
        Some(kind) if *kind == reply => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
