//! Runs every cell under every seed, on several threads, and keeps each finished run.

use crate::analyse::Analysis;
use crate::derive::derive;
use crate::environment::{Environment, Watch};
use crate::figure::Figure;
use crate::folder::{Folder, Manifest, RECORD, read_checked};
use crate::open::{self, DISTRIBUTIONS, FIGURES, SERIES};
use crate::series::{Joiner, encode_run, read_run, write_distributions};
use crate::{Error, Record, Stopped, checksum_of, trials};
use netstage_scenario::outcome::{Attendant, Outcome};
use netstage_scenario::plan::Plan;
use netstage_scenario::record::SeriesFile;
use netstage_scenario::{Cell, Scenario};
use parquet::errors::ParquetError;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
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
    /// Time left, once a run has told how long one takes.
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

    /// What the flows of a cell under a seed have found so far, derived metrics included: some ten
    /// times a second, and once when they are over. A run begun anew has found less than before.
    fn so_far(&mut self, cell: usize, seed: u64, outcome: Outcome) {
        let _ = (cell, seed, outcome);
    }
}

impl Observer for () {
    fn progress(&mut self, _: Progress) {}
}

/// Runs one plan under one seed, attended by its last argument.
pub type Runner<'a> = dyn Fn(&Plan, u64, &dyn Attendant) -> Result<Outcome, Stopped> + Sync + 'a;

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
    let watch = Watch::start();
    let manifest = Manifest::new(scenario, options);
    let folder = Folder::take(&options.out, &manifest)?;
    let finished = folder.finished_runs()?;
    let all = (0..scenario.cells.len()).flat_map(|cell| seeds(scenario).map(move |seed| (cell, seed)));
    let pending: Vec<(usize, u64)> = all.filter(|run| !finished.contains_key(run)).collect();
    let jobs = options.jobs.clamp(1, pending.len().max(1));
    let resumed = finished.len();
    let work = Work {
        scenario,
        runner,
        folder: &folder,
        pending: &pending,
        interrupted,
        retries: options.retries,
        next: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        doing: Mutex::new(String::new()),
        listens: observer.listens(),
    };
    let done = work.run(jobs, resumed, observer)?;
    if done < pending.len() {
        let (done, total) = (resumed + done, manifest.total());
        return Err(Error::Interrupted { folder: options.out.clone(), done, total });
    }
    finish(scenario, &manifest, &folder, || watch.stop(jobs, pending.len(), resumed))
}

fn seeds(scenario: &Scenario) -> impl Iterator<Item = u64> + use<> {
    let first = scenario.seed;
    (0..u64::from(scenario.repeat)).map(move |k| first.wrapping_add(k))
}

/// What the worker threads share.
struct Work<'a> {
    scenario: &'a Scenario,
    runner: &'a Runner<'a>,
    folder: &'a Folder,
    pending: &'a [(usize, u64)],
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
    /// A run is finished.
    Done,
    /// A run of this cell and seed has found this much.
    SoFar(usize, u64, Outcome),
    /// No more can be done.
    Failed(Error),
}

/// Least time between two tellings of one run.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// Telling takes at most one part in so many of a worker's time.
const TELL_SHARE: u32 = 20;

/// Attends the flows of one run.
struct Attending<'a> {
    work: &'a Work<'a>,
    cell: usize,
    seed: u64,
    news: &'a Sender<News>,
    /// When to tell next.
    next: std::cell::Cell<Instant>,
}

impl Attendant for Attending<'_> {
    fn stop(&self) -> bool {
        self.work.stopping()
    }

    fn listens(&self) -> bool {
        self.work.listens
    }

    fn bins_ended(&self, so_far: &mut dyn FnMut() -> Outcome) {
        let began = Instant::now();
        if !self.work.listens || began < self.next.get() {
            return;
        }
        let mut outcome = so_far();
        derive(&self.work.scenario.cells[self.cell].plan, &mut outcome);
        let _ = self.news.send(News::SoFar(self.cell, self.seed, outcome));
        let pause = TELL_EVERY.max(began.elapsed() * TELL_SHARE);
        self.next.set(Instant::now() + pause);
    }
}

impl Work<'_> {
    /// Works until nothing is pending, an error, or an interruption; returns how many runs
    /// were finished.
    fn run(&self, jobs: usize, resumed: usize, observer: &mut dyn Observer) -> Result<usize, Error> {
        let total = resumed + self.pending.len();
        let started = Instant::now();
        let mut done = 0;
        let mut error = None;
        std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            for _ in 0..jobs {
                let sender = sender.clone();
                scope.spawn(move || self.worker(&sender));
            }
            drop(sender);
            loop {
                let left =
                    (done > 0).then(|| started.elapsed() / done as u32 * (self.pending.len() - done) as u32);
                let doing = self.doing().clone();
                observer.progress(Progress { done: resumed + done, total, left, doing });
                match receiver.recv_timeout(Duration::from_millis(200)) {
                    Ok(News::Done) => done += 1,
                    Ok(News::SoFar(cell, seed, outcome)) => observer.so_far(cell, seed, outcome),
                    Ok(News::Failed(failed)) => drop(error.get_or_insert(failed)),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        });
        error.map_or(Ok(done), Err)
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
            let Some(&(cell, seed)) = self.pending.get(index) else { return };
            match self.one(cell, seed, news) {
                Ok(true) => drop(news.send(News::Done)),
                Ok(false) => return,
                Err(error) => {
                    self.stop.store(true, Ordering::Relaxed);
                    drop(news.send(News::Failed(error)));
                }
            }
        }
    }

    /// The flows of a plan, then its tests.
    fn perform(&self, plan: &Plan, attending: &Attending) -> Result<Outcome, Stopped> {
        let (seed, stop) = (attending.seed, || self.stopping());
        let doing = |what: &str| what.clone_into(&mut self.doing());
        doing("flows");
        let mut outcome = match plan.has_run() {
            true => self.flows(plan, seed, attending)?,
            false => Outcome { interval: plan.measure.interval, ..Outcome::default() },
        };
        outcome.tests = trials::run(plan, (seed, self.retries), self.runner, &stop, &doing)?;
        for test in &outcome.tests {
            let why = test.void.iter().map(|why| format!("test.{why}"));
            outcome.void.extend(why);
        }
        Ok(outcome)
    }

    /// The flows of a plan, begun anew where the stage itself fell short. Each attempt counts for
    /// itself, and the outcome says how many there were.
    fn flows(&self, plan: &Plan, seed: u64, attendant: &dyn Attendant) -> Result<Outcome, Stopped> {
        let mut spoiled = Vec::new();
        loop {
            let mut outcome = (self.runner)(plan, seed, attendant)?;
            if outcome.void.is_empty() || spoiled.len() == self.retries as usize {
                let said =
                    |(attempt, why): (usize, &String)| format!("attempt {} was void: {why}", attempt + 1);
                outcome.warnings.extend(spoiled.iter().enumerate().map(said));
                return Ok(outcome);
            }
            spoiled.push(outcome.void.swap_remove(0));
        }
    }

    /// One run; false if it was stopped.
    fn one(&self, index: usize, seed: u64, news: &Sender<News>) -> Result<bool, Error> {
        let cell = &self.scenario.cells[index];
        let failed = |message| Error::Run { cell: label(cell), seed, message };
        let attending =
            Attending { work: self, cell: index, seed, news, next: std::cell::Cell::new(Instant::now()) };
        let run = || self.perform(&cell.plan, &attending);
        let mut outcome = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(Stopped::Interrupted)) => return Ok(false),
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
        if self.listens {
            let _ = news.send(News::SoFar(index, seed, outcome.clone()));
        }
        let bytes = encode_run(index as u32, seed, &outcome).map_err(|e| failed(e.to_string()))?;
        self.folder.keep_run(index, seed, &bytes)?;
        Ok(true)
    }
}

/// A cell in words; empty where there is only one.
fn label(cell: &Cell) -> String {
    let settings = cell.settings.iter().map(|(path, value)| format!("{path}={value}"));
    let variant = (!cell.variant.is_empty()).then(|| cell.variant.clone());
    variant.into_iter().chain(settings).collect::<Vec<_>>().join(" ")
}

/// Joins the runs, works out what they come to, and writes the record.
fn finish(
    scenario: &Scenario,
    manifest: &Manifest,
    folder: &Folder,
    environment: impl Fn() -> Environment,
) -> Result<Record, Error> {
    let runs = folder.finished_runs()?;
    let mut analysis = Analysis::new(scenario);
    let mut rows = 0;
    folder.write(SERIES, |file| {
        let mut joiner = Joiner::new(BufWriter::with_capacity(1 << 20, file)).map_err(io_error)?;
        for cell in 0..scenario.cells.len() {
            for seed in seeds(scenario) {
                let missing =
                    || io::Error::new(io::ErrorKind::NotFound, "the file of a finished run has vanished");
                let bytes = read_checked(runs.get(&(cell, seed)).ok_or_else(missing)?)?;
                joiner.push(&bytes).map_err(io_error)?;
                let (_, _, outcome) = read_run(&bytes).map_err(io_error)?;
                analysis.add(cell, seed, &outcome);
            }
            analysis.end_cell(cell);
        }
        let (mut sink, count) = joiner.finish().map_err(io_error)?;
        rows = count;
        sink.flush()
    })?;
    let series = written(folder, SERIES, rows)?;
    let distributions = if analysis.distributions().iter().all(Vec::is_empty) {
        None
    } else {
        let mut rows = 0;
        folder.write(DISTRIBUTIONS, |file| {
            rows = write_distributions(BufWriter::new(file), analysis.distributions()).map_err(io_error)?;
            Ok(())
        })?;
        Some(written(folder, DISTRIBUTIONS, rows)?)
    };
    let (data, figures): (_, Vec<Figure>) = analysis.finish(manifest, series, distributions);
    let environment = environment();
    let json = |value: serde_json::Result<Vec<u8>>| value.expect("only text and numbers");
    let text = json(serde_json::to_vec_pretty(&environment));
    folder.write(open::ENVIRONMENT, |file| file.write_all(&text))?;
    let text = json(serde_json::to_vec(&figures));
    folder.write(FIGURES, |file| file.write_all(&text))?;
    folder.write(RECORD, |file| file.write_all(data.to_json().as_bytes()))?;
    folder.tidy()?;
    Ok(Record { folder: folder.file(""), data, figures, environment })
}

/// What a record says of a file of values.
pub(crate) fn written(folder: &Folder, name: &str, rows: u64) -> Result<SeriesFile, Error> {
    let path = folder.file(name);
    let (hash, bytes) = File::open(&path).and_then(checksum_of).map_err(Error::io("read", &path))?;
    Ok(SeriesFile { rows, bytes, xxh64: format!("{hash:016x}") })
}

pub(crate) fn io_error(error: ParquetError) -> io::Error {
    // Keep the system's own words, and its kind, where it was the system that failed.
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    }
}
