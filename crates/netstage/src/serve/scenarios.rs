//! Requests about scenario files: list, read, check and write.

use super::error_response::{ErrorResponse, ScenarioProblem};
use super::extract::{JsonBody, QueryParameters};
use super::folder::PublicFolder;
use super::studies::{StudyRequest, Weights, refusal, weights};
use super::{JsonResponse, SharedState, run_blocking};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use netstage_core::time::Duration;
use netstage_scenario::plan::Plan;
use netstage_scenario::{Cell, LoadOptions, Scenario, regular_file};
use netstage_study::report::{TopologyDiagram, planned_topology};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::Path;

/// File extension of scenarios.
pub const FILE_EXTENSION: &str = ".toml";
/// Maximum size of a file that is read for its title.
const MAX_BYTES_FOR_TITLE: u64 = 1 << 20;

/// List entry of a scenario file.
#[derive(Debug, Serialize)]
pub struct ScenarioEntry {
    /// Name with folders.
    name: String,
    /// Title; empty: unreadable.
    title: String,
    /// Description from the scenario.
    description: String,
}

/// Request for one scenario.
#[derive(Debug, Deserialize)]
pub struct ScenarioName {
    /// Name with folders.
    name: String,
}

/// Text of a scenario.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// Text.
    text: String,
}

/// Request to write a scenario.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioUpdate {
    /// Text.
    text: String,
    /// Text of the file when editing started; null: new file. If the file has changed since, it is not overwritten.
    before: Option<String>,
}

/// Scenario to check or run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    /// Name, to which the paths in the text are relative.
    pub name: String,
    /// Text.
    pub text: String,
    /// First seed, which overrides that of the text.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Runs per cell, which override those of the text.
    #[serde(default)]
    pub repeat: Option<u32>,
}

/// Result of a check.
#[derive(Debug, Default, Serialize)]
pub struct CheckResult {
    /// Whether the scenario can run on the stage.
    sound: bool,
    /// Problems.
    problems: Vec<ScenarioProblem>,
    /// Reason for which the stage cannot run a valid scenario; empty: it can.
    refusal: String,
    /// Warnings.
    warnings: Vec<String>,
    /// Title.
    title: String,
    /// Number of cells.
    cells: usize,
    /// Total runs.
    runs: usize,
    /// Duration of the longest run in seconds.
    duration_s: f64,
    /// Names of the expectations.
    expectations: Vec<String>,
    /// Names of the figures.
    plots: Vec<String>,
    /// Topology; weights only if equal in all cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    topology: Option<TopologyDiagram>,
}

/// Returns all scenario files.
pub async fn list(State(shared): State<SharedState>) -> JsonResponse<Vec<ScenarioEntry>> {
    run_blocking(move || {
        let shelf = &shared.scenarios;
        let is_one = |entry: &fs::DirEntry| {
            entry.file_name().to_string_lossy().ends_with(FILE_EXTENSION)
                && entry.file_type().is_ok_and(|kind| kind.is_file())
        };
        let names =
            shelf.names(is_one).map_err(|e| ErrorResponse::io("list", "the folder of scenarios", &e))?;
        Ok(Json(names.into_iter().map(|name| listed(shelf, name)).collect()))
    })
    .await
}

fn listed(shelf: &PublicFolder, name: String) -> ScenarioEntry {
    let path = shelf.folder().join(&name);
    let is_small = fs::metadata(&path).is_ok_and(|found| found.len() <= MAX_BYTES_FOR_TITLE);
    let text = is_small.then(|| regular_file::read_to_string(&path).ok()).flatten().unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_default();
    let head = |key: &str| {
        let value = table.get("scenario").and_then(|head| head.get(key)?.as_str());
        value.unwrap_or("").trim().to_owned()
    };
    ScenarioEntry { title: head("title"), description: head("description"), name }
}

/// Returns the text of a scenario.
pub async fn read(
    State(shared): State<SharedState>,
    QueryParameters(named): QueryParameters<ScenarioName>,
) -> JsonResponse<Text> {
    run_blocking(move || {
        let path = file(&shared.scenarios, &named.name)?;
        let text = regular_file::read_to_string(&path)
            .map_err(|error| ErrorResponse::io("read", &named.name, &error))?;
        Ok(Json(Text { text }))
    })
    .await
}

/// Writes a scenario file, whether valid or not.
pub async fn write(
    State(shared): State<SharedState>,
    QueryParameters(named): QueryParameters<ScenarioName>,
    JsonBody(update): JsonBody<ScenarioUpdate>,
) -> Result<StatusCode, ErrorResponse> {
    run_blocking(move || {
        let path = file(&shared.scenarios, &named.name)?;
        let _writing = shared.writing.lock();
        let now = match regular_file::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(ErrorResponse::io("read", &named.name, &error)),
        };
        if now != update.before && now.as_ref() != Some(&update.text) {
            let message = match (now, update.before) {
                (None, _) => format!("{} was removed since editing started", named.name),
                (_, None) => format!("{} already exists", named.name),
                _ => format!("{} was changed since editing started", named.name),
            };
            return Err(
                ErrorResponse::conflict(message).help("save the text under another name, or reload the file")
            );
        }
        replace(&path, update.text.as_bytes())
            .map_err(|error| ErrorResponse::io("write", &named.name, &error))?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Checks a scenario like `netstage check`, and whether the stage can run it.
pub async fn check(
    State(shared): State<SharedState>,
    JsonBody(order): JsonBody<StudyRequest>,
) -> JsonResponse<CheckResult> {
    run_blocking(move || {
        let (mut refused, mut first) = (None, None);
        let keep = |cell: Cell| {
            refused = refused.take().or_else(|| refusal(order.stage, &cell.plan));
            let kept = (cell.plan.duration, weights(&cell));
            first.get_or_insert(cell.plan);
            kept
        };
        let parsed = parse_with(&shared.scenarios, &order.scenario, keep)?;
        Ok(Json(match parsed {
            Ok(scenario) => checked(refused, first, scenario),
            Err(errors) => CheckResult { problems: ScenarioProblem::all(&errors), ..CheckResult::default() },
        }))
    })
    .await
}

/// Returns the result for a scenario without faults. Of each cell, it needs the duration and the weights.
fn checked(
    refusal: Option<String>,
    first: Option<Plan>,
    scenario: Scenario<(Duration, Weights)>,
) -> CheckResult {
    let (durations, weights): (Vec<Duration>, Vec<Weights>) = scenario.cells.iter().cloned().unzip();
    CheckResult {
        sound: refusal.is_none(),
        problems: Vec::new(),
        refusal: refusal.unwrap_or_default(),
        cells: scenario.cells.len(),
        runs: scenario.cells.len() * scenario.repeat as usize,
        duration_s: durations.into_iter().max().unwrap_or_default().as_secs_f64(),
        expectations: scenario.expectations.into_iter().map(|expectation| expectation.name).collect(),
        plots: scenario.plots.into_iter().map(|plot| plot.name).collect(),
        topology: first.and_then(|plan| planned_topology(&plan, &weights)),
        title: scenario.title,
        warnings: scenario.warnings,
    }
}

/// Parses a scenario, and keeps what `keep` returns of each cell. The outer error is that of an invalid name.
pub fn parse_with<C>(
    shelf: &PublicFolder,
    draft: &Draft,
    keep: impl FnMut(Cell) -> C,
) -> Result<Result<Scenario<C>, netstage_scenario::Errors>, ErrorResponse> {
    let path = file(shelf, &draft.name)?;
    let options = LoadOptions { seed: draft.seed, repeat: draft.repeat, ..LoadOptions::default() };
    let folder = path.parent().unwrap_or(shelf.folder());
    Ok(netstage_scenario::parse_with(&draft.name, &draft.text, Some(folder), &options, keep))
}

fn file(shelf: &PublicFolder, name: &str) -> Result<std::path::PathBuf, ErrorResponse> {
    if !name.ends_with(FILE_EXTENSION) {
        return Err(ErrorResponse::invalid(format!(
            "\"{}\": the name of a scenario must end with {FILE_EXTENSION}",
            name.escape_debug()
        )));
    }
    shelf.path(name)
}

/// Replaces a file atomically, and preserves its owner and permissions.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("toml.partial");
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let write = || {
        let mut file = fs::File::create(&temporary)?;
        if let Ok(before) = fs::metadata(path) {
            let now = file.metadata()?;
            if (before.uid(), before.gid()) != (now.uid(), now.gid()) {
                fchown(&file, Some(before.uid()), Some(before.gid()))?;
            }
            file.set_permissions(before.permissions())?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))
}
