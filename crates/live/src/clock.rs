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

/// How far the wall clock is ahead of the monotonic one, in nanoseconds: kernel receive
/// timestamps are wall-clock time. Read it anew for each batch, since the wall clock may step.
pub fn realtime_ahead_ns() -> i128 {
    // The middle of two readings halves the error of being interrupted between them.
    let before = monotonic_ns();
    let realtime = read(ClockId::CLOCK_REALTIME);
    let after = monotonic_ns();
    i128::from(realtime) - i128::from(before + (after - before) / 2)
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

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock).expect("Linux has this clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// The moment a run starts: where its [`Instant`]s count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
