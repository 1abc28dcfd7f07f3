//! How packets to multicast groups spread: the group of each flow, and what every router on the
//! way does with its packets. Pure, as [`super::layout`] is.
//!
//! A plan's ways to all receivers form a tree that leaves the sender by one link. The kernel
//! forwards by source and group, so each flow group has a source address of its own: trees of
//! several senders to one group never mix.

use super::layout::Unplaceable;
use netstage_host::netns::multicast::MOST_LINKS;
use netstage_scenario::plan::{Family, FlowGroup, Hop, Multicast, Plan, Transport};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How one flow group's packets spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The group they go to.
    pub group: IpAddr,
    /// Index of the link the sender sends by.
    pub first: usize,
    /// The hop by which they come to each node but the sender.
    pub arrivals: BTreeMap<usize, Hop>,
    /// What each router on the way does with them.
    pub forwarding: BTreeMap<usize, Forwarding>,
}

/// What a router does with a tree's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// Index of the link they come by.
    pub from: usize,
    /// Indices of those they leave by.
    pub to: BTreeSet<usize>,
}

/// The trees of a plan's flow groups, none for those that are not multicast.
pub fn trees(plan: &Plan) -> Result<Vec<Option<Tree>>, Unplaceable> {
    let groups = groups(plan);
    let trees: Vec<Option<Tree>> =
        plan.flows.iter().zip(groups).map(|(flow, group)| Some(tree(plan, flow, group?))).collect();
    for family in super::address::FAMILIES {
        let mut links: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let of_family = plan.flows.iter().zip(&trees).filter(|(flow, _)| flow.family == family);
        for (&node, forwarding) in of_family.filter_map(|(_, tree)| tree.as_ref()).flat_map(|t| &t.forwarding)
        {
            let links = links.entry(node).or_default();
            links.insert(forwarding.from);
            links.extend(&forwarding.to);
        }
        if let Some((&node, _)) = links.iter().find(|(_, links)| links.len() > MOST_LINKS) {
            return Err(Unplaceable::TooManyLinks { router: plan.nodes[node].name.clone() });
        }
    }
    Ok(trees)
}

fn tree(plan: &Plan, flow: &FlowGroup, group: IpAddr) -> Tree {
    let first = flow.path[0].link;
    let mut tree = Tree { group, first, arrivals: BTreeMap::new(), forwarding: BTreeMap::new() };
    for path in flow.paths() {
        debug_assert_eq!(path[0].link, first, "a tree leaves its sender by one link");
        for &hop in path {
            let [_, node] = plan.ends(hop);
            let known = tree.arrivals.insert(node, hop);
            debug_assert!(known.is_none_or(|known| known == hop), "the ways of a flow form a tree");
        }
        for pair in path.windows(2) {
            let [_, node] = plan.ends(pair[0]);
            let forwarding = tree.forwarding.entry(node);
            let forwarding = forwarding.or_insert(Forwarding { from: pair[0].link, to: BTreeSet::new() });
            forwarding.to.insert(pair[1].link);
        }
    }
    tree
}

/// The group of each flow group that is multicast: the one the plan names, else one of its own.
pub fn groups(plan: &Plan) -> Vec<Option<IpAddr>> {
    let multicast = |flow: &FlowGroup| match flow.transport {
        Transport::Multicast(multicast) => Some(multicast),
        _ => None,
    };
    let mut taken: BTreeSet<IpAddr> = plan.flows.iter().filter_map(|flow| multicast(flow)?.group).collect();
    let mut group = |flow: &FlowGroup| {
        let multicast = multicast(flow)?;
        let free = || (0..).map(|number| numbered(flow.family, multicast, number));
        let group = multicast.group.or_else(|| free().find(|group| !taken.contains(group)))?;
        taken.insert(group);
        Some(group)
    };
    plan.flows.iter().map(&mut group).collect()
}

/// Of addresses nobody has been given: 239.192.0.0/14, of an organisation (RFC 2365), and
/// transient groups of that scope (RFC 7346); of sources of their own those that hosts may take
/// for themselves (RFC 4607 section 1).
fn numbered(family: Family, multicast: Multicast, number: u32) -> IpAddr {
    match (family, multicast.source_specific) {
        (Family::V4, false) => Ipv4Addr::from(0xefc0_0001 + number).into(),
        (Family::V4, true) => Ipv4Addr::from(0xe800_0100 + number).into(),
        (Family::V6, false) => Ipv6Addr::from((0xff18 << 112) + 1 + u128::from(number)).into(),
        (Family::V6, true) => Ipv6Addr::from((0xff38 << 112) + 0x8000_0000 + u128::from(number)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::plan_of;
    use netstage_harness::scenario::network;

    /// `s` – `r1` – `r2`; `a` at `r1`, `b` and `c` at `r2`, and what flows.
    fn plan(flows: &str) -> Plan {
        let nodes = [("host", "s a b c"), ("router", "r1 r2")];
        let network = network(&nodes, "up:s,r1 core:r2,r1 to-a:r1,a to-b:b,r2 to-c:r2,c");
        plan_of(&format!(
            r#"
            [scenario]
            duration = "1 s"
            [defaults.link]
            rate = "10 Mbit/s"
            buffer = "10 packets"
            [defaults.flow]
            transport = "multicast"
            traffic = {{ model = "cbr", rate = "1 Mbit/s" }}
            {network}{flows}"#
        ))
    }

    #[test]
    fn routers_copy_where_ways_part() {
        let plan = plan("[flow.tv]\nfrom = \"s\"\nto = [\"c\", \"a\", \"b\"]");
        let tree = trees(&plan).unwrap()[0].clone().unwrap();
        let link = |name: &str| plan.links.iter().position(|link| link.name == name).unwrap();
        let node = |name: &str| plan.nodes.iter().position(|node| node.name == name).unwrap();
        let links = |names: &[&str]| names.iter().map(|name| link(name)).collect::<BTreeSet<_>>();
        assert_eq!(tree.first, link("up"));
        let expected = [
            (node("r1"), Forwarding { from: link("up"), to: links(&["core", "to-a"]) }),
            (node("r2"), Forwarding { from: link("core"), to: links(&["to-b", "to-c"]) }),
        ];
        assert_eq!(tree.forwarding, BTreeMap::from(expected));
        assert_eq!(tree.arrivals[&node("r2")], Hop { link: link("core"), direction: 1 });
        assert_eq!(tree.arrivals.len(), 5);
    }

    #[test]
    fn groups_are_those_named_or_ones_of_their_own() {
        let plan = plan(
            r#"
            [flow.a]
            from = "s"
            to = "a"
            [flow.b]
            from = "s"
            to = "a"
            multicast = { group = "239.192.0.1" }
            [flow.c]
            from = "a"
            to = "s"
            multicast = { group = "239.192.0.1" }
            [flow.d]
            from = "s"
            to = "a"
            multicast = { source = "sender" }
            [flow.e]
            from = "s"
            to = "a"
            ip = "v6"
            [flow.f]
            from = "s"
            to = "a"
            ip = "v6"
            multicast = { source = "sender" }
            [flow.g]
            from = "s"
            to = "a"
            transport = "udp""#,
        );
        let groups: Vec<String> = trees(&plan)
            .unwrap()
            .iter()
            .map(|t| t.as_ref().map_or("".into(), |t| t.group.to_string()))
            .collect();
        let expected =
            ["239.192.0.2", "239.192.0.1", "239.192.0.1", "232.0.1.0", "ff18::1", "ff38::8000:0", ""];
        assert_eq!(groups, expected);
    }

    #[test]
    fn a_router_forwards_between_so_many_links() {
        let hosts = |count: usize| {
            let joined = (0..count).map(|k| format!("[node.h{k}]\n[link.h{k}]\nends = [\"h{k}\", \"r2\"]\n"));
            let names: Vec<String> = (0..count).map(|k| format!("\"h{k}\"")).collect();
            let joined: String = joined.collect();
            format!("{joined}[flow.tv]\nfrom = \"s\"\nto = [{}]", names.join(", "))
        };
        assert!(trees(&plan(&hosts(MOST_LINKS - 1))).is_ok());
        let error = trees(&plan(&hosts(MOST_LINKS))).unwrap_err();
        assert!(error.to_string().contains("node.r2") && error.to_string().contains("32"), "{error}");
    }
}
