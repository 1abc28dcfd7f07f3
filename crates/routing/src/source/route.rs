//! Messages about routes as the kernel has them (rtnetlink(7)), and as FRR's forwarding plane manager
//! sends them: IPv4 and IPv6, with labels to push, and what incoming labels mean.

use crate::source::path::{Destination, Meaning, Path, Prefix};
use netlink_packet_core::{DefaultNla, Nla as _};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    MplsLabel, RouteAddress, RouteAttribute, RouteLwEnCapType, RouteLwTunnelEncap, RouteMessage,
    RouteMplsIpTunnel, RouteNextHop, RouteNextHopFlags, RouteType, RouteVia,
};
use netstage_wire::mpls::Label;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Of linux/mpls_iptunnel.h.
const MPLS_IPTUNNEL_DST: u16 = 1;

/// How the kernel's numbers are the router's.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Interfaces, by the kernel's number: ours.
    pub interfaces: std::collections::BTreeMap<u32, u32>,
    /// The loopback interface, by the kernel's number: what a label leads to there is looked up here.
    pub loopback: Option<u32>,
    /// Tables, by the kernel's number: ours.
    pub tables: std::collections::BTreeMap<u32, u32>,
}

/// What a message tells of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// A route of some rank. No destination: packets there are not to be sent anywhere, and their senders told.
    Route(Prefix, u32, Option<Destination>),
    /// What a label means.
    Label(Label, Meaning),
}

/// Of what a message tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A route of some rank.
    Route(Prefix, u32),
    /// A label.
    Label(Label),
}

/// Of what a message tells; none where it is of no table of this router.
pub fn subject(message: &RouteMessage, names: &Names) -> Option<Subject> {
    Parts::of(message).subject(message, names)
}

/// What a message tells; none where it is of nothing this router forwards by.
pub fn told(message: &RouteMessage, names: &Names) -> Option<Told> {
    let route = Parts::of(message);
    let (prefix, rank) = match route.subject(message, names)? {
        Subject::Route(prefix, rank) => (prefix, rank),
        Subject::Label(label) => return Some(Told::Label(label, route.meaning(names)?)),
    };
    let to = match message.header.kind {
        RouteType::Unicast => Some(Destination::Paths(route.paths(names)?)),
        RouteType::Local | RouteType::Broadcast | RouteType::Anycast => Some(Destination::Local),
        RouteType::BlackHole => Some(Destination::Discard),
        RouteType::Unreachable | RouteType::Prohibit => None,
        _ => return None,
    };
    Some(Told::Route(prefix, rank, to))
}

/// What the attributes of a route, or of one of its next hops, say.
#[derive(Default)]
struct Parts<'a> {
    table: u32,
    rank: u32,
    destination: Option<&'a RouteAddress>,
    link: Option<u32>,
    via: Option<IpAddr>,
    labels: Vec<Label>,
    /// What a tunnel says that was read without knowing its kind: of one of several next hops.
    tunnel: Option<&'a DefaultNla>,
    is_labelled: bool,
    next_hops: &'a [RouteNextHop],
}

impl<'a> Parts<'a> {
    fn of(message: &'a RouteMessage) -> Parts<'a> {
        let mut parts = Parts { table: message.header.table.into(), ..Parts::default() };
        message.attributes.iter().for_each(|attribute| parts.add(attribute));
        parts
    }

    fn subject(&self, message: &RouteMessage, names: &Names) -> Option<Subject> {
        let header = &message.header;
        let address = match (&header.address_family, self.destination) {
            (AddressFamily::Mpls, Some(RouteAddress::Mpls(incoming))) => {
                return Some(Subject::Label(Label::new(incoming.label)?));
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
            RouteAttribute::NewDestination(labels) => self.labels = pushed(labels),
            RouteAttribute::Encap(parts) => {
                for part in parts {
                    match part {
                        RouteLwTunnelEncap::Mpls(RouteMplsIpTunnel::Destination(labels)) => {
                            self.labels = pushed(labels);
                        }
                        RouteLwTunnelEncap::Other(part) if part.kind() == MPLS_IPTUNNEL_DST => {
                            self.tunnel = Some(part);
                        }
                        _ => {}
                    }
                }
            }
            RouteAttribute::EncapType(kind) => self.is_labelled = *kind == RouteLwEnCapType::Mpls,
            RouteAttribute::MultiPath(next_hops) => self.next_hops = next_hops,
            _ => {}
        }
    }

    /// The ways by interfaces of this router; none where there is no such way at all.
    fn paths(self, names: &Names) -> Option<Vec<Path>> {
        let gone = RouteNextHopFlags::Dead | RouteNextHopFlags::Linkdown;
        let one = |parts: Parts<'_>| {
            let interface = *names.interfaces.get(&parts.link?)?;
            Some(Path { interface, via: parts.via, labels: parts.labels })
        };
        let paths: Vec<Path> = match self.next_hops {
            [] => one(self).into_iter().collect(),
            next_hops => next_hops
                .iter()
                .filter(|next_hop| !next_hop.flags.intersects(gone))
                .filter_map(|next_hop| {
                    let mut parts = Parts { link: Some(next_hop.interface_index), ..Parts::default() };
                    next_hop.attributes.iter().for_each(|attribute| parts.add(attribute));
                    if let Some(tunnel) = parts.tunnel.filter(|_| parts.is_labelled) {
                        parts.labels = pushed(&stack(tunnel));
                    }
                    one(parts)
                })
                .collect(),
        };
        (!paths.is_empty()).then_some(paths)
    }

    fn meaning(self, names: &Names) -> Option<Meaning> {
        if self.next_hops.is_empty() && self.via.is_none() && self.labels.is_empty() {
            // Taken off, and looked up again.
            return (self.link.is_none() || self.link == names.loopback).then_some(Meaning::Pop { table: 0 });
        }
        Some(Meaning::Forward(Destination::Paths(self.paths(names)?)))
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

/// Whether an address is of that version's length and has no bits beyond: the kernel's are, others' may not.
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

/// The labels of a stack as it is sent.
fn stack(tunnel: &DefaultNla) -> Vec<MplsLabel> {
    let mut bytes = vec![0; tunnel.value_len()];
    tunnel.emit_value(&mut bytes);
    let (entries, _) = bytes.as_chunks();
    entries.iter().map(|entry| MplsLabel::from(u32::from_be_bytes(*entry))).collect()
}

/// Labels to push; implicit null is the next router's wish that none is (RFC 3032 section 2.1).
fn pushed(labels: &[MplsLabel]) -> Vec<Label> {
    labels
        .iter()
        .filter_map(|label| Label::new(label.label))
        .filter(|label| *label != Label::IMPLICIT_NULL)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::{Emitable as _, Parseable as _};
    use netlink_packet_route::route::RouteHeader;

    fn names() -> Names {
        Names {
            interfaces: [(3, 0), (4, 1)].into(),
            loopback: Some(1),
            tables: [(254, 0), (255, 0), (10, 1)].into(),
        }
    }

    fn label(label: u32) -> MplsLabel {
        MplsLabel { label, traffic_class: 0, bottom_of_stack: true, ttl: 0 }
    }

    fn labels(numbers: &[u32]) -> Vec<Label> {
        numbers.iter().map(|number| Label::new(*number).unwrap()).collect()
    }

    /// A message as it comes by the socket.
    fn received(
        family: AddressFamily,
        length: u8,
        kind: RouteType,
        attributes: Vec<RouteAttribute>,
    ) -> Option<Told> {
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
        told(&parsed, &names())
    }

    #[test]
    fn a_route_tells_its_way_its_labels_and_its_rank() {
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
        let path = Path { interface: 1, via: Some([192, 0, 2, 1].into()), labels: labels(&[100, 200]) };
        let to = Some(Destination::Paths(vec![path]));
        let expected = Told::Route((0, (IpAddr::from([10, 0, 0, 0]), 8)), 20, to);
        assert_eq!(received(AddressFamily::Inet, 8, RouteType::Unicast, attributes), Some(expected));

        // Of another table, or by an interface that is not the router's.
        let of_vpn = vec![RouteAttribute::Table(10), RouteAttribute::Oif(3)];
        let path = Path { interface: 0, via: None, labels: vec![] };
        let to = Some(Destination::Paths(vec![path]));
        let default = Told::Route((1, (Ipv6Addr::UNSPECIFIED.into(), 0)), 0, to);
        assert_eq!(received(AddressFamily::Inet6, 0, RouteType::Unicast, of_vpn), Some(default));
        let foreign = vec![RouteAttribute::Table(99), RouteAttribute::Oif(3)];
        assert_eq!(received(AddressFamily::Inet6, 0, RouteType::Unicast, foreign), None);
        assert_eq!(received(AddressFamily::Inet, 0, RouteType::Unicast, vec![RouteAttribute::Oif(9)]), None);
    }

    #[test]
    fn what_is_no_prefix_is_not_taken() {
        for (address, length, is_taken) in [
            ([10, 0, 0, 0], 8, true),
            ([10, 0, 0, 1], 8, false),
            ([10, 0, 0, 1], 32, true),
            ([10, 0, 0, 0], 33, false),
        ] {
            let attributes =
                vec![RouteAttribute::Destination(RouteAddress::Inet(address.into())), RouteAttribute::Oif(3)];
            let told = received(AddressFamily::Inet, length, RouteType::Unicast, attributes);
            assert_eq!(told.is_some(), is_taken, "{address:?}/{length}");
        }
        // An address of the other version than the message says.
        let v6 = vec![
            RouteAttribute::Destination(RouteAddress::Inet6(Ipv6Addr::LOCALHOST)),
            RouteAttribute::Oif(3),
        ];
        assert_eq!(received(AddressFamily::Inet6, 200, RouteType::Unicast, v6), None);
    }

    #[test]
    fn several_next_hops_are_several_paths() {
        let next_hop = |index, last, flags| {
            let mut next_hop = RouteNextHop::default();
            next_hop.interface_index = index;
            next_hop.flags = flags;
            next_hop.attributes = vec![RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, last].into()))];
            next_hop
        };
        let labelled = |last, label| {
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
            labelled(5, 300),
            labelled(6, 3),
        ];
        let attributes = vec![
            RouteAttribute::Destination(RouteAddress::Inet([10, 0, 0, 0].into())),
            RouteAttribute::MultiPath(next_hops),
        ];
        let path = |interface, last| Path { interface, via: Some([192, 0, 2, last].into()), labels: vec![] };
        let labelled = Path { labels: labels(&[300]), ..path(1, 5) };
        let to = Some(Destination::Paths(vec![path(0, 1), path(1, 2), labelled, path(1, 6)]));
        let expected = Told::Route((0, (IpAddr::from([10, 0, 0, 0]), 8)), 0, to);
        assert_eq!(received(AddressFamily::Inet, 8, RouteType::Unicast, attributes), Some(expected));
    }

    #[test]
    fn kinds_of_routes_are_kinds_of_destinations() {
        let of = |kind| match received(AddressFamily::Inet, 0, kind, vec![RouteAttribute::Oif(3)]) {
            Some(Told::Route(_, _, to)) => Some(to),
            _ => None,
        };
        assert_eq!(of(RouteType::Local), Some(Some(Destination::Local)));
        assert_eq!(of(RouteType::BlackHole), Some(Some(Destination::Discard)));
        assert_eq!(of(RouteType::Unreachable), Some(None));
        assert_eq!(of(RouteType::Multicast), None);
    }

    #[test]
    fn a_label_is_swapped_uncovered_or_popped() {
        let of = |mut attributes: Vec<RouteAttribute>| {
            attributes.push(RouteAttribute::Destination(RouteAddress::Mpls(label(300))));
            match received(AddressFamily::Mpls, 20, RouteType::Unicast, attributes) {
                Some(Told::Label(label, meaning)) if label.number() == 300 => Some(meaning),
                None => None,
                other => panic!("{other:?}"),
            }
        };
        let via = || vec![RouteAttribute::Oif(3), RouteAttribute::Via(RouteVia::Inet([192, 0, 2, 1].into()))];
        let forward = |numbers: &[u32]| {
            let path = Path { interface: 0, via: Some([192, 0, 2, 1].into()), labels: labels(numbers) };
            Some(Meaning::Forward(Destination::Paths(vec![path])))
        };
        let swap = [via(), vec![RouteAttribute::NewDestination(vec![label(301)])]].concat();
        assert_eq!(of(swap), forward(&[301]));
        assert_eq!(of(via()), forward(&[]));
        let implicit = [via(), vec![RouteAttribute::NewDestination(vec![label(3)])]].concat();
        assert_eq!(of(implicit), forward(&[]));
        assert_eq!(of(vec![RouteAttribute::Oif(1)]), Some(Meaning::Pop { table: 0 }));
        assert_eq!(of(vec![RouteAttribute::Oif(9)]), None);
    }
}
