//! Execution of one run: a cell's plan under one seed, from the stage to the bytes of its file.
//!
//! The caller chooses the thread or machine. The same scenario, run and retries give the same bytes.

use crate::derive::derive;
use crate::series::encode_run;
use crate::trials::{self, TrialCallbacks};
use crate::{RunFailure, StudyError};
use netstage_scenario::outcome::finding::TrialEntry;
use netstage_scenario::outcome::{RunObserver, RunOutcome};
use netstage_scenario::plan::Plan;
use netstage_scenario::{Cell, Scenario};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Index of a cell, and a seed.
pub type RunId = (usize, u64);

/// Function that runs one plan under one seed and reports to an attendant.
pub type PlanRunner<'a> = dyn Fn(&Plan, u64, &dyn RunObserver) -> Result<RunOutcome, RunFailure> + Sync + 'a;

/// Settings and callbacks of runs.
pub struct Performer<'a> {
    /// Runs a plan on the stage.
    pub runner: &'a PlanRunner<'a>,
    /// Maximum retries of a void run.
    pub retries: u32,
    /// Returns whether to stop.
    pub stop: &'a dyn Fn() -> bool,
    /// Receives the name of each activity when it starts: the flows, or a trial of a test.
    pub on_activity: &'a dyn Fn(&str),
    /// Receives the result of each trial of a test.
    pub on_trial: &'a dyn Fn(&TrialEntry),
    /// Receives the progress of a run's flows, from 0 to 1, about ten times a second.
    pub on_progress: &'a dyn Fn(RunId, f64),
    /// Receives the partial outcome of a run's flows, including derived metrics, about ten times a second, and once
    /// with `true` when the run is complete. After a retry the outcome starts from the beginning.
    pub on_outcome: Option<&'a dyn Fn(RunId, RunOutcome, bool)>,
}

/// Minimum interval between two reports of one run.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum ratio of a run's time to the time spent on reports.
const REPORT_COST_RATIO: u32 = 20;

/// Attendant of the flows of one run.
struct RunAttendant<'a> {
    performer: &'a Performer<'a>,
    plan: &'a Plan,
    run: RunId,
    /// Times of the next reports of the outcome and of the progress.
    next_outcome: std::cell::Cell<Instant>,
    next_reached: std::cell::Cell<Instant>,
}

impl RunObserver for RunAttendant<'_> {
    fn stop(&self) -> bool {
        (self.performer.stop)()
    }

    fn wants_bins(&self) -> bool {
        self.performer.on_outcome.is_some()
    }

    fn bins_ended(&self, so_far: &mut dyn FnMut() -> RunOutcome) {
        let began = Instant::now();
        let Some(report) = self.performer.on_outcome.filter(|_| began >= self.next_outcome.get()) else {
            return;
        };
        let mut outcome = so_far();
        derive(self.plan, &mut outcome);
        report(self.run, outcome, false);
        let pause = REPORT_INTERVAL.max(began.elapsed() * REPORT_COST_RATIO);
        self.next_outcome.set(Instant::now() + pause);
    }

    fn progress(&self, time: netstage_core::time::Instant) {
        let now = Instant::now();
        if now >= self.next_reached.get() {
            let part = time.0 as f64 / self.plan.duration.0.max(1) as f64;
            (self.performer.on_progress)(self.run, part.min(1.0));
            self.next_reached.set(now + REPORT_INTERVAL);
        }
    }
}

impl Performer<'_> {
    /// Performs a run and returns the bytes of its file for [`Study::keep`](crate::Study::keep), or `None` if it was
    /// stopped.
    pub fn perform(&self, scenario: &Scenario, run: RunId) -> Result<Option<Vec<u8>>, StudyError> {
        let (index, seed) = run;
        let cell = &scenario.cells[index];
        let failed = |message| StudyError::Run { cell: label(cell), seed, message };
        let perform = || self.outcome(&cell.plan, run);
        let mut outcome = match catch_unwind(AssertUnwindSafe(perform)) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(RunFailure::Interrupted)) => return Ok(None),
            Ok(Err(RunFailure::Failed(message))) => return Err(failed(message)),
            Ok(Err(RunFailure::Unsupported(message))) => return Err(StudyError::Unsupported(message)),
            Ok(Err(RunFailure::Missing { message, remedy })) => {
                return Err(StudyError::Missing { message, remedy });
            }
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
                return Err(failed(format!("internal error: {text}")));
            }
        };
        derive(&cell.plan, &mut outcome);
        if let Some(report) = self.on_outcome {
            report(run, outcome.clone(), true);
        }
        encode_run(index as u32, seed, &outcome).map(Some).map_err(|e| failed(e.to_string()))
    }

    /// Runs the flows of a plan, then its tests.
    fn outcome(&self, plan: &Plan, run: RunId) -> Result<RunOutcome, RunFailure> {
        (self.on_activity)("flows");
        let mut outcome = match plan.has_run() {
            true => self.flows(plan, run)?,
            false => RunOutcome { interval: plan.measure.interval, ..RunOutcome::default() },
        };
        let stop = || (self.stop)();
        let callbacks = TrialCallbacks { stop: &stop, doing: self.on_activity, on_trial: self.on_trial };
        outcome.tests = trials::run(plan, (run.1, self.retries), self.runner, &callbacks)?;
        for test in &outcome.tests {
            let why = test.void.iter().map(|why| format!("test.{why}"));
            outcome.void.extend(why);
        }
        Ok(outcome)
    }

    /// Runs the flows of a plan, and repeats void attempts. The outcome is that of the last attempt, with a warning for
    /// each void one.
    fn flows(&self, plan: &Plan, run: RunId) -> Result<RunOutcome, RunFailure> {
        let now = || std::cell::Cell::new(Instant::now());
        let attending = RunAttendant { performer: self, plan, run, next_outcome: now(), next_reached: now() };
        let mut spoiled = Vec::new();
        loop {
            let mut outcome = (self.runner)(plan, run.1, &attending)?;
            outcome.void.extend(outcome.late_senders.drain(..).map(|(_, reason)| reason));
            if outcome.void.is_empty() || spoiled.len() == self.retries as usize {
                let warning =
                    |(attempt, why): (usize, &String)| format!("attempt {} was void: {why}", attempt + 1);
                outcome.warnings.extend(spoiled.iter().enumerate().map(warning));
                return Ok(outcome);
            }
            spoiled.push(outcome.void.swap_remove(0));
        }
    }
}

/// Returns a label of a cell; empty if the study has one cell.
fn label(cell: &Cell) -> String {
    let settings = cell.settings.iter().map(|(path, value)| format!("{path}={value}"));
    let variant = (!cell.variant.is_empty()).then(|| cell.variant.clone());
    variant.into_iter().chain(settings).collect::<Vec<_>>().join(" ")
}
