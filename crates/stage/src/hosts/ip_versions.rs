//! IP versions of flows between agents: that of the scenario or, if it sets none, one that all ends of the flow have.

use netstage_agent::controller::ControlledAgents;
use netstage_scenario::outcome::RunFailure;
use netstage_scenario::plan::{FlowGroup, IpVersion, Plan};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Addresses that the flows of each node may use.
pub struct NodeAddressLists<'a> {
    /// Plan of the run.
    pub plan: &'a Plan,
    /// Name of the agent of each node.
    pub placed: &'a BTreeMap<usize, String>,
    /// Addresses that each agent reports.
    pub reported: BTreeMap<&'a str, &'a [IpAddr]>,
}

impl<'a> NodeAddressLists<'a> {
    /// Returns the addresses that connected agents report.
    pub fn of_agents(
        plan: &'a Plan,
        placed: &'a BTreeMap<usize, String>,
        agents: &'a ControlledAgents,
    ) -> NodeAddressLists<'a> {
        let reported = placed.values().map(|agent| (agent.as_str(), agents.addresses(agent))).collect();
        NodeAddressLists { plan, placed, reported }
    }

    /// Returns the addresses of a node: that of [place], or those of its agent. Those of loopback lead to no other host,
    /// and are returned only if there is no other.
    fn of_node(&self, node: usize) -> Vec<IpAddr> {
        let configured = self.plan.nodes[node].placement.as_ref().and_then(|place| place.address);
        if let Some(configured) = configured {
            return vec![configured];
        }
        let reported = self.placed.get(&node).and_then(|agent| self.reported.get(agent.as_str()));
        let reported = reported.copied().unwrap_or_default();
        let others: Vec<IpAddr> = reported.iter().copied().filter(|address| !address.is_loopback()).collect();
        if others.is_empty() { reported.to_vec() } else { others }
    }

    /// Returns whether a node has an address of an IP version.
    pub fn has(&self, node: usize, version: IpVersion) -> bool {
        self.of_node(node).iter().any(|address| version_of(*address) == version)
    }

    /// Returns the address of a node for flows of this IP version.
    pub fn address(&self, node: usize, version: IpVersion) -> Result<IpAddr, RunFailure> {
        let (place, agent) = (&self.plan.nodes[node], &self.placed[&node]);
        let addresses = self.of_node(node);
        if let Some(found) = addresses.iter().find(|address| version_of(**address) == version) {
            return Ok(*found);
        }
        let name = &place.name;
        let (version, other) = if version == IpVersion::V4 { ("IPv4", "v6") } else { ("IPv6", "v4") };
        Err(match place.placement.as_ref().and_then(|place| place.address) {
            Some(configured) => RunFailure::Unsupported(format!(
                "node.{name}: the address in [place] is {configured}, but the flows use {version}; configure an {version} \
                 address, or set `ip = \"{other}\"` for the flows and tests"
            )),
            None => {
                let remedy = match addresses.iter().any(|address| !address.is_loopback()) {
                    true => format!("set `ip = \"{other}\"` for the flows and tests, or add "),
                    false => "add ".into(),
                };
                RunFailure::Failed(format!(
                    "node.{name}: agent {agent} reports no {version} address; {remedy}{name} = {{ agent = \"{agent}\", \
                     address = \"…\" }} to [place]"
                ))
            }
        })
    }

    /// Returns the plan with the IP version of each flow. The error contains the flows whose ends have none in common.
    pub fn settle(&self) -> Result<Plan, Vec<String>> {
        let mut settled = self.plan.clone();
        let mut problems = Vec::new();
        for group in settled.flows.iter_mut().filter(|group| group.any_version) {
            let ends: Vec<usize> = ends(group).filter(|node| !self.of_node(*node).is_empty()).collect();
            let is_common = |version: &IpVersion| ends.iter().all(|node| self.has(*node, *version));
            match [IpVersion::V4, IpVersion::V6].into_iter().find(is_common) {
                Some(version) => group.family = version,
                None => problems.push(self.no_common_version(&group.name, &ends)),
            }
        }
        if problems.is_empty() { Ok(settled) } else { Err(problems) }
    }

    /// Returns the flows that have no addresses, as far as the addresses of their ends are known.
    pub fn refusals(&self) -> Vec<String> {
        let mut refusals = self.settle().err().unwrap_or_default();
        for group in self.plan.flows.iter().filter(|group| !group.any_version) {
            let known = ends(group).filter(|node| !self.of_node(*node).is_empty());
            for node in known {
                if let Err(RunFailure::Unsupported(reason) | RunFailure::Failed(reason)) =
                    self.address(node, group.family)
                {
                    refusals.push(format!("flow.{}: {reason}", group.name));
                }
            }
        }
        refusals
    }

    fn no_common_version(&self, flow: &str, ends: &[usize]) -> String {
        let describe = |node: &usize| {
            let versions: Vec<&str> = [(IpVersion::V4, "IPv4"), (IpVersion::V6, "IPv6")]
                .into_iter()
                .filter(|(version, _)| self.has(*node, *version))
                .map(|(_, name)| name)
                .collect();
            format!("agent {} ({})", self.placed[node], versions.join(", "))
        };
        let ends: Vec<String> = ends.iter().map(describe).collect();
        format!(
            "flow.{flow}: {} have no IP version in common; give their hosts addresses of one IP version, on interfaces that \
             the policies permit",
            ends.join(" and ")
        )
    }
}

/// Describes the flows that do not use the IP version of the other stages, for the record.
pub fn remarks(plan: &Plan, placed: &BTreeMap<usize, String>) -> Vec<String> {
    let other = plan.flows.iter().filter(|group| group.any_version && group.family == IpVersion::V6);
    let remark = |group: &FlowGroup| {
        let agents: Vec<&str> =
            ends(group).filter_map(|node| placed.get(&node)).map(String::as_str).collect();
        format!(
            "flow {} uses IPv6, the only IP version that its agents {} have in common",
            group.name,
            agents.join(" and ")
        )
    };
    other.map(remark).collect()
}

/// Returns the sender and all receivers of a flow.
fn ends(group: &FlowGroup) -> impl Iterator<Item = usize> {
    [group.from, group.to].into_iter().chain(group.branches.iter().map(|branch| branch.to))
}

fn version_of(address: IpAddr) -> IpVersion {
    if address.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::plan_of;

    /// Returns the plan of a flow from `a` to `b` with further settings of flow and placement.
    fn plan(flow: &str, place: &str) -> Plan {
        plan_of(&format!(
            "[scenario]\nduration = \"1 s\"\n[node.a]\n[node.b]\n[link.l]\nends = [\"a\", \"b\"]\nrate = \"1 Mbit/s\"\n\
             buffer = \"9 packets\"\n[flow.f]\nfrom = \"a\"\nto = \"b\"\n{flow}\n[place]\na = \"x\"\n{place}"
        ))
    }

    #[test]
    fn the_ip_version_is_one_that_both_ends_have() {
        let placed: BTreeMap<usize, String> = [(0, "x".into()), (1, "y".into())].into();
        let (open, fixed) = ("", "ip = \"v6\"");
        let udp =
            "transport = \"udp\"\ntraffic = { model = \"cbr\", rate = \"1 Mbit/s\", packet = \"100 B\" }";
        let unchecked = format!("{udp}\nudp = {{ checksum = false }}");
        let (here, there) = ("b = \"y\"", "b = { agent = \"y\", address = \"fd00::9\" }");
        for (flow, place, x, y, expected) in [
            (open, here, &["10.0.0.1", "fd00::1"][..], &["fd00::2", "10.0.0.2"][..], Ok(IpVersion::V4)),
            (open, here, &["10.0.0.1", "fd00::1"], &["fd00::2", "127.0.0.1", "::1"], Ok(IpVersion::V6)),
            (open, here, &["10.0.0.1"], &[], Ok(IpVersion::V4)),
            (open, here, &["127.0.0.1"], &["127.0.0.1"], Ok(IpVersion::V4)),
            (open, there, &["10.0.0.1", "fd00::1"], &["10.0.0.2"], Ok(IpVersion::V6)),
            (
                open,
                here,
                &["10.0.0.1"],
                &["fd00::2"],
                Err("agent x (IPv4) and agent y (IPv6) have no IP version"),
            ),
            (open, there, &["10.0.0.1"], &["10.0.0.2"], Err("agent x (IPv4) and agent y (IPv6) have no IP")),
            (fixed, here, &["10.0.0.1", "fd00::1"], &["fd00::2"], Ok(IpVersion::V6)),
            (fixed, here, &["10.0.0.1"], &["10.0.0.2"], Err("agent x reports no IPv6 address")),
            (
                &unchecked,
                here,
                &["10.0.0.1", "fd00::1"],
                &["fd00::2"],
                Err("agent y reports no IPv4 address"),
            ),
        ] {
            let plan = plan(flow, place);
            let [x, y] =
                [x, y].map(|all| all.iter().map(|one| one.parse().unwrap()).collect::<Vec<IpAddr>>());
            let reported = [("x", x.as_slice()), ("y", y.as_slice())].into();
            let lists = NodeAddressLists { plan: &plan, placed: &placed, reported };
            let refusals = lists.refusals();
            match expected {
                Ok(version) => {
                    assert_eq!(refusals, Vec::<String>::new());
                    let settled = lists.settle().unwrap();
                    assert_eq!(settled.flows[0].family, version);
                    let remarks = remarks(&settled, &placed);
                    assert_eq!(
                        !remarks.is_empty(),
                        flow.is_empty() && version == IpVersion::V6,
                        "{remarks:?}"
                    );
                }
                Err(part) => {
                    assert!(
                        refusals[0].starts_with("flow.f: ") && refusals[0].contains(part),
                        "{refusals:?}"
                    );
                }
            }
        }
    }
}
