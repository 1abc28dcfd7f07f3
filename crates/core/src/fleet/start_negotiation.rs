//! Agreement of many agents on a start time that every one of them learns in time.

use crate::time::{Duration, Instant};
use alloc::vec;
use alloc::vec::Vec;

/// Time before the start at which an agent commits to it; until then it accepts a later start.
pub const COMMITTED: Duration = Duration::from_millis(200);
/// Allowance for the wake-up of threads on this machine, in addition to the network delay.
const SPARE: Duration = Duration::from_millis(100);
/// Maximum number of proposed starts.
const ATTEMPTS: u32 = 6;
/// Time after the last proposed start for which the controller waits for answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the lead time with which the order for a start has to be sent, so that every agent receives it
/// in time.
///
/// `slowest` is the longest response time of the agents to a request sent to all of them at once, as the
/// order will be. If an agent does not answer in that time, a second order can follow and has twice as
/// long, because agents that were slow once may be slow again. `clock_error` bounds the error of the start
/// time in an agent's own clock.
pub fn start_lead(slowest: Duration, clock_error: Duration) -> Duration {
    COMMITTED + SPARE + slowest + slowest + slowest + clock_error
}

/// The next step of a controller that has proposed a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NegotiationStep {
    /// Wait for answers until this time.
    Wait(Instant),
    /// Proceed: every agent has agreed to the start in time.
    Agreed,
    /// Propose a later start, because some agents may not have received this one.
    Postpone,
    /// Cancel the run: some agents did not agree, and others have begun or the start was moved too often.
    Cancel,
}

/// The negotiation of one start time with many agents.
///
/// [`propose`](StartNegotiation::propose) returns a start time to send to all agents; their answers go to
/// [`handle_agreed`](StartNegotiation::handle_agreed) and [`handle_late`](StartNegotiation::handle_late),
/// and [`poll`](StartNegotiation::poll) returns the next step. A third of the lead time is for the order,
/// the rest for replacing it.
#[derive(Clone, Debug)]
pub struct StartNegotiation {
    agreed: Vec<bool>,
    missing: usize,
    clock_error: Duration,
    /// Current estimate of the time until the slowest agent has answered.
    slowest: Duration,
    attempts: u32,
    proposed_at: Instant,
    start: Instant,
    /// Whether an agent received this start after its time.
    late: bool,
}

impl StartNegotiation {
    /// Creates a negotiation with this many agents, of which the slowest took `slowest` to answer a request
    /// to all agents.
    pub fn new(agents: usize, slowest: Duration, clock_error: Duration) -> StartNegotiation {
        StartNegotiation {
            agreed: vec![false; agents],
            missing: agents,
            clock_error,
            slowest,
            attempts: 0,
            proposed_at: Instant::ZERO,
            start: Instant::ZERO,
            late: false,
        }
    }

    /// Returns the start time to send to all agents now, later than any previous one.
    pub fn propose(&mut self, now: Instant) -> Instant {
        if self.attempts > 0 {
            // The answers took longer than estimated, by an unknown amount.
            self.slowest = (self.slowest + self.slowest).max(now.since(self.proposed_at));
        }
        self.attempts += 1;
        self.agreed.fill(false);
        (self.missing, self.late) = (self.agreed.len(), false);
        self.proposed_at = now;
        self.start = now + start_lead(self.slowest, self.clock_error);
        self.start
    }

    /// Handles an agent's agreement to a start.
    pub fn handle_agreed(&mut self, agent: usize, start: Instant) {
        if let Some(agreed @ false) = self.agreed.get_mut(agent)
            && start == self.start
        {
            *agreed = true;
            self.missing -= 1;
        }
    }

    /// Handles an agent's report that it received this start too late.
    pub fn handle_late(&mut self, start: Instant) {
        self.late |= start == self.start;
    }

    /// Returns the next step.
    pub fn poll(&self, now: Instant) -> NegotiationStep {
        let decision = self.proposed_at + self.slowest + Duration(SPARE.0 / 2);
        // Any later, another order would reach agents that have begun.
        let can_move = self.attempts < ATTEMPTS && now + self.slowest + COMMITTED <= self.start;
        let end = self.start + PATIENCE;
        match self.late {
            false if self.missing == 0 => NegotiationStep::Agreed,
            false if now < decision => NegotiationStep::Wait(decision),
            _ if can_move => NegotiationStep::Postpone,
            false if now < end => NegotiationStep::Wait(end),
            _ => NegotiationStep::Cancel,
        }
    }

    /// Returns the number of times the start was moved.
    pub fn moves(&self) -> u32 {
        self.attempts.saturating_sub(1)
    }

    /// Returns the current estimate of the time until the slowest agent has answered.
    pub fn slowest(&self) -> Duration {
        self.slowest
    }

    /// Returns the lead time of the last proposal.
    pub fn lead(&self) -> Duration {
        self.start.since(self.proposed_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_start_is_final_once_all_agents_agree() {
        let mut kickoff = StartNegotiation::new(2, Duration::from_millis(20), Duration::ZERO);
        let start = kickoff.propose(at(0));
        assert_eq!((start, kickoff.poll(at(1))), (at(360), NegotiationStep::Wait(at(70))));
        kickoff.handle_agreed(0, start);
        kickoff.handle_agreed(0, start);
        kickoff.handle_agreed(7, start);
        assert_eq!(kickoff.poll(at(69)), NegotiationStep::Wait(at(70)));
        kickoff.handle_agreed(1, start);
        // The controller itself may poll late.
        assert_eq!(
            (kickoff.poll(at(69)), kickoff.poll(at(900))),
            (NegotiationStep::Agreed, NegotiationStep::Agreed)
        );
        assert_eq!(kickoff.moves(), 0);
    }

    #[test]
    fn an_unanswered_start_is_moved_while_no_agent_has_begun() {
        let mut kickoff = StartNegotiation::new(2, Duration::from_millis(20), Duration::ZERO);
        let first = kickoff.propose(at(0));
        kickoff.handle_agreed(0, first);
        assert_eq!(kickoff.poll(at(70)), NegotiationStep::Postpone);
        assert_eq!(
            kickoff.poll(at(141)),
            NegotiationStep::Wait(first + PATIENCE),
            "the first agent may begin at any moment"
        );
        let second = kickoff.propose(at(70));
        assert_eq!(second, at(70 + 300 + 3 * 70));
        // Answers to the first start do not count for the second.
        kickoff.handle_agreed(1, first);
        kickoff.handle_late(first);
        kickoff.handle_agreed(0, second);
        assert_eq!(kickoff.poll(at(80)), NegotiationStep::Wait(at(70 + 70 + 50)));
        kickoff.handle_agreed(1, second);
        assert_eq!((kickoff.poll(at(81)), kickoff.moves()), (NegotiationStep::Agreed, 1));
    }

    #[test]
    fn a_start_is_canceled_if_some_agents_miss_it_after_others_have_begun() {
        let mut kickoff = StartNegotiation::new(2, Duration::ZERO, Duration::ZERO);
        let start = kickoff.propose(at(0));
        kickoff.handle_agreed(0, start);
        kickoff.handle_late(start);
        assert_eq!(kickoff.poll(at(301)), NegotiationStep::Cancel);
        let mut kickoff = StartNegotiation::new(1, Duration::ZERO, Duration::ZERO);
        let mut now = at(0);
        kickoff.propose(now);
        while let NegotiationStep::Postpone | NegotiationStep::Wait(_) = kickoff.poll(now) {
            match kickoff.poll(now) {
                NegotiationStep::Postpone => _ = kickoff.propose(now),
                NegotiationStep::Wait(until) => now = until,
                _ => unreachable!("the loop has ended"),
            }
        }
        assert_eq!((kickoff.poll(now), kickoff.moves()), (NegotiationStep::Cancel, ATTEMPTS - 1));
    }
}
