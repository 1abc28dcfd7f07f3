//! The state machine of an agent: its owner, its run and the phase of that run. It uses no clock, socket or
//! thread.

use super::{OrderRefusal, OrderRefusalKind, run_number};
use crate::time::{Duration, Instant};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Phase of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunPhase {
    /// No run.
    #[default]
    Idle,
    /// The resources of the run are being set up.
    Preparing,
    /// The run is prepared and waits for its start.
    Ready,
    /// The run has a start time, which may be in the future.
    Running,
    /// The run is complete, and its result is available.
    Done,
}

impl RunPhase {
    /// Returns the name of the phase for messages.
    pub fn name(self) -> &'static str {
        match self {
            RunPhase::Idle => "idle",
            RunPhase::Preparing => "preparing",
            RunPhase::Ready => "ready",
            RunPhase::Running => "running",
            RunPhase::Done => "done",
        }
    }
}

/// Number of accepted runs that an agent remembers, and does not accept again.
pub const REMEMBERED_RUNS: usize = 1024;

/// The state of an agent with respect to its controller.
///
/// [`attend`](AgentSession::attend) gives the agent to a controller for the rest of the session; the same
/// controller may attend again after its connection broke. A run then
/// goes through [`prepare`](AgentSession::prepare) → [`finish_preparing`](AgentSession::finish_preparing) →
/// [`start`](AgentSession::start) → [`begin`](AgentSession::begin) →
/// [`finish_run`](AgentSession::finish_run) → [`collect`](AgentSession::collect) →
/// [`release`](AgentSession::release). The next run may be prepared at any time except while a run is being
/// prepared or running.
#[derive(Clone, Debug, Default)]
pub struct AgentSession {
    controller: Option<u64>,
    run: u64,
    /// Accepted runs, oldest first.
    accepted: Vec<u64>,
    phase: RunPhase,
    /// Start time of a running run, and whether it is final.
    start: (u64, bool),
    /// Time for which the run may continue without its controller, if it has a lease.
    lease: Option<Duration>,
    /// Time of the last heartbeat.
    heard_at: Instant,
}

impl AgentSession {
    /// Creates the state of an agent without a controller that accepted these runs before, oldest first. They are
    /// not accepted again.
    pub fn after(accepted: Vec<u64>) -> AgentSession {
        AgentSession { accepted, ..AgentSession::default() }
    }

    /// Locks the agent for a controller, by its first heartbeat. A controller that already owns the agent has
    /// a new connection.
    pub fn attend(&mut self, controller: u64, now: Instant) -> Result<(), OrderRefusal> {
        if controller == 0 {
            return Err(order("the controller number must not be zero"));
        }
        if self.controller.is_some_and(|owner| owner != controller) {
            return Err(busy());
        }
        self.controller = Some(controller);
        self.heard_at = now;
        Ok(())
    }

    /// Handles a heartbeat of the owner.
    pub fn handle_heartbeat(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// Returns the time at which the run ends unless the controller is heard before; `None` if the session
    /// ends with the connection, because no run with a lease is in progress.
    pub fn lease_expiry(&self) -> Option<Instant> {
        let lease = self.lease.filter(|_| self.phase == RunPhase::Running)?;
        Some(self.heard_at + lease)
    }

    /// Begins to prepare a run and drops the previous one. With a lease, the run may continue for that time
    /// without its controller.
    pub fn prepare(
        &mut self,
        controller: u64,
        run: u64,
        lease: Option<Duration>,
    ) -> Result<(), OrderRefusal> {
        self.check_owner(controller)?;
        if run == 0 || self.accepted.contains(&run) {
            return Err(order(format!("run {} was requested before", run_number(run))));
        }
        match self.phase {
            RunPhase::Preparing | RunPhase::Running => {
                return Err(order(format!("run {} is in progress", run_number(self.run))));
            }
            RunPhase::Idle | RunPhase::Ready | RunPhase::Done => {}
        }
        let surplus = (self.accepted.len() + 1).saturating_sub(REMEMBERED_RUNS);
        self.accepted.drain(..surplus);
        self.accepted.push(run);
        (self.run, self.lease) = (run, lease);
        self.phase = RunPhase::Preparing;
        Ok(())
    }

    /// Records the end of the preparation of a run.
    pub fn finish_preparing(&mut self, run: u64, ready: bool) {
        debug_assert_eq!((self.run, self.phase), (run, RunPhase::Preparing));
        self.phase = if ready { RunPhase::Ready } else { RunPhase::Idle };
    }

    /// Schedules the prepared run to start at `at_ns`; the current time is `now_ns`. The start may be moved
    /// to a later time until the run begins; an order for an earlier start is outdated and is refused.
    pub fn start(&mut self, controller: u64, run: u64, at_ns: u64, now_ns: u64) -> Result<(), OrderRefusal> {
        self.check_owner(controller)?;
        if (run, self.phase) == (self.run, RunPhase::Running) {
            return match self.start {
                (start_ns, _) if at_ns == start_ns => Ok(()),
                (start_ns, _) if at_ns < start_ns => Err(order("the run already has a later start")),
                (_, true) => Err(late(format!("run {} has already begun", run_number(run)))),
                _ => {
                    self.start = (at_ns, false);
                    Ok(())
                }
            };
        }
        self.expect(run, RunPhase::Ready)?;
        if at_ns < now_ns {
            let late_ms = (now_ns - at_ns).div_ceil(1_000_000);
            return Err(late(format!("the start order arrived {late_ms} ms late")));
        }
        (self.phase, self.start) = (RunPhase::Running, (at_ns, false));
        Ok(())
    }

    /// Begins the run for this start, which is final from now on; returns false if a later start is set.
    pub fn begin(&mut self, at_ns: u64) -> bool {
        debug_assert_eq!(self.phase, RunPhase::Running);
        if self.start.0 != at_ns {
            return false;
        }
        self.start.1 = true;
        true
    }

    /// Checks that a controller may stop a run early.
    pub fn stop(&mut self, controller: u64, run: u64) -> Result<(), OrderRefusal> {
        self.check_owner(controller)?;
        if run != self.run() {
            return Err(order(format!("run {} is not in progress", run_number(run))));
        }
        Ok(())
    }

    /// Drops a run that has not started; returns false if there is none.
    pub fn forget(&mut self) -> bool {
        let ready = self.phase == RunPhase::Ready;
        if ready {
            self.phase = RunPhase::Idle;
        }
        ready
    }

    /// Records the end of the run; its report is available.
    pub fn finish_run(&mut self) {
        debug_assert_eq!(self.phase, RunPhase::Running);
        self.phase = RunPhase::Done;
    }

    /// Checks that a controller may fetch the report.
    pub fn collect(&self, controller: u64, run: u64) -> Result<(), OrderRefusal> {
        self.check_owner(controller)?;
        self.expect(run, RunPhase::Done)
    }

    /// Drops the run after the controller has received its report.
    pub fn release(&mut self, controller: u64, run: u64) -> Result<(), OrderRefusal> {
        self.check_owner(controller)?;
        self.expect(run, RunPhase::Done)?;
        self.phase = RunPhase::Idle;
        Ok(())
    }

    /// Checks that a controller may shut down the agent.
    pub fn finish(&self, controller: u64) -> Result<(), OrderRefusal> {
        self.check_owner(controller)
    }

    /// Returns whether the agent is locked by a controller.
    pub fn is_locked(&self) -> bool {
        self.controller.is_some()
    }

    /// Returns the runs that are not accepted again, oldest first.
    pub fn accepted(&self) -> &[u64] {
        &self.accepted
    }

    /// Returns the phase of the run.
    pub fn phase(&self) -> RunPhase {
        self.phase
    }

    /// Returns the number of the current run; zero when idle.
    pub fn run(&self) -> u64 {
        if self.phase == RunPhase::Idle { 0 } else { self.run }
    }

    /// Checks that the agent is locked by this controller.
    pub fn check_owner(&self, controller: u64) -> Result<(), OrderRefusal> {
        match self.controller {
            None => Err(order("no controller has locked this agent: open an Attend stream first")),
            Some(owner) if owner != controller => Err(busy()),
            Some(_) => Ok(()),
        }
    }

    fn expect(&self, run: u64, phase: RunPhase) -> Result<(), OrderRefusal> {
        if run == self.run && phase == self.phase {
            return Ok(());
        }
        let (want, number) = (phase.name(), run_number(run));
        Err(match self.run() {
            0 => order(format!("run {number} is not {want}: the agent has no run")),
            now => {
                order(format!("run {number} is not {want}: run {} is {}", run_number(now), self.phase.name()))
            }
        })
    }
}

fn busy() -> OrderRefusal {
    OrderRefusal::new(OrderRefusalKind::Busy, "this agent is locked by another controller")
        .remedy("wait until it disconnects, or start another agent")
}

/// Refusal of a start order that arrived after its start, or after that of the order it replaces.
fn late(reason: String) -> OrderRefusal {
    OrderRefusal::new(OrderRefusalKind::Late, reason)
        .remedy("this machine is overloaded, or the start was too soon")
}

fn order(reason: impl Into<String>) -> OrderRefusal {
    OrderRefusal::new(OrderRefusalKind::Order, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const ME: u64 = 7;
    const OTHER: u64 = 8;

    fn attended() -> AgentSession {
        let mut session = AgentSession::default();
        session.attend(ME, Instant::ZERO).unwrap();
        session
    }

    fn kind<T: core::fmt::Debug>(result: Result<T, OrderRefusal>) -> OrderRefusalKind {
        result.unwrap_err().kind
    }

    #[test]
    fn several_runs_complete_in_sequence() {
        let mut session = attended();
        for run in 1..4 {
            session.prepare(ME, run, None).unwrap();
            session.finish_preparing(run, true);
            session.start(ME, run, 10, 10).unwrap();
            assert!(session.begin(10));
            session.finish_run();
            session.collect(ME, run).unwrap();
            session.collect(ME, run).unwrap();
            session.release(ME, run).unwrap();
            assert_eq!((session.phase(), session.run()), (RunPhase::Idle, 0));
        }
    }

    #[test]
    fn a_second_controller_is_refused_everything() {
        let mut session = attended();
        assert_eq!(kind(session.attend(OTHER, Instant::ZERO)), OrderRefusalKind::Busy);
        assert_eq!(kind(session.prepare(OTHER, 1, None)), OrderRefusalKind::Busy);
        session.prepare(ME, 1, None).unwrap();
        session.finish_preparing(1, true);
        assert_eq!(kind(session.start(OTHER, 1, 1, 0)), OrderRefusalKind::Busy);
        assert_eq!(kind(session.stop(OTHER, 1)), OrderRefusalKind::Busy);
        assert_eq!(kind(session.finish(OTHER)), OrderRefusalKind::Busy);
        assert_eq!(session.phase(), RunPhase::Ready);
    }

    #[test]
    fn a_run_is_never_accepted_again() {
        let mut session = AgentSession::after(vec![9, 5]);
        session.attend(ME, Instant::ZERO).unwrap();
        for run in [0, 5, 9] {
            assert_eq!(kind(session.prepare(ME, run, None)), OrderRefusalKind::Order);
        }
        // A higher number excludes no lower one.
        for run in [u64::MAX, 6] {
            session.prepare(ME, run, None).unwrap();
            session.finish_preparing(run, false);
            assert_eq!(kind(session.prepare(ME, run, None)), OrderRefusalKind::Order);
        }
        assert_eq!(session.accepted(), [9, 5, u64::MAX, 6]);
        for run in 100..100 + REMEMBERED_RUNS as u64 {
            session.prepare(ME, run, None).unwrap();
            session.finish_preparing(run, false);
        }
        assert_eq!((session.accepted().len(), session.accepted()[0]), (REMEMBERED_RUNS, 100));
    }

    #[test]
    fn orders_in_the_wrong_phase_are_refused() {
        let mut session = AgentSession::default();
        assert_eq!(kind(session.prepare(ME, 1, None)), OrderRefusalKind::Order);
        assert_eq!(kind(session.attend(0, Instant::ZERO)), OrderRefusalKind::Order);
        let mut session = attended();
        assert_eq!(kind(session.start(ME, 1, 1, 0)), OrderRefusalKind::Order);
        assert_eq!(kind(session.collect(ME, 0)), OrderRefusalKind::Order);
        session.prepare(ME, 5, None).unwrap();
        assert_eq!(kind(session.prepare(ME, 6, None)), OrderRefusalKind::Order);
        session.finish_preparing(5, false);
        assert_eq!(kind(session.prepare(ME, 5, None)), OrderRefusalKind::Order);
        session.prepare(ME, 6, None).unwrap();
        session.finish_preparing(6, true);
        assert_eq!(kind(session.start(ME, 5, 1, 0)), OrderRefusalKind::Order);
        assert_eq!(kind(session.start(ME, 6, 1, 2)), OrderRefusalKind::Late);
        session.start(ME, 6, 2, 2).unwrap();
        assert_eq!(kind(session.prepare(ME, 7, None)), OrderRefusalKind::Order);
        session.stop(ME, 6).unwrap();
        assert!(!session.forget());
        assert_eq!(session.phase(), RunPhase::Running, "the run ends when the worker has stopped");
        assert_eq!(kind(session.stop(ME, 5)), OrderRefusalKind::Order);
    }

    #[test]
    fn a_start_may_be_moved_later_until_the_run_begins() {
        let mut session = attended();
        session.prepare(ME, 1, None).unwrap();
        session.finish_preparing(1, true);
        session.start(ME, 1, 100, 10).unwrap();
        session.start(ME, 1, 100, 20).unwrap();
        session.start(ME, 1, 300, 30).unwrap();
        assert_eq!(
            kind(session.start(ME, 1, 100, 40)),
            OrderRefusalKind::Order,
            "the later start replaced it"
        );
        assert_eq!(kind(session.start(OTHER, 1, 500, 40)), OrderRefusalKind::Busy);
        assert!(!session.begin(100));
        assert!(session.begin(300));
        session.start(ME, 1, 300, 310).unwrap();
        assert_eq!(kind(session.start(ME, 1, 500, 310)), OrderRefusalKind::Late, "it has begun");
        assert_eq!(session.phase(), RunPhase::Running);
    }

    #[test]
    fn a_run_with_a_lease_waits_for_its_own_controller_only() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut session = attended();
        session.prepare(ME, 1, Some(Duration::from_secs(30))).unwrap();
        session.finish_preparing(1, true);
        assert_eq!(session.lease_expiry(), None, "a run that has no start time ends with its connection");
        session.start(ME, 1, 10, 10).unwrap();
        session.handle_heartbeat(at(5));
        assert_eq!(session.lease_expiry(), Some(at(35)));
        assert_eq!(kind(session.attend(OTHER, at(8))), OrderRefusalKind::Busy);
        assert_eq!(session.lease_expiry(), Some(at(35)), "another controller does not renew the lease");
        session.attend(ME, at(9)).unwrap();
        assert_eq!((session.lease_expiry(), session.phase()), (Some(at(39)), RunPhase::Running));
        session.finish_run();
        assert_eq!(session.lease_expiry(), None);
        session.prepare(ME, 2, None).unwrap();
        session.finish_preparing(2, true);
        session.start(ME, 2, 10, 10).unwrap();
        assert_eq!(session.lease_expiry(), None);
    }
}
