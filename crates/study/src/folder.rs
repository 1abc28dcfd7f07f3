//! Output folder of an unfinished study: manifest, lock and the files of finished runs.
//!
//! A file is written under a temporary name, then renamed. The name of a run's file contains the checksum of its
//! bytes, so that a damaged file is never used as a result.

use crate::perform::RunId;
use crate::{StudyError, checksum};
use bytes::Bytes;
use netstage_scenario::Scenario;
use netstage_scenario::record::{MAJOR, MINOR};
use netstage_scenario::regular_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Manifest, which identifies the study.
pub const PLAN: &str = "plan.json";
/// Folder of the files of finished runs.
pub const RUNS: &str = "runs";
/// Folder of the trials of unfinished runs: their outcomes, and a file of results per run.
pub const TRIALS: &str = "trials";
/// Record, written last.
pub const RECORD: &str = "record.json";

/// Contents of `plan.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Schema version of the record.
    pub schema: String,
    /// Name and version of the tool.
    pub tool: String,
    /// Name of the stage.
    pub stage: String,
    /// Title of the scenario.
    pub title: String,
    /// Hash of all inputs that determine the results.
    pub plan: String,
    /// Number of cells.
    pub cells: usize,
    /// First seed.
    pub seed: u64,
    /// Runs per cell.
    pub repeat: u32,
}

impl Manifest {
    /// Creates the manifest of a study.
    pub fn new(scenario: &Scenario, stage: &str, tool: &str) -> Manifest {
        let mut all = format!("{:?}", (&scenario.text, scenario.seed, scenario.repeat));
        for cell in &scenario.cells {
            // The text does not contain the data of other files, such as traces; the plan does.
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

    /// Returns the total number of runs.
    pub fn total(&self) -> usize {
        self.cells * self.repeat as usize
    }

    /// Reads a folder's manifest; `None` if it is missing or damaged.
    pub fn read(folder: &Path) -> Option<Manifest> {
        serde_json::from_slice(&regular_file::read(&folder.join(PLAN)).ok()?).ok()
    }
}

/// Returns the folders that a record may go to if its first choice is occupied: `base`, `base-2`, … `base-1000`.
pub fn folders(base: &Path) -> impl Iterator<Item = PathBuf> {
    let numbered = (2..=1000).map(|number| {
        let mut name = base.as_os_str().to_owned();
        name.push(format!("-{number}"));
        name.into()
    });
    std::iter::once(base.to_owned()).chain(numbered)
}

/// Output folder, locked by this process.
pub struct StudyFolder {
    path: PathBuf,
    _lock: File,
}

impl StudyFolder {
    /// Opens and locks the folder of a study. It must be new, be empty, or hold the same study unfinished, or another
    /// study without finished runs.
    pub fn open(path: &Path, manifest: &Manifest) -> Result<StudyFolder, StudyError> {
        let occupied = |holds: String| StudyError::Occupied { folder: path.to_owned(), contents: holds };
        fs::create_dir_all(path).map_err(StudyError::io("create", path))?;
        let lock = File::open(path).map_err(StudyError::io("open", path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StudyError::InUse { folder: path.to_owned() }),
            Err(TryLockError::Error(source)) => return Err(StudyError::io("lock", path)(source)),
        }
        let folder = StudyFolder { path: path.to_owned(), _lock: lock };
        if folder.file(RECORD).exists() {
            let same = regular_file::read_to_string(&folder.file(RECORD))
                .is_ok_and(|text| text.contains(&manifest.plan));
            let contents =
                if same { "already holds this study, finished" } else { "holds the record of another study" };
            return Err(occupied(contents.into()));
        }
        if folder.file(PLAN).exists() {
            let contents = match Manifest::read(path) {
                Some(other) if other == *manifest => return Ok(folder),
                // A study that was rejected or stopped before its first run or trial finished has no results to lose.
                Some(_) if count_runs(path) == 0 && count_trials(path) == 0 => None,
                Some(other) => {
                    Some(format!("holds another study, unfinished ({})", difference(&other, manifest)))
                }
                None => Some("holds a plan.json that cannot be read".into()),
            };
            if let Some(contents) = contents {
                return Err(occupied(contents));
            }
        } else {
            let mut others = fs::read_dir(path).map_err(StudyError::io("read", path))?.filter_map(Result::ok);
            // A kill during the write of the manifest leaves a partial file.
            if others.any(|entry| entry.file_name() != partial(PLAN).as_str()) {
                return Err(occupied("holds other files".into()));
            }
        }
        let text = serde_json::to_vec_pretty(manifest).expect("a manifest holds only text and numbers");
        folder.write(PLAN, |out| out.write_all(&text))?;
        Ok(folder)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file under a temporary name, then renames it.
    pub fn write(
        &self,
        name: &str,
        fill: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<(), StudyError> {
        let temporary = self.file(&partial(name));
        let path = self.file(name);
        let write = || {
            let mut file = File::create(&temporary)?;
            fill(&mut file)?;
            // Without this, the name may survive a power failure and the contents not.
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        let written = write();
        if written.is_err() {
            // The partial file only uses space.
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(StudyError::io("write", &path))
    }

    /// Saves the file of a finished run, and removes its trials.
    pub fn save_run(&self, (cell, seed): RunId, bytes: &[u8]) -> Result<(), StudyError> {
        self.save(RUNS, &format!("{cell}-{seed}"), bytes)?;
        let of_run = |name: &str| name.starts_with(&format!("{cell}-{seed}."));
        for path in files(&self.file(TRIALS)).filter(|path| file_name(path).is_some_and(of_run)) {
            fs::remove_file(&path).map_err(StudyError::io("remove", &path))?;
        }
        Ok(())
    }

    /// Saves the outcome of a performance of the stage in an unfinished run.
    pub fn save_trial(&self, (cell, seed): RunId, number: usize, bytes: &[u8]) -> Result<(), StudyError> {
        self.save(TRIALS, &format!("{cell}-{seed}.{number}"), bytes)
    }

    /// Returns the saved outcomes of an unfinished run, by number.
    pub fn trials(&self, (cell, seed): RunId) -> BTreeMap<usize, PathBuf> {
        let prefix = format!("{cell}-{seed}.");
        let number = |path: &Path| file_name(path)?.strip_prefix(&prefix)?.split_once('.')?.0.parse().ok();
        files(&self.file(TRIALS)).filter_map(|path| Some((number(&path)?, path))).collect()
    }

    /// Creates an empty file of the results of a run's trials.
    pub fn create_trial_results(&self, (cell, seed): RunId) -> Result<File, StudyError> {
        let trials = self.file(TRIALS);
        fs::create_dir_all(&trials).map_err(StudyError::io("create", &trials))?;
        let path = trials.join(format!("{cell}-{seed}.jsonl"));
        File::create(&path).map_err(StudyError::io("create", &path))
    }

    /// Saves a file whose name contains its checksum.
    fn save(&self, folder: &str, name: &str, bytes: &[u8]) -> Result<(), StudyError> {
        let folder = self.file(folder);
        let temporary = folder.join(partial(name));
        let path = folder.join(format!("{name}.{:016x}.parquet", checksum(bytes)));
        let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, &path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(StudyError::io("write", &path))
    }

    /// Returns the files of the finished runs and removes all others.
    pub fn finished_runs(&self) -> Result<BTreeMap<(usize, u64), PathBuf>, StudyError> {
        let runs = self.file(RUNS);
        fs::create_dir_all(&runs).map_err(StudyError::io("create", &runs))?;
        let mut finished = BTreeMap::new();
        for entry in fs::read_dir(&runs).map_err(StudyError::io("read", &runs))? {
            let path = entry.map_err(StudyError::io("read", &runs))?.path();
            match run_of(&path).filter(|_| read_checked(&path).is_ok()) {
                Some(run) => drop(finished.insert(run, path)),
                None => fs::remove_file(&path).map_err(StudyError::io("remove", &path))?,
            }
        }
        Ok(finished)
    }

    /// Removes the files that only an unfinished study needs.
    pub fn remove_temporary_files(&self) -> Result<(), StudyError> {
        for folder in [self.file(RUNS), self.file(TRIALS)] {
            if folder.exists() {
                fs::remove_dir_all(&folder).map_err(StudyError::io("remove", &folder))?;
            }
        }
        let plan = self.file(PLAN);
        fs::remove_file(&plan).map_err(StudyError::io("remove", &plan))
    }
}

fn partial(name: &str) -> String {
    format!("{name}.partial")
}

/// Counts the finished runs of a folder by file name, without verifying the files.
pub fn count_runs(folder: &Path) -> usize {
    files(&folder.join(RUNS)).filter(|path| run_of(path).is_some()).count()
}

/// Counts the finished trials of unfinished runs.
pub fn count_trials(folder: &Path) -> usize {
    trial_results(folder).iter().map(|text| text.lines().count()).sum()
}

/// Returns the results of the trials of unfinished runs, one text per run with a line of JSON per trial.
pub fn trial_results(folder: &Path) -> Vec<String> {
    let mut results: Vec<PathBuf> = files(&folder.join(TRIALS))
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    results.sort();
    results.iter().filter_map(|path| regular_file::read_to_string(path).ok()).collect()
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path())
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// Parses the cell and seed in the name of a run's file.
fn run_of(path: &Path) -> Option<(usize, u64)> {
    let stem = file_name(path)?.strip_suffix(".parquet")?;
    let (run, _) = stem.split_once('.')?;
    let (cell, seed) = run.split_once('-')?;
    Some((cell.parse().ok()?, seed.parse().ok()?))
}

/// Reads a run's file and verifies its checksum.
pub fn read_checked(path: &Path) -> io::Result<Bytes> {
    let bytes = regular_file::read(path)?;
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    if !name.ends_with(&format!(".{:016x}.parquet", checksum(&bytes))) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is damaged"));
    }
    Ok(bytes.into())
}

/// Describes how the study `other` in a folder differs from the study `this`.
fn difference(other: &Manifest, this: &Manifest) -> String {
    if other.title != this.title {
        format!("\"{}\"", other.title)
    } else if other.tool != this.tool || other.schema != this.schema {
        format!("by {}", other.tool)
    } else if other.stage != this.stage {
        format!("on {}", other.stage)
    } else if (other.seed, other.repeat) != (this.seed, this.repeat) {
        format!("seed {}, repeat {}", other.seed, other.repeat)
    } else {
        "of the same title, but the scenario differs".into()
    }
}
