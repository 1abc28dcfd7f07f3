//! Whether packets arrive: an ICMP echo from one address to another, through all that is between.

use super::Probe;
use crate::netns::Namespace;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::time::Duration;

/// Longest wait for an answer, within one machine and without the links' delays.
const WAIT: Duration = Duration::from_millis(200);

/// Whether its destination answers.
pub fn arrives(namespace: &Namespace, probe: &Probe) -> bool {
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
