//! Flows over UDP and multicast: one packet with number and timestamp per emission.

mod multicast;
mod overflow;
mod receive;
mod send;

pub(super) use overflow::Drops;
pub use receive::{FlowPacket, PacketTracker, UdpReceiver};
pub use send::UdpSender;

use super::error::FlowProblem;
use super::kernel::set_option;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// Size of socket buffers in bytes. The default buffers would lose packets that the path delivers.
const BUFFER: i32 = 8 << 20;

/// Maximum UDP payload over IPv4; IPv6 could carry 20 bytes more.
pub(super) const MAX_UDP_PAYLOAD: u64 = 65_507;

/// Opens a non-blocking UDP socket with large buffers, bound to an address.
pub(super) fn bound(address: SocketAddr, share: bool) -> Result<Socket, FlowProblem> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))
        .map_err(FlowProblem::system("opening a UDP socket"))?;
    socket.set_nonblocking(true).map_err(FlowProblem::system("configuring the socket"))?;
    if address.is_ipv6() {
        socket.set_only_v6(true).map_err(FlowProblem::system("configuring the socket"))?;
    }
    if share {
        socket.set_reuse_address(true).map_err(FlowProblem::system("sharing the group's port"))?;
    }
    enlarge(&socket).map_err(FlowProblem::system("enlarging the socket's buffers"))?;
    socket.bind(&SockAddr::from(address)).map_err(|error| FlowProblem::binding(address, error))?;
    Ok(socket)
}

/// Enlarges the buffers; without the privilege to exceed it, up to the system's limit.
pub(super) fn enlarge(socket: &Socket) -> io::Result<()> {
    for (forced, limited) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if set_option(socket.as_fd(), libc::SOL_SOCKET, forced, BUFFER).is_err() {
            set_option(socket.as_fd(), libc::SOL_SOCKET, limited, BUFFER)?;
        }
    }
    Ok(())
}

/// Enables the kernel's arrival timestamps and drop counter.
pub(super) fn enable_arrival_timestamps(socket: &Socket) -> io::Result<()> {
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)
}
