//! Waiting for a deadline or a frame, precisely or with little processor time.
//!
//! A waiter takes a limited number of turns per second: at high rates, all frames and deadlines within a turn
//! are handled together.
//!
//! The precise waiter, used by the emulator, has turns of some tens of microseconds. A sleep ends that much
//! late, so the thread requests an earlier wake-up by a learned margin and spins for the rest, as long as
//! spinning takes no more than a share of the time. The saved processor time keeps a real-time thread below the
//! kernel's limit (sched_rt_runtime_us), which would stop it for 50 ms. The economical waiter, used by a
//! router, never spins.

use crate::clock::monotonic_ns;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum sleep, so that a stop request is noticed.
const MAX_SLEEP_NS: u64 = 20_000_000;
/// Maximum sleep while a port has to be polled.
const POLL_NS: u64 = 50_000;
/// Interval of turns of a precise waiter, and the maximum of turns it saves up.
const TURN_NS: u64 = 40_000;
const TURNS_SAVED: u64 = 32;
/// Parameters of a precise waiter: the margin settles where one sleep in twenty overruns.
const PRECISE: SpinParameters = SpinParameters {
    step_up_ns: 2_000,
    step_down_ns: 100,
    margin_ns: (2_000, 80_000),
    share_percent: 20,
    max_saved_ns: 2_000_000,
};

/// Parameters for learning the margin and for limiting the spinning.
#[derive(Clone, Copy, Debug)]
pub struct SpinParameters {
    /// Increase of the margin when a sleep overran it.
    pub step_up_ns: u64,
    /// Decrease of the margin when a sleep did not overrun it.
    pub step_down_ns: u64,
    /// Minimum and maximum of the margin.
    pub margin_ns: (u64, u64),
    /// Maximum share of the time that is spent spinning.
    pub share_percent: u64,
    /// Maximum spinning time that is saved up.
    pub max_saved_ns: u64,
}

/// Learned lateness of sleeps, and the remaining spinning time.
#[derive(Debug)]
pub struct Spin {
    law: SpinParameters,
    margin_ns: u64,
    /// Negative after more was spent than saved.
    saved_ns: i64,
    refilled_ns: u64,
}

impl Spin {
    /// Starts at `now_ns` with this margin and saved spinning time.
    pub fn new(law: SpinParameters, margin_ns: u64, saved_ns: u64, now_ns: u64) -> Spin {
        Spin { law, margin_ns, saved_ns: saved_ns as i64, refilled_ns: now_ns }
    }

    /// Adds the spinning time earned until now.
    pub fn refill(&mut self, now_ns: u64) {
        let earned = now_ns.saturating_sub(self.refilled_ns) * self.law.share_percent / 100;
        self.saved_ns = (self.saved_ns + earned as i64).min(self.law.max_saved_ns as i64);
        self.refilled_ns = now_ns;
    }

    /// Returns how much earlier a sleep should end, if the saved time permits spinning that long.
    pub fn margin(&self) -> Option<u64> {
        (self.saved_ns >= self.margin_ns as i64).then_some(self.margin_ns)
    }

    /// Learns from the lateness of a sleep: the margin settles where one sleep in `step_up_ns / step_down_ns`
    /// overruns it.
    pub fn learn(&mut self, late_ns: u64) {
        let (min_ns, max_ns) = self.law.margin_ns;
        self.margin_ns = if late_ns > self.margin_ns {
            (self.margin_ns + self.law.step_up_ns).min(max_ns)
        } else {
            (self.margin_ns - self.law.step_down_ns).max(min_ns)
        };
    }

    /// Uses up saved time. What exceeds it is repaid first, up to the maximum that can be saved.
    pub fn spend(&mut self, spent_ns: u64) {
        self.saved_ns = (self.saved_ns - spent_ns as i64).max(-(self.law.max_saved_ns as i64));
    }
}

/// Spins until the given time; `from_ns` is now. Returns the time spent.
pub fn spin_until(moment_ns: u64, from_ns: u64, mut clock: impl FnMut() -> u64) -> u64 {
    let mut now = from_ns;
    while now < moment_ns {
        std::hint::spin_loop();
        now = clock();
    }
    now - from_ns
}

/// Waits for ports and deadlines.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
    /// Ports without a file descriptor.
    polled: Vec<usize>,
    /// `None`: never spins.
    spin: Option<Spin>,
    /// Interval of turns, and the maximum of turns that are saved up.
    turn_ns: u64,
    turns_saved: u64,
    /// Time at which the next turn is earned.
    next_turn_ns: u64,
}

impl Waiter {
    /// Creates a waiter that is as precise as a thread can be.
    pub fn precise() -> io::Result<Waiter> {
        Waiter::new(Some(Spin::new(PRECISE, PRECISE.margin_ns.0, 0, monotonic_ns())), TURN_NS, TURNS_SAVED)
    }

    /// Creates a waiter that takes at most one turn per interval, and is late by up to that interval.
    pub fn economical(turn_ns: u64) -> io::Result<Waiter> {
        Waiter::new(None, turn_ns, 0)
    }

    fn new(spin: Option<Spin>, turn_ns: u64, turns_saved: u64) -> io::Result<Waiter> {
        Ok(Waiter {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            polled: Vec::new(),
            spin,
            turn_ns,
            turns_saved,
            next_turn_ns: 0,
        })
    }

    /// Adds port `index`, which is readable when `fd` is; without a descriptor it is polled.
    pub fn add(&mut self, index: usize, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(index as u64);
        match fd {
            Some(fd) => Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?),
            None => {
                self.polled.push(index);
                Ok(())
            }
        }
    }

    /// Removes port `index`, which has failed.
    pub fn remove(&mut self, index: usize, fd: Option<BorrowedFd<'_>>) {
        if let Some(fd) = fd {
            // A descriptor that has vanished with its interface cannot be removed.
            let _ = epoll::delete(self.epoll.as_fd(), fd);
        }
        self.polled.retain(|port| *port != index);
    }

    /// Waits until `due` in monotonic time or until frames may have arrived, and puts the ports that may have
    /// some into `ready`.
    pub fn wait(&mut self, due: u64, ready: &mut Vec<usize>) -> io::Result<()> {
        let mut now = monotonic_ns();
        if now < self.next_turn_ns {
            // An interruption only makes the turn early.
            let _ = clock_nanosleep_absolute(ClockId::Monotonic, &timespec(self.next_turn_ns));
            now = monotonic_ns();
        }
        let saved = self.turns_saved * self.turn_ns;
        self.next_turn_ns = self.next_turn_ns.max(now.saturating_sub(saved)) + self.turn_ns;
        let max_sleep = if self.polled.is_empty() { MAX_SLEEP_NS } else { POLL_NS };
        let target = due.min(now.saturating_add(max_sleep));
        let margin = self.spin.as_mut().and_then(|spin| {
            spin.refill(now);
            spin.margin().filter(|_| target == due)
        });
        let wake = target.saturating_sub(margin.unwrap_or(0));
        ready.clear();
        self.sleep(wake.saturating_sub(now), ready)?;
        let interrupted = !ready.is_empty();
        ready.extend(&self.polled);
        if let Some(spin) = &mut self.spin
            && !interrupted
        {
            let woken = monotonic_ns();
            if wake > now {
                spin.learn(woken.saturating_sub(wake));
            }
            if margin.is_some() {
                spin.spend(spin_until(target, woken, monotonic_ns));
            }
        }
        Ok(())
    }

    /// Sleeps this long, or until ports are readable, which are added to `ready`.
    fn sleep(&self, nanoseconds: u64, ready: &mut Vec<usize>) -> io::Result<()> {
        let empty = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; 64];
        let count = match epoll::wait(&self.epoll, &mut events[..], Some(&timespec(nanoseconds))) {
            Err(Errno::INTR) => 0,
            result => result?,
        };
        ready.extend(events[..count].iter().map(|event| event.data.u64() as usize));
        Ok(())
    }
}

/// Converts monotonic nanoseconds to the type of the system.
pub fn timespec(nanoseconds: u64) -> Timespec {
    Timespec { tv_sec: (nanoseconds / 1_000_000_000) as i64, tv_nsec: (nanoseconds % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_never_wakes_early() {
        for mut waiter in [Waiter::precise().unwrap(), Waiter::economical(250_000).unwrap()] {
            let mut ready = Vec::new();
            for microseconds in [0, 10, 100, 1000, 3000] {
                let due = monotonic_ns() + microseconds * 1000;
                waiter.wait(due, &mut ready).unwrap();
                assert!(monotonic_ns() >= due && ready.is_empty());
            }
        }
    }

    #[test]
    fn the_rate_of_turns_is_limited() {
        for (mut waiter, turn_ns, saved) in [
            (Waiter::precise().unwrap(), TURN_NS, TURNS_SAVED),
            (Waiter::economical(250_000).unwrap(), 250_000, 0),
        ] {
            let start = monotonic_ns();
            for _ in 0..saved + 200 {
                waiter.wait(0, &mut Vec::new()).unwrap();
            }
            assert!(monotonic_ns() - start >= 199 * turn_ns);
        }
    }
}
