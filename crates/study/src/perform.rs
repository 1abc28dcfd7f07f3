//! One run: a cell's plan under one seed, from the stage to the bytes of its file.
//!
//! Where runs take place, on threads of this process or on other machines, is the caller's
//! business: the same scenario, run and retries give the same bytes.

use crate::derive::derive;
use crate::series::encode_run;
use crate::{Error, Stopped, trials};
use netstage_scenario::outcome::Outcome;
use netstage_scenario::plan::Plan;
use netstage_scenario::{Cell, Scenario};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Index of a cell, and a seed.
pub type Run = (usize, u64);

/// Runs one plan under one seed; asks its last argument whether to stop.
pub type Runner<'a> = dyn Fn(&Plan, u64, &dyn Fn() -> bool) -> Result<Outcome, Stopped> + Sync + 'a;

/// How runs are performed.
pub struct Performer<'a> {
    /// Runs a plan on the stage.
    pub runner: &'a Runner<'a>,
    /// How often a run that is void is begun anew.
    pub retries: u32,
    /// Whether to stop.
    pub stop: &'a dyn Fn() -> bool,
    /// Hears what is begun: the flows, or a trial of a test.
    pub doing: &'a dyn Fn(&str),
}

impl Performer<'_> {
    /// The bytes of a run's file, for [`Study::keep`](crate::Study::keep); none if it was stopped.
    pub fn perform(&self, scenario: &Scenario, (index, seed): Run) -> Result<Option<Vec<u8>>, Error> {
        let cell = &scenario.cells[index];
        let failed = |message| Error::Run { cell: label(cell), seed, message };
        let run = || self.outcome(&cell.plan, seed);
        let mut outcome = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(Stopped::Interrupted)) => return Ok(None),
            Ok(Err(Stopped::Failed(message))) => return Err(failed(message)),
            Ok(Err(Stopped::Unsupported(message))) => return Err(Error::Unsupported(message)),
            Ok(Err(Stopped::Missing { message, remedy })) => {
                return Err(Error::Missing { message, remedy });
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
                return Err(failed(format!("internal error: {text}")));
            }
        };
        derive(&cell.plan, &mut outcome);
        encode_run(index as u32, seed, &outcome).map(Some).map_err(|e| failed(e.to_string()))
    }

    /// The flows of a plan, then its tests.
    fn outcome(&self, plan: &Plan, seed: u64) -> Result<Outcome, Stopped> {
        (self.doing)("flows");
        let mut outcome = match plan.has_run() {
            true => self.flows(plan, seed)?,
            false => Outcome { interval: plan.measure.interval, ..Outcome::default() },
        };
        outcome.tests = trials::run(plan, (seed, self.retries), self.runner, self.stop, self.doing)?;
        for test in &outcome.tests {
            let why = test.void.iter().map(|why| format!("test.{why}"));
            outcome.void.extend(why);
        }
        Ok(outcome)
    }

    /// The flows of a plan, begun anew where the stage itself fell short. Each attempt counts for
    /// itself, and the outcome says how many there were.
    fn flows(&self, plan: &Plan, seed: u64) -> Result<Outcome, Stopped> {
        let mut spoiled = Vec::new();
        loop {
            let mut outcome = (self.runner)(plan, seed, self.stop)?;
            if outcome.void.is_empty() || spoiled.len() == self.retries as usize {
                let said =
                    |(attempt, why): (usize, &String)| format!("attempt {} was void: {why}", attempt + 1);
                outcome.warnings.extend(spoiled.iter().enumerate().map(said));
                return Ok(outcome);
            }
            spoiled.push(outcome.void.swap_remove(0));
        }
    }
}

/// A cell in words; empty where there is only one.
fn label(cell: &Cell) -> String {
    let settings = cell.settings.iter().map(|(path, value)| format!("{path}={value}"));
    let variant = (!cell.variant.is_empty()).then(|| cell.variant.clone());
    variant.into_iter().chain(settings).collect::<Vec<_>>().join(" ")
}
