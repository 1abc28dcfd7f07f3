//! Addresses of links and neighbors.

use super::Netlink;
use super::netlink::{Message, NetlinkError, NetworkLink, family};
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
    /// Adds an address to a link. It is usable at once, without duplicate address detection.
    pub fn add_address(&mut self, link: &str, address: IpAddr, prefix_len: u8) -> Result<(), NetlinkError> {
        let message = self.address_message(link, address, prefix_len)?;
        let action = || format!("add address {address}/{prefix_len} to {link}");
        self.change(Message::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL, action)
    }

    /// Adds an address that expires after a lifetime; repeat it to renew the lifetime.
    pub fn add_temporary_address(
        &mut self,
        link: &str,
        address: IpAddr,
        prefix_len: u8,
        lifetime: Duration,
    ) -> Result<(), NetlinkError> {
        let seconds = lifetime.as_secs() as u32;
        let mut cache_info = CacheInfo::default();
        (cache_info.ifa_preferred, cache_info.ifa_valid) = (seconds, seconds);
        let mut message = self.address_message(link, address, prefix_len)?;
        message.attributes.push(AddressAttribute::CacheInfo(cache_info));
        let action = || format!("add address {address}/{prefix_len} to {link}");
        self.change(Message::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE, action)
    }

    /// Removes an address from a link.
    pub fn delete_address(
        &mut self,
        link: &str,
        address: IpAddr,
        prefix_len: u8,
    ) -> Result<(), NetlinkError> {
        let message = self.address_message(link, address, prefix_len)?;
        let action = || format!("remove address {address}/{prefix_len} from {link}");
        self.change(Message::DelAddress(message), 0, action)
    }

    fn address_message(
        &mut self,
        link: &str,
        address: IpAddr,
        prefix_len: u8,
    ) -> Result<AddressMessage, NetlinkError> {
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

    /// Adds a permanent neighbor entry.
    pub fn add_neighbor(&mut self, link: &str, address: IpAddr, mac: [u8; 6]) -> Result<(), NetlinkError> {
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
        let action = || format!("add neighbor {address} on {link}");
        self.change(Message::NewNeighbour(message), NLM_F_CREATE | NLM_F_EXCL, action)
    }

    /// Returns whether a link is ready. The kernel lists an IPv6 address before it accepts packets to it; the
    /// local route, added later by a kernel thread, shows that it does.
    pub(super) fn is_ready(&mut self, link: &str) -> Result<bool, NetlinkError> {
        let NetworkLink { index, running, .. } = self.link(link)?;
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

    /// Returns whether packets to this address are delivered to this namespace.
    fn is_local(&mut self, address: IpAddr) -> Result<bool, NetlinkError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        message.attributes = vec![RouteAttribute::Destination(RouteAddress::from(address))];
        let answer =
            self.request(Message::GetRoute(message), 0, || format!("find the route to {address}"))?;
        let local = |message: &Message| matches!(message, Message::NewRoute(route) if route.header.kind == RouteType::Local);
        Ok(answer.iter().any(local))
    }

    pub(super) fn index(&mut self, link: &str) -> Result<u32, NetlinkError> {
        Ok(self.link(link)?.index)
    }
}
