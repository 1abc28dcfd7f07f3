//! Everything the kernel knows of routes and neighbours, and whatever changes in it.

use super::Namespace;
use super::lookup::{Station, station};
use super::netlink::{Error, Message, Netlink};
use netlink_packet_core::{NLM_F_DUMP, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::RouteMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// Bytes of changes that may wait to be heard: some hundred thousand routes.
const BUFFER: usize = 64 << 20;
/// Groups of rtnetlink(7).
const GROUPS: [u32; 7] = {
    const LINK: u32 = 1;
    const NEIGHBOUR: u32 = 3;
    const V4_ADDRESS: u32 = 5;
    const V4_ROUTE: u32 = 7;
    const V6_ADDRESS: u32 = 9;
    const V6_ROUTE: u32 = 11;
    const MPLS_ROUTE: u32 = 27;
    [LINK, NEIGHBOUR, V4_ADDRESS, V4_ROUTE, V6_ADDRESS, V6_ROUTE, MPLS_ROUTE]
};

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A route is there, or is no more.
    Route(Box<RouteMessage>, bool),
    /// A neighbour on a link, and its station now.
    Neighbour(u32, IpAddr, Station),
    /// Something about links or addresses.
    Link,
    /// More has changed than could be heard: everything is to be looked at anew.
    Overrun,
}

/// Changes, from when it was opened.
#[derive(Debug)]
pub struct Feed {
    socket: Socket,
    heard: VecDeque<Heard>,
}

impl Netlink {
    /// All routes of all tables; of labels, where the kernel knows any.
    pub fn routes(&mut self) -> Result<Vec<RouteMessage>, Error> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6, AddressFamily::Mpls] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            let request = Message::GetRoute(message);
            match self.request(request, NLM_F_DUMP, || "list routes".into()) {
                // A kernel without MPLS or IPv6 has none of it.
                Err(_) if family != AddressFamily::Inet => {}
                answers => routes.extend(answers?.into_iter().filter_map(|answer| match answer {
                    Message::NewRoute(route) if route.header.address_family == family => Some(route),
                    _ => None,
                })),
            }
        }
        Ok(routes)
    }

    /// All neighbours that are known, by link and address.
    pub fn neighbours(&mut self) -> Result<Vec<(u32, IpAddr, Station)>, Error> {
        let request = Message::GetNeighbour(NeighbourMessage::default());
        let answers = self.request(request, NLM_F_DUMP, || "list neighbours".into())?;
        Ok(answers.iter().filter_map(|answer| neighbour(answer, false)).collect())
    }
}

impl Feed {
    /// Listens from now on.
    pub fn open(namespace: &Namespace) -> io::Result<Feed> {
        namespace.run(|| {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, 0))?;
            // Groups the kernel does not have change nothing.
            let joined = GROUPS.iter().filter(|group| socket.add_membership(**group).is_ok()).count();
            if joined == 0 {
                return Err(io::Error::last_os_error());
            }
            socket.set_non_blocking(true)?;
            let reference = socket2::SockRef::from(&socket);
            // More than the system's limit is for root only.
            if socket.set_rx_buf_sz(BUFFER as i32).is_err() {
                reference.set_recv_buffer_size(BUFFER)?;
            }
            Ok(Feed { socket, heard: VecDeque::new() })
        })?
    }

    /// What has changed next; none so far.
    pub fn poll(&mut self) -> io::Result<Option<Heard>> {
        let mut bytes = Vec::with_capacity(1 << 16);
        while self.heard.is_empty() {
            bytes.clear();
            match self.socket.recv(&mut bytes, 0) {
                Ok(_) => self.heard.extend(heard(&bytes)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.heard.push_back(Heard::Overrun)
                }
                Err(error) => return Err(error),
            }
        }
        Ok(self.heard.pop_front())
    }
}

/// What messages of the kernel's, one behind the other, tell.
pub fn heard(mut rest: &[u8]) -> Vec<Heard> {
    let mut heard = Vec::new();
    while !rest.is_empty() {
        let Ok(message) = NetlinkMessage::<Message>::deserialize(rest) else {
            // What cannot be read may be a change that counts.
            heard.push(Heard::Overrun);
            return heard;
        };
        rest = rest.get((message.header.length as usize).next_multiple_of(4)..).unwrap_or_default();
        let NetlinkPayload::InnerMessage(message) = message.payload else { continue };
        heard.extend(match message {
            Message::NewRoute(route) => Some(Heard::Route(Box::new(route), true)),
            Message::DelRoute(route) => Some(Heard::Route(Box::new(route), false)),
            Message::NewNeighbour(_) => told(&message, false),
            Message::DelNeighbour(_) => told(&message, true),
            _ => Some(Heard::Link),
        });
    }
    heard
}

impl AsFd for Feed {
    /// Readable when something has changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn told(message: &Message, is_gone: bool) -> Option<Heard> {
    neighbour(message, is_gone).map(|(link, address, station)| Heard::Neighbour(link, address, station))
}

fn neighbour(message: &Message, is_gone: bool) -> Option<(u32, IpAddr, Station)> {
    let (Message::NewNeighbour(inner) | Message::DelNeighbour(inner)) = message else { return None };
    let address = inner.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })?;
    let station = if is_gone { Station::Unknown } else { station(message) };
    Some((inner.header.ifindex, address, station))
}
