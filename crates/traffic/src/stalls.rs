//! Stalls of a thread: times in which it was due to run and did not, because its process was stopped or the processor
//! was busy.
//!
//! Scheduled packets show stalls by their lateness. TCP and replies have no schedule, so their thread wakes up at short
//! intervals and compares the clock.

use netstage_core::time::{Duration, Instant};

/// Maximum wait of a thread whose stalls are observed.
pub const TICK: Duration = Duration::from_millis(5);
/// Delay of a wake-up that is no stall.
const TOLERANCE: Duration = Duration::from_millis(2);
/// Share of the run, and length of one stall, beyond which the run is void. Below, the throughput of TCP is wrong by less.
const MAX_SHARE: f64 = 0.05;
const MAX_STALL: Duration = Duration::from_millis(200);

/// Stalls of one thread.
#[derive(Debug, Default)]
pub struct Stalls {
    total: Duration,
    /// Longest stall, and the time at which it began.
    max: (Duration, Instant),
}

impl Stalls {
    /// Records that the thread, which ran at `before` and was due [`TICK`] later at most, runs again at `now`.
    pub fn observe(&mut self, before: Instant, now: Instant) {
        let due = before + TICK;
        let stall = now.since(due);
        if stall > TOLERANCE {
            self.total = self.total + stall;
            self.max = self.max.max((stall, due));
        }
    }

    /// Returns the reason why the results of a run are void, if they are.
    pub fn void_reason(&self, duration: Duration) -> Option<String> {
        let is_void = self.total.as_secs_f64() > MAX_SHARE * duration.as_secs_f64() || self.max.0 > MAX_STALL;
        let milliseconds = |span: Duration| span.0 as f64 / 1e6;
        is_void.then(|| {
            format!(
                "the thread of its TCP flows and replies did not run for {:.0} of {:.0} ms, at most {:.0} ms from {:.3} s on",
                milliseconds(self.total),
                milliseconds(duration),
                milliseconds(self.max.0),
                self.max.1.0 as f64 / 1e9
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_thread_is_reported_with_time_and_length() {
        let mut stalls = Stalls::default();
        let at = |ms: u64| Instant(ms * 1_000_000);
        for ms in (0..1_000).step_by(5) {
            stalls.observe(at(ms), at(ms + 5));
        }
        assert_eq!(stalls.void_reason(Duration::from_secs(10)), None);
        stalls.observe(at(1_000), at(1_305));
        let reason = stalls.void_reason(Duration::from_secs(10)).unwrap();
        assert!(reason.contains("300 of 10000 ms, at most 300 ms from 1.005 s on"), "{reason}");
    }

    #[test]
    fn many_short_stalls_are_as_bad_as_a_long_one() {
        let mut stalls = Stalls::default();
        (0..60).for_each(|k| stalls.observe(Instant(k * 20_000_000), Instant(k * 20_000_000 + 15_000_000)));
        assert!(stalls.void_reason(Duration::from_secs(10)).is_some());
        assert!(stalls.void_reason(Duration::from_secs(20)).is_none());
    }
}
