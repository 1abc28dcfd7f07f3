//! Scenario files: listed, read, checked, written.

use super::extract::{Asked, Sent};
use super::refusal::{Problem, Refusal};
use super::shelf::Shelf;
use super::studies::{Order, refusal};
use super::{Answer, Shared, apart};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use netstage_scenario::{Options, Scenario, regular};
use netstage_study::report::{Topology, planned};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::Path;

/// What scenario files end with.
pub const ENDING: &str = ".toml";
/// A file larger than this is not read for its title.
const MOST_FOR_TITLE: u64 = 1 << 20;

/// A scenario file.
#[derive(Debug, Serialize)]
pub struct Listed {
    /// Its name, folders included.
    name: String,
    /// What it is called; empty where it cannot be read.
    title: String,
    /// A few sentences from it.
    description: String,
}

/// Which one.
#[derive(Debug, Deserialize)]
pub struct Named {
    /// Its name, folders included.
    name: String,
}

/// A scenario's text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// The text.
    text: String,
}

/// A text to keep.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// The text.
    text: String,
    /// The text the file had when its editing began; none for a new file. Another text there now
    /// is somebody else's work, and is not written over.
    before: Option<String>,
}

/// A text to check.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draft {
    /// The name it has or would have: files it names are looked for beside it.
    pub name: String,
    /// The text.
    pub text: String,
    /// First seed, in place of the text's.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Runs of each cell, in place of the text's.
    #[serde(default)]
    pub repeat: Option<u32>,
}

/// What a text is.
#[derive(Debug, Default, Serialize)]
pub struct Checked {
    /// Whether it can run on the stage.
    sound: bool,
    /// What is wrong with it.
    problems: Vec<Problem>,
    /// Why the stage does not run it, though nothing is wrong with it; empty where it does.
    refusal: String,
    /// What is legal but unwise.
    warnings: Vec<String>,
    /// What it is called.
    title: String,
    /// Cells of its sweep.
    cells: usize,
    /// Runs in all.
    runs: usize,
    /// Length of the longest run, seconds.
    duration_s: f64,
    /// Names of its expectations.
    expectations: Vec<String>,
    /// Names of its figures.
    plots: Vec<String>,
    /// The network, for drawing; weights only where all cells have the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    topology: Option<Topology>,
}

/// All scenario files.
pub async fn list(State(shared): State<Shared>) -> Answer<Vec<Listed>> {
    apart(move || {
        let shelf = &shared.scenarios;
        let is_one = |entry: &fs::DirEntry| {
            entry.file_name().to_string_lossy().ends_with(ENDING)
                && entry.file_type().is_ok_and(|kind| kind.is_file())
        };
        let names = shelf.names(is_one).map_err(|e| Refusal::io("list", "the folder of scenarios", &e))?;
        Ok(Json(names.into_iter().map(|name| listed(shelf, name)).collect()))
    })
    .await
}

fn listed(shelf: &Shelf, name: String) -> Listed {
    let path = shelf.folder().join(&name);
    let is_small = fs::metadata(&path).is_ok_and(|found| found.len() <= MOST_FOR_TITLE);
    let text = is_small.then(|| regular::read_to_string(&path).ok()).flatten().unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_default();
    let head = |key: &str| {
        let value = table.get("scenario").and_then(|head| head.get(key)?.as_str());
        value.unwrap_or("").trim().to_owned()
    };
    Listed { title: head("title"), description: head("description"), name }
}

/// The text of a scenario.
pub async fn read(State(shared): State<Shared>, Asked(named): Asked<Named>) -> Answer<Text> {
    apart(move || {
        let path = file(&shared.scenarios, &named.name)?;
        let text =
            regular::read_to_string(&path).map_err(|error| Refusal::io("read", &named.name, &error))?;
        Ok(Json(Text { text }))
    })
    .await
}

/// Keeps a text as a scenario, sound or not.
pub async fn write(
    State(shared): State<Shared>,
    Asked(named): Asked<Named>,
    Sent(kept): Sent<Kept>,
) -> Result<StatusCode, Refusal> {
    apart(move || {
        let path = file(&shared.scenarios, &named.name)?;
        let _writing = shared.writing.lock();
        let now = match regular::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Refusal::io("read", &named.name, &error)),
        };
        if now != kept.before && now.as_ref() != Some(&kept.text) {
            let message = match (now, kept.before) {
                (None, _) => format!("{} was removed since its editing began", named.name),
                (_, None) => format!("there is a {} already", named.name),
                _ => format!("{} is not what it was when its editing began", named.name),
            };
            return Err(
                Refusal::conflict(message).help("keep the text under another name, or open the file anew")
            );
        }
        replace(&path, kept.text.as_bytes()).map_err(|error| Refusal::io("write", &named.name, &error))?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Checks a text as `netstage check` does, and whether the stage runs it.
pub async fn check(State(shared): State<Shared>, Sent(order): Sent<Order>) -> Answer<Checked> {
    apart(move || {
        Ok(Json(match parse(&shared.scenarios, &order.scenario)? {
            Ok(scenario) => checked(refusal(order.stage, &scenario), scenario),
            Err(errors) => Checked { problems: Problem::all(&errors), ..Checked::default() },
        }))
    })
    .await
}

fn checked(refusal: Option<String>, scenario: Scenario) -> Checked {
    let durations = scenario.cells.iter().map(|cell| cell.plan.duration.as_secs_f64());
    Checked {
        sound: refusal.is_none(),
        problems: Vec::new(),
        refusal: refusal.unwrap_or_default(),
        cells: scenario.cells.len(),
        runs: scenario.cells.len() * scenario.repeat as usize,
        duration_s: durations.fold(0.0, f64::max),
        expectations: scenario.expectations.into_iter().map(|one| one.name).collect(),
        plots: scenario.plots.into_iter().map(|one| one.name).collect(),
        topology: planned(&scenario.cells),
        title: scenario.title,
        warnings: scenario.warnings,
    }
}

/// Reads a draft. The outer error is a name that cannot be.
pub fn parse(shelf: &Shelf, draft: &Draft) -> Result<Result<Scenario, netstage_scenario::Errors>, Refusal> {
    let path = file(shelf, &draft.name)?;
    let options = Options { seed: draft.seed, repeat: draft.repeat, ..Options::default() };
    let folder = path.parent().unwrap_or(shelf.folder());
    Ok(netstage_scenario::parse(&draft.name, &draft.text, Some(folder), &options))
}

fn file(shelf: &Shelf, name: &str) -> Result<std::path::PathBuf, Refusal> {
    if !name.ends_with(ENDING) {
        return Err(Refusal::bad(format!("the name of a scenario ends with {ENDING}")));
    }
    shelf.path(name)
}

/// Writes a file beside its place and puts it there, so that no half of it is ever read. Who may read and write
/// it stays as it was.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let aside = path.with_extension("toml.partial");
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let write = || {
        let mut file = fs::File::create(&aside)?;
        if let Ok(before) = fs::metadata(path) {
            let now = file.metadata()?;
            if (before.uid(), before.gid()) != (now.uid(), now.gid()) {
                fchown(&file, Some(before.uid()), Some(before.gid()))?;
            }
            file.set_permissions(before.permissions())?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&aside, path)
    };
    write().inspect_err(|_| drop(fs::remove_file(&aside)))
}
