//! Waiting until a moment: an absolute sleep that ends a little early, then a short spin.
//! The sleep ends as early as wake-ups have been late here, within the bounds of a [`SpinLaw`].

use netstage_host::clock::monotonic_ns;
use netstage_host::wait::{Spin, SpinLaw};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

/// Follows the 99th percentile of lateness: one late wake-up lengthens the spin by what a
/// hundred timely ones shorten it. Beside many other agents on a few cores, more spinning
/// would take from others what it gives.
const LAW: SpinLaw = SpinLaw {
    step_up_ns: 4_000,
    step_down_ns: 40,
    margin_ns: (10_000, 80_000),
    share: 5,
    most_saved_ns: 1_000_000,
};
/// Longest sleep, so that a request to stop is seen. Hundreds of idle agents of a machine share its processors.
pub const LONGEST_SLEEP_NS: u64 = 200_000_000;

/// Waits, and learns how late this machine wakes.
#[derive(Debug)]
pub struct Pacer(Spin);

impl Pacer {
    /// A pacer for the calling thread, whose timers become exact.
    pub fn for_this_thread() -> Pacer {
        // Where it is refused the kernel may wake us 50 µs later; the schedule shows it.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Pacer(Spin::new(LAW, LAW.margin_ns.1, LAW.most_saved_ns))
    }

    /// Waits until the moment, or until `ready` is readable, or a while where the moment is
    /// far. `exact` moments are worth a spin.
    pub fn wait(&mut self, until_ns: u64, exact: bool, ready: Option<BorrowedFd<'_>>) {
        let now = monotonic_ns();
        self.0.refill(now);
        let margin = self.0.margin().filter(|_| exact);
        let wake = until_ns.saturating_sub(margin.unwrap_or(0));
        if wake > now {
            let reachable = wake.min(now + LONGEST_SLEEP_NS);
            let interrupted = sleep(now, reachable, ready);
            if interrupted || reachable < wake {
                return;
            }
            self.0.learn(monotonic_ns().saturating_sub(wake));
        }
        if margin.is_some() {
            self.0.until(until_ns, monotonic_ns());
        }
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
