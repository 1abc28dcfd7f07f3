//! Netlink messages about routes (rtnetlink(7)), from the kernel or from FRR's forwarding plane manager:
//! IPv4 and IPv6 routes with labels to push, and incoming labels.

use crate::source::path::{Destination, LabelAction, RoutePath, TablePrefix};
use netlink_packet_core::{DefaultNla, Nla as _};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    MplsLabel, RouteAddress, RouteAttribute, RouteLwEnCapType, RouteLwTunnelEncap, RouteMessage,
    RouteMplsIpTunnel, RouteNextHop, RouteNextHopFlags, RouteType, RouteVia,
};
use netstage_wire::mpls::LabelValue;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Attribute type from linux/mpls_iptunnel.h.
const MPLS_IPTUNNEL_DST: u16 = 1;

/// Kernel IDs of interfaces and tables, and the router's own indexes for them.
#[derive(Clone, Debug, Default)]
pub struct KernelIds {
    /// Router interfaces by kernel interface index.
    pub interfaces: std::collections::BTreeMap<u32, u32>,
    /// Kernel index of the loopback interface. A label with a path over it is popped and the packet is
    /// looked up again.
    pub loopback: Option<u32>,
    /// Router tables by kernel table ID.
    pub tables: std::collections::BTreeMap<u32, u32>,
}

/// Content of a route message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsedRoute {
    /// Route with a rank and a destination. `None` stands for "unreachable": packets get an ICMP error.
    Route(TablePrefix, u32, Option<Destination>),
    /// Incoming label and its action.
    Label(LabelValue, LabelAction),
}

/// Object of a route message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// Route with a rank.
    Route(TablePrefix, u32),
    /// Incoming label.
    Label(LabelValue),
}

/// Returns the object of a message, or `None` if it belongs to no table of this router.
pub fn subject(message: &RouteMessage, names: &KernelIds) -> Option<Subject> {
    RouteParts::of(message).subject(message, names)
}

/// Parses a message. Returns `None` if this router does not forward by it.
pub fn parse(message: &RouteMessage, names: &KernelIds) -> Option<ParsedRoute> {
    let route = RouteParts::of(message);
    let (prefix, rank) = match route.subject(message, names)? {
        Subject::Route(prefix, rank) => (prefix, rank),
        Subject::Label(label) => return Some(ParsedRoute::Label(label, route.meaning(names)?)),
    };
    let to = match message.header.kind {
        RouteType::Unicast => Some(Destination::Paths(route.paths(names)?)),
        RouteType::Local | RouteType::Broadcast | RouteType::Anycast => Some(Destination::Local),
        RouteType::BlackHole => Some(Destination::Discard),
        RouteType::Unreachable | RouteType::Prohibit => None,
        _ => return None,
    };
    Some(ParsedRoute::Route(prefix, rank, to))
}

/// Attributes of a route, or of one of its next hops.
#[derive(Default)]
struct RouteParts<'a> {
    table: u32,
    rank: u32,
    destination: Option<&'a RouteAddress>,
    link: Option<u32>,
    via: Option<IpAddr>,
    labels: Vec<LabelValue>,
    /// Raw tunnel attribute of one of several next hops, which is parsed before its type is known.
    tunnel: Option<&'a DefaultNla>,
    is_labeled: bool,
    next_hops: &'a [RouteNextHop],
}

impl<'a> RouteParts<'a> {
    fn of(message: &'a RouteMessage) -> RouteParts<'a> {
        let mut parts = RouteParts { table: message.header.table.into(), ..RouteParts::default() };
        message.attributes.iter().for_each(|attribute| parts.add(attribute));
        parts
    }

    fn subject(&self, message: &RouteMessage, names: &KernelIds) -> Option<Subject> {
        let header = &message.header;
        let address = match (&header.address_family, self.destination) {
            (AddressFamily::Mpls, Some(RouteAddress::Mpls(incoming))) => {
                return Some(Subject::Label(LabelValue::new(incoming.label)?));
            }
            (AddressFamily::Inet, Some(address)) | (AddressFamily::Inet6, Some(address)) => ip(address)?,
            (AddressFamily::Inet, None) => Ipv4Addr::UNSPECIFIED.into(),
            (AddressFamily::Inet6, None) => Ipv6Addr::UNSPECIFIED.into(),
            _ => return None,
        };
        let length = header.destination_prefix_length;
        if !is_prefix(address, length) {
            return None;
        }
        let table = *names.tables.get(&self.table)?;
        Some(Subject::Route((table, (address, length)), self.rank))
    }

    fn add(&mut self, attribute: &'a RouteAttribute) {
        match attribute {
            RouteAttribute::Table(table) => self.table = *table,
            RouteAttribute::Priority(rank) => self.rank = *rank,
            RouteAttribute::Destination(address) => self.destination = Some(address),
            RouteAttribute::Oif(link) => self.link = Some(*link),
            RouteAttribute::Gateway(address) => self.via = ip(address),
            RouteAttribute::Via(RouteVia::Inet(address)) => self.via = Some((*address).into()),
            RouteAttribute::Via(RouteVia::Inet6(address)) => self.via = Some((*address).into()),
            RouteAttribute::NewDestination(labels) => self.labels = labels_to_push(labels),
            RouteAttribute::Encap(parts) => {
                for part in parts {
                    match part {
                        RouteLwTunnelEncap::Mpls(RouteMplsIpTunnel::Destination(labels)) => {
                            self.labels = labels_to_push(labels);
                        }
                        RouteLwTunnelEncap::Other(part) if part.kind() == MPLS_IPTUNNEL_DST => {
                            self.tunnel = Some(part);
                        }
                        _ => {}
                    }
                }
            }
            RouteAttribute::EncapType(kind) => self.is_labeled = *kind == RouteLwEnCapType::Mpls,
            RouteAttribute::MultiPath(next_hops) => self.next_hops = next_hops,
            _ => {}
        }
    }

    /// Returns the paths over interfaces of this router, or `None` if there are none.
    fn paths(self, names: &KernelIds) -> Option<Vec<RoutePath>> {
        let down_flags = RouteNextHopFlags::Dead | RouteNextHopFlags::Linkdown;
        let path_of = |parts: RouteParts<'_>| {
            let interface = *names.interfaces.get(&parts.link?)?;
            Some(RoutePath { interface, via: parts.via, labels: parts.labels })
        };
        let paths: Vec<RoutePath> = match self.next_hops {
            [] => path_of(self).into_iter().collect(),
            next_hops => next_hops
                .iter()
                .filter(|next_hop| !next_hop.flags.intersects(down_flags))
                .filter_map(|next_hop| {
                    let mut parts =
                        RouteParts { link: Some(next_hop.interface_index), ..RouteParts::default() };
                    next_hop.attributes.iter().for_each(|attribute| parts.add(attribute));
                    if let Some(tunnel) = parts.tunnel.filter(|_| parts.is_labeled) {
                        parts.labels = labels_to_push(&stack(tunnel));
                    }
                    path_of(parts)
                })
                .collect(),
        };
        (!paths.is_empty()).then_some(paths)
    }

    fn meaning(self, names: &KernelIds) -> Option<LabelAction> {
        if self.next_hops.is_empty() && self.via.is_none() && self.labels.is_empty() {
            // The label is popped and the packet is looked up again.
            return (self.link.is_none() || self.link == names.loopback)
                .then_some(LabelAction::Pop { table: 0 });
        }
        Some(LabelAction::Forward(Destination::Paths(self.paths(names)?)))
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

/// Returns `true` if the length is valid for the address and no bits are set beyond it. The kernel ensures
/// this, other senders may not.
fn is_prefix(address: IpAddr, length: u8) -> bool {
    match address {
        IpAddr::V4(address) => {
            length <= 32 && u32::from(address).checked_shl(length.into()).unwrap_or(0) == 0
        }
        IpAddr::V6(address) => {
            length <= 128 && u128::from(address).checked_shl(length.into()).unwrap_or(0) == 0
        }
    }
}

/// Returns the label stack entries of a tunnel attribute.
fn stack(tunnel: &DefaultNla) -> Vec<MplsLabel> {
    let mut bytes = vec![0; tunnel.value_len()];
    tunnel.emit_value(&mut bytes);
    let (entries, _) = bytes.as_chunks();
    entries.iter().map(|entry| MplsLabel::from(u32::from_be_bytes(*entry))).collect()
}

/// Returns the labels to push. Implicit null requests that no label be pushed (RFC 3032 section 2.1).
fn labels_to_push(labels: &[MplsLabel]) -> Vec<LabelValue> {
    labels
        .iter()
        .filter_map(|label| LabelValue::new(label.label))
        .filter(|label| *label != LabelValue::IMPLICIT_NULL)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::{Emitable as _, Parseable as _};
    use netlink_packet_route::route::RouteHeader;

    fn names() -> KernelIds {
        KernelIds {
            interfaces: [(3, 0), (4, 1)].into(),
            loopback: Some(1),
            tables: [(254, 0), (255, 0), (10, 1)].into(),
        }
    }

    fn label(label: u32) -> MplsLabel {
        MplsLabel { label, traffic_class: 0, bottom_of_stack: true, ttl: 0 }
    }

    fn labels(numbers: &[u32]) -> Vec<LabelValue> {
        numbers.iter().map(|number| LabelValue::new(*number).unwrap()).collect()
    }

    /// Parses a message after a round trip through its wire format.
    fn received(
        family: AddressFamily,
        length: u8,
        kind: RouteType,
        attributes: Vec<RouteAttribute>,
    ) -> Option<ParsedRoute> {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family,
            destination_prefix_length: length,
            table: 254,
            kind,
            ..RouteHeader::default()
        };
        message.attributes = attributes;
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        let parsed = RouteMessage::parse(&bytes).unwrap();
        parse(&parsed, &names())
    }

    #[test]
    fn a_route_has_a_path_labels_and_a_rank() {
        let attributes = vec![
            RouteAttribute::Destination(RouteAddress::Inet([10, 0, 0, 0].into())),
            RouteAttribute::Priority(20),
            RouteAttribute::Oif(4),
            RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, 1].into())),
            RouteAttribute::EncapType(RouteLwEnCapType::Mpls),
            RouteAttribute::Encap(vec![RouteLwTunnelEncap::Mpls(RouteMplsIpTunnel::Destination(vec![
                MplsLabel { bottom_of_stack: false, ..label(100) },
                label(200),
            ]))]),
        ];
        let path = RoutePath { interface: 1, via: Some([192, 0, 2, 1].into()), labels: labels(&[100, 200]) };
        let to = Some(Destination::Paths(vec![path]));
        let expected = ParsedRoute::Route((0, (IpAddr::from([10, 0, 0, 0]), 8)), 20, to);
        assert_eq!(received(AddressFamily::Inet, 8, RouteType::Unicast, attributes), Some(expected));

        // In a table of a VPN, in an unknown table, and over an unknown interface.
        let of_vpn = vec![RouteAttribute::Table(10), RouteAttribute::Oif(3)];
        let path = RoutePath { interface: 0, via: None, labels: vec![] };
        let to = Some(Destination::Paths(vec![path]));
        let default = ParsedRoute::Route((1, (Ipv6Addr::UNSPECIFIED.into(), 0)), 0, to);
        assert_eq!(received(AddressFamily::Inet6, 0, RouteType::Unicast, of_vpn), Some(default));
        let foreign = vec![RouteAttribute::Table(99), RouteAttribute::Oif(3)];
        assert_eq!(received(AddressFamily::Inet6, 0, RouteType::Unicast, foreign), None);
        assert_eq!(received(AddressFamily::Inet, 0, RouteType::Unicast, vec![RouteAttribute::Oif(9)]), None);
    }

    #[test]
    fn invalid_prefixes_are_ignored() {
        for (address, length, is_accepted) in [
            ([10, 0, 0, 0], 8, true),
            ([10, 0, 0, 1], 8, false),
            ([10, 0, 0, 1], 32, true),
            ([10, 0, 0, 0], 33, false),
        ] {
            let attributes =
                vec![RouteAttribute::Destination(RouteAddress::Inet(address.into())), RouteAttribute::Oif(3)];
            let parsed = received(AddressFamily::Inet, length, RouteType::Unicast, attributes);
            assert_eq!(parsed.is_some(), is_accepted, "{address:?}/{length}");
        }
        // IPv6 address with an invalid prefix length.
        let v6 = vec![
            RouteAttribute::Destination(RouteAddress::Inet6(Ipv6Addr::LOCALHOST)),
            RouteAttribute::Oif(3),
        ];
        assert_eq!(received(AddressFamily::Inet6, 200, RouteType::Unicast, v6), None);
    }

    #[test]
    fn each_next_hop_is_a_path() {
        let next_hop = |index, last, flags| {
            let mut next_hop = RouteNextHop::default();
            next_hop.interface_index = index;
            next_hop.flags = flags;
            next_hop.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, last].into()))];
            next_hop
        };
        let labeled = |last, label| {
            let mut next_hop = next_hop(4, last, RouteNextHopFlags::empty());
            next_hop.attributes.push(RouteAttribute::EncapType(RouteLwEnCapType::Mpls));
            let labels = vec![MplsLabel { label, traffic_class: 0, bottom_of_stack: true, ttl: 0 }];
            let tunnel = RouteLwTunnelEncap::Mpls(RouteMplsIpTunnel::Destination(labels));
            next_hop.attributes.push(RouteAttribute::Encap(vec![tunnel]));
            next_hop
        };
        let none = RouteNextHopFlags::empty();
        let next_hops = vec![
            next_hop(3, 1, none),
            next_hop(4, 2, none),
            next_hop(3, 3, RouteNextHopFlags::Dead),
            labeled(5, 300),
            labeled(6, 3),
        ];
        let attributes = vec![
            RouteAttribute::Destination(RouteAddress::Inet([10, 0, 0, 0].into())),
            RouteAttribute::MultiPath(next_hops),
        ];
        let path =
            |interface, last| RoutePath { interface, via: Some([192, 0, 2, last].into()), labels: vec![] };
        let labeled = RoutePath { labels: labels(&[300]), ..path(1, 5) };
        let to = Some(Destination::Paths(vec![path(0, 1), path(1, 2), labeled, path(1, 6)]));
        let expected = ParsedRoute::Route((0, (IpAddr::from([10, 0, 0, 0]), 8)), 0, to);
        assert_eq!(received(AddressFamily::Inet, 8, RouteType::Unicast, attributes), Some(expected));
    }

    #[test]
    fn route_types_select_the_destination() {
        let parsed = |kind| match received(AddressFamily::Inet, 0, kind, vec![RouteAttribute::Oif(3)]) {
            Some(ParsedRoute::Route(_, _, to)) => Some(to),
            _ => None,
        };
        assert_eq!(parsed(RouteType::Local), Some(Some(Destination::Local)));
        assert_eq!(parsed(RouteType::BlackHole), Some(Some(Destination::Discard)));
        assert_eq!(parsed(RouteType::Unreachable), Some(None));
        assert_eq!(parsed(RouteType::Multicast), None);
    }

    #[test]
    fn labels_are_swapped_removed_or_popped() {
        let parsed = |mut attributes: Vec<RouteAttribute>| {
            attributes.push(RouteAttribute::Destination(RouteAddress::Mpls(label(300))));
            match received(AddressFamily::Mpls, 20, RouteType::Unicast, attributes) {
                Some(ParsedRoute::Label(label, meaning)) if label.number() == 300 => Some(meaning),
                None => None,
                other => panic!("{other:?}"),
            }
        };
        let via = || vec![RouteAttribute::Oif(3), RouteAttribute::Via(RouteVia::Inet([192, 0, 2, 1].into()))];
        let forward = |numbers: &[u32]| {
            let path = RoutePath { interface: 0, via: Some([192, 0, 2, 1].into()), labels: labels(numbers) };
            Some(LabelAction::Forward(Destination::Paths(vec![path])))
        };
        let swap = [via(), vec![RouteAttribute::NewDestination(vec![label(301)])]].concat();
        assert_eq!(parsed(swap), forward(&[301]));
        assert_eq!(parsed(via()), forward(&[]));
        let implicit = [via(), vec![RouteAttribute::NewDestination(vec![label(3)])]].concat();
        assert_eq!(parsed(implicit), forward(&[]));
        assert_eq!(parsed(vec![RouteAttribute::Oif(1)]), Some(LabelAction::Pop { table: 0 }));
        assert_eq!(parsed(vec![RouteAttribute::Oif(9)]), None);
    }
}
