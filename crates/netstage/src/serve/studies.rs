//! Studies started from the page: one at a time, on a separate thread.

use super::SharedState;
use super::error_response::ErrorResponse;
use super::feed::{Cursor, Feed, RunEvent};
use super::scenarios::{Draft, FILE_EXTENSION, parse_with};
use crate::exit::{self, Failure, INTERRUPTED};
use crate::stages::{self, Stage};
use axum::http::StatusCode;
use netstage_agent::fleet::FleetFolder;
use netstage_scenario::outcome::RunOutcome;
use netstage_scenario::plan::Plan;
use netstage_scenario::{Cell, Scenario};
use netstage_stage::hosts;
use netstage_study::report::{TopologyDiagram, planned_topology, report};
use netstage_study::stage::{self, Backend};
use netstage_study::{
    Observer, RunId, StoredRecord, StudyError, StudyOptions, StudyProgress, TOOL, folders, page,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Maximum number of listed studies. The records of all remain.
const MAX_STUDIES: usize = 50;

/// Request to start a study.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StudyRequest {
    /// Scenario.
    pub scenario: Draft,
    /// Stage.
    pub stage: Stage,
}

/// Phase of a study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StudyPhase {
    /// In progress.
    Running,
    /// Stop requested.
    Stopping,
    /// Complete record.
    Finished,
    /// Stopped; finished runs are kept.
    Stopped,
    /// Failed.
    Failed,
}

/// Status of a study.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// Number of the study, unique across restarts of the server.
    pub id: u64,
    /// Version, which increases with every change: of two responses, the one with the higher version is newer.
    pub version: u64,
    /// Name of the scenario.
    scenario: String,
    /// Title of the scenario.
    title: String,
    /// Stage.
    stage: Stage,
    /// Name of the record.
    record: String,
    /// Phase.
    phase: StudyPhase,
    /// Reason of a failure.
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
    /// Exit code that `netstage run` would return, once the study has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<u8>,
    /// Finished runs.
    done: usize,
    /// Total runs.
    total: usize,
    /// Sum of the progress of runs in progress, in runs.
    in_progress: f64,
    /// Estimated remaining time in seconds, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    left_s: Option<f64>,
    /// Latest activity.
    doing: String,
}

impl Status {
    /// Returns whether the study has not ended.
    pub fn is_running(&self) -> bool {
        matches!(self.phase, StudyPhase::Running | StudyPhase::Stopping)
    }
}

/// Status of a study, and its network.
#[derive(Debug, Serialize)]
pub struct StudyDetails {
    /// Status.
    #[serde(flatten)]
    status: Status,
    /// Descriptions of the cells.
    cells: Vec<String>,
    /// Topology of the first cell; weights only if equal in all cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    topology: Option<TopologyDiagram>,
    /// Weights of the VPNs by name, for each cell.
    weights: Vec<Weights>,
}

/// Weights of VPNs, by name.
pub type Weights = BTreeMap<String, f64>;

/// Running or ended study.
#[derive(Debug)]
pub struct ServedStudy {
    cells: Vec<String>,
    topology: Option<TopologyDiagram>,
    weights: Vec<Weights>,
    interrupted: Arc<AtomicBool>,
    now: Mutex<StudyState>,
    /// Version of the status; changes with every update.
    version: watch::Sender<u64>,
}

#[derive(Debug)]
struct StudyState {
    status: Status,
    feed: Feed,
}

impl ServedStudy {
    fn now(&self) -> MutexGuard<'_, StudyState> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut StudyState)) {
        let mut now = self.now();
        change(&mut now);
        now.status.version += 1;
        self.version.send_replace(now.status.version);
    }

    /// Returns the status.
    pub fn status(&self) -> Status {
        self.now().status.clone()
    }

    /// Returns the status and the network.
    pub fn details(&self) -> StudyDetails {
        let (cells, topology, weights) = (self.cells.clone(), self.topology.clone(), self.weights.clone());
        StudyDetails { status: self.status(), cells, topology, weights }
    }

    /// Returns the status and the events after the client's position. Once the study has ended, no more follow.
    pub fn updates(&self, cursor: &mut Cursor) -> (Status, Vec<RunEvent>) {
        let now = self.now();
        (now.status.clone(), now.feed.events_after(cursor))
    }

    /// Returns the current version of the status.
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    /// Returns a receiver of the version's changes.
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Requests the study to stop.
    pub fn stop(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
        self.change(|now| {
            if now.status.phase == StudyPhase::Running {
                now.status.phase = StudyPhase::Stopping;
            }
        });
    }

    fn is_over(&self) -> bool {
        !self.now().status.is_running()
    }
}

/// Studies of this server.
#[derive(Debug, Default)]
pub struct Studies {
    /// Latest studies, in order of start.
    all: Mutex<Vec<Arc<ServedStudy>>>,
    /// Number of started studies.
    started: AtomicU64,
}

/// Counters of studies, for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub struct StudyCounters {
    /// Studies started since the start of the server.
    pub started: u64,
    /// Failed studies among the latest.
    pub failed: usize,
    /// Running studies.
    pub running: usize,
    /// Finished and total runs of the running studies.
    pub runs: (usize, usize),
}

impl Studies {
    fn all(&self) -> MutexGuard<'_, Vec<Arc<ServedStudy>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the status of each study, latest first.
    pub fn list(&self) -> Vec<Status> {
        self.all().iter().rev().map(|study| study.status()).collect()
    }

    /// Returns the study with a number.
    pub fn find(&self, id: u64) -> Result<Arc<ServedStudy>, ErrorResponse> {
        let found = self.all().iter().find(|study| study.now().status.id == id).cloned();
        found.ok_or_else(|| ErrorResponse::missing(format!("study {id} does not exist")))
    }

    /// Returns the counters.
    pub fn counters(&self) -> StudyCounters {
        let all: Vec<Status> = self.all().iter().map(|study| study.status()).collect();
        let running = || all.iter().filter(|status| status.is_running());
        StudyCounters {
            started: self.started.load(Ordering::Relaxed),
            failed: all.iter().filter(|status| status.phase == StudyPhase::Failed).count(),
            running: running().count(),
            runs: (running().map(|status| status.done).sum(), running().map(|status| status.total).sum()),
        }
    }

    /// Stops all studies and waits for their end.
    pub fn stop(&self) {
        let all = self.all().clone();
        all.iter().for_each(|study| study.interrupted.store(true, Ordering::Relaxed));
        while !all.iter().all(|study| study.is_over()) {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Checks a request and starts the study's thread.
pub fn start_study(shared: &SharedState, order: &StudyRequest) -> Result<Status, ErrorResponse> {
    let scenario = parse_with(&shared.scenarios, &order.scenario, |cell| cell)??;
    if let Some(refusal) = scenario.cells.iter().find_map(|cell| refusal(order.stage, &cell.plan)) {
        return Err(ErrorResponse::new(StatusCode::UNPROCESSABLE_ENTITY, "unsupported", refusal));
    }
    let mut all = shared.studies.all();
    if let Some(other) = all.iter().find(|study| !study.is_over()) {
        let message = format!("\"{}\" is running", other.status().title);
        return Err(ErrorResponse::conflict(message).help("wait until it ends, or stop it"));
    }
    // A record must not be inside the folder of another one.
    let base = order.scenario.name.trim_end_matches(FILE_EXTENSION).replace('/', "-");
    let status = Status {
        id: number(all.last().map(|last| last.status().id)),
        version: 0,
        scenario: order.scenario.name.clone(),
        title: scenario.title.clone(),
        stage: order.stage,
        record: base.clone(),
        phase: StudyPhase::Running,
        problem: String::new(),
        exit: None,
        done: 0,
        total: scenario.cells.len() * scenario.repeat as usize,
        in_progress: 0.0,
        left_s: None,
        doing: String::new(),
    };
    let weights: Vec<Weights> = scenario.cells.iter().map(weights).collect();
    let study = Arc::new(ServedStudy {
        cells: scenario.cells.iter().map(cell_name).collect(),
        topology: scenario.cells.first().and_then(|cell| planned_topology(&cell.plan, &weights)),
        weights,
        interrupted: Arc::default(),
        now: Mutex::new(StudyState { status: status.clone(), feed: Feed::default() }),
        version: watch::Sender::new(0),
    });
    let (server, stage, running) = (Arc::clone(shared), order.stage, Arc::clone(&study));
    thread::Builder::new()
        .name("study".into())
        .spawn(move || carry_out(&server, &running, &scenario, stage, &base))
        .map_err(|error| ErrorResponse::io("start", "a thread", &error))?;
    if all.len() >= MAX_STUDIES {
        all.remove(0);
    }
    all.push(study);
    shared.studies.started.fetch_add(1, Ordering::Relaxed);
    Ok(status)
}

/// Returns the number of the next study. It is based on the time, so that a page that remains open across a restart of
/// the server does not confuse two studies.
fn number(last: Option<u64>) -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since.as_millis()).unwrap_or_default();
    last.map_or(now, |last| now.max(last + 1))
}

/// Returns the reason for which a stage cannot run a plan, as far as it is known in advance; `None` if it can.
pub fn refusal(stage: Stage, plan: &Plan) -> Option<String> {
    match stage {
        Stage::Sim => stage::sim_refusal(plan),
        Stage::Emu => stage::emu_refusal(plan),
        // The hosts report other reasons when the study starts.
        Stage::Live => hosts::refusal(plan),
    }
}

/// Returns the names and weights of the VPNs of a cell.
pub fn weights(cell: &Cell) -> Weights {
    cell.plan.vpns.iter().map(|vpn| (vpn.name.clone(), vpn.settings.weight)).collect()
}

fn cell_name(cell: &Cell) -> String {
    let settings = cell.settings.iter().map(|(path, value)| format!("{path} = {value}"));
    let variant = (!cell.variant.is_empty()).then(|| cell.variant.clone());
    variant.into_iter().chain(settings).collect::<Vec<_>>().join(", ")
}

/// Performs a study, in the first folder that is empty or holds the same study unfinished.
fn carry_out(shared: &SharedState, study: &Arc<ServedStudy>, scenario: &Scenario, stage: Stage, base: &str) {
    let mut result =
        Err(Failure::run("no free folder for the record")
            .help("move or remove some records of this scenario"));
    for out in folders(&shared.records.folder().join(base)) {
        let name = out.file_name().expect("a folder of records has a name").to_string_lossy().into_owned();
        study.change(|now| now.status.record = name);
        match run(shared, study, scenario, stage, out) {
            Err(StudyError::Occupied { .. } | StudyError::InUse { .. }) => {}
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
        (now.status.in_progress, now.status.left_s) = (0.0, None);
        match result {
            Ok(code) => (now.status.phase, now.status.exit) = (StudyPhase::Finished, Some(code)),
            Err(failure) => {
                let stopped = failure.code() == INTERRUPTED;
                now.status.phase = if stopped { StudyPhase::Stopped } else { StudyPhase::Failed };
                now.status.exit = Some(failure.code());
                now.status.problem = failure.to_string();
            }
        }
    });
}

fn run(
    shared: &SharedState,
    study: &Arc<ServedStudy>,
    scenario: &Scenario,
    stage: Stage,
    out: PathBuf,
) -> Result<StoredRecord, StudyError> {
    let unsupported = |failure: Failure| StudyError::Unsupported(failure.to_string());
    let (name, jobs, runner) = match stage {
        Stage::Sim => stages::sim(),
        Stage::Emu => stages::emu(Backend::Own, &out).map_err(unsupported)?,
        Stage::Live => {
            let fleet = FleetFolder::open(&shared.fleet)
                .map_err(|error| StudyError::Unsupported(error.to_string()))?;
            stages::live(fleet, &out)
        }
    };
    let options = StudyOptions { out, jobs, retries: 0, stage: name.into(), tool: TOOL.into() };
    netstage_study::run(scenario, &*runner, &options, &mut StatusObserver(study), &study.interrupted)
}

/// Observer that updates the status and the feed.
struct StatusObserver<'a>(&'a ServedStudy);

impl Observer for StatusObserver<'_> {
    fn progress(&mut self, progress: StudyProgress) {
        let StudyProgress { done, total, in_progress, remaining: left, activity: doing } = progress;
        let left_s = left.map(|left| left.as_secs_f64());
        let after = |status: &Status| Status {
            done,
            total,
            in_progress,
            left_s,
            doing: doing.clone(),
            ..status.clone()
        };
        let before = self.0.status();
        if after(&before) != before {
            self.0.change(|now| now.status = after(&now.status));
        }
    }

    fn wants_outcomes(&self) -> bool {
        true
    }

    fn outcome(&mut self, run: RunId, outcome: RunOutcome, is_over: bool) {
        self.0.change(|now| now.feed.add(run, &outcome, is_over));
    }
}
