//! Processing of explicit routes (RFC 3209 section 4.3.4.1): selection of the next hop of an LSP.

use super::{RsvpBypass, RsvpNeighbor, RsvpSpeaker, RsvpTransmit};
use alloc::vec;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use netstage_wire::rsvp::route::RouteHop;
use netstage_wire::rsvp::routing_error;

/// Continuation of an LSP at this router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The LSP ends here.
    Egress,
    /// The LSP continues at a neighbor, with this explicit route.
    Neighbor(RsvpNeighbor, Vec<RouteHop>),
}

/// Returns whether a prefix contains an address.
pub(super) fn contains(prefix: Ipv4Addr, length: u8, address: Ipv4Addr) -> bool {
    let shift = 32 - u32::from(length.min(32));
    let network = |address: Ipv4Addr| u64::from(u32::from(address)) >> shift;
    network(prefix) == network(address)
}

impl RsvpSpeaker {
    /// Selects the next hop of an LSP. `hops` begins with this router at all routers but the ingress. The error is a
    /// [`routing_error`].
    pub(super) fn target(
        &self,
        endpoint: Ipv4Addr,
        hops: &[RouteHop],
        is_ingress: bool,
    ) -> Result<Target, u16> {
        let is_supported = |hop: &RouteHop| matches!(hop, RouteHop::Ipv4 { .. });
        if !hops.iter().all(is_supported) {
            return Err(routing_error::BAD_EXPLICIT_ROUTE);
        }
        let own = hops.iter().take_while(|hop| self.is_member(hop)).count();
        if own == 0 && !hops.is_empty() && !is_ingress {
            return Err(routing_error::BAD_FIRST_HOP);
        }
        let rest = &hops[own..];
        let is_egress = self.is_local(endpoint);
        let Some(RouteHop::Ipv4 { address, length, is_loose, .. }) = rest.first().copied() else {
            return match self.route_to(endpoint) {
                _ if is_egress => Ok(Target::Egress),
                Some(neighbor) => {
                    Ok(Target::Neighbor(neighbor, inserted(neighbor, &[RouteHop::loose(endpoint)])))
                }
                None => Err(routing_error::NO_ROUTE),
            };
        };
        if is_egress {
            return Err(routing_error::BAD_EXPLICIT_ROUTE);
        }
        match self.adjacent(address).filter(|_| length == 32) {
            Some(neighbor) => Ok(Target::Neighbor(neighbor, rest.to_vec())),
            None if is_loose => {
                let neighbor = self.route_to(address).ok_or(routing_error::BAD_LOOSE_HOP)?;
                Ok(Target::Neighbor(neighbor, inserted(neighbor, rest)))
            }
            None => Err(routing_error::BAD_STRICT_HOP),
        }
    }

    /// Returns whether this router belongs to the abstract node of a hop.
    fn is_member(&self, hop: &RouteHop) -> bool {
        match *hop {
            RouteHop::Ipv4 { address, length, .. } => {
                self.addresses().any(|own| contains(address, length, own))
            }
            _ => false,
        }
    }

    /// Iterates over the addresses of this router.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> + '_ {
        let interfaces = self.interfaces.values().map(|interface| interface.address);
        core::iter::once(self.config.router).chain(interfaces)
    }

    /// Returns whether an address belongs to this router.
    pub fn is_local(&self, address: Ipv4Addr) -> bool {
        self.config.endpoints.contains_key(&address) || self.addresses().any(|own| own == address)
    }

    /// Returns the neighbor with an address on a connected subnet.
    pub(super) fn adjacent(&self, address: Ipv4Addr) -> Option<RsvpNeighbor> {
        let connected =
            |interface: &super::RsvpInterface| contains(interface.address, interface.length, address);
        let (interface, _) = self.interfaces.iter().find(|(_, interface)| connected(interface))?;
        (!self.is_local(address)).then_some(RsvpNeighbor { interface: *interface, address })
    }

    /// Sets the next hop of a message to a router that is on no link of this one. A message to the end of a bypass LSP begins
    /// on its way. Returns `None` without a route. Other messages are unchanged.
    pub fn routed(&self, transmit: RsvpTransmit) -> Option<RsvpTransmit> {
        let router = transmit.to.address;
        if !transmit.to.is_remote() {
            return Some(transmit);
        }
        let is_usable = |bypass: &&RsvpBypass| {
            bypass.merge_point == router && self.interfaces.contains_key(&bypass.next_hop.interface)
        };
        let bypass = self.bypasses.values().find(is_usable).map(|bypass| bypass.next_hop);
        let to = bypass.or_else(|| self.route_to(router))?;
        Some(RsvpTransmit { to, ..transmit })
    }

    /// Returns the next hop to an address: the neighbor itself, or by the longest prefix.
    fn route_to(&self, address: Ipv4Addr) -> Option<RsvpNeighbor> {
        self.adjacent(address).or_else(|| {
            let matches = |length: &u8| {
                let network = u64::from(u32::from(address)) >> (32 - length) << (32 - length);
                self.routes.get(&(*length, Ipv4Addr::from(network as u32))).copied()
            };
            let neighbor = (0..=32).rev().find_map(|length| matches(&length))?;
            self.interfaces.contains_key(&neighbor.interface).then_some(neighbor)
        })
    }
}

/// Inserts the next hop at the beginning of an explicit route, unless it is its first hop.
fn inserted(neighbor: RsvpNeighbor, rest: &[RouteHop]) -> Vec<RouteHop> {
    let mut route = vec![RouteHop::strict(neighbor.address)];
    let is_first = rest.first().is_some_and(|hop| *hop == RouteHop::loose(neighbor.address));
    route.extend_from_slice(&rest[usize::from(is_first)..]);
    route
}
