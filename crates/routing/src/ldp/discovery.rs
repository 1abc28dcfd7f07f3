//! Discovery sockets: one for each interface, which receives multicast hellos, and one at the transport
//! address for targeted hellos.

use super::{LdpInterface, LdpSockets};
use crate::peering::non_blocking_result;
use netstage_core::ldp::{LdpConfig, Scope};
use netstage_wire::ldp::{ALL_ROUTERS, PORT};
use nix::net::if_::if_nametoindex;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::task::{Context, Poll};
use tokio::net::UdpSocket;

/// TTL of link hellos, which routers must not forward.
const LINK_TTL: u32 = 1;
/// TTL of targeted hellos.
const TARGETED_TTL: u32 = 255;

pub(super) struct Discovery {
    /// Sockets of the interfaces, in the order of the configuration.
    links: Vec<UdpSocket>,
    targeted: Option<UdpSocket>,
}

impl Discovery {
    pub(super) fn open(config: &LdpConfig, place: &LdpSockets) -> io::Result<Discovery> {
        let links = place.interfaces.iter().map(|interface| {
            let opened = place.namespace.run(|| link_socket(interface)).flatten();
            opened.and_then(register).map_err(|error| {
                let LdpInterface { name, address } = interface;
                let remedy = "check that the interface exists and has this address";
                io::Error::new(
                    error.kind(),
                    format!("cannot send hellos on {name} from {address}: {error}; {remedy}"),
                )
            })
        });
        let links = links.collect::<io::Result<_>>()?;
        let is_targeted = config.accepts_targeted || !place.targets.is_empty();
        let targeted = is_targeted.then(|| {
            let opened = place.namespace.run(|| targeted_socket(config.transport)).flatten();
            opened.and_then(register).map_err(|error| {
                let message = format!("cannot receive targeted hellos at {}: {error}", config.transport);
                io::Error::new(error.kind(), message)
            })
        });
        Ok(Discovery { links, targeted: targeted.transpose()? })
    }

    pub(super) fn send(&self, scope: Scope, bytes: &[u8]) -> io::Result<()> {
        let (socket, to) = match scope {
            Scope::Link(interface) => (self.links.get(interface), ALL_ROUTERS),
            Scope::Targeted(router) => (self.targeted.as_ref(), router),
        };
        let socket = socket.ok_or(io::ErrorKind::NotFound)?;
        // Sent without readiness check: the first hello precedes the first poll of the socket by the
        // runtime.
        SockRef::from(socket).send_to(bytes, &SocketAddrV4::new(to, PORT).into()).map(drop)
    }

    /// Completes when a socket has a datagram.
    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut sockets = self.links.iter().chain(&self.targeted);
        match sockets.any(|socket| socket.poll_recv_ready(context).is_ready()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Receives a datagram and returns its scope, source address and length.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Option<(Scope, Ipv4Addr, usize)> {
        let links = self.links.iter().enumerate().map(|(number, socket)| (Some(number), socket));
        let all = links.chain(self.targeted.iter().map(|socket| (None, socket)));
        for (interface, socket) in all {
            // Skip errors such as those of an interface that is down.
            if let Ok(Some((length, SocketAddr::V4(source)))) =
                non_blocking_result(socket.try_recv_from(buffer))
            {
                let scope = interface.map_or(Scope::Targeted(*source.ip()), Scope::Link);
                return Some((scope, *source.ip(), length));
            }
        }
        None
    }
}

fn udp_socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    Ok(socket)
}

fn link_socket(interface: &LdpInterface) -> io::Result<Socket> {
    let socket = udp_socket()?;
    let index = if_nametoindex(interface.name.as_str())?;
    socket.bind_device(Some(interface.name.as_bytes()))?;
    socket.join_multicast_v4_n(&ALL_ROUTERS, &InterfaceIndexOrAddress::Index(index))?;
    socket.set_multicast_if_v4(&interface.address)?;
    socket.set_multicast_ttl_v4(LINK_TTL)?;
    // Do not receive hellos of other speakers in the same namespace.
    socket.set_multicast_loop_v4(false)?;
    socket.bind(&SocketAddrV4::new(ALL_ROUTERS, PORT).into())?;
    Ok(socket)
}

fn targeted_socket(transport: Ipv4Addr) -> io::Result<Socket> {
    let socket = udp_socket()?;
    socket.set_ttl_v4(TARGETED_TTL)?;
    socket.bind(&SocketAddrV4::new(transport, PORT).into())?;
    Ok(socket)
}

fn register(socket: Socket) -> io::Result<UdpSocket> {
    UdpSocket::from_std(socket.into())
}
