//! Sleeping until something is due or a frame comes, precisely or sparingly.
//!
//! Whoever waits takes only so many turns a second: at high rates what comes and what becomes
//! due within one of them is handled together.
//!
//! A precise waiter, the emulator's, has turns of some tens of microseconds. A sleep ends that
//! much after it should, so the thread asks to be woken earlier, as learned, and spins for the
//! rest, but only while spinning has taken no more than a share of the time. The processor time
//! saved is what keeps a real-time thread clear of the kernel's limit (sched_rt_runtime_us),
//! which would stop it for 50 ms. A sparing one, a router's, never spins.

use crate::clock::monotonic_ns;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Longest sleep, so that a request to stop is seen.
const LONGEST_NS: u64 = 20_000_000;
/// Longest sleep while some port has to be polled.
const POLL_NS: u64 = 50_000;
/// Time in which a precise one earns a turn, and the turns it may have saved up.
const TURN_NS: u64 = 40_000;
const TURNS_SAVED: u64 = 32;
/// A precise one's: the margin settles where one sleep in twenty overruns.
const PRECISE: SpinLaw = SpinLaw {
    step_up_ns: 2_000,
    step_down_ns: 100,
    margin_ns: (2_000, 80_000),
    share: 5,
    most_saved_ns: 2_000_000,
};

/// How one who waits learns its margin, and how much it may spin.
#[derive(Clone, Copy, Debug)]
pub struct SpinLaw {
    /// The margin moves up by this when a sleep overran it,
    pub step_up_ns: u64,
    /// and down by this when not.
    pub step_down_ns: u64,
    /// Where the margin stays.
    pub margin_ns: (u64, u64),
    /// One nanosecond in this many may be spent spinning,
    pub share: u64,
    /// of which so much may be saved up.
    pub most_saved_ns: u64,
}

/// How late sleeps end, as learned, and what may be spun for the rest.
#[derive(Debug)]
pub struct Spin {
    law: SpinLaw,
    margin_ns: u64,
    saved_ns: u64,
    refilled_ns: u64,
}

impl Spin {
    /// Begins with this margin and these savings.
    pub fn new(law: SpinLaw, margin_ns: u64, saved_ns: u64) -> Spin {
        Spin { law, margin_ns, saved_ns, refilled_ns: monotonic_ns() }
    }

    /// Adds what was earned until now.
    pub fn refill(&mut self, now_ns: u64) {
        let earned = now_ns.saturating_sub(self.refilled_ns) / self.law.share;
        self.saved_ns = (self.saved_ns + earned).min(self.law.most_saved_ns);
        self.refilled_ns = now_ns;
    }

    /// How much before its moment a sleep is to end, where the savings allow to spin that long.
    pub fn margin(&self) -> Option<u64> {
        (self.saved_ns >= self.margin_ns).then_some(self.margin_ns)
    }

    /// A sleep ended so late: the margin settles where one in `step_up_ns / step_down_ns` overruns it.
    pub fn learn(&mut self, late_ns: u64) {
        let (least, most) = self.law.margin_ns;
        self.margin_ns = if late_ns > self.margin_ns {
            (self.margin_ns + self.law.step_up_ns).min(most)
        } else {
            (self.margin_ns - self.law.step_down_ns).max(least)
        };
    }

    /// Spins until the moment, at the cost of the savings; `from_ns` is now.
    pub fn until(&mut self, moment_ns: u64, from_ns: u64) {
        let mut now = from_ns;
        while now < moment_ns {
            std::hint::spin_loop();
            now = monotonic_ns();
        }
        self.saved_ns = self.saved_ns.saturating_sub(now - from_ns);
    }
}

/// Waits for ports and moments.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
    /// Ports without a file descriptor.
    polled: Vec<usize>,
    /// None: it never spins.
    spin: Option<Spin>,
    /// Time in which it earns a turn, and the turns it may have saved up.
    turn_ns: u64,
    turns_saved: u64,
    /// When its next turn is earned.
    next_turn_ns: u64,
}

impl Waiter {
    /// As precise as a thread can be.
    pub fn precise() -> io::Result<Waiter> {
        Waiter::new(Some(Spin::new(PRECISE, PRECISE.margin_ns.0, 0)), TURN_NS, TURNS_SAVED)
    }

    /// One that takes a turn in so many nanoseconds at most, and is late by up to as many.
    pub fn sparing(turn_ns: u64) -> io::Result<Waiter> {
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

    /// Port `index` is readable when this is; one without has to be polled.
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

    /// Port `index` has failed.
    pub fn remove(&mut self, index: usize, fd: Option<BorrowedFd<'_>>) {
        if let Some(fd) = fd {
            // A descriptor that has vanished with its interface is not there to remove.
            let _ = epoll::delete(self.epoll.as_fd(), fd);
        }
        self.polled.retain(|port| *port != index);
    }

    /// Waits until `due` of the monotonic clock or until frames may be there, and puts the
    /// ports that may have some into `ready`.
    pub fn wait(&mut self, due: u64, ready: &mut Vec<usize>) -> io::Result<()> {
        let mut now = monotonic_ns();
        if now < self.next_turn_ns {
            // An interruption only makes the turn an early one.
            let _ = clock_nanosleep_absolute(ClockId::Monotonic, &timespec(self.next_turn_ns));
            now = monotonic_ns();
        }
        let saved = self.turns_saved * self.turn_ns;
        self.next_turn_ns = self.next_turn_ns.max(now.saturating_sub(saved)) + self.turn_ns;
        let longest = if self.polled.is_empty() { LONGEST_NS } else { POLL_NS };
        let target = due.min(now.saturating_add(longest));
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
                spin.until(target, woken);
            }
        }
        Ok(())
    }

    /// Sleeps this long, or until ports are readable, which are added to `ready`.
    fn sleep(&self, nanoseconds: u64, ready: &mut Vec<usize>) -> io::Result<()> {
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; 64];
        let count = match epoll::wait(&self.epoll, &mut events[..], Some(&timespec(nanoseconds))) {
            Err(Errno::INTR) => 0,
            result => result?,
        };
        ready.extend(events[..count].iter().map(|event| event.data.u64() as usize));
        Ok(())
    }
}

/// A moment of the monotonic clock as the system takes it.
pub fn timespec(nanoseconds: u64) -> Timespec {
    Timespec { tv_sec: (nanoseconds / 1_000_000_000) as i64, tv_nsec: (nanoseconds % 1_000_000_000) as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_wakes_early() {
        for mut waiter in [Waiter::precise().unwrap(), Waiter::sparing(250_000).unwrap()] {
            let mut ready = Vec::new();
            for microseconds in [0, 10, 100, 1000, 3000] {
                let due = monotonic_ns() + microseconds * 1000;
                waiter.wait(due, &mut ready).unwrap();
                assert!(monotonic_ns() >= due && ready.is_empty());
            }
        }
    }

    #[test]
    fn turns_are_rationed() {
        for (mut waiter, turn_ns, saved) in [
            (Waiter::precise().unwrap(), TURN_NS, TURNS_SAVED),
            (Waiter::sparing(250_000).unwrap(), 250_000, 0),
        ] {
            let start = monotonic_ns();
            for _ in 0..saved + 200 {
                waiter.wait(0, &mut Vec::new()).unwrap();
            }
            assert!(monotonic_ns() - start >= 199 * turn_ns);
        }
    }
}
