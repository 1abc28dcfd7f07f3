//! Study in progress: pending runs, storage of finished runs, and the final record.

use crate::analysis::Analysis;
use crate::environment::{Environment, StudyTimer};
use crate::figure::Figure;
use crate::folder::{Manifest, RECORD, StudyFolder, count_trials, read_checked};
use crate::journal::TrialJournal;
use crate::perform::RunId;
use crate::record::{self, DISTRIBUTIONS, FIGURES, SERIES};
use crate::run::StudyOptions;
use crate::series::{Joiner, read_run, write_distributions};
use crate::{StoredRecord, StudyError, checksum_of};
use netstage_scenario::Scenario;
use netstage_scenario::record::{SeriesFile, StudyRecord as Data};
use parquet::errors::ParquetError;
use std::borrow::Borrow;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};

/// Scenario with the folder of its future record, locked by this process.
///
/// Call [`Study::record`], then [`Study::save_run`] for every run of [`Study::pending`] in any order and from any thread,
/// then [`Study::finish`]. If dropped earlier, the folder holds the finished runs, and the same study resumes from
/// them.
pub struct Study<S: Borrow<Scenario>> {
    scenario: S,
    manifest: Manifest,
    folder: StudyFolder,
    pending: Vec<RunId>,
    watch: StudyTimer,
}

/// Returns the hash of all inputs that determine a study's results. A host that computes the same identity can perform
/// its runs.
pub fn identity(scenario: &Scenario, stage: &str, tool: &str) -> String {
    Manifest::new(scenario, stage, tool).plan
}

impl<S: Borrow<Scenario>> Study<S> {
    /// Opens and locks the folder of a study. It must be new, be empty, or hold the same study unfinished, or another
    /// study without finished runs.
    pub fn open(scenario: S, options: &StudyOptions) -> Result<Study<S>, StudyError> {
        let watch = StudyTimer::start();
        let manifest = Manifest::new(scenario.borrow(), &options.stage, &options.tool);
        let folder = StudyFolder::open(&options.out, &manifest)?;
        let finished = folder.finished_runs()?;
        let pending = runs(scenario.borrow()).filter(|run| !finished.contains_key(run)).collect();
        Ok(Study { scenario, manifest, folder, pending, watch })
    }

    /// Returns the runs that were unfinished when the folder was opened, in order.
    pub fn pending(&self) -> &[RunId] {
        &self.pending
    }

    /// Returns the total number of runs.
    pub fn total(&self) -> usize {
        self.manifest.total()
    }

    /// Returns the number of runs that were finished when the folder was opened.
    pub fn resumed(&self) -> usize {
        self.total() - self.pending.len()
    }

    /// Returns the scenario.
    pub fn scenario(&self) -> &Scenario {
        self.scenario.borrow()
    }

    /// Returns the [`identity`] of this study.
    pub fn identity(&self) -> &str {
        &self.manifest.plan
    }

    /// Saves the file of a finished run.
    pub fn save_run(&self, run: RunId, file: &[u8]) -> Result<(), StudyError> {
        self.folder.save_run(run, file)
    }

    /// Opens the journal of a run's trials.
    pub(crate) fn journal(&self, run: RunId) -> Result<TrialJournal<'_>, StudyError> {
        TrialJournal::open(&self.folder, run)
    }

    /// Saves the file of a run performed by another process, after verifying that it is the file of this run.
    pub fn save_remote_run(&self, run: RunId, file: Vec<u8>) -> Result<(), StudyError> {
        let rejected = |message| StudyError::Run { cell: format!("cell {}", run.0), seed: run.1, message };
        let bytes = file.into();
        let (cell, seed, _) = read_run(&bytes).map_err(|e| rejected(e.to_string()))?;
        if (cell as usize, seed) != run {
            return Err(rejected(format!("received the run of cell {cell} with seed {seed}")));
        }
        self.save_run(run, &bytes)
    }

    /// Returns the error of an interruption after `saved` runs were saved.
    pub fn interrupted(&self, saved: usize) -> StudyError {
        StudyError::Interrupted {
            folder: self.folder.path().to_owned(),
            done: self.resumed() + saved,
            total: self.total(),
            trials: count_trials(self.folder.path()),
        }
    }

    /// Joins and analyzes the runs and writes the record. `jobs` is the number of parallel runs.
    pub fn finish(self, jobs: usize) -> Result<StoredRecord, StudyError> {
        let resumed = self.resumed();
        let Study { scenario, manifest, folder, pending, watch } = self;
        let scenario = scenario.borrow();
        let runs = folder.finished_runs()?;
        let mut analysis = Analysis::new(scenario);
        let mut rows = 0;
        folder.write(SERIES, |file| {
            let mut joiner = Joiner::new(BufWriter::with_capacity(1 << 20, file)).map_err(io_error)?;
            for cell in 0..scenario.cells.len() {
                for seed in seeds(scenario) {
                    let missing =
                        || io::Error::new(io::ErrorKind::NotFound, "the file of a finished run is missing");
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
        let series = written(&folder, SERIES, rows)?;
        let distributions = if analysis.distributions().iter().all(Vec::is_empty) {
            None
        } else {
            let mut rows = 0;
            folder.write(DISTRIBUTIONS, |file| {
                rows =
                    write_distributions(BufWriter::new(file), analysis.distributions()).map_err(io_error)?;
                Ok(())
            })?;
            Some(written(&folder, DISTRIBUTIONS, rows)?)
        };
        let (data, figures): (_, Vec<Figure>) = analysis.finish(&manifest, series, distributions);
        let environment = watch.stop(jobs, pending.len(), resumed);
        complete(&folder, data, figures, environment)
    }
}

/// Writes the remaining files of a record and removes the temporary ones.
pub(crate) fn complete(
    folder: &StudyFolder,
    data: Data,
    figures: Vec<Figure>,
    environment: Environment,
) -> Result<StoredRecord, StudyError> {
    let json = |value: serde_json::Result<Vec<u8>>| value.expect("only text and numbers");
    let text = json(serde_json::to_vec_pretty(&environment));
    folder.write(record::ENVIRONMENT, |file| file.write_all(&text))?;
    let text = json(serde_json::to_vec(&figures));
    folder.write(FIGURES, |file| file.write_all(&text))?;
    folder.write(RECORD, |file| file.write_all(data.to_json().as_bytes()))?;
    folder.remove_temporary_files()?;
    Ok(StoredRecord { folder: folder.path().to_owned(), data, figures, environment })
}

fn runs(scenario: &Scenario) -> impl Iterator<Item = RunId> {
    (0..scenario.cells.len()).flat_map(move |cell| seeds(scenario).map(move |seed| (cell, seed)))
}

fn seeds(scenario: &Scenario) -> impl Iterator<Item = u64> + use<> {
    scenario.seed..scenario.seed + u64::from(scenario.repeat)
}

/// Returns the number of rows, size and hash of a file of values.
pub(crate) fn written(folder: &StudyFolder, name: &str, rows: u64) -> Result<SeriesFile, StudyError> {
    let path = folder.file(name);
    let (hash, bytes) = File::open(&path).and_then(checksum_of).map_err(StudyError::io("read", &path))?;
    Ok(SeriesFile { rows, bytes, xxh64: format!("{hash:016x}") })
}

pub(crate) fn io_error(error: ParquetError) -> io::Error {
    // Preserves the message and kind of a system error.
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    }
}
