//! Support of tests with namespaces: links and addresses.
#![allow(dead_code)]

use netstage_host::netns::netlink::{Netlink, VethEnd, VethOptions, create_veth};
use netstage_host::netns::routes::{Metrics, StaticRoute};
use netstage_host::netns::{Namespace, ethtool};
use std::net::IpAddr;

pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Joins two namespaces by a veth pair without offloads. Each end has a name and the last byte of its MAC address.
pub fn join(left: (&Namespace, &str, u8), right: (&Namespace, &str, u8)) {
    join_with_mtu(left, right, VethOptions::default().mtu);
}

/// Like [`join`], with an MTU.
pub fn join_with_mtu(left: (&Namespace, &str, u8), right: (&Namespace, &str, u8), mtu: u32) {
    let options = VethOptions { mtu, resolve_neighbors: true, ..VethOptions::default() };
    let end = |(namespace, name, mac)| VethEnd { namespace, name, mac: [2, 0, 0, 0, 0, mac] };
    create_veth(end(left), end(right), options).unwrap();
    for (namespace, name, _) in [left, right] {
        ethtool::disable_offloads(namespace, name).unwrap();
        Netlink::open(namespace).unwrap().set_up(name).unwrap();
    }
}

/// Returns the default route of the gateway's address family.
pub fn default_route(gateway: &str, link: &'static str) -> StaticRoute<'static> {
    let gateway = address(gateway);
    let any = if gateway.is_ipv4() { "0.0.0.0" } else { "::" };
    StaticRoute {
        destination: (address(any), 0),
        gateway: Some(gateway),
        link,
        preferred_source: None,
        metrics: Metrics::default(),
    }
}
