//! Test binaries that report skipped tests and the reason.
//!
//! A test starts with its requirements ([`needs`]); [`skip`] is for conditions found later. A test with unmet
//! requirements is reported as ignored, with the reason; a panic is a failure. Options, filters and output are
//! those of Rust's test harness, provided by `libtest-mimic`.
//!
//! ```
//! mod links {
//!     fn a_link_comes_up() {
//!         netstage_harness::needs::namespaces();
//!         // …
//!     }
//!
//!     fn a_thousand_links_come_up() {
//!         netstage_harness::needs::namespaces();
//!         // …
//!     }
//!
//!     netstage_harness::tests![a_link_comes_up, #[ignore = "takes ten minutes"] a_thousand_links_come_up];
//! }
//!
//! netstage_harness::main![links];
//! ```
//!
//! Such a binary has `harness = false` in its crate's `Cargo.toml`. A test missing from all lists is dead code,
//! which the compiler reports.
//!
//! Tests of one binary run beside each other, and many measure real time. A test that fails beside others, or finds the
//! machine too busy, is run once more alone, with the same [`seed`]. It fails if it fails alone too; the output and the
//! report name each test that was repeated.
//!
//! Two environment variables control a run: `NETSTAGE_TESTS=quick` leaves out tests that need a privilege, a
//! namespace or more than a second, and `NETSTAGE_TESTS_REPORT` names a file to which each skip and each
//! repeated test is appended, for `scripts/test.sh`.
//!
//! Invariant: a test that returns has run to its end.

mod folder;
pub mod needs;
mod report;
pub mod scenario;

pub use folder::{TemporaryFolder, within};

use libtest_mimic::{Arguments, Completion, Trial};
use report::TestReport;
use std::any::Any;
use std::collections::HashMap;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::thread;

/// Number of concurrent tests per processor.
const TESTS_PER_PROCESSOR: usize = 2;

/// The machine: each test shares it, and a repeated test has it alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// Kind of skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkipKind {
    /// The machine lacks a feature.
    Missing,
    /// The machine is too busy.
    Busy,
    /// Run by `make test` only.
    Slow,
    /// Run by `make test-full` only.
    Ignored,
}

impl SkipKind {
    fn name(self) -> &'static str {
        match self {
            SkipKind::Missing => "missing",
            SkipKind::Busy => "busy",
            SkipKind::Slow => "slow",
            SkipKind::Ignored => "ignored",
        }
    }
}

/// Payload with which a skipped test unwinds.
struct Skip {
    kind: SkipKind,
    reason: String,
}

/// Skips the test because a requirement is missing.
pub fn skip(reason: impl Into<String>) -> ! {
    unwind(SkipKind::Missing, reason)
}

/// Skips the test because the machine was too busy for a valid result.
pub fn skip_busy(reason: impl AsRef<str>) -> ! {
    unwind(SkipKind::Busy, format!("the machine was too busy: {}", reason.as_ref().trim()))
}

fn unwind(kind: SkipKind, reason: impl Into<String>) -> ! {
    // Unlike a panic, this calls no hook and prints nothing.
    resume_unwind(Box::new(Skip { kind, reason: reason.into() }))
}

/// Returns and prints the seed of a suite of random cases: a new one in every run, or that in `NETSTAGE_SEED`. A repeated
/// test gets the same.
pub fn seed(suite: &str) -> u64 {
    static SEEDS: LazyLock<Mutex<HashMap<String, u64>>> = LazyLock::new(Mutex::default);
    let given = std::env::var("NETSTAGE_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
    let mut seeds = SEEDS.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = *seeds.entry(suite.to_owned()).or_insert(given.unwrap_or(now % 1_000_000_000));
    eprintln!("{suite}: seed {seed} (repeat with NETSTAGE_SEED={seed})");
    seed
}

/// Entry of a list created by [`tests!`].
pub struct ListedTest {
    name: String,
    ignored: Option<&'static str>,
    run: fn(),
}

impl ListedTest {
    /// Creates an entry; `ignored` is the reason for running the test only with `--ignored`.
    pub fn new(module: &str, name: &str, ignored: Option<&'static str>, run: fn()) -> ListedTest {
        let name = match module.split_once("::") {
            Some((_, module)) => format!("{module}::{name}"),
            None => name.to_owned(),
        };
        ListedTest { name, ignored, run }
    }

    fn trial(self, arguments: &Arguments, report: &Arc<TestReport>) -> Trial {
        let ListedTest { name, ignored, run } = self;
        let (report_handle, test_name) = (Arc::clone(report), name.clone());
        let trial = Trial::ignorable_test(name, move || match outcome(&test_name, run, &report_handle) {
            Outcome::Completed => Ok(Completion::Completed),
            Outcome::Skipped(skip) => {
                report_handle.skipped(&test_name, skip.kind, &skip.reason);
                Ok(Completion::ignored_with(skip.reason))
            }
            Outcome::Failed(panic) => resume_unwind(panic),
        });
        let trial = trial.with_ignored_flag(ignored.is_some());
        if let Some(reason) = ignored
            && !arguments.list
            && arguments.is_ignored(&trial)
            && !arguments.is_filtered_out(&trial)
        {
            report.skipped(trial.name(), SkipKind::Ignored, reason);
        }
        trial
    }
}

/// How an attempt at a test ended.
enum Outcome {
    Completed,
    Skipped(Skip),
    Failed(Box<dyn Any + Send>),
}

/// Runs a test beside others, and once more alone if it may have lacked the machine.
fn outcome(name: &str, run: fn(), report: &TestReport) -> Outcome {
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    let shared = MACHINE.read();
    let before = RUNNING.fetch_add(1, Ordering::Relaxed);
    let outcome = attempt(name, run);
    let after = RUNNING.fetch_sub(1, Ordering::Relaxed) - 1;
    drop(shared);
    let reason = match &outcome {
        Outcome::Completed => return outcome,
        _ if before + after == 0 => return outcome,
        Outcome::Skipped(skip) if skip.kind != SkipKind::Busy => return outcome,
        Outcome::Skipped(skip) => &skip.reason,
        Outcome::Failed(_) => "failed beside other tests",
    };
    eprintln!("test {name} is run again alone: {reason}");
    report.repeated(name, reason);
    let _alone = MACHINE.write();
    attempt(name, run)
}

/// Runs a test in its own thread, because some tests change their thread permanently, for example its
/// namespace.
fn attempt(name: &str, run: fn()) -> Outcome {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run).expect("a thread for the test");
    let Err(payload) = thread.join() else { return Outcome::Completed };
    match payload.downcast::<Skip>() {
        Ok(skip) => Outcome::Skipped(*skip),
        Err(panic) => Outcome::Failed(panic),
    }
}

/// Runs the lists as the command line requires, taking a test of each list in turn, because tests of one list
/// often wait for the same resource.
pub fn run(lists: impl IntoIterator<Item = Vec<ListedTest>>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    // The tests mostly wait for sessions, timers and trials.
    let processors = thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(TESTS_PER_PROCESSOR * processors);
    let report = Arc::new(TestReport::of_environment());
    let tests = interleave(lists).into_iter().map(|test| test.trial(&arguments, &report));
    libtest_mimic::run(&arguments, tests.collect()).exit_code()
}

/// Merges the lists by taking the first entry of each, then the second of each, and so on.
fn interleave<T>(lists: impl IntoIterator<Item = Vec<T>>) -> Vec<T> {
    let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
    let mut all = Vec::new();
    while !lists.is_empty() {
        lists.retain_mut(|list| {
            let next = list.next();
            let is_left = next.is_some();
            all.extend(next);
            is_left
        });
    }
    all
}

/// Defines the function `tests` of a module, which returns the list of its tests.
#[macro_export]
macro_rules! tests {
    (@ignored) => { None };
    (@ignored $reason:literal) => { Some($reason) };
    ($($(#[ignore = $reason:literal])? $name:ident),* $(,)?) => {
        pub(crate) fn tests() -> Vec<$crate::ListedTest> {
            vec![$($crate::ListedTest::new(
                module_path!(),
                stringify!($name),
                $crate::tests!(@ignored $($reason)?),
                $name,
            )),*]
        }
    };
}

/// Defines `main`, which runs the lists of these modules; `self` is the current file.
#[macro_export]
macro_rules! main {
    ($($($module:ident)::+),* $(,)?) => {
        fn main() -> std::process::ExitCode {
            $crate::run([$($($module::)+ tests()),*])
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn lists_are_merged_in_turn() {
        assert_eq!(interleave([vec![1, 4], vec![], vec![2, 5, 6], vec![3]]), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_test_that_fails_beside_others_is_run_again_alone() {
        static OTHER_RUNS: AtomicBool = AtomicBool::new(false);
        static ATTEMPTS: AtomicUsize = AtomicUsize::new(0);
        fn other() {
            OTHER_RUNS.store(true, Ordering::SeqCst);
            assert!(within(Duration::from_secs(60), || ATTEMPTS.load(Ordering::SeqCst) > 0));
            OTHER_RUNS.store(false, Ordering::SeqCst);
        }
        fn fails_beside_another() {
            let is_first = ATTEMPTS.fetch_add(1, Ordering::SeqCst) == 0;
            assert!(!is_first && !OTHER_RUNS.load(Ordering::SeqCst));
        }
        fn fails_always() {
            panic!("it fails alone, too");
        }
        let folder = TemporaryFolder::new("repeated");
        let report = TestReport::new(Some(folder.join("report")));
        thread::scope(|scope| {
            scope.spawn(|| assert!(matches!(outcome("other", other, &report), Outcome::Completed)));
            assert!(within(Duration::from_secs(60), || OTHER_RUNS.load(Ordering::SeqCst)));
            let repeated = outcome("first", fails_beside_another, &report);
            assert!(matches!(repeated, Outcome::Completed));
        });
        assert!(matches!(outcome("second", fails_always, &report), Outcome::Failed(_)));
        assert_eq!(ATTEMPTS.load(Ordering::SeqCst), 2);
        let text = std::fs::read_to_string(folder.join("report")).unwrap();
        let lines: Vec<_> = text.lines().map(|line| line.split('\t').skip(1).collect::<Vec<_>>()).collect();
        assert_eq!(lines, [["first", "repeated", "failed beside other tests"]]);
    }
}
