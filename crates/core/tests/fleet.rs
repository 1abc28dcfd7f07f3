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

/// A controller's process.
#[derive(Default)]
struct Controller {
    id: u64,
    run: Option<u64>,
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

    /// Attends everybody, and takes its run a step further where all are ready for it.
    fn controller_goes_on(&mut self, may_begin: bool) {
        let id = self.controller.id;
        let all = self.agents.len();
        for index in 0..all {
            self.send(End::Agent(index), index, Message::Beat { controller: id });
        }
        if self.controller.seen.len() < all {
            return;
        }
        let Some(run) = self.controller.run else {
            if may_begin {
                self.controller.run = Some(self.ledger.open((0..all).map(name)));
            }
            return;
        };
        let are = |phase: Phase| move |seen: &(u64, Phase)| *seen == (run, phase);
        let ready = self.controller.seen.values().all(are(Phase::Ready));
        let begun = self.started.iter().any(|(_, started)| *started == run);
        for index in 0..all {
            let seen = self.controller.seen[&index];
            if are(Phase::Ready)(&seen) && (ready || begun) {
                self.send(End::Agent(index), index, Message::Start { controller: id, run });
            } else if seen.0 != run && !begun {
                self.send(End::Agent(index), index, Message::Prepare { controller: id, run });
            }
        }
        if self.ledger.missing(run).next().is_none() {
            self.ledger.close(run);
            self.controller.run = None;
        }
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn no_result_is_lost_or_counted_twice(seed: u64, agents in 1_usize..6, loss in 0.0..0.3_f64) {
        let mut world = World::new(seed, agents, loss);
        for _ in 0..3_000 {
            world.trouble();
            world.step(true);
        }
        // Calm at last: a controller begins anew, and fetches what is left.
        world.loss = 0.0;
        world.cut_until.iter_mut().for_each(|until| *until = 0);
        for agent in &mut world.agents {
            if !agent.alive {
                agent.turn();
                agent.alive = true;
            }
        }
        world.new_controller();
        for _ in 0..600 {
            world.step(false);
        }
        prop_assert_eq!(&world.produced, &world.counted);
        prop_assert!(world.agents.iter().all(|agent| agent.kept.is_empty() && !agent.sends()));
        prop_assert!(agents > 3 || loss > 0.1 || !world.counted.is_empty(), "nothing ever ran");
    }
}
