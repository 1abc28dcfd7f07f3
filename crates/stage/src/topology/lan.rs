//! Shared LANs of a plan: who is joined to them, and by which addresses they know each other.
//!
//! A LAN is a bridge in a namespace of its own. Its stations have addresses from one prefix, the smallest that
//! holds all of them, in the order of their links' names; they find each other by ARP and neighbour discovery,
//! which reach everybody.

use super::address::{self, FAMILIES};
use super::network::node_interface;
use netstage_scenario::plan::{Family, Plan};
use std::net::{IpAddr, Ipv6Addr};

/// The bridge of a LAN, in the namespace of its node.
pub const BRIDGE: &str = "lan";

/// The links of a LAN, one for each station.
pub fn links(plan: &Plan, lan: usize) -> impl Iterator<Item = usize> {
    (0..plan.links.len()).filter(move |link| plan.links[*link].ends.contains(&lan))
}

/// The link by which a node is joined to a LAN.
pub fn link_to(plan: &Plan, lan: usize, node: usize) -> Option<usize> {
    links(plan, lan).find(|link| plan.links[*link].ends.contains(&node))
}

/// The station at the other end of a LAN's link.
pub fn station(plan: &Plan, lan: usize, link: usize) -> usize {
    let [a, b] = plan.links[link].ends;
    if a == lan { b } else { a }
}

/// The address of the station at a LAN's link, and the length of the LAN's prefix; none where the link is no
/// LAN's.
pub fn address(plan: &Plan, family: Family, link: usize) -> Option<(IpAddr, u8)> {
    let lan = plan.lan_of(link)?;
    let before = (0..lan).filter(|node| plan.is_lan(*node)).count();
    let number = links(plan, lan).position(|other| other == link).expect("a LAN's link is among its links");
    Some(address::on_lan(family, before, number, links(plan, lan).count()))
}

/// The addresses of the station at a LAN's link: with one of the link alone, which neighbour discovery of
/// forwarded packets asks by.
pub fn addresses(plan: &Plan, link: usize) -> Vec<(IpAddr, u8)> {
    let shared = FAMILIES.into_iter().filter_map(|family| address(plan, family, link));
    let own = address(plan, Family::V6, link).and_then(|(shared, _)| match shared {
        IpAddr::V6(shared) => {
            Some((Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, shared.segments()[7]).into(), 64))
        }
        IpAddr::V4(_) => None,
    });
    shared.chain(own).collect()
}

/// What the kernel of a node on LANs is told of them.
pub fn settings(plan: &Plan, node: usize) -> Vec<(String, String)> {
    if plan.is_lan(node) {
        // A switch says nothing itself.
        return vec![("net.ipv6.conf.all.disable_ipv6".into(), "1".into())];
    }
    let mut settings = Vec::new();
    let on_lan = |link: &usize| plan.links[*link].ends.contains(&node);
    for link in (0..plan.links.len()).filter(on_lan) {
        let Some(lan) = plan.lan_of(link) else { continue };
        let interface = node_interface(link);
        // Of its addresses those on the LAN alone are asked for there, and asked by.
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
    use crate::topology::layout::Layout;
    use crate::topology::plan_of;
    use crate::topology::spec::Spec;

    #[test]
    fn stations_send_to_each_other_and_the_lan_has_no_say() {
        const TEXT: &str = include_str!("../../../../scenarios/examples/lan.toml");
        let plan = &plan_of(TEXT);
        let spec = Spec::new(plan, &Layout::new(plan).unwrap(), &Default::default());
        let node = |name: &str| spec.nodes.iter().find(|node| node.name == name).unwrap();
        assert!(node("lan").is_lan && node("lan").addresses.is_empty() && node("lan").routes.is_empty());
        // By their links' names: a, b, c, router.
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
