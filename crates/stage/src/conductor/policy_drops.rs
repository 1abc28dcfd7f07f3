//! Packets that the policies of agents dropped or delayed in a run. Dropped ones never left the host, so they are not
//! losses of the path: a flow of datagrams did not send what it should have sent, and the rate of a flow of streams is at
//! most the policy's.

use super::outcome::Findings;
use netstage_agent_api::results::{AgentReport, PolicyDrops};
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_scenario::outcome::{AchievedLoad, Metric, POLICY_LOAD, RunOutcome};
use netstage_scenario::plan::{FlowGroup, FlowTransport};

/// Adds what follows from the drops of all agents: datagrams void the run, or are subtracted from the load of the trial
/// that sent them; streams have a warning.
pub fn add(found: &Findings, outcome: &mut RunOutcome) {
    found.reports.iter().filter(|report| !report.policy_drops.is_empty()).for_each(|report| {
        let datagrams: u64 = report.policy_drops.iter().map(|drops| drops.other).sum();
        let tcp: u64 = report.policy_drops.iter().map(|drops| drops.tcp).sum();
        let within = FaultTime::Within(found.plan.duration);
        let reason = |packets: &str, of: fn(&PolicyDrops) -> u64| {
            let dropped = by_rules(&report.policy_drops, of);
            let paced = report.policy_drops.iter().find(|drops| drops.paced > 0);
            let fault = match paced {
                Some(rule) if dropped.is_empty() => format!("paced TCP by {}", rule.rule()),
                _ => format!("dropped {dropped}{packets}"),
            };
            VoidReason::new(format!("policy of {}:", report.node), fault, within)
        };
        let has_datagrams = datagrams > 0
            && add_datagrams(found, report, datagrams, outcome, || reason("", |drops| drops.other).into());
        let all = |drops: &PolicyDrops| drops.tcp + drops.other;
        let why = match has_datagrams {
            true => reason(" of TCP", |drops| drops.tcp),
            false => reason("", all),
        };
        if tcp > 0 || !has_datagrams {
            let warning =
                format!("{}; the throughput of its TCP and QUIC flows is limited by the policy", *why);
            let streams = flows_from(found, report).filter(|(group, _)| !is_datagrams(group));
            outcome.limited_by_policy.extend(streams.map(|(_, name)| (name, warning.clone())));
            outcome.warnings.push(warning);
        }
    });
}

/// Adds dropped datagrams to the outcome of each flow to which they may belong. Returns false if the agent sends none.
fn add_datagrams(
    found: &Findings,
    report: &AgentReport,
    dropped: u64,
    outcome: &mut RunOutcome,
    reason: impl Fn() -> String,
) -> bool {
    let sent: Vec<String> =
        flows_from(found, report).filter(|(group, _)| is_datagrams(group)).map(|(_, name)| name).collect();
    for name in &sent {
        let packets = outcome
            .get(Metric::FlowSent, name)
            .map_or(0.0, |sent| sent.values.iter().filter(|value| !value.is_nan()).sum::<f64>());
        outcome.loads.push(AchievedLoad {
            subject: name.clone(),
            quantity: POLICY_LOAD.into(),
            unit: "packets".into(),
            layer: String::new(),
            requested: packets,
            achieved: (packets - dropped as f64).max(0.0),
        });
        outcome.late_senders.push((name.clone(), reason()));
    }
    // A trial judges only what its own flow sent.
    let answers = found.members.iter().any(|member| {
        let group = &found.plan.flows[member.group];
        found.plan.nodes[group.to].name == report.node && is_answered(group)
    });
    if sent.is_empty() && answers {
        outcome.void.push(reason());
    }
    !sent.is_empty() || answers
}

/// Returns the flows that an agent sends, with their names.
fn flows_from<'a>(
    found: &'a Findings,
    report: &'a AgentReport,
) -> impl Iterator<Item = (&'a FlowGroup, String)> {
    found.members.iter().filter_map(move |member| {
        let group = &found.plan.flows[member.group];
        let is_sender = found.plan.nodes[group.from].name == report.node;
        is_sender.then(|| (group, found.plan.flow_name(member.group, member.index).to_string()))
    })
}

/// Returns whether the data of a flow are datagrams, whose losses count.
fn is_datagrams(group: &FlowGroup) -> bool {
    !matches!(group.transport, FlowTransport::Tcp(_) | FlowTransport::Quic) && group.program.is_none()
}

/// Returns whether the receiver of a flow answers with datagrams.
fn is_answered(group: &FlowGroup) -> bool {
    let is_dialogue = group.traffic.application().is_some();
    is_datagrams(group) && (is_dialogue || matches!(group.transport, FlowTransport::Stamp { .. }))
}

/// Names the rules that dropped packets: `770 packets by "rate" = 10 Mbit/s`.
fn by_rules(drops: &[PolicyDrops], of: fn(&PolicyDrops) -> u64) -> String {
    let named = drops
        .iter()
        .filter(|drops| of(drops) > 0)
        .map(|drops| format!("{} packets by {}", of(drops), drops.rule()));
    named.collect::<Vec<_>>().join(", ")
}
