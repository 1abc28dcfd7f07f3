//! Expansion of VPNs and nodes with a `count`, of the flows of these VPNs, and of the links of these nodes.

use super::control::VpnTable;
use super::network::{DuplexLink, NodeTable};
use super::service::ServiceTable;
use super::{FlowTable, ScenarioFile};
use crate::error::Problems;
use crate::scalar::{BoundedCount, NodeName, VpnName};
use crate::table::{Located, NamedTable, NamedTables};
use netstage_core::time::Duration;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Tables before and after their last expansion without faults.
#[derive(Default)]
pub(crate) struct Expansion {
    node: Option<[NamedTables<NodeTable>; 2]>,
    link: Option<[NamedTables<DuplexLink>; 2]>,
    vpn: Option<[NamedTables<VpnTable>; 2]>,
    flow: Option<[NamedTables<FlowTable>; 2]>,
}

/// Replaces every node and VPN with a `count` by that number of them, and replicates the links of the node and the flows of
/// the VPN for each of them. The result is that of `last` if the tables are the same.
pub(crate) fn expand(file: &mut ScenarioFile, last: &mut Expansion, problems: &mut Problems) {
    expand_nodes(file, last, problems);
    expand_vpns(file, last, problems);
}

fn expand_nodes(file: &mut ScenarioFile, last: &mut Expansion, problems: &mut Problems) {
    let counts = counts(&file.node, |node| node.count.map(|count| count.0));
    if counts.is_empty() {
        return;
    }
    let before = file.node.clone();
    let has_same_nodes = last.node.as_ref().is_some_and(|[node, _]| node.is_same(&before));
    remembered(&mut file.node, &mut last.node, problems, |nodes, problems| {
        replicate(nodes, problems, |name, _| counts.get(name).copied(), |node, _| node.count = None);
    });
    if !has_same_nodes {
        last.link = None;
    }
    let count =
        |_: &str, link: &DuplexLink| link.ends.iter().find_map(|end| counts.get(&*end.value.0).copied());
    let rename = |end: &mut Located<NodeName>, number| {
        if counts.contains_key(&*end.value.0) {
            end.value.0 = numbered(&end.value.0, number).into();
        }
    };
    remembered(&mut file.link, &mut last.link, problems, |links, problems| {
        replicate(links, problems, count, |link, number| {
            link.ends.iter_mut().for_each(|end| rename(end, number));
        });
    });
    for service in Rc::make_mut(&mut file.service.0) {
        let systems = match service.value.as_mut().map(Rc::make_mut) {
            Some(ServiceTable::Bird(bird)) => &mut bird.members.value,
            Some(ServiceTable::Frr(frr)) => &mut frr.edges.value,
            _ => continue,
        };
        let count = |name: &str, _: &BoundedCount<1, 4_294_967_294>| counts.get(name).copied();
        replicate(systems, problems, count, |system, number| system.0 += number - 1);
    }
}

/// Returns the counts of tables that have one, by their names.
fn counts<T>(members: &NamedTables<T>, count: impl Fn(&T) -> Option<u64>) -> BTreeMap<String, u64> {
    let counted =
        members.0.iter().filter_map(|member| Some((member.name.clone(), count(member.value.as_ref()?)?)));
    counted.collect()
}

fn expand_vpns(file: &mut ScenarioFile, last: &mut Expansion, problems: &mut Problems) {
    let counts = counts(&file.vpn, |vpn| vpn.count.map(|count| count.0));
    if counts.is_empty() {
        return;
    }
    let before = file.vpn.clone();
    let has_same_vpns = last.vpn.as_ref().is_some_and(|[vpn, _]| vpn.is_same(&before));
    let rename = |name: &mut Located<_>, number| rename(name, &counts, number);
    remembered(&mut file.vpn, &mut last.vpn, problems, |vpns, problems| {
        replicate(
            vpns,
            problems,
            |name, _| counts.get(name).copied(),
            |vpn, number| {
                vpn.count = None;
                vpn.back.iter_mut().for_each(|back| rename(back, number));
            },
        );
    });
    // The flows of a VPN are as many as its count.
    if !has_same_vpns {
        last.flow = None;
    }
    let count = |_: &str, flow: &FlowTable| counts.get(&*flow.vpn.as_ref()?.value.0).copied();
    remembered(&mut file.flow, &mut last.flow, problems, |flows, problems| {
        replicate(flows, problems, count, |flow, number| {
            flow.vpn.iter_mut().for_each(|vpn| rename(vpn, number));
            // The stagger continues from the flows of the previous VPN.
            let before = (number - 1) * flow.count.value.0;
            flow.start.value = flow.start.value + Duration(flow.stagger.0.saturating_mul(before));
        });
    });
}

/// Expands tables, or returns the last expansion of the same ones.
fn remembered<T>(
    members: &mut NamedTables<T>,
    last: &mut Option<[NamedTables<T>; 2]>,
    problems: &mut Problems,
    expand: impl FnOnce(&mut NamedTables<T>, &mut Problems),
) {
    if let Some([_, expanded]) = last.as_ref().filter(|[before, _]| before.is_same(members)) {
        *members = NamedTables(Rc::clone(&expanded.0));
        return;
    }
    let (found, before) = (problems.found(), NamedTables(Rc::clone(&members.0)));
    expand(members, problems);
    *last = (problems.found() == found).then(|| [before, NamedTables(Rc::clone(&members.0))]);
}

fn rename(name: &mut Located<VpnName>, counts: &BTreeMap<String, u64>, number: u64) {
    if counts.contains_key(&*name.value.0) {
        name.value.0 = numbered(&name.value.0, number).into();
    }
}

/// Returns the name of a replica, numbered from 1.
fn numbered(name: &str, number: u64) -> String {
    format!("{name}{number}")
}

fn replicate<T: Clone>(
    members: &mut NamedTables<T>,
    problems: &mut Problems,
    count: impl Fn(&str, &T) -> Option<u64>,
    change: impl Fn(&mut T, u64),
) {
    let mut all: Vec<NamedTable<T>> = Vec::new();
    for member in members.0.iter() {
        let Some(count) = member.value.as_deref().and_then(|value| count(&member.name, value)) else {
            all.push(member.clone());
            continue;
        };
        for number in 1..=count {
            let name = numbered(&member.name, number);
            let mut copy = NamedTable { name, place: member.place, value: member.value.clone() };
            copy.value.iter_mut().for_each(|value| change(Rc::make_mut(value), number));
            all.push(copy);
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    for pair in all.windows(2).filter(|pair| pair[0].name == pair[1].name) {
        let message = format!("duplicate name `{}`: a `count` creates the same name", pair[0].name);
        problems.push_help(pair[1].place, message, "rename one of the two");
    }
    all.dedup_by(|a, b| a.name == b.name);
    members.0 = Rc::new(all);
}

#[cfg(test)]
mod tests {
    use crate::plan::Plan;
    use crate::{LoadOptions, parse};
    use netstage_harness::scenario::network;

    const FILE: &str = r#"
        [scenario]
        duration = "60 s"
        [defaults.link]
        rate = "10 Mbit/s"
        buffer = "20 packets"
        [vpn.site]
        count = 3
        ingress = "in"
        egress = "out"
        back = "home"
        [vpn.home]
        count = 3
        ingress = "out"
        egress = "in"
        [vpn.lone]
        ingress = "in"
        egress = "out"
        control = { kind = "i2vfc", reference = "site2" }
        [defaults.flow]
        from = "a"
        to = "b"
        [flow.tcp]
        vpn = "site"
        count = 2
        start = "1 s"
        stagger = "100 ms"
        [flow.other]
        vpn = "lone"
    "#;

    fn plan(text: &str) -> Result<Plan, String> {
        let network = network(&[("host", "a b"), ("pe", "in out")], "a:a,in core:in,out b:out,b");
        let scenario = parse("t.toml", &format!("{text}\n{network}"), None, &LoadOptions::default());
        scenario.map(|mut scenario| scenario.cells.remove(0).plan).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_count_replicates_a_vpn_and_its_flows() {
        let text = FILE.replacen("count = 3", "count = 3\ncontrol = { kind = \"i2vfc\", decrease = 0.1 }", 1);
        let plan = plan(&text).unwrap();
        let names: Vec<&str> = plan.vpns.iter().map(|vpn| vpn.name.as_str()).collect();
        assert_eq!(names, ["home1", "home2", "home3", "lone", "site1", "site2", "site3"]);
        assert_eq!(plan.vpns[4].opposite, Some(0));
        let flows: Vec<(&str, u64, usize)> =
            plan.flows.iter().map(|f| (f.name.as_str(), f.start.0 / 1_000_000, f.vpn.unwrap())).collect();
        assert_eq!(flows, [("other", 0, 3), ("tcp1", 1_000, 4), ("tcp2", 1_200, 5), ("tcp3", 1_400, 6)]);
    }

    #[test]
    fn a_count_replicates_a_node_its_links_and_its_as_numbers() {
        let text = r#"
            [scenario]
            duration = "10 s"
            [defaults.link]
            rate = "10 Mbit/s"
            [node.ix]
            kind = "lan"
            [node.server]
            [node.m]
            count = 3
            [link.m]
            ends = ["m", "ix"]
            [link.server]
            ends = ["server", "ix"]
            [service.exchange]
            program = "bird"
            server = "server"
            members = { m = 65001 }
        "#;
        let mut scenario = parse("t.toml", text, None, &LoadOptions::default()).unwrap();
        let plan = scenario.cells.remove(0).plan;
        let links: Vec<&str> = plan.links.iter().map(|link| link.name.as_str()).collect();
        assert_eq!(links, ["m1", "m2", "m3", "server"]);
        let members = plan.route_server.unwrap().members;
        let members: Vec<_> =
            members.iter().map(|member| (plan.nodes[member.node].name.as_str(), member.system)).collect();
        assert_eq!(members, [("m1", 65001), ("m2", 65002), ("m3", 65003)]);
    }

    #[test]
    fn a_duplicate_name_is_refused() {
        let text = format!("{FILE}\n[vpn.site2]\ningress = \"in\"\negress = \"out\"");
        let message = plan(&text).unwrap_err();
        assert!(message.contains("duplicate name `site2`"), "{message}");
        let none = FILE.replacen("count = 3", "count = 0", 1);
        let message = plan(&none).unwrap_err();
        assert!(message.contains("unknown vpn `site2`"), "{message}");
    }
}
