//! Runs every cell under every seed, on several threads, and keeps each finished run.

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

/// Where and how a study runs. The results depend on `stage` and `tool` alone.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder that becomes the record.
    pub out: PathBuf,
    /// Runs at the same time; at least one.
    pub jobs: usize,
    /// How often a run that is void is begun anew.
    pub retries: u32,
    /// Name of the stage the runner drives.
    pub stage: String,
    /// Name and version of the tool.
    pub tool: String,
}

/// How far a study is.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Runs finished, those of earlier parts included.
    pub done: usize,
    /// Runs in all.
    pub total: usize,
    /// What is done of the runs under way, in runs: 0.5 is half of one.
    pub under_way: f64,
    /// Time left, once it can be told.
    pub left: Option<Duration>,
    /// What was begun last: the flows, or a trial of a test. Empty at the start.
    pub doing: String,
}

/// Hears how far a study is: at the start, after each run, and several times a second.
pub trait Observer {
    /// This far.
    fn progress(&mut self, progress: Progress);

    /// Whether it hears what runs find while they go on.
    fn listens(&self) -> bool {
        false
    }

    /// What a run has found so far, and whether it is over; see [`Performer::so_far`].
    fn so_far(&mut self, run: Run, outcome: Outcome, is_over: bool) {
        let _ = (run, outcome, is_over);
    }
}

impl Observer for () {
    fn progress(&mut self, _: Progress) {}
}

/// Runs a scenario to its record, or goes on with what the folder holds of it.
///
/// `interrupted` may be set at any time, by a signal handler for one; finished runs are
/// kept. Equal scenario, seeds, stage and tool give equal bytes in all files but
/// `environment.json`.
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

/// What the worker threads share.
struct Work<'a> {
    study: &'a Study<&'a Scenario>,
    runner: &'a Runner<'a>,
    interrupted: &'a AtomicBool,
    retries: u32,
    next: AtomicUsize,
    stop: AtomicBool,
    doing: Mutex<String>,
    /// Whether to tell what runs find while they go on.
    listens: bool,
}

/// What a worker tells.
enum News {
    /// A part of a run is done.
    Reached(Run, f64),
    /// A run is finished.
    Done(Run),
    /// A run has found this much, and may be over.
    SoFar(Run, Box<Outcome>, bool),
    /// No more can be done.
    Failed(Error),
}

impl Work<'_> {
    /// Works until nothing is pending, an error, or an interruption; returns how many runs
    /// were finished.
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
            match self.one(run, news) {
                Ok(true) => drop(news.send(News::Done(run))),
                Ok(false) => return,
                Err(error) => {
                    self.stop.store(true, Ordering::Relaxed);
                    drop(news.send(News::Failed(error)));
                }
            }
        }
    }

    /// One run; false if it was stopped.
    fn one(&self, run: Run, news: &Sender<News>) -> Result<bool, Error> {
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
