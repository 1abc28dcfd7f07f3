//! A round of requests to many agents, with a limit on concurrent ones and the longest response time.

use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;

/// A request to each of many agents, with a limit on those in progress: if all agents worked at once, their
/// heartbeats could be delayed.
///
/// Call [`poll_request`](RequestRound::poll_request) until it returns `None`;
/// [`handle_response`](RequestRound::handle_response) makes room for the next request.
#[derive(Clone, Debug)]
pub struct RequestRound {
    agents: usize,
    at_a_time: usize,
    next: usize,
    /// Agents with a request in progress, and its time of sending.
    in_progress: BTreeMap<usize, Instant>,
    slowest: Duration,
}

impl RequestRound {
    /// Creates a round of requests to this many agents, at most `at_a_time` (at least one) concurrently.
    pub fn new(agents: usize, at_a_time: usize) -> RequestRound {
        RequestRound {
            agents,
            at_a_time: at_a_time.max(1),
            next: 0,
            in_progress: BTreeMap::new(),
            slowest: Duration::ZERO,
        }
    }

    /// Returns the next agent to send the request to; `None` at the limit of concurrent requests, and after
    /// the last agent.
    pub fn poll_request(&mut self, now: Instant) -> Option<usize> {
        if self.next >= self.agents || self.in_progress.len() >= self.at_a_time {
            return None;
        }
        let agent = self.next;
        self.next += 1;
        self.in_progress.insert(agent, now);
        Some(agent)
    }

    /// Handles the response of an agent, or its failure to respond. An agent without a request in progress
    /// has no effect.
    pub fn handle_response(&mut self, agent: usize, now: Instant) {
        if let Some(sent_at) = self.in_progress.remove(&agent) {
            self.slowest = self.slowest.max(now.since(sent_at));
        }
    }

    /// Cancels the round: no further requests are sent.
    pub fn cancel(&mut self) {
        self.agents = self.next;
    }

    /// Returns whether all requests were sent and answered.
    pub fn is_complete(&self) -> bool {
        self.next >= self.agents && self.in_progress.is_empty()
    }

    /// Returns the longest response time so far.
    pub fn slowest(&self) -> Duration {
        self.slowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_agent_gets_one_request_within_the_limit() {
        let mut round = RequestRound::new(3, 2);
        let at = |ms| Instant::ZERO + Duration::from_millis(ms);
        assert_eq!(
            (round.poll_request(at(0)), round.poll_request(at(1)), round.poll_request(at(1))),
            (Some(0), Some(1), None)
        );
        round.handle_response(1, at(5));
        round.handle_response(2, at(5));
        assert_eq!((round.poll_request(at(6)), round.poll_request(at(6))), (Some(2), None));
        round.handle_response(2, at(7));
        assert!(!round.is_complete());
        round.handle_response(0, at(9));
        assert!(round.is_complete());
        assert_eq!(round.slowest(), Duration::from_millis(9));
    }

    #[test]
    fn a_canceled_round_sends_no_more_requests() {
        let mut round = RequestRound::new(9, 1);
        assert_eq!(round.poll_request(Instant::ZERO), Some(0));
        round.cancel();
        round.handle_response(0, Instant::ZERO);
        assert_eq!(round.poll_request(Instant::ZERO), None);
        assert!(round.is_complete());
    }
}
