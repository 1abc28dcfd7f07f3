//! What is known of the agents' clocks: each beside the controller's, by the connection to it, and those of hosts
//! that send to each other, by packets between them. Where these are the surer ones, they count ([`ClockTree`]).

use super::member::{ANSWER_WITHIN, Member};
use super::round::ask;
use super::{AT_A_TIME, Agents};
use netstage_agent_api::protocol::generated::{CompareClocksReply, CompareClocksRequest};
use netstage_core::measure::{ClockOffset, ClockTree, Known};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Two agents whose clocks are compared by packets between their hosts, as their assignments say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Who asks.
    pub from: String,
    /// Who answers.
    pub to: String,
    /// Where.
    pub at: SocketAddr,
}

/// The clocks at one time.
#[derive(Clone, Debug)]
pub struct Clocks {
    /// Of each agent, its place in the tree; the controller's is zero.
    places: BTreeMap<String, usize>,
    tree: ClockTree,
    /// Comparisons that came to something, and those that cannot be true.
    compared: usize,
    doubted: Vec<Comparison>,
}

impl Clocks {
    /// Of these agents, each beside the controller's clock, if that is known.
    pub(super) fn new(members: &[Member], clocks: &[Option<ClockOffset>]) -> Clocks {
        let places = members.iter().zip(1..).map(|(member, place)| (member.name.clone(), place)).collect();
        let known = beside_us(members, clocks);
        Clocks { places, tree: ClockTree::new(members.len() + 1, &known), compared: 0, doubted: Vec::new() }
    }

    /// An agent's clock less ours.
    pub fn of(&self, agent: &str) -> Option<ClockOffset> {
        Some(self.tree.offset(*self.places.get(agent)?))
    }

    /// One agent's clock less another's.
    pub fn between(&self, from: &str, to: &str) -> Option<ClockOffset> {
        Some(self.tree.between(*self.places.get(from)?, *self.places.get(to)?))
    }

    /// Each agent's clock less ours.
    pub fn iter(&self) -> impl Iterator<Item = (&str, ClockOffset)> {
        self.places.iter().map(|(name, &place)| (name.as_str(), self.tree.offset(place)))
    }

    /// Of how many pairs of hosts the clocks were compared between them.
    pub fn compared(&self) -> usize {
        self.compared
    }

    /// Comparisons that contradict what both agents had told the controller.
    pub fn doubted(&self) -> &[Comparison] {
        &self.doubted
    }
}

/// Beside the controller's clock, and those that say they read one clock beside each other.
fn beside_us(members: &[Member], clocks: &[Option<ClockOffset>]) -> Vec<Known> {
    let mut known = Vec::new();
    let mut first: BTreeMap<&str, (usize, ClockOffset)> = BTreeMap::new();
    for ((member, clock), to) in members.iter().zip(clocks).zip(1..) {
        let Some(offset) = *clock else { continue };
        known.push(Known { from: 0, to, offset });
        let identity = member.identity();
        if identity.is_empty() || offset.same_clock {
            continue;
        }
        let &mut (from, other) = first.entry(identity).or_insert((to, offset));
        if from != to && offset.agrees_with(other) {
            known.push(Known { from, to, offset: ClockOffset::SAME_CLOCK });
        }
    }
    known
}

impl Agents {
    /// The clocks as the present run counts by them.
    pub fn clocks(&self) -> &Clocks {
        &self.clocks
    }

    /// Has prepared agents compare their clocks, and counts by what they find from now on.
    pub fn compare_clocks(&mut self, comparisons: &[Comparison]) {
        let known: Vec<_> = self.members.iter().map(|member| Some(member.clock)).collect();
        self.clocks = self.compared(&known, comparisons);
    }

    /// Looks at all clocks again: against those of before, this shows how they drift. Agents that do not
    /// answer are left out.
    pub fn read_clocks(&self, comparisons: &[Comparison]) -> Clocks {
        let calls = self.members.iter().map(|member| {
            let member = member.clone();
            async move { member.read_clock().await.ok() }
        });
        self.compared(&self.ask_all(calls), comparisons)
    }

    fn compared(&self, clocks: &[Option<ClockOffset>], comparisons: &[Comparison]) -> Clocks {
        let mut found = Clocks::new(&self.members, clocks);
        let mut known = beside_us(&self.members, clocks);
        let (controller, run) = (self.controller, self.run);
        let mut asked: BTreeMap<&str, Vec<&Comparison>> = BTreeMap::new();
        comparisons.iter().for_each(|one| asked.entry(&one.from).or_default().push(one));
        let calls =
            asked.keys().filter_map(|from| self.member(from).ok().cloned()).map(|member| async move {
                let mut client = member.client.clone();
                let request = CompareClocksRequest { controller, run };
                // One that does not say is known by its connection alone.
                let answer = member.answer(ANSWER_WITHIN, client.compare_clocks(request)).await;
                (member.name, answer.unwrap_or_default())
            });
        for answered in ask(&self.runtime, AT_A_TIME, calls, |_| true).answers {
            let Some((from, reply)) = answered else { continue };
            for (one, offset) in own_words(&reply, asked.get(from.as_str()).map_or(&[], Vec::as_slice)) {
                let (Ok(from), Ok(to)) = (self.index(&one.from), self.index(&one.to)) else { continue };
                // From here on it is a matter of trust: what they told us before, is the bound.
                if found.tree.between(from + 1, to + 1).agrees_with(offset) {
                    known.push(Known { from: from + 1, to: to + 1, offset });
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

/// Of what an agent says it compared, what it was asked.
fn own_words<'a>(
    reply: &CompareClocksReply,
    asked: &[&'a Comparison],
) -> impl Iterator<Item = (&'a Comparison, ClockOffset)> {
    asked.iter().filter_map(|&one| {
        let address = one.at.to_string();
        let found = reply.clocks.iter().find(|clock| clock.address == address)?;
        let (offset_ns, error_ns) = (found.offset_ns, found.error_ns);
        Some((one, ClockOffset { offset_ns, error_ns, same_clock: false }))
    })
}
