//! How far the runs of a study are, and how long the others will take at that pace.

use crate::Run;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A run under way tells nothing of its pace before it was watched for so long.
const WATCHED: Duration = Duration::from_millis(500);

/// What was done of the runs of one call, and when.
#[derive(Debug)]
pub(crate) struct Pace {
    started: Instant,
    /// Runs there were to do.
    pending: usize,
    done: usize,
    under_way: BTreeMap<Run, UnderWay>,
}

/// A run whose parts are told: when the first was and which, and the latest.
#[derive(Debug)]
struct UnderWay {
    since: Instant,
    first: f64,
    part: f64,
}

impl Pace {
    pub(crate) fn new(started: Instant, pending: usize) -> Pace {
        Pace { started, pending, done: 0, under_way: BTreeMap::new() }
    }

    /// A part of a run, from 0 to 1, is done. One begun anew is at less than before.
    pub(crate) fn reached(&mut self, run: Run, part: f64, now: Instant) {
        let first = UnderWay { since: now, first: part, part };
        let known = self.under_way.entry(run).or_insert(first);
        match part < known.part {
            true => *known = UnderWay { since: now, first: part, part },
            false => known.part = part,
        }
    }

    /// A run is finished.
    pub(crate) fn finished(&mut self, run: Run) {
        self.under_way.remove(&run);
        self.done += 1;
    }

    /// Runs finished.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// What is done of the runs under way, in runs.
    pub(crate) fn under_way(&self) -> f64 {
        self.under_way.values().fold(0.0, |sum, run| sum + run.part)
    }

    /// Time left: by finished runs, which tell also of what comes before and after their traffic,
    /// else by those under way.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        let work = self.done as f64 + self.under_way();
        let each = |run: &UnderWay| {
            let watched = now.saturating_duration_since(run.since);
            (watched >= WATCHED && run.part > run.first)
                .then(|| (run.part - run.first) / watched.as_secs_f64())
        };
        let rate = match self.done {
            0 => self.under_way.values().filter_map(each).sum(),
            _ => work / now.saturating_duration_since(self.started).as_secs_f64(),
        };
        let left = (self.pending as f64 - work).max(0.0) / rate;
        // Before anything is known the rate is zero.
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
    fn a_single_run_tells_how_long_it_takes_whatever_came_before_it() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut pace = Pace::new(start, 1);
        assert_eq!(pace.left(at(5)), None);
        // Five seconds went to building the network; sixty are the run's.
        pace.reached((0, 1), 0.0, at(5));
        assert_eq!(pace.left(at(5)), None);
        pace.reached((0, 1), 0.25, at(20));
        assert_eq!((seconds(pace.left(at(20))), pace.under_way()), (Some(45), 0.25));
        // Begun anew, it has all its time before it.
        pace.reached((0, 1), 0.0, at(30));
        pace.reached((0, 1), 0.1, at(36));
        assert_eq!(seconds(pace.left(at(36))), Some(54));
        pace.finished((0, 1));
        assert_eq!((pace.left(at(90)), pace.done(), pace.under_way()), (Some(Duration::ZERO), 1, 0.0));
        assert!(pace.under_way().is_sign_positive(), "nobody is to read -0.0");
    }

    #[test]
    fn runs_side_by_side_share_what_is_left() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut pace = Pace::new(start, 4);
        for seed in [1, 2] {
            pace.reached((0, seed), 0.0, start);
            pace.reached((0, seed), 0.5, at(10));
        }
        assert_eq!(seconds(pace.left(at(10))), Some(30));
        pace.finished((0, 1));
        pace.finished((0, 2));
        assert_eq!(seconds(pace.left(at(20))), Some(20));
    }
}
