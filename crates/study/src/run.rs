//! Execution of a study on several threads: all cells under all seeds.

use crate::pace::Pace;
use crate::perform::{Performer, PlanRunner, RunId};
use crate::{StoredRecord, Study, StudyError};
use netstage_scenario::Scenario;
use netstage_scenario::outcome::finding::TrialEntry;
use netstage_scenario::outcome::{RunObserver, RunOutcome};
use netstage_scenario::plan::Plan;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Options of a study. Of these, only `stage` and `tool` affect the results.
#[derive(Clone, Debug)]
pub struct StudyOptions {
    /// Output folder, which becomes the record.
    pub out: PathBuf,
    /// Parallel runs; at least one.
    pub jobs: usize,
    /// Maximum retries of a void run.
    pub retries: u32,
    /// Name of the runner's stage.
    pub stage: String,
    /// Name and version of the tool.
    pub tool: String,
}

/// Progress of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyProgress {
    /// Finished runs, including those of earlier parts.
    pub done: usize,
    /// Total runs.
    pub total: usize,
    /// Sum of the progress of runs in progress, in runs: 0.5 is half a run.
    pub in_progress: f64,
    /// Estimated remaining time, if known.
    pub remaining: Option<Duration>,
    /// Latest activity: the flows, or a trial of a test. Empty at the start.
    pub activity: String,
}

/// Observer of a study's progress.
pub trait Observer {
    /// Receives the progress at the start, after each run, and several times a second.
    fn progress(&mut self, progress: StudyProgress);

    /// Returns whether the observer receives partial outcomes.
    fn wants_outcomes(&self) -> bool {
        false
    }

    /// Receives the partial outcome of a run, and whether the run is complete; see [`Performer::outcome`].
    fn outcome(&mut self, run: RunId, outcome: RunOutcome, is_over: bool) {
        let _ = (run, outcome, is_over);
    }
}

impl Observer for () {
    fn progress(&mut self, _: StudyProgress) {}
}

/// Runs a scenario and writes its record. Resumes the study if the folder holds it unfinished.
///
/// Setting `interrupted`, for example in a signal handler, stops the study; finished runs are kept. The same
/// scenario, seeds, stage and tool give the same bytes in all files except `environment.json`.
pub fn run(
    scenario: &Scenario,
    runner: &PlanRunner,
    options: &StudyOptions,
    observer: &mut dyn Observer,
    interrupted: &AtomicBool,
) -> Result<StoredRecord, StudyError> {
    let study = Study::open(scenario, options)?;
    let jobs = options.jobs.clamp(1, study.pending().len().max(1));
    let work = StudyWorkers {
        study: &study,
        runner,
        interrupted,
        retries: options.retries,
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        doing: Mutex::new(String::new()),
        listens: observer.wants_outcomes(),
    };
    let done = work.run(jobs, observer)?;
    if done < study.pending().len() {
        return Err(study.interrupted(done));
    }
    study.finish(jobs)
}

/// State shared by the worker threads.
struct StudyWorkers<'a> {
    study: &'a Study<&'a Scenario>,
    runner: &'a PlanRunner<'a>,
    interrupted: &'a AtomicBool,
    retries: u32,
    next: AtomicUsize,
    stop: AtomicBool,
    doing: Mutex<String>,
    /// Whether the observer receives partial outcomes.
    listens: bool,
}

/// Event of a worker.
enum WorkerEvent {
    /// Progress of a run, from 0 to 1.
    Progress(RunId, f64),
    /// Finished run.
    Done(RunId),
    /// Partial outcome of a run, and whether the run is complete.
    Outcome(RunId, Box<RunOutcome>, bool),
    /// Error that stops the study.
    Failed(StudyError),
}

impl StudyWorkers<'_> {
    /// Performs the pending runs until all have finished, one fails, or the study is interrupted. Returns the number
    /// of finished runs.
    fn run(&self, jobs: usize, observer: &mut dyn Observer) -> Result<usize, StudyError> {
        let (total, resumed) = (self.study.total(), self.study.resumed());
        let mut pace = Pace::new(Instant::now(), total - resumed);
        let mut error = None;
        std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            for _ in 0..jobs {
                let sender = sender.clone();
                scope.spawn(move || self.worker(&sender));
            }
            drop(sender);
            loop {
                observer.progress(StudyProgress {
                    done: resumed + pace.done(),
                    total,
                    in_progress: pace.in_progress(),
                    remaining: pace.remaining(Instant::now()),
                    activity: self.doing().clone(),
                });
                match receiver.recv_timeout(Duration::from_millis(200)) {
                    Ok(WorkerEvent::Progress(run, part)) => pace.reached(run, part, Instant::now()),
                    Ok(WorkerEvent::Done(run)) => pace.finished(run),
                    Ok(WorkerEvent::Outcome(run, outcome, is_over)) => {
                        observer.outcome(run, *outcome, is_over)
                    }
                    Ok(WorkerEvent::Failed(failed)) => drop(error.get_or_insert(failed)),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        });
        error.map_or(Ok(pace.done()), Err)
    }

    fn doing(&self) -> MutexGuard<'_, String> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.interrupted.load(Ordering::Relaxed)
    }

    fn worker(&self, news: &Sender<WorkerEvent>) {
        while !self.stopping() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&run) = self.study.pending().get(index) else { return };
            match self.perform(run, news) {
                Ok(true) => drop(news.send(WorkerEvent::Done(run))),
                Ok(false) => return,
                Err(error) => {
                    self.stop.store(true, Ordering::Relaxed);
                    drop(news.send(WorkerEvent::Failed(error)));
                }
            }
        }
    }

    /// Performs one run. Returns `false` if it was stopped.
    fn perform(&self, run: RunId, news: &Sender<WorkerEvent>) -> Result<bool, StudyError> {
        let so_far =
            |run, outcome, is_over| drop(news.send(WorkerEvent::Outcome(run, Box::new(outcome), is_over)));
        // Runs without tests are repeated as a whole.
        let has_tests = !self.study.scenario().cells[run.0].plan.tests.is_empty();
        let journal = if has_tests { Some(self.study.journal(run)?) } else { None };
        let runner = |plan: &Plan, seed: u64, observer: &dyn RunObserver| match &journal {
            Some(journal) => journal.perform(self.runner, plan, seed, observer),
            None => (self.runner)(plan, seed, observer),
        };
        let add_result = |entry: &TrialEntry| {
            if let Some(journal) = &journal {
                journal.add_result(entry);
            }
        };
        let performer = Performer {
            runner: &runner,
            retries: self.retries,
            stop: &|| self.stopping(),
            on_activity: &|what| what.clone_into(&mut self.doing()),
            on_trial: &add_result,
            on_progress: &|run, part| drop(news.send(WorkerEvent::Progress(run, part))),
            on_outcome: self.listens.then_some(&so_far),
        };
        let Some(file) = performer.perform(self.study.scenario(), run)? else { return Ok(false) };
        self.study.save_run(run, &file)?;
        Ok(true)
    }
}
