//! Accuracy of the system's wall clock.
#![allow(unsafe_code)]

use std::mem;

/// Accuracy of the wall clock according to the kernel (adjtimex(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallClock {
    /// Maximum error in nanoseconds; an estimate if not synchronized.
    pub error_ns: u64,
    /// Whether the clock is synchronized to UTC.
    pub synchronized: bool,
}

impl WallClock {
    /// Reads the state of the clock from the kernel.
    pub fn read() -> WallClock {
        // SAFETY: timex is plain integers, for which zero is a value.
        let mut timex: libc::timex = unsafe { mem::zeroed() };
        // SAFETY: the pointer is to a timex that lives through the call; with modes zero the
        // kernel only reads the clock's state into it.
        let state = unsafe { libc::adjtimex(&raw mut timex) };
        let synchronized = state >= 0 && state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0;
        let error_us = u64::try_from(timex.maxerror).unwrap_or(0).max(1);
        WallClock { error_ns: error_us.saturating_mul(1000), synchronized }
    }
}
