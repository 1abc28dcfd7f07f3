//! Two namespaces connected by a link, for tests with real packets.
#![allow(dead_code)]

use netstage_harness::needs;
use netstage_host::netns::netlink::{Netlink, VethEnd, VethOptions, create_veth};
use netstage_host::netns::{Namespace, ethtool};
use std::net::IpAddr;

/// MAC addresses of the two ends.
pub const LEFT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const RIGHT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Two namespaces connected by a veth pair without offloads: `left0` with 10.1.0.0/31 and fd00::/127, `right0`
/// with the other address of each.
pub struct Pair {
    pub left: Namespace,
    pub right: Namespace,
}

impl Pair {
    /// Creates the namespaces; skips the test without the privilege.
    pub fn new(options: VethOptions) -> Pair {
        needs::namespaces();
        let (left, right) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let left_end = VethEnd { namespace: &left, name: "left0", mac: LEFT_MAC };
        let right_end = VethEnd { namespace: &right, name: "right0", mac: RIGHT_MAC };
        create_veth(left_end, right_end, options).unwrap();
        let addresses = |last: u8| -> [IpAddr; 2] {
            [IpAddr::from([10, 1, 0, last]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)])]
        };
        let sides = [(&left, "left0", 0, 1, RIGHT_MAC), (&right, "right0", 1, 0, LEFT_MAC)];
        for (namespace, link, own, peer, peer_mac) in sides {
            ethtool::disable_offloads(namespace, link).unwrap();
            namespace.loopback_up().unwrap();
            let mut netlink = Netlink::open(namespace).unwrap();
            netlink.set_up(link).unwrap();
            for (address, prefix_len) in addresses(own).into_iter().zip([31, 127]) {
                netlink.add_address(link, address, prefix_len).unwrap();
            }
            for address in addresses(peer) {
                netlink.add_neighbor(link, address, peer_mac).unwrap();
            }
        }
        Netlink::open(&left).unwrap().wait_until_ready("left0").unwrap();
        Netlink::open(&right).unwrap().wait_until_ready("right0").unwrap();
        Pair { left, right }
    }
}
