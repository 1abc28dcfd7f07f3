//! Precise waiting: an absolute sleep that ends early, and a short spin. The sleep ends as early as wake-ups are
//! usually late, within the bounds of a [`SpinParameters`].

use netstage_host::clock::monotonic_ns;
use netstage_host::reserved_cpu::MAX_PERCENT;
use netstage_host::wait::{Spin, SpinParameters, spin_until};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use rustix::thread::set_current_timer_slack;
use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

/// Follows the 99th percentile of lateness: one late wake-up lengthens the spin by as much as a hundred timely
/// wake-ups shorten it. With many agents on a few cores, longer spins would delay the others by what they gain.
const SHARED_CPU: SpinParameters = SpinParameters {
    step_up_ns: 4_000,
    step_down_ns: 40,
    margin_ns: (10_000, 80_000),
    share_percent: 20,
    max_saved_ns: 1_000_000,
};
/// Counts all of the thread's running time, not only spinning.
const RESERVED_CPU: SpinParameters = SpinParameters { share_percent: MAX_PERCENT, ..SHARED_CPU };
/// Maximum sleep, after which a stop request is checked. A shorter one would load a machine with hundreds of idle
/// agents.
pub const MAX_SLEEP_NS: u64 = 200_000_000;

/// Clock of a [`Pacer`], and sleeping by it.
pub trait PacingTimer {
    /// Returns the time.
    fn now_ns(&mut self) -> u64;

    /// Sleeps from `now_ns` until the time. Returns whether `ready` or a signal ended the sleep early.
    fn sleep(&mut self, now_ns: u64, until_ns: u64, ready: Option<BorrowedFd<'_>>) -> bool;
}

/// Waits for scheduled times, and learns the lateness of wake-ups.
#[derive(Debug)]
pub struct Pacer<T = MonotonicTimer> {
    timer: T,
    spin: Spin,
    /// Time up to which the thread's waking time is counted, if all of it is limited, not only spinning.
    counted_ns: Option<u64>,
    spun_ns: u64,
}

impl Pacer {
    /// Creates a pacer for the calling thread, which spins for at most a fifth of the time. Sets the thread's timer
    /// slack to the minimum.
    pub fn for_this_thread() -> Pacer {
        Pacer::with(MonotonicTimer, false)
    }

    /// Creates a pacer like [`for_this_thread`](Pacer::for_this_thread), but for a thread with a CPU of its own, which
    /// runs for at most nine tenths of the time.
    pub fn for_reserved_cpu() -> Pacer {
        Pacer::with(MonotonicTimer, true)
    }
}

impl<T: PacingTimer> Pacer<T> {
    fn with(mut timer: T, has_cpu: bool) -> Pacer<T> {
        // On failure, the kernel may wake the thread 50 µs late, which the schedule shows.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let law = if has_cpu { RESERVED_CPU } else { SHARED_CPU };
        let now = timer.now_ns();
        let spin = Spin::new(law, law.margin_ns.1, law.max_saved_ns, now);
        Pacer { timer, spin, counted_ns: has_cpu.then_some(now), spun_ns: 0 }
    }

    /// Returns the total time spent spinning.
    pub fn spun_ns(&self) -> u64 {
        self.spun_ns
    }

    /// Waits until the time, until `ready` is readable, or at most [`MAX_SLEEP_NS`]. Spins before the time if
    /// `exact`.
    pub fn wait(&mut self, until_ns: u64, exact: bool, ready: Option<BorrowedFd<'_>>) {
        let now = self.timer.now_ns();
        self.spin.refill(now);
        if let Some(counted) = &mut self.counted_ns {
            self.spin.spend(now.saturating_sub(*counted));
            *counted = now;
        }
        let margin = self.spin.margin().filter(|_| exact);
        let wake = until_ns.saturating_sub(margin.unwrap_or(0));
        if wake > now {
            let reachable = wake.min(now + MAX_SLEEP_NS);
            let interrupted = self.timer.sleep(now, reachable, ready);
            let woken = self.timer.now_ns();
            if let Some(counted) = &mut self.counted_ns {
                *counted = woken;
            }
            if interrupted || reachable < wake {
                return;
            }
            self.spin.learn(woken.saturating_sub(wake));
        }
        if margin.is_some() {
            let from = self.timer.now_ns();
            let spun = spin_until(until_ns, from, || self.timer.now_ns());
            self.spun_ns += spun;
            if self.counted_ns.is_none() {
                self.spin.spend(spun);
            }
        }
    }
}

/// The monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicTimer;

impl PacingTimer for MonotonicTimer {
    fn now_ns(&mut self) -> u64 {
        monotonic_ns()
    }

    fn sleep(&mut self, now_ns: u64, until_ns: u64, ready: Option<BorrowedFd<'_>>) -> bool {
        match ready {
            None => {
                let until =
                    TimeSpec::new((until_ns / 1_000_000_000) as i64, (until_ns % 1_000_000_000) as i64);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rng::RandomStream;

    /// Time to read the clock.
    const READ_NS: u64 = 100;
    /// Time to send a packet.
    const SEND_NS: u64 = 8_000;

    /// Clock that advances when it is read, and sleeps that end late by a random time.
    struct VirtualTimer {
        now_ns: u64,
        slept_ns: u64,
        random: RandomStream,
        max_late_ns: u64,
    }

    impl PacingTimer for VirtualTimer {
        fn now_ns(&mut self) -> u64 {
            self.now_ns += READ_NS;
            self.now_ns
        }

        fn sleep(&mut self, now_ns: u64, until_ns: u64, _: Option<BorrowedFd<'_>>) -> bool {
            let end = until_ns + 1 + self.random.below(self.max_late_ns);
            self.slept_ns += end.saturating_sub(now_ns);
            self.now_ns = self.now_ns.max(end);
            false
        }
    }

    /// Share of gaps within 5 % of the requested one, and the share of time awake, of a sender over a second.
    fn pace(seed: u64, has_cpu: bool, gap_ns: u64, max_late_ns: u64) -> (f64, f64) {
        let random = RandomStream::new(seed, "late");
        let mut pacer = Pacer::with(VirtualTimer { now_ns: 0, slept_ns: 0, random, max_late_ns }, has_cpu);
        let (mut previous, mut accurate) = (0, 0);
        let packets = 1_000_000_000 / gap_ns;
        for number in 1..=packets {
            let due = number * gap_ns;
            pacer.wait(due, true, None);
            let sent = pacer.timer.now_ns();
            assert!(sent >= due, "seed {seed}: packet {number} left early");
            accurate += u64::from((sent - previous).abs_diff(gap_ns) <= gap_ns / 20);
            previous = sent;
            pacer.timer.now_ns += SEND_NS;
        }
        let time = pacer.timer.now_ns;
        let awake = (time - pacer.timer.slept_ns) as f64 / time as f64;
        assert!(pacer.spun_ns() <= time - pacer.timer.slept_ns);
        (accurate as f64 / packets as f64, awake)
    }

    #[test]
    fn a_reserved_cpu_keeps_the_gaps_of_fast_flows() {
        for seed in 1..=5 {
            println!("seed {seed}");
            let (shared, _) = pace(seed, false, 100_000, 60_000);
            let (reserved, _) = pace(seed, true, 100_000, 60_000);
            assert!(shared < 0.8, "a fifth of the time is too little for gaps of 100 µs: {shared}");
            assert!(reserved >= 0.95, "{reserved}");
            for has_cpu in [false, true] {
                let (slow, _) = pace(seed, has_cpu, 800_000, 60_000);
                assert!(slow >= 0.99, "{slow}");
            }
        }
    }

    #[test]
    fn a_reserved_cpu_is_idle_for_a_tenth_of_the_time() {
        let mut random = RandomStream::new(1, "cases");
        for seed in 1..=20 {
            let (gap, late) = (20_000 + random.below(200_000), 1 + random.below(100_000));
            println!("seed {seed}: gap {gap} ns, lateness up to {late} ns");
            let (_, awake) = pace(seed, true, gap, late);
            assert!(awake <= 0.902, "awake for {awake} of the time");
        }
    }
}
