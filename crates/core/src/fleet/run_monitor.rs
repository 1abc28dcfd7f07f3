//! Progress of a run at its agents, from the start until each agent has completed, is lost or has timed out.

use super::RunPhase;
use crate::time::{Duration, Instant};
use alloc::vec;
use alloc::vec::Vec;

/// Time an agent may take to end after the end of a run or an order to stop.
pub const COMPLETION_TIMEOUT: Duration = Duration::from_secs(10);

/// State of a run at one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentRunState {
    /// The agent has not reported completion.
    InProgress,
    /// The run is complete, and its result is available at the agent.
    Completed,
    /// The agent was lost during the run.
    Lost,
    /// The agent was still in this phase when the timeout after the end of the run expired.
    TimedOut(RunPhase),
}

/// A started run, as seen by its controller.
///
/// Reports of agents go to [`handle_progress`](RunMonitor::handle_progress),
/// [`handle_presence`](RunMonitor::handle_presence) and [`handle_lost`](RunMonitor::handle_lost), in any order;
/// repeated and false reports are tolerated. Call
/// [`handle_timeout`](RunMonitor::handle_timeout) at [`poll_timeout`](RunMonitor::poll_timeout).
#[derive(Clone, Debug)]
pub struct RunMonitor {
    run: u64,
    agents: Vec<(AgentRunState, RunPhase)>,
    /// Agents that are waited for.
    absent: Vec<bool>,
    deadline: Instant,
    stopped: bool,
}

impl RunMonitor {
    /// Creates the state of run number `run`, with this many agents, that ends at `end`.
    pub fn new(run: u64, agents: usize, end: Instant) -> RunMonitor {
        let absent = vec![false; agents];
        let agents = vec![(AgentRunState::InProgress, RunPhase::Running); agents];
        RunMonitor { run, agents, absent, deadline: end + COMPLETION_TIMEOUT, stopped: false }
    }

    /// Handles an agent's report of the phase of a run; a report on another run is ignored.
    pub fn handle_progress(&mut self, agent: usize, run: u64, phase: RunPhase) {
        let Some((standing, last)) = self.agents.get_mut(agent) else { return };
        if run == self.run {
            *last = phase;
            if *standing == AgentRunState::InProgress && phase == RunPhase::Done {
                *standing = AgentRunState::Completed;
            }
        }
    }

    /// Handles the absence of an agent that may return, or its return. An absent agent does not time out, unless
    /// the run is stopped; the caller reports its loss. After its return, it has the whole timeout again.
    pub fn handle_presence(&mut self, agent: usize, is_present: bool, now: Instant) {
        let Some(absent) = self.absent.get_mut(agent) else { return };
        if *absent && is_present {
            self.deadline = self.deadline.max(now + COMPLETION_TIMEOUT);
        }
        *absent = !is_present;
    }

    /// Handles the loss of an agent. A result that was available stays at the agent.
    pub fn handle_lost(&mut self, agent: usize) {
        if let Some((standing @ (AgentRunState::InProgress | AgentRunState::Completed), _)) =
            self.agents.get_mut(agent)
        {
            *standing = AgentRunState::Lost;
        }
    }

    /// Stops the run early. Returns true on the first call, when the agents have to be notified.
    pub fn stop(&mut self, now: Instant) -> bool {
        let first = !self.stopped;
        if first {
            self.stopped = true;
            self.deadline = self.deadline.min(now + COMPLETION_TIMEOUT);
        }
        first
    }

    /// Returns the time at which the remaining agents time out; `None` once no agent is running.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.in_progress() > 0).then_some(self.deadline)
    }

    /// Marks the agents that are still running as timed out, if the deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.deadline {
            return;
        }
        for ((standing, phase), absent) in self.agents.iter_mut().zip(&self.absent) {
            if *standing == AgentRunState::InProgress && (self.stopped || !absent) {
                *standing = AgentRunState::TimedOut(*phase);
            }
        }
    }

    /// Returns the number of agents that are still running.
    pub fn in_progress(&self) -> usize {
        self.agents.iter().filter(|(standing, _)| *standing == AgentRunState::InProgress).count()
    }

    /// Returns the state of the run at an agent.
    pub fn state(&self, agent: usize) -> Option<AgentRunState> {
        self.agents.get(agent).map(|(standing, _)| *standing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn each_agent_completes_is_lost_or_times_out() {
        let mut conduct = RunMonitor::new(7, 3, at(5));
        conduct.handle_progress(0, 6, RunPhase::Done);
        conduct.handle_progress(9, 7, RunPhase::Done);
        assert_eq!(conduct.in_progress(), 3, "reports on another run and from an unknown agent are ignored");
        conduct.handle_progress(0, 7, RunPhase::Done);
        conduct.handle_progress(0, 7, RunPhase::Running);
        conduct.handle_lost(1);
        conduct.handle_progress(2, 7, RunPhase::Ready);
        conduct.handle_timeout(at(14));
        assert_eq!((conduct.in_progress(), conduct.poll_timeout()), (1, Some(at(15))));
        conduct.handle_timeout(at(15));
        let states =
            [AgentRunState::Completed, AgentRunState::Lost, AgentRunState::TimedOut(RunPhase::Ready)]
                .map(Some);
        assert_eq!([0, 1, 2].map(|agent| conduct.state(agent)), states);
        assert_eq!((conduct.in_progress(), conduct.poll_timeout()), (0, None));
    }

    #[test]
    fn an_absent_agent_does_not_time_out_until_it_returns() {
        let mut conduct = RunMonitor::new(1, 1, at(5));
        conduct.handle_presence(0, false, at(4));
        conduct.handle_timeout(at(100));
        assert_eq!(conduct.in_progress(), 1);
        conduct.handle_presence(0, true, at(100));
        conduct.handle_timeout(at(109));
        assert_eq!(conduct.in_progress(), 1);
        conduct.handle_timeout(at(110));
        assert_eq!(conduct.state(0), Some(AgentRunState::TimedOut(RunPhase::Running)));
        let mut stopped = RunMonitor::new(1, 1, at(5));
        stopped.handle_presence(0, false, at(1));
        assert!(stopped.stop(at(1)));
        stopped.handle_timeout(at(11));
        assert_eq!(stopped.in_progress(), 0);
    }

    #[test]
    fn an_early_stop_restarts_the_timeout() {
        let mut conduct = RunMonitor::new(1, 1, at(1000));
        assert!(conduct.stop(at(3)) && !conduct.stop(at(9)));
        assert_eq!(conduct.poll_timeout(), Some(at(13)));
        conduct.handle_timeout(at(13));
        assert_eq!(conduct.state(0), Some(AgentRunState::TimedOut(RunPhase::Running)));
    }
}
