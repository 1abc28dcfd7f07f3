//! STUN (RFC 8489) between agents and their controller: an agent learns at which address others see each of its own.
//! The controller answers at two ports. If it sees two different addresses, the mapping depends on the destination, so
//! that no third host can learn it.

use netstage_agent_api::path::NatMapping;
use netstage_wire::stun::{HEADER, Message, MessageClass, MessageWriter, TransactionId};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ring::rand::{SecureRandom as _, SystemRandom};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

/// UDP ports at which the controller answers.
pub const PORTS: [u16; 2] = [4730, 4731];
/// Time within which the controller has to answer, and the interval at which requests are repeated.
const LIMIT: Duration = Duration::from_millis(1000);
const REPEAT_INTERVAL: Duration = Duration::from_millis(150);
/// Maximum length of a request to which the controller answers, bytes.
const MAX_REQUEST: usize = 128;

/// Answers requests at a socket.
pub async fn answer_requests(socket: tokio::net::UdpSocket) {
    let mut bytes = [0; MAX_REQUEST];
    loop {
        // Errors concern earlier answers.
        let Ok((length, from)) = socket.recv_from(&mut bytes).await else { continue };
        let request =
            Message::read(&bytes[..length]).filter(|message| message.class == MessageClass::Request);
        if let Some(request) = request {
            // A dual-stack socket reports IPv4 addresses as IPv4-mapped IPv6 addresses.
            let seen = SocketAddr::new(from.ip().to_canonical(), from.port());
            let answer = MessageWriter::new(MessageClass::Success, request.transaction).mapped_address(seen);
            let _ = socket.send_to(answer.as_bytes(), from).await;
        }
    }
}

/// Local UDP address and its mappings.
#[derive(Clone, Copy, Debug)]
pub struct ProbedAddress {
    /// Address, and the bound port.
    pub local: SocketAddr,
    /// Addresses seen at the two ports of the controller.
    seen: [Option<SocketAddr>; 2],
}

impl ProbedAddress {
    /// Returns the mapping, if the controller answered.
    pub fn mapping(&self) -> Option<NatMapping> {
        let mapped = self.seen[0].or(self.seen[1])?;
        let varies = self.seen[1].is_some_and(|other| other != mapped);
        Some(NatMapping { address: self.local.ip(), mapped, varies })
    }
}

/// Sends requests from local addresses, whose port may be zero, to the controller. Addresses of the other family have no
/// mapping. Blocks until all are answered, or the time limit. Fails if an address cannot be bound.
pub fn probe(locals: &[SocketAddr], controller: IpAddr) -> io::Result<Vec<ProbedAddress>> {
    let controller = controller.to_canonical();
    let random = SystemRandom::new();
    let mut probed = Vec::new();
    for local in locals {
        let socket = UdpSocket::bind(local)?;
        socket.set_nonblocking(true)?;
        let mut transaction = TransactionId::default();
        random.fill(&mut transaction).map_err(|_| io::Error::other("no random numbers"))?;
        probed.push((socket, transaction, [None; 2]));
    }
    let asks =
        |socket: &UdpSocket| socket.local_addr().is_ok_and(|local| local.is_ipv4() == controller.is_ipv4());
    let start = Instant::now();
    let mut repeat_at = start;
    while start.elapsed() < LIMIT {
        let pending = probed.iter().filter(|(socket, _, seen)| asks(socket) && seen.contains(&None));
        if pending.clone().next().is_none() {
            break;
        }
        if Instant::now() >= repeat_at {
            repeat_at += REPEAT_INTERVAL;
            for (socket, transaction, _) in pending.clone() {
                let request = MessageWriter::new(MessageClass::Request, *transaction);
                for port in PORTS {
                    let _ = socket.send_to(request.as_bytes(), (controller, port));
                }
            }
        }
        let mut polled: Vec<PollFd> =
            pending.map(|(socket, ..)| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        let wait = repeat_at.saturating_duration_since(Instant::now()).as_millis() as u16;
        let _ = poll(&mut polled, PollTimeout::from(wait.max(1)));
        drop(polled);
        for (socket, transaction, seen) in &mut probed {
            receive(socket, transaction, controller, seen);
        }
    }
    let address =
        |(socket, _, seen): (UdpSocket, _, _)| Ok(ProbedAddress { local: socket.local_addr()?, seen });
    probed.into_iter().map(address).collect()
}

/// Receives the answers of the controller.
fn receive(
    socket: &UdpSocket,
    transaction: &TransactionId,
    controller: IpAddr,
    seen: &mut [Option<SocketAddr>; 2],
) {
    let mut bytes = [0; HEADER + MAX_REQUEST];
    // An error may concern an earlier request.
    while let Ok((length, from)) = socket.recv_from(&mut bytes) {
        let server = PORTS.iter().position(|port| from == SocketAddr::new(controller, *port));
        let answer = Message::read(&bytes[..length])
            .filter(|message| message.class == MessageClass::Success && message.transaction == *transaction);
        if let Some((server, mapped)) = server.zip(answer.and_then(|answer| answer.mapped_address())) {
            seen[server] = Some(mapped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_that_differs_between_the_ports_varies() {
        let local = "10.0.0.1:5001".parse().unwrap();
        let seen = |first: &str, second: &str| {
            let seen = [first, second].map(|address| address.parse().ok());
            ProbedAddress { local, seen }.mapping().map(|mapping| (mapping.is_translated(), mapping.varies))
        };
        assert_eq!(seen("10.0.0.1:5001", "10.0.0.1:5001"), Some((false, false)));
        assert_eq!(seen("192.0.2.1:5001", "192.0.2.1:5001"), Some((true, false)));
        assert_eq!(seen("192.0.2.1:5001", "192.0.2.1:5002"), Some((true, true)));
        assert_eq!(seen("", "192.0.2.1:5002"), Some((true, false)));
        assert_eq!(seen("", ""), None);
    }
}
