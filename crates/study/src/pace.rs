//! Progress of a study's runs and the estimated remaining time.

use crate::RunId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Minimum observation of a run before its rate is used.
const MIN_OBSERVATION: Duration = Duration::from_millis(500);

/// Progress of the runs of one call.
#[derive(Debug)]
pub(crate) struct Pace {
    started: Instant,
    /// Runs to perform.
    pending: usize,
    done: usize,
    under_way: BTreeMap<RunId, RunProgress>,
}

/// Run in progress: time and value of its first report, and its latest value.
#[derive(Debug)]
struct RunProgress {
    since: Instant,
    first: f64,
    part: f64,
}

impl Pace {
    pub(crate) fn new(started: Instant, pending: usize) -> Pace {
        Pace { started, pending, done: 0, under_way: BTreeMap::new() }
    }

    /// Reports the progress of a run, from 0 to 1. A lower value than before indicates a restart.
    pub(crate) fn reached(&mut self, run: RunId, part: f64, now: Instant) {
        let first = RunProgress { since: now, first: part, part };
        let progress = self.under_way.entry(run).or_insert(first);
        match part < progress.part {
            true => *progress = RunProgress { since: now, first: part, part },
            false => progress.part = part,
        }
    }

    /// Reports a finished run.
    pub(crate) fn finished(&mut self, run: RunId) {
        self.under_way.remove(&run);
        self.done += 1;
    }

    /// Returns the number of finished runs.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// Returns the sum of the progress of runs in progress, in runs.
    pub(crate) fn in_progress(&self) -> f64 {
        self.under_way.values().fold(0.0, |sum, run| sum + run.part)
    }

    /// Returns the estimated remaining time. It is based on finished runs, whose time includes setup and cleanup, or
    /// on the runs in progress if none has finished.
    pub(crate) fn remaining(&self, now: Instant) -> Option<Duration> {
        let work = self.done as f64 + self.in_progress();
        let rate_of = |run: &RunProgress| {
            let observed = now.saturating_duration_since(run.since);
            (observed >= MIN_OBSERVATION && run.part > run.first)
                .then(|| (run.part - run.first) / observed.as_secs_f64())
        };
        let rate = match self.done {
            0 => self.under_way.values().filter_map(rate_of).sum(),
            _ => work / now.saturating_duration_since(self.started).as_secs_f64(),
        };
        let left = (self.pending as f64 - work).max(0.0) / rate;
        // The rate is initially zero.
        Duration::try_from_secs_f64(left).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(left: Option<Duration>) -> Option<u64> {
        left.map(|left| left.as_secs_f64().round() as u64)
    }

    #[test]
    fn the_estimate_of_a_single_run_excludes_its_setup() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut pace = Pace::new(start, 1);
        assert_eq!(pace.remaining(at(5)), None);
        // The setup takes 5 s, the run 60 s.
        pace.reached((0, 1), 0.0, at(5));
        assert_eq!(pace.remaining(at(5)), None);
        pace.reached((0, 1), 0.25, at(20));
        assert_eq!((seconds(pace.remaining(at(20))), pace.in_progress()), (Some(45), 0.25));
        // The run is restarted.
        pace.reached((0, 1), 0.0, at(30));
        pace.reached((0, 1), 0.1, at(36));
        assert_eq!(seconds(pace.remaining(at(36))), Some(54));
        pace.finished((0, 1));
        assert_eq!((pace.remaining(at(90)), pace.done(), pace.in_progress()), (Some(Duration::ZERO), 1, 0.0));
        assert!(pace.in_progress().is_sign_positive(), "-0.0 must not be displayed");
    }

    #[test]
    fn parallel_runs_share_the_remaining_work() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut pace = Pace::new(start, 4);
        for seed in [1, 2] {
            pace.reached((0, seed), 0.0, start);
            pace.reached((0, seed), 0.5, at(10));
        }
        assert_eq!(seconds(pace.remaining(at(10))), Some(30));
        pace.finished((0, 1));
        pace.finished((0, 2));
        assert_eq!(seconds(pace.remaining(at(20))), Some(20));
    }
}
