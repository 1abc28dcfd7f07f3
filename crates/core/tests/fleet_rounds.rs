//! Rounds of questions and runs in random worlds: agents that share few processors, answer late, refuse,
//! die or lie. What is checked is what an operator is promised.

use netstage_core::fleet::{
    COMMITTED, Conduct, Kickoff, Phase, RefusalKind, Round, SETTLE, Session, Standing, Step, start_lead,
};
use netstage_core::rng::Stream;
use netstage_core::time::{Duration, Instant};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest way to or from an agent, and longest work there. No answer is twice as quick as another.
const WAY: u64 = 100_000_000;
const WORK: u64 = 50_000_000;

/// Agents that are processes of few processors, which serve first who comes first.
struct World {
    random: Stream,
    agents: usize,
    dead: BTreeSet<usize>,
    /// When each processor is free.
    processors: Vec<Instant>,
}

struct Asked {
    round: Round,
    /// When each agent had done what it was asked; none for the dead and those never asked.
    done: BTreeMap<usize, Instant>,
    over: Instant,
}

impl World {
    fn between_half_and(&mut self, most: u64) -> Duration {
        Duration(most / 2 + self.random.below(most / 2 + 1))
    }

    /// Puts a question to everybody from `begin` on; `refuses` never agrees.
    fn ask(&mut self, begin: Instant, at_a_time: usize, refuses: Option<usize>) -> Asked {
        let mut round = Round::new(self.agents, at_a_time);
        let mut answers: BTreeSet<(Instant, usize)> = BTreeSet::new();
        let (mut now, mut done, mut asked) = (begin, BTreeMap::new(), BTreeSet::new());
        let mut in_flight = 0_usize;
        let mut refused = false;
        self.processors.iter_mut().for_each(|free| *free = (*free).max(begin));
        loop {
            while let Some(agent) = round.poll_ask(now) {
                assert!(!refused, "asked after a refusal");
                assert!(asked.insert(agent), "asked twice");
                in_flight += 1;
                assert!(in_flight <= at_a_time, "too many at a time");
                if self.dead.contains(&agent) {
                    answers.insert((now + PATIENCE, agent));
                    continue;
                }
                let arrives = now + self.between_half_and(WAY);
                let work = self.between_half_and(WORK);
                let free = self.processors.iter_mut().min().expect("there is one");
                *free = (*free).max(arrives) + work;
                let at = *free;
                done.insert(agent, at);
                answers.insert((at + self.between_half_and(WAY), agent));
            }
            let Some((at, agent)) = answers.pop_first() else { break };
            (now, in_flight) = (at, in_flight - 1);
            round.handle_answer(agent, now);
            if refuses == Some(agent) {
                (refused, _) = (true, round.call_off());
            }
        }
        assert!(round.is_over());
        assert!(refused || asked.len() == self.agents, "somebody was forgotten");
        Asked { round, done, over: now }
    }
}

fn world(seed: u64, agents: usize, processors: usize, dead: usize) -> World {
    let mut random = Stream::new(seed, "rounds");
    let dead = (0..dead).map(|_| random.below(agents as u64) as usize).collect();
    World { random, agents, dead, processors: vec![Instant::ZERO; processors] }
}

proptest! {
    #[test]
    fn every_agent_that_lives_hears_of_the_start_in_time(
        seed: u64, agents in 1_usize..300, processors in 1_usize..4, at_a_time in 1_usize..100,
    ) {
        let mut world = world(seed, agents, processors, 0);
        let prepared = world.ask(Instant::ZERO, at_a_time, None);
        // Asked at once, as they will be told of the start.
        let rehearsed = world.ask(prepared.over, usize::MAX, None);
        // Whoever many of them share a processor with is in what the slowest took.
        let epoch = rehearsed.over + start_lead(rehearsed.round.slowest(), Duration::ZERO);
        let told = world.ask(rehearsed.over, usize::MAX, None);
        let late = told.done.values().filter(|at| **at > epoch).count();
        prop_assert_eq!(late, 0);
    }

    #[test]
    fn all_start_at_one_moment_or_the_run_is_called_off(
        seed: u64, agents in 1_usize..40, rehearsed in 0_u64..WAY, slower in 1_u64..30, stalls: bool,
    ) {
        let mut random = Stream::new(seed, "kickoff");
        let mut kickoff = Kickoff::new(agents, Duration(rehearsed), Duration::ZERO);
        let mut sessions = vec![Session::default(); agents];
        for session in &mut sessions {
            session.attend(1).unwrap();
            session.prepare(1, 1).unwrap();
            session.prepared(1, true);
        }
        // Orders under way to agents and answers from them, and the start each agent has been told.
        let mut orders: BTreeSet<(Instant, usize, Instant)> = BTreeSet::new();
        let mut answers: BTreeSet<(Instant, usize, Instant, bool)> = BTreeSet::new();
        let mut told = vec![None; agents];
        let mut begun: BTreeMap<usize, Instant> = BTreeMap::new();
        let mut refused = false;
        let mut now = Instant::ZERO;
        let mut tell = true;
        let stands = loop {
            if tell {
                let start = kickoff.propose(now);
                // The first orders may take far longer than was rehearsed; nobody knows how much.
                let most = (rehearsed + 1) * slower;
                orders.extend((0..agents).map(|agent| (now + Duration(random.below(most)), agent, start)));
                tell = false;
            }
            // The controller looks every millisecond, or when its machine lets it.
            now += Duration(if stalls && random.chance(0.01) { 400_000_000 } else { 1_000_000 });
            loop {
                let due = |told: &[Option<Instant>], begun: &BTreeMap<usize, Instant>| {
                    (0..agents).filter(|agent| !begun.contains_key(agent))
                        .filter_map(|agent| Some((Instant(told[agent]?.0 - COMMITTED.0), agent))).min()
                };
                let order = orders.first().copied();
                match (due(&told, &begun), order) {
                    (Some((at, agent)), _) if at <= now && order.is_none_or(|order| at <= order.0) => {
                        let start = told[agent].expect("it is due");
                        prop_assert!(sessions[agent].begin(start.0));
                        begun.insert(agent, start);
                    }
                    (_, Some(order @ (at, agent, start))) if at <= now => {
                        orders.remove(&order);
                        let agreed = sessions[agent].start(1, 1, start.0, at.0);
                        match agreed {
                            Ok(()) => told[agent] = told[agent].max(Some(start)),
                            Err(refusal) if refusal.kind == RefusalKind::Late => {}
                            // Overtaken by a later one, of which nobody waits for an answer; or begun.
                            Err(_) => { refused |= told[agent] < Some(start); continue }
                        }
                        let back = at + Duration(random.below(rehearsed + 1));
                        answers.insert((back, agent, start, told[agent] == Some(start)));
                    }
                    _ => break,
                }
            }
            while let Some(&answer @ (at, agent, start, agreed)) = answers.first().filter(|a| a.0 <= now) {
                let _ = at;
                answers.remove(&answer);
                if agreed { kickoff.handle_agreed(agent, start) } else { kickoff.handle_late(start) }
            }
            match kickoff.poll(now) {
                _ if refused => break false,
                Step::Stands => break true,
                Step::GiveUp => break false,
                Step::Move => tell = true,
                Step::Wait(until) => prop_assert!(until > now),
            }
        };
        if stands {
            let starts: BTreeSet<_> = told.iter().copied().collect();
            prop_assert!(starts.len() == 1 && told[0].is_some(), "they start apart: {:?}", starts);
            prop_assert!(begun.values().all(|start| Some(*start) == told[0]));
        }
        // Orders that take no longer than rehearsed, twice, and a controller that is there: it comes about.
        prop_assert!(stands || slower > 1 || stalls);
    }

    #[test]
    fn the_dead_and_those_who_refuse_hold_up_nobody_for_ever(
        seed: u64, agents in 1_usize..200, dead in 0_usize..20, at_a_time in 1_usize..64, refuses: Option<usize>,
    ) {
        let mut world = world(seed, agents, 2, dead);
        let refuses = refuses.map(|agent| agent % agents);
        let asked = world.ask(Instant::ZERO, at_a_time, refuses);
        let rounds = 1 + agents as u64 / at_a_time as u64;
        let bound = (PATIENCE + Duration(2 * WAY)) * rounds + Duration(WORK) * agents as u64;
        prop_assert!(asked.over.since(Instant::ZERO) <= bound);
    }

    #[test]
    fn a_run_comes_to_its_end_whatever_agents_tell(seed: u64, agents in 1_usize..20, stop in 0_u64..60) {
        let mut random = Stream::new(seed, "conduct");
        let second = |n: u64| Instant::ZERO + Duration::from_secs(n);
        let (run, end, stop) = (5, second(30), second(stop));
        let mut conduct = Conduct::new(run, agents, end);
        let mut told: BTreeMap<usize, Standing> = BTreeMap::new();
        let mut now = Instant::ZERO;
        let deadline = (end + SETTLE).min(stop + SETTLE);
        while conduct.poll_timeout().is_some() {
            prop_assert!(now <= deadline + Duration::from_secs(1));
            now += Duration::from_millis(random.below(500) + 1);
            if now >= stop {
                conduct.stop(now.min(stop));
            }
            // One too many: it is no agent of this run.
            let agent = random.below(agents as u64 + 1) as usize;
            match random.below(20) {
                0 => {
                    conduct.handle_lost(agent);
                    told.insert(agent, Standing::Lost);
                }
                1 => {
                    conduct.handle_progress(agent, run, Phase::Done);
                    told.entry(agent).or_insert(Standing::Over);
                }
                2 => conduct.handle_progress(agent, run, Phase::Idle),
                3 => conduct.handle_progress(agent, random.below(run), Phase::Done),
                4 => conduct.handle_progress(agent, run + 1, Phase::Done),
                _ => {}
            }
            conduct.handle_timeout(now);
        }
        for agent in 0..agents {
            let standing = conduct.standing(agent).expect("an agent of the run");
            match told.get(&agent) {
                Some(expected) => prop_assert_eq!(standing, *expected),
                None => prop_assert!(matches!(standing, Standing::GivenUp(_)) && now >= deadline),
            }
        }
    }
}
