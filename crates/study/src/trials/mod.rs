//! Tests of a plan: searches over trials, where each trial is a run of a derived plan.
//!
//! Trials use the same [`PlanRunner`] as flows, independently of the stage. The search algorithms are in
//! `netstage_core::measure`.

mod derive;
mod loss_curve;
mod methods;
mod outcome;
mod session;
mod tables;
#[cfg(test)]
mod tests;

use crate::PlanRunner;
use crate::RunFailure;
pub use loss_curve::loss_curves;
use netstage_scenario::outcome::RunObserver;
use netstage_scenario::outcome::finding::{TestOutcome, TrialEntry};
use netstage_scenario::plan::Plan;
use session::{TestAbort, TestSession};
pub use tables::{entry_table, tables};

/// Callbacks of tests.
pub struct TrialCallbacks<'a> {
    /// Observer of the runs of trials.
    pub stop: &'a dyn RunObserver,
    /// Receives a description before each trial.
    pub doing: &'a dyn Fn(&str),
    /// Receives the result of each trial.
    pub on_trial: &'a dyn Fn(&TrialEntry),
}

/// Runs all tests of a plan in order. A void trial is repeated up to `retries` times, but at least
/// [`session::MIN_ATTEMPTS`] attempts are made.
pub fn run(
    plan: &Plan,
    (seed, retries): (u64, u32),
    runner: &PlanRunner,
    callbacks: &TrialCallbacks,
) -> Result<Vec<TestOutcome>, RunFailure> {
    let mut outcomes = Vec::with_capacity(plan.tests.len());
    for test in &plan.tests {
        let mut session = TestSession::new(plan, test, (seed, retries), runner, callbacks);
        match methods::run(&mut session) {
            Ok(()) => {}
            Err(TestAbort::Stopped(stopped)) => return Err(stopped),
            Err(TestAbort::Void(why)) => session.add_void_reason(why),
        }
        outcomes.push(session.finish());
    }
    Ok(outcomes)
}
