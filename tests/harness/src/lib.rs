//! Test binaries that report what they skipped, and why.
//!
//! A test states at its top what it [`needs`]; [`skip`] is for what turns out later. A test whose needs are not met is
//! reported as ignored, by its name and with the reason; a panic is a failure, as ever. Options, filters and output are
//! those of Rust's own test harness, from `libtest-mimic`.
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
//! Such a binary has `harness = false` in its crate's `Cargo.toml`. A test that no list names is dead code, which the
//! compiler reports.
//!
//! Two variables of the environment say how it is run: `NETSTAGE_TESTS=quick` leaves out whatever needs a privilege, a
//! namespace or more than a second, and `NETSTAGE_TESTS_REPORT` names a file to which every skip is appended, for
//! `scripts/test.sh`.
//!
//! Invariant: a test that returns has run to its end.

mod folder;
pub mod needs;
mod report;
pub mod scenario;

pub use folder::{Folder, within};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use report::Report;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

/// How many tests run at once, for each processor.
const TESTS_PER_PROCESSOR: usize = 2;

/// Why a test cannot tell anything here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The machine lacks something.
    Missing,
    /// The machine has other things to do.
    Busy,
    /// Only `make test` runs it.
    Slow,
    /// Only `make test-full` runs it.
    Ignored,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Missing => "missing",
            Kind::Busy => "busy",
            Kind::Slow => "slow",
            Kind::Ignored => "ignored",
        }
    }
}

/// What a skipped test unwinds with.
struct Skip {
    kind: Kind,
    reason: String,
}

/// Ends the test as skipped: something it needs is missing here.
pub fn skip(reason: impl Into<String>) -> ! {
    unwind(Kind::Missing, reason)
}

/// Ends the test as skipped: the machine was too busy to tell anything.
pub fn skip_busy(reason: impl AsRef<str>) -> ! {
    unwind(Kind::Busy, format!("the machine was too busy: {}", reason.as_ref().trim()))
}

fn unwind(kind: Kind, reason: impl Into<String>) -> ! {
    // Unlike a panic, this calls no hook and prints nothing.
    resume_unwind(Box::new(Skip { kind, reason: reason.into() }))
}

/// A test of a list that [`tests!`] makes.
pub struct Test {
    name: String,
    ignored: Option<&'static str>,
    run: fn(),
}

impl Test {
    /// The test of this name in this module; `ignored` tells why only `--ignored` runs it.
    pub fn new(module: &str, name: &str, ignored: Option<&'static str>, run: fn()) -> Test {
        let name = match module.split_once("::") {
            Some((_, module)) => format!("{module}::{name}"),
            None => name.to_owned(),
        };
        Test { name, ignored, run }
    }

    fn trial(self, arguments: &Arguments, report: &Arc<Report>) -> Trial {
        let Test { name, ignored, run } = self;
        let (of_report, told) = (Arc::clone(report), name.clone());
        let trial = Trial::ignorable_test(name, move || outcome(&told, run, &of_report));
        let trial = trial.with_ignored_flag(ignored.is_some());
        if let Some(reason) = ignored
            && !arguments.list
            && arguments.is_ignored(&trial)
            && !arguments.is_filtered_out(&trial)
        {
            report.skipped(trial.name(), Kind::Ignored, reason);
        }
        trial
    }
}

/// Runs a test in a thread of its own, since some change theirs for good: its namespace, say.
fn outcome(name: &str, run: fn(), report: &Report) -> Result<Completion, Failed> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
    let Err(payload) = thread.join() else { return Ok(Completion::Completed) };
    match payload.downcast::<Skip>() {
        Ok(skip) => {
            report.skipped(name, skip.kind, &skip.reason);
            Ok(Completion::ignored_with(skip.reason))
        }
        Err(panic) => resume_unwind(panic),
    }
}

/// Runs the tests of these lists as the command line says, a test of each list in turn: those of one list often wait for
/// the same thing.
pub fn run(lists: impl IntoIterator<Item = Vec<Test>>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    // These tests wait for sessions, timers and trials more than they compute.
    let processors = thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(TESTS_PER_PROCESSOR * processors);
    let report = Arc::new(Report::of_environment());
    let tests = in_turn(lists).into_iter().map(|test| test.trial(&arguments, &report));
    libtest_mimic::run(&arguments, tests.collect()).exit_code()
}

/// The first of each list, then the second of each, and so on.
fn in_turn<T>(lists: impl IntoIterator<Item = Vec<T>>) -> Vec<T> {
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

/// Lists a module's tests, as its function `tests`.
#[macro_export]
macro_rules! tests {
    (@ignored) => { None };
    (@ignored $reason:literal) => { Some($reason) };
    ($($(#[ignore = $reason:literal])? $name:ident),* $(,)?) => {
        pub(crate) fn tests() -> Vec<$crate::Test> {
            vec![$($crate::Test::new(
                module_path!(),
                stringify!($name),
                $crate::tests!(@ignored $($reason)?),
                $name,
            )),*]
        }
    };
}

/// Makes `main`, which runs the lists of these modules; `self` is the file it stands in.
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

    #[test]
    fn lists_take_turns_until_each_has_ended() {
        assert_eq!(in_turn([vec![1, 4], vec![], vec![2, 5, 6], vec![3]]), [1, 2, 3, 4, 5, 6]);
    }
}
