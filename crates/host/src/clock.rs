//! Clocks. All times are read from the kernel's monotonic clock, which all processes of a machine share and no
//! step of the wall clock affects.

use netstage_core::time::{Duration, Instant};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::fs;

/// Returns the monotonic time in nanoseconds.
pub fn monotonic_ns() -> u64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Returns the wall-clock time in nanoseconds since 1970.
pub fn realtime_ns() -> u64 {
    read(ClockId::CLOCK_REALTIME)
}

/// Returns the offset of the wall clock from the monotonic clock in nanoseconds. Read it for each batch,
/// because the wall clock may be set.
pub fn realtime_offset_ns() -> i128 {
    read_offset().0
}

/// Returns the offset and the duration of the reading, both in nanoseconds.
fn read_offset() -> (i128, u64) {
    // The middle of two readings halves the error of an interruption between them.
    let before = monotonic_ns();
    let realtime = read(ClockId::CLOCK_REALTIME);
    let duration = monotonic_ns() - before;
    (i128::from(realtime) - i128::from(before + duration / 2), duration)
}

/// Converts the kernel's wall-clock arrival times to the monotonic clock, even if the wall clock is set while
/// packets wait to be read.
#[derive(Debug)]
pub struct ArrivalClock {
    /// Most precise reading since the wall clock was last set, and its duration.
    offset_ns: i128,
    reading_ns: u64,
    /// Time at which the batch was read, which is after all its arrivals.
    now_ns: u64,
    /// The wall clock has not been set since the previous batch was read.
    steady: bool,
    steps: u64,
}

impl ArrivalClock {
    /// Reads both clocks.
    pub fn new() -> ArrivalClock {
        let (offset_ns, reading_ns) = read_offset();
        ArrivalClock { offset_ns, reading_ns, now_ns: monotonic_ns(), steady: true, steps: 0 }
    }

    /// Starts a batch, whose packets are then dated by [`at_ns`](ArrivalClock::at_ns).
    pub fn begin_batch(&mut self) {
        let (offset_ns, reading_ns) = read_offset();
        self.observe(offset_ns, reading_ns, monotonic_ns());
    }

    /// Returns the arrival time of a packet of the batch. This is the time of reading if the kernel gave no
    /// timestamp, or if the clock has been set since.
    pub fn at_ns(&self, realtime_ns: Option<u64>) -> u64 {
        let converted = realtime_ns.and_then(|at| u64::try_from(i128::from(at) - self.offset_ns).ok());
        converted.filter(|_| self.steady).map_or(self.now_ns, |at| at.min(self.now_ns))
    }

    /// Returns a warning for the report if the wall clock was set.
    pub fn warning(&self) -> Option<String> {
        (self.steps > 0).then(|| {
            let times = if self.steps == 1 { "once".into() } else { format!("{} times", self.steps) };
            format!(
                "the machine's clock was set {times} during the run: packets waiting at that time carry the time \
                 at which they were read"
            )
        })
    }

    /// Both clocks run at the same rate, so two readings differ by more than their durations only if one clock
    /// was set.
    fn observe(&mut self, offset_ns: i128, reading_ns: u64, now_ns: u64) {
        self.now_ns = now_ns;
        let difference = (offset_ns - self.offset_ns).unsigned_abs();
        self.steady = difference <= u128::from(self.reading_ns + reading_ns);
        self.steps += u64::from(!self.steady);
        if !self.steady || reading_ns < self.reading_ns {
            (self.offset_ns, self.reading_ns) = (offset_ns, reading_ns);
        }
    }
}

impl Default for ArrivalClock {
    fn default() -> ArrivalClock {
        ArrivalClock::new()
    }
}

/// Returns the processor time used by the calling thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Identifies the monotonic clock of this process: equal in two processes exactly if both read the same clock.
/// The clock starts at boot, and a time namespace may shift it. Empty if the system does not provide the
/// identity.
pub fn identity() -> String {
    let Ok(boot) = fs::read_to_string("/proc/sys/kernel/random/boot_id") else { return String::new() };
    let shifted = fs::read_link("/proc/self/ns/time").unwrap_or_default();
    format!("{} {}", boot.trim(), shifted.display())
}

/// Returns whether this identity is that of the clock of this process.
pub fn is_own_clock(identity_text: &str) -> bool {
    !identity_text.is_empty() && identity_text == identity()
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("Linux provides this clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Start of a run in monotonic nanoseconds, the origin of its [`Instant`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Converts a monotonic time to a time of the run; times before the start become zero.
    pub fn instant(self, monotonic_ns: u64) -> Instant {
        Instant(monotonic_ns.saturating_sub(self.0))
    }

    /// Converts a time of the run to monotonic time.
    pub fn monotonic_ns(self, instant: Instant) -> u64 {
        self.0.saturating_add(instant.0)
    }

    /// Returns the current time of the run.
    pub fn now(self) -> Instant {
        self.instant(monotonic_ns())
    }

    /// Returns the start delayed by this duration.
    pub fn delayed_by(self, by: Duration) -> Epoch {
        Epoch(self.0.saturating_add(by.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> ArrivalClock {
        ArrivalClock { offset_ns: 1_000_000, reading_ns: 100, now_ns: 0, steady: true, steps: 0 }
    }

    #[test]
    fn arrivals_use_the_most_precise_reading() {
        let mut clock = clock();
        clock.observe(1_000_400, 500, 10_000);
        assert_eq!(clock.at_ns(Some(1_007_000)), 7_000, "the longer reading is less precise");
        clock.observe(1_000_020, 40, 20_000);
        assert_eq!(clock.at_ns(Some(1_007_020)), 7_000);
        assert_eq!(clock.at_ns(Some(1_030_000)), 20_000, "no packet arrives after it was read");
        assert_eq!(clock.at_ns(None), 20_000);
        assert_eq!(clock.warning(), None);
    }

    #[test]
    fn packets_carry_the_reading_time_while_the_clock_is_set() {
        let mut clock = clock();
        for (step, expected) in [(3_600_000_000_000, "once"), (-7_200_000_000_000, "2 times")] {
            let offset = clock.offset_ns + step;
            clock.observe(offset, 100, 50_000);
            assert_eq!(clock.at_ns(Some(1_040_000)), 50_000);
            clock.observe(offset + 30, 100, 60_000);
            assert_eq!(
                clock.at_ns(u64::try_from(offset + 55_000).ok()),
                if offset > 0 { 55_000 } else { 60_000 }
            );
            assert!(clock.warning().unwrap().contains(expected));
        }
    }
}
