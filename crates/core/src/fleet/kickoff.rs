//! When a run starts at many agents, so that every one of them has heard of it before.

use crate::time::{Duration, Instant};
use alloc::vec;
use alloc::vec::Vec;

/// So long before its start a run begins for good: until then an agent may be told a later one.
pub const COMMITTED: Duration = Duration::from_millis(200);
/// What an order needs beside its way: threads of this machine that are about to wake.
const SPARE: Duration = Duration::from_millis(100);
/// So many starts are told before the last has to do.
const ATTEMPTS: u32 = 6;
/// How long after the last start answers are waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long before a start the order for it goes out, so that every agent hears of it in time.
///
/// `slowest` is how long the slowest took to answer a question put to all of them at once, as the
/// order will be; a second order of that kind can follow where it does not arrive, and has twice as long:
/// agents that were slow once are slow again. `clock_error` bounds what the start is off in an agent's own time.
pub fn start_lead(slowest: Duration, clock_error: Duration) -> Duration {
    COMMITTED + SPARE + slowest + slowest + slowest + clock_error
}

/// What a controller does next about the start it has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waits for answers, until this moment at most.
    Wait(Instant),
    /// Every agent has heard of it in time: the start stands.
    Stands,
    /// Some may not: all are to be told a later one.
    Move,
    /// Some did not, and others have begun, or it was moved too often: the run is to be called off.
    GiveUp,
}

/// One start at many agents.
///
/// [`propose`](Kickoff::propose) gives a start to tell all of them; their answers go into
/// [`handle_agreed`](Kickoff::handle_agreed) and [`handle_late`](Kickoff::handle_late), and
/// [`poll`](Kickoff::poll) says what follows. A third of the lead is for the order, the rest for taking it back.
#[derive(Clone, Debug)]
pub struct Kickoff {
    agreed: Vec<bool>,
    missing: usize,
    clock_error: Duration,
    /// How long telling everybody takes, as far as is known.
    slowest: Duration,
    attempts: u32,
    told: Instant,
    start: Instant,
    /// Some agent heard of this start when it was over.
    late: bool,
}

impl Kickoff {
    /// For so many agents, of which the slowest took so long to answer when all were asked at once.
    pub fn new(agents: usize, slowest: Duration, clock_error: Duration) -> Kickoff {
        Kickoff {
            agreed: vec![false; agents],
            missing: agents,
            clock_error,
            slowest,
            attempts: 0,
            told: Instant::ZERO,
            start: Instant::ZERO,
            late: false,
        }
    }

    /// The start to tell all agents now; later than any before.
    pub fn propose(&mut self, now: Instant) -> Instant {
        if self.attempts > 0 {
            // It took longer than was thought, and nobody knows yet by how much.
            self.slowest = (self.slowest + self.slowest).max(now.since(self.told));
        }
        self.attempts += 1;
        self.agreed.fill(false);
        (self.missing, self.late) = (self.agreed.len(), false);
        self.told = now;
        self.start = now + start_lead(self.slowest, self.clock_error);
        self.start
    }

    /// An agent will start then.
    pub fn handle_agreed(&mut self, agent: usize, start: Instant) {
        if let Some(agreed @ false) = self.agreed.get_mut(agent)
            && start == self.start
        {
            *agreed = true;
            self.missing -= 1;
        }
    }

    /// An agent heard of this start when it was over.
    pub fn handle_late(&mut self, start: Instant) {
        self.late |= start == self.start;
    }

    /// What to do.
    pub fn poll(&self, now: Instant) -> Step {
        let decision = self.told + self.slowest + Duration(SPARE.0 / 2);
        // Later, another order would find agents that have begun.
        let can_move = self.attempts < ATTEMPTS && now + self.slowest + COMMITTED <= self.start;
        let end = self.start + PATIENCE;
        match self.late {
            false if self.missing == 0 => Step::Stands,
            false if now < decision => Step::Wait(decision),
            _ if can_move => Step::Move,
            false if now < end => Step::Wait(end),
            _ => Step::GiveUp,
        }
    }

    /// How often the start was moved.
    pub fn moves(&self) -> u32 {
        self.attempts.saturating_sub(1)
    }

    /// How long telling everybody takes, as far as is known.
    pub fn slowest(&self) -> Duration {
        self.slowest
    }

    /// How far ahead of the start it was told.
    pub fn lead(&self) -> Duration {
        self.start.since(self.told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_start_that_all_have_heard_of_stands() {
        let mut kickoff = Kickoff::new(2, Duration::from_millis(20), Duration::ZERO);
        let start = kickoff.propose(at(0));
        assert_eq!((start, kickoff.poll(at(1))), (at(360), Step::Wait(at(70))));
        kickoff.handle_agreed(0, start);
        kickoff.handle_agreed(0, start);
        kickoff.handle_agreed(7, start);
        assert_eq!(kickoff.poll(at(69)), Step::Wait(at(70)));
        kickoff.handle_agreed(1, start);
        // The controller itself may be late to see it.
        assert_eq!((kickoff.poll(at(69)), kickoff.poll(at(900))), (Step::Stands, Step::Stands));
        assert_eq!(kickoff.moves(), 0);
    }

    #[test]
    fn one_that_somebody_has_not_answered_is_moved_while_nobody_has_begun() {
        let mut kickoff = Kickoff::new(2, Duration::from_millis(20), Duration::ZERO);
        let first = kickoff.propose(at(0));
        kickoff.handle_agreed(0, first);
        assert_eq!(kickoff.poll(at(70)), Step::Move);
        assert_eq!(kickoff.poll(at(141)), Step::Wait(first + PATIENCE), "the first may begin any moment");
        let second = kickoff.propose(at(70));
        assert_eq!(second, at(70 + 300 + 3 * 70));
        // An answer to the first says nothing of the second.
        kickoff.handle_agreed(1, first);
        kickoff.handle_late(first);
        kickoff.handle_agreed(0, second);
        assert_eq!(kickoff.poll(at(80)), Step::Wait(at(70 + 70 + 50)));
        kickoff.handle_agreed(1, second);
        assert_eq!((kickoff.poll(at(81)), kickoff.moves()), (Step::Stands, 1));
    }

    #[test]
    fn once_some_have_begun_without_another_it_is_given_up() {
        let mut kickoff = Kickoff::new(2, Duration::ZERO, Duration::ZERO);
        let start = kickoff.propose(at(0));
        kickoff.handle_agreed(0, start);
        kickoff.handle_late(start);
        assert_eq!(kickoff.poll(at(301)), Step::GiveUp);
        let mut kickoff = Kickoff::new(1, Duration::ZERO, Duration::ZERO);
        let mut now = at(0);
        kickoff.propose(now);
        while let Step::Move | Step::Wait(_) = kickoff.poll(now) {
            match kickoff.poll(now) {
                Step::Move => _ = kickoff.propose(now),
                Step::Wait(until) => now = until,
                _ => unreachable!("the loop has ended"),
            }
        }
        assert_eq!((kickoff.poll(now), kickoff.moves()), (Step::GiveUp, ATTEMPTS - 1));
    }
}
