//! The start: all agents at one moment, of which each has heard before. [`Kickoff`] says when, and what follows
//! where one has not.

use super::member::{ANSWER_WITHIN, Member};
use super::round::ask;
use super::{Agents, Error};
use netstage_agent_api::protocol::generated::{self as wire, ReadClockRequest, RefusalKind, StartRequest};
use netstage_core::fleet::{Conduct, Kickoff, Step, start_lead};
use netstage_core::measure::ClockOffset;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::{Epoch, monotonic_ns};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// An agent that takes so long to answer is worth a word in the record: the machine or the network is busy.
const SLOW: Duration = Duration::from_secs(1);

/// What an agent says of a start.
type Answer = Result<Option<wire::Refusal>, String>;

/// How a start was told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lead {
    /// How long telling everybody takes.
    slowest: Duration,
    /// How long before the start the order went out.
    ahead: Duration,
    /// How often the start was moved because some had not answered in time.
    moves: u32,
}

impl Lead {
    /// What a reader of the record should know of the start at so many agents.
    pub fn remark(&self, agents: usize) -> Option<String> {
        let (ahead, slowest) = (self.ahead.as_secs_f64(), self.slowest.as_secs_f64());
        let moved = match self.moves {
            0 if self.slowest < SLOW => return None,
            0 => {
                return Some(format!(
                    "the start was told {ahead:.1} s ahead: the slowest of {agents} agents took {slowest:.1} s to answer"
                ));
            }
            1 => "once".into(),
            moves => format!("{moves} times"),
        };
        Some(format!(
            "the start was moved {moved}, since some of {agents} agents had not answered in time; the one that \
             stands was told {ahead:.1} s ahead"
        ))
    }
}

impl Agents {
    /// When a start can be that every agent hears of in time: all are asked for their clocks at
    /// once, as they will be told of the start, and the slowest shows how long that takes.
    pub fn soonest_start(&self) -> Epoch {
        let slowest = self.rehearse();
        let ahead = start_lead(slowest, self.clock_error());
        self.lead.set(Lead { slowest, ahead, moves: 0 });
        Epoch(monotonic_ns()).later(ahead)
    }

    /// Starts the prepared run as soon as every agent can hear of it; returns when that is. Where some have
    /// not answered in time, all are told a later start, which the record says. On an error the run is
    /// called off; it can be prepared again.
    pub fn start_together(&mut self) -> Result<Epoch, Error> {
        let mut kickoff = Kickoff::new(self.taking_part.len(), self.rehearse(), self.clock_error());
        loop {
            let start = kickoff.propose(Instant(monotonic_ns()));
            self.begin(Epoch(start.0));
            let (step, mut answers) = self.tell(&mut kickoff, start);
            let (slowest, ahead) = (kickoff.slowest(), kickoff.lead());
            self.lead.set(Lead { slowest, ahead, moves: kickoff.moves() });
            match step {
                Step::Stands => return Ok(Epoch(start.0)),
                Step::Move | Step::Wait(_) => {}
                Step::GiveUp => {
                    if answers.iter().flatten().all(|answer| matches!(answer, Ok(None))) {
                        let silent = || Err("it did not say whether it starts in time".to_owned());
                        answers.iter_mut().for_each(|answer| _ = answer.get_or_insert_with(silent));
                    }
                    return self.all_agreed(0, answers).map(|()| Epoch(start.0));
                }
            }
        }
    }

    /// Starts the prepared run at one moment, told each agent in time of its own clock. On
    /// an error the run is called off; it can be prepared again.
    pub fn start(&mut self, epoch: Epoch) -> Result<(), Error> {
        self.begin(epoch);
        let answers = ask(&self.runtime, usize::MAX, self.orders(epoch), |_| true).answers;
        self.all_agreed(0, answers)
    }

    fn begin(&mut self, epoch: Epoch) {
        self.epoch = epoch;
        let end = Instant(epoch.later(self.length).0);
        self.conduct = Some(Conduct::new(self.run, self.taking_part.len(), end));
    }

    /// How long the slowest takes to answer when all are asked at once.
    fn rehearse(&self) -> Duration {
        let calls = self.taking_part.iter().map(|&index| {
            let member = self.members[index].clone();
            async move {
                let mut client = member.client.clone();
                // One that does not answer is noticed when it is told of the start.
                let _ = member.answer(ANSWER_WITHIN, client.read_clock(ReadClockRequest {})).await;
            }
        });
        ask(&self.runtime, usize::MAX, calls, |()| true).slowest
    }

    fn clock_error(&self) -> Duration {
        let errors = self.taking_part.iter().map(|&index| self.clock(index).error_ns);
        Duration(errors.max().unwrap_or(0))
    }

    fn clock(&self, index: usize) -> ClockOffset {
        self.clocks.of(&self.members[index].name).expect("it is of these agents")
    }

    /// The order for a start, to each agent.
    fn orders(&self, epoch: Epoch) -> impl Iterator<Item = impl Future<Output = Answer> + use<>> {
        let (controller, run) = (self.controller, self.run);
        let order = move |(member, at_ns): (Member, u64)| async move {
            let mut client = member.client.clone();
            let request = StartRequest { controller, run, at_ns };
            member.answer(ANSWER_WITHIN, client.start(request)).await.map(|reply| reply.refusal)
        };
        let told = |&index: &usize| (self.members[index].clone(), self.clock(index).theirs(epoch.0));
        self.taking_part.iter().map(told).collect::<Vec<_>>().into_iter().map(order)
    }

    /// Tells all agents of a start, until it is known what follows; what they have said by then.
    fn tell(&self, kickoff: &mut Kickoff, start: Instant) -> (Step, Vec<Option<Answer>>) {
        let mut answers: Vec<Option<Answer>> = vec![None; self.taking_part.len()];
        let step = self.runtime.block_on(async {
            // What is still under way when it is dropped, does not matter any more: a later order follows, or the run's end.
            let mut under_way = JoinSet::new();
            for (place, order) in self.orders(Epoch(start.0)).enumerate() {
                under_way.spawn(async move { (place, order.await) });
            }
            loop {
                let now = Instant(monotonic_ns());
                let until = match kickoff.poll(now) {
                    Step::Wait(until) => until,
                    step => return step,
                };
                tokio::select! {
                    Some(answered) = under_way.join_next() => {
                        let (place, answer) = answered.expect("calls do not panic");
                        match &answer {
                            Ok(None) => kickoff.handle_agreed(place, start),
                            Ok(Some(refusal)) if refusal.kind() == RefusalKind::RefusalLate => {
                                kickoff.handle_late(start);
                            }
                            Ok(Some(_)) | Err(_) => {
                                answers[place] = Some(answer);
                                return Step::GiveUp;
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
