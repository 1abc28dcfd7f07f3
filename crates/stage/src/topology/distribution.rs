//! Multicast distribution: the group address of each flow and the forwarding entries of each router, without side
//! effects.
//!
//! The paths of a flow to all receivers form a tree that leaves the sender by one link. The kernel forwards by source
//! and group, so each flow group has a source address of its own, and the trees of several senders to one group are
//! independent.

use super::layout::LayoutError;
use netstage_host::netns::multicast::MAX_LINKS;
use netstage_scenario::plan::{FlowGroup, FlowTransport, Hop, IpVersion, MulticastGroup, Plan};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Distribution tree of one flow group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// Multicast group.
    pub group: IpAddr,
    /// Index of the link by which packets leave the sender.
    pub first: usize,
    /// Hop by which packets reach each node except the sender.
    pub arrivals: BTreeMap<usize, Hop>,
    /// Forwarding entry of each router of the tree.
    pub forwarding: BTreeMap<usize, MulticastForwarding>,
}

/// Multicast forwarding entry of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MulticastForwarding {
    /// Index of the incoming link.
    pub from: usize,
    /// Indices of the outgoing links.
    pub to: BTreeSet<usize>,
}

/// Returns the trees of the flow groups of a plan; `None` for unicast.
pub fn trees(plan: &Plan) -> Result<Vec<Option<Tree>>, LayoutError> {
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
        if let Some((&node, _)) = links.iter().find(|(_, links)| links.len() > MAX_LINKS) {
            return Err(LayoutError::TooManyLinks { router: plan.nodes[node].name.clone() });
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
            let previous = tree.arrivals.insert(node, hop);
            debug_assert!(previous.is_none_or(|previous| previous == hop), "the paths of a flow form a tree");
        }
        for pair in path.windows(2) {
            let [_, node] = plan.ends(pair[0]);
            let forwarding = tree.forwarding.entry(node);
            let forwarding =
                forwarding.or_insert(MulticastForwarding { from: pair[0].link, to: BTreeSet::new() });
            forwarding.to.insert(pair[1].link);
        }
    }
    tree
}

/// Returns the multicast group of each flow group: the one in the plan, or else an unused one.
pub fn groups(plan: &Plan) -> Vec<Option<IpAddr>> {
    let multicast = |flow: &FlowGroup| match flow.transport {
        FlowTransport::Multicast(multicast) => Some(multicast),
        _ => None,
    };
    let mut used: BTreeSet<IpAddr> = plan.flows.iter().filter_map(|flow| multicast(flow)?.group).collect();
    let mut group = |flow: &FlowGroup| {
        let multicast = multicast(flow)?;
        let candidates = || (0..).map(|number| group_address(flow.family, multicast, number));
        let group = multicast.group.or_else(|| candidates().find(|group| !used.contains(group)))?;
        used.insert(group);
        Some(group)
    };
    plan.flows.iter().map(&mut group).collect()
}

/// Returns a group address from unassigned ranges: 239.192.0.0/14 of organization-local scope (RFC 2365) and transient
/// groups of that scope (RFC 7346); for source-specific multicast, the range for dynamic allocation by hosts
/// (RFC 4607 section 1).
fn group_address(family: IpVersion, multicast: MulticastGroup, number: u32) -> IpAddr {
    match (family, multicast.source_specific) {
        (IpVersion::V4, false) => Ipv4Addr::from(0xefc0_0001 + number).into(),
        (IpVersion::V4, true) => Ipv4Addr::from(0xe800_0100 + number).into(),
        (IpVersion::V6, false) => Ipv6Addr::from((0xff18 << 112) + 1 + u128::from(number)).into(),
        (IpVersion::V6, true) => Ipv6Addr::from((0xff38 << 112) + 0x8000_0000 + u128::from(number)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::plan_of;
    use netstage_harness::scenario::network;

    /// Returns a plan with `s` – `r1` – `r2`, `a` at `r1`, `b` and `c` at `r2`, and these flows.
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
    fn routers_copy_packets_where_paths_diverge() {
        let plan = plan("[flow.tv]\nfrom = \"s\"\nto = [\"c\", \"a\", \"b\"]");
        let tree = trees(&plan).unwrap()[0].clone().unwrap();
        let link = |name: &str| plan.links.iter().position(|link| link.name == name).unwrap();
        let node = |name: &str| plan.nodes.iter().position(|node| node.name == name).unwrap();
        let links = |names: &[&str]| names.iter().map(|name| link(name)).collect::<BTreeSet<_>>();
        assert_eq!(tree.first, link("up"));
        let expected = [
            (node("r1"), MulticastForwarding { from: link("up"), to: links(&["core", "to-a"]) }),
            (node("r2"), MulticastForwarding { from: link("core"), to: links(&["to-b", "to-c"]) }),
        ];
        assert_eq!(tree.forwarding, BTreeMap::from(expected));
        assert_eq!(tree.arrivals[&node("r2")], Hop { link: link("core"), direction: 1 });
        assert_eq!(tree.arrivals.len(), 5);
    }

    #[test]
    fn groups_are_configured_or_chosen() {
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
    fn the_multicast_links_of_a_router_are_limited() {
        let hosts = |count: usize| {
            let joined = (0..count).map(|k| format!("[node.h{k}]\n[link.h{k}]\nends = [\"h{k}\", \"r2\"]\n"));
            let names: Vec<String> = (0..count).map(|k| format!("\"h{k}\"")).collect();
            let joined: String = joined.collect();
            format!("{joined}[flow.tv]\nfrom = \"s\"\nto = [{}]", names.join(", "))
        };
        assert!(trees(&plan(&hosts(MAX_LINKS - 1))).is_ok());
        let error = trees(&plan(&hosts(MAX_LINKS))).unwrap_err();
        assert!(error.to_string().contains("node.r2") && error.to_string().contains("32"), "{error}");
    }
}
