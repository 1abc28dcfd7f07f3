//! What a router forwards, and how: routes and labels, what comes by one interface, what leaves by the other.

use netstage_wire::checksum::checksum;
use netstage_wire::ethernet::ethertype::{IPV4, IPV6, MPLS};
use netstage_wire::ip::protocol;
use netstage_wire::mpls::{Entry, Label};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The next routers, both behind the interface `out`.
pub const NEXT: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 9)),
];

/// As a file of routes has them.
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

/// An ethertype, and a packet.
pub type Framed = (u16, Vec<u8>);

/// One packet.
pub struct Case {
    pub name: &'static str,
    pub comes: Framed,
    pub leaves: Option<Framed>,
    /// Linux counts a label that is taken off here and the packet beneath as two hops, or leaves the time to
    /// live beneath a label that is taken off as it was: what leaves there, where that is another packet.
    pub leaves_linux: Option<Framed>,
}

/// All cases.
pub fn cases() -> Vec<Case> {
    const GIANT: [u8; 4] = [10, 9, 0, 1];
    let (plain, pushed, two) = ([10, 1, 0, 5], [10, 1, 200, 5], [10, 2, 0, 5]);
    let mut spoilt = v4(plain, 64);
    spoilt.1[11] ^= 1;
    let case = |name, comes, leaves| Case { name, comes, leaves, leaves_linux: None };
    let other =
        |name, comes, leaves, linux| Case { leaves_linux: Some(linux), ..case(name, comes, Some(leaves)) };
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
            labels(&[(300, 9), (77, 5)], v4(GIANT, 64)),
            Some(labels(&[(301, 8), (77, 5)], v4(GIANT, 64))),
        ),
        case(
            "swap to two labels",
            labels(&[(302, 9)], v4(GIANT, 64)),
            Some(labels(&[(303, 8), (304, 8)], v4(GIANT, 64))),
        ),
        case("penultimate hop", labels(&[(305, 9)], v4(GIANT, 64)), Some(v4(GIANT, 8))),
        case("penultimate hop of IPv6", labels(&[(305, 9)], v6(7, 64)), Some(v6(7, 8))),
        other(
            "penultimate hop over a label",
            labels(&[(305, 9), (77, 50)], v4(GIANT, 64)),
            labels(&[(77, 8)], v4(GIANT, 64)),
            labels(&[(77, 50)], v4(GIANT, 64)),
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
        case("no route", v4(GIANT, 64), None),
        case("a route to nowhere", v4([10, 3, 0, 1], 64), None),
        case("an unknown label", labels(&[(999, 9)], v4(plain, 64)), None),
        case("a reserved label", labels(&[(9, 9)], v4(plain, 64)), None),
        case("a wrong checksum", spoilt, None),
        case("half a header", (IPV4, vec![0x45, 0, 0, 100, 0, 0]), None),
        case("half a label", (MPLS, vec![0, 1]), None),
    ]
}

/// A packet of UDP, from a sender no route leads back to.
fn v4(to: [u8; 4], ttl: u8) -> Framed {
    const LENGTH: u8 = 100;
    let mut packet = vec![0x45, 0, 0, LENGTH, 0, 0, 0, 0, ttl, protocol::UDP, 0, 0, 203, 0, 113, 9];
    packet.extend(to);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.resize(LENGTH.into(), 7);
    (IPV4, packet)
}

/// The same of IPv6, to 2001:db8:NETWORK::5.
fn v6(network: u16, hops: u8) -> Framed {
    let mut packet = vec![0x60, 0, 0, 0, 0, 60, protocol::UDP, hops];
    packet.extend(Ipv6Addr::new(0x2001, 0xdb8, 0xeeee, 0, 0, 0, 0, 9).octets());
    packet.extend(Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, 5).octets());
    packet.resize(100, 7);
    (IPV6, packet)
}

/// A packet beneath labels, each with its time to live, the outermost first.
fn labels(stack: &[(u32, u8)], (_, packet): Framed) -> Framed {
    let entries = stack.iter().enumerate().flat_map(|(depth, &(number, ttl))| {
        let label = Label::new(number).expect("it has 20 bits");
        Entry { label, traffic_class: 0, bottom: depth + 1 == stack.len(), ttl }.to_bytes()
    });
    (MPLS, entries.chain(packet).collect())
}
