//! The controller: has agents prepare, start together, measure, and report. Whether an
//! agent runs in a namespace of this machine or on another host, it cannot tell.
//!
//! Callers are synchronous; connections are kept alive by a thread of the controller's own.
//! Nothing here waits without a deadline. Before the start a lost agent is an error, after
//! it a [`Loss`] beside the others' results.

mod error;
mod member;
mod place;
mod round;

pub use error::{Error, Loss};
pub(crate) use member::{exchange_clocks, greet};
pub use place::Place;
pub(crate) use place::channel_over;

use crate::clock::{Epoch, monotonic_ns};
use crate::descriptors;
use crate::protocol::generated::{
    AgreeReply, AgreeRequest, Consent, FinishRequest, KeptRequest, PrepareReply, PrepareRequest,
    ReadClockRequest, ReleaseRequest, StartRequest, StopRequest,
};
use crate::protocol::{MAX_REPORT_BYTES, Refusal};
use crate::realtime::go_ahead;
use crate::results::{Ended, Report};
use crate::task::{self, Assignment};
use member::{ANSWER_WITHIN, Member};
use netstage_core::fleet::{Conduct, Phase, SETTLE, Standing, start_lead};
use netstage_core::measure::ClockOffset;
use netstage_core::time::{Duration, Instant};
use round::{Answers, ask, cores};
use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::thread;
use tokio::runtime::{Builder, Runtime};

/// How long an agent may take to answer for the first time.
pub const CONNECT_WITHIN: std::time::Duration = std::time::Duration::from_secs(10);
/// So many agents at a time are connected to, asked to prepare, or send their reports: those that are
/// attended want signs of life meanwhile.
const AT_A_TIME: usize = 64;
/// How long opening everything a run needs may take.
const PREPARE_WITHIN: std::time::Duration = std::time::Duration::from_secs(60);
/// The start of a run that has none yet.
const NOT_STARTED: Epoch = Epoch(u64::MAX);
/// An agent that takes so long to answer is worth a word in the record: the machine or the network is busy.
const SLOW: Duration = Duration::from_secs(1);
/// How often watchers are told.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// Agents under one control. Dropped, they end by themselves.
pub struct Agents {
    runtime: Runtime,
    controller: u64,
    members: Vec<Member>,
    /// Which of them has a name.
    by_name: BTreeMap<String, usize>,
    run: u64,
    tell_bins: bool,
    /// Indices of the members that take part in the run.
    taking_part: Vec<usize>,
    length: Duration,
    epoch: Epoch,
    /// How the run goes, once it has a start.
    conduct: Option<Conduct>,
    /// What receivers have agreed to.
    consents: Vec<Consent>,
    /// How long the slowest took to answer before the start, and how long before it the order went out.
    lead: Cell<(Duration, Duration)>,
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
    /// Where agents were slow to answer: how far ahead they were told of the start.
    pub slow_start: Option<String>,
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
            .worker_threads(cores())
            .on_thread_start(|| _ = go_ahead())
            .thread_name("controller")
            .enable_all()
            .build()
            .map_err(|error| Error::System(error.to_string()))?;
        let controller = RandomState::new().build_hasher().finish() | 1;
        let deadline = tokio::time::Instant::now() + limit;
        let connecting =
            agents.into_iter().map(|(name, place)| Member::connect(name, place.into(), controller, deadline));
        let connected = ask(&runtime, AT_A_TIME, connecting, Result::is_ok).answers;
        let members = connected.into_iter().flatten().collect::<Result<Vec<Member>, _>>()?;
        let by_name =
            members.iter().enumerate().map(|(index, member)| (member.name.clone(), index)).collect();
        Ok(Agents {
            runtime,
            controller,
            members,
            by_name,
            run: 0,
            tell_bins: false,
            taking_part: Vec::new(),
            length: Duration::ZERO,
            epoch: NOT_STARTED,
            conduct: None,
            consents: Vec::new(),
            lead: Cell::default(),
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
        self.conduct = None;
        self.taking_part.clear();
        self.length = Duration::ZERO;
        self.lead.take();
    }

    /// Has the agents of these assignments give their word for what they are to receive. It is
    /// handed to those that send: agents of a fleet send to nobody without.
    pub fn agree(&mut self, assignments: &[(String, Assignment)]) -> Result<(), Error> {
        let (controller, run) = (self.controller, self.run);
        let receives = |(_, part): &&(String, Assignment)| part.received().next().is_some();
        let (mut asked, mut calls) = (Vec::new(), Vec::new());
        for (name, assignment) in assignments.iter().filter(receives) {
            let request = AgreeRequest {
                controller,
                run,
                task_version: task::VERSION,
                assignment: serde_json::to_vec(assignment).expect("assignments have string keys only"),
            };
            let member = self.member(name)?.clone();
            asked.push((name, assignment));
            calls.push(async move {
                let mut client = member.client.clone();
                member.answer(ANSWER_WITHIN, client.agree(request)).await
            });
        }
        let agreed = |answer: &Result<AgreeReply, String>| answer.as_ref().is_ok_and(|r| r.refusal.is_none());
        let answers = ask(&self.runtime, AT_A_TIME, calls, agreed).answers;
        let (mut refused, mut lost) = (Vec::new(), Vec::new());
        for ((agent, assignment), answer) in asked.into_iter().zip(answers) {
            match answer {
                None => {}
                Some(Err(reason)) => lost.push(Loss { agent: agent.clone(), reason }),
                Some(Ok(reply)) => match reply.refusal {
                    Some(refusal) => refused.push((agent.clone(), Refusal::from(refusal))),
                    None => self.consents.extend(own_words(reply.consents, assignment)),
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
        self.index(name).map(|index| &self.members[index])
    }

    fn index(&self, name: &str) -> Result<usize, Error> {
        self.by_name.get(name).copied().ok_or_else(|| Error::Unknown(name.to_owned()))
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
                    let report = member.collect(controller, kept.run, MAX_REPORT_BYTES).await;
                    reports.push((kept.run, report));
                }
                Ok::<_, (String, String)>((member, reports))
            }
        });
        let (mut losses, mut released) = (Vec::new(), Vec::new());
        for result in self.ask_all(calls) {
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
        self.ask_all(released.into_iter().map(|(member, run)| release(member, controller, run)));
        losses
    }

    /// Has further agents open what their part of the run needs; returns where each receives:
    /// number and port of each flow. On an error nothing of the run remains prepared.
    pub fn add(&mut self, assignments: Vec<(String, Assignment)>) -> Result<Vec<Vec<(u32, u16)>>, Error> {
        let first = self.taking_part.len();
        self.length =
            assignments.iter().map(|(_, a)| a.duration).chain([self.length]).max().expect("not none");
        let indices = assignments.iter().map(|(name, _)| self.index(name)).collect::<Result<Vec<_>, _>>()?;
        let mut calls = Vec::new();
        for (&index, (_, assignment)) in indices.iter().zip(&assignments) {
            let request = PrepareRequest {
                controller: self.controller,
                run: self.run,
                task_version: task::VERSION,
                assignment: serde_json::to_vec(assignment).expect("assignments have string keys only"),
                tell_bins: self.tell_bins,
                consents: self.consents_for(assignment),
            };
            let member = self.members[index].clone();
            member.expect(self.run, assignment, self.tell_bins);
            calls.push(async move {
                let mut client = member.client.clone();
                member.answer(PREPARE_WITHIN, client.prepare(request)).await
            });
        }
        self.taking_part.extend(indices);
        let ready =
            |answer: &Result<PrepareReply, String>| answer.as_ref().is_ok_and(|r| r.refusal.is_none());
        let answers = ask(&self.runtime, AT_A_TIME, calls, ready).answers;
        let mut ports = Vec::new();
        let answers = answers.into_iter().zip(&assignments).map(|(answer, (_, assignment))| {
            answer.map(|answer| {
                let reply = answer?;
                ports.push(own_ports(&reply, assignment));
                Ok(reply.refusal)
            })
        });
        let answers = answers.collect();
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
        let read = self.ask_all(calls).into_iter();
        read.filter_map(|(name, clock)| Some((name, clock.ok()?))).collect()
    }

    /// When a start can be that every agent hears of in time: all are asked for their clocks at
    /// once, as they will be told of the start, and the slowest shows how long that takes.
    pub fn soonest_start(&self) -> Epoch {
        let calls = self.taking_part.iter().map(|&index| {
            let member = self.members[index].clone();
            async move {
                let mut client = member.client.clone();
                // One that does not answer is noticed when it is told of the start.
                let _ = member.answer(ANSWER_WITHIN, client.read_clock(ReadClockRequest {})).await;
            }
        });
        let slowest = ask(&self.runtime, usize::MAX, calls, |()| true).slowest;
        let clock_error = self.taking_part.iter().map(|&index| self.members[index].clock.error_ns).max();
        let lead = start_lead(slowest, Duration(clock_error.unwrap_or(0)));
        self.lead.set((slowest, lead));
        Epoch(monotonic_ns()).later(lead)
    }

    /// Starts the prepared run at one moment, told each agent in time of its own clock. On
    /// an error the run is called off; it can be prepared again.
    pub fn start(&mut self, epoch: Epoch) -> Result<(), Error> {
        self.epoch = epoch;
        let end = Instant(epoch.later(self.length).0);
        self.conduct = Some(Conduct::new(self.run, self.taking_part.len(), end));
        let (controller, run) = (self.controller, self.run);
        let calls = self.taking_part.iter().map(|&index| {
            let member = self.members[index].clone();
            async move {
                let mut client = member.client.clone();
                let request = StartRequest { controller, run, at_ns: member.clock.theirs(epoch.0) };
                member.answer(ANSWER_WITHIN, client.start(request)).await.map(|reply| reply.refusal)
            }
        });
        let answers = ask(&self.runtime, usize::MAX, calls, |_| true).answers;
        self.all_agreed(0, answers)
    }

    /// Waits until every agent is over or lost, telling how it goes about 20 times a second;
    /// `Break` stops the run. Agents that go on too long are given up.
    pub fn watch(&mut self, mut tell: impl FnMut(&Overview) -> ControlFlow<()>) {
        while self.conduct.is_some() {
            let overview = Overview { ended: self.take_ended(), ..self.overview() };
            let told_to_stop = tell(&overview).is_break();
            let now = Instant(monotonic_ns());
            let Some(conduct) = &mut self.conduct else { return };
            conduct.handle_timeout(now);
            if told_to_stop && conduct.stop(now) {
                self.stop();
            } else if conduct.poll_timeout().is_none() {
                return;
            }
            thread::sleep(LOOK);
        }
    }

    /// How the run goes.
    pub fn overview(&mut self) -> Overview {
        let mut overview = Overview {
            now: self.epoch.now(),
            running: 0,
            sent: (0, 0),
            received: (0, 0),
            lost: 0,
            lost_agents: Vec::new(),
            ended: Ended::default(),
        };
        // What agents tell may be anything: the sums stop at the largest number.
        let add = |sum: &mut u64, told: u64| *sum = sum.saturating_add(told);
        for (place, &index) in self.taking_part.iter().enumerate() {
            let member = &self.members[index];
            let seen = member.seen();
            add(&mut overview.sent.0, seen.progress.sent);
            add(&mut overview.sent.1, seen.progress.sent_bytes);
            add(&mut overview.received.0, seen.progress.received);
            add(&mut overview.received.1, seen.progress.received_bytes);
            add(&mut overview.lost, seen.progress.lost);
            if let Some(conduct) = &mut self.conduct {
                conduct.handle_progress(place, seen.progress.run, Phase::from(seen.progress.phase()));
            }
            if seen.lost.is_some() {
                overview.lost_agents.push(member.name.clone());
                if let Some(conduct) = &mut self.conduct {
                    conduct.handle_lost(place);
                }
            }
        }
        overview.running = self.conduct.as_ref().map_or(self.taking_part.len(), Conduct::under_way);
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
        ask(&self.runtime, usize::MAX, calls, |()| true);
    }

    /// What was agreed to of the flows an assignment sends.
    fn consents_for(&self, assignment: &Assignment) -> Vec<Consent> {
        let ids: BTreeSet<u32> = assignment.sent().collect();
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
        let calls = self.taking_part.iter().enumerate().map(|(place, &index)| {
            let member = self.members[index].clone();
            let given_up = match self.conduct.as_ref().and_then(|conduct| conduct.standing(place)) {
                Some(Standing::GivenUp(phase)) => Some(phase),
                _ => None,
            };
            async move {
                if let Some(phase) = given_up {
                    let seconds = SETTLE.0 / 1_000_000_000;
                    return Err(format!("still {} {seconds} s after the end of the run", phase.name()));
                }
                let most = member.longest_report();
                member.collect(controller, run, most).await
            }
        });
        let mut collected = Collected::default();
        let mut released = Vec::new();
        let (slowest, lead) = self.lead.get();
        collected.slow_start = (slowest >= SLOW).then(|| {
            format!(
                "the start was told {:.1} s ahead: the slowest of {} agents took {:.1} s to answer",
                lead.as_secs_f64(),
                self.taking_part.len(),
                slowest.as_secs_f64()
            )
        });
        for (&index, result) in self.taking_part.iter().zip(self.ask_all(calls)) {
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
        self.ask_all(released.into_iter().map(|member| release(member, controller, run)));
        self.taking_part.clear();
        self.conduct = None;
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
        self.ask_all(calls);
    }

    /// Asks everybody, so many at a time; their answers in order.
    fn ask_all<F>(&self, calls: impl IntoIterator<Item = F>) -> Vec<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let Answers { answers, .. } = ask(&self.runtime, AT_A_TIME, calls, |_| true);
        answers.into_iter().flatten().collect()
    }

    /// Each agent's clock against ours.
    pub fn clocks(&self) -> impl Iterator<Item = (&str, ClockOffset)> {
        self.members.iter().map(|member| (member.name.as_str(), member.clock))
    }

    /// Nothing, where all from the `first` on agreed; else the run is called off. Some may not
    /// have been asked, because others had refused.
    fn all_agreed(
        &mut self,
        first: usize,
        answers: Vec<Option<Result<Option<crate::protocol::generated::Refusal>, String>>>,
    ) -> Result<(), Error> {
        let (mut refused, mut lost) = (Vec::new(), Vec::new());
        for (&index, answer) in self.taking_part[first..].iter().zip(answers) {
            match answer {
                None | Some(Ok(None)) => {}
                Some(Ok(Some(refusal))) => {
                    refused.push((self.members[index].name.clone(), Refusal::from(refusal)));
                }
                Some(Err(why)) => lost.push(self.loss(index, why)),
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
        self.conduct = None;
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

/// Of what an agent says it agreed to, what it was asked: where it receives itself.
fn own_words(consents: Vec<Consent>, assignment: &Assignment) -> impl Iterator<Item = Consent> {
    let mut asked: BTreeSet<(u32, String)> =
        assignment.received().map(|(number, at)| (number, at.to_string())).collect();
    // Removed as it is found: a word given twice is one.
    consents.into_iter().filter(move |word| asked.remove(&(word.flow, word.destination.clone())))
}

/// Where an agent says it receives, of the flows it was asked to.
fn own_ports(reply: &PrepareReply, assignment: &Assignment) -> Vec<(u32, u16)> {
    let asked: BTreeSet<u32> = assignment.flows.iter().map(|flow| flow.id).collect();
    let told = reply.ports.iter().filter(|at| asked.contains(&at.flow));
    told.filter_map(|at| Some((at.flow, u16::try_from(at.port).ok()?))).take(asked.len()).collect()
}
