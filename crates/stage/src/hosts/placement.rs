//! Placement of hosts and provider edge routers on agents.

use crate::topology::pe;
use netstage_agent::fleet::{AgentAvailability, AgentStatus};
use netstage_scenario::did_you_mean;
use netstage_scenario::plan::{AgentSelector, Plan};
use std::collections::{BTreeMap, BTreeSet};

/// Error of placing nodes on agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementError {
    /// Errors, one per line.
    pub message: String,
    /// Most severe cause.
    pub cause: PlacementCause,
}

/// Cause of a missing agent, in order of increasing severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlacementCause {
    /// The agents are in use, possibly for a short time.
    Taken,
    /// The agents are not connected.
    Absent,
    /// The scenario specifies no agent, or one that the fleet does not have.
    Scenario,
}

/// Returns the nodes that need an agent: the hosts of flows and, if any of them is placed, the provider edge routers of
/// VPNs.
fn required_nodes(plan: &Plan) -> BTreeSet<usize> {
    let ends = plan.flows.iter().flat_map(|group| {
        let branches = group.branches.iter().map(|branch| branch.to);
        [group.from, group.to].into_iter().chain(branches)
    });
    let mut nodes: BTreeSet<usize> = ends.collect();
    let routers = || plan.vpns.iter().flat_map(|vpn| [vpn.ingress, vpn.egress]);
    if pe::are_needed(plan) && routers().any(|node| plan.nodes[node].placement.is_some()) {
        nodes.extend(routers());
    }
    nodes
}

/// Assigns an agent to each node that needs one, by index of the node.
pub fn agents(plan: &Plan, statuses: &[AgentStatus]) -> Result<BTreeMap<usize, String>, PlacementError> {
    let hosts = required_nodes(plan);
    let mut placed: BTreeMap<usize, String> = BTreeMap::new();
    let mut problems = Vec::new();
    // Names first; labels select among the remaining agents.
    for by_name in [true, false] {
        for &host in &hosts {
            let node = &plan.nodes[host];
            let name = &node.name;
            match node.placement.as_ref().map(|place| &place.agent) {
                None if by_name => problems.push((
                    PlacementCause::Scenario,
                    format!(
                        "node.{name}: no agent is assigned; add `{name} = \"AGENT\"` to [place] (`netstage fleet ls` \
                         lists the agents)"
                    ),
                )),
                Some(AgentSelector::Named(agent)) if by_name => match check_named(agent, statuses) {
                    Ok(()) => drop(placed.insert(host, agent.clone())),
                    Err((cause, message)) => problems.push((cause, format!("node.{name}: {message}"))),
                },
                Some(AgentSelector::Labeled(label)) if !by_name => {
                    let labeled = || statuses.iter().filter(|agent| agent.labels.contains(label));
                    let is_free = |agent: &&AgentStatus| {
                        agent.state == AgentAvailability::Idle
                            && !placed.values().any(|taken| *taken == agent.name)
                    };
                    match labeled().find(is_free) {
                        Some(agent) => drop(placed.insert(host, agent.name.clone())),
                        None => {
                            let (cause, message) = label_problem(label, statuses);
                            problems.push((cause, format!("node.{name}: {message}")));
                        }
                    }
                }
                _ => {}
            }
        }
    }
    for (host, agent) in placed.iter().filter(|_| plan.lease.is_some()) {
        let status = statuses.iter().find(|status| status.name == *agent && !status.supports_leases());
        if let Some(AgentStatus { version, .. }) = status {
            let message = format!(
                "node.{}: agent {agent} (netstage {version}) does not support `lease`; update netstage on its host, or \
                 remove `lease` from [scenario]",
                plan.nodes[*host].name
            );
            problems.push((PlacementCause::Scenario, message));
        }
    }
    let Some(cause) = problems.iter().map(|(cause, _)| *cause).max() else { return Ok(placed) };
    let messages: Vec<String> = problems.into_iter().map(|(_, message)| message).collect();
    Err(PlacementError { message: messages.join("\n"), cause })
}

/// Returns the agent of each node that needs one, which must be one of `agents`, by index of the node.
pub fn named(plan: &Plan, agents: &[&str]) -> Result<BTreeMap<usize, String>, String> {
    let place = |node: usize| match plan.nodes[node].placement.as_ref().map(|place| &place.agent) {
        Some(AgentSelector::Named(agent)) if agents.contains(&agent.as_str()) => Ok((node, agent.clone())),
        _ => Err(format!("node.{}: place it at one of: {}", plan.nodes[node].name, agents.join(", "))),
    };
    required_nodes(plan).into_iter().map(place).collect()
}

/// Returns the reason why no agent with this label is available.
fn label_problem(label: &str, statuses: &[AgentStatus]) -> (PlacementCause, String) {
    let labels: BTreeSet<&str> =
        statuses.iter().flat_map(|agent| agent.labels.iter().map(String::as_str)).collect();
    if !labels.contains(label) {
        let help = did_you_mean(label, labels.iter().copied());
        let help = help.unwrap_or_else(|| "`netstage fleet ls` lists the labels".into());
        return (PlacementCause::Scenario, format!("no agent has label {label}; {help}"));
    }
    let mut labeled = statuses.iter().filter(|agent| agent.labels.iter().any(|other| other == label));
    let cause = if labeled.any(|agent| agent.state == AgentAvailability::Taken) {
        PlacementCause::Taken
    } else {
        PlacementCause::Absent
    };
    (cause, format!("no further agent with label {label} is available; `netstage fleet ls` lists the agents"))
}

fn check_named(agent: &str, statuses: &[AgentStatus]) -> Result<(), (PlacementCause, String)> {
    let Some(status) = statuses.iter().find(|status| status.name == agent) else {
        let help = did_you_mean(agent, statuses.iter().map(|status| status.name.as_str()));
        let help = help.unwrap_or_else(|| "`netstage fleet ls` lists the agents".into());
        return Err((PlacementCause::Scenario, format!("there is no agent {agent}; {help}")));
    };
    match status.state {
        AgentAvailability::Idle | AgentAvailability::Taken => Ok(()),
        state => {
            let message = format!("agent {agent} is {state}; run `netstage fleet doctor` for a remedy");
            Err((PlacementCause::Absent, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::plan_of;
    use netstage_core::time::Duration;

    fn status(name: &str, label: &str, state: AgentAvailability) -> AgentStatus {
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
            addresses: Vec::new(),
            mappings: Vec::new(),
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
    fn named_agents_are_assigned_before_labeled_ones() {
        let statuses = [
            status("x", "lab", AgentAvailability::Idle),
            status("y", "lab", AgentAvailability::Taken),
            status("z", "lab", AgentAvailability::Idle),
            status("gone", "lab", AgentAvailability::Offline),
            status("other", "busy", AgentAvailability::Taken),
        ];
        let placed = |place: &str| agents(&plan(place), &statuses);
        let both = |a: &str, b: &str| Ok([(0, a.to_owned()), (1, b.to_owned())].into());
        assert_eq!(placed("a = { label = \"lab\" }\nb = \"x\""), both("z", "x"));
        assert_eq!(placed("a = { label = \"lab\" }\nb = { label = \"lab\" }"), both("x", "z"));
        for (place, cause, message) in [
            ("a = \"x\"", PlacementCause::Scenario, "node.b: no agent is assigned"),
            ("a = \"x\"\nb = \"gon\"", PlacementCause::Scenario, "did you mean `gone`"),
            ("a = \"x\"\nb = \"gone\"", PlacementCause::Absent, "agent gone is offline"),
            (
                "a = \"x\"\nb = { label = \"rome\" }",
                PlacementCause::Scenario,
                "no agent has label rome; available: busy, lab",
            ),
            ("a = \"x\"\nb = { label = \"busi\" }", PlacementCause::Scenario, "did you mean `busy`"),
            (
                "a = \"y\"\nb = { label = \"busy\" }",
                PlacementCause::Taken,
                "no further agent with label busy",
            ),
        ] {
            let error = placed(place).unwrap_err();
            assert_eq!(error.cause, cause);
            assert!(error.message.contains(message), "{error:?}");
        }
    }

    #[test]
    fn an_agent_that_does_not_support_leases_is_named_if_the_run_has_one() {
        let old = AgentStatus { version: "0.0.9".into(), ..status("x", "lab", AgentAvailability::Idle) };
        let new = AgentStatus {
            capabilities: vec!["policy.max_lease 2 s".into()],
            ..status("y", "lab", AgentAvailability::Idle)
        };
        let without = plan("a = \"x\"\nb = \"y\"");
        assert!(agents(&without, &[old.clone(), new.clone()]).is_ok());
        let with = Plan { lease: Some(Duration::from_secs(2)), ..without };
        let error = agents(&with, &[old, new]).unwrap_err();
        assert_eq!(error.cause, PlacementCause::Scenario);
        assert!(
            error.message.starts_with("node.a: agent x (netstage 0.0.9) does not support `lease`"),
            "{error:?}"
        );
        assert!(!error.message.contains("node.b"), "{error:?}");
    }
}
