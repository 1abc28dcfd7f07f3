//! The output folder while a study runs: its manifest, its lock, the files of finished runs.
//!
//! A file is written beside its place and renamed. The name of a run's file carries the
//! checksum of its bytes, so a damaged one is never taken for a result.

use crate::{Error, checksum};
use bytes::Bytes;
use netstage_scenario::Scenario;
use netstage_scenario::record::{MAJOR, MINOR};
use netstage_scenario::regular;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The manifest: what the folder is for.
pub const PLAN: &str = "plan.json";
/// The files of finished runs.
pub const RUNS: &str = "runs";
/// The record, written last.
pub const RECORD: &str = "record.json";

/// Contents of `plan.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Schema of the record it will become.
    pub schema: String,
    /// The tool.
    pub tool: String,
    /// The stage.
    pub stage: String,
    /// What the scenario is called.
    pub title: String,
    /// Identity of all that decides the results.
    pub plan: String,
    /// Cells.
    pub cells: usize,
    /// First seed.
    pub seed: u64,
    /// Runs per cell.
    pub repeat: u32,
}

impl Manifest {
    /// The manifest of a study.
    pub fn new(scenario: &Scenario, stage: &str, tool: &str) -> Manifest {
        let mut all = format!("{:?}", (&scenario.text, scenario.seed, scenario.repeat));
        for cell in &scenario.cells {
            // The plan as well as the text: it holds what other files gave it.
            write!(all, "{:?}", (&cell.variant, &cell.settings, &cell.plan)).expect("writing to a string");
        }
        let schema = format!("{MAJOR}.{MINOR}");
        write!(all, "{schema}{stage}{tool}").expect("writing to a string");
        Manifest {
            schema,
            tool: tool.to_owned(),
            stage: stage.to_owned(),
            title: scenario.title.clone(),
            plan: format!("{:016x}", checksum(all.as_bytes())),
            cells: scenario.cells.len(),
            seed: scenario.seed,
            repeat: scenario.repeat,
        }
    }

    /// Runs in all.
    pub fn total(&self) -> usize {
        self.cells * self.repeat as usize
    }

    /// Reads a folder's manifest, if it holds one.
    pub fn read(folder: &Path) -> Option<Manifest> {
        serde_json::from_slice(&regular::read(&folder.join(PLAN)).ok()?).ok()
    }
}

/// An output folder, locked for this process.
pub struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Takes a folder for a study: a new or empty one, or one that holds the same study,
    /// unfinished, or another of which no run is finished.
    pub fn take(path: &Path, manifest: &Manifest) -> Result<Folder, Error> {
        let occupied = |holds: String| Error::Occupied { folder: path.to_owned(), holds };
        fs::create_dir_all(path).map_err(Error::io("create", path))?;
        let lock = File::open(path).map_err(Error::io("open", path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { folder: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", path)(source)),
        }
        let folder = Folder { path: path.to_owned(), _lock: lock };
        if folder.file(RECORD).exists() {
            let same =
                regular::read_to_string(&folder.file(RECORD)).is_ok_and(|text| text.contains(&manifest.plan));
            let what =
                if same { "already holds this study, finished" } else { "holds the record of another study" };
            return Err(occupied(what.into()));
        }
        if folder.file(PLAN).exists() {
            let what = match Manifest::read(path) {
                Some(other) if other == *manifest => return Ok(folder),
                // Nothing is lost with a study that was refused, or stopped before its first run was finished.
                Some(_) if count_runs(path) == 0 => None,
                Some(other) => {
                    Some(format!("holds another study, unfinished ({})", difference(&other, manifest)))
                }
                None => Some("holds a plan.json that cannot be read".into()),
            };
            if let Some(what) = what {
                return Err(occupied(what));
            }
        } else {
            let mut others = fs::read_dir(path).map_err(Error::io("read", path))?.filter_map(Result::ok);
            // A kill while the manifest was being written leaves its first bytes.
            if others.any(|entry| entry.file_name() != partial(PLAN).as_str()) {
                return Err(occupied("holds other files".into()));
            }
        }
        let text = serde_json::to_vec_pretty(manifest).expect("a manifest holds only text and numbers");
        folder.write(PLAN, |out| out.write_all(&text))?;
        Ok(folder)
    }

    /// Path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file beside its place, and then puts it there.
    pub fn write(&self, name: &str, fill: impl FnOnce(&mut File) -> io::Result<()>) -> Result<(), Error> {
        let aside = self.file(&partial(name));
        let place = self.file(name);
        let write = || {
            let mut file = File::create(&aside)?;
            fill(&mut file)?;
            // A name that survives a power failure must not point to bytes that did not.
            file.sync_all()?;
            fs::rename(&aside, &place)
        };
        let written = write();
        if written.is_err() {
            // What was written of it only takes up space.
            let _ = fs::remove_file(&aside);
        }
        written.map_err(Error::io("write", &place))
    }

    /// Keeps the file of a finished run.
    pub fn keep_run(&self, cell: usize, seed: u64, bytes: &[u8]) -> Result<(), Error> {
        let runs = self.file(RUNS);
        let aside = runs.join(partial(&format!("{cell}-{seed}.parquet")));
        let place = runs.join(format!("{cell}-{seed}.{:016x}.parquet", checksum(bytes)));
        let written = fs::write(&aside, bytes).and_then(|()| fs::rename(&aside, &place));
        if written.is_err() {
            let _ = fs::remove_file(&aside);
        }
        written.map_err(Error::io("write", &place))
    }

    /// The finished runs; whatever else is among them is removed.
    pub fn finished_runs(&self) -> Result<BTreeMap<(usize, u64), PathBuf>, Error> {
        let runs = self.file(RUNS);
        fs::create_dir_all(&runs).map_err(Error::io("create", &runs))?;
        let mut finished = BTreeMap::new();
        for entry in fs::read_dir(&runs).map_err(Error::io("read", &runs))? {
            let path = entry.map_err(Error::io("read", &runs))?.path();
            match run_of(&path).filter(|_| read_checked(&path).is_ok()) {
                Some(run) => drop(finished.insert(run, path)),
                None => fs::remove_file(&path).map_err(Error::io("remove", &path))?,
            }
        }
        Ok(finished)
    }

    /// Removes what only an unfinished study needs.
    pub fn tidy(&self) -> Result<(), Error> {
        let (runs, plan) = (self.file(RUNS), self.file(PLAN));
        if runs.exists() {
            fs::remove_dir_all(&runs).map_err(Error::io("remove", &runs))?;
        }
        fs::remove_file(&plan).map_err(Error::io("remove", &plan))
    }
}

fn partial(name: &str) -> String {
    format!("{name}.partial")
}

/// Finished runs a folder seems to hold, judging by names alone.
pub fn count_runs(folder: &Path) -> usize {
    let entries = fs::read_dir(folder.join(RUNS)).into_iter().flatten().filter_map(Result::ok);
    entries.filter(|entry| run_of(&entry.path()).is_some()).count()
}

/// Cell and seed of a run's file, by its name.
fn run_of(path: &Path) -> Option<(usize, u64)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".parquet")?;
    let (run, _) = stem.split_once('.')?;
    let (cell, seed) = run.split_once('-')?;
    Some((cell.parse().ok()?, seed.parse().ok()?))
}

/// The bytes of a run's file, if they are those that were written.
pub fn read_checked(path: &Path) -> io::Result<Bytes> {
    let bytes = regular::read(path)?;
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    if !name.ends_with(&format!(".{:016x}.parquet", checksum(&bytes))) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is damaged"));
    }
    Ok(bytes.into())
}

/// What sets two studies apart, in a few words.
fn difference(there: &Manifest, here: &Manifest) -> String {
    if there.title != here.title {
        format!("\"{}\"", there.title)
    } else if there.tool != here.tool || there.schema != here.schema {
        format!("by {}", there.tool)
    } else if there.stage != here.stage {
        format!("on {}", there.stage)
    } else if (there.seed, there.repeat) != (here.seed, here.repeat) {
        format!("seed {}, repeat {}", there.seed, there.repeat)
    } else {
        "of the same title, but the scenario differs".into()
    }
}
