//! Execution of a study on several threads: all cells under all seeds.

use crate::pace::Pace;
use crate::perform::{Performer, Run, Runner};
use crate::{Error, Record, Study};
use netstage_scenario::Scenario;
use netstage_scenario::outcome::Outcome;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Options of a study. Of these, only `stage` and `tool` affect the results.
#[derive(Clone, Debug)]
pub struct Options {
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
pub struct Progress {
    /// Finished runs, including those of earlier parts.
    pub done: usize,
    /// Total runs.
    pub total: usize,
    /// Sum of the progress of runs in progress, in runs: 0.5 is half a run.
    pub under_way: f64,
    /// Estimated remaining time, if known.
    pub left: Option<Duration>,
    /// Latest activity: the flows, or a trial of a test. Empty at the start.
    pub doing: String,
}

/// Observer of a study's progress.
pub trait Observer {
    /// Receives the progress at the start, after each run, and several times a second.
    fn progress(&mut self, progress: Progress);

    /// Returns whether the observer receives partial outcomes.
    fn listens(&self) -> bool {
        false
    }

    /// Receives the partial outcome of a run, and whether the run is complete; see [`Performer::so_far`].
    fn so_far(&mut self, run: Run, outcome: Outcome, is_over: bool) {
        let _ = (run, outcome, is_over);
    }
}

impl Observer for () {
    fn progress(&mut self, _: Progress) {}
}

/// Runs a scenario and writes its record. Resumes the study if the folder holds it unfinished.
///
/// Setting `interrupted`, for example in a signal handler, stops the study; finished runs are kept. The same
/// scenario, seeds, stage and tool give the same bytes in all files except `environment.json`.
pub fn run(
    scenario: &Scenario,
    runner: &Runner,
    options: &Options,
    observer: &mut dyn Observer,
    interrupted: &AtomicBool,
) -> Result<Record, Error> {
    let study = Study::take(scenario, options)?;
    let jobs = options.jobs.clamp(1, study.pending().len().max(1));
    let work = Work {
        study: &study,
        runner,
        interrupted,
        retries: options.retries,
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        doing: Mutex::new(String::new()),
        listens: observer.listens(),
    };
    let done = work.run(jobs, observer)?;
    if done < study.pending().len() {
        return Err(study.interrupted(done));
    }
    study.finish(jobs)
}

/// State shared by the worker threads.
struct Work<'a> {
    study: &'a Study<&'a Scenario>,
    runner: &'a Runner<'a>,
    interrupted: &'a AtomicBool,
    retries: u32,
    next: AtomicUsize,
    stop: AtomicBool,
    doing: Mutex<String>,
    /// Whether the observer receives partial outcomes.
    listens: bool,
}

/// Event of a worker.
enum News {
    /// Progress of a run, from 0 to 1.
    Reached(Run, f64),
    /// Finished run.
    Done(Run),
    /// Partial outcome of a run, and whether the run is complete.
    SoFar(Run, Box<Outcome>, bool),
    /// Error that stops the study.
    Failed(Error),
}

impl Work<'_> {
    /// Performs the pending runs until all have finished, one fails, or the study is interrupted. Returns the number
    /// of finished runs.
    fn run(&self, jobs: usize, observer: &mut dyn Observer) -> Result<usize, Error> {
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
                observer.progress(Progress {
                    done: resumed + pace.done(),
                    total,
                    under_way: pace.under_way(),
                    left: pace.left(Instant::now()),
                    doing: self.doing().clone(),
                });
                match receiver.recv_timeout(Duration::from_millis(200)) {
                    Ok(News::Reached(run, part)) => pace.reached(run, part, Instant::now()),
                    Ok(News::Done(run)) => pace.finished(run),
                    Ok(News::SoFar(run, outcome, is_over)) => observer.so_far(run, *outcome, is_over),
                    Ok(News::Failed(failed)) => drop(error.get_or_insert(failed)),
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

    fn worker(&self, news: &Sender<News>) {
        while !self.stopping() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&run) = self.study.pending().get(index) else { return };
            match self.perform(run, news) {
                Ok(true) => drop(news.send(News::Done(run))),
                Ok(false) => return,
                Err(error) => {
                    self.stop.store(true, Ordering::Relaxed);
                    drop(news.send(News::Failed(error)));
                }
            }
        }
    }

    /// Performs one run. Returns `false` if it was stopped.
    fn perform(&self, run: Run, news: &Sender<News>) -> Result<bool, Error> {
        let so_far = |run, outcome, is_over| drop(news.send(News::SoFar(run, Box::new(outcome), is_over)));
        let performer = Performer {
            runner: self.runner,
            retries: self.retries,
            stop: &|| self.stopping(),
            doing: &|what| what.clone_into(&mut self.doing()),
            reached: &|run, part| drop(news.send(News::Reached(run, part))),
            so_far: self.listens.then_some(&so_far),
        };
        let Some(file) = performer.perform(self.study.scenario(), run)? else { return Ok(false) };
        self.study.keep(run, &file)?;
        Ok(true)
    }
}
