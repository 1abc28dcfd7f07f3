//! The time everything here is told by: the kernel's monotonic clock, which no step of
//! the wall clock moves and which all processes of one machine share.

use netstage_core::time::{Duration, Instant};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs;

/// The present, in nanoseconds of the monotonic clock.
pub fn monotonic_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// The present, in nanoseconds of the wall clock since 1970.
pub fn realtime_ns() -> u64 {
    read(ClockId::CLOCK_REALTIME)
}

/// How far the wall clock is ahead of the monotonic one, in nanoseconds. Read it anew for
/// each batch, since the wall clock may be set.
pub fn realtime_ahead_ns() -> i128 {
    ahead().0
}

/// How far the wall clock is ahead, and how long the reading took.
fn ahead() -> (i128, u64) {
    // The middle of two readings halves the error of being interrupted between them.
    let before = monotonic_ns();
    let realtime = read(ClockId::CLOCK_REALTIME);
    let took = monotonic_ns() - before;
    (i128::from(realtime) - i128::from(before + took / 2), took)
}

/// Moments of arrival on the monotonic clock: the kernel tells them by the wall clock, which
/// somebody may set while packets wait to be read.
#[derive(Debug)]
pub struct ArrivalClock {
    /// The best reading since the wall clock was last set, and how long it took.
    ahead_ns: i128,
    took_ns: u64,
    /// When the batch was read; what is in it arrived before.
    now_ns: u64,
    /// Whether the wall clock was the same as when the batch before was read.
    steady: bool,
    steps: u64,
}

impl ArrivalClock {
    /// Reads both clocks.
    pub fn new() -> ArrivalClock {
        let (ahead_ns, took_ns) = ahead();
        ArrivalClock { ahead_ns, took_ns, now_ns: monotonic_ns(), steady: true, steps: 0 }
    }

    /// A batch has been read: its packets are dated by [`at_ns`](ArrivalClock::at_ns).
    pub fn begin_batch(&mut self) {
        let (ahead_ns, took_ns) = ahead();
        self.observe(ahead_ns, took_ns, monotonic_ns());
    }

    /// When a packet of the batch arrived. The time of reading, where the kernel has not told,
    /// or by a clock that has been set since.
    pub fn at_ns(&self, realtime_ns: Option<u64>) -> u64 {
        let converted = realtime_ns.and_then(|at| u64::try_from(i128::from(at) - self.ahead_ns).ok());
        converted.filter(|_| self.steady).map_or(self.now_ns, |at| at.min(self.now_ns))
    }

    /// What a reader must know.
    pub fn warning(&self) -> Option<String> {
        (self.steps > 0).then(|| {
            let times = if self.steps == 1 { "once".into() } else { format!("{} times", self.steps) };
            format!(
                "the machine's clock was set {times} during the run: packets that waited to be read then are dated \
                 by when they were"
            )
        })
    }

    /// Both clocks run at the same rate, so readings differ by no more than they took, unless
    /// one was set.
    fn observe(&mut self, ahead_ns: i128, took_ns: u64, now_ns: u64) {
        self.now_ns = now_ns;
        let apart = (ahead_ns - self.ahead_ns).unsigned_abs();
        self.steady = apart <= u128::from(self.took_ns + took_ns);
        self.steps += u64::from(!self.steady);
        if !self.steady || took_ns < self.took_ns {
            (self.ahead_ns, self.took_ns) = (ahead_ns, took_ns);
        }
    }
}

impl Default for ArrivalClock {
    fn default() -> ArrivalClock {
        ArrivalClock::new()
    }
}

/// Processor time the calling thread has used so far, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Names the monotonic clock this process reads: equal in two processes exactly when both
/// read the same one. A clock counts from the boot, and a time namespace may shift it. Empty
/// where the system does not tell.
pub fn identity() -> String {
    let Ok(boot) = fs::read_to_string("/proc/sys/kernel/random/boot_id") else { return String::new() };
    let shifted = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    format!("{} {}", boot.trim(), shifted.display())
}

/// Whether a clock that is named so is the one this process reads.
pub fn is_ours(named: &str) -> bool {
    !named.is_empty() && named == identity()
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("Linux has this clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// The moment a run starts: where its [`Instant`]s count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl Epoch {
    /// A moment of the run from one of the monotonic clock; what was before the start is zero.
    pub fn instant(self, monotonic_ns: u64) -> Instant {
        Instant(monotonic_ns.saturating_sub(self.0))
    }

    /// A moment of the monotonic clock from one of the run.
    pub fn monotonic_ns(self, instant: Instant) -> u64 {
        self.0.saturating_add(instant.0)
    }

    /// The present.
    pub fn now(self) -> Instant {
        self.instant(monotonic_ns())
    }

    /// The start, this much later.
    pub fn later(self, by: Duration) -> Epoch {
        Epoch(self.0.saturating_add(by.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> ArrivalClock {
        ArrivalClock { ahead_ns: 1_000_000, took_ns: 100, now_ns: 0, steady: true, steps: 0 }
    }

    #[test]
    fn the_tightest_reading_dates_arrivals() {
        let mut clock = clock();
        clock.observe(1_000_400, 500, 10_000);
        assert_eq!(clock.at_ns(Some(1_007_000)), 7_000, "the longer reading is the worse one");
        clock.observe(1_000_020, 40, 20_000);
        assert_eq!(clock.at_ns(Some(1_007_020)), 7_000);
        assert_eq!(clock.at_ns(Some(1_030_000)), 20_000, "nothing arrives after it was read");
        assert_eq!(clock.at_ns(None), 20_000);
        assert_eq!(clock.warning(), None);
    }

    #[test]
    fn a_clock_that_is_set_dates_by_reading_until_it_is_steady() {
        let mut clock = clock();
        for (offset, story) in [(3_600_000_000_000, "once"), (-7_200_000_000_000, "2 times")] {
            let ahead = clock.ahead_ns + offset;
            clock.observe(ahead, 100, 50_000);
            assert_eq!(clock.at_ns(Some(1_040_000)), 50_000);
            clock.observe(ahead + 30, 100, 60_000);
            assert_eq!(
                clock.at_ns(u64::try_from(ahead + 55_000).ok()),
                if ahead > 0 { 55_000 } else { 60_000 }
            );
            assert!(clock.warning().unwrap().contains(story));
        }
    }
}
