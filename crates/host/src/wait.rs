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
/// One nanosecond in this many may be spent spinning.
const SPIN_SHARE: u64 = 5;
/// Most that may be saved up for spinning.
const MOST_SAVED_NS: u64 = 2_000_000;
/// Time in which a precise one earns a turn, and the turns it may have saved up.
const TURN_NS: u64 = 40_000;
const TURNS_SAVED: u64 = 32;
/// The margin moves up by this when a sleep overran it, and down by a twentieth when not:
/// it settles where one sleep in twenty overruns.
const MARGIN_STEP_NS: u64 = 2_000;
const MOST_MARGIN_NS: u64 = 80_000;

/// Waits for ports and moments.
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
    /// Ports without a file descriptor.
    polled: Vec<usize>,
    /// How late sleeps end, as learned.
    margin_ns: u64,
    /// What may still be spent spinning.
    saved_ns: u64,
    refilled_ns: u64,
    /// One nanosecond in this many is earned for spinning; none: it never spins.
    spin_share: Option<u64>,
    /// Time in which it earns a turn, and the turns it may have saved up.
    turn_ns: u64,
    turns_saved: u64,
    /// When its next turn is earned.
    next_turn_ns: u64,
}

impl Waiter {
    /// As precise as a thread can be.
    pub fn precise() -> io::Result<Waiter> {
        Waiter::new(Some(SPIN_SHARE), TURN_NS, TURNS_SAVED)
    }

    /// One that takes a turn in so many nanoseconds at most, and is late by up to as many.
    pub fn sparing(turn_ns: u64) -> io::Result<Waiter> {
        Waiter::new(None, turn_ns, 0)
    }

    fn new(spin_share: Option<u64>, turn_ns: u64, turns_saved: u64) -> io::Result<Waiter> {
        Ok(Waiter {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            polled: Vec::new(),
            margin_ns: MARGIN_STEP_NS,
            saved_ns: 0,
            refilled_ns: monotonic_ns(),
            spin_share,
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
        self.refill(now);
        let longest = if self.polled.is_empty() { LONGEST_NS } else { POLL_NS };
        let target = due.min(now.saturating_add(longest));
        let spins = self.spin_share.is_some() && target == due && self.saved_ns >= self.margin_ns;
        let wake = if spins { target.saturating_sub(self.margin_ns) } else { target };
        ready.clear();
        self.sleep(wake.saturating_sub(now), ready)?;
        let interrupted = !ready.is_empty();
        ready.extend(&self.polled);
        if interrupted || self.spin_share.is_none() {
            return Ok(());
        }
        let mut woken = monotonic_ns();
        if wake > now {
            self.learn(woken.saturating_sub(wake));
        }
        if spins && woken < target {
            let before = woken;
            while woken < target {
                std::hint::spin_loop();
                woken = monotonic_ns();
            }
            self.saved_ns = self.saved_ns.saturating_sub(woken - before);
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

    fn refill(&mut self, now: u64) {
        let Some(share) = self.spin_share else { return };
        let earned = now.saturating_sub(self.refilled_ns) / share;
        self.saved_ns = (self.saved_ns + earned).min(MOST_SAVED_NS);
        self.refilled_ns = now;
    }

    fn learn(&mut self, overrun_ns: u64) {
        self.margin_ns = if overrun_ns > self.margin_ns {
            (self.margin_ns + MARGIN_STEP_NS).min(MOST_MARGIN_NS)
        } else {
            (self.margin_ns - MARGIN_STEP_NS / 20).max(MARGIN_STEP_NS)
        };
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
