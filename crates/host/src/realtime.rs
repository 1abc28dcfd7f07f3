//! What the kernel grants a thread that has to be on time, and what it has to do without.

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

/// Who goes first among real-time threads. All go before ordinary threads and after the
/// kernel's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Sends and receives: disturbs itself when it runs too long.
    Traffic,
    /// Carries everybody's packets.
    Links,
}

impl Rank {
    fn priority(self) -> ThreadPriority {
        let value = match self {
            Rank::Traffic => 1_u8,
            Rank::Links => 2,
        };
        ThreadPriority::Crossplatform(value.try_into().expect("priorities go up to 99"))
    }
}

/// What the kernel has granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants {
    /// Runs before every ordinary thread (SCHED_FIFO).
    pub fifo: bool,
    /// Its memory is not paged out.
    pub memory_locked: bool,
    /// Sleeps end when they should, not up to 50 µs later.
    pub timer_slack: bool,
}

impl Grants {
    /// Asks for everything on behalf of the calling thread. What is refused is done without.
    pub fn request(rank: Rank) -> Grants {
        // Pages are locked as they are touched: locking all at once would fill every stack
        // of the process to its limit.
        let lock = MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT;
        Grants {
            fifo: set_thread_priority_and_policy(thread_native_id(), rank.priority(), Realtime(Fifo)).is_ok(),
            memory_locked: mlockall(lock).is_ok(),
            timer_slack: set_current_timer_slack(NonZeroU64::new(1)).is_ok(),
        }
    }

    /// What to do for more, in words, if anything is missing that moves results.
    pub fn advice(self) -> Option<String> {
        let fifo = "real-time scheduling was refused: packets may be late when the machine is busy. \
                    Run as root, or grant CAP_SYS_NICE or an rtprio limit (ulimit -r).";
        (!self.fifo).then(|| fifo.into())
    }
}

/// Makes the calling thread an ordinary one again, once nothing waits for it any more: what it then sums up would
/// hold back others that still have to be on time.
pub fn step_back() {
    let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, Normal(Other));
}

/// How far threads that keep others alive go before ordinary ones (nice).
const AHEAD: i32 = -10;

/// Lets the calling thread go before ordinary ones, where the system lets it: signs of life that are late
/// stop traffic elsewhere, and what keeps this machine busy may be the very agents that wait for them.
pub fn go_ahead() -> bool {
    setpriority_process(None, AHEAD).is_ok()
}

/// Keeps idle processors from halting, as long as it lives (the kernel's PM QoS interface).
///
/// A processor that has halted takes its time to come back: microseconds on a machine of its
/// own, and on a virtual one until the host has time for it. docs/live.md has figures.
#[derive(Debug)]
pub struct Awake(#[expect(dead_code, reason = "the request ends when the file is closed")] File);

impl Awake {
    /// Asks for it; `None` where only root may.
    pub fn request() -> Option<Awake> {
        const NO_LATENCY_US: i32 = 0;
        let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency").ok()?;
        file.write_all(&NO_LATENCY_US.to_ne_bytes()).ok()?;
        Some(Awake(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thread_priority::{ThreadSchedulePolicy, unix::thread_schedule_policy};

    #[test]
    fn a_thread_goes_ahead_alone() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        let (granted, ahead) = std::thread::spawn(move || (go_ahead(), niceness())).join().unwrap();
        assert_eq!(ahead, if granted { AHEAD } else { before });
        assert_eq!(niceness(), before, "others are as they were");
    }

    #[test]
    fn what_is_granted_is_in_force() {
        // In a thread of its own: other tests keep the ordinary scheduler.
        let policy = || thread_schedule_policy().unwrap();
        let thread = std::thread::spawn(move || {
            let (grants, granted) = (Grants::request(Rank::Links), policy());
            step_back();
            (grants, granted, policy())
        });
        let (grants, granted, after) = thread.join().unwrap();
        assert_eq!(grants.fifo, granted == ThreadSchedulePolicy::Realtime(Fifo));
        assert_eq!(after, policy(), "it is as others are");
        assert_eq!(grants.fifo, grants.advice().is_none());
        assert!(grants.timer_slack, "any thread may set its own timer slack");
    }
}
