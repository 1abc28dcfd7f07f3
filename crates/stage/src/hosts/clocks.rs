//! Clock comparison between hosts that exchange packets with timestamps.

use netstage_agent::controller::{AgentClocks, ClockComparison, ControlledAgents};
use netstage_agent_api::task::{Assignment, ClockTask, FlowSide, FlowTask, MAX_CLOCK_PEERS, TaskTransport};
use netstage_core::measure::ClockOffset;
use netstage_host::shared_key::{KeyError, PresharedKey};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// UDP port of the STAMP reflectors of agents.
pub const PORT: u16 = 4704;

/// Adds clock comparisons between hosts that send to each other, except between agents that read the same clock.
pub fn compare(
    parts: &mut [(String, Assignment)],
    clocks: &AgentClocks,
) -> Result<Vec<ClockComparison>, KeyError> {
    let mut pairs = BTreeSet::new();
    let mut found: Vec<(usize, usize, IpAddr, SocketAddr)> = Vec::new();
    for (from, (sender, part)) in parts.iter().enumerate() {
        let mut count = 0;
        for flow in part.flows.iter().filter(|flow| is_compared(flow) && flow.side == FlowSide::Send) {
            let receives = |task: &FlowTask| task.id == flow.id && task.side == FlowSide::Receive;
            let Some(to) = parts.iter().position(|(_, part)| part.flows.iter().any(receives)) else {
                continue;
            };
            let is_same = clocks.offset_between(sender, &parts[to].0).is_some_and(|clock| clock.same_clock);
            if !is_same && count < MAX_CLOCK_PEERS && pairs.insert((from.min(to), from.max(to))) {
                count += 1;
                found.push((from, to, flow.source.ip(), SocketAddr::new(flow.destination.ip(), PORT)));
            }
        }
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let key = PresharedKey::generate()?.to_hexadecimal();
    let empty_task = || ClockTask { key: key.clone(), answers: Vec::new(), asks: Vec::new() };
    let mut comparisons = Vec::new();
    for (from, to, source, at) in found {
        parts[from].1.clocks.get_or_insert_with(empty_task).asks.push((SocketAddr::new(source, 0), at));
        let answers = &mut parts[to].1.clocks.get_or_insert_with(empty_task).answers;
        if !answers.contains(&at) {
            answers.push(at);
        }
        comparisons.push(ClockComparison { from: parts[from].0.clone(), to: parts[to].0.clone(), at });
    }
    Ok(comparisons)
}

/// Returns whether the packets of a flow carry send times to a single receiver that STAMP reaches. It does not pass
/// NATs.
fn is_compared(flow: &FlowTask) -> bool {
    matches!(flow.transport, TaskTransport::Udp(_)) && flow.nat.is_none()
}

/// Accuracy of the clock offsets of a run.
pub struct ClockAccuracy {
    before: AgentClocks,
    after: AgentClocks,
    requested: usize,
}

impl ClockAccuracy {
    /// Compares the clocks again after a run, whose delays use the offsets measured before it.
    pub fn measure_after_run(agents: &ControlledAgents, comparisons: &[ClockComparison]) -> ClockAccuracy {
        let (before, after) = (agents.clocks().clone(), agents.read_clocks(comparisons));
        ClockAccuracy { before, after, requested: comparisons.len() }
    }

    /// Returns the maximum error of the clock offset between two agents, including the drift, in nanoseconds.
    pub fn error_ns(&self, from: &str, to: &str) -> u64 {
        let between = |clocks: &AgentClocks| clocks.offset_between(from, to);
        let is_known = |offset: &ClockOffset| offset.error_ns < u64::MAX;
        let after = between(&self.after).filter(is_known);
        between(&self.before).map_or(0, |before| before.error_with_drift(after))
    }

    /// Returns warnings about the clocks of the pairs of agents that send to each other.
    pub fn remarks(&self, pairs: impl Iterator<Item = (String, String)>) -> Vec<String> {
        let errors = pairs.map(|(from, to)| (self.error_ns(&from, &to), from, to));
        let mut remarks = Vec::new();
        if let Some((error_ns, from, to)) = errors.max().filter(|(error_ns, ..)| *error_ns > 0) {
            let compared = self.before.compared();
            let method = match self.requested {
                0 => "over their connections to the controller".into(),
                all if compared == all => "by STAMP between the hosts".into(),
                all => format!(
                    "by STAMP between the hosts for {compared} of {all} pairs, UDP port {PORT}, else over their \
                     connections to the controller"
                ),
            };
            remarks.push(format!(
                "clock offsets of agents are known to within ± {} µs (largest error: between {from} and {to}, {method}); \
                 one-way delays have that error (flow.clock_error)",
                error_ns.div_ceil(1000)
            ));
        }
        let inconsistent = self.before.contradictions().iter().chain(self.after.contradictions());
        remarks.extend(inconsistent.map(|ClockComparison { from, to, .. }| {
            format!(
                "the clock offset between agents {from} and {to} contradicts their offsets to the controller and is ignored"
            )
        }));
        remarks
    }
}
