//! The tests of a plan: searches over trials, each trial the run of a small plan of its own.
//!
//! Nothing here knows what a stage is: a trial runs on the same [`Runner`] as the flows do.
//! What is searched, and how, is `netstage_core::measure`'s.

mod derive;
mod methods;
mod outcome;
mod session;
mod tables;
#[cfg(test)]
mod tests;

use crate::Runner;
use crate::Stopped;
use netstage_scenario::outcome::Attendant;
use netstage_scenario::outcome::finding::TestOutcome;
use netstage_scenario::plan::Plan;
use session::{Ended, Session};
pub use tables::tables;

/// Runs every test of a plan, in order. A trial the stage spoiled is tried again, so often or more.
/// `doing` hears of each trial before it runs.
pub fn run(
    plan: &Plan,
    (seed, retries): (u64, u32),
    runner: &Runner,
    stop: &dyn Attendant,
    doing: &dyn Fn(&str),
) -> Result<Vec<TestOutcome>, Stopped> {
    let mut outcomes = Vec::with_capacity(plan.tests.len());
    for test in &plan.tests {
        let mut session = Session::new(plan, test, (seed, retries), runner, stop, doing);
        match methods::run(&mut session) {
            Ok(()) => {}
            Err(Ended::Stopped(stopped)) => return Err(stopped),
            Err(Ended::Void(why)) => session.void(why),
        }
        outcomes.push(session.finish());
    }
    Ok(outcomes)
}
