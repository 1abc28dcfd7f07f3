//! Offsets among the clocks of controller and agents. Each agent's clock is compared with the controller's
//! over its connection, and the clocks of hosts that send to each other are compared by packets between them.
//! The result combines the most precise comparisons ([`ClockTree`]).

use super::calls::call_all;
use super::member::{ANSWER_TIMEOUT, AgentConnection};
use super::{ControlledAgents, MAX_CONCURRENT_CALLS};
use netstage_agent_api::protocol::generated::{CompareClocksReply, CompareClocksRequest};
use netstage_core::measure::{ClockOffset, ClockTree, KnownOffset};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Comparison of the clocks of two agents by packets between their hosts, as requested in their assignments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockComparison {
    /// Agent that asks.
    pub from: String,
    /// Agent that answers.
    pub to: String,
    /// Address at which it answers.
    pub at: SocketAddr,
}

/// Offsets of the agents' clocks at one time.
#[derive(Clone, Debug)]
pub struct AgentClocks {
    /// Index of each agent in the tree; the controller's is zero.
    places: BTreeMap<String, usize>,
    tree: ClockTree,
    /// Number of successful comparisons, and the contradictory ones.
    compared: usize,
    doubted: Vec<ClockComparison>,
}

impl AgentClocks {
    /// Returns the offsets known from the connections between controller and agents.
    pub(super) fn new(members: &[AgentConnection], clocks: &[Option<ClockOffset>]) -> AgentClocks {
        let places = members.iter().zip(1..).map(|(member, place)| (member.name.clone(), place)).collect();
        let known = beside_us(members, clocks);
        AgentClocks {
            places,
            tree: ClockTree::new(members.len() + 1, &known),
            compared: 0,
            doubted: Vec::new(),
        }
    }

    /// Returns the offset of an agent's clock, relative to the controller's.
    pub fn offset_of(&self, agent: &str) -> Option<ClockOffset> {
        Some(self.tree.offset(*self.places.get(agent)?))
    }

    /// Returns the offset of the clock of `to`, relative to that of `from`.
    pub fn offset_between(&self, from: &str, to: &str) -> Option<ClockOffset> {
        Some(self.tree.between(*self.places.get(from)?, *self.places.get(to)?))
    }

    /// Returns the offset of each agent's clock, relative to the controller's.
    pub fn iter(&self) -> impl Iterator<Item = (&str, ClockOffset)> {
        self.places.iter().map(|(name, &place)| (name.as_str(), self.tree.offset(place)))
    }

    /// Returns the number of successful comparisons between hosts.
    pub fn compared(&self) -> usize {
        self.compared
    }

    /// Returns the comparisons that contradict the offsets measured by the controller.
    pub fn contradictions(&self) -> &[ClockComparison] {
        &self.doubted
    }
}

/// Returns the offsets relative to the controller's clock, and zero offsets between agents that announce the
/// same clock.
fn beside_us(members: &[AgentConnection], clocks: &[Option<ClockOffset>]) -> Vec<KnownOffset> {
    let mut known = Vec::new();
    let mut first: BTreeMap<&str, (usize, ClockOffset)> = BTreeMap::new();
    for ((member, clock), to) in members.iter().zip(clocks).zip(1..) {
        let Some(offset) = *clock else { continue };
        known.push(KnownOffset { from: 0, to, offset });
        let identity = member.identity();
        if identity.is_empty() || offset.same_clock {
            continue;
        }
        let &mut (from, other) = first.entry(identity).or_insert((to, offset));
        if from != to && offset.agrees_with(other) {
            known.push(KnownOffset { from, to, offset: ClockOffset::SAME_CLOCK });
        }
    }
    known
}

impl ControlledAgents {
    /// Returns the offsets used for the current run.
    pub fn clocks(&self) -> &AgentClocks {
        &self.clocks
    }

    /// Has prepared agents compare their clocks, and uses the new offsets for the run.
    pub fn compare_clocks(&mut self, comparisons: &[ClockComparison]) {
        let known: Vec<_> = self.members.iter().map(|member| Some(member.clock)).collect();
        self.clocks = self.compared(&known, comparisons);
    }

    /// Measures all clocks again. The difference from the earlier offsets shows the drift. Agents that do not
    /// answer are omitted.
    pub fn read_clocks(&self, comparisons: &[ClockComparison]) -> AgentClocks {
        let calls = self.members.iter().map(|member| {
            let member = member.clone();
            async move { member.read_clock().await.ok() }
        });
        self.compared(&self.ask_all(calls), comparisons)
    }

    fn compared(&self, clocks: &[Option<ClockOffset>], comparisons: &[ClockComparison]) -> AgentClocks {
        let mut found = AgentClocks::new(&self.members, clocks);
        let mut known = beside_us(&self.members, clocks);
        let (controller, run) = (self.controller, self.run);
        let mut asked: BTreeMap<&str, Vec<&ClockComparison>> = BTreeMap::new();
        comparisons.iter().for_each(|one| asked.entry(&one.from).or_default().push(one));
        let calls =
            asked.keys().filter_map(|from| self.member(from).ok().cloned()).map(|member| async move {
                let mut client = member.client();
                let request = CompareClocksRequest { controller, run };
                // An agent that does not answer is compared only over its connection.
                let answer = member.answer(ANSWER_TIMEOUT, client.compare_clocks(request)).await;
                (member.name, answer.unwrap_or_default())
            });
        for answered in call_all(&self.runtime, MAX_CONCURRENT_CALLS, calls, |_| true).answers {
            let Some((from, reply)) = answered else { continue };
            for (one, offset) in
                requested_comparisons(&reply, asked.get(from.as_str()).map_or(&[], Vec::as_slice))
            {
                let (Ok(from), Ok(to)) = (self.index(&one.from), self.index(&one.to)) else { continue };
                // Agents could report any offset; it is accepted only within the bounds measured by the
                // controller.
                if found.tree.between(from + 1, to + 1).agrees_with(offset) {
                    known.push(KnownOffset { from: from + 1, to: to + 1, offset });
                    found.compared += 1;
                } else {
                    found.doubted.push(one.clone());
                }
            }
        }
        found.tree = ClockTree::new(self.members.len() + 1, &known);
        found
    }
}

/// Returns the reported comparisons that were requested from the agent.
fn requested_comparisons<'a>(
    reply: &CompareClocksReply,
    asked: &[&'a ClockComparison],
) -> impl Iterator<Item = (&'a ClockComparison, ClockOffset)> {
    asked.iter().filter_map(|&one| {
        let address = one.at.to_string();
        let found = reply.clocks.iter().find(|clock| clock.address == address)?;
        let (offset_ns, error_ns) = (found.offset_ns, found.error_ns);
        Some((one, ClockOffset { offset_ns, error_ns, same_clock: false }))
    })
}
