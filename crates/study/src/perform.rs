//! One run: a cell's plan under one seed, from the stage to the bytes of its file.
//!
//! Where runs take place, on threads of this process or on other machines, is the caller's
//! business: the same scenario, run and retries give the same bytes.

use crate::derive::derive;
use crate::series::encode_run;
use crate::{Error, Stopped, trials};
use netstage_scenario::outcome::{Attendant, Outcome};
use netstage_scenario::plan::Plan;
use netstage_scenario::{Cell, Scenario};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Index of a cell, and a seed.
pub type Run = (usize, u64);

/// Runs one plan under one seed, attended by its last argument.
pub type Runner<'a> = dyn Fn(&Plan, u64, &dyn Attendant) -> Result<Outcome, Stopped> + Sync + 'a;

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
    /// Hears how far the flows of a run are, from 0 to 1, some ten times a second.
    pub reached: &'a dyn Fn(Run, f64),
    /// Hears what the flows of a run have found so far, derived metrics included: some ten times
    /// a second, and once, `true`, when the run is over. A run begun anew has found less than before.
    pub so_far: Option<&'a dyn Fn(Run, Outcome, bool)>,
}

/// Least time between two tellings of one run.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// Telling takes at most one part in so many of a run's time.
const TELL_SHARE: u32 = 20;

/// Attends the flows of one run.
struct Attending<'a> {
    performer: &'a Performer<'a>,
    plan: &'a Plan,
    run: Run,
    /// When to tell next what was found, and how far it is.
    next: std::cell::Cell<Instant>,
    next_reached: std::cell::Cell<Instant>,
}

impl Attendant for Attending<'_> {
    fn stop(&self) -> bool {
        (self.performer.stop)()
    }

    fn listens(&self) -> bool {
        self.performer.so_far.is_some()
    }

    fn bins_ended(&self, so_far: &mut dyn FnMut() -> Outcome) {
        let began = Instant::now();
        let Some(tell) = self.performer.so_far.filter(|_| began >= self.next.get()) else { return };
        let mut outcome = so_far();
        derive(self.plan, &mut outcome);
        tell(self.run, outcome, false);
        let pause = TELL_EVERY.max(began.elapsed() * TELL_SHARE);
        self.next.set(Instant::now() + pause);
    }

    fn reached(&self, time: netstage_core::time::Instant) {
        let now = Instant::now();
        if now >= self.next_reached.get() {
            let part = time.0 as f64 / self.plan.duration.0.max(1) as f64;
            (self.performer.reached)(self.run, part.min(1.0));
            self.next_reached.set(now + TELL_EVERY);
        }
    }
}

impl Performer<'_> {
    /// The bytes of a run's file, for [`Study::keep`](crate::Study::keep); none if it was stopped.
    pub fn perform(&self, scenario: &Scenario, run: Run) -> Result<Option<Vec<u8>>, Error> {
        let (index, seed) = run;
        let cell = &scenario.cells[index];
        let failed = |message| Error::Run { cell: label(cell), seed, message };
        let perform = || self.outcome(&cell.plan, run);
        let mut outcome = match catch_unwind(AssertUnwindSafe(perform)) {
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
        if let Some(tell) = self.so_far {
            tell(run, outcome.clone(), true);
        }
        encode_run(index as u32, seed, &outcome).map(Some).map_err(|e| failed(e.to_string()))
    }

    /// The flows of a plan, then its tests.
    fn outcome(&self, plan: &Plan, run: Run) -> Result<Outcome, Stopped> {
        (self.doing)("flows");
        let mut outcome = match plan.has_run() {
            true => self.flows(plan, run)?,
            false => Outcome { interval: plan.measure.interval, ..Outcome::default() },
        };
        let stop = || (self.stop)();
        outcome.tests = trials::run(plan, (run.1, self.retries), self.runner, &stop, self.doing)?;
        for test in &outcome.tests {
            let why = test.void.iter().map(|why| format!("test.{why}"));
            outcome.void.extend(why);
        }
        Ok(outcome)
    }

    /// The flows of a plan, begun anew where the stage itself fell short. Each attempt counts for
    /// itself, and the outcome says how many there were.
    fn flows(&self, plan: &Plan, run: Run) -> Result<Outcome, Stopped> {
        let now = || std::cell::Cell::new(Instant::now());
        let attending = Attending { performer: self, plan, run, next: now(), next_reached: now() };
        let mut spoiled = Vec::new();
        loop {
            let mut outcome = (self.runner)(plan, run.1, &attending)?;
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
