//! Address plan. The addresses of a node depend only on its index in the plan.
//!
//! IPv4 addresses are from 10.0.0.0/8, IPv6 addresses from fd6e:7374::/64 (RFC 4193). 16 bits identify the node, the
//! last ones the address of the node. Address 0 is the node's own, which its neighbors use as the next hop.

use netstage_scenario::plan::IpVersion;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum number of nodes.
pub const NODES: usize = 1 << 16;
/// Maximum number of circuits.
pub const CIRCUITS: usize = 1 << 14;
/// Maximum number of LANs.
pub const LANS: usize = 512;
/// Maximum number of stations of a LAN.
pub const STATIONS: usize = (1 << 12) - 2;
/// Maximum number of addresses of a node.
pub const PER_NODE: usize = 254;

/// Address families; each node has addresses of both.
pub const FAMILIES: [IpVersion; 2] = [IpVersion::V4, IpVersion::V6];

/// Returns address `number` of a node.
pub fn node_address(family: IpVersion, node: usize, number: usize) -> IpAddr {
    debug_assert!(node < NODES && number < PER_NODE);
    let [high, low] = (node as u16).to_be_bytes();
    let last = number as u8 + 1;
    match family {
        IpVersion::V4 => Ipv4Addr::new(10, high, low, last).into(),
        IpVersion::V6 => Ipv6Addr::new(0xfd6e, 0x7374, 0, 0, 0, 0, node as u16, last.into()).into(),
    }
}

/// Returns the length of a prefix that holds only this address.
pub fn host_prefix(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Returns the address of one end of a customer circuit and the length of the circuit's prefix: IPv4 from
/// 169.254.0.0/16 (RFC 3927), IPv6 from fd6e:7375::/64.
pub fn circuit_address(family: IpVersion, circuit: usize, end: usize) -> (IpAddr, u8) {
    debug_assert!(circuit < CIRCUITS && end < 2);
    let [high, low] = (4 * circuit as u16).to_be_bytes();
    let last = low + 1 + end as u8;
    match family {
        IpVersion::V4 => (Ipv4Addr::new(169, 254, high, last).into(), 30),
        IpVersion::V6 => (Ipv6Addr::new(0xfd6e, 0x7375, 0, 0, 0, 0, high.into(), last.into()).into(), 126),
    }
}

/// Returns the address of one end of a link between routers with routing daemons and the length of the link's prefix,
/// from 100.64.0.0/10 (RFC 6598).
pub fn link_address(link: usize, end: usize) -> (IpAddr, u8) {
    debug_assert!(link < NODES && end < 2);
    let shared = u32::from(Ipv4Addr::new(100, 64, 0, 0));
    (Ipv4Addr::from(shared + 4 * link as u32 + 1 + end as u32).into(), 30)
}

/// Returns the address of a station of a LAN and the length of the prefix that holds all stations: IPv4 from
/// 100.96.0.0/11 (RFC 6598), IPv6 from fd6e:7376::/32.
pub fn station_address(family: IpVersion, lan: usize, number: usize, stations: usize) -> (IpAddr, u8) {
    debug_assert!(lan < LANS && number < stations && stations <= STATIONS);
    match family {
        IpVersion::V4 => {
            let first = u32::from(Ipv4Addr::new(100, 96, 0, 0)) + ((STATIONS + 2) * lan) as u32;
            // The network and broadcast addresses of the prefix are not assigned.
            let length = 32 - (stations + 2).next_power_of_two().ilog2() as u8;
            (Ipv4Addr::from(first + 1 + number as u32).into(), length)
        }
        IpVersion::V6 => {
            let last = number as u16 + 1;
            (Ipv6Addr::new(0xfd6e, 0x7376, lan as u16, 0, 0, 0, 0, last).into(), 64)
        }
    }
}

/// Returns the prefix of all addresses of a node.
pub fn prefix(family: IpVersion, node: usize) -> (IpAddr, u8) {
    debug_assert!(node < NODES);
    let [high, low] = (node as u16).to_be_bytes();
    match family {
        IpVersion::V4 => (Ipv4Addr::new(10, high, low, 0).into(), 24),
        IpVersion::V6 => (Ipv6Addr::new(0xfd6e, 0x7374, 0, 0, 0, 0, node as u16, 0).into(), 112),
    }
}

/// Returns the MAC address of an interface of a link: locally administered, in the form 02:6e:LINK(16):END:SIDE.
pub fn mac(link: usize, end: usize, side: VethSide) -> [u8; 6] {
    let [high, low] = (link as u16).to_be_bytes();
    [0x02, 0x6e, high, low, end as u8, side as u8]
}

/// Interface of the veth pair between a node and the emulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VethSide {
    /// Interface in the node.
    Node = 0,
    /// Interface in the emulator.
    Emulator = 1,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_private_and_distinct() {
        assert_eq!(node_address(IpVersion::V4, 0, 0).to_string(), "10.0.0.1");
        assert_eq!(node_address(IpVersion::V4, 258, 253).to_string(), "10.1.2.254");
        assert_eq!(node_address(IpVersion::V6, 258, 0).to_string(), "fd6e:7374::102:1");
        assert_eq!(circuit_address(IpVersion::V4, 65, 1), ("169.254.1.6".parse().unwrap(), 30));
        assert_eq!(circuit_address(IpVersion::V6, 65, 0), ("fd6e:7375::1:5".parse().unwrap(), 126));
        assert_eq!(link_address(65_535, 1), ("100.67.255.254".parse().unwrap(), 30));
        let v4 = |number, stations| station_address(IpVersion::V4, 1, number, stations);
        assert_eq!(v4(0, 14), ("100.96.16.1".parse().unwrap(), 28));
        assert_eq!(v4(14, 15), ("100.96.16.15".parse().unwrap(), 27));
        let last = station_address(IpVersion::V4, LANS - 1, STATIONS - 1, STATIONS);
        assert_eq!(last, ("100.127.255.254".parse().unwrap(), 20));
        assert_eq!(station_address(IpVersion::V6, 1, 14, 15), ("fd6e:7376:1::f".parse().unwrap(), 64));
        assert_eq!(prefix(IpVersion::V4, 258), ("10.1.2.0".parse().unwrap(), 24));
        assert_eq!(prefix(IpVersion::V6, 258), ("fd6e:7374::102:0".parse().unwrap(), 112));
        assert_ne!(mac(1, 0, VethSide::Node), mac(1, 1, VethSide::Node));
        assert_eq!(mac(0, 0, VethSide::Node)[0] & 3, 2, "unicast, locally administered");
    }
}
