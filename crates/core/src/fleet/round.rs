//! One round of questions to many agents: whom to ask next, and how long the slowest took.

use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;

/// A question to each of many agents, put to so many of them at a time: what all of them did at
/// once would hold up the signs of life that each of them waits for.
///
/// [`poll_ask`](Round::poll_ask) names one after the other until it names nobody;
/// [`handle_answer`](Round::handle_answer) makes room for the next.
#[derive(Clone, Debug)]
pub struct Round {
    agents: usize,
    at_a_time: usize,
    next: usize,
    /// Who has been asked and when, and has not answered.
    asked: BTreeMap<usize, Instant>,
    slowest: Duration,
}

impl Round {
    /// A round of so many agents, at least one at a time.
    pub fn new(agents: usize, at_a_time: usize) -> Round {
        Round {
            agents,
            at_a_time: at_a_time.max(1),
            next: 0,
            asked: BTreeMap::new(),
            slowest: Duration::ZERO,
        }
    }

    /// Whom to ask now; none while enough others have not answered, and after the last.
    pub fn poll_ask(&mut self, now: Instant) -> Option<usize> {
        if self.next >= self.agents || self.asked.len() >= self.at_a_time {
            return None;
        }
        let agent = self.next;
        self.next += 1;
        self.asked.insert(agent, now);
        Some(agent)
    }

    /// An agent has answered, or will not any more. One that was not asked changes nothing.
    pub fn handle_answer(&mut self, agent: usize, now: Instant) {
        if let Some(asked) = self.asked.remove(&agent) {
            self.slowest = self.slowest.max(now.since(asked));
        }
    }

    /// Asks nobody any more.
    pub fn call_off(&mut self) {
        self.agents = self.next;
    }

    /// Whether everybody who was to be asked has answered.
    pub fn is_over(&self) -> bool {
        self.next >= self.agents && self.asked.is_empty()
    }

    /// How long the slowest answer took so far.
    pub fn slowest(&self) -> Duration {
        self.slowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_at_a_time_and_everybody_once() {
        let mut round = Round::new(3, 2);
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        assert_eq!(
            (round.poll_ask(at(0)), round.poll_ask(at(1)), round.poll_ask(at(1))),
            (Some(0), Some(1), None)
        );
        round.handle_answer(1, at(5));
        round.handle_answer(2, at(5));
        assert_eq!((round.poll_ask(at(6)), round.poll_ask(at(6))), (Some(2), None));
        round.handle_answer(2, at(7));
        assert!(!round.is_over());
        round.handle_answer(0, at(9));
        assert!(round.is_over());
        assert_eq!(round.slowest(), Duration::from_millis(9));
    }

    #[test]
    fn called_off_nobody_else_is_asked() {
        let mut round = Round::new(9, 1);
        assert_eq!(round.poll_ask(Instant::ZERO), Some(0));
        round.call_off();
        round.handle_answer(0, Instant::ZERO);
        assert_eq!(round.poll_ask(Instant::ZERO), None);
        assert!(round.is_over());
    }
}
