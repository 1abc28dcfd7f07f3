//! What the kernel knows of ways through a network: addresses, the route to an address, and
//! the station of a neighbour; and a bell that rings when any of it changes.

use super::Namespace;
use super::netlink::{Error, Message, Netlink, family};
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

/// An address of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// Number of its link.
    pub link: u32,
    /// The address.
    pub address: IpAddr,
}

/// The first step of the way to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Number of the link it leaves by.
    pub link: u32,
    /// The next router; none where the address itself is on the link.
    pub gateway: Option<IpAddr>,
    /// The address packets would be sent from.
    pub source: Option<IpAddr>,
    /// What the route says the way carries, bytes.
    pub mtu: Option<u32>,
}

/// What is known of a neighbour's station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Station {
    /// Nothing, or it does not answer.
    Unknown,
    /// It was there a while ago; asking again would not hurt.
    Stale([u8; 6]),
    /// It is there.
    Known([u8; 6]),
}

impl Netlink {
    /// All addresses of the namespace, those of the link alone left out.
    pub fn addresses(&mut self) -> Result<Vec<OwnAddress>, Error> {
        let request = Message::GetAddress(AddressMessage::default());
        let answers = self.request(request, NLM_F_DUMP, || "list addresses".into())?;
        let addresses = answers.into_iter().filter_map(|answer| {
            let Message::NewAddress(message) = answer else { return None };
            // On a link between two hosts, `Address` is the other's.
            let local = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(address) => Some(*address),
                _ => None,
            });
            let any = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            });
            let address = local.or(any)?;
            let is_of_link =
                matches!(address, IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80);
            (!is_of_link).then_some(OwnAddress { link: message.header.index, address })
        });
        Ok(addresses.collect())
    }

    /// The way to an address, by the kernel's own choice; from a given address, where that is
    /// to be the source. None where there is none.
    pub fn way_to(&mut self, address: IpAddr, from: Option<IpAddr>) -> Result<Option<Way>, Error> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        message.attributes = vec![RouteAttribute::Destination(RouteAddress::from(address))];
        if let Some(from) = from {
            message.header.source_prefix_length = message.header.destination_prefix_length;
            message.attributes.push(RouteAttribute::Source(RouteAddress::from(from)));
        }
        let action = || format!("find the way to {address}");
        let answers = match self.request(Message::GetRoute(message), 0, action) {
            // "No route to host" is an answer too.
            Err(error) => match error.source.raw_os_error() {
                Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL) => {
                    return Ok(None);
                }
                _ => return Err(error),
            },
            Ok(answers) => answers,
        };
        Ok(answers.into_iter().find_map(|answer| match answer {
            Message::NewRoute(route) if route.header.kind == RouteType::Unicast => way(&route),
            _ => None,
        }))
    }

    /// The station of a neighbour on a link.
    pub fn station(&mut self, link: u32, address: IpAddr) -> Result<Station, Error> {
        Ok(self.neighbour(link, address)?.as_ref().map_or(Station::Unknown, station))
    }

    fn neighbour(&mut self, link: u32, address: IpAddr) -> Result<Option<Message>, Error> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = link;
        message.attributes = vec![destination(address)];
        let action = || format!("find the station of {address}");
        let answers = match self.request(Message::GetNeighbour(message), 0, action) {
            Err(error) if error.source.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            answers => answers?,
        };
        Ok(answers.into_iter().next())
    }

    /// Has the kernel find the station of a neighbour, or see whether it is still there. One that was set by
    /// hand stays: the kernel would forget it for the question.
    pub fn resolve(&mut self, link: u32, address: IpAddr) -> Result<(), Error> {
        if let Ok(Some(Message::NewNeighbour(known))) = self.neighbour(link, address)
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

fn way(route: &RouteMessage) -> Option<Way> {
    let mut way = Way { link: 0, gateway: None, source: None, mtu: None };
    let ip = |address: &RouteAddress| match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    };
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(link) => way.link = *link,
            RouteAttribute::Gateway(address) => way.gateway = ip(address),
            RouteAttribute::Via(RouteVia::Inet(address)) => way.gateway = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => way.gateway = Some((*address).into()),
            RouteAttribute::PrefSource(address) => way.source = ip(address),
            RouteAttribute::Metrics(metrics) => {
                way.mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    (way.link != 0).then_some(way)
}

pub(super) fn station(answer: &Message) -> Station {
    let Message::NewNeighbour(message) = answer else { return Station::Unknown };
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => <[u8; 6]>::try_from(bytes.as_slice()).ok(),
        _ => None,
    });
    match (mac, message.header.state) {
        (Some(mac), NeighbourState::Stale) => Station::Stale(mac),
        (
            Some(mac),
            NeighbourState::Reachable
            | NeighbourState::Delay
            | NeighbourState::Probe
            | NeighbourState::Permanent
            | NeighbourState::Noarp,
        ) => Station::Known(mac),
        _ => Station::Unknown,
    }
}

/// Rings when links, addresses, routes or neighbours of a namespace change.
#[derive(Debug)]
pub struct Bell {
    socket: Socket,
}

impl Bell {
    /// Listens from now on.
    pub fn open(namespace: &Namespace) -> io::Result<Bell> {
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
            Ok(Bell { socket })
        })?
    }

    /// Whether it has rung since it was asked last. What was too much for its buffer has.
    pub fn has_rung(&self) -> bool {
        let mut rung = false;
        let mut bytes = Vec::with_capacity(1 << 16);
        loop {
            bytes.clear();
            match self.socket.recv(&mut bytes, 0) {
                Ok(_) => rung = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return rung,
                Err(_) => return true,
            }
        }
    }
}

impl AsFd for Bell {
    /// Readable when it has rung.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
