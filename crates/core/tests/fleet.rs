//! Agents and controllers in simulated time: messages are lost, delayed and duplicated, networks are
//! partitioned, processes are killed and restarted, and controllers sleep and wake with outdated state. The
//! checks are external: they use only the accepted runs, the sent traffic and the counted results.

use netstage_core::fleet::{AgentSession, Lease, Receipt, ResultLedger, RunPhase, run_number};
use netstage_core::rng::RandomStream;
use netstage_core::time::{Duration, Instant};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Interval of heartbeats in steps of the world.
const BEAT: u64 = 5;
const CONTROLLER_BEATS: u32 = 8;
/// Maximum delay of a message.
const DELAY: u64 = 4;
/// Duration of a run.
const LENGTH: u64 = 60;
/// Lease of the runs that have one. The steps of the world are nanoseconds of its clock.
const LEASE: u64 = 50;
/// Time for which a controller waits for all agents to be ready, and for the last result after the end of a run.
const TIMEOUT: u64 = 8 * BEAT;
/// Maximum time from the end of all faults to the end of a new run: the expiry of the previous controller, its lease and
/// the end of its run, one run that times out meanwhile, and the next run.
const RECOVERY: u64 = (CONTROLLER_BEATS as u64 + 1) * BEAT + LEASE + LENGTH + 2 * TIMEOUT + LENGTH + TIMEOUT;

#[derive(Clone, Debug)]
enum FleetMessage {
    // To an agent.
    Heartbeat { controller: u64 },
    Prepare { controller: u64, run: u64 },
    Start { controller: u64, run: u64 },
    Fetch { controller: u64, run: u64 },
    Release { controller: u64, run: u64 },
    // To a controller.
    Progress { owner: u64, run: u64, phase: RunPhase, results: Vec<u64> },
    Result { run: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum MessageDestination {
    Agent(usize),
    Controller,
}

/// An agent, with the contents of its disk.
#[derive(Default)]
struct SimulatedAgent {
    /// Accepted runs, on disk.
    accepted: Vec<u64>,
    /// Unconfirmed results, on disk.
    results: BTreeSet<u64>,
    /// Run whose counts are being written, on disk.
    writing: Option<u64>,
    alive: bool,
    session: AgentSession,
    lease: Option<Lease>,
    owner: u64,
    over_at: u64,
    renewed_at: u64,
    /// The current run has a lease.
    has_lease: bool,
}

impl SimulatedAgent {
    /// Ends the run that is sending, if any, and stores its counts as a result.
    fn store_result(&mut self) {
        self.results.extend(self.writing.take());
    }

    /// Releases the agent after the loss of its controller.
    fn reset(&mut self) {
        self.store_result();
        self.session = AgentSession::after(self.accepted.clone());
        (self.lease, self.owner) = (None, 0);
    }

    fn is_sending(&self) -> bool {
        self.alive && self.session.phase() == RunPhase::Running
    }
}

/// Current run of a controller.
#[derive(Clone, Copy)]
struct CurrentRun {
    run: u64,
    opened_at: u64,
    /// Time at which all agents were ready.
    start_at: Option<u64>,
}

/// A controller process.
#[derive(Default)]
struct Controller {
    id: u64,
    current: Option<CurrentRun>,
    progress: BTreeMap<usize, (u64, RunPhase)>,
    asleep_until: u64,
}

struct FleetWorld {
    now: u64,
    random: RandomStream,
    loss: f64,
    /// Added to every agent's clock, which may start anywhere.
    clock: u64,
    agents: Vec<SimulatedAgent>,
    cut_until: Vec<u64>,
    controller: Controller,
    /// The controller's disk.
    ledger: ResultLedger,
    in_flight: Vec<(u64, MessageDestination, usize, FleetMessage)>,
    /// Agent and run of each start, each result and each counted result, for the checks.
    started: BTreeSet<(usize, u64)>,
    produced: BTreeSet<(usize, u64)>,
    counted: BTreeSet<(usize, u64)>,
    accepted: BTreeSet<(usize, u64)>,
}

fn name(agent: usize) -> String {
    format!("a{agent}")
}

impl FleetWorld {
    fn new(seed: u64, agents: usize, loss: f64) -> FleetWorld {
        let agents = (0..agents)
            .map(|_| SimulatedAgent { alive: true, ..SimulatedAgent::default() })
            .collect::<Vec<_>>();
        let mut world = FleetWorld {
            now: 0,
            random: RandomStream::new(seed, "world"),
            loss,
            clock: seed >> 8,
            cut_until: vec![0; agents.len()],
            agents,
            controller: Controller::default(),
            ledger: ResultLedger::default(),
            in_flight: Vec::new(),
            started: BTreeSet::new(),
            produced: BTreeSet::new(),
            counted: BTreeSet::new(),
            accepted: BTreeSet::new(),
        };
        world.new_controller();
        world
    }

    fn new_controller(&mut self) {
        self.controller = Controller { id: self.random.next_u64() | 1, ..Controller::default() };
    }

    fn send(&mut self, to: MessageDestination, agent: usize, message: FleetMessage) {
        if self.now < self.cut_until[agent] || self.random.chance(self.loss) {
            return;
        }
        for _ in 0..=u32::from(self.random.chance(self.loss)) {
            let at = self.now + 1 + self.random.below(DELAY);
            self.in_flight.push((at, to, agent, message.clone()));
        }
    }

    fn step(&mut self, may_start: bool) {
        self.now += 1;
        let (due, later) =
            std::mem::take(&mut self.in_flight).into_iter().partition(|(at, ..)| *at <= self.now);
        self.in_flight = later;
        let due: Vec<_> = due;
        for (_, to, agent, message) in due {
            match to {
                MessageDestination::Agent(_) => self.at_agent(agent, message),
                MessageDestination::Controller => self.at_controller(agent, message),
            }
        }
        for index in 0..self.agents.len() {
            self.step_agent(index);
        }
        if self.now.is_multiple_of(BEAT) && self.now >= self.controller.asleep_until {
            self.step_controller(may_start);
        }
    }

    fn at_agent(&mut self, index: usize, message: FleetMessage) {
        let (now, agent) = (self.now, &mut self.agents[index]);
        if !agent.alive {
            return;
        }
        let assert_owner = |agent: &SimulatedAgent, by: u64| {
            assert_eq!(agent.owner, by, "two controllers command agent {index}")
        };
        match message {
            FleetMessage::Heartbeat { controller } => {
                let time = Instant(self.clock + now);
                if agent.session.attend(controller, time).is_ok() {
                    agent.owner = controller;
                    agent.renewed_at = now;
                    agent.lease.get_or_insert(Lease::new(CONTROLLER_BEATS)).renew();
                }
            }
            FleetMessage::Prepare { controller, run } => {
                let lease = run.is_multiple_of(2).then_some(Duration(LEASE));
                if agent.session.prepare(controller, run, lease).is_ok() {
                    assert_owner(agent, controller);
                    agent.has_lease = lease.is_some();
                    assert!(self.accepted.insert((index, run)), "run {run} is accepted twice");
                    agent.accepted = agent.session.accepted().to_vec();
                    agent.session.finish_preparing(run, true);
                }
            }
            FleetMessage::Start { controller, run } => {
                if agent.session.phase() == RunPhase::Ready
                    && agent.session.start(controller, run, now, now).is_ok()
                {
                    assert_owner(agent, controller);
                    assert!(agent.session.begin(now));
                    assert!(self.started.insert((index, run)), "run {run} starts twice");
                    self.produced.insert((index, run));
                    (agent.writing, agent.over_at) = (Some(run), now + LENGTH);
                }
            }
            FleetMessage::Fetch { controller, run } => {
                if agent.owner == controller && agent.results.contains(&run) {
                    self.send(MessageDestination::Controller, index, FleetMessage::Result { run });
                }
            }
            FleetMessage::Release { controller, run } => {
                if agent.owner == controller {
                    assert_owner(agent, controller);
                    agent.results.remove(&run);
                    let _ = agent.session.release(controller, run);
                }
            }
            FleetMessage::Progress { .. } | FleetMessage::Result { .. } => {
                unreachable!("sent to controllers only")
            }
        }
    }

    fn step_agent(&mut self, index: usize) {
        let now = self.now;
        let agent = &mut self.agents[index];
        if !agent.alive {
            return;
        }
        if agent.is_sending() {
            let silence = now - agent.renewed_at;
            let without_lease = (u64::from(CONTROLLER_BEATS) + 1) * BEAT;
            let limit = if agent.has_lease { without_lease.max(LEASE + BEAT) } else { without_lease };
            assert!(silence <= limit, "agent {index} sends without a controller");
            if now >= agent.over_at {
                agent.store_result();
                agent.session.finish_run();
            }
        }
        if !now.is_multiple_of(BEAT) {
            return;
        }
        let is_silent = agent.lease.as_mut().is_some_and(|lease| !lease.tick());
        let may_continue = agent.session.lease_expiry().is_some_and(|at| Instant(self.clock + now) < at);
        if is_silent && !may_continue {
            let silence = now - agent.renewed_at;
            assert!(
                !agent.is_sending() || !agent.has_lease || silence >= LEASE,
                "agent {index} gives up early"
            );
            agent.reset();
        }
        if agent.owner != 0 {
            let results = agent.results.iter().copied().collect();
            let (owner, run, phase) = (agent.owner, agent.session.run(), agent.session.phase());
            self.send(
                MessageDestination::Controller,
                index,
                FleetMessage::Progress { owner, run, phase, results },
            );
        }
    }

    fn at_controller(&mut self, index: usize, message: FleetMessage) {
        if self.now < self.controller.asleep_until {
            return;
        }
        let id = self.controller.id;
        match message {
            FleetMessage::Progress { owner, run, phase, results } if owner == id => {
                self.controller.progress.insert(index, (run, phase));
                for run in results {
                    self.send(
                        MessageDestination::Agent(index),
                        index,
                        FleetMessage::Fetch { controller: id, run },
                    );
                }
            }
            FleetMessage::Result { run } => {
                match self.ledger.receive(run, &name(index)) {
                    Receipt::New => assert!(self.counted.insert((index, run)), "a result counts twice"),
                    Receipt::Duplicate | Receipt::Late => {}
                    Receipt::Unexpected => panic!("run {run} was never opened"),
                }
                self.send(
                    MessageDestination::Agent(index),
                    index,
                    FleetMessage::Release { controller: id, run },
                );
            }
            _ => {}
        }
    }

    /// Sends heartbeats to all agents, and advances the current run. As in the program, all waits have deadlines:
    /// a run that an agent rejects or has forgotten times out, and the next one has another number.
    fn step_controller(&mut self, may_start: bool) {
        let (id, now) = (self.controller.id, self.now);
        let all = self.agents.len();
        for index in 0..all {
            self.send(MessageDestination::Agent(index), index, FleetMessage::Heartbeat { controller: id });
        }
        if self.controller.progress.len() < all {
            return;
        }
        let Some(mut current) = self.controller.current else {
            if may_start {
                let run = self.ledger.open(self.random.next_u64() as u32, (0..all).map(name));
                self.controller.current = Some(CurrentRun { run, opened_at: now, start_at: None });
            }
            return;
        };
        let run = current.run;
        let is_ready = |progress: &(u64, RunPhase)| *progress == (run, RunPhase::Ready);
        if current.start_at.is_none() && self.controller.progress.values().all(is_ready) {
            current.start_at = Some(now);
        }
        for index in 0..all {
            let progress = self.controller.progress[&index];
            if current.start_at.is_none() && progress.0 != run {
                self.send(
                    MessageDestination::Agent(index),
                    index,
                    FleetMessage::Prepare { controller: id, run },
                );
            } else if current.start_at.is_some() && is_ready(&progress) {
                self.send(
                    MessageDestination::Agent(index),
                    index,
                    FleetMessage::Start { controller: id, run },
                );
            }
        }
        let complete = self.ledger.missing(run).next().is_none();
        let timed_out = match current.start_at {
            None => now > current.opened_at + TIMEOUT,
            Some(start) => now > start + LENGTH + TIMEOUT,
        };
        // Results of a started run may arrive long after its timeout.
        if complete || timed_out && current.start_at.is_none() {
            self.ledger.close(run);
        }
        self.controller.current = (!complete && !timed_out).then_some(current);
    }

    /// Injects a random fault.
    fn inject_fault(&mut self) {
        let index = self.random.below(self.agents.len() as u64) as usize;
        match self.random.below(400) {
            0 => {
                // kill -9 and immediate restart: only the disk survives.
                let agent = &mut self.agents[index];
                agent.store_result();
                let (accepted, results) = (agent.accepted.clone(), std::mem::take(&mut agent.results));
                *agent = SimulatedAgent {
                    accepted: accepted.clone(),
                    results,
                    session: AgentSession::after(accepted),
                    alive: true,
                    ..SimulatedAgent::default()
                };
            }
            1 => self.agents[index].alive = false,
            2 => self.cut_until[index] = self.now + self.random.below(150),
            3 => self.new_controller(),
            4 => self.controller.asleep_until = self.now + self.random.below(150),
            _ => {}
        }
        if self.random.chance(0.05) {
            for agent in &mut self.agents {
                if !agent.alive {
                    agent.reset();
                    agent.alive = true;
                }
            }
        }
    }
}

/// Returns a world after 3,000 steps with faults.
fn faulty_world(seed: u64, agents: usize, loss: f64) -> FleetWorld {
    let mut world = FleetWorld::new(seed, agents, loss);
    for _ in 0..3_000 {
        world.inject_fault();
        world.step(true);
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn no_result_is_lost_or_counted_twice(seed: u64, agents in 1_usize..6, loss in 0.0..0.3_f64) {
        let mut world = faulty_world(seed, agents, loss);
        // Without further faults, a new controller completes a run and fetches the remaining results.
        world.loss = 0.0;
        world.cut_until.iter_mut().for_each(|until| *until = 0);
        for agent in &mut world.agents {
            if !agent.alive {
                agent.reset();
                agent.alive = true;
            }
        }
        world.new_controller();
        let (recovery_start, last) = (world.now, world.ledger.open(0, []));
        let completed = |world: &FleetWorld| {
            let runs = world.counted.iter().filter(|(agent, run)| (*agent, run_number(*run) > run_number(last)) == (0, true));
            runs.into_iter().any(|(_, run)| (0..agents).all(|agent| world.counted.contains(&(agent, *run))))
        };
        while !completed(&world) {
            prop_assert!(world.now < recovery_start + RECOVERY, "no run is complete since the last fault");
            world.step(true);
        }
        for _ in 0..600 {
            world.step(false);
        }
        prop_assert_eq!(&world.produced, &world.counted);
        prop_assert!(world.agents.iter().all(|agent| agent.results.is_empty() && !agent.is_sending()));
    }
}

/// Despite the faults, enough runs complete to be checked, and an agent that has forgotten a run does not block its
/// controller.
#[test]
fn runs_complete_despite_faults() {
    for (seed, agents, loss) in [(14384712367421962074, 3, 0.05817932671187966), (1, 1, 0.0), (2, 5, 0.3)] {
        let world = faulty_world(seed, agents, loss);
        let runs: BTreeSet<u64> = world.counted.iter().map(|(_, run)| *run).collect();
        assert!(runs.len() >= 5, "seed {seed}: {} runs", runs.len());
    }
}
