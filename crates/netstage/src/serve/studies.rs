//! Studies started from the page: one at a time, on a thread of its own. `runs` tells of them.

use super::Shared;
use super::feed::{Cursor, Feed, Told};
use super::refusal::Refusal;
use super::scenarios::{Draft, ENDING, parse};
use crate::exit::{self, Failure, INTERRUPTED};
use crate::means::means;
use axum::http::StatusCode;
use netstage_agent::fleet::Fleet;
use netstage_scenario::outcome::Outcome;
use netstage_scenario::{Cell, Scenario};
use netstage_stage::hosts;
use netstage_study::report::{Topology, planned, report};
use netstage_study::stage::{self, Backend};
use netstage_study::{Error, Observer, Options, Progress, Record, Run, Runner, TOOL, page};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Studies remembered; the records of all are kept.
const MOST: usize = 50;
/// Folders tried for a record whose name is taken.
const MOST_NAMES: usize = 1_000;

/// What a study is to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The simulator, in virtual time.
    Sim,
    /// Real packets between namespaces of this machine, in real time.
    Emu,
    /// Real packets between hosts of the fleet, in real time.
    Live,
}

/// A study to start.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// What to run.
    pub scenario: Draft,
    /// What to run it on.
    pub stage: Stage,
}

/// How a study is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// It runs.
    Running,
    /// It was asked to stop.
    Stopping,
    /// It left a record.
    Finished,
    /// It was stopped; runs that were finished are kept.
    Stopped,
    /// It failed.
    Failed,
}

/// A study, as it is told.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// Its number, which no other study has, of this server or of one before it.
    pub id: u64,
    /// Counts up with every change: of two answers, that with the greater one is the later.
    pub version: u64,
    /// Name of its scenario.
    scenario: String,
    /// What its scenario is called.
    title: String,
    /// What it runs on.
    stage: Stage,
    /// Name of its record.
    record: String,
    /// How it is.
    phase: Phase,
    /// Why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
    /// The code `netstage run` would end with, once it is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<u8>,
    /// Runs finished.
    done: usize,
    /// Runs in all.
    total: usize,
    /// What is done of the runs under way, in runs.
    under_way: f64,
    /// Time left, seconds, once it can be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_s: Option<f64>,
    /// What was begun last.
    doing: String,
}

impl Status {
    /// Whether more comes of it.
    pub fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Stopping)
    }
}

/// A study, and the network it runs.
#[derive(Debug, Serialize)]
pub struct Shown {
    /// How it is.
    #[serde(flatten)]
    status: Status,
    /// The cells of its sweep: what sets each apart.
    cells: Vec<String>,
    /// The network of the first cell, for drawing; weights only where all cells have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    topology: Option<Topology>,
    /// For each cell, the weights of its VPNs by name.
    weights: Vec<Weights>,
}

/// Weights of VPNs, by name.
type Weights = BTreeMap<String, f64>;

/// A study under way or over.
#[derive(Debug)]
pub struct Study {
    cells: Vec<String>,
    topology: Option<Topology>,
    weights: Vec<Weights>,
    interrupted: Arc<AtomicBool>,
    now: Mutex<Now>,
    /// The version of the status; changes whenever there is something to tell.
    version: watch::Sender<u64>,
}

#[derive(Debug)]
struct Now {
    status: Status,
    feed: Feed,
}

impl Study {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Now)) {
        let mut now = self.now();
        change(&mut now);
        now.status.version += 1;
        self.version.send_replace(now.status.version);
    }

    /// How it is.
    pub fn status(&self) -> Status {
        self.now().status.clone()
    }

    /// How it is, and the network it runs.
    pub fn shown(&self) -> Shown {
        let (cells, topology, weights) = (self.cells.clone(), self.topology.clone(), self.weights.clone());
        Shown { status: self.status(), cells, topology, weights }
    }

    /// How it is, and what its runs found beyond what was told before. Once it is over, that is the last of it.
    pub fn news(&self, told: &mut Cursor) -> (Status, Vec<Told>) {
        let now = self.now();
        (now.status.clone(), now.feed.news(told))
    }

    /// The version of its status now.
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// That version, whenever it changes.
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Asks it to stop.
    pub fn stop(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
        self.change(|now| {
            if now.status.phase == Phase::Running {
                now.status.phase = Phase::Stopping;
            }
        });
    }

    fn is_over(&self) -> bool {
        !self.now().status.is_running()
    }
}

/// The studies of this server.
#[derive(Debug, Default)]
pub struct Studies {
    /// The latest of them, the first one first.
    all: Mutex<Vec<Arc<Study>>>,
    /// How many there were.
    started: AtomicU64,
}

/// Studies, for those who count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Started since the server began.
    pub started: u64,
    /// Failed, of the latest.
    pub failed: usize,
    /// That run now.
    pub running: usize,
    /// Runs finished, and in all, of those.
    pub runs: (usize, usize),
}

impl Studies {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<Study>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How each is, the latest first.
    pub fn list(&self) -> Vec<Status> {
        self.all().iter().rev().map(|study| study.status()).collect()
    }

    /// The one of a number.
    pub fn find(&self, id: u64) -> Result<Arc<Study>, Refusal> {
        let found = self.all().iter().find(|study| study.now().status.id == id).cloned();
        found.ok_or_else(|| Refusal::missing(format!("there is no run {id}")))
    }

    /// What there is to count.
    pub fn counted(&self) -> Counted {
        let all: Vec<Status> = self.all().iter().map(|study| study.status()).collect();
        let running = || all.iter().filter(|status| status.is_running());
        Counted {
            started: self.started.load(Ordering::Relaxed),
            failed: all.iter().filter(|status| status.phase == Phase::Failed).count(),
            running: running().count(),
            runs: (running().map(|status| status.done).sum(), running().map(|status| status.total).sum()),
        }
    }

    /// Asks all to stop, and waits until they have.
    pub fn stop(&self) {
        let all = self.all().clone();
        all.iter().for_each(|study| study.interrupted.store(true, Ordering::Relaxed));
        while !all.iter().all(|study| study.is_over()) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Checks an order, and starts its thread.
pub fn begin(shared: &Shared, order: &Order) -> Result<Status, Refusal> {
    let scenario = parse(&shared.scenarios, &order.scenario)??;
    if let Some(refusal) = refusal(order.stage, &scenario) {
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, "unsupported", refusal));
    }
    let mut all = shared.studies.all();
    if let Some(other) = all.iter().find(|study| !study.is_over()) {
        let message = format!("\"{}\" is running", other.status().title);
        return Err(Refusal::conflict(message).help("wait for its end, or stop it"));
    }
    // No record lies in another's folder.
    let base = order.scenario.name.trim_end_matches(ENDING).replace('/', "-");
    let status = Status {
        id: number(all.last().map(|last| last.status().id)),
        version: 0,
        scenario: order.scenario.name.clone(),
        title: scenario.title.clone(),
        stage: order.stage,
        record: base.clone(),
        phase: Phase::Running,
        problem: String::new(),
        exit: None,
        done: 0,
        total: scenario.cells.len() * scenario.repeat as usize,
        under_way: 0.0,
        left_s: None,
        doing: String::new(),
    };
    let study = Arc::new(Study {
        cells: scenario.cells.iter().map(cell_name).collect(),
        topology: planned(&scenario.cells),
        weights: scenario.cells.iter().map(weights).collect(),
        interrupted: Arc::default(),
        now: Mutex::new(Now { status: status.clone(), feed: Feed::default() }),
        version: watch::Sender::new(0),
    });
    let (server, stage, running) = (Arc::clone(shared), order.stage, Arc::clone(&study));
    thread::Builder::new()
        .name("study".into())
        .spawn(move || carry_out(&server, &running, &scenario, stage, &base))
        .map_err(|error| Refusal::io("start", "a thread", &error))?;
    if all.len() >= MOST {
        all.remove(0);
    }
    all.push(study);
    shared.studies.started.fetch_add(1, Ordering::Relaxed);
    Ok(status)
}

/// A number for the next study: the time, so that a page which outlives this server does not take a study of the next
/// one for its own.
fn number(last: Option<u64>) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since.as_millis()).unwrap_or_default();
    last.map_or(now, |last| now.max(last + 1))
}

/// Why a stage does not run a scenario; none where it does, as far as that is known before.
pub fn refusal(stage: Stage, scenario: &Scenario) -> Option<String> {
    let of_plan = match stage {
        Stage::Sim => stage::sim_refusal,
        Stage::Emu => stage::emu_refusal,
        // The rest its hosts tell when they are asked.
        Stage::Live => hosts::refusal,
    };
    scenario.cells.iter().find_map(|cell| of_plan(&cell.plan))
}

fn weights(cell: &Cell) -> Weights {
    cell.plan.vpns.iter().map(|vpn| (vpn.name.clone(), vpn.settings.weight)).collect()
}

fn cell_name(cell: &Cell) -> String {
    let settings = cell.settings.iter().map(|(path, value)| format!("{path} = {value}"));
    let variant = (!cell.variant.is_empty()).then(|| cell.variant.clone());
    variant.into_iter().chain(settings).collect::<Vec<_>>().join(", ")
}

/// Runs a study to its record, in the first folder that is free or holds the same, unfinished.
fn carry_out(shared: &Shared, study: &Arc<Study>, scenario: &Scenario, stage: Stage, base: &str) {
    let mut result = Err(Failure::run("no folder is free for the record").help("move some away"));
    for number in 1..=MOST_NAMES {
        let name = if number == 1 { base.to_owned() } else { format!("{base}-{number}") };
        let out = shared.records.folder().join(&name);
        study.change(|now| now.status.record = name);
        match run(shared, study, scenario, stage, out) {
            Err(Error::Occupied { .. } | Error::InUse { .. }) => {}
            Ok(record) => {
                let path = record.folder.join(page::NAME);
                let written = page::write(&path, &report(&record));
                result = written.map(|()| exit::of(&record)).map_err(|e| Failure::write(&path, &e));
                break;
            }
            Err(error) => {
                result = Err(error.into());
                break;
            }
        }
    }
    study.change(|now| {
        (now.status.under_way, now.status.left_s) = (0.0, None);
        match result {
            Ok(code) => (now.status.phase, now.status.exit) = (Phase::Finished, Some(code)),
            Err(failure) => {
                let stopped = failure.code() == INTERRUPTED;
                now.status.phase = if stopped { Phase::Stopped } else { Phase::Failed };
                now.status.exit = Some(failure.code());
                now.status.problem = failure.to_string();
            }
        }
    });
}

fn run(
    shared: &Shared,
    study: &Arc<Study>,
    scenario: &Scenario,
    stage: Stage,
    out: PathBuf,
) -> Result<Record, Error> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let (emulation, placement);
    // Runs in real time take the processor from each other, so those go one by one.
    let (name, jobs, runner): (_, _, &Runner) = match stage {
        Stage::Sim => ("sim", cores, &stage::sim),
        Stage::Emu => {
            let means = means(&out, Backend::Own);
            emulation = stage::emu(means.map_err(|failure| Error::Unsupported(failure.to_string()))?);
            ("emu", 1, &emulation)
        }
        Stage::Live => {
            let fleet = Fleet::open(&shared.fleet).map_err(|error| Error::Unsupported(error.to_string()))?;
            placement = stage::live(hosts::Means::new(fleet, &out));
            ("live", 1, &placement)
        }
    };
    let options = Options { out, jobs, retries: 0, stage: name.into(), tool: TOOL.into() };
    netstage_study::run(scenario, runner, &options, &mut Watcher(study), &study.interrupted)
}

/// Passes on what is heard of a study.
struct Watcher<'a>(&'a Study);

impl Observer for Watcher<'_> {
    fn progress(&mut self, progress: Progress) {
        let Progress { done, total, under_way, left, doing } = progress;
        let left_s = left.map(|left| left.as_secs_f64());
        let after = |status: &Status| Status {
            done,
            total,
            under_way,
            left_s,
            doing: doing.clone(),
            ..status.clone()
        };
        let before = self.0.status();
        if after(&before) != before {
            self.0.change(|now| now.status = after(&now.status));
        }
    }

    fn listens(&self) -> bool {
        true
    }

    fn so_far(&mut self, run: Run, outcome: Outcome, is_over: bool) {
        self.0.change(|now| now.feed.add(run, &outcome, is_over));
    }
}
