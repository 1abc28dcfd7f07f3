//! The kernel's routes and neighbors, and notifications of their changes.

use super::Namespace;
use super::lookup::{KernelNeighbor, parse_neighbor_entry};
use super::netlink::{Message, Netlink, NetlinkError};
use netlink_packet_core::{NLM_F_DUMP, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::RouteMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// Receive buffer in bytes, enough for some hundred thousand route changes.
const BUFFER: usize = 64 << 20;
/// Multicast groups of rtnetlink(7).
const GROUPS: [u32; 7] = {
    const LINK: u32 = 1;
    const NEIGHBOR: u32 = 3;
    const V4_ADDRESS: u32 = 5;
    const V4_ROUTE: u32 = 7;
    const V6_ADDRESS: u32 = 9;
    const V6_ROUTE: u32 = 11;
    const MPLS_ROUTE: u32 = 27;
    [LINK, NEIGHBOR, V4_ADDRESS, V4_ROUTE, V6_ADDRESS, V6_ROUTE, MPLS_ROUTE]
};

/// Change notified by the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteNotification {
    /// Route, and whether it exists (`true`) or was deleted.
    Route(Box<RouteMessage>, bool),
    /// Link index and address of a neighbor, and its new MAC address.
    Neighbor(u32, IpAddr, KernelNeighbor),
    /// Change of a link or an address.
    Link,
    /// Notifications were lost: all tables must be read again.
    Overrun,
}

/// Subscription to changes.
#[derive(Debug)]
pub struct RouteMonitor {
    socket: Socket,
    heard: VecDeque<RouteNotification>,
}

impl Netlink {
    /// Returns all routes of all tables, including MPLS routes if the kernel supports them.
    pub fn routes(&mut self) -> Result<Vec<RouteMessage>, NetlinkError> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6, AddressFamily::Mpls] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            let request = Message::GetRoute(message);
            match self.request(request, NLM_F_DUMP, || "list routes".into()) {
                // A kernel without MPLS or IPv6 has no such routes.
                Err(_) if family != AddressFamily::Inet => {}
                answers => routes.extend(answers?.into_iter().filter_map(|answer| match answer {
                    Message::NewRoute(route) if route.header.address_family == family => Some(route),
                    _ => None,
                })),
            }
        }
        Ok(routes)
    }

    /// Returns all known neighbors by link and address.
    pub fn neighbors(&mut self) -> Result<Vec<(u32, IpAddr, KernelNeighbor)>, NetlinkError> {
        let request = Message::GetNeighbour(NeighbourMessage::default());
        let answers = self.request(request, NLM_F_DUMP, || "list neighbors".into())?;
        Ok(answers.iter().filter_map(|answer| neighbor_entry(answer, false)).collect())
    }
}

impl RouteMonitor {
    /// Subscribes to changes.
    pub fn open(namespace: &Namespace) -> io::Result<RouteMonitor> {
        namespace.run(|| {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, 0))?;
            // Groups unknown to the kernel change nothing.
            let memberships = GROUPS.iter().filter(|group| socket.add_membership(**group).is_ok()).count();
            if memberships == 0 {
                return Err(io::Error::last_os_error());
            }
            socket.set_non_blocking(true)?;
            let reference = socket2::SockRef::from(&socket);
            // Only root may exceed the system's limit.
            if socket.set_rx_buf_sz(BUFFER as i32).is_err() {
                reference.set_recv_buffer_size(BUFFER)?;
            }
            Ok(RouteMonitor { socket, heard: VecDeque::new() })
        })?
    }

    /// Returns the next change, if any.
    pub fn poll(&mut self) -> io::Result<Option<RouteNotification>> {
        let mut bytes = Vec::with_capacity(1 << 16);
        while self.heard.is_empty() {
            bytes.clear();
            match self.socket.recv(&mut bytes, 0) {
                Ok(_) => self.heard.extend(parse_notifications(&bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.heard.push_back(RouteNotification::Overrun)
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.heard.pop_front())
    }
}

/// Parses consecutive messages of the kernel.
pub fn parse_notifications(mut rest: &[u8]) -> Vec<RouteNotification> {
    let mut notifications = Vec::new();
    while !rest.is_empty() {
        let Ok(message) = NetlinkMessage::<Message>::deserialize(rest) else {
            // An unreadable message may be a relevant change.
            notifications.push(RouteNotification::Overrun);
            return notifications;
        };
        rest = rest.get((message.header.length as usize).next_multiple_of(4)..).unwrap_or_default();
        let NetlinkPayload::InnerMessage(message) = message.payload else { continue };
        notifications.extend(match message {
            Message::NewRoute(route) => Some(RouteNotification::Route(Box::new(route), true)),
            Message::DelRoute(route) => Some(RouteNotification::Route(Box::new(route), false)),
            Message::NewNeighbour(_) => neighbor_change(&message, false),
            Message::DelNeighbour(_) => neighbor_change(&message, true),
            _ => Some(RouteNotification::Link),
        });
    }
    notifications
}

impl AsFd for RouteMonitor {
    /// Becomes readable on a change.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn neighbor_change(message: &Message, is_gone: bool) -> Option<RouteNotification> {
    neighbor_entry(message, is_gone)
        .map(|(link, address, station)| RouteNotification::Neighbor(link, address, station))
}

fn neighbor_entry(message: &Message, is_gone: bool) -> Option<(u32, IpAddr, KernelNeighbor)> {
    let (Message::NewNeighbour(inner) | Message::DelNeighbour(inner)) = message else { return None };
    let address = inner.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })?;
    let station = if is_gone { KernelNeighbor::Unknown } else { parse_neighbor_entry(message) };
    Some((inner.header.ifindex, address, station))
}
