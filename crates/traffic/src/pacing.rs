//! Precise waiting: an absolute sleep that ends early, and a short spin. The sleep ends as early as wake-ups are
//! usually late, within the bounds of a [`SpinParameters`].

use netstage_host::clock::monotonic_ns;
use netstage_host::wait::{Spin, SpinParameters};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

/// Follows the 99th percentile of lateness: one late wake-up lengthens the spin by as much as a hundred timely
/// wake-ups shorten it. With many agents on a few cores, longer spins would delay the others by what they gain.
const LAW: SpinParameters = SpinParameters {
    step_up_ns: 4_000,
    step_down_ns: 40,
    margin_ns: (10_000, 80_000),
    share: 5,
    max_saved_ns: 1_000_000,
};
/// Maximum sleep, after which a stop request is checked. A shorter one would load a machine with hundreds of idle
/// agents.
pub const MAX_SLEEP_NS: u64 = 200_000_000;

/// Waits for scheduled times, and learns the lateness of wake-ups.
#[derive(Debug)]
pub struct Pacer(Spin);

impl Pacer {
    /// Creates a pacer for the calling thread, and sets the thread's timer slack to the minimum.
    pub fn for_this_thread() -> Pacer {
        // On failure, the kernel may wake the thread 50 µs late, which the schedule shows.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        Pacer(Spin::new(LAW, LAW.margin_ns.1, LAW.max_saved_ns))
    }

    /// Waits until the time, until `ready` is readable, or at most [`MAX_SLEEP_NS`]. Spins before the time if
    /// `exact`.
    pub fn wait(&mut self, until_ns: u64, exact: bool, ready: Option<BorrowedFd<'_>>) {
        let now = monotonic_ns();
        self.0.refill(now);
        let margin = self.0.margin().filter(|_| exact);
        let wake = until_ns.saturating_sub(margin.unwrap_or(0));
        if wake > now {
            let reachable = wake.min(now + MAX_SLEEP_NS);
            let interrupted = sleep(now, reachable, ready);
            if interrupted || reachable < wake {
                return;
            }
            self.0.learn(monotonic_ns().saturating_sub(wake));
        }
        if margin.is_some() {
            self.0.spin_until(until_ns, monotonic_ns());
        }
    }
}

/// Sleeps until the time. Returns whether `ready` or a signal ended the sleep early.
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
                Err(error) => panic!("cannot poll the sockets: {error}"),
            }
        }
    }
}
