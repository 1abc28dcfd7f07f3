//! Addresses of links, and of neighbours.

use super::Netlink;
use super::netlink::{Error, Link, Message, family};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, CacheInfo,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use std::net::IpAddr;
use std::time::Duration;

impl Netlink {
    /// Gives a link an address, usable at once: duplicates are not looked for.
    pub fn add_address(&mut self, link: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
        let message = self.address_message(link, address, prefix_len)?;
        let action = || format!("add address {address}/{prefix_len} to {link}");
        self.change(Message::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL, action)
    }

    /// Gives a link an address likewise that goes by itself after a while; again, to let it stay as long once more.
    pub fn lend_address(
        &mut self,
        link: &str,
        address: IpAddr,
        prefix_len: u8,
        lifetime: Duration,
    ) -> Result<(), Error> {
        let seconds = lifetime.as_secs() as u32;
        let mut lent = CacheInfo::default();
        (lent.ifa_preferred, lent.ifa_valid) = (seconds, seconds);
        let mut message = self.address_message(link, address, prefix_len)?;
        message.attributes.push(AddressAttribute::CacheInfo(lent));
        let action = || format!("add address {address}/{prefix_len} to {link}");
        self.change(Message::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE, action)
    }

    /// Takes an address from a link.
    pub fn delete_address(&mut self, link: &str, address: IpAddr, prefix_len: u8) -> Result<(), Error> {
        let message = self.address_message(link, address, prefix_len)?;
        let action = || format!("take address {address}/{prefix_len} from {link}");
        self.change(Message::DelAddress(message), 0, action)
    }

    fn address_message(
        &mut self,
        link: &str,
        address: IpAddr,
        prefix_len: u8,
    ) -> Result<AddressMessage, Error> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix_len;
        message.header.index = self.index(link)?;
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        if address.is_ipv6() {
            message.header.flags = AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        Ok(message)
    }

    /// Says for good which Ethernet address a neighbour has.
    pub fn add_neighbour(&mut self, link: &str, address: IpAddr, mac: [u8; 6]) -> Result<(), Error> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = self.index(link)?;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        let destination = match address {
            IpAddr::V4(address) => NeighbourAddress::Inet(address),
            IpAddr::V6(address) => NeighbourAddress::Inet6(address),
        };
        message.attributes = vec![
            NeighbourAttribute::Destination(destination),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        let action = || format!("add neighbour {address} on {link}");
        self.change(Message::NewNeighbour(message), NLM_F_CREATE | NLM_F_EXCL, action)
    }

    /// IPv6 addresses are listed before packets to them are taken: only their local route,
    /// added later by a kernel thread, says that they are.
    pub(super) fn is_ready(&mut self, link: &str) -> Result<bool, Error> {
        let Link { index, running, .. } = self.link(link)?;
        if !running {
            return Ok(false);
        }
        let mut all = AddressMessage::default();
        all.header.family = AddressFamily::Inet6;
        let addresses = self.request(Message::GetAddress(all), NLM_F_DUMP, || "list addresses".into())?;
        for message in addresses {
            let Message::NewAddress(message) = message else { continue };
            let address = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            });
            if message.header.index == index
                && let Some(address) = address
                && !self.is_local(address)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether packets to this address are for this namespace.
    fn is_local(&mut self, address: IpAddr) -> Result<bool, Error> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        message.attributes = vec![RouteAttribute::Destination(RouteAddress::from(address))];
        let answer =
            self.request(Message::GetRoute(message), 0, || format!("find the route to {address}"))?;
        let local = |message: &Message| matches!(message, Message::NewRoute(route) if route.header.kind == RouteType::Local);
        Ok(answer.iter().any(local))
    }

    pub(super) fn index(&mut self, link: &str) -> Result<u32, Error> {
        Ok(self.link(link)?.index)
    }
}
