//! Real-time properties of threads, as far as the kernel grants them.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::setpriority_process;
use rustix::thread::set_current_timer_slack;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::num::NonZeroU64;
use thread_priority::{
    NormalThreadSchedulePolicy::Other,
    RealtimeThreadSchedulePolicy::Fifo,
    ThreadPriority,
    ThreadSchedulePolicy::{Normal, Realtime},
    set_thread_priority_and_policy, thread_native_id,
};

/// Priority among real-time threads. All run before ordinary threads and after the kernel's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Sends and receives traffic; delays only itself when it runs too long.
    Traffic,
    /// Carries the packets of all links.
    Links,
}

impl Rank {
    fn priority(self) -> ThreadPriority {
        let value = match self {
            Rank::Traffic => 1_u8,
            Rank::Links => 2,
        };
        ThreadPriority::Crossplatform(value.try_into().expect("the priority is below 100"))
    }
}

/// Properties granted by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants {
    /// Priority over every ordinary thread (SCHED_FIFO).
    pub fifo: bool,
    /// Memory is not paged out.
    pub memory_locked: bool,
    /// Sleeps end on time instead of up to 50 µs late.
    pub timer_slack: bool,
}

impl Grants {
    /// Requests all properties for the calling thread. A refused one is reported as false.
    pub fn request(rank: Rank) -> Grants {
        // Pages are locked as they are touched: locking all at once would fill every stack of the process to
        // its limit.
        let lock = MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT;
        Grants {
            fifo: enter_realtime(rank),
            memory_locked: mlockall(lock).is_ok(),
            timer_slack: set_current_timer_slack(NonZeroU64::new(1)).is_ok(),
        }
    }

    /// Returns advice if a property that affects results is missing.
    pub fn advice(self) -> Option<String> {
        let fifo = "real-time scheduling was refused: packets may be late when the machine is busy; \
                    run as root, or grant CAP_SYS_NICE or an rtprio limit (ulimit -r)";
        (!self.fifo).then(|| fifo.into())
    }
}

/// Gives the calling thread priority over every ordinary thread, if permitted.
pub fn enter_realtime(rank: Rank) -> bool {
    set_thread_priority_and_policy(thread_native_id(), rank.priority(), Realtime(Fifo)).is_ok()
}

/// Returns the calling thread to ordinary scheduling once it has no deadlines, so that its final summary does
/// not delay real-time threads.
pub fn leave_realtime() {
    let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, Normal(Other));
}

/// Niceness of threads that send keepalives.
const KEEPALIVE_NICENESS: i32 = -10;

/// Gives the calling thread priority over ordinary ones, if permitted. Late keepalives stop traffic elsewhere,
/// and the machine may be busy because of the very agents that wait for them.
pub fn raise_priority() -> bool {
    setpriority_process(None, KEEPALIVE_NICENESS).is_ok()
}

/// Keeps idle processors from halting as long as it exists (the kernel's PM QoS interface).
///
/// A halted processor takes microseconds to resume; in a virtual machine, it waits until the host schedules it.
/// docs/live.md has figures.
#[derive(Debug)]
pub struct IdleStatePrevention(
    #[expect(dead_code, reason = "the request ends when the file is closed")] File,
);

impl IdleStatePrevention {
    /// Requests it; returns `None` without the permission, which only root has.
    pub fn request() -> Option<IdleStatePrevention> {
        const NO_LATENCY_US: i32 = 0;
        let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency").ok()?;
        file.write_all(&NO_LATENCY_US.to_ne_bytes()).ok()?;
        Some(IdleStatePrevention(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thread_priority::{ThreadSchedulePolicy, unix::thread_schedule_policy};

    #[test]
    fn a_raised_priority_applies_to_one_thread() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        let (granted, raised) = std::thread::spawn(move || (raise_priority(), niceness())).join().unwrap();
        assert_eq!(raised, if granted { KEEPALIVE_NICENESS } else { before });
        assert_eq!(niceness(), before, "other threads are unchanged");
    }

    #[test]
    fn granted_properties_are_in_effect() {
        // In a separate thread: other tests keep the ordinary scheduler.
        let policy = || thread_schedule_policy().unwrap();
        let thread = std::thread::spawn(move || {
            let (grants, granted) = (Grants::request(Rank::Links), policy());
            leave_realtime();
            (grants, granted, policy())
        });
        let (grants, granted, after) = thread.join().unwrap();
        assert_eq!(grants.fifo, granted == ThreadSchedulePolicy::Realtime(Fifo));
        assert_eq!(after, policy(), "the thread is ordinary again");
        assert_eq!(grants.fifo, grants.advice().is_none());
        assert!(grants.timer_slack, "any thread may set its own timer slack");
    }
}
