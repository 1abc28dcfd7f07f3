//! Joining and sending to multicast groups: any-source and source-specific (RFC 4607).

use super::error::Problem;
use super::udp::bound;
use socket2::Socket;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Sends by the interface that has the source's address, this many hops far, also to
/// receivers on this host.
pub fn send_to_group(socket: &Socket, source: SocketAddr, ttl: u8) -> io::Result<()> {
    match source.ip() {
        IpAddr::V4(address) => {
            if !address.is_unspecified() {
                socket.set_multicast_if_v4(&address)?;
            }
            socket.set_multicast_loop_v4(true)?;
            socket.set_multicast_ttl_v4(ttl.into())
        }
        IpAddr::V6(_) => {
            if let SocketAddr::V6(address) = source
                && address.scope_id() != 0
            {
                socket.set_multicast_if_v6(address.scope_id())?;
            }
            socket.set_multicast_loop_v6(true)?;
            socket.set_multicast_hops_v6(ttl.into())
        }
    }
}

/// A socket that has joined a group, shared with other receivers on this host.
pub fn join(group: SocketAddr, source: Option<IpAddr>) -> Result<Socket, Problem> {
    if !group.ip().is_multicast() {
        return Err(Problem::Refused("its destination is no multicast group"));
    }
    let socket = bound(group, true)?;
    let joined = match (group.ip(), source) {
        (IpAddr::V4(group), None) => socket
            .set_multicast_all_v4(false)
            .and_then(|()| socket.join_multicast_v4(&group, &Ipv4Addr::UNSPECIFIED)),
        (IpAddr::V4(group), Some(IpAddr::V4(source))) => socket
            .set_multicast_all_v4(false)
            .and_then(|()| socket.join_ssm_v4(&source, &group, &Ipv4Addr::UNSPECIFIED)),
        (IpAddr::V6(group), None) => {
            socket.set_multicast_all_v6(false).and_then(|()| socket.join_multicast_v6(&group, 0))
        }
        _ => {
            return Err(Problem::Refused(
                "source-specific multicast needs a source of the group's address family",
            ));
        }
    };
    joined.map_err(Problem::system("joining the multicast group"))?;
    Ok(socket)
}
