//! Records: found, searched, shown, compared, taken along.

use super::extract::{Asked, Sent};
use super::refusal::Refusal;
use super::{Answer, Shared, apart};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use netstage_scenario::regular;
use netstage_study::report::{ReportData, report, verdicts};
use netstage_study::{OpenError, RECORD_FILES, Record, compare, page};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use tokio_util::io::ReaderStream;

/// Records compared at once.
const MOST_COMPARED: usize = 12;

/// What is told of a record in a list.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Entry {
    /// Its name: its folder below that of all records.
    name: String,
    /// `finished`, `unfinished`, `damaged` or `unreadable`.
    state: Completeness,
    /// What is wrong with it, where it is damaged or cannot be read.
    #[serde(skip_serializing_if = "String::is_empty")]
    problem: String,
    /// What its scenario is called.
    title: String,
    /// A few sentences from the scenario.
    description: String,
    /// What it ran on.
    stage: String,
    /// Who wrote it.
    tool: String,
    /// When its last part was started, RFC 3339; empty where that is not known.
    started: String,
    /// Runs finished.
    done: usize,
    /// Runs in all.
    total: usize,
    /// Expectations that are met, one of each cell counted by itself, as the report does.
    met: usize,
    /// Expectations, counted alike.
    expected: usize,
    /// Whether the measurement is void.
    void: bool,
    /// Whether something failed while it ran.
    failed: bool,
}

/// How far a record is.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Completeness {
    /// It is whole.
    Finished,
    /// Its study was interrupted, or goes on.
    Unfinished,
    /// Its report can be read, some of its files cannot.
    Damaged,
    /// It cannot be read, or is of another version.
    #[default]
    Unreadable,
}

/// Entries of records as they were last seen: reading all of them anew takes long.
#[derive(Debug, Default)]
pub struct Known(Mutex<BTreeMap<PathBuf, (Written, Entry)>>);

/// When each of a record's files was written, and its length; none for what is not there.
type Written = [Option<(SystemTime, u64)>; RECORD_FILES.len()];

/// What to look for.
#[derive(Debug, Deserialize)]
pub struct Search {
    /// Words that name, title, description, stage or tool hold, in any order.
    #[serde(default)]
    search: String,
}

/// Which one.
#[derive(Debug, Deserialize)]
pub struct Named {
    /// Its name.
    name: String,
}

/// Which ones.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Several {
    /// Their names; differences are against the first.
    names: Vec<String>,
}

/// Which file of which record.
#[derive(Debug, Deserialize)]
pub struct Wanted {
    /// The record's name.
    name: String,
    /// The file.
    file: FileName,
}

/// Files of a record that can be taken along.
#[derive(Clone, Copy, Debug, Deserialize)]
enum FileName {
    /// The report, made anew.
    #[serde(rename = "report.html")]
    Report,
    /// What ran, and what it came to.
    #[serde(rename = "record.json")]
    Record,
    /// The values.
    #[serde(rename = "series.parquet")]
    Series,
    /// How often each value occurred.
    #[serde(rename = "distributions.parquet")]
    Distributions,
    /// The figures.
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

/// The records, the latest first.
pub async fn list(State(shared): State<Shared>, Asked(search): Asked<Search>) -> Answer<Vec<Entry>> {
    apart(move || {
        let is_one = |entry: &DirEntry| {
            entry.path().join("record.json").exists() || entry.path().join("plan.json").exists()
        };
        let shelf = &shared.records;
        let names = shelf.names(is_one).map_err(|e| Refusal::io("list", "the folder of records", &e))?;
        let words: Vec<String> = search.search.split_whitespace().map(str::to_lowercase).collect();
        let mut entries: Vec<Entry> =
            names.into_iter().map(|name| shared.known.entry(shelf.folder(), name)).collect();
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

impl Known {
    fn entry(&self, records: &Path, name: String) -> Entry {
        let folder = records.join(&name);
        let written: Written = RECORD_FILES.map(|file| {
            let found = fs::metadata(folder.join(file)).ok()?;
            Some((found.modified().ok()?, found.len()))
        });
        // One that is not finished grows by other files.
        if written[0].is_none() {
            return entry(&folder, name);
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get(&folder) {
            Some((then, entry)) if *then == written => entry.clone(),
            _ => {
                let entry = entry(&folder, name);
                known.insert(folder, (written, entry.clone()));
                entry
            }
        }
    }
}

fn entry(folder: &Path, name: String) -> Entry {
    match Record::open(folder) {
        Ok(record) => {
            let damage = record.damage();
            let Record { data, environment, .. } = record;
            let runs = data.cells.len() * data.repeat as usize;
            let verdicts = verdicts(&data, "");
            Entry {
                name,
                state: if damage.is_some() { Completeness::Damaged } else { Completeness::Finished },
                problem: damage.map_or_else(String::new, |damage| damage.to_string()),
                met: verdicts.iter().filter(|one| one.pass).count(),
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
        Err(OpenError::Incomplete { done, total, title, stage, .. }) => {
            Entry { name, state: Completeness::Unfinished, title, stage, done, total, ..Entry::default() }
        }
        Err(error) => Entry { name, problem: error.to_string(), ..Entry::default() },
    }
}

/// A record's report.
pub async fn read(State(shared): State<Shared>, Asked(named): Asked<Named>) -> Answer<ReportData> {
    apart(move || Ok(Json(shown(&open(&shared, &named.name)?)))).await
}

/// The report of a record, which says first what of it is damaged.
fn shown(record: &Record) -> ReportData {
    let mut data = report(record);
    let damage = record.damage().map(|damage| format!("The record is damaged: {damage}"));
    data.warnings.splice(..0, damage);
    data
}

/// The report of several records, side by side.
pub async fn side_by_side(State(shared): State<Shared>, Sent(several): Sent<Several>) -> Answer<ReportData> {
    apart(move || Ok(Json(compared(&shared, &several)?))).await
}

/// The report of several records as a file that stands alone.
pub async fn side_by_side_file(
    State(shared): State<Shared>,
    Sent(several): Sent<Several>,
) -> Result<Response, Refusal> {
    let text = apart(move || Ok(page::page(&compared(&shared, &several)?))).await?;
    Ok(attachment("text/html; charset=utf-8", "attachment; filename=\"comparison.html\"", Body::from(text)))
}

fn compared(shared: &Shared, several: &Several) -> Result<ReportData, Refusal> {
    if !(2..=MOST_COMPARED).contains(&several.names.len()) {
        return Err(Refusal::bad(format!("2 to {MOST_COMPARED} records can be compared")));
    }
    let records = several.names.iter().map(|name| open(shared, name)).collect::<Result<Vec<_>, _>>()?;
    Ok(compare::compare(&records))
}

/// A file of a record.
pub async fn file(State(shared): State<Shared>, Asked(wanted): Asked<Wanted>) -> Result<Response, Refusal> {
    let (name, content) = wanted.file.name_and_type();
    let is_odd = |c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c);
    let save_as = format!("attachment; filename=\"{}-{name}\"", wanted.name.replace(is_odd, "-"));
    let body = match wanted.file {
        FileName::Report => {
            apart(move || Ok(Body::from(page::page(&shown(&open(&shared, &wanted.name)?))))).await?
        }
        _ => {
            let opened = apart(move || {
                let path = shared.records.within(shared.records.path(&wanted.name)?.join(name))?;
                regular::open(&path).map_err(|error| Refusal::io("read", name, &error))
            });
            Body::from_stream(ReaderStream::new(tokio::fs::File::from_std(opened.await?)))
        }
    };
    Ok(attachment(content, &save_as, body))
}

/// A file to be saved.
fn attachment(content: &'static str, save_as: &str, body: Body) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(content)),
        (CONTENT_DISPOSITION, HeaderValue::from_str(save_as).expect("letters and digits")),
        // Should a browser show it all the same, then as a page of nobody's.
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox")),
    ];
    (StatusCode::OK, headers, body).into_response()
}

fn open(shared: &Shared, name: &str) -> Result<Record, Refusal> {
    Ok(Record::open(&shared.records.path(name)?)?)
}
