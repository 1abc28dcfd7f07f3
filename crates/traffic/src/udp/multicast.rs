//! Joining and sending to multicast groups: any-source and source-specific (RFC 4607).

use super::super::error::FlowProblem;
use super::super::kernel::join_source;
use super::bound;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{if_nameindex, if_nametoindex};
use socket2::{InterfaceIndexOrAddress, Socket};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

/// Sets up a socket to send through the interface with the source's address, with this TTL, and also to receivers on
/// this host.
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
            if let Some(interface) = interface_of(source.ip())? {
                socket.set_multicast_if_v6(interface)?;
            }
            socket.set_multicast_loop_v6(true)?;
            socket.set_multicast_hops_v6(ttl.into())
        }
    }
}

/// Opens a socket that has joined a group: on the interface with the receiver's address, or on every interface where
/// joining succeeds. The port is shared with other receivers on this host.
pub fn join(
    group: SocketAddr,
    source: Option<IpAddr>,
    receiver: Option<IpAddr>,
) -> Result<Socket, FlowProblem> {
    if !group.ip().is_multicast() {
        return Err(FlowProblem::InvalidTask("the destination is not a multicast group"));
    }
    if source.is_some_and(|source| source.is_ipv4() != group.is_ipv4()) {
        return Err(FlowProblem::InvalidTask("the group and its source have different address families"));
    }
    let socket = bound(group, true)?;
    // Otherwise the socket would receive from groups that other sockets of this host have joined.
    let only_own = match group {
        SocketAddr::V4(_) => socket.set_multicast_all_v4(false),
        SocketAddr::V6(_) => socket.set_multicast_all_v6(false),
    };
    only_own.map_err(FlowProblem::system("setting up multicast"))?;
    let interfaces = match receiver {
        Some(receiver) => interface_of(receiver).map(Vec::from_iter),
        None => if_nameindex()
            .map(|all| all.iter().map(|interface| interface.index()).collect())
            .map_err(io::Error::from),
    };
    let mut result = Err(io::ErrorKind::NotFound.into());
    for interface in interfaces.map_err(FlowProblem::system("listing interfaces"))? {
        let joined = join_on(&socket, interface, group.ip(), source);
        if result.is_err() {
            result = joined;
        }
    }
    result.map_err(FlowProblem::system("joining the multicast group"))?;
    Ok(socket)
}

fn join_on(socket: &Socket, interface: u32, group: IpAddr, source: Option<IpAddr>) -> io::Result<()> {
    match (group, source) {
        (_, Some(source)) => join_source(socket.as_fd(), interface, group, source),
        (IpAddr::V4(group), None) => {
            socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface))
        }
        (IpAddr::V6(group), None) => socket.join_multicast_v6(&group, interface),
    }
}

/// Returns the interface with an address.
fn interface_of(address: IpAddr) -> io::Result<Option<u32>> {
    let is_address = |storage: &nix::sys::socket::SockaddrStorage| match address {
        IpAddr::V4(address) => storage.as_sockaddr_in().is_some_and(|own| own.ip() == address),
        IpAddr::V6(address) => storage.as_sockaddr_in6().is_some_and(|own| own.ip() == address),
    };
    let mut interfaces = getifaddrs()?;
    let owner = interfaces.find(|interface| interface.address.as_ref().is_some_and(is_address));
    Ok(owner.map(|owner| if_nametoindex(owner.interface_name.as_str())).transpose()?)
}
