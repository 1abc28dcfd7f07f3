//! Simultaneous start of all agents, announced to each of them in advance. [`StartNegotiation`] chooses the start
//! time, and postpones it if an agent did not confirm it in time.

use super::calls::call_all;
use super::member::{ANSWER_TIMEOUT, AgentConnection};
use super::{ControlledAgents, ControllerError};
use netstage_agent_api::protocol::generated::{self as wire, ReadClockRequest, RefusalKind, StartRequest};
use netstage_core::fleet::{NegotiationStep, RunMonitor, StartNegotiation, start_lead};
use netstage_core::measure::ClockOffset;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Answer time of an agent from which the record mentions it, because the machine or the network is busy.
const SLOW_ANSWER: Duration = Duration::from_secs(1);

/// Answer of an agent to a start request.
type StartAnswer = Result<Option<wire::Refusal>, String>;

/// Announcement of a start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StartLead {
    /// Time until the slowest agent has answered.
    slowest: Duration,
    /// Time between the announcement and the start.
    ahead: Duration,
    /// Number of postponements because agents had not answered in time.
    moves: u32,
}

impl StartLead {
    /// Returns the remark for the record, or `None` if the start was neither slow nor postponed.
    pub fn remark(&self, agents: usize) -> Option<String> {
        let (ahead, slowest) = (self.ahead.as_secs_f64(), self.slowest.as_secs_f64());
        let postponed = match self.moves {
            0 if self.slowest < SLOW_ANSWER => return None,
            0 => {
                return Some(format!(
                    "the start was announced {ahead:.1} s in advance: the slowest of {agents} agents took {slowest:.1} s \
                     to answer"
                ));
            }
            1 => "once".into(),
            moves => format!("{moves} times"),
        };
        Some(format!(
            "the start was postponed {postponed}, because some of {agents} agents had not answered in time; \
             the final start was announced {ahead:.1} s in advance"
        ))
    }
}

impl ControlledAgents {
    /// Returns the earliest start time that can be announced to every agent in advance. All agents are asked
    /// for their clocks at once, as in an announcement; the slowest answer determines the time needed.
    pub fn earliest_start(&self) -> Epoch {
        let slowest = self.measure_answer_time();
        let ahead = start_lead(slowest, self.clock_error());
        self.lead.set(StartLead { slowest, ahead, moves: 0 });
        Epoch(monotonic_ns()).delayed_by(ahead)
    }

    /// Starts the prepared run at the earliest start time that every agent confirms, and returns this time.
    /// If some agents do not answer in time, the start is postponed and announced again, which the record
    /// mentions. After an error the run is canceled, and can be prepared again.
    pub fn start_together(&mut self) -> Result<Epoch, ControllerError> {
        let mut kickoff =
            StartNegotiation::new(self.taking_part.len(), self.measure_answer_time(), self.clock_error());
        loop {
            let start = kickoff.propose(Instant(monotonic_ns()));
            self.begin(Epoch(start.0));
            let (step, mut answers) = self.announce(&mut kickoff, start);
            let (slowest, ahead) = (kickoff.slowest(), kickoff.lead());
            self.lead.set(StartLead { slowest, ahead, moves: kickoff.moves() });
            match step {
                NegotiationStep::Agreed => {
                    self.set_leases(self.lease);
                    return Ok(Epoch(start.0));
                }
                NegotiationStep::Postpone | NegotiationStep::Wait(_) => {}
                NegotiationStep::Cancel => {
                    if answers.iter().flatten().all(|answer| matches!(answer, Ok(None))) {
                        let no_answer = || Err("no answer to the start request".to_owned());
                        answers.iter_mut().for_each(|answer| _ = answer.get_or_insert_with(no_answer));
                    }
                    return self.all_agreed(0, answers).map(|()| Epoch(start.0));
                }
            }
        }
    }

    /// Starts the prepared run at the given time, announced to each agent in terms of its own clock. After an
    /// error the run is canceled, and can be prepared again.
    pub fn start(&mut self, epoch: Epoch) -> Result<(), ControllerError> {
        self.begin(epoch);
        let answers = call_all(&self.runtime, usize::MAX, self.start_requests(epoch), |_| true).answers;
        self.all_agreed(0, answers)
    }

    /// Lets the agents be absent for the lease of the run.
    pub(super) fn set_leases(&self, lease: Duration) {
        self.members.iter().for_each(|member| member.set_lease(std::time::Duration::from_nanos(lease.0)));
    }

    pub(super) fn begin(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        let end = Instant(epoch.delayed_by(self.length).0);
        self.conduct = Some(RunMonitor::new(self.run, self.taking_part.len(), end));
    }

    /// Returns the time in which all agents answer when they are asked at once.
    fn measure_answer_time(&self) -> Duration {
        let calls = self.taking_part.iter().map(|&index| {
            let member = self.members[index].clone();
            async move {
                let mut client = member.client();
                // An agent that does not answer is detected by the start request.
                let _ = member.answer(ANSWER_TIMEOUT, client.read_clock(ReadClockRequest {})).await;
            }
        });
        call_all(&self.runtime, usize::MAX, calls, |()| true).slowest
    }

    fn clock_error(&self) -> Duration {
        let errors = self.taking_part.iter().map(|&index| self.clock(index).error_ns);
        Duration(errors.max().unwrap_or(0))
    }

    fn clock(&self, index: usize) -> ClockOffset {
        self.clocks.offset_of(&self.members[index].name).expect("the clocks are those of these agents")
    }

    /// Returns the start requests, one for each agent.
    fn start_requests(
        &self,
        epoch: Epoch,
    ) -> impl Iterator<Item = impl Future<Output = StartAnswer> + use<>> {
        let (controller, run) = (self.controller, self.run);
        let request = move |(member, at_ns): (AgentConnection, u64)| async move {
            let mut client = member.client();
            let request = StartRequest { controller, run, at_ns };
            member.answer(ANSWER_TIMEOUT, client.start(request)).await.map(|reply| reply.refusal)
        };
        let target = |&index: &usize| (self.members[index].clone(), self.clock(index).to_remote(epoch.0));
        self.taking_part.iter().map(target).collect::<Vec<_>>().into_iter().map(request)
    }

    /// Announces a start to all agents until the next step is known. Returns this step, and the answers
    /// received so far.
    fn announce(
        &self,
        kickoff: &mut StartNegotiation,
        start: Instant,
    ) -> (NegotiationStep, Vec<Option<StartAnswer>>) {
        let mut answers: Vec<Option<StartAnswer>> = vec![None; self.taking_part.len()];
        let step = self.runtime.block_on(async {
            // Pending calls are aborted on return, because a later announcement or the end of the run
            // follows.
            let mut pending = JoinSet::new();
            for (place, request) in self.start_requests(Epoch(start.0)).enumerate() {
                pending.spawn(async move { (place, request.await) });
            }
            loop {
                let now = Instant(monotonic_ns());
                let until = match kickoff.poll(now) {
                    NegotiationStep::Wait(until) => until,
                    step => return step,
                };
                tokio::select! {
                    Some(answered) = pending.join_next() => {
                        let (place, answer) = answered.expect("calls do not panic");
                        match &answer {
                            Ok(None) => kickoff.handle_agreed(place, start),
                            Ok(Some(refusal)) if refusal.kind() == RefusalKind::RefusalLate => {
                                kickoff.handle_late(start);
                            }
                            Ok(Some(_)) | Err(_) => {
                                answers[place] = Some(answer);
                                return NegotiationStep::Cancel;
                            }
                        }
                        answers[place] = Some(answer);
                    }
                    () = sleep(std::time::Duration::from_nanos(until.since(now).0)) => {}
                }
            }
        });
        (step, answers)
    }
}
