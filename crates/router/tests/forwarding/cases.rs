//! Forwarding cases: routes and labels, a packet received on one interface, and the packet sent on the other.

use netstage_wire::checksum::checksum;
use netstage_wire::ethernet::ethertype::{IPV4, IPV6, MPLS};
use netstage_wire::ip::protocol;
use netstage_wire::mpls::{LabelStackEntry, LabelValue};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Next-hop routers, both on the interface `out`.
pub const NEXT: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 9)),
];

/// Routes in the syntax of the file of routes.
pub const ROUTES: &str = "\
10.1.0.0/16 via 192.0.2.9 dev out
10.1.128.0/17 via 192.0.2.9 dev out push 100
10.2.0.0/16 via 192.0.2.9 dev out push 101/102
10.3.0.0/16 discard
2001:db8:1::/48 via 2001:db8:ffff::9 dev out
2001:db8:2::/48 via 2001:db8:ffff::9 dev out push 103
label 300 swap 301 via 192.0.2.9 dev out
label 302 swap 303/304 via 192.0.2.9 dev out
label 305 via 192.0.2.9 dev out
label 306 pop
";

/// EtherType and packet.
pub type EtherTypeAndPacket = (u16, Vec<u8>);

/// Forwarding of one packet.
pub struct ForwardingCase {
    pub name: &'static str,
    pub comes: EtherTypeAndPacket,
    pub leaves: Option<EtherTypeAndPacket>,
    /// Packet sent by Linux, if different. Linux counts a label popped here and the packet beneath it as two
    /// hops, or leaves the TTL beneath a popped label unchanged.
    pub leaves_linux: Option<EtherTypeAndPacket>,
}

/// Returns all cases.
pub fn cases() -> Vec<ForwardingCase> {
    const UNROUTED: [u8; 4] = [10, 9, 0, 1];
    let (plain, pushed, two) = ([10, 1, 0, 5], [10, 1, 200, 5], [10, 2, 0, 5]);
    let mut corrupted = v4(plain, 64);
    corrupted.1[11] ^= 1;
    let case = |name, comes, leaves| ForwardingCase { name, comes, leaves, leaves_linux: None };
    let other = |name, comes, leaves, linux| ForwardingCase {
        leaves_linux: Some(linux),
        ..case(name, comes, Some(leaves))
    };
    vec![
        case("IPv4", v4(plain, 64), Some(v4(plain, 63))),
        case("IPv6", v6(1, 64), Some(v6(1, 63))),
        case("the longest prefix pushes", v4(pushed, 64), Some(labels(&[(100, 63)], v4(pushed, 63)))),
        case("two labels", v4(two, 64), Some(labels(&[(101, 63), (102, 63)], v4(two, 63)))),
        case("IPv6 in an LSP", v6(2, 64), Some(labels(&[(103, 63)], v6(2, 63)))),
        case("swap", labels(&[(300, 9)], v4(plain, 64)), Some(labels(&[(301, 8)], v4(plain, 64)))),
        case("swap over IPv6", labels(&[(300, 9)], v6(1, 64)), Some(labels(&[(301, 8)], v6(1, 64)))),
        case(
            "swap over a label",
            labels(&[(300, 9), (77, 5)], v4(UNROUTED, 64)),
            Some(labels(&[(301, 8), (77, 5)], v4(UNROUTED, 64))),
        ),
        case(
            "swap to two labels",
            labels(&[(302, 9)], v4(UNROUTED, 64)),
            Some(labels(&[(303, 8), (304, 8)], v4(UNROUTED, 64))),
        ),
        case("penultimate hop", labels(&[(305, 9)], v4(UNROUTED, 64)), Some(v4(UNROUTED, 8))),
        case("penultimate hop of IPv6", labels(&[(305, 9)], v6(7, 64)), Some(v6(7, 8))),
        other(
            "penultimate hop over a label",
            labels(&[(305, 9), (77, 50)], v4(UNROUTED, 64)),
            labels(&[(77, 8)], v4(UNROUTED, 64)),
            labels(&[(77, 50)], v4(UNROUTED, 64)),
        ),
        other("pop and look up", labels(&[(306, 9)], v4(plain, 64)), v4(plain, 8), v4(plain, 7)),
        other(
            "pop and push",
            labels(&[(306, 9)], v4(pushed, 64)),
            labels(&[(100, 8)], v4(pushed, 8)),
            labels(&[(100, 7)], v4(pushed, 7)),
        ),
        other("explicit null", labels(&[(0, 9)], v4(plain, 64)), v4(plain, 8), v4(plain, 7)),
        other("explicit null of IPv6", labels(&[(2, 9)], v6(1, 64)), v6(1, 8), v6(1, 7)),
        case("the last hop", v4(plain, 1), None),
        case("the last hop of IPv6", v6(1, 1), None),
        case("the last hop in an LSP", labels(&[(300, 1)], v4(plain, 64)), None),
        case("no route", v4(UNROUTED, 64), None),
        case("a discard route", v4([10, 3, 0, 1], 64), None),
        case("an unknown label", labels(&[(999, 9)], v4(plain, 64)), None),
        case("a reserved label", labels(&[(9, 9)], v4(plain, 64)), None),
        case("a wrong checksum", corrupted, None),
        case("a loopback source", v4_from([127, 0, 0, 1], plain, 64), None),
        case("a multicast source in an LSP", labels(&[(306, 9)], v4_from([224, 0, 0, 5], plain, 64)), None),
        case("a link-local source", v6_from("fe80::9", 1, 64), None),
        case("half a header", (IPV4, vec![0x45, 0, 0, 100, 0, 0]), None),
        case("half a label", (MPLS, vec![0, 1]), None),
    ]
}

/// Builds a UDP packet from a sender without a route back.
fn v4(to: [u8; 4], ttl: u8) -> EtherTypeAndPacket {
    v4_from([203, 0, 113, 9], to, ttl)
}

fn v4_from(source: [u8; 4], to: [u8; 4], ttl: u8) -> EtherTypeAndPacket {
    const LENGTH: u8 = 100;
    let mut packet = vec![0x45, 0, 0, LENGTH, 0, 0, 0, 0, ttl, protocol::UDP, 0, 0];
    packet.extend(source.into_iter().chain(to));
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.resize(LENGTH.into(), 7);
    (IPV4, packet)
}

/// Builds an IPv6 packet to 2001:db8:NETWORK::5.
fn v6(network: u16, hops: u8) -> EtherTypeAndPacket {
    v6_from("2001:db8:eeee::9", network, hops)
}

fn v6_from(source: &str, network: u16, hops: u8) -> EtherTypeAndPacket {
    let source: Ipv6Addr = source.parse().expect("the address is valid");
    let mut packet = vec![0x60, 0, 0, 0, 0, 60, protocol::UDP, hops];
    packet.extend(source.octets());
    packet.extend(Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, 5).octets());
    packet.resize(100, 7);
    (IPV6, packet)
}

/// Puts labels with their TTLs, outermost first, on a packet.
fn labels(stack: &[(u32, u8)], (_, packet): EtherTypeAndPacket) -> EtherTypeAndPacket {
    let entries = stack.iter().enumerate().flat_map(|(depth, &(number, ttl))| {
        let label = LabelValue::new(number).expect("the label has 20 bits");
        LabelStackEntry { label, traffic_class: 0, bottom: depth + 1 == stack.len(), ttl }.to_bytes()
    });
    (MPLS, entries.chain(packet).collect())
}
