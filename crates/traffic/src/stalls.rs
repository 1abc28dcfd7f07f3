//! Observation of a thread without a schedule. Scheduled packets show stalls by their lateness. TCP and replies have no
//! schedule, so their thread wakes up at short intervals and compares the clock.

use netstage_core::measure::VoidReason;
use netstage_core::measure::lateness::Stalls;
use netstage_core::time::{Duration, Instant};

/// Maximum wait of a thread that is observed.
pub const TICK: Duration = Duration::from_millis(5);

/// Observer of one thread in one run.
#[derive(Debug)]
pub struct StallObserver {
    duration: Duration,
    before: Instant,
    stalls: Stalls,
}

impl StallObserver {
    /// Creates the observer of a thread that runs at `now`.
    pub fn new(now: Instant, duration: Duration) -> StallObserver {
        StallObserver { duration, before: now, stalls: Stalls::default() }
    }

    /// Records that the thread runs at `now`. A stall that lasts beyond the end of the run counts up to it.
    pub fn observe(&mut self, now: Instant) {
        self.stalls.record(self.before + TICK, now.min(Instant(self.duration.0)));
        self.before = now;
    }

    /// Returns the reason why the results of the run are void, if they are. `thread` is the name of the thread.
    pub fn void_reason(&self, thread: &str) -> Option<VoidReason> {
        self.stalls.void_reason(thread, self.duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_up_to_the_end_of_the_run() {
        let stopped_until = |ms: u64| {
            let mut observer = StallObserver::new(Instant(700_000_000), Duration::from_secs(1));
            observer.observe(Instant(ms * 1_000_000));
            observer.void_reason(crate::UNSCHEDULED_THREAD)
        };
        assert_eq!(stopped_until(706), None);
        let reason = stopped_until(1_500).unwrap();
        assert!(
            reason.contains("did not run for 295 of 1000 ms, at most 295 ms from 0.705 s on"),
            "{reason}"
        );
    }
}
