//! UDP and multicast: one numbered and dated packet per emission.

mod multicast;
mod overflow;
mod receive;
mod send;

pub(super) use overflow::Drops;
pub use receive::UdpReceiver;
pub(super) use receive::{Packet, Tracker};
pub use send::UdpSender;

use super::error::Problem;
use super::kernel::set_option;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// Buffers that hold what comes while nobody reads: default ones lose packets before the
/// path does.
const BUFFER: i32 = 8 << 20;

/// Largest UDP payload over IPv4; IPv6 could carry 20 bytes more.
pub(super) const LARGEST: u64 = 65_507;

/// A UDP socket that never blocks, with large buffers, bound to an address.
pub(super) fn bound(address: SocketAddr, share: bool) -> Result<Socket, Problem> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))
        .map_err(Problem::system("opening a UDP socket"))?;
    socket.set_nonblocking(true).map_err(Problem::system("setting the socket up"))?;
    if address.is_ipv6() {
        socket.set_only_v6(true).map_err(Problem::system("setting the socket up"))?;
    }
    if share {
        socket.set_reuse_address(true).map_err(Problem::system("sharing the group's port"))?;
    }
    enlarge(&socket).map_err(Problem::system("enlarging the socket's buffers"))?;
    socket.bind(&SockAddr::from(address)).map_err(|error| Problem::binding(address, error))?;
    Ok(socket)
}

/// Asks for large buffers; without the privilege to exceed the system's limit, up to that.
pub(super) fn enlarge(socket: &Socket) -> io::Result<()> {
    for (forced, asked) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if set_option(socket.as_fd(), libc::SOL_SOCKET, forced, BUFFER).is_err() {
            set_option(socket.as_fd(), libc::SOL_SOCKET, asked, BUFFER)?;
        }
    }
    Ok(())
}

/// Asks the kernel to date what the socket receives, and to say what it drops.
pub(super) fn date_arrivals(socket: &Socket) -> io::Result<()> {
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)
}
