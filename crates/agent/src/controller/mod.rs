//! Controller of agents: it has them prepare a run, start together, measure, and report. It treats agents in
//! namespaces of this machine and on other hosts alike.
//!
//! Its functions are synchronous; a thread of the controller keeps the connections alive. Every wait has a
//! deadline. The loss of an agent is an error before the start, and afterwards an [`AgentLoss`] among the
//! results.
//!
//! - [`connection`]: connection to one agent, and its heartbeats; [`address`]: its address.
//! - [`clocks`]: offsets among the clocks of agents and controller.
//! - [`paths`]: search for the paths of flows between agents behind NAT.
//! - [`preparation`]: consents of the receivers, and preparation of the run.
//! - [`start`]: simultaneous start, announced to all agents in advance.
//! - [`reports`]: collection of reports, each stored before the agent may delete it.
//! - [`calls`]: concurrent calls to many agents.

mod address;
mod calls;
mod clocks;
mod error;
mod member;
mod paths;
mod preparation;
mod reports;
mod start;

pub use address::AgentAddress;
pub(crate) use address::channel_over;
pub use clocks::{AgentClocks, ClockComparison};
pub use error::{AgentDisconnect, ControllerError};
pub(crate) use member::{exchange_clocks, greet, greeting, query_identity};
pub use reports::CollectedReports;

use calls::{CallAnswers, call_all, thread_count};
use member::{ANSWER_TIMEOUT, AgentConnection, ResumedRun};
use netstage_agent_api::path::NatMapping;
use netstage_agent_api::protocol::OrderRefusal;
use netstage_agent_api::protocol::generated::{Consent, FinishRequest, StopRequest};
use netstage_agent_api::results::CompletedBins;
use netstage_agent_api::task::Assignment;
use netstage_core::fleet::{COMPLETION_TIMEOUT, RunMonitor, RunPhase};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::descriptors;
use netstage_host::realtime::raise_priority;
use start::StartLead;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::thread;
use tokio::runtime::{Builder, Runtime};

/// Time limit for connecting to an agent.
pub const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// Maximum number of concurrent calls, such as those for connecting, preparing and collecting reports. The
/// remaining capacity is needed for heartbeats.
const MAX_CONCURRENT_CALLS: usize = 64;
/// Time limit for preparing a run.
const PREPARE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);
/// Start of a run that has no start time yet.
const NOT_STARTED: Epoch = Epoch(u64::MAX);
/// Interval at which observers of a run are called.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);

/// Agents under one controller. When this value is dropped, the agents end on their own.
pub struct ControlledAgents {
    runtime: Runtime,
    controller: u64,
    members: Vec<AgentConnection>,
    /// Index of each agent by name.
    by_name: BTreeMap<String, usize>,
    run: u64,
    report_bins: bool,
    /// Indices of the agents that take part in the run.
    taking_part: Vec<usize>,
    length: Duration,
    /// Lease of the run; zero without one.
    lease: Duration,
    epoch: Epoch,
    /// State of the run, once it has a start time.
    conduct: Option<RunMonitor>,
    /// Consents of the receivers.
    consents: Vec<Consent>,
    /// Announcement of the start.
    lead: Cell<StartLead>,
    clocks: AgentClocks,
}

/// State of a run at one moment.
#[derive(Clone, Debug)]
pub struct RunOverview {
    /// Time of the run; zero before the start.
    pub now: Instant,
    /// Agents that have not completed the run yet.
    pub running: usize,
    /// Packets and payload bytes sent.
    pub sent: (u64, u64),
    /// Packets and payload bytes received.
    pub received: (u64, u64),
    /// Packets lost.
    pub lost: u64,
    /// Names of the lost agents.
    pub lost_agents: Vec<String>,
    /// Bins completed since the previous overview, where requested.
    pub ended: CompletedBins,
}

impl ControlledAgents {
    /// Connects to agents, given by name and address. An agent on a socket may start to listen later.
    pub fn connect(
        agents: Vec<(String, impl Into<AgentAddress>)>,
    ) -> Result<ControlledAgents, ControllerError> {
        ControlledAgents::connect_within(agents, CONNECT_TIMEOUT)
    }

    /// Connects like [`connect`](ControlledAgents::connect), with the given timeout.
    pub fn connect_within(
        agents: Vec<(String, impl Into<AgentAddress>)>,
        limit: std::time::Duration,
    ) -> Result<ControlledAgents, ControllerError> {
        let agents = agents.into_iter().map(|(name, place)| (name, place.into(), None)).collect();
        ControlledAgents::connect_as(RandomState::new().build_hasher().finish() | 1, agents, limit)
    }

    /// Connects to agents as a controller that has ended, to which they may still belong. The assignments are those
    /// of the run `run` that it started.
    pub fn reconnect(
        controller: u64,
        run: u64,
        agents: Vec<(String, AgentAddress, Assignment)>,
    ) -> Result<ControlledAgents, ControllerError> {
        let agents = agents.into_iter().map(|(name, place, part)| (name, place, Some((run, part)))).collect();
        ControlledAgents::connect_as(controller, agents, CONNECT_TIMEOUT)
    }

    fn connect_as(
        controller: u64,
        agents: Vec<(String, AgentAddress, Option<ResumedRun>)>,
        limit: std::time::Duration,
    ) -> Result<ControlledAgents, ControllerError> {
        descriptors::raise_limit();
        let runtime = Builder::new_multi_thread()
            .worker_threads(thread_count())
            .on_thread_start(|| _ = raise_priority())
            .thread_name("controller")
            .enable_all()
            .build()
            .map_err(|error| ControllerError::System(error.to_string()))?;
        let deadline = tokio::time::Instant::now() + limit;
        let connecting = agents.into_iter().map(|(name, place, resumed)| {
            AgentConnection::connect(name, place, controller, resumed, deadline)
        });
        let connected = call_all(&runtime, MAX_CONCURRENT_CALLS, connecting, Result::is_ok).answers;
        let members = connected.into_iter().flatten().collect::<Result<Vec<AgentConnection>, _>>()?;
        let by_name =
            members.iter().enumerate().map(|(index, member)| (member.name.clone(), index)).collect();
        let known: Vec<_> = members.iter().map(|member| Some(member.clock)).collect();
        let clocks = AgentClocks::new(&members, &known);
        Ok(ControlledAgents {
            runtime,
            controller,
            members,
            by_name,
            run: 0,
            report_bins: false,
            taking_part: Vec::new(),
            length: Duration::ZERO,
            lease: Duration::ZERO,
            epoch: NOT_STARTED,
            conduct: None,
            consents: Vec::new(),
            lead: Cell::default(),
            clocks,
        })
    }

    /// Prepares a run on all agents. After an error, no agent has the run prepared.
    pub fn prepare(&mut self, assignments: Vec<(String, Assignment)>) -> Result<(), ControllerError> {
        self.new_run(false);
        self.add_agents(assignments).map(drop)
    }

    /// Creates another run, without agents. Completed bins are reported during the run if `report_bins` is set.
    pub fn new_run(&mut self, report_bins: bool) {
        self.new_run_numbered(self.run + 1, report_bins);
    }

    /// Creates a run like [`new_run`](ControlledAgents::new_run), with an identifier that no earlier run of the agents had.
    pub fn new_run_numbered(&mut self, run: u64, report_bins: bool) {
        self.run = run;
        self.report_bins = report_bins;
        self.consents.clear();
        self.epoch = NOT_STARTED;
        self.conduct = None;
        self.taking_part.clear();
        (self.length, self.lease) = (Duration::ZERO, Duration::ZERO);
        self.set_leases(Duration::ZERO);
        self.lead.take();
    }

    /// Returns the number by which the agents recognize this controller.
    pub fn controller(&self) -> u64 {
        self.controller
    }

    /// Continues a run after [`reconnect`](ControlledAgents::reconnect), with the agents that still have it.
    /// Returns false if no agent has.
    pub fn continue_run(&mut self, run: u64, start: Epoch, assignments: &[(String, Assignment)]) -> bool {
        (self.run, self.report_bins) = (run, true);
        for (name, assignment) in assignments {
            let Ok(index) = self.index(name) else { continue };
            if self.members[index].state().progress.run == run {
                self.taking_part.push(index);
                self.length = self.length.max(assignment.duration);
                self.lease = self.lease.max(assignment.lease.unwrap_or(Duration::ZERO));
            }
        }
        self.begin(start);
        self.set_leases(self.lease);
        !self.taking_part.is_empty()
    }

    fn member(&self, name: &str) -> Result<&AgentConnection, ControllerError> {
        self.index(name).map(|index| &self.members[index])
    }

    fn index(&self, name: &str) -> Result<usize, ControllerError> {
        self.by_name.get(name).copied().ok_or_else(|| ControllerError::Unknown(name.to_owned()))
    }

    /// Returns the addresses of an agent's host that flows may use, if the agent announces them.
    pub fn addresses(&self, name: &str) -> &[IpAddr] {
        self.member(name).map_or(&[], |member| &member.addresses)
    }

    /// Returns the addresses of an agent's host as the fleet's controller sees them.
    pub fn mappings(&self, name: &str) -> &[NatMapping] {
        self.member(name).map_or(&[], |member| &member.mappings)
    }

    /// Returns the bins completed since the previous call.
    pub fn take_completed(&self) -> CompletedBins {
        let mut ended = CompletedBins::default();
        self.members.iter().for_each(|member| ended.extend(member.take_completed()));
        ended
    }

    /// Waits until all agents have completed the run or are lost. Calls `observe` about 20 times per second;
    /// `Break` stops the run. Agents that continue too long after the end are given up.
    pub fn watch(&mut self, mut observe: impl FnMut(&RunOverview) -> ControlFlow<()>) {
        while self.conduct.is_some() {
            let overview = RunOverview { ended: self.take_completed(), ..self.overview() };
            let stop_requested = observe(&overview).is_break();
            let now = Instant(monotonic_ns());
            let Some(conduct) = &mut self.conduct else { return };
            conduct.handle_timeout(now);
            if stop_requested && conduct.stop(now) {
                self.stop();
            } else if conduct.poll_timeout().is_none() {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns the current state of the run.
    pub fn overview(&mut self) -> RunOverview {
        let mut overview = RunOverview {
            now: self.epoch.now(),
            running: 0,
            sent: (0, 0),
            received: (0, 0),
            lost: 0,
            lost_agents: Vec::new(),
            ended: CompletedBins::default(),
        };
        // Agents may report any number, so that the sums saturate.
        let add = |sum: &mut u64, reported: u64| *sum = sum.saturating_add(reported);
        for (place, &index) in self.taking_part.iter().enumerate() {
            let member = &self.members[index];
            let seen = member.state();
            add(&mut overview.sent.0, seen.progress.sent);
            add(&mut overview.sent.1, seen.progress.sent_bytes);
            add(&mut overview.received.0, seen.progress.received);
            add(&mut overview.received.1, seen.progress.received_bytes);
            add(&mut overview.lost, seen.progress.lost);
            if let Some(conduct) = &mut self.conduct {
                conduct.handle_progress(place, seen.progress.run, RunPhase::from(seen.progress.phase()));
                if let Some(run) = seen.stored_run {
                    conduct.handle_progress(place, run, RunPhase::Done);
                }
                conduct.handle_presence(place, seen.absent_since.is_none(), Instant(monotonic_ns()));
            }
            if seen.lost.is_some() {
                overview.lost_agents.push(member.name.clone());
                if let Some(conduct) = &mut self.conduct {
                    conduct.handle_lost(place);
                }
            }
        }
        overview.running = self.conduct.as_ref().map_or(self.taking_part.len(), RunMonitor::in_progress);
        overview
    }

    /// Stops the run early. The reports can be collected.
    pub fn stop(&mut self) {
        let (controller, run) = (self.controller, self.run);
        let calls = self.taking_part.iter().map(|&index| {
            let member = self.members[index].clone();
            async move {
                let mut client = member.client();
                // An agent that does not receive it is detected by its missing heartbeat answers.
                let _ = member.answer(ANSWER_TIMEOUT, client.stop(StopRequest { controller, run })).await;
            }
        });
        call_all(&self.runtime, usize::MAX, calls, |()| true);
    }

    /// Ends the agents. Those that do not answer end on their own.
    pub fn finish(self) {
        let controller = self.controller;
        let calls = self.members.iter().map(|member| {
            let member = member.clone();
            async move {
                let mut client = member.client();
                let _ = member.answer(ANSWER_TIMEOUT, client.finish(FinishRequest { controller })).await;
            }
        });
        self.ask_all(calls);
    }

    /// Calls all agents, a limited number at a time. Returns their answers in order.
    fn ask_all<F>(&self, calls: impl IntoIterator<Item = F>) -> Vec<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        let CallAnswers { answers, .. } = call_all(&self.runtime, MAX_CONCURRENT_CALLS, calls, |_| true);
        answers.into_iter().flatten().collect()
    }

    /// Checks the answers of the agents from index `first` on, and cancels the run unless all of them
    /// accepted. Agents that were not called, because another one had refused, count as accepting.
    fn all_agreed(
        &mut self,
        first: usize,
        answers: Vec<Option<Result<Option<netstage_agent_api::protocol::generated::Refusal>, String>>>,
    ) -> Result<(), ControllerError> {
        let (mut refused, mut lost) = (Vec::new(), Vec::new());
        for (&index, answer) in self.taking_part[first..].iter().zip(answers) {
            match answer {
                None | Some(Ok(None)) => {}
                Some(Ok(Some(refusal))) => {
                    refused.push((self.members[index].name.clone(), OrderRefusal::from(refusal)));
                }
                Some(Err(why)) => lost.push(self.loss(index, why)),
            }
        }
        let error = match (refused.is_empty(), lost.is_empty()) {
            (true, true) => return Ok(()),
            (false, _) => ControllerError::Refused(refused),
            (true, false) => ControllerError::Lost(lost),
        };
        self.call_off();
        Err(error)
    }

    /// Stops the run, and waits until no agent takes part in it.
    fn call_off(&mut self) {
        self.stop();
        self.epoch = NOT_STARTED;
        self.conduct = None;
        let deadline = Epoch(monotonic_ns()).delayed_by(COMPLETION_TIMEOUT);
        let busy = |index: &usize| {
            let seen = self.members[*index].state();
            let phase = RunPhase::from(seen.progress.phase());
            seen.lost.is_none() && matches!(phase, RunPhase::Preparing | RunPhase::Ready | RunPhase::Running)
        };
        while self.taking_part.iter().any(busy) && monotonic_ns() < deadline.0 {
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Describes the loss of an agent.
    fn loss(&self, index: usize, why: String) -> AgentDisconnect {
        let member = &self.members[index];
        let seen = member.state();
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
        AgentDisconnect { agent: member.name.clone(), reason }
    }
}
