//! Studies started from the page: one at a time, on a thread of its own, watched by any number.

use super::extract::{Asked, Of, Sent};
use super::feed::{Cursor, Feed, NoCursor, Told};
use super::refusal::{Refusal, Refused};
use super::scenarios::{Draft, ENDING, parse};
use super::{Answer, Shared, apart};
use crate::cmd::run::{LOGS, code, own_program};
use crate::exit::{Failure, INTERRUPTED};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse as _, Response, Sse};
use netstage_live::fleet::Fleet;
use netstage_live::placed;
use netstage_scenario::outcome::Outcome;
use netstage_scenario::{Cell, Scenario};
use netstage_study::report::{Topology, planned, report};
use netstage_study::stage::{self, Backend, Means};
use netstage_study::{Error, Observer, Options, Progress, Record, Run, Runner, TOOL, page};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use utoipa::{IntoParams, ToSchema};

/// Studies remembered; the records of all are kept.
const MOST: usize = 50;
/// A watcher is told no more often.
const TELL_EVERY: Duration = Duration::from_millis(50);
/// Folders tried for a record whose name is taken.
const MOST_NAMES: usize = 1_000;

/// What a study is to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Order {
    /// What to run.
    pub scenario: Draft,
    /// What to run it on.
    pub stage: Stage,
}

/// How a study is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
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
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Status {
    /// Its number, which no other study has, of this server or of one before it.
    id: u64,
    /// Counts up with every change: of two answers, that with the greater one is the later.
    version: u64,
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
    fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Stopping)
    }
}

/// A study, and the network it runs.
#[derive(Debug, Serialize, ToSchema)]
pub struct Shown {
    /// How it is.
    #[serde(flatten)]
    status: Status,
    /// The cells of its sweep: what sets each apart.
    cells: Vec<String>,
    /// The network of the first cell, for drawing; weights only where all cells have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    topology: Option<Topology>,
    /// For each cell, the weights of its VPNs by name.
    weights: Vec<Weights>,
}

/// Weights of VPNs, by name.
type Weights = BTreeMap<String, f64>;

/// A study under way or over.
#[derive(Debug)]
struct Study {
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

    fn status(&self) -> Status {
        self.now().status.clone()
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

    fn find(&self, id: u64) -> Result<Arc<Study>, Refusal> {
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

/// The studies started here, the latest first.
#[utoipa::path(get, path = "/api/runs", tag = "runs", responses((status = 200, body = Vec<Status>)))]
pub async fn list(State(shared): State<Shared>) -> Json<Vec<Status>> {
    Json(shared.studies.all().iter().rev().map(|study| study.status()).collect())
}

/// Starts a study.
#[utoipa::path(post, path = "/api/runs", tag = "runs", request_body = Order,
    responses((status = 201, body = Status), (status = "4XX", body = Refused)))]
pub async fn start(
    State(shared): State<Shared>,
    Sent(order): Sent<Order>,
) -> Result<(StatusCode, Json<Status>), Refusal> {
    apart(move || Ok((StatusCode::CREATED, Json(begin(&shared, &order)?)))).await
}

/// How a study is, and the network it runs.
#[utoipa::path(get, path = "/api/runs/{id}", tag = "runs", params(("id" = u64, Path)),
    responses((status = 200, body = Shown), (status = "4XX", body = Refused)))]
pub async fn read(State(shared): State<Shared>, Of(id): Of<u64>) -> Answer<Shown> {
    let study = shared.studies.find(id)?;
    let (cells, topology, weights) = (study.cells.clone(), study.topology.clone(), study.weights.clone());
    Ok(Json(Shown { status: study.status(), cells, topology, weights }))
}

/// Stops a study; runs that were finished are kept, and the same study goes on with them.
#[utoipa::path(delete, path = "/api/runs/{id}", tag = "runs", params(("id" = u64, Path)),
    responses((status = 202), (status = "4XX", body = Refused)))]
pub async fn stop(State(shared): State<Shared>, Of(id): Of<u64>) -> Result<StatusCode, Refusal> {
    let study = shared.studies.find(id)?;
    study.interrupted.store(true, Ordering::Relaxed);
    study.change(|now| {
        if now.status.phase == Phase::Running {
            now.status.phase = Phase::Stopping;
        }
    });
    Ok(StatusCode::ACCEPTED)
}

/// What was told before.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct After {
    /// The `next` of the answer before; empty for all from the start.
    #[serde(default)]
    #[param(required = false)]
    after: String,
}

/// What is new of a study.
#[derive(Debug, Serialize, ToSchema)]
pub struct News {
    /// How it is.
    status: Status,
    /// What came since.
    told: Vec<Told>,
    /// What to ask with for what comes next.
    next: String,
}

/// What is new of a study since it was last asked for, without a connection kept open: a browser has few to a host,
/// however many pages show a run.
#[utoipa::path(get, path = "/api/runs/{id}/news", tag = "runs", params(("id" = u64, Path), After),
    responses((status = 200, body = News), (status = 204, description = "nothing is new"), (status = "4XX", body = Refused)))]
pub async fn news(
    State(shared): State<Shared>,
    Of(id): Of<u64>,
    Asked(After { after }): Asked<After>,
) -> Result<Response, Refusal> {
    let study = shared.studies.find(id)?;
    let mut place: Place = after.parse().map_err(|_| {
        Refusal::bad(format!("\"{}\" is not what an answer before told as `next`", after.escape_debug()))
            .help("leave `after` out to be told all from the start")
    })?;
    let now = study.now();
    let status = now.status.clone();
    if place.version.replace(status.version) == Some(status.version) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let told = now.feed.news(&mut place.cursor);
    drop(now);
    Ok(Json(News { status, told, next: place.to_string() }).into_response())
}

/// Where one who asks again and again is: what was told, and the version of the status then; as text `CURSOR@VERSION`.
#[derive(Debug, Default)]
struct Place {
    cursor: Cursor,
    version: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.cursor, self.version.unwrap_or_default())
    }
}

impl FromStr for Place {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Place, NoCursor> {
        if text.is_empty() {
            return Ok(Place::default());
        }
        let (cursor, version) = text.split_once('@').ok_or(NoCursor)?;
        Ok(Place { cursor: cursor.parse()?, version: Some(version.parse().map_err(|_| NoCursor)?) })
    }
}

/// What is told of a study while it goes on.
#[derive(ToSchema)]
#[allow(dead_code, reason = "it describes the events")]
pub struct Happening {
    /// `status` (its data is a `Status`), `told` (a `Told`), or `over`, the last.
    event: String,
    /// JSON.
    data: String,
}

/// A study as it happens: `status` events, `told` events of its runs, and `over` at the end.
#[utoipa::path(get, path = "/api/runs/{id}/events", tag = "runs", params(("id" = u64, Path)),
    responses((status = 200, content_type = "text/event-stream", body = Happening), (status = "4XX", body = Refused)))]
pub async fn events(
    State(shared): State<Shared>,
    Of(id): Of<u64>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let study = shared.studies.find(id)?;
    let (sender, events) = mpsc::channel(4);
    tokio::spawn(async move { tell(&study, &sender).await });
    Ok(Sse::new(ReceiverStream::new(events).map(Ok)).keep_alive(KeepAlive::default()))
}

/// Tells a watcher until the study is over, or the watcher gone.
async fn tell(study: &Study, events: &mpsc::Sender<Event>) -> Option<()> {
    let mut version = study.version.subscribe();
    let mut cursor = Cursor::default();
    let event = |kind: &str, data: String| Event::default().event(kind).data(data);
    loop {
        version.borrow_and_update();
        let is_over = study.is_over();
        let (status, news) = {
            let now = study.now();
            (as_json(&now.status), now.feed.news(&mut cursor))
        };
        for told in &news {
            events.send(event("told", as_json(told))).await.ok()?;
        }
        events.send(event("status", status)).await.ok()?;
        if is_over {
            return events.send(event("over", "{}".into())).await.ok();
        }
        tokio::select! {
            changed = version.changed() => changed.ok()?,
            () = events.closed() => return None,
        }
        tokio::time::sleep(TELL_EVERY).await;
    }
}

fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("text and numbers")
}

/// Checks an order, and starts its thread.
fn begin(shared: &Shared, order: &Order) -> Result<Status, Refusal> {
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
        Stage::Live => placed::refusal,
    };
    scenario.cells.iter().find_map(|cell| of_plan(&cell.plan))
}

fn weights(cell: &Cell) -> Weights {
    cell.plan.vpns.iter().map(|vpn| (vpn.name.clone(), vpn.weight)).collect()
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
                result = written.map(|()| code(&record)).map_err(|e| Failure::write(&path, &e));
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
            let program = own_program().map_err(|failure| Error::Unsupported(failure.to_string()))?;
            emulation = stage::emu(Means { program, logs: out.join(LOGS), backend: Backend::Own });
            ("emu", 1, &emulation)
        }
        Stage::Live => {
            let fleet = Fleet::open(&shared.fleet).map_err(|error| Error::Unsupported(error.to_string()))?;
            placement = stage::live(placed::Means::new(fleet, &out));
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
