//! How a run goes at its agents, from the start until each is over, lost or given up.

use super::Phase;
use crate::time::{Duration, Instant};
use alloc::vec;
use alloc::vec::Vec;

/// How long an agent may go on after the end of a run, or after it was told to stop.
pub const SETTLE: Duration = Duration::from_secs(10);

/// Where one agent is in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has not said that it is over.
    UnderWay,
    /// It is over, its result at hand there.
    Over,
    /// It was lost on the way.
    Lost,
    /// It still went on long after the end, in this phase: nothing more is expected of it.
    GivenUp(Phase),
}

/// A run that has a start, seen from its controller.
///
/// What agents tell goes into [`handle_progress`](Conduct::handle_progress) and
/// [`handle_lost`](Conduct::handle_lost), in any order and any number of times, true or not;
/// [`handle_timeout`](Conduct::handle_timeout) is to be called from
/// [`poll_timeout`](Conduct::poll_timeout) on.
#[derive(Clone, Debug)]
pub struct Conduct {
    run: u64,
    agents: Vec<(Standing, Phase)>,
    deadline: Instant,
    stopped: bool,
}

impl Conduct {
    /// The run of this number, of so many agents, which ends then.
    pub fn new(run: u64, agents: usize, end: Instant) -> Conduct {
        let agents = vec![(Standing::UnderWay, Phase::Running); agents];
        Conduct { run, agents, deadline: end + SETTLE, stopped: false }
    }

    /// An agent tells of the phase of a run. Of another run than this it means nothing.
    pub fn handle_progress(&mut self, agent: usize, run: u64, phase: Phase) {
        let Some((standing, last)) = self.agents.get_mut(agent) else { return };
        if run == self.run {
            *last = phase;
            if *standing == Standing::UnderWay && phase == Phase::Done {
                *standing = Standing::Over;
            }
        }
    }

    /// An agent was lost. A result that was at hand stays with it.
    pub fn handle_lost(&mut self, agent: usize) {
        if let Some((standing @ (Standing::UnderWay | Standing::Over), _)) = self.agents.get_mut(agent) {
            *standing = Standing::Lost;
        }
    }

    /// The run is to end early: true the first time, when agents have to be told.
    pub fn stop(&mut self, now: Instant) -> bool {
        let first = !self.stopped;
        if first {
            self.stopped = true;
            self.deadline = self.deadline.min(now + SETTLE);
        }
        first
    }

    /// When those that are still under way are given up; none once all are over.
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.under_way() > 0).then_some(self.deadline)
    }

    /// Gives up who is still under way when the time for it has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if now < self.deadline {
            return;
        }
        for (standing, phase) in &mut self.agents {
            if *standing == Standing::UnderWay {
                *standing = Standing::GivenUp(*phase);
            }
        }
    }

    /// How many agents are under way.
    pub fn under_way(&self) -> usize {
        self.agents.iter().filter(|(standing, _)| *standing == Standing::UnderWay).count()
    }

    /// Where an agent is in the run.
    pub fn standing(&self, agent: usize) -> Option<Standing> {
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
    fn each_agent_is_over_lost_or_given_up() {
        let mut conduct = Conduct::new(7, 3, at(5));
        conduct.handle_progress(0, 6, Phase::Done);
        conduct.handle_progress(9, 7, Phase::Done);
        assert_eq!(conduct.under_way(), 3, "another run's end, and a stranger's, mean nothing");
        conduct.handle_progress(0, 7, Phase::Done);
        conduct.handle_progress(0, 7, Phase::Running);
        conduct.handle_lost(1);
        conduct.handle_progress(2, 7, Phase::Ready);
        conduct.handle_timeout(at(14));
        assert_eq!((conduct.under_way(), conduct.poll_timeout()), (1, Some(at(15))));
        conduct.handle_timeout(at(15));
        let standings = [Standing::Over, Standing::Lost, Standing::GivenUp(Phase::Ready)].map(Some);
        assert_eq!([0, 1, 2].map(|agent| conduct.standing(agent)), standings);
        assert_eq!((conduct.under_way(), conduct.poll_timeout()), (0, None));
    }

    #[test]
    fn stopped_early_they_have_as_long_from_then_on() {
        let mut conduct = Conduct::new(1, 1, at(1000));
        assert!(conduct.stop(at(3)) && !conduct.stop(at(9)));
        assert_eq!(conduct.poll_timeout(), Some(at(13)));
        conduct.handle_timeout(at(13));
        assert_eq!(conduct.standing(0), Some(Standing::GivenUp(Phase::Running)));
    }
}
