//! Requests about records: list, search, report, comparison and download.

use super::error_response::ErrorResponse;
use super::extract::{JsonBody, QueryParameters};
use super::{JsonResponse, SharedState, run_blocking};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use netstage_scenario::regular_file;
use netstage_study::report::{ReportData, report, verdicts};
use netstage_study::{OpenError, RECORD_FILES, StoredRecord, compare, page};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use tokio_util::io::ReaderStream;

/// Maximum number of records in a comparison.
const MAX_COMPARED: usize = 12;

/// List entry of a record.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RecordEntry {
    /// Name: path relative to the folder of records.
    name: String,
    /// `finished`, `unfinished`, `damaged` or `unreadable`.
    state: Completeness,
    /// Problem of a damaged or unreadable record.
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
    /// Title of the scenario.
    title: String,
    /// Description from the scenario.
    description: String,
    /// Stage.
    stage: String,
    /// Name and version of the tool.
    tool: String,
    /// Start time of the last part (RFC 3339); empty: unknown.
    started: String,
    /// Finished runs.
    done: usize,
    /// Total runs.
    total: usize,
    /// Expectations that are met, counted separately for each cell.
    met: usize,
    /// Total expectations, counted separately for each cell.
    expected: usize,
    /// Whether the measurement is void.
    void: bool,
    /// Whether a failure occurred during the study.
    failed: bool,
}

/// Completeness of a record.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Completeness {
    /// Complete.
    Finished,
    /// Study interrupted or in progress.
    Unfinished,
    /// Report readable, but other files missing or damaged.
    Damaged,
    /// Unreadable or of an unsupported version.
    #[default]
    Unreadable,
}

/// Cache of list entries, as reading all records takes long.
#[derive(Debug, Default)]
pub struct RecordCache(Mutex<BTreeMap<PathBuf, (FileStates, RecordEntry)>>);

/// Modification time and length of each file of a record; `None`: missing.
type FileStates = [Option<(SystemTime, u64)>; RECORD_FILES.len()];

/// Search of records.
#[derive(Debug, Deserialize)]
pub struct RecordSearch {
    /// Words contained in the name, title, description, stage or tool, in any order.
    #[serde(default)]
    search: String,
}

/// Request for one record.
#[derive(Debug, Deserialize)]
pub struct RecordName {
    /// Name.
    name: String,
}

/// Request for several records.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordNames {
    /// Names; differences are relative to the first record.
    names: Vec<String>,
}

/// Request for a file of a record.
#[derive(Debug, Deserialize)]
pub struct FileRequest {
    /// Name of the record.
    name: String,
    /// File.
    file: FileName,
}

/// Downloadable files of a record.
#[derive(Clone, Copy, Debug, Deserialize)]
enum FileName {
    /// Report, generated on request.
    #[serde(rename = "report.html")]
    Report,
    /// Record.
    #[serde(rename = "record.json")]
    Record,
    /// Measured values.
    #[serde(rename = "series.parquet")]
    Series,
    /// Distributions.
    #[serde(rename = "distributions.parquet")]
    Distributions,
    /// Figures.
    #[serde(rename = "figures.json")]
    Figures,
    /// Host and time.
    #[serde(rename = "environment.json")]
    Environment,
}

impl FileName {
    fn name_and_type(self) -> (&'static str, &'static str) {
        match self {
            FileName::Report => (page::NAME, "text/html; charset=utf-8"),
            FileName::Record => ("record.json", "application/json"),
            FileName::Series => ("series.parquet", "application/vnd.apache.parquet"),
            FileName::Distributions => ("distributions.parquet", "application/vnd.apache.parquet"),
            FileName::Figures => ("figures.json", "application/json"),
            FileName::Environment => ("environment.json", "application/json"),
        }
    }
}

/// Returns the records, latest first.
pub async fn list(
    State(shared): State<SharedState>,
    QueryParameters(search): QueryParameters<RecordSearch>,
) -> JsonResponse<Vec<RecordEntry>> {
    run_blocking(move || {
        let is_one = |entry: &DirEntry| {
            entry.path().join("record.json").exists() || entry.path().join("plan.json").exists()
        };
        let shelf = &shared.records;
        let names =
            shelf.names(is_one).map_err(|e| ErrorResponse::io("list", "the folder of records", &e))?;
        let words: Vec<String> = search.search.split_whitespace().map(str::to_lowercase).collect();
        let mut entries: Vec<RecordEntry> =
            names.into_iter().map(|name| shared.record_cache.entry(shelf.folder(), name)).collect();
        entries.retain(|entry| {
            let text = [&entry.name, &entry.title, &entry.description, &entry.stage, &entry.tool];
            let text = text.map(|part| part.to_lowercase()).join("\n");
            words.iter().all(|word| text.contains(word))
        });
        entries.sort_by(|a, b| b.started.cmp(&a.started).then_with(|| a.name.cmp(&b.name)));
        Ok(Json(entries))
    })
    .await
}

impl RecordCache {
    fn entry(&self, records: &Path, name: String) -> RecordEntry {
        let folder = records.join(&name);
        let written: FileStates = RECORD_FILES.map(|file| {
            let found = fs::metadata(folder.join(file)).ok()?;
            Some((found.modified().ok()?, found.len()))
        });
        // The files of an unfinished record are others.
        if written[0].is_none() {
            return entry(&folder, name);
        }
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match cache.get(&folder) {
            Some((cached, entry)) if *cached == written => entry.clone(),
            _ => {
                let entry = entry(&folder, name);
                cache.insert(folder, (written, entry.clone()));
                entry
            }
        }
    }
}

fn entry(folder: &Path, name: String) -> RecordEntry {
    match StoredRecord::open(folder) {
        Ok(record) => {
            let damage = record.damage();
            let StoredRecord { data, environment, .. } = record;
            let runs = data.cells.len() * data.repeat as usize;
            let verdicts = verdicts(&data, "");
            RecordEntry {
                name,
                state: if damage.is_some() { Completeness::Damaged } else { Completeness::Finished },
                problem: damage.map_or_else(String::new, |damage| damage.to_string()),
                met: verdicts.iter().filter(|verdict| verdict.pass).count(),
                expected: verdicts.len(),
                void: !data.void.is_empty(),
                failed: !data.failures.is_empty(),
                title: data.title,
                description: data.description,
                stage: data.stage,
                tool: data.tool,
                started: environment.started,
                done: runs,
                total: runs,
            }
        }
        Err(OpenError::Incomplete { done, total, title, stage, .. }) => RecordEntry {
            name,
            state: Completeness::Unfinished,
            title,
            stage,
            done,
            total,
            ..RecordEntry::default()
        },
        Err(error) => RecordEntry { name, problem: error.to_string(), ..RecordEntry::default() },
    }
}

/// Returns the report of a record.
pub async fn read(
    State(shared): State<SharedState>,
    QueryParameters(named): QueryParameters<RecordName>,
) -> JsonResponse<ReportData> {
    run_blocking(move || Ok(Json(shown(&open(&shared, &named.name)?)))).await
}

/// Returns the report of a record, with a warning if it is damaged.
fn shown(record: &StoredRecord) -> ReportData {
    let mut data = report(record);
    let damage = record.damage().map(|damage| format!("The record is damaged: {damage}"));
    data.warnings.splice(..0, damage);
    data
}

/// Returns the comparison of several records.
pub async fn side_by_side(
    State(shared): State<SharedState>,
    JsonBody(several): JsonBody<RecordNames>,
) -> JsonResponse<ReportData> {
    run_blocking(move || Ok(Json(compared(&shared, &several)?))).await
}

/// Returns the comparison of several records as an HTML file.
pub async fn side_by_side_file(
    State(shared): State<SharedState>,
    JsonBody(several): JsonBody<RecordNames>,
) -> Result<Response, ErrorResponse> {
    let text = run_blocking(move || Ok(page::page(&compared(&shared, &several)?))).await?;
    Ok(attachment("text/html; charset=utf-8", "attachment; filename=\"comparison.html\"", Body::from(text)))
}

fn compared(shared: &SharedState, several: &RecordNames) -> Result<ReportData, ErrorResponse> {
    if !(2..=MAX_COMPARED).contains(&several.names.len()) {
        return Err(ErrorResponse::invalid(format!(
            "{} records; select 2 to {MAX_COMPARED} records to compare",
            several.names.len()
        )));
    }
    let records = several.names.iter().map(|name| open(shared, name)).collect::<Result<Vec<_>, _>>()?;
    Ok(compare::compare(&records))
}

/// Returns a file of a record.
pub async fn file(
    State(shared): State<SharedState>,
    QueryParameters(wanted): QueryParameters<FileRequest>,
) -> Result<Response, ErrorResponse> {
    let (name, content) = wanted.file.name_and_type();
    let is_unsafe = |c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c);
    let save_as = format!("attachment; filename=\"{}-{name}\"", wanted.name.replace(is_unsafe, "-"));
    let body = match wanted.file {
        FileName::Report => {
            run_blocking(move || Ok(Body::from(page::page(&shown(&open(&shared, &wanted.name)?))))).await?
        }
        _ => {
            let opened = run_blocking(move || {
                let path = shared.records.within(shared.records.path(&wanted.name)?.join(name))?;
                regular_file::open(&path).map_err(|error| ErrorResponse::io("read", name, &error))
            });
            Body::from_stream(ReaderStream::new(tokio::fs::File::from_std(opened.await?)))
        }
    };
    Ok(attachment(content, &save_as, body))
}

/// Returns a response that the browser saves as a file.
fn attachment(content: &'static str, save_as: &str, body: Body) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(content)),
        (CONTENT_DISPOSITION, HeaderValue::from_str(save_as).expect("letters and digits")),
        // A browser that displays it anyway treats it as a page without an origin.
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox")),
    ];
    (StatusCode::OK, headers, body).into_response()
}

fn open(shared: &SharedState, name: &str) -> Result<StoredRecord, ErrorResponse> {
    Ok(StoredRecord::open(&shared.records.path(name)?)?)
}
