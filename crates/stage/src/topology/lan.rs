//! Shared LANs of a plan: their stations and addresses.
//!
//! A LAN is a bridge in a namespace of its own. Its stations have addresses from the smallest sufficient prefix, in the
//! order of the names of their links. They resolve each other by ARP and neighbor discovery.

use super::address::{self, FAMILIES};
use super::network::node_interface;
use netstage_scenario::plan::{IpVersion, Plan};
use std::net::{IpAddr, Ipv6Addr};

/// Name of the bridge of a LAN, in the namespace of its node.
pub const BRIDGE: &str = "lan";

/// Returns the links of a LAN, one for each station.
pub fn links(plan: &Plan, lan: usize) -> impl Iterator<Item = usize> {
    (0..plan.links.len()).filter(move |link| plan.links[*link].ends.contains(&lan))
}

/// Returns the link between a node and a LAN.
pub fn link_to(plan: &Plan, lan: usize, node: usize) -> Option<usize> {
    links(plan, lan).find(|link| plan.links[*link].ends.contains(&node))
}

/// Returns the station at the other end of a LAN's link.
pub fn station(plan: &Plan, lan: usize, link: usize) -> usize {
    let [a, b] = plan.links[link].ends;
    if a == lan { b } else { a }
}

/// Returns the address of the station at a LAN's link and the length of the LAN's prefix; `None` for other links.
pub fn address(plan: &Plan, family: IpVersion, link: usize) -> Option<(IpAddr, u8)> {
    let lan = plan.lan_of(link)?;
    let lan_number = (0..lan).filter(|node| plan.is_lan(*node)).count();
    let station = links(plan, lan).position(|other| other == link).expect("a LAN's link is among its links");
    Some(address::station_address(family, lan_number, station, links(plan, lan).count()))
}

/// Returns the addresses of the station at a LAN's link, including a link-local one, the source of neighbor
/// solicitations for forwarded packets.
pub fn addresses(plan: &Plan, link: usize) -> Vec<(IpAddr, u8)> {
    let shared = FAMILIES.into_iter().filter_map(|family| address(plan, family, link));
    let link_local = address(plan, IpVersion::V6, link).and_then(|(shared, _)| match shared {
        IpAddr::V6(shared) => {
            Some((Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, shared.segments()[7]).into(), 64))
        }
        IpAddr::V4(_) => None,
    });
    shared.chain(link_local).collect()
}

/// Returns the kernel settings of a LAN, or of a node on LANs.
pub fn settings(plan: &Plan, node: usize) -> Vec<(String, String)> {
    if plan.is_lan(node) {
        // A switch sends no packets of its own.
        return vec![("net.ipv6.conf.all.disable_ipv6".into(), "1".into())];
    }
    let mut settings = Vec::new();
    let is_attached = |link: &usize| plan.links[*link].ends.contains(&node);
    for link in (0..plan.links.len()).filter(is_attached) {
        let Some(lan) = plan.lan_of(link) else { continue };
        let interface = node_interface(link);
        // On a LAN, the node answers ARP requests only for its addresses on the LAN, and sends its own from these.
        settings.push((format!("net.ipv4.conf.{interface}.arp_ignore"), "1".into()));
        settings.push((format!("net.ipv4.conf.{interface}.arp_announce"), "2".into()));
        if let Some(timeout) = plan.nodes[lan].arp_timeout {
            let milliseconds = (timeout.0 / 1_000_000).max(1);
            settings.extend(["ipv4", "ipv6"].map(|version| {
                let name = format!("net.{version}.neigh.{interface}.base_reachable_time_ms");
                (name, milliseconds.to_string())
            }));
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use crate::topology::layout::AddressLayout;
    use crate::topology::plan_of;
    use crate::topology::spec::Spec;

    #[test]
    fn stations_are_next_hops_of_each_other_and_the_lan_has_no_addresses() {
        const TEXT: &str = include_str!("../../../../scenarios/examples/lan.toml");
        let plan = &plan_of(TEXT);
        let spec = Spec::new(plan, &AddressLayout::new(plan).unwrap(), &Default::default());
        let node = |name: &str| spec.nodes.iter().find(|node| node.name == name).unwrap();
        assert!(node("lan").is_lan && node("lan").addresses.is_empty() && node("lan").routes.is_empty());
        // In the order of the link names: a, b, c, router.
        let gateways = |name: &str| {
            let v4 = node(name).routes.iter().filter(|route| route.destination.is_ipv4());
            v4.map(|route| route.gateway.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(gateways("a"), ["100.96.0.2"]);
        assert_eq!(gateways("c"), ["100.96.0.4"]);
        let on_lan = node("router").addresses.iter().filter(|address| address.link.is_some());
        let on_lan: Vec<String> =
            on_lan.map(|address| format!("{}/{}", address.address, address.length)).collect();
        assert_eq!(on_lan, ["100.96.0.4/29", "fd6e:7376::4/64", "fe80::4/64"]);
        let resolving = spec.links.iter().filter(|link| link.resolves).count();
        assert_eq!((resolving, spec.links.iter().filter(|link| link.is_tun).count()), (4, 1));
    }
}
