//! The controller: has agents prepare, start together, measure, and report. Whether an
//! agent runs in a namespace of this machine or on another host, it cannot tell.
//!
//! Callers are synchronous; connections are kept alive by a thread of the controller's own.
//! Nothing here waits without a deadline. Before the start a lost agent is an error, after
//! it a [`Loss`] beside the others' results.

mod error;
mod member;
mod place;

pub use error::{Error, Loss};
pub(crate) use member::{exchange_clocks, greet};
pub use place::Place;
pub(crate) use place::channel_over;

use crate::clock::{Epoch, monotonic_ns};
use crate::descriptors;
use crate::protocol::Refusal;
use crate::protocol::generated::{
    AgreeRequest, Consent, FinishRequest, KeptRequest, PrepareRequest, ReleaseRequest, StartRequest,
    StopRequest,
};
use crate::results::{Ended, Report};
use crate::task::{self, Assignment, Side};
use member::{ANSWER_WITHIN, Member, Seen};
use netstage_core::fleet::Phase;
use netstage_core::measure::ClockOffset;
use netstage_core::time::{Duration, Instant};
use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

/// How long an agent may take to answer for the first time.
pub const CONNECT_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);
/// So many are being connected to at a time: those that are attended already want signs of life meanwhile.
const CONNECTING: usize = 64;
/// How long opening everything a run needs may take.
const PREPARE_WITHIN: std::time::Duration = std::time::Duration::from_secs(60);
/// How long an agent may go on after the end of a run, or after it was told to stop.
const SETTLE: Duration = Duration::from_secs(10);
/// The start of a run that has none yet.
const NOT_STARTED: Epoch = Epoch(u64::MAX);
/// How often watchers are told.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// Agents under one control. Dropped, they end by themselves.
pub struct Agents {
    runtime: Runtime,
    controller: u64,
    members: Vec<Member>,
    run: u64,
    tell_bins: bool,
    /// Indices of the members that take part in the run.
    taking_part: Vec<usize>,
    length: Duration,
    epoch: Epoch,
    /// Agents that were too late, or did not answer: given up.
    given_up: Vec<(usize, String)>,
    /// What receivers have agreed to.
    consents: Vec<Consent>,
    /// How long the last ones took to prepare.
    prepared_in_ns: u64,
}

/// How a run goes.
#[derive(Clone, Debug)]
pub struct Overview {
    /// Time of the run; zero before the start.
    pub now: Instant,
    /// Agents that are not over yet.
    pub running: usize,
    /// Packets sent, and payload bytes.
    pub sent: (u64, u64),
    /// Packets received, and payload bytes.
    pub received: (u64, u64),
    /// Packets lost.
    pub lost: u64,
    /// Names of agents that are lost.
    pub lost_agents: Vec<String>,
    /// Bins that have ended since watchers were told before, where asked for.
    pub ended: Ended,
}

/// What a run found.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// Reports, in the order of the agents.
    pub reports: Vec<Report>,
    /// Agents whose reports are missing.
    pub lost: Vec<Loss>,
    /// Each agent's clock against the controller's, as estimated before the run.
    pub clocks: Vec<(String, ClockOffset)>,
    /// What a reader should know.
    pub warnings: Vec<String>,
}

impl Agents {
    /// Takes the agents of these names that are, or soon will be, at these places.
    pub fn connect(agents: Vec<(String, impl Into<Place>)>) -> Result<Agents, Error> {
        Agents::connect_within(agents, CONNECT_WITHIN)
    }

    /// As [`connect`](Agents::connect), with another limit.
    pub fn connect_within(
        agents: Vec<(String, impl Into<Place>)>,
        limit: std::time::Duration,
    ) -> Result<Agents, Error> {
        descriptors::allow_many();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("controller")
            .enable_all()
            .build()
            .map_err(|error| Error::System(error.to_string()))?;
        let controller = RandomState::new().build_hasher().finish() | 1;
        let deadline = tokio::time::Instant::now() + limit;
        let turns = Arc::new(Semaphore::new(CONNECTING));
        let connecting = agents.into_iter().map(|(name, place)| {
            let (turns, place) = (Arc::clone(&turns), place.into());
            async move {
                let _turn = turns.acquire().await;
                Member::connect(name, place, controller, deadline).await
            }
        });
        let members = all(&runtime, connecting).into_iter().collect::<Result<_, _>>()?;
        Ok(Agents {
            runtime,
            controller,
            members,
            run: 0,
            tell_bins: false,
            taking_part: Vec::new(),
            length: Duration::ZERO,
            epoch: NOT_STARTED,
            given_up: Vec::new(),
            consents: Vec::new(),
            prepared_in_ns: 0,
        })
    }

    /// Has each agent open what its part needs. On an error nothing remains prepared.
    pub fn prepare(&mut self, assignments: Vec<(String, Assignment)>) -> Result<(), Error> {
        self.new_run(false);
        self.add(assignments).map(drop)
    }

    /// Begins another run, in which nobody takes part yet; bins are told as they end where
    /// asked for.
    pub fn new_run(&mut self, tell_bins: bool) {
        self.new_run_numbered(self.run + 1, tell_bins);
    }

    /// As [`new_run`](Agents::new_run), under a number that is greater than any the agents had.
    pub fn new_run_numbered(&mut self, run: u64, tell_bins: bool) {
        self.run = run;
        self.tell_bins = tell_bins;
        self.consents.clear();
        self.epoch = NOT_STARTED;
        self.given_up.clear();
        self.taking_part.clear();
        self.length = Duration::ZERO;
    }

    /// Has the agents of these assignments give their word for what they are to receive. It is
    /// handed to those that send: agents of a fleet send to nobody without.
    pub fn agree(&mut self, assignments: &[(String, Assignment)]) -> Result<(), Error> {
        let (controller, run) = (self.controller, self.run);
        let receives = |(_, assignment): &&(String, Assignment)| {
            assignment.flows.iter().any(|flow| flow.side == Side::Receive)
        };
        let mut calls = Vec::new();
        for (name, assignment) in assignments.iter().filter(receives) {
            let request = AgreeRequest {
                controller,
                run,
                task_version: task::VERSION,
                assignment: serde_json::to_vec(assignment).expect("assignments have string keys only"),
            };
            let member = self.member(name)?.clone();
            calls.push(async move {
                let mut client = member.client.clone();
                let answer = member.answer(ANSWER_WITHIN, client.agree(request)).await;
                (member.name, answer)
            });
        }
        let (mut refused, mut lost) = (Vec::new(), Vec::new());
        for (agent, answer) in all(&self.runtime, calls) {
            match answer {
                Err(reason) => lost.push(Loss { agent, reason }),
                Ok(reply) => match reply.refusal {
                    Some(refusal) => refused.push((agent, Refusal::from(refusal))),
                    None => self.consents.extend(reply.consents),
                },
            }
        }
        match (refused.is_empty(), lost.is_empty()) {
            (true, true) => Ok(()),
            (false, _) => Err(Error::Refused(refused)),
            (true, false) => Err(Error::Lost(lost)),
        }
    }

    fn member(&self, name: &str) -> Result<&Member, Error> {
        let found = self.members.iter().find(|member| member.name == name);
        found.ok_or_else(|| Error::Unknown(name.to_owned()))
    }

    /// Addresses of an agent's host that flows may use, where it tells.
    pub fn addresses(&self, name: &str) -> &[IpAddr] {
        self.member(name).map_or(&[], |member| &member.addresses)
    }

    /// Fetches reports the agents keep of runs before, whose controllers never released them. Those
    /// for which `keep` returns true, agents forget.
    pub fn fetch_kept(&self, mut keep: impl FnMut(&str, u64, &Report) -> bool) -> Vec<Loss> {
        let controller = self.controller;
        let calls = self.members.iter().map(|member| {
            let member = member.clone();
            async move {
                let mut client = member.client.clone();
                let listed = member.answer(ANSWER_WITHIN, client.kept(KeptRequest { controller })).await;
                let mut reports = Vec::new();
                for kept in listed.map_err(|reason| (member.name.clone(), reason))?.reports {
                    reports.push((kept.run, member.collect(controller, kept.run).await));
                }
                Ok::<_, (String, String)>((member, reports))
            }
        });
        let (mut losses, mut released) = (Vec::new(), Vec::new());
        for result in all(&self.runtime, calls) {
            match result {
                Err((agent, reason)) => losses.push(Loss { agent, reason }),
                Ok((member, reports)) => {
                    for (run, report) in reports {
                        match report {
                            Ok((report, _)) if keep(&member.name, run, &report) => {
                                released.push((member.clone(), run));
                            }
                            Ok(_) => {}
                            Err(reason) => losses.push(Loss { agent: member.name.clone(), reason }),
                        }
                    }
                }
            }
        }
        all(&self.runtime, released.into_iter().map(|(member, run)| release(member, controller, run)));
        losses
    }

    /// Has further agents open what their part of the run needs; returns where each receives:
    /// number and port of each flow. On an error nothing of the run remains prepared.
    pub fn add(&mut self, assignments: Vec<(String, Assignment)>) -> Result<Vec<Vec<(u32, u16)>>, Error> {
        let first = self.taking_part.len();
        self.length =
            assignments.iter().map(|(_, a)| a.duration).chain([self.length]).max().expect("not none");
        let mut requests = Vec::new();
        for (name, assignment) in &assignments {
            let index = self.members.iter().position(|member| member.name == *name);
            self.taking_part.push(index.ok_or_else(|| Error::Unknown(name.clone()))?);
            requests.push(PrepareRequest {
                controller: self.controller,
                run: self.run,
                task_version: task::VERSION,
                assignment: serde_json::to_vec(assignment).expect("assignments have string keys only"),
                tell_bins: self.tell_bins,
                consents: self.consents_for(assignment),
            });
        }
        let calls = self.taking_part[first..].iter().zip(requests).map(|(&index, request)| {
            let member = self.members[index].clone();
            async move {
                let mut client = member.client.clone();
                member.answer(PREPARE_WITHIN, client.prepare(request)).await
            }
        });
        let mut ports = Vec::new();
        let began_ns = monotonic_ns();
        let answers = all(&self.runtime, calls).into_iter().map(|answer| {
            answer.map(|reply| {
                ports.push(reply.ports.iter().map(|at| (at.flow, at.port as u16)).collect());
                reply.refusal
            })
        });
        let answers = answers.collect();
        self.prepared_in_ns = monotonic_ns() - began_ns;
        self.all_agreed(first, answers)?;
        Ok(ports)
    }

    /// Bins that ended since the last call.
    pub fn take_ended(&self) -> Ended {
        let mut ended = Ended::default();
        self.members.iter().for_each(|member| ended.extend(member.take_ended()));
        ended
    }

    /// Asks the agents' clocks again: against those of before, this shows how they drift.
    /// Agents that do not answer are left out.
    pub fn read_clocks(&self) -> Vec<(String, ClockOffset)> {
        let calls = self.members.iter().map(|member| {
            let member = member.clone();
            async move { (member.name.clone(), member.read_clock().await) }
        });
        let read = all(&self.runtime, calls).into_iter();
        read.filter_map(|(name, clock)| Some((name, clock.ok()?))).collect()
    }

    /// When a start can be that every agent hears of in time.
    pub fn soonest_start(&self) -> Epoch {
        let slowest = self.members.iter().map(|member| member.clock.error_ns).max().unwrap_or(0);
        // To tell them takes no longer than it took to have them prepare.
        let agents = self.members.len() as u64;
        let to_tell = (self.prepared_in_ns).clamp(2_000_000 * agents, 10_000_000 * agents);
        Epoch(monotonic_ns() + 300_000_000 + to_tell + 8 * slowest)
    }

    /// Starts the prepared run at one moment, told each agent in time of its own clock. On
    /// an error the run is called off; it can be prepared again.
    pub fn start(&mut self, epoch: Epoch) -> Result<(), Error> {
        self.epoch = epoch;
        let (controller, run) = (self.controller, self.run);
        let calls = self.taking_part.iter().map(|&index| {
            let member = self.members[index].clone();
            async move {
                let mut client = member.client.clone();
                let request = StartRequest { controller, run, at_ns: member.clock.theirs(epoch.0) };
                member.answer(ANSWER_WITHIN, client.start(request)).await.map(|reply| reply.refusal)
            }
        });
        let answers = all(&self.runtime, calls);
        self.all_agreed(0, answers)
    }

    /// Waits until every agent is over or lost, telling how it goes about 20 times a second;
    /// `Break` stops the run. Agents that go on too long are given up.
    pub fn watch(&mut self, mut tell: impl FnMut(&Overview) -> ControlFlow<()>) {
        if self.epoch == NOT_STARTED {
            return;
        }
        let mut deadline = self.epoch.later(self.length).later(SETTLE);
        let mut stopped = false;
        loop {
            let overview = Overview { ended: self.take_ended(), ..self.overview() };
            if tell(&overview).is_break() && !stopped {
                self.stop();
                stopped = true;
                deadline = Epoch(monotonic_ns()).later(SETTLE);
            }
            if overview.running == 0 {
                return;
            }
            if monotonic_ns() > deadline.0 {
                return self.give_up();
            }
            thread::sleep(LOOK);
        }
    }

    /// How the run goes.
    pub fn overview(&self) -> Overview {
        let mut overview = Overview {
            now: self.epoch.now(),
            running: 0,
            sent: (0, 0),
            received: (0, 0),
            lost: 0,
            lost_agents: Vec::new(),
            ended: Ended::default(),
        };
        for &index in &self.taking_part {
            let member = &self.members[index];
            let seen = member.seen();
            overview.sent.0 += seen.progress.sent;
            overview.sent.1 += seen.progress.sent_bytes;
            overview.received.0 += seen.progress.received;
            overview.received.1 += seen.progress.received_bytes;
            overview.lost += seen.progress.lost;
            if seen.lost.is_some() {
                overview.lost_agents.push(member.name.clone());
            } else if !self.is_over(&seen) {
                overview.running += 1;
            }
        }
        overview
    }

    /// Ends the run early; what was measured can be collected.
    pub fn stop(&mut self) {
        let (controller, run) = (self.controller, self.run);
        let calls = self.taking_part.iter().map(|&index| {
            let member = self.members[index].clone();
            async move {
                let mut client = member.client.clone();
                // One that does not hear it is noticed by its silence.
                let _ = member.answer(ANSWER_WITHIN, client.stop(StopRequest { controller, run })).await;
            }
        });
        all(&self.runtime, calls);
    }

    /// What was agreed to of the flows an assignment sends.
    fn consents_for(&self, assignment: &Assignment) -> Vec<Consent> {
        let sent = assignment.flows.iter().filter(|flow| flow.side == Side::Send);
        let ids: BTreeSet<u32> = sent.map(|flow| flow.id).collect();
        self.consents.iter().filter(|consent| ids.contains(&consent.flow)).cloned().collect()
    }

    /// Waits as [`watch`](Agents::watch) does, and fetches the reports.
    pub fn collect(&mut self) -> Collected {
        self.collect_keeping(|_, _| Ok(()))
    }

    /// As [`collect`](Agents::collect): each report is handed to `keep` before its agent may
    /// forget it. One that cannot be kept stays with the agent.
    pub fn collect_keeping(
        &mut self,
        mut keep: impl FnMut(&str, &Report) -> Result<(), String>,
    ) -> Collected {
        self.watch(|_| ControlFlow::Continue(()));
        let (controller, run) = (self.controller, self.run);
        let calls = self.taking_part.iter().map(|&index| {
            let member = self.members[index].clone();
            let given_up =
                self.given_up.iter().find(|(which, _)| *which == index).map(|(_, why)| why.clone());
            async move {
                if let Some(why) = given_up {
                    return Err(why);
                }
                member.collect(controller, run).await
            }
        });
        let mut collected = Collected::default();
        let mut released = Vec::new();
        for (&index, result) in self.taking_part.iter().zip(all(&self.runtime, calls)) {
            let member = &self.members[index];
            collected.clocks.push((member.name.clone(), member.clock));
            match result {
                Ok((report, spool_error)) => {
                    if !spool_error.is_empty() {
                        let warning =
                            format!("agent {} could not spool its report: {spool_error}", member.name);
                        collected.warnings.push(warning);
                    }
                    match keep(&member.name, &report) {
                        Ok(()) => released.push(member.clone()),
                        Err(why) => collected.warnings.push(format!(
                            "the report of agent {} cannot be kept here, and stays there: {why}",
                            member.name
                        )),
                    }
                    collected.reports.push(report);
                }
                Err(why) => collected.lost.push(self.loss(index, why)),
            }
        }
        all(&self.runtime, released.into_iter().map(|member| release(member, controller, run)));
        self.taking_part.clear();
        collected
    }

    /// Ends the agents. Those that do not answer end by themselves.
    pub fn finish(self) {
        let controller = self.controller;
        let calls = self.members.iter().map(|member| {
            let member = member.clone();
            async move {
                let mut client = member.client.clone();
                let _ = member.answer(ANSWER_WITHIN, client.finish(FinishRequest { controller })).await;
            }
        });
        all(&self.runtime, calls);
    }

    /// Each agent's clock against ours.
    pub fn clocks(&self) -> impl Iterator<Item = (&str, ClockOffset)> {
        self.members.iter().map(|member| (member.name.as_str(), member.clock))
    }

    /// Nothing, where all from the `first` on agreed; else the run is called off.
    fn all_agreed(
        &mut self,
        first: usize,
        answers: Vec<Result<Option<crate::protocol::generated::Refusal>, String>>,
    ) -> Result<(), Error> {
        let (mut refused, mut lost) = (Vec::new(), Vec::new());
        for (&index, answer) in self.taking_part[first..].iter().zip(answers) {
            match answer {
                Ok(None) => {}
                Ok(Some(refusal)) => refused.push((self.members[index].name.clone(), Refusal::from(refusal))),
                Err(why) => lost.push(self.loss(index, why)),
            }
        }
        let error = match (refused.is_empty(), lost.is_empty()) {
            (true, true) => return Ok(()),
            (false, _) => Error::Refused(refused),
            (true, false) => Error::Lost(lost),
        };
        self.call_off();
        Err(error)
    }

    /// Stops the run, and waits until no agent is in it.
    fn call_off(&mut self) {
        self.stop();
        self.epoch = NOT_STARTED;
        let deadline = Epoch(monotonic_ns()).later(SETTLE);
        let busy = |index: &usize| {
            let seen = self.members[*index].seen();
            let phase = Phase::from(seen.progress.phase());
            seen.lost.is_none() && matches!(phase, Phase::Preparing | Phase::Ready | Phase::Running)
        };
        while self.taking_part.iter().any(busy) && monotonic_ns() < deadline.0 {
            thread::sleep(LOOK);
        }
    }

    fn is_over(&self, seen: &Seen) -> bool {
        seen.progress.run == self.run && Phase::from(seen.progress.phase()) == Phase::Done
    }

    fn give_up(&mut self) {
        for &index in &self.taking_part {
            let seen = self.members[index].seen();
            if seen.lost.is_none() && !self.is_over(&seen) {
                let why = format!(
                    "still {} {} s after the end of the run",
                    Phase::from(seen.progress.phase()).name(),
                    SETTLE.0 / 1_000_000_000
                );
                self.given_up.push((index, why));
            }
        }
    }

    /// What is known of an agent that was lost.
    fn loss(&self, index: usize, why: String) -> Loss {
        let member = &self.members[index];
        let seen = member.seen();
        let mut reason = why;
        if let Some((at_ns, how)) = &seen.lost {
            reason = how.clone();
            if *at_ns >= self.epoch.0 {
                let at = self.epoch.instant(*at_ns).0 as f64 / 1e9;
                reason += &format!(", {at:.1} s after the start");
            }
        }
        if seen.progress.run == self.run && (seen.progress.sent > 0 || seen.progress.received > 0) {
            let (sent, received) = (seen.progress.sent, seen.progress.received);
            reason += &format!("; until then it had sent {sent} packets and received {received}");
        }
        Loss { agent: member.name.clone(), reason }
    }
}

/// Lets an agent forget a report. One that does not hear it keeps it, which does no harm.
async fn release(member: Member, controller: u64, run: u64) {
    let mut client = member.client.clone();
    let _ = member.answer(ANSWER_WITHIN, client.release(ReleaseRequest { controller, run })).await;
}

/// Runs them at the same time, and gives their results in order.
fn all<F>(runtime: &Runtime, futures: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let tasks: Vec<_> = futures.into_iter().map(|future| runtime.spawn(future)).collect();
    runtime.block_on(async {
        let mut results = Vec::with_capacity(tasks.len());
        for task in tasks {
            results.push(task.await.expect("it does not panic"));
        }
        results
    })
}
