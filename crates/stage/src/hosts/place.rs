//! Which agent stands for which host or provider edge router.

use crate::topology::pe;
use netstage_agent::fleet::{AgentStatus, State};
use netstage_scenario::did_you_mean;
use netstage_scenario::plan::{Chosen, Plan};
use std::collections::{BTreeMap, BTreeSet};

/// Why hosts have no agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unplaced {
    /// What is wrong, a line each.
    pub why: String,
    /// The gravest cause of them.
    pub cause: Cause,
}

/// Why a host has no agent, the gravest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Agents are taken, which may be over in a moment.
    Taken,
    /// Agents are not there.
    Absent,
    /// The scenario names none, or one that this fleet has not.
    Scenario,
}

/// The nodes that agents have to stand for: the hosts of flows, and, if one of them is placed, the
/// provider edge routers of VPNs.
fn wanted(plan: &Plan) -> BTreeSet<usize> {
    let ends = plan.flows.iter().flat_map(|group| {
        let branches = group.branches.iter().map(|branch| branch.to);
        [group.from, group.to].into_iter().chain(branches)
    });
    let mut wanted: BTreeSet<usize> = ends.collect();
    let routers = || plan.vpns.iter().flat_map(|vpn| [vpn.ingress, vpn.egress]);
    if pe::are_needed(plan) && routers().any(|node| plan.nodes[node].place.is_some()) {
        wanted.extend(routers());
    }
    wanted
}

/// The agents of the nodes that need one, by index of the node.
pub fn agents(plan: &Plan, statuses: &[AgentStatus]) -> Result<BTreeMap<usize, String>, Unplaced> {
    let hosts = wanted(plan);
    let mut placed: BTreeMap<usize, String> = BTreeMap::new();
    let mut problems = Vec::new();
    // Named ones first: a label takes what they leave.
    for by_name in [true, false] {
        for &host in &hosts {
            let node = &plan.nodes[host];
            let name = &node.name;
            match node.place.as_ref().map(|place| &place.agent) {
                None if by_name => problems.push((
                    Cause::Scenario,
                    format!(
                        "node.{name}: no agent stands for it; add `{name} = \"AGENT\"` to [place] (netstage fleet ls \
                         lists them)"
                    ),
                )),
                Some(Chosen::Named(agent)) if by_name => match named(agent, statuses) {
                    Ok(()) => drop(placed.insert(host, agent.clone())),
                    Err((cause, why)) => problems.push((cause, format!("node.{name}: {why}"))),
                },
                Some(Chosen::Labelled(label)) if !by_name => {
                    let of_label = || statuses.iter().filter(|agent| agent.labels.contains(label));
                    let free = |agent: &&AgentStatus| {
                        agent.state == State::Idle
                            && !placed.values().any(|taken| *taken == agent.name)
                    };
                    match of_label().find(free) {
                        Some(agent) => drop(placed.insert(host, agent.name.clone())),
                        None => {
                            let (cause, why) = unlabelled(label, statuses);
                            problems.push((cause, format!("node.{name}: {why}")));
                        }
                    }
                }
                _ => {}
            }
        }
    }
    let Some(cause) = problems.iter().map(|(cause, _)| *cause).max() else { return Ok(placed) };
    let why: Vec<String> = problems.into_iter().map(|(_, why)| why).collect();
    Err(Unplaced { why: why.join("\n"), cause })
}

/// Why no agent of this label can be had.
fn unlabelled(label: &str, statuses: &[AgentStatus]) -> (Cause, String) {
    let labels: BTreeSet<&str> =
        statuses.iter().flat_map(|agent| agent.labels.iter().map(String::as_str)).collect();
    if !labels.contains(label) {
        let help = did_you_mean(label, labels.iter().copied());
        let help = help.unwrap_or_else(|| "`netstage fleet ls` lists them".into());
        return (Cause::Scenario, format!("no agent has label {label}; {help}"));
    }
    let mut of_label = statuses.iter().filter(|agent| agent.labels.iter().any(|one| one == label));
    let cause = if of_label.any(|agent| agent.state == State::Taken) { Cause::Taken } else { Cause::Absent };
    (cause, format!("no further agent with label {label} is there and free"))
}

fn named(agent: &str, statuses: &[AgentStatus]) -> Result<(), (Cause, String)> {
    let Some(status) = statuses.iter().find(|status| status.name == agent) else {
        let help = did_you_mean(agent, statuses.iter().map(|status| status.name.as_str()));
        let help = help.unwrap_or_else(|| "`netstage fleet ls` lists them".into());
        return Err((Cause::Scenario, format!("there is no agent {agent}; {help}")));
    };
    match status.state {
        State::Idle | State::Taken => Ok(()),
        state => {
            let why = format!("agent {agent} is {state}; netstage fleet doctor tells what helps");
            Err((Cause::Absent, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::plan_of;

    fn status(name: &str, label: &str, state: State) -> AgentStatus {
        AgentStatus {
            name: name.into(),
            labels: vec![label.into()],
            address: None,
            host: String::new(),
            version: String::new(),
            state,
            last_seen_ns: None,
            clock: None,
            wall_clock: None,
            capabilities: Vec::new(),
            certificate_expires_s: 0,
        }
    }

    fn plan(place: &str) -> Plan {
        let text = format!(
            "[scenario]\nduration = \"1 s\"\n[node.a]\n[node.b]\n[link.l]\nends = [\"a\", \"b\"]\nrate = \"1 Mbit/s\"\n\
             buffer = \"9 packets\"\n[flow.f]\nfrom = \"a\"\nto = \"b\"\n[place]\n{place}"
        );
        plan_of(&text)
    }

    #[test]
    fn names_come_first_and_labels_take_what_is_free() {
        let statuses = [
            status("x", "lab", State::Idle),
            status("y", "lab", State::Taken),
            status("z", "lab", State::Idle),
            status("gone", "lab", State::Offline),
            status("other", "busy", State::Taken),
        ];
        let placed = |place: &str| agents(&plan(place), &statuses);
        let both = |a: &str, b: &str| Ok([(0, a.to_owned()), (1, b.to_owned())].into());
        assert_eq!(placed("a = { label = \"lab\" }\nb = \"x\""), both("z", "x"));
        assert_eq!(placed("a = { label = \"lab\" }\nb = { label = \"lab\" }"), both("x", "z"));
        for (place, cause, told) in [
            ("a = \"x\"", Cause::Scenario, "node.b: no agent stands for it"),
            ("a = \"x\"\nb = \"gon\"", Cause::Scenario, "did you mean `gone`"),
            ("a = \"x\"\nb = \"gone\"", Cause::Absent, "agent gone is offline"),
            (
                "a = \"x\"\nb = { label = \"rome\" }",
                Cause::Scenario,
                "no agent has label rome; known here: busy, lab",
            ),
            ("a = \"x\"\nb = { label = \"busi\" }", Cause::Scenario, "did you mean `busy`"),
            ("a = \"y\"\nb = { label = \"busy\" }", Cause::Taken, "no further agent with label busy"),
        ] {
            let error = placed(place).unwrap_err();
            assert_eq!(error.cause, cause);
            assert!(error.why.contains(told), "{error:?}");
        }
    }
}
