//! Which hosts compare their clocks: those between which packets carry the time they were sent at.

use netstage_agent::controller::{Agents, Clocks, Comparison};
use netstage_agent_api::task::{Assignment, ClockTask, FlowTask, MOST_ASKED, Side, Transport};
use netstage_core::measure::ClockOffset;
use netstage_host::keyed::{Key, KeyError};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// The UDP port at which agents answer.
pub const PORT: u16 = 4704;

/// Has hosts that send to each other compare their clocks, but those that are known to read one.
pub fn compare(parts: &mut [(String, Assignment)], clocks: &Clocks) -> Result<Vec<Comparison>, KeyError> {
    let mut pairs = BTreeSet::new();
    let mut found: Vec<(usize, usize, IpAddr, SocketAddr)> = Vec::new();
    for (from, (sender, part)) in parts.iter().enumerate() {
        let mut asked = 0;
        for flow in part.flows.iter().filter(|flow| is_dated(flow) && flow.side == Side::Send) {
            let receives = |task: &FlowTask| task.id == flow.id && task.side == Side::Receive;
            let Some(to) = parts.iter().position(|(_, part)| part.flows.iter().any(receives)) else {
                continue;
            };
            let is_one = clocks.between(sender, &parts[to].0).is_some_and(|clock| clock.same_clock);
            if !is_one && asked < MOST_ASKED && pairs.insert((from.min(to), from.max(to))) {
                asked += 1;
                found.push((from, to, flow.source.ip(), SocketAddr::new(flow.destination.ip(), PORT)));
            }
        }
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let key = Key::generate()?.to_hexadecimal();
    let none = || ClockTask { key: key.clone(), answers: Vec::new(), asks: Vec::new() };
    let mut comparisons = Vec::new();
    for (from, to, source, at) in found {
        parts[from].1.clocks.get_or_insert_with(none).asks.push((SocketAddr::new(source, 0), at));
        let answers = &mut parts[to].1.clocks.get_or_insert_with(none).answers;
        if !answers.contains(&at) {
            answers.push(at);
        }
        comparisons.push(Comparison { from: parts[from].0.clone(), to: parts[to].0.clone(), at });
    }
    Ok(comparisons)
}

/// Whether a flow's packets tell when they were sent, to one receiver that has agreed to them.
fn is_dated(flow: &FlowTask) -> bool {
    matches!(flow.transport, Transport::Udp(_))
}

/// How well a run's clocks are known.
pub struct Certainty {
    before: Clocks,
    after: Clocks,
    asked: usize,
}

impl Certainty {
    /// By looking again after a run that counted by what was seen before it.
    pub fn after(agents: &Agents, comparisons: &[Comparison]) -> Certainty {
        let (before, after) = (agents.clocks().clone(), agents.read_clocks(comparisons));
        Certainty { before, after, asked: comparisons.len() }
    }

    /// Most by which the clocks of two agents may differ from what was taken for it, with the drift between,
    /// nanoseconds.
    pub fn error_ns(&self, from: &str, to: &str) -> u64 {
        let between = |clocks: &Clocks| clocks.between(from, to);
        let known = |offset: &ClockOffset| offset.error_ns < u64::MAX;
        let after = between(&self.after).filter(known);
        between(&self.before).map_or(0, |before| before.error_with_drift(after))
    }

    /// What a reader should know, of the pairs of agents that send to each other.
    pub fn remarks(&self, pairs: impl Iterator<Item = (String, String)>) -> Vec<String> {
        let errors = pairs.map(|(from, to)| (self.error_ns(&from, &to), from, to));
        let mut remarks = Vec::new();
        if let Some((error_ns, from, to)) = errors.max().filter(|(error_ns, ..)| *error_ns > 0) {
            let compared = self.before.compared();
            let how = match self.asked {
                0 => "over their connections to the controller".into(),
                all if compared == all => "by STAMP between the hosts".into(),
                all => format!(
                    "by STAMP between the hosts for {compared} of {all} pairs, UDP port {PORT}, else over their \
                     connections to the controller"
                ),
            };
            remarks.push(format!(
                "clocks of agents are known beside each other to ± {} µs at worst, between {from} and {to}, {how}: one-way \
                 delays carry that error (flow.clock_error)",
                error_ns.div_ceil(1000)
            ));
        }
        let doubted = self.before.doubted().iter().chain(self.after.doubted());
        remarks.extend(doubted.map(|Comparison { from, to, .. }| {
            format!("agents {from} and {to} tell of clocks that contradict what each told the controller: not counted by")
        }));
        remarks
    }
}
