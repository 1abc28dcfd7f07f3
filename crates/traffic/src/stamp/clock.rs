//! What the system knows of its own wall clock.
#![allow(unsafe_code)]

use std::mem;

/// How good the wall clock is, as the kernel's clock discipline has it (adjtimex(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallClock {
    /// Bound of its error, nanoseconds; without synchronization a guess.
    pub error_ns: u64,
    /// Something keeps it synchronized to UTC.
    pub synchronized: bool,
}

impl WallClock {
    /// Asks the kernel.
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
