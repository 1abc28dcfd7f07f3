//! Rounds of requests and runs in random worlds: agents share few processors, respond late, reject requests,
//! fail, or report wrong states. The checks are the guarantees to the operator.

use netstage_core::fleet::{
    AgentRunState, AgentSession, COMMITTED, COMPLETION_TIMEOUT, NegotiationStep, OrderRefusalKind,
    RequestRound, RunMonitor, RunPhase, StartNegotiation, start_lead,
};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Timeout of a response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum one-way delay, nanoseconds; the minimum is half of it.
const DELAY: u64 = 100_000_000;
/// Maximum processing time of a request, nanoseconds; the minimum is half of it.
const WORK: u64 = 50_000_000;

/// Agents that share a few processors, which serve requests in the order of arrival.
struct RoundWorld {
    random: RandomStream,
    agents: usize,
    dead: BTreeSet<usize>,
    /// Time from which each processor is idle.
    processors: Vec<Instant>,
}

struct RoundOutcome {
    round: RequestRound,
    /// Times at which the agents completed the request; missing for dead and uncontacted agents.
    completed: BTreeMap<usize, Instant>,
    end: Instant,
}

impl RoundWorld {
    /// Draws a time from `max / 2` to `max` nanoseconds.
    fn draw(&mut self, max: u64) -> Duration {
        Duration(max / 2 + self.random.below(max / 2 + 1))
    }

    /// Sends a request to all agents, starting at `begin`; the agent `rejecting` rejects it.
    fn run_round(&mut self, begin: Instant, concurrency: usize, rejecting: Option<usize>) -> RoundOutcome {
        let mut round = RequestRound::new(self.agents, concurrency);
        let mut responses: BTreeSet<(Instant, usize)> = BTreeSet::new();
        let (mut now, mut completed, mut contacted) = (begin, BTreeMap::new(), BTreeSet::new());
        let mut in_flight = 0_usize;
        let mut is_rejected = false;
        self.processors.iter_mut().for_each(|idle_from| *idle_from = (*idle_from).max(begin));
        loop {
            while let Some(agent) = round.poll_request(now) {
                assert!(!is_rejected, "request after a rejection");
                assert!(contacted.insert(agent), "two requests to one agent");
                in_flight += 1;
                assert!(in_flight <= concurrency, "too many concurrent requests");
                if self.dead.contains(&agent) {
                    responses.insert((now + TIMEOUT, agent));
                    continue;
                }
                let arrival = now + self.draw(DELAY);
                let work = self.draw(WORK);
                let idle_from = self.processors.iter_mut().min().expect("there is a processor");
                *idle_from = (*idle_from).max(arrival) + work;
                let at = *idle_from;
                completed.insert(agent, at);
                responses.insert((at + self.draw(DELAY), agent));
            }
            let Some((at, agent)) = responses.pop_first() else { break };
            (now, in_flight) = (at, in_flight - 1);
            round.handle_response(agent, now);
            if rejecting == Some(agent) {
                (is_rejected, _) = (true, round.cancel());
            }
        }
        assert!(round.is_complete());
        assert!(is_rejected || contacted.len() == self.agents, "an agent received no request");
        RoundOutcome { round, completed, end: now }
    }
}

fn world(seed: u64, agents: usize, processors: usize, dead: usize) -> RoundWorld {
    let mut random = RandomStream::new(seed, "rounds");
    let dead = (0..dead).map(|_| random.below(agents as u64) as usize).collect();
    RoundWorld { random, agents, dead, processors: vec![Instant::ZERO; processors] }
}

proptest! {
    #[test]
    fn every_live_agent_receives_the_start_in_time(
        seed: u64, agents in 1_usize..300, processors in 1_usize..4, concurrency in 1_usize..100,
    ) {
        let mut world = world(seed, agents, processors, 0);
        let prepared = world.run_round(Instant::ZERO, concurrency, None);
        // All at once, like the start order.
        let rehearsed = world.run_round(prepared.end, usize::MAX, None);
        // The slowest response includes the delay by shared processors.
        let epoch = rehearsed.end + start_lead(rehearsed.round.slowest(), Duration::ZERO);
        let started = world.run_round(rehearsed.end, usize::MAX, None);
        let late = started.completed.values().filter(|at| **at > epoch).count();
        prop_assert_eq!(late, 0);
    }

    #[test]
    fn all_start_at_one_time_or_the_run_is_cancelled(
        seed: u64, agents in 1_usize..40, rehearsed in 0_u64..DELAY, slower in 1_u64..30, stalls: bool,
    ) {
        let mut random = RandomStream::new(seed, "kickoff");
        let mut kickoff = StartNegotiation::new(agents, Duration(rehearsed), Duration::ZERO);
        let mut sessions = vec![AgentSession::default(); agents];
        for session in &mut sessions {
            session.attend(1, Instant::ZERO).unwrap();
            session.prepare(1, 1, None).unwrap();
            session.finish_preparing(1, true);
        }
        // Orders in flight, responses in flight, and the accepted start time of each agent.
        let mut orders: BTreeSet<(Instant, usize, Instant)> = BTreeSet::new();
        let mut responses: BTreeSet<(Instant, usize, Instant, bool)> = BTreeSet::new();
        let mut accepted = vec![None; agents];
        let mut begun: BTreeMap<usize, Instant> = BTreeMap::new();
        let mut is_rejected = false;
        let mut now = Instant::ZERO;
        let mut proposes = true;
        let is_committed = loop {
            if proposes {
                let start = kickoff.propose(now);
                // Orders may take far longer than in the rehearsal.
                let max_delay = (rehearsed + 1) * slower;
                orders.extend((0..agents).map(|agent| (now + Duration(random.below(max_delay)), agent, start)));
                proposes = false;
            }
            // The controller polls every millisecond, unless its host stalls.
            now += Duration(if stalls && random.chance(0.01) { 400_000_000 } else { 1_000_000 });
            loop {
                let due = |accepted: &[Option<Instant>], begun: &BTreeMap<usize, Instant>| {
                    (0..agents).filter(|agent| !begun.contains_key(agent))
                        .filter_map(|agent| Some((Instant(accepted[agent]?.0 - COMMITTED.0), agent))).min()
                };
                let order = orders.first().copied();
                match (due(&accepted, &begun), order) {
                    (Some((at, agent)), _) if at <= now && order.is_none_or(|order| at <= order.0) => {
                        let start = accepted[agent].expect("a due agent has accepted a start");
                        prop_assert!(sessions[agent].begin(start.0));
                        begun.insert(agent, start);
                    }
                    (_, Some(order @ (at, agent, start))) if at <= now => {
                        orders.remove(&order);
                        match sessions[agent].start(1, 1, start.0, at.0) {
                            Ok(()) => accepted[agent] = accepted[agent].max(Some(start)),
                            Err(refusal) if refusal.kind == OrderRefusalKind::Late => {}
                            // The order was overtaken by a later one, or the run has begun; no response is expected.
                            Err(_) => { is_rejected |= accepted[agent] < Some(start); continue }
                        }
                        let response_at = at + Duration(random.below(rehearsed + 1));
                        responses.insert((response_at, agent, start, accepted[agent] == Some(start)));
                    }
                    _ => break,
                }
            }
            while let Some(&response @ (_, agent, start, agreed)) = responses.first().filter(|r| r.0 <= now) {
                responses.remove(&response);
                if agreed { kickoff.handle_agreed(agent, start) } else { kickoff.handle_late(start) }
            }
            match kickoff.poll(now) {
                _ if is_rejected => break false,
                NegotiationStep::Agreed => break true,
                NegotiationStep::Cancel => break false,
                NegotiationStep::Postpone => proposes = true,
                NegotiationStep::Wait(until) => prop_assert!(until > now),
            }
        };
        if is_committed {
            let starts: BTreeSet<_> = accepted.iter().copied().collect();
            prop_assert!(starts.len() == 1 && accepted[0].is_some(), "different start times: {:?}", starts);
            prop_assert!(begun.values().all(|start| Some(*start) == accepted[0]));
        }
        // The start succeeds if orders take no longer than in the rehearsal and the controller does not stall.
        prop_assert!(is_committed || slower > 1 || stalls);
    }

    #[test]
    fn dead_and_rejecting_agents_delay_a_round_by_a_limited_time(
        seed: u64, agents in 1_usize..200, dead in 0_usize..20, concurrency in 1_usize..64, rejecting: Option<usize>,
    ) {
        let mut world = world(seed, agents, 2, dead);
        let rejecting = rejecting.map(|agent| agent % agents);
        let result = world.run_round(Instant::ZERO, concurrency, rejecting);
        let rounds = 1 + agents as u64 / concurrency as u64;
        let bound = (TIMEOUT + Duration(2 * DELAY)) * rounds + Duration(WORK) * agents as u64;
        prop_assert!(result.end.since(Instant::ZERO) <= bound);
    }

    #[test]
    fn a_run_ends_regardless_of_the_reports_of_agents(seed: u64, agents in 1_usize..20, stop in 0_u64..60) {
        let mut random = RandomStream::new(seed, "conduct");
        let second = |n: u64| Instant::ZERO + Duration::from_secs(n);
        let (run, end, stop) = (5, second(30), second(stop));
        let mut conduct = RunMonitor::new(run, agents, end);
        let mut reported: BTreeMap<usize, AgentRunState> = BTreeMap::new();
        let mut now = Instant::ZERO;
        let deadline = (end + COMPLETION_TIMEOUT).min(stop + COMPLETION_TIMEOUT);
        while conduct.poll_timeout().is_some() {
            prop_assert!(now <= deadline + Duration::from_secs(1));
            now += Duration::from_millis(random.below(500) + 1);
            if now >= stop {
                conduct.stop(now.min(stop));
            }
            // The last index is not an agent of this run.
            let agent = random.below(agents as u64 + 1) as usize;
            match random.below(20) {
                0 => {
                    conduct.handle_lost(agent);
                    reported.insert(agent, AgentRunState::Lost);
                }
                1 => {
                    conduct.handle_progress(agent, run, RunPhase::Done);
                    reported.entry(agent).or_insert(AgentRunState::Completed);
                }
                2 => conduct.handle_progress(agent, run, RunPhase::Idle),
                3 => conduct.handle_progress(agent, random.below(run), RunPhase::Done),
                4 => conduct.handle_progress(agent, run + 1, RunPhase::Done),
                _ => {}
            }
            conduct.handle_timeout(now);
        }
        for agent in 0..agents {
            let standing = conduct.state(agent).expect("an agent of the run");
            match reported.get(&agent) {
                Some(expected) => prop_assert_eq!(standing, *expected),
                None => prop_assert!(matches!(standing, AgentRunState::TimedOut(_)) && now >= deadline),
            }
        }
    }
}
