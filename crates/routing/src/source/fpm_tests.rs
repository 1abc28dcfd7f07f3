//! FPM sessions: in whole frames, in pieces, truncated, reconnected and malformed.

use super::*;
use crate::source::path::{Destination, LabelAction, RoutePath};
use netlink_packet_core::NetlinkHeader;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{
    MplsLabel, RouteAddress, RouteAttribute, RouteHeader, RouteLwEnCapType, RouteLwTunnelEncap, RouteMessage,
    RouteMplsIpTunnel, RouteType, RouteVia,
};
use netstage_wire::mpls::LabelValue;
use proptest::prelude::*;

fn names() -> KernelIds {
    KernelIds { interfaces: [(3, 0)].into(), loopback: Some(1), tables: [(254, 0)].into() }
}

fn frame(message: RouteNetlinkMessage) -> Vec<u8> {
    let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(message));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let length = (bytes.len() + HEADER) as u16;
    [&[VERSION, NETLINK][..], &length.to_be_bytes(), &bytes].concat()
}

fn message(family: AddressFamily, length: u8, attributes: Vec<RouteAttribute>) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: family,
        destination_prefix_length: length,
        table: 254,
        kind: RouteType::Unicast,
        ..RouteHeader::default()
    };
    message.attributes = attributes;
    message
}

fn route(last: u8, has_next_hop: bool) -> RouteMessage {
    let mut attributes = vec![
        RouteAttribute::Destination(RouteAddress::Inet([10, 0, last, 0].into())),
        RouteAttribute::Priority(20),
    ];
    if has_next_hop {
        attributes.push(RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, 1].into())));
        attributes.push(RouteAttribute::Oif(3));
    }
    message(AddressFamily::Inet, 24, attributes)
}

fn new(last: u8) -> Vec<u8> {
    frame(RouteNetlinkMessage::NewRoute(route(last, true)))
}

/// FRR removes a route without its destination.
fn gone(last: u8) -> Vec<u8> {
    frame(RouteNetlinkMessage::DelRoute(route(last, false)))
}

fn swap(from: u32, to: u32) -> Vec<u8> {
    let label = |label| MplsLabel { label, traffic_class: 0, bottom_of_stack: true, ttl: 0 };
    let attributes = vec![
        RouteAttribute::Destination(RouteAddress::Mpls(label(from))),
        RouteAttribute::NewDestination(vec![label(to)]),
        RouteAttribute::Via(RouteVia::Inet([192, 0, 2, 1].into())),
        RouteAttribute::Oif(3),
    ];
    frame(RouteNetlinkMessage::NewRoute(message(AddressFamily::Mpls, 20, attributes)))
}

fn leads(last: u8, there: bool) -> SourceChange {
    let path = RoutePath { interface: 0, via: Some([192, 0, 2, 1].into()), labels: vec![] };
    let prefix = (0, ([10, 0, last, 0].into(), 24));
    SourceChange::Route(prefix, there.then(|| Destination::Paths(vec![path])))
}

fn swaps(from: u32, to: Option<u32>) -> SourceChange {
    let label = |number| LabelValue::new(number).unwrap();
    let meaning = to.map(|to| {
        let path = RoutePath { interface: 0, via: Some([192, 0, 2, 1].into()), labels: vec![label(to)] };
        LabelAction::Forward(Destination::Paths(vec![path]))
    });
    SourceChange::Label(label(from), meaning)
}

fn changes(manager: &mut FpmRoutes) -> Vec<SourceChange> {
    std::iter::from_fn(|| manager.poll_change()).collect()
}

fn seconds(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

#[test]
fn frames_are_reassembled_from_pieces() {
    let mut manager = FpmRoutes::new(names());
    manager.handle_connected(seconds(0));
    for byte in [new(1), swap(300, 301), new(2)].concat() {
        manager.handle_bytes(seconds(1), &[byte]).unwrap();
    }
    assert_eq!(changes(&mut manager), [leads(1, true), swaps(300, Some(301)), leads(2, true)]);
    assert_eq!(manager.poll_timeout(), Instant::NEVER);
}

#[test]
fn a_changed_route_is_not_removed_in_between() {
    let mut manager = FpmRoutes::new(names());
    manager.handle_connected(seconds(0));
    manager.handle_bytes(seconds(1), &[new(1), new(2)].concat()).unwrap();
    changes(&mut manager);
    manager.handle_bytes(seconds(2), &[gone(1), new(1), gone(2)].concat()).unwrap();
    assert_eq!(changes(&mut manager), []);
    let deadline = manager.poll_timeout();
    assert!(deadline <= seconds(2) + REPLACE_DELAY);
    manager.handle_timeout(deadline);
    assert_eq!(changes(&mut manager), [leads(2, false)]);
    assert_eq!(manager.poll_timeout(), Instant::NEVER);
}

#[test]
fn a_route_to_an_unknown_interface_is_removed() {
    let mut manager = FpmRoutes::new(names());
    manager.handle_connected(seconds(0));
    manager.handle_bytes(seconds(1), &new(1)).unwrap();
    changes(&mut manager);
    let mut elsewhere = route(1, true);
    elsewhere.attributes.pop();
    elsewhere.attributes.push(RouteAttribute::Oif(9));
    manager.handle_bytes(seconds(2), &frame(RouteNetlinkMessage::NewRoute(elsewhere))).unwrap();
    manager.handle_timeout(manager.poll_timeout());
    assert_eq!(changes(&mut manager), [leads(1, false)]);
}

#[test]
fn a_new_session_removes_only_routes_it_does_not_send_again() {
    let mut manager = FpmRoutes::new(names());
    manager.handle_connected(seconds(0));
    manager.handle_bytes(seconds(1), &[new(1), new(2), swap(300, 301), swap(302, 303)].concat()).unwrap();
    changes(&mut manager);
    // The session ends in the middle of a message.
    manager.handle_bytes(seconds(9), &new(3)[..20]).unwrap();
    manager.handle_closed(seconds(10));
    manager.handle_connected(seconds(20));
    manager.handle_bytes(seconds(21), &[new(2), swap(300, 304)].concat()).unwrap();
    assert_eq!(changes(&mut manager), [swaps(300, Some(304))]);
    manager.handle_timeout(seconds(130));
    assert_eq!(changes(&mut manager), [], "the hold time starts again with the new session");
    assert_eq!(manager.poll_timeout(), seconds(20) + HOLD);
    manager.handle_timeout(seconds(20) + HOLD);
    assert_eq!(changes(&mut manager), [leads(1, false), swaps(302, None)]);
    assert_eq!(manager.poll_timeout(), Instant::NEVER);
}

#[test]
fn ipv6_routes_take_the_next_hop_of_their_ipv4_lsp() {
    let label = MplsLabel { label: 17, traffic_class: 0, bottom_of_stack: true, ttl: 0 };
    let labeled = |family, destination, length, via: Option<[u8; 4]>| {
        let mut attributes = vec![
            RouteAttribute::Destination(destination),
            RouteAttribute::Oif(3),
            RouteAttribute::EncapType(RouteLwEnCapType::Mpls),
            RouteAttribute::Encap(vec![RouteLwTunnelEncap::Mpls(RouteMplsIpTunnel::Destination(vec![
                label,
            ]))]),
        ];
        attributes.extend(via.map(|via| RouteAttribute::Gateway(RouteAddress::Inet(via.into()))));
        frame(RouteNetlinkMessage::NewRoute(message(family, length, attributes)))
    };
    let ipv6_prefix: std::net::Ipv6Addr = "fd02::".parse().unwrap();
    let of_ipv6 = labeled(AddressFamily::Inet6, RouteAddress::Inet6(ipv6_prefix), 64, None);
    let of_ipv4 =
        labeled(AddressFamily::Inet, RouteAddress::Inet([10, 0, 2, 1].into()), 32, Some([192, 0, 2, 1]));
    let labels = vec![LabelValue::new(17).unwrap()];
    let path = RoutePath { interface: 0, via: Some([192, 0, 2, 1].into()), labels };
    let to = Some(Destination::Paths(vec![path]));
    let expected = |address: IpAddr, length| SourceChange::Route((0, (address, length)), to.clone());
    let (ipv4_route, ipv6_route) = (expected([10, 0, 2, 1].into(), 32), expected(ipv6_prefix.into(), 64));
    for (sent, changed) in [
        ([&of_ipv4[..], &of_ipv6].concat(), [ipv4_route.clone(), ipv6_route.clone()]),
        ([&of_ipv6[..], &of_ipv4].concat(), [ipv4_route, ipv6_route]),
    ] {
        let mut manager = FpmRoutes::new(names());
        manager.handle_connected(seconds(0));
        manager.handle_bytes(seconds(1), &sent).unwrap();
        assert_eq!(changes(&mut manager), changed);
    }
}

#[test]
fn malformed_frames_end_the_session_and_change_no_route() {
    let mut manager = FpmRoutes::new(names());
    manager.handle_connected(seconds(0));
    manager.handle_bytes(seconds(1), &new(1)).unwrap();
    changes(&mut manager);
    let next_hop = [&[1, 1, 0, 20][..], &16_u32.to_ne_bytes(), &RTM_NEWNEXTHOP.to_ne_bytes(), &[0; 10]];
    for (bytes, fault) in [
        (vec![1, 2, 0, 4], FpmFault::Unknown { version: 1, kind: 2 }),
        (b"GET / HTTP/1.1".to_vec(), FpmFault::Unknown { version: b'G', kind: b'E' }),
        (vec![1, 1, 0, 3], FpmFault::TooShort),
        (next_hop.concat(), FpmFault::NextHopGroups),
    ] {
        manager.handle_connected(seconds(2));
        assert_eq!(manager.handle_bytes(seconds(2), &bytes), Err(fault));
        assert_eq!(changes(&mut manager), []);
    }
    // A malformed message is skipped.
    manager.handle_connected(seconds(3));
    let mut wrong = new(4);
    wrong[4] = 0xff;
    manager.handle_bytes(seconds(3), &[wrong, new(5)].concat()).unwrap();
    assert_eq!((manager.unreadable(), changes(&mut manager)), (1, vec![leads(5, true)]));
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_rejected_or_parsed(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        at in 0..60_usize,
        value in any::<u8>(),
    ) {
        let mut manager = FpmRoutes::new(names());
        manager.handle_connected(seconds(0));
        let mut damaged = [new(1), swap(300, 301), new(2)].concat();
        damaged[at] = value;
        let _ = manager.handle_bytes(seconds(1), &damaged);
        let length = (bytes.len() as u16 + 4).to_be_bytes();
        manager.handle_connected(seconds(1));
        let _ = manager.handle_bytes(seconds(1), &[&[VERSION, NETLINK][..], &length, &bytes].concat());
        manager.handle_closed(seconds(2));
        manager.handle_timeout(seconds(2) + HOLD);
        // Every route and label that was added is removed exactly once.
        let mut known = std::collections::BTreeSet::new();
        for change in changes(&mut manager) {
            match change {
                SourceChange::Route(prefix, to) => match to.is_some() {
                    true => drop(known.insert(format!("{prefix:?}"))),
                    false => assert!(known.remove(&format!("{prefix:?}"))),
                },
                SourceChange::Label(label, to) => match to.is_some() {
                    true => drop(known.insert(format!("{label:?}"))),
                    false => assert!(known.remove(&format!("{label:?}"))),
                },
            }
        }
        prop_assert!(known.is_empty());
    }
}
