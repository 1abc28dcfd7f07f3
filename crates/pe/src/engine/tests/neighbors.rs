//! Address resolution on circuits, as client and server.

use super::*;
use netstage_wire::arp;
use netstage_wire::ethernet::Mac;
use netstage_wire::neighbor_discovery::{
    self as discovery, NeighborDiscoveryMessage, group_mac, solicited_node,
};
use std::net::Ipv6Addr;

const HOST: Mac = [2, 0, 0, 0, 0, 0x11];
const OTHER: Mac = [2, 0, 0, 0, 0, 0x12];

/// Returns a configuration of side 0 with two VPNs whose neighbors must be resolved. In VPN 0, 10.7.0.0/16 is
/// behind 10.0.0.7.
fn unresolved_config() -> EngineConfig {
    let mut config = config(0, CoreEncapsulation::Udp4, 2);
    config.router.circuits.iter_mut().for_each(|circuit| circuit.mac = None);
    config.router.circuits[0].routes.push((prefix("10.7.0.0/16"), [10, 0, 0, 7].into()));
    config
}

fn address(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn framed(destination: Mac, source: Mac, vlan: u16, kind: u16, payload: &[u8]) -> Vec<u8> {
    let tags = [Tag { kind: ethertype::VLAN, vlan, ..Tag::default() }];
    let header = ethernet::Header { destination, source, tags: &tags, kind };
    let mut bytes = vec![0; header.length()];
    header.write(&mut bytes).unwrap();
    bytes.extend(payload);
    bytes
}

fn arp_frame(operation: arp::Operation, mac: Mac, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let target_mac = if operation == arp::Operation::Request { [0; 6] } else { CUSTOMER_PORT };
    let message = arp::ArpMessage {
        operation,
        sender_mac: mac,
        sender: sender.into(),
        target_mac,
        target: target.into(),
    };
    let mut bytes = [0; arp::MESSAGE];
    message.write(&mut bytes).unwrap();
    let to = if operation == arp::Operation::Request { [0xff; 6] } else { CUSTOMER_PORT };
    framed(to, mac, 100, ethertype::ARP, &bytes)
}

/// Returns MAC addresses, VLAN, EtherType and payload of a frame.
fn parse_frame(frame: &[u8]) -> (Mac, Mac, u16, u16, Vec<u8>) {
    let view = ethernet::View::new(frame).unwrap();
    let vlan = view.tags().next().unwrap().vlan;
    (view.destination(), view.source(), vlan, view.kind(), view.payload().to_vec())
}

/// Returns a packet of a VPN as received from the core.
fn from_core(packet: &[u8]) -> Vec<u8> {
    let mut far = router(&config(1, CoreEncapsulation::Udp4, 2));
    let [_, out] = far.pass(CUSTOMERS, Instant(1), &frame(100, packet));
    out.into_iter().find(|frame| !is_management(frame)).unwrap()
}

fn seconds(seconds: u64) -> Instant {
    Instant(seconds * 1_000_000_000)
}

#[test]
fn a_packet_waits_until_its_neighbor_is_resolved() {
    let mut router = router(&unresolved_config());
    let packets = [1, 2].map(|number| packet(false, 1, 0, number, 100));
    let [out, _] = router.pass(CORE, seconds(1), &from_core(&packets[0]));
    assert_eq!(out.len(), 1);
    let (destination, source, vlan, kind, payload) = parse_frame(&out[0]);
    assert_eq!((destination, source, vlan, kind), ([0xff; 6], CUSTOMER_PORT, 100, ethertype::ARP));
    let asked = arp::ArpMessage {
        operation: arp::Operation::Request,
        sender_mac: CUSTOMER_PORT,
        sender: [10, 0, 0, 254].into(),
        target_mac: [0; 6],
        target: [10, 0, 0, 1].into(),
    };
    assert_eq!(arp::ArpMessage::read(&payload), Ok(asked));
    // The latest packet replaces the waiting one, and no further query is sent.
    let [out, _] = router.pass(CORE, seconds(1), &from_core(&packets[1]));
    assert_eq!((out.len(), router.count(Counter::Unresolved)), (0, 1));
    let answer = arp_frame(arp::Operation::Reply, HOST, [10, 0, 0, 1], [10, 0, 0, 254]);
    // A reply in another VPN has no effect.
    let elsewhere = [&answer[..14], &[0, 101], &answer[16..]].concat();
    assert!(router.pass(CUSTOMERS, seconds(1), &elsewhere)[0].is_empty());
    let [out, _] = router.pass(CUSTOMERS, seconds(1), &answer);
    let (destination, _, vlan, kind, payload) = parse_frame(&out[0]);
    assert_eq!((destination, vlan, kind), (HOST, 100, ethertype::IPV4));
    assert_eq!(payload, after_hops(&packets[1], 2));
    // Further packets are sent at once.
    let [out, _] = router.pass(CORE, seconds(2), &from_core(&packets[0]));
    assert_eq!((out.len(), parse_frame(&out[0]).0), (1, HOST));
    let known: Vec<_> = router.engine.neighbors().collect();
    assert_eq!(known, [("circuit0", [10, 0, 0, 1].into(), Some(HOST))]);
    assert_eq!(router.engine.free_buffers(), router.buffers);
}

#[test]
fn an_unanswered_neighbor_is_given_up_with_its_packet() {
    let mut router = router(&unresolved_config());
    router.pass(CORE, seconds(1), &from_core(&packet(false, 1, 0, 1, 100)));
    assert_eq!(router.engine.free_buffers(), router.buffers - 1);
    let mut asked = 1;
    for second in 2..5 {
        assert!(router.engine.poll_timeout() <= seconds(second));
        router.turn(seconds(second));
        asked += router.taken(CUSTOMERS).len();
    }
    assert_eq!((asked, router.count(Counter::Unresolved)), (3, 1));
    assert_eq!(router.engine.free_buffers(), router.buffers);
}

#[test]
fn queries_for_the_routers_address_are_answered_on_its_circuit() {
    let mut router = router(&unresolved_config());
    let question = arp_frame(arp::Operation::Request, HOST, [10, 0, 0, 1], [10, 0, 0, 254]);
    let [out, _] = router.pass(CUSTOMERS, seconds(1), &question);
    let (destination, source, vlan, kind, payload) = parse_frame(&out[0]);
    assert_eq!((destination, source, vlan, kind), (HOST, CUSTOMER_PORT, 100, ethertype::ARP));
    let answer = arp::ArpMessage::read(&payload).unwrap();
    assert_eq!((answer.operation, answer.sender_mac), (arp::Operation::Reply, CUSTOMER_PORT));
    assert_eq!((answer.sender, answer.target), ([10, 0, 0, 254].into(), [10, 0, 0, 1].into()));
    // A query also announces its sender.
    let [out, _] = router.pass(CORE, seconds(1), &from_core(&packet(false, 1, 0, 1, 100)));
    assert_eq!(parse_frame(&out[0]).0, HOST);
    // There is no proxy ARP: queries for other addresses are ignored, as are claims for other links.
    for (sender, target) in [([10, 0, 0, 1], [10, 0, 0, 9]), ([10, 0, 0, 2], [10, 0, 1, 1])] {
        let question = arp_frame(arp::Operation::Request, HOST, sender, target);
        // Idle VPN flows may probe the core meanwhile.
        let [answers, _] = router.pass(CUSTOMERS, seconds(2), &question);
        assert!(answers.is_empty());
    }
    let foreign = arp_frame(arp::Operation::Request, OTHER, [192, 0, 2, 1], [10, 0, 0, 254]);
    router.pass(CUSTOMERS, seconds(2), &foreign);
    assert_eq!(router.engine.neighbors().count(), 1);
    let thief = arp_frame(arp::Operation::Reply, OTHER, [10, 0, 0, 254], [10, 0, 0, 1]);
    router.pass(CUSTOMERS, seconds(2), &thief);
    assert_eq!(router.count(Counter::AddressConflict), 1);
}

#[test]
fn packets_to_a_routed_prefix_go_to_its_next_hop() {
    let mut router = router(&unresolved_config());
    let mut sent = packet(false, 1, 0, 1, 100);
    sent[16..20].copy_from_slice(&[10, 7, 9, 9]);
    sent[10..12].fill(0);
    let checksum = Sum::ZERO.bytes(&sent[..20]).checksum();
    sent[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut config = config(1, CoreEncapsulation::Udp4, 2);
    config.router.vpns[0].flows[0].routes.push(prefix("10.7.0.0/16"));
    let mut far = super::router(&config);
    let [_, out] = far.pass(CUSTOMERS, Instant(1), &frame(100, &sent));
    let [out, _] = router.pass(CORE, seconds(1), out.iter().find(|frame| !is_management(frame)).unwrap());
    let asked = arp::ArpMessage::read(&parse_frame(&out[0]).4).unwrap();
    assert_eq!(asked.target.octets(), [10, 0, 0, 7]);
    let answer = arp_frame(arp::Operation::Reply, OTHER, [10, 0, 0, 7], [10, 0, 0, 254]);
    let [out, _] = router.pass(CUSTOMERS, seconds(1), &answer);
    assert_eq!((parse_frame(&out[0]).0, parse_frame(&out[0]).4), (OTHER, after_hops(&sent, 2)));
}

#[test]
fn ipv6_neighbor_discovery_works_both_ways() {
    let mut router = router(&unresolved_config());
    let (own, host) = (address("fd00:0::fe"), address("fd00:0::1"));
    let sent = packet(true, 1, 0, 1, 100);
    let [out, _] = router.pass(CORE, seconds(1), &from_core(&sent));
    let (destination, _, vlan, kind, payload) = parse_frame(&out[0]);
    assert_eq!((destination, vlan, kind), (group_mac(solicited_node(host)), 100, ethertype::IPV6));
    let question = NeighborDiscoveryMessage::Solicitation { target: host, link: Some(CUSTOMER_PORT) };
    assert_eq!(discovery::read(&payload), Ok((own, question)));
    let mut bytes = [0; discovery::PACKET];
    discovery::write_advertisement(own, host, HOST, &mut bytes);
    let answer = framed(CUSTOMER_PORT, HOST, 100, ethertype::IPV6, &bytes);
    let [out, _] = router.pass(CUSTOMERS, seconds(1), &answer);
    assert_eq!((parse_frame(&out[0]).0, parse_frame(&out[0]).4), (HOST, after_hops(&sent, 2)));
    // Sent to the group, and to the router alone.
    for (to, to_group) in [(group_mac(solicited_node(own)), true), (CUSTOMER_PORT, false)] {
        discovery::write_solicitation(host, HOST, own, to_group, &mut bytes);
        let question = framed(to, HOST, 100, ethertype::IPV6, &bytes);
        let [out, _] = router.pass(CUSTOMERS, seconds(2), &question);
        let (destination, _, _, _, payload) = parse_frame(&out[0]);
        let (source, message) = discovery::read(&payload).unwrap();
        assert!(matches!(
            message,
            NeighborDiscoveryMessage::Advertisement { link: Some(CUSTOMER_PORT), is_solicited: true, .. }
        ));
        assert_eq!((destination, source), (HOST, own));
    }
}

fn echo(is_v6: bool, from: u8, to: IpAddr) -> Vec<u8> {
    let mut bytes = packet(is_v6, from, 0, 1, 80);
    let header = if is_v6 { v6::HEADER } else { v4::HEADER };
    bytes[header..header + 8].copy_from_slice(&[if is_v6 { 128 } else { 8 }, 0, 0, 0, 0, 7, 0, 1]);
    match to {
        IpAddr::V4(to) => {
            bytes[9] = protocol::ICMP;
            bytes[16..20].copy_from_slice(&to.octets());
            bytes[10..12].fill(0);
            let sum = Sum::ZERO.bytes(&bytes[..20]).checksum();
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
            let sum = Sum::ZERO.bytes(&bytes[20..]).checksum();
            bytes[22..24].copy_from_slice(&sum.to_be_bytes());
        }
        IpAddr::V6(to) => {
            bytes[6] = protocol::ICMPV6;
            bytes[24..40].copy_from_slice(&to.octets());
            let view = v6::View::new(&bytes).unwrap();
            let pseudo = ip::pseudo_header(view.source().into(), to.into(), protocol::ICMPV6, 40);
            let sum = pseudo.bytes(&bytes[40..]).checksum();
            bytes[42..44].copy_from_slice(&sum.to_be_bytes());
        }
    }
    bytes
}

#[test]
fn the_router_answers_echo_requests_from_both_sides() {
    for is_v6 in [false, true] {
        let own: IpAddr = if is_v6 { address("fd00:0::fe").into() } else { [10, 0, 0, 254].into() };
        for from in 0..2 {
            let mut config = unresolved_config();
            config.router.circuits[0].mac = Some(HOST);
            let mut router = router(&config);
            let request = echo(is_v6, from, own);
            let out = match from {
                0 => router.pass(CUSTOMERS, seconds(1), &frame(100, &request))[0].clone(),
                _ => {
                    let [_, out] = router.pass(CORE, seconds(1), &from_core(&request));
                    let mut far = super::router(&super::config(1, CoreEncapsulation::Udp4, 2));
                    let answer = out.iter().find(|frame| !is_management(frame)).unwrap();
                    far.pass(CORE, seconds(1), answer)[0].clone()
                }
            };
            let packet = parse_frame(&out[0]).4;
            let view = ip::View::new(&packet).unwrap();
            let transport = view.transport().unwrap();
            assert_eq!((view.source(), transport.payload[0]), (own, if is_v6 { 129 } else { 0 }));
            let pseudo = match is_v6 {
                true => ip::pseudo_header(view.source(), view.destination(), protocol::ICMPV6, 40),
                false => Sum::ZERO,
            };
            assert_eq!(pseudo.bytes(transport.payload).folded(), 0xffff);
            assert_eq!(transport.payload[4..], request[if is_v6 { 44 } else { 24 }..]);
        }
    }
}
