//! Account of the bytes that an agent may send per day, which outlives the agent. Bytes are written to a file as sent
//! before the kernel may send them: after a kill, the account may contain bytes that were not sent, but none is missing.

use super::folder::now_s;
use super::private;
use netstage_core::fleet::DayBudget;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration as Span;
use netstage_host::egress::EgressGroup;
use netstage_host::log::{Level, Log};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const FILE: &str = "bytes-sent.json";
/// Grants per day. An agent that is killed loses at most one.
const GRANTS_PER_DAY: u64 = 16;
/// Minimum and maximum interval at which the kernel's allowance is checked. A day begins at most that late.
const CHECK_INTERVALS: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Rate at which an agent without `rate` may send: that of a fast port.
const PORT_RATE: BitRate = BitRate(100_000_000_000);
/// Time after which the kernel has counted a packet that it permitted before.
const COUNTED_AFTER: Duration = Duration::from_millis(50);
const SECONDS_PER_DAY: u64 = 86_400;

/// Content of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Account {
    /// Day since 1970 (UTC).
    day: u64,
    /// Bytes that were sent on this day, or that the kernel may send.
    bytes: u64,
}

/// Budget of bytes per day. Counters of sent bytes begin at the start of the agent.
#[derive(Debug)]
pub struct DailyBudget {
    path: PathBuf,
    per_day: u64,
    account: Account,
    /// Bytes of this day that were sent before the counter was at `start`.
    before: u64,
    start: u64,
}

impl DailyBudget {
    /// Opens the account in a folder.
    pub fn open(folder: &Path, per_day: u64) -> io::Result<DailyBudget> {
        let path = folder.join(FILE);
        let account: Account = match private::read_json(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Account::default(),
            read => read?,
        };
        Ok(DailyBudget { path, per_day, before: account.bytes, account, start: 0 })
    }

    /// Returns the value of the counter up to which the kernel may send, given its current value. Days begin only if
    /// the clock advances.
    pub fn renew(&mut self, sent: u64, today: u64) -> io::Result<u64> {
        if today > self.account.day {
            (self.account, self.before, self.start) = (Account { day: today, bytes: 0 }, 0, sent);
        }
        let (spent, grant) = (self.spent(sent), self.per_day.div_ceil(GRANTS_PER_DAY));
        if self.account.bytes.saturating_sub(spent) < grant.div_ceil(2) && self.account.bytes < self.per_day {
            self.write(self.per_day.min(spent.saturating_add(grant)))?;
        }
        Ok(self.start.saturating_add(self.account.bytes.min(self.per_day).saturating_sub(self.before)))
    }

    /// Returns what is left of the day, given the current value of the counter and the seconds since 1970.
    fn left(&self, sent: u64, now_s: u64) -> DayBudget {
        let spent = if now_s / SECONDS_PER_DAY > self.account.day { 0 } else { self.spent(sent) };
        let ends_in = Span::from_secs(SECONDS_PER_DAY - now_s % SECONDS_PER_DAY);
        DayBudget { left: self.per_day.saturating_sub(spent), ends_in }
    }

    /// Returns what the kernel may no longer send to the account.
    pub fn close(&mut self, sent: u64) -> io::Result<()> {
        self.write(self.spent(sent))
    }

    fn spent(&self, sent: u64) -> u64 {
        self.before.saturating_add(sent - self.start)
    }

    fn write(&mut self, bytes: u64) -> io::Result<()> {
        let account = Account { bytes, ..self.account };
        private::write_json(&self.path, &account)?;
        self.account = account;
        Ok(())
    }
}

/// Grants an agent's budget to the kernel step by step, until it is dropped.
pub struct BudgetKeeper {
    budget: Arc<Mutex<DailyBudget>>,
    egress: Arc<EgressGroup>,
    /// Dropped to end the thread.
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BudgetKeeper {
    /// Grants the first part, and starts the thread for the others. The kernel limits the agent to this rate.
    pub fn start(
        mut budget: DailyBudget,
        egress: Arc<EgressGroup>,
        rate: Option<BitRate>,
        log: Log,
    ) -> io::Result<BudgetKeeper> {
        let mut left = renew(&mut budget, &egress)?;
        let budget = Arc::new(Mutex::new(budget));
        let (kept, limited) = (Arc::clone(&budget), Arc::clone(&egress));
        let (end, ended) = mpsc::channel::<()>();
        let keep = move || {
            let mut is_logged = false;
            while ended.recv_timeout(check_after(left, rate)) == Err(mpsc::RecvTimeoutError::Timeout) {
                let renewed = renew(&mut lock(&kept), &limited);
                left = *renewed.as_ref().unwrap_or(&u64::MAX);
                if let Err(error) = &renewed
                    && !is_logged
                {
                    log(Level::Alarm, &format!("cannot account for more of `bytes_per_day`: {error}"));
                }
                is_logged = renewed.is_err();
            }
            let closed = limited.allow(0).and_then(|()| {
                thread::sleep(COUNTED_AFTER);
                limited.sent()
            });
            let closed = closed.map_err(io::Error::other);
            if let Err(error) = closed.and_then(|sent| lock(&kept).close(sent)) {
                log(Level::Alarm, &format!("cannot account for `bytes_per_day`: {error}"));
            }
        };
        let thread = thread::Builder::new().name("budget".into()).spawn(keep)?;
        Ok(BudgetKeeper { budget, egress, end: Some(end), thread: Some(thread) })
    }

    /// Returns what is left of the day, unless the kernel does not return what it counted.
    pub fn left(&self) -> Option<DayBudget> {
        let budget = lock(&self.budget);
        Some(budget.left(self.egress.sent().ok()?, now_s()))
    }
}

impl Drop for BudgetKeeper {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(budget: &Mutex<DailyBudget>) -> MutexGuard<'_, DailyBudget> {
    budget.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Grants what may be sent now. Returns the bytes that the kernel may still send.
fn renew(budget: &mut DailyBudget, egress: &EgressGroup) -> io::Result<u64> {
    let sent = egress.sent().map_err(io::Error::other)?;
    let allowed = budget.renew(sent, now_s() / SECONDS_PER_DAY)?;
    egress.allow(allowed).map_err(io::Error::other)?;
    Ok(allowed.saturating_sub(sent))
}

/// Returns the time until the next check of an allowance: at this rate, half of it can be sent by then. An idle agent, of
/// which a host may run hundreds, then rarely wakes up.
fn check_after(left: u64, rate: Option<BitRate>) -> Duration {
    let seconds = left as f64 * 8.0 / 2.0 / rate.unwrap_or(PORT_RATE).as_f64();
    // The whole budget is sent when nothing is left, and the next day need not be awaited by the millisecond.
    let idle = left == 0 || seconds > CHECK_INTERVALS.1.as_secs_f64();
    if idle { CHECK_INTERVALS.1 } else { Duration::from_secs_f64(seconds).max(CHECK_INTERVALS.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rng::RandomStream;
    use netstage_harness::TemporaryFolder;
    use std::collections::BTreeMap;

    /// Sends at random, with restarts and kills: no day has more than its budget, whatever the clock does, and only
    /// kills cost some of it.
    #[test]
    fn no_day_exceeds_its_budget_whatever_ends_the_agent() {
        let seed = netstage_harness::seed("budget");
        for case in 0..netstage_harness::needs::cases(20) {
            let folder = TemporaryFolder::new("budget");
            let mut random = RandomStream::new(seed, &format!("case {case}"));
            let size = random.below(40);
            let per_day = 1 + random.below(1 << size);
            // The clock steps back at times, which begins no day again.
            let (mut clock, mut day) = (20_000, 0);
            let (mut sent_on, mut kills) = (BTreeMap::<u64, u64>::new(), BTreeMap::<u64, u64>::new());
            for _ in 0..12 {
                let mut budget = DailyBudget::open(&folder, per_day).unwrap();
                let mut sent = 0;
                for _ in 0..random.below(40) {
                    let now = if random.chance(0.1) { clock - 1 } else { clock };
                    day = day.max(now);
                    let allowed = budget.renew(sent, now).unwrap();
                    let bytes = allowed.saturating_sub(sent);
                    let bytes = if random.chance(0.5) { bytes } else { random.below(bytes + 1) };
                    sent += bytes;
                    *sent_on.entry(day).or_default() += bytes;
                    clock += u64::from(random.chance(0.02));
                }
                if random.chance(0.5) {
                    budget.close(sent).unwrap();
                } else {
                    *kills.entry(day).or_default() += 1;
                }
            }
            for (day, sent) in &sent_on {
                assert!(*sent <= per_day, "{sent} of {per_day} bytes on day {day} of case {case}");
            }
            // All that is left of the last day can be sent.
            let mut budget = DailyBudget::open(&folder, per_day).unwrap();
            let mut sent = 0;
            while let more @ 1.. = budget.renew(sent, day).unwrap().saturating_sub(sent) {
                sent += more;
            }
            let total = sent + sent_on.get(&day).unwrap_or(&0);
            let lost = kills.get(&day).unwrap_or(&0) * per_day.div_ceil(GRANTS_PER_DAY);
            assert!(total <= per_day && total + lost >= per_day, "{total} of {per_day} bytes in case {case}");
        }
    }

    #[test]
    fn what_is_left_of_a_day_excludes_what_was_sent_before_a_restart() {
        let folder = TemporaryFolder::new("budget-left");
        let noon_s = 20_000 * SECONDS_PER_DAY + SECONDS_PER_DAY / 2;
        let mut budget = DailyBudget::open(&folder, 1000).unwrap();
        assert_eq!(budget.left(0, noon_s).left, 1000);
        budget.renew(0, 20_000).unwrap();
        assert_eq!(budget.left(60, noon_s), DayBudget { left: 940, ends_in: Span::from_secs(43_200) });
        budget.close(60).unwrap();
        let budget = DailyBudget::open(&folder, 1000).unwrap();
        assert_eq!(budget.left(30, noon_s).left, 910);
        assert_eq!(budget.left(30, noon_s + SECONDS_PER_DAY).left, 1000);
    }

    #[test]
    fn a_check_comes_before_the_allowance_can_be_used_up() {
        let rate = Some(BitRate(1_000_000_000));
        // 12.5 MB take 0.1 s.
        assert_eq!(check_after(12_500_000, rate), Duration::from_millis(50));
        assert_eq!(check_after(50_000_000, rate), Duration::from_millis(200));
        assert_eq!(check_after(5_000_000_000, None), Duration::from_millis(200));
        for idle in
            [check_after(0, rate), check_after(u64::MAX, None), check_after(u64::MAX, Some(BitRate(1)))]
        {
            assert_eq!(idle, CHECK_INTERVALS.1);
        }
        assert_eq!(check_after(1, None), CHECK_INTERVALS.0);
    }

    #[test]
    fn a_file_that_cannot_be_read_or_written_grants_nothing() {
        let folder = TemporaryFolder::new("budget-file");
        std::fs::write(folder.join(FILE), "{").unwrap();
        assert!(DailyBudget::open(&folder, 100).is_err());
        std::fs::remove_file(folder.join(FILE)).unwrap();
        let mut budget = DailyBudget::open(&folder, 100).unwrap();
        std::fs::create_dir(folder.join(FILE)).unwrap();
        assert!(budget.renew(0, 1).is_err());
    }
}
