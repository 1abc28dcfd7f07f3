//! Waiting until a moment: an absolute sleep that ends a little early, then a short spin.
//! The sleep ends as early as wake-ups have been late here, at most [`LONGEST_SPIN_NS`].

use netstage_host::clock::monotonic_ns;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

/// Longest spin before one packet.
const LONGEST_SPIN_NS: u64 = 80_000;
const SHORTEST_SPIN_NS: u64 = 10_000;
/// Part of the time that may be spun, one in this many: beside many other agents on a few
/// cores, spinning would take from others what it gives.
const SPIN_SHARE: u64 = 5;
/// Spinning time that may be saved up.
const SPIN_SAVINGS_NS: u64 = 1_000_000;
/// Longest sleep, so that a request to stop is seen. Hundreds of idle agents of a machine share its processors.
pub const LONGEST_SLEEP_NS: u64 = 200_000_000;

/// Waits, and learns how late this machine wakes.
#[derive(Debug)]
pub struct Pacer {
    /// How much before its moment a sleep is to end.
    lead_ns: u64,
    spin_credit_ns: u64,
    credited_at_ns: u64,
}

impl Pacer {
    /// A pacer for the calling thread, whose timers become exact.
    pub fn for_this_thread() -> Pacer {
        // Where it is refused the kernel may wake us 50 µs later; the schedule shows it.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Pacer { lead_ns: LONGEST_SPIN_NS, spin_credit_ns: SPIN_SAVINGS_NS, credited_at_ns: monotonic_ns() }
    }

    /// Waits until the moment, or until `ready` is readable, or a while where the moment is
    /// far. `exact` moments are worth a spin.
    pub fn wait(&mut self, until_ns: u64, exact: bool, ready: Option<BorrowedFd<'_>>) {
        let now = monotonic_ns();
        let earned = (now - self.credited_at_ns) / SPIN_SHARE;
        self.spin_credit_ns = (self.spin_credit_ns + earned).min(SPIN_SAVINGS_NS);
        self.credited_at_ns = now;
        let spin = exact && self.spin_credit_ns >= self.lead_ns;
        let wake = if spin { until_ns.saturating_sub(self.lead_ns) } else { until_ns };
        if wake > now {
            let reachable = wake.min(now + LONGEST_SLEEP_NS);
            let interrupted = sleep(now, reachable, ready);
            if interrupted || reachable < wake {
                return;
            }
            self.learn(monotonic_ns().saturating_sub(wake));
        }
        if spin {
            let from = monotonic_ns();
            let mut at = from;
            while at < until_ns {
                std::hint::spin_loop();
                at = monotonic_ns();
            }
            self.spin_credit_ns = self.spin_credit_ns.saturating_sub(at - from);
        }
    }

    /// Follows the 99th percentile of lateness: one late wake-up lengthens the spin by what
    /// a hundred timely ones shorten it.
    fn learn(&mut self, late_ns: u64) {
        self.lead_ns = if late_ns > self.lead_ns {
            (self.lead_ns + 4000).min(LONGEST_SPIN_NS)
        } else {
            (self.lead_ns - 40).max(SHORTEST_SPIN_NS)
        };
    }
}

/// Sleeps until the moment; true where `ready` or a signal ended it before.
fn sleep(now_ns: u64, until_ns: u64, ready: Option<BorrowedFd<'_>>) -> bool {
    match ready {
        None => {
            let until = TimeSpec::new((until_ns / 1_000_000_000) as i64, (until_ns % 1_000_000_000) as i64);
            clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &until).is_err()
        }
        Some(ready) => {
            let length = until_ns - now_ns;
            let length = TimeSpec::new((length / 1_000_000_000) as i64, (length % 1_000_000_000) as i64);
            let mut watched = [PollFd::new(ready, PollFlags::POLLIN)];
            match ppoll(&mut watched, Some(length), None) {
                Ok(count) => count > 0,
                Err(Errno::EINTR) => true,
                Err(error) => panic!("waiting for sockets: {error}"),
            }
        }
    }
}
