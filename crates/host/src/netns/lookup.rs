//! Lookup of addresses, routes and neighbors in the kernel, and notification when any of them changes.

use super::Namespace;
use super::netlink::{Message, Netlink, NetlinkError, family};
use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// Address of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// Index of the link.
    pub link: u32,
    /// The address.
    pub address: IpAddr,
    /// Prefix length of the subnet, bits.
    pub prefix_len: u8,
}

/// Next hop to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    /// Index of the outgoing link.
    pub link: u32,
    /// Next router; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Source address of packets.
    pub source: Option<IpAddr>,
    /// MTU of the route in bytes.
    pub mtu: Option<u32>,
}

/// Neighbor entry with its MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelNeighbor {
    /// Unknown or unreachable.
    Unknown,
    /// Confirmed some time ago; should be probed again.
    Stale([u8; 6]),
    /// Confirmed.
    Reachable([u8; 6]),
}

impl Netlink {
    /// Returns all addresses of the namespace except link-local addresses.
    pub fn addresses(&mut self) -> Result<Vec<LocalAddress>, NetlinkError> {
        let request = Message::GetAddress(AddressMessage::default());
        let answers = self.request(request, NLM_F_DUMP, || "list addresses".into())?;
        let addresses = answers.into_iter().filter_map(|answer| {
            let Message::NewAddress(message) = answer else { return None };
            // On a point-to-point link, `Address` is the peer's.
            let local = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(address) => Some(*address),
                _ => None,
            });
            let remote = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            });
            let address = local.or(remote)?;
            let is_link_local =
                matches!(address, IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80);
            let (link, prefix_len) = (message.header.index, message.header.prefix_len);
            (!is_link_local).then_some(LocalAddress { link, address, prefix_len })
        });
        Ok(addresses.collect())
    }

    /// Returns the kernel's route to an address, optionally with a given source address. `None` if unreachable.
    pub fn route_to(
        &mut self,
        address: IpAddr,
        from: Option<IpAddr>,
    ) -> Result<Option<KernelRoute>, NetlinkError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        message.attributes = vec![RouteAttribute::Destination(RouteAddress::from(address))];
        if let Some(from) = from {
            message.header.source_prefix_length = message.header.destination_prefix_length;
            message.attributes.push(RouteAttribute::Source(RouteAddress::from(from)));
        }
        let action = || format!("find the route to {address}");
        let answers = match self.request(Message::GetRoute(message), 0, action) {
            // "No route to host" is a valid answer.
            Err(error) => match error.source.raw_os_error() {
                Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL) => {
                    return Ok(None);
                }
                _ => return Err(error),
            },
            Ok(answers) => answers,
        };
        Ok(answers.into_iter().find_map(|answer| match answer {
            Message::NewRoute(route) if route.header.kind == RouteType::Unicast => next_hop(&route),
            _ => None,
        }))
    }

    /// Returns the entry of a neighbor on a link.
    pub fn neighbor_entry(&mut self, link: u32, address: IpAddr) -> Result<KernelNeighbor, NetlinkError> {
        Ok(self
            .neighbor_message(link, address)?
            .as_ref()
            .map_or(KernelNeighbor::Unknown, parse_neighbor_entry))
    }

    fn neighbor_message(&mut self, link: u32, address: IpAddr) -> Result<Option<Message>, NetlinkError> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = link;
        message.attributes = vec![destination(address)];
        let action = || format!("find the MAC address of {address}");
        let answers = match self.request(Message::GetNeighbour(message), 0, action) {
            Err(error) if error.source.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            answers => answers?,
        };
        Ok(answers.into_iter().next())
    }

    /// Makes the kernel resolve or probe a neighbor. A static entry is left alone, because the kernel would
    /// delete it.
    pub fn resolve(&mut self, link: u32, address: IpAddr) -> Result<(), NetlinkError> {
        if let Ok(Some(Message::NewNeighbour(known))) = self.neighbor_message(link, address)
            && matches!(known.header.state, NeighbourState::Permanent | NeighbourState::Noarp)
        {
            return Ok(());
        }
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = link;
        message.header.flags = NeighbourFlags::Use;
        message.attributes = vec![destination(address)];
        let action = || format!("resolve {address}");
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.request(Message::NewNeighbour(message), flags, action).map(drop)
    }
}

fn destination(address: IpAddr) -> NeighbourAttribute {
    NeighbourAttribute::Destination(match address {
        IpAddr::V4(address) => NeighbourAddress::Inet(address),
        IpAddr::V6(address) => NeighbourAddress::Inet6(address),
    })
}

fn next_hop(route: &RouteMessage) -> Option<KernelRoute> {
    let mut hop = KernelRoute { link: 0, gateway: None, source: None, mtu: None };
    let ip = |address: &RouteAddress| match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(link) => hop.link = *link,
            RouteAttribute::Gateway(address) => hop.gateway = ip(address),
            RouteAttribute::Via(RouteVia::Inet(address)) => hop.gateway = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => hop.gateway = Some((*address).into()),
            RouteAttribute::PrefSource(address) => hop.source = ip(address),
            RouteAttribute::Metrics(metrics) => {
                hop.mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    (hop.link != 0).then_some(hop)
}

pub(super) fn parse_neighbor_entry(answer: &Message) -> KernelNeighbor {
    let Message::NewNeighbour(message) = answer else { return KernelNeighbor::Unknown };
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => <[u8; 6]>::try_from(bytes.as_slice()).ok(),
        _ => None,
    });
    match (mac, message.header.state) {
        (Some(mac), NeighbourState::Stale) => KernelNeighbor::Stale(mac),
        (
            Some(mac),
            NeighbourState::Reachable
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp,
        ) => KernelNeighbor::Reachable(mac),
        _ => KernelNeighbor::Unknown,
    }
}

/// Notification of changes of links, addresses, routes or neighbors of a namespace.
#[derive(Debug)]
pub struct ChangeMonitor {
    socket: Socket,
}

impl ChangeMonitor {
    /// Subscribes to changes.
    pub fn open(namespace: &Namespace) -> io::Result<ChangeMonitor> {
        let groups = libc::RTMGRP_LINK
            | libc::RTMGRP_NEIGH
            | libc::RTMGRP_IPV4_IFADDR
            | libc::RTMGRP_IPV4_ROUTE
            | libc::RTMGRP_IPV6_IFADDR
            | libc::RTMGRP_IPV6_ROUTE;
        namespace.run(|| {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, groups as u32))?;
            socket.set_non_blocking(true)?;
            Ok(ChangeMonitor { socket })
        })?
    }

    /// Returns whether a change occurred since the last call. A buffer overrun counts as a change.
    pub fn has_changed(&self) -> bool {
        let mut changed = false;
        let mut bytes = Vec::with_capacity(1 << 16);
        loop {
            bytes.clear();
            match self.socket.recv(&mut bytes, 0) {
                Ok(_) => changed = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return changed,
                Err(_) => return true,
            }
        }
    }
}

impl AsFd for ChangeMonitor {
    /// Becomes readable on a change.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
