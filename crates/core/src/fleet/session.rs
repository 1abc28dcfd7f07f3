//! What may happen to an agent, and in which order: whose it is, which run it is in, and
//! how far that run is. No clock, socket or thread.

use super::{Refusal, RefusalKind};
use alloc::format;
use alloc::string::String;

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// There is none.
    #[default]
    Idle,
    /// What it needs is being opened.
    Preparing,
    /// Only the start is missing.
    Ready,
    /// It has a start, which may still be to come.
    Running,
    /// It is over, and its result at hand.
    Done,
}

impl Phase {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Idle => "idle",
            Phase::Preparing => "being prepared",
            Phase::Ready => "ready",
            Phase::Running => "running",
            Phase::Done => "over",
        }
    }
}

/// The state of an agent towards its controller.
///
/// [`attend`](Session::attend) gives it to a controller for good. A run then goes
/// [`prepare`](Session::prepare) → [`prepared`](Session::prepared) → [`start`](Session::start)
/// → [`begin`](Session::begin) → [`ended`](Session::ended) → [`collect`](Session::collect) → [`release`](Session::release).
/// A later run may be prepared whenever none is being prepared or running.
#[derive(Clone, Debug, Default)]
pub struct Session {
    controller: Option<u64>,
    run: u64,
    phase: Phase,
    /// The start of a running run, and whether it stands.
    start: (u64, bool),
}

impl Session {
    /// That of an agent that nobody has, and whose last run was this: none up to it is taken again.
    pub fn after(run: u64) -> Session {
        Session { run, ..Session::default() }
    }

    /// A controller takes the agent.
    pub fn attend(&mut self, controller: u64) -> Result<(), Refusal> {
        if controller == 0 {
            return Err(order("a controller's number is not zero"));
        }
        if self.controller.is_some() {
            return Err(busy());
        }
        self.controller = Some(controller);
        Ok(())
    }

    /// A run is to be prepared; the one before is forgotten.
    pub fn prepare(&mut self, controller: u64, run: u64) -> Result<(), Refusal> {
        self.belongs(controller)?;
        if run <= self.run {
            return Err(order(format!("run {run} is asked for after run {}", self.run)));
        }
        match self.phase {
            Phase::Preparing | Phase::Running => {
                return Err(order(format!("run {} is under way", self.run)));
            }
            Phase::Idle | Phase::Ready | Phase::Done => {}
        }
        self.run = run;
        self.phase = Phase::Preparing;
        Ok(())
    }

    /// Preparing that run has come to an end.
    pub fn prepared(&mut self, run: u64, ready: bool) {
        debug_assert_eq!((self.run, self.phase), (run, Phase::Preparing));
        self.phase = if ready { Phase::Ready } else { Phase::Idle };
    }

    /// The prepared run is to start at `at_ns`, and it is `now_ns`. Until it begins, it may be told a later
    /// start; an order for an earlier one was overtaken.
    pub fn start(&mut self, controller: u64, run: u64, at_ns: u64, now_ns: u64) -> Result<(), Refusal> {
        self.belongs(controller)?;
        if (run, self.phase) == (self.run, Phase::Running) {
            return match self.start {
                (start_ns, _) if at_ns == start_ns => Ok(()),
                (start_ns, _) if at_ns < start_ns => Err(order("it was told a later start")),
                (_, true) => Err(order(format!("run {run} begins already"))),
                _ => {
                    self.start = (at_ns, false);
                    Ok(())
                }
            };
        }
        self.expect(run, Phase::Ready)?;
        if at_ns < now_ns {
            let late = (now_ns - at_ns).div_ceil(1_000_000);
            let reason = format!("the start was {late} ms ago when it was asked for");
            return Err(Refusal::new(RefusalKind::Late, reason)
                .remedy("this machine is overloaded, or the start was set too soon"));
        }
        (self.phase, self.start) = (Phase::Running, (at_ns, false));
        Ok(())
    }

    /// The run begins for this start, which stands from now on; false where it has a later one.
    pub fn begin(&mut self, at_ns: u64) -> bool {
        debug_assert_eq!(self.phase, Phase::Running);
        if self.start.0 != at_ns {
            return false;
        }
        self.start.1 = true;
        true
    }

    /// The run is to end early.
    pub fn stop(&mut self, controller: u64, run: u64) -> Result<(), Refusal> {
        self.belongs(controller)?;
        if run != self.run() {
            return Err(order(format!("run {run} is not under way")));
        }
        Ok(())
    }

    /// Forgets a run that has not started; false where there is none.
    pub fn forget(&mut self) -> bool {
        let ready = self.phase == Phase::Ready;
        if ready {
            self.phase = Phase::Idle;
        }
        ready
    }

    /// The run is over, its report at hand.
    pub fn ended(&mut self) {
        debug_assert_eq!(self.phase, Phase::Running);
        self.phase = Phase::Done;
    }

    /// The report is asked for.
    pub fn collect(&self, controller: u64, run: u64) -> Result<(), Refusal> {
        self.belongs(controller)?;
        self.expect(run, Phase::Done)
    }

    /// The report has been received.
    pub fn release(&mut self, controller: u64, run: u64) -> Result<(), Refusal> {
        self.belongs(controller)?;
        self.expect(run, Phase::Done)?;
        self.phase = Phase::Idle;
        Ok(())
    }

    /// The agent is to end.
    pub fn finish(&self, controller: u64) -> Result<(), Refusal> {
        self.belongs(controller)
    }

    /// Whether a controller has the agent.
    pub fn is_attended(&self) -> bool {
        self.controller.is_some()
    }

    /// The last run that was asked for; zero before the first.
    pub fn last_run(&self) -> u64 {
        self.run
    }

    /// How far the run is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The run the phase is of; zero when idle.
    pub fn run(&self) -> u64 {
        if self.phase == Phase::Idle { 0 } else { self.run }
    }

    /// Whether the agent is this controller's.
    pub fn belongs(&self, controller: u64) -> Result<(), Refusal> {
        match self.controller {
            None => Err(order("nobody attends this agent: open an Attend stream first")),
            Some(owner) if owner != controller => Err(busy()),
            Some(_) => Ok(()),
        }
    }

    fn expect(&self, run: u64, phase: Phase) -> Result<(), Refusal> {
        if run == self.run && phase == self.phase {
            return Ok(());
        }
        let want = phase.name();
        Err(match self.run() {
            0 => order(format!("run {run} is not {want}: there is none")),
            now => order(format!("run {run} is not {want}: run {now} is {}", self.phase.name())),
        })
    }
}

fn busy() -> Refusal {
    Refusal::new(RefusalKind::Busy, "another controller has this agent")
        .remedy("wait until it has finished, or start another agent")
}

fn order(reason: impl Into<String>) -> Refusal {
    Refusal::new(RefusalKind::Order, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: u64 = 7;
    const OTHER: u64 = 8;

    fn attended() -> Session {
        let mut session = Session::default();
        session.attend(ME).unwrap();
        session
    }

    fn kind<T: core::fmt::Debug>(result: Result<T, Refusal>) -> RefusalKind {
        result.unwrap_err().kind
    }

    #[test]
    fn runs_follow_one_another() {
        let mut session = attended();
        for run in 1..4 {
            session.prepare(ME, run).unwrap();
            session.prepared(run, true);
            session.start(ME, run, 10, 10).unwrap();
            assert!(session.begin(10));
            session.ended();
            session.collect(ME, run).unwrap();
            session.collect(ME, run).unwrap();
            session.release(ME, run).unwrap();
            assert_eq!((session.phase(), session.run()), (Phase::Idle, 0));
        }
    }

    #[test]
    fn a_second_controller_is_refused_everything() {
        let mut session = attended();
        assert_eq!(kind(session.attend(OTHER)), RefusalKind::Busy);
        assert_eq!(kind(session.prepare(OTHER, 1)), RefusalKind::Busy);
        session.prepare(ME, 1).unwrap();
        session.prepared(1, true);
        assert_eq!(kind(session.start(OTHER, 1, 1, 0)), RefusalKind::Busy);
        assert_eq!(kind(session.stop(OTHER, 1)), RefusalKind::Busy);
        assert_eq!(kind(session.finish(OTHER)), RefusalKind::Busy);
        assert_eq!(session.phase(), Phase::Ready);
    }

    #[test]
    fn a_run_of_before_is_never_taken_again() {
        let mut session = Session::after(5);
        session.attend(ME).unwrap();
        for run in [0, 4, 5] {
            assert_eq!(kind(session.prepare(ME, run)), RefusalKind::Order);
        }
        session.prepare(ME, 6).unwrap();
        assert_eq!(session.last_run(), 6);
    }

    #[test]
    fn nothing_happens_out_of_order() {
        let mut session = Session::default();
        assert_eq!(kind(session.prepare(ME, 1)), RefusalKind::Order);
        assert_eq!(kind(session.attend(0)), RefusalKind::Order);
        let mut session = attended();
        assert_eq!(kind(session.start(ME, 1, 1, 0)), RefusalKind::Order);
        assert_eq!(kind(session.collect(ME, 0)), RefusalKind::Order);
        session.prepare(ME, 5).unwrap();
        assert_eq!(kind(session.prepare(ME, 6)), RefusalKind::Order);
        session.prepared(5, false);
        assert_eq!(kind(session.prepare(ME, 5)), RefusalKind::Order);
        session.prepare(ME, 6).unwrap();
        session.prepared(6, true);
        assert_eq!(kind(session.start(ME, 5, 1, 0)), RefusalKind::Order);
        assert_eq!(kind(session.start(ME, 6, 1, 2)), RefusalKind::Late);
        session.start(ME, 6, 2, 2).unwrap();
        assert_eq!(kind(session.prepare(ME, 7)), RefusalKind::Order);
        session.stop(ME, 6).unwrap();
        assert!(!session.forget());
        assert_eq!(session.phase(), Phase::Running, "the worker says when it has stopped");
        assert_eq!(kind(session.stop(ME, 5)), RefusalKind::Order);
    }

    #[test]
    fn a_start_may_be_moved_later_until_the_run_begins() {
        let mut session = attended();
        session.prepare(ME, 1).unwrap();
        session.prepared(1, true);
        session.start(ME, 1, 100, 10).unwrap();
        session.start(ME, 1, 100, 20).unwrap();
        session.start(ME, 1, 300, 30).unwrap();
        assert_eq!(kind(session.start(ME, 1, 100, 40)), RefusalKind::Order, "overtaken by the later one");
        assert_eq!(kind(session.start(OTHER, 1, 500, 40)), RefusalKind::Busy);
        assert!(!session.begin(100));
        assert!(session.begin(300));
        session.start(ME, 1, 300, 310).unwrap();
        assert_eq!(kind(session.start(ME, 1, 500, 310)), RefusalKind::Order);
        assert_eq!(session.phase(), Phase::Running);
    }
}
