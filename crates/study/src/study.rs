//! Study in progress: pending runs, storage of finished runs, and the final record.

use crate::analyse::Analysis;
use crate::environment::{Environment, Watch};
use crate::figure::Figure;
use crate::folder::{Folder, Manifest, RECORD, read_checked};
use crate::open::{self, DISTRIBUTIONS, FIGURES, SERIES};
use crate::perform::Run;
use crate::run::Options;
use crate::series::{Joiner, read_run, write_distributions};
use crate::{Error, Record, checksum_of};
use netstage_scenario::Scenario;
use netstage_scenario::record::{Record as Data, SeriesFile};
use parquet::errors::ParquetError;
use std::borrow::Borrow;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};

/// Scenario with the folder of its future record, locked by this process.
///
/// Call [`Study::take`], then [`Study::keep`] for every run of [`Study::pending`] in any order and from any thread,
/// then [`Study::finish`]. If dropped earlier, the folder holds the finished runs, and the same study resumes from
/// them.
pub struct Study<S: Borrow<Scenario>> {
    scenario: S,
    manifest: Manifest,
    folder: Folder,
    pending: Vec<Run>,
    watch: Watch,
}

/// Returns the hash of all inputs that determine a study's results. A host that computes the same identity can perform
/// its runs.
pub fn identity(scenario: &Scenario, stage: &str, tool: &str) -> String {
    Manifest::new(scenario, stage, tool).plan
}

impl<S: Borrow<Scenario>> Study<S> {
    /// Opens and locks the folder of a study. It must be new, be empty, or hold the same study unfinished, or another
    /// study without finished runs.
    pub fn take(scenario: S, options: &Options) -> Result<Study<S>, Error> {
        let watch = Watch::start();
        let manifest = Manifest::new(scenario.borrow(), &options.stage, &options.tool);
        let folder = Folder::take(&options.out, &manifest)?;
        let finished = folder.finished_runs()?;
        let pending = runs(scenario.borrow()).filter(|run| !finished.contains_key(run)).collect();
        Ok(Study { scenario, manifest, folder, pending, watch })
    }

    /// Returns the runs that were unfinished when the folder was opened, in order.
    pub fn pending(&self) -> &[Run] {
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
    pub fn keep(&self, (cell, seed): Run, file: &[u8]) -> Result<(), Error> {
        self.folder.keep_run(cell, seed, file)
    }

    /// Saves the file of a run performed by another process, after verifying that it is the file of this run.
    pub fn keep_foreign(&self, run: Run, file: Vec<u8>) -> Result<(), Error> {
        let rejected = |message| Error::Run { cell: format!("cell {}", run.0), seed: run.1, message };
        let bytes = file.into();
        let (cell, seed, _) = read_run(&bytes).map_err(|e| rejected(e.to_string()))?;
        if (cell as usize, seed) != run {
            return Err(rejected(format!("received the run of cell {cell} with seed {seed}")));
        }
        self.keep(run, &bytes)
    }

    /// Returns the error of an interruption after `saved` runs were saved.
    pub fn interrupted(&self, saved: usize) -> Error {
        Error::Interrupted { folder: self.folder.file(""), done: self.resumed() + saved, total: self.total() }
    }

    /// Joins and analyzes the runs and writes the record. `jobs` is the number of parallel runs.
    pub fn finish(self, jobs: usize) -> Result<Record, Error> {
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
    folder: &Folder,
    data: Data,
    figures: Vec<Figure>,
    environment: Environment,
) -> Result<Record, Error> {
    let json = |value: serde_json::Result<Vec<u8>>| value.expect("only text and numbers");
    let text = json(serde_json::to_vec_pretty(&environment));
    folder.write(open::ENVIRONMENT, |file| file.write_all(&text))?;
    let text = json(serde_json::to_vec(&figures));
    folder.write(FIGURES, |file| file.write_all(&text))?;
    folder.write(RECORD, |file| file.write_all(data.to_json().as_bytes()))?;
    folder.tidy()?;
    Ok(Record { folder: folder.file(""), data, figures, environment })
}

fn runs(scenario: &Scenario) -> impl Iterator<Item = Run> {
    (0..scenario.cells.len()).flat_map(move |cell| seeds(scenario).map(move |seed| (cell, seed)))
}

fn seeds(scenario: &Scenario) -> impl Iterator<Item = u64> + use<> {
    scenario.seed..scenario.seed + u64::from(scenario.repeat)
}

/// Returns the number of rows, size and hash of a file of values.
pub(crate) fn written(folder: &Folder, name: &str, rows: u64) -> Result<SeriesFile, Error> {
    let path = folder.file(name);
    let (hash, bytes) = File::open(&path).and_then(checksum_of).map_err(Error::io("read", &path))?;
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
