//! How well frames left on time: lateness against the moment each was due, and the rate of
//! links that had always something to send.

use super::report::{Lateness, SaturatedRate};
use netstage_agent_api::results::Buckets;
use netstage_core::measure::histogram::{Histogram, rounded};
use netstage_core::time::{Duration, Instant};

/// Lateness beyond this is shown as a share: the accuracy an emulator is expected to have.
const NOTABLE: Duration = Duration::from_micros(100);

/// The timing of one direction.
#[derive(Debug, Default)]
pub struct Timing {
    lateness: Histogram,
    notable: u64,
    run: Option<Run>,
    longest: Option<Run>,
}

/// Frames sent one straight after the other.
#[derive(Clone, Copy, Debug)]
struct Run {
    first_left: Instant,
    last_due: Instant,
    last_left: Instant,
    frames: u64,
    /// Time the line took for all but the first.
    sending: Duration,
}

impl Run {
    fn span(&self) -> Duration {
        self.last_left.since(self.first_left)
    }
}

impl Timing {
    /// Nothing has left yet.
    pub fn new() -> Timing {
        Timing::default()
    }

    /// A frame that was due at `due`, and on the line for `transmission`, left at `left`.
    pub fn record(&mut self, due: Instant, left: Instant, transmission: Duration) {
        let late = left.since(due);
        self.lateness.record(late.0);
        self.notable += u64::from(late > NOTABLE);
        match &mut self.run {
            Some(run) if due == run.last_due + transmission => {
                (run.last_due, run.last_left) = (due, left);
                run.frames += 1;
                run.sending = run.sending + transmission;
            }
            // A duplicate leaves with its original.
            Some(run) if due == run.last_due => run.last_left = left,
            _ => {
                self.end_run();
                self.run = Some(Run {
                    first_left: left,
                    last_due: due,
                    last_left: left,
                    frames: 1,
                    sending: Duration::ZERO,
                });
            }
        }
    }

    fn end_run(&mut self) {
        let longest = self.longest.map_or(Duration::ZERO, |run| run.sending);
        self.longest = self.run.take_if(|run| run.sending > longest).or(self.longest);
    }

    /// Adds another direction's lateness.
    pub fn merge(&mut self, other: &Timing) {
        other.lateness.buckets().for_each(|(late, frames)| self.lateness.record_many(late, frames));
        self.notable += other.notable;
    }

    /// Frames that left more than `bound` late.
    pub fn later_than(&self, bound: Duration) -> u64 {
        let later = self.lateness.buckets().filter(|(late, _)| *late > rounded(bound.0));
        later.map(|(_, frames)| frames).sum()
    }

    /// The lateness in figures.
    pub fn lateness(&self) -> Lateness {
        let frames = self.lateness.count();
        let quantile = |share| self.lateness.quantile(share).unwrap_or(0);
        Lateness {
            frames,
            p50_ns: quantile(0.5),
            p99_ns: quantile(0.99),
            max_ns: quantile(1.0),
            share_over_100_us: if frames > 0 { self.notable as f64 / frames as f64 } else { 0.0 },
        }
    }

    /// The whole distribution of lateness, nanoseconds.
    pub fn distribution(&self) -> Buckets {
        Buckets(self.lateness.buckets().collect())
    }

    /// The rate over the longest time in which the line was never free, against what it
    /// should have been.
    pub fn saturated_rate(&mut self) -> Option<SaturatedRate> {
        self.end_run();
        let run = self.longest.filter(|run| run.span() > Duration::ZERO && run.frames >= 100)?;
        Some(SaturatedRate {
            frames: run.frames,
            span_ns: run.span().0,
            error: run.sending.0 as f64 / run.span().0 as f64 - 1.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_gives_the_rate() {
        let mut timing = Timing::new();
        let send = |timing: &mut Timing, due: u64, late: u64| {
            timing.record(Instant(due), Instant(due + late), Duration(1000));
        };
        (0..50).for_each(|frame| send(&mut timing, frame * 1000, 0));
        (0..1001).for_each(|frame| send(&mut timing, 100_000 + frame * 1000, 10 * frame));
        let rate = timing.saturated_rate().unwrap();
        assert_eq!((rate.frames, rate.span_ns), (1001, 1_010_000));
        assert!((rate.error - (1.0 / 1.01 - 1.0)).abs() < 1e-12);
        assert_eq!(timing.lateness().frames, 1051);
        assert_eq!(timing.later_than(Duration(1_000_000)), 0);
    }

    #[test]
    fn shares_and_quantiles() {
        let mut timing = Timing::new();
        (0..90).for_each(|_| timing.record(Instant(0), Instant(1_000), Duration(0)));
        (0..10).for_each(|_| timing.record(Instant(0), Instant(200_000), Duration(0)));
        let lateness = timing.lateness();
        assert_eq!((lateness.share_over_100_us, lateness.frames), (0.1, 100));
        assert!((990..=1010).contains(&lateness.p50_ns) && lateness.p99_ns >= 198_000);
        assert_eq!(timing.later_than(Duration(150_000)), 10);
    }
}
