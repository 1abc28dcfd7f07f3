//! Agents and controllers in virtual time: messages are lost, late and doubled, networks
//! part, processes die and come back, controllers fall asleep and wake with old ideas.
//! The checks stand outside: they see what was accepted, sent and counted, nothing else.

use netstage_core::fleet::{Lease, Ledger, Phase, Receipt, Session};
use netstage_core::rng::Stream;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Steps of the world from one sign of life to the next.
const BEAT: u64 = 5;
const CONTROLLER_BEATS: u32 = 8;
/// Longest a message may take.
const DELAY: u64 = 4;
/// How long a run lasts.
const LENGTH: u64 = 60;
/// How long a controller waits until all agents are ready, and after a run's end for the last result.
const PATIENCE: u64 = 8 * BEAT;
/// Longest time from the end of all trouble to the end of a new run: agents lose the controller before and end its
/// run, whichever is later; a run that cannot be prepared meanwhile is given up; the next one goes through.
const RECOVERY: u64 = (CONTROLLER_BEATS as u64 + 1) * BEAT + LENGTH + 2 * PATIENCE + LENGTH + PATIENCE;

#[derive(Clone, Debug)]
enum Message {
    // To an agent.
    Beat { controller: u64 },
    Prepare { controller: u64, run: u64 },
    Start { controller: u64, run: u64 },
    Fetch { controller: u64, run: u64 },
    Release { controller: u64, run: u64 },
    // To a controller.
    Progress { owner: u64, run: u64, phase: Phase, kept: Vec<u64> },
    Result { run: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Agent(usize),
    Controller,
}

/// An agent: what its disk holds outlives it.
#[derive(Default)]
struct Agent {
    /// Disk: the last run it took, results nobody has confirmed, and the run whose counts are being written.
    last: u64,
    kept: BTreeSet<u64>,
    writing: Option<u64>,
    alive: bool,
    session: Session,
    lease: Option<Lease>,
    owner: u64,
    over_at: u64,
    heard_at: u64,
}

impl Agent {
    /// Its run, if it has one that sends, is over; what was counted is a result.
    fn keep(&mut self) {
        self.kept.extend(self.writing.take());
    }

    /// Its controller is gone: nobody has it.
    fn turn(&mut self) {
        self.keep();
        self.session = Session::after(self.last);
        (self.lease, self.owner) = (None, 0);
    }

    fn sends(&self) -> bool {
        self.alive && self.session.phase() == Phase::Running
    }
}

/// The run a controller is busy with.
#[derive(Clone, Copy)]
struct Current {
    run: u64,
    opened_at: u64,
    /// When all were ready for it.
    start_at: Option<u64>,
}

/// A controller's process.
#[derive(Default)]
struct Controller {
    id: u64,
    current: Option<Current>,
    seen: BTreeMap<usize, (u64, Phase)>,
    asleep_until: u64,
}

struct World {
    now: u64,
    random: Stream,
    loss: f64,
    agents: Vec<Agent>,
    cut_until: Vec<u64>,
    controller: Controller,
    /// The controller's disk.
    ledger: Ledger,
    under_way: Vec<(u64, End, usize, Message)>,
    /// What the checks have seen.
    started: BTreeSet<(usize, u64)>,
    produced: BTreeSet<(usize, u64)>,
    counted: BTreeSet<(usize, u64)>,
    last_taken: Vec<u64>,
}

fn name(agent: usize) -> String {
    format!("a{agent}")
}

impl World {
    fn new(seed: u64, agents: usize, loss: f64) -> World {
        let agents = (0..agents).map(|_| Agent { alive: true, ..Agent::default() }).collect::<Vec<_>>();
        let mut world = World {
            now: 0,
            random: Stream::new(seed, "world"),
            loss,
            cut_until: vec![0; agents.len()],
            last_taken: vec![0; agents.len()],
            agents,
            controller: Controller::default(),
            ledger: Ledger::default(),
            under_way: Vec::new(),
            started: BTreeSet::new(),
            produced: BTreeSet::new(),
            counted: BTreeSet::new(),
        };
        world.new_controller();
        world
    }

    fn new_controller(&mut self) {
        self.controller = Controller { id: self.random.next_u64() | 1, ..Controller::default() };
    }

    fn send(&mut self, to: End, agent: usize, message: Message) {
        if self.now < self.cut_until[agent] || self.random.chance(self.loss) {
            return;
        }
        for _ in 0..=u32::from(self.random.chance(self.loss)) {
            let at = self.now + 1 + self.random.below(DELAY);
            self.under_way.push((at, to, agent, message.clone()));
        }
    }

    fn step(&mut self, may_begin: bool) {
        self.now += 1;
        let (due, later) =
            std::mem::take(&mut self.under_way).into_iter().partition(|(at, ..)| *at <= self.now);
        self.under_way = later;
        let due: Vec<_> = due;
        for (_, to, agent, message) in due {
            match to {
                End::Agent(_) => self.at_agent(agent, message),
                End::Controller => self.at_controller(agent, message),
            }
        }
        for index in 0..self.agents.len() {
            self.agent_goes_on(index);
        }
        if self.now.is_multiple_of(BEAT) && self.now >= self.controller.asleep_until {
            self.controller_goes_on(may_begin);
        }
    }

    fn at_agent(&mut self, index: usize, message: Message) {
        let (now, agent) = (self.now, &mut self.agents[index]);
        if !agent.alive {
            return;
        }
        // Whoever is obeyed must be who has the agent.
        let obeyed =
            |agent: &Agent, by: u64| assert_eq!(agent.owner, by, "two controllers command agent {index}");
        match message {
            Message::Beat { controller } => {
                if agent.owner == controller || agent.session.attend(controller).is_ok() {
                    agent.owner = controller;
                    agent.heard_at = now;
                    agent.lease.get_or_insert(Lease::new(CONTROLLER_BEATS)).renew();
                }
            }
            Message::Prepare { controller, run } => {
                if agent.session.prepare(controller, run).is_ok() {
                    obeyed(agent, controller);
                    assert!(run > self.last_taken[index], "run {run} is taken twice");
                    self.last_taken[index] = run;
                    agent.last = run;
                    agent.session.prepared(run, true);
                }
            }
            Message::Start { controller, run } => {
                if agent.session.phase() == Phase::Ready
                    && agent.session.start(controller, run, now, now).is_ok()
                {
                    obeyed(agent, controller);
                    assert!(agent.session.begin(now));
                    assert!(self.started.insert((index, run)), "run {run} starts twice");
                    self.produced.insert((index, run));
                    (agent.writing, agent.over_at) = (Some(run), now + LENGTH);
                }
            }
            Message::Fetch { controller, run } => {
                if agent.owner == controller && agent.kept.contains(&run) {
                    self.send(End::Controller, index, Message::Result { run });
                }
            }
            Message::Release { controller, run } => {
                if agent.owner == controller {
                    obeyed(agent, controller);
                    agent.kept.remove(&run);
                    let _ = agent.session.release(controller, run);
                }
            }
            Message::Progress { .. } | Message::Result { .. } => unreachable!("to a controller"),
        }
    }

    fn agent_goes_on(&mut self, index: usize) {
        let now = self.now;
        let agent = &mut self.agents[index];
        if !agent.alive {
            return;
        }
        if agent.sends() {
            let silence = now - agent.heard_at;
            assert!(silence <= (u64::from(CONTROLLER_BEATS) + 1) * BEAT, "agent {index} sends unattended");
            if now >= agent.over_at {
                agent.keep();
                agent.session.ended();
            }
        }
        if !now.is_multiple_of(BEAT) {
            return;
        }
        if agent.lease.as_mut().is_some_and(|lease| !lease.tick()) {
            agent.turn();
        }
        if agent.owner != 0 {
            let kept = agent.kept.iter().copied().collect();
            let (owner, run, phase) = (agent.owner, agent.session.run(), agent.session.phase());
            self.send(End::Controller, index, Message::Progress { owner, run, phase, kept });
        }
    }

    fn at_controller(&mut self, index: usize, message: Message) {
        if self.now < self.controller.asleep_until {
            return;
        }
        let id = self.controller.id;
        match message {
            Message::Progress { owner, run, phase, kept } if owner == id => {
                self.controller.seen.insert(index, (run, phase));
                for run in kept {
                    self.send(End::Agent(index), index, Message::Fetch { controller: id, run });
                }
            }
            Message::Result { run } => {
                match self.ledger.receive(run, &name(index)) {
                    Receipt::New => assert!(self.counted.insert((index, run)), "a result counts twice"),
                    Receipt::Again | Receipt::Late => {}
                    Receipt::Unexpected => panic!("run {run} was never opened"),
                }
                self.send(End::Agent(index), index, Message::Release { controller: id, run });
            }
            _ => {}
        }
    }

    /// Attends everybody, and takes its run a step further. As in the program, nothing is waited for without a
    /// deadline: a run that an agent refuses or has forgotten is given up, and the next one has another number.
    fn controller_goes_on(&mut self, may_begin: bool) {
        let (id, now) = (self.controller.id, self.now);
        let all = self.agents.len();
        for index in 0..all {
            self.send(End::Agent(index), index, Message::Beat { controller: id });
        }
        if self.controller.seen.len() < all {
            return;
        }
        let Some(mut current) = self.controller.current else {
            if may_begin {
                let run = self.ledger.open((0..all).map(name));
                self.controller.current = Some(Current { run, opened_at: now, start_at: None });
            }
            return;
        };
        let run = current.run;
        let ready = |seen: &(u64, Phase)| *seen == (run, Phase::Ready);
        if current.start_at.is_none() && self.controller.seen.values().all(ready) {
            current.start_at = Some(now);
        }
        for index in 0..all {
            let seen = self.controller.seen[&index];
            if current.start_at.is_none() && seen.0 != run {
                self.send(End::Agent(index), index, Message::Prepare { controller: id, run });
            } else if current.start_at.is_some() && ready(&seen) {
                self.send(End::Agent(index), index, Message::Start { controller: id, run });
            }
        }
        let complete = self.ledger.missing(run).next().is_none();
        let given_up = match current.start_at {
            None => now > current.opened_at + PATIENCE,
            Some(start) => now > start + LENGTH + PATIENCE,
        };
        // Results of a run that was started may still come, long after its controller gave it up.
        if complete || given_up && current.start_at.is_none() {
            self.ledger.close(run);
        }
        self.controller.current = (!complete && !given_up).then_some(current);
    }

    /// Something bad happens.
    fn trouble(&mut self) {
        let index = self.random.below(self.agents.len() as u64) as usize;
        match self.random.below(400) {
            0 => {
                // kill -9, and started again at once: what its disk holds is all it knows.
                let agent = &mut self.agents[index];
                agent.keep();
                let (last, kept) = (agent.last, std::mem::take(&mut agent.kept));
                *agent = Agent { last, kept, session: Session::after(last), alive: true, ..Agent::default() };
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
                    agent.turn();
                    agent.alive = true;
                }
            }
        }
    }
}

/// A world after so much trouble.
fn troubled(seed: u64, agents: usize, loss: f64) -> World {
    let mut world = World::new(seed, agents, loss);
    for _ in 0..3_000 {
        world.trouble();
        world.step(true);
    }
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn no_result_is_lost_or_counted_twice(seed: u64, agents in 1_usize..6, loss in 0.0..0.3_f64) {
        let mut world = troubled(seed, agents, loss);
        // Calm at last: a controller begins anew, completes a run, and fetches what is left.
        world.loss = 0.0;
        world.cut_until.iter_mut().for_each(|until| *until = 0);
        for agent in &mut world.agents {
            if !agent.alive {
                agent.turn();
                agent.alive = true;
            }
        }
        world.new_controller();
        let (calm_at, last) = (world.now, world.ledger.open([]));
        let completed = |world: &World| {
            let runs = world.counted.iter().filter(|(agent, run)| (*agent, *run > last) == (0, true));
            runs.into_iter().any(|(_, run)| (0..agents).all(|agent| world.counted.contains(&(agent, *run))))
        };
        while !completed(&world) {
            prop_assert!(world.now < calm_at + RECOVERY, "no run since all trouble ended");
            world.step(true);
        }
        for _ in 0..600 {
            world.step(false);
        }
        prop_assert_eq!(&world.produced, &world.counted);
        prop_assert!(world.agents.iter().all(|agent| agent.kept.is_empty() && !agent.sends()));
    }
}

/// Trouble must not be so bad that nothing is left to check, and no agent that forgot a run may keep its controller
/// from the next one.
#[test]
fn runs_complete_amid_trouble() {
    for (seed, agents, loss) in [(14384712367421962074, 3, 0.05817932671187966), (1, 1, 0.0), (2, 5, 0.3)] {
        let world = troubled(seed, agents, loss);
        let runs: BTreeSet<u64> = world.counted.iter().map(|(_, run)| *run).collect();
        assert!(runs.len() >= 5, "seed {seed}: {} runs", runs.len());
    }
}
