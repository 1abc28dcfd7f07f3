//! CPUs reserved for threads that spin: one thread per CPU, and never all CPUs. Only threads that use this module
//! respect a reservation; the kernel may run others there.

use crate::lock::Lock;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::PathBuf;
use std::{fmt, io};

/// Maximum share of the time for which a thread may run on its reserved CPU. The kernel stops a real-time thread for
/// 50 ms if it runs for 95 % of a second (sched_rt_runtime_us).
pub const MAX_PERCENT: u64 = 90;

/// CPU reserved on this host while this value exists, or until its process ends.
#[derive(Debug)]
pub struct ReservedCpu {
    number: usize,
    _lock: Lock,
}

/// Error of reserving a CPU.
#[derive(Debug)]
pub enum ReservationError {
    /// The process may use one CPU only, which other threads need.
    OneCpu,
    /// All CPUs that can be reserved are reserved.
    AllReserved(usize),
    /// A system call failed.
    System(io::Error),
}

impl fmt::Display for ReservationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReservationError::OneCpu => f.write_str("only one CPU is available"),
            ReservationError::AllReserved(cpus) => {
                write!(f, "{cpus} of {} CPUs are already reserved, and one must remain free", cpus + 1)
            }
            ReservationError::System(error) => write!(f, "cannot reserve a CPU: {error}"),
        }
    }
}

impl ReservedCpu {
    /// Reserves one of the CPUs that this process may use.
    pub fn reserve() -> Result<ReservedCpu, ReservationError> {
        let allowed = sched_getaffinity(None).map_err(|error| ReservationError::System(error.into()))?;
        let allowed: Vec<_> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
        // Locking the folder of a CPU creates no file and needs no privilege.
        let lock = |cpu| Lock::take(&PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}")));
        let (number, lock) = last_unlocked(&allowed, lock)?;
        Ok(ReservedCpu { number, _lock: lock })
    }

    /// Moves the calling thread to the CPU.
    pub fn enter(&self) -> io::Result<()> {
        let mut cpus = CpuSet::new();
        cpus.set(self.number);
        Ok(sched_setaffinity(None, &cpus)?)
    }
}

/// Locks the last CPU that can be locked, but never the first, which interrupts use most.
fn last_unlocked<T>(
    allowed: &[usize],
    mut lock: impl FnMut(usize) -> io::Result<T>,
) -> Result<(usize, T), ReservationError> {
    let [_, candidates @ ..] = allowed else { return Err(ReservationError::OneCpu) };
    for cpu in candidates.iter().rev() {
        match lock(*cpu) {
            Ok(lock) => return Ok((*cpu, lock)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(ReservationError::System(error)),
        }
    }
    Err(if candidates.is_empty() {
        ReservationError::OneCpu
    } else {
        ReservationError::AllReserved(candidates.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_cpu_is_reserved_once_and_the_first_never() {
        let mut taken = BTreeSet::new();
        let mut reserve = |allowed: &[usize]| {
            last_unlocked(allowed, |cpu| {
                taken.insert(cpu).then_some(()).ok_or(io::ErrorKind::WouldBlock.into())
            })
        };
        assert_eq!(reserve(&[2, 5, 7]).unwrap().0, 7);
        assert_eq!(reserve(&[2, 5, 7]).unwrap().0, 5);
        assert!(matches!(reserve(&[2, 5, 7]), Err(ReservationError::AllReserved(2))));
        assert!(matches!(reserve(&[3]), Err(ReservationError::OneCpu)));
        assert!(matches!(reserve(&[]), Err(ReservationError::OneCpu)));
    }

    #[test]
    fn a_thread_stays_on_its_cpu_which_no_other_can_reserve() {
        let first = match ReservedCpu::reserve() {
            Ok(first) => first,
            // Other programs may hold all reservations of this host.
            Err(error) => return assert!(!matches!(error, ReservationError::System(_)), "{error}"),
        };
        let number = first.number;
        let moved = std::thread::spawn(move || {
            first.enter().unwrap();
            let own = sched_getaffinity(None).unwrap();
            assert!(own.count() == 1 && own.is_set(first.number));
            ReservedCpu::reserve().map_or(true, |second| second.number != first.number)
        });
        assert!(moved.join().unwrap(), "CPU {number} was reserved twice");
    }
}
