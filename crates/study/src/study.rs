//! A study under way: the runs its folder still lacks, those it keeps, and the record they come to.

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

/// A scenario and the folder that becomes its record, locked for this process.
///
/// [`Study::take`], then [`Study::keep`] for every run of [`Study::pending`], in any order and
/// from any thread, then [`Study::finish`]. Dropped before, the folder holds what was kept, and the
/// same study goes on with it.
pub struct Study<S: Borrow<Scenario>> {
    scenario: S,
    manifest: Manifest,
    folder: Folder,
    pending: Vec<Run>,
    watch: Watch,
}

/// Identity of all that decides a study's results: equal here and there, runs can be performed there.
pub fn identity(scenario: &Scenario, stage: &str, tool: &str) -> String {
    Manifest::new(scenario, stage, tool).plan
}

impl<S: Borrow<Scenario>> Study<S> {
    /// Takes a new or empty folder, or one that holds the same study, unfinished, or another of which
    /// no run is finished.
    pub fn take(scenario: S, options: &Options) -> Result<Study<S>, Error> {
        let watch = Watch::start();
        let manifest = Manifest::new(scenario.borrow(), &options.stage, &options.tool);
        let folder = Folder::take(&options.out, &manifest)?;
        let finished = folder.finished_runs()?;
        let pending = runs(scenario.borrow()).filter(|run| !finished.contains_key(run)).collect();
        Ok(Study { scenario, manifest, folder, pending, watch })
    }

    /// The runs that were not finished when the folder was taken, in their order.
    pub fn pending(&self) -> &[Run] {
        &self.pending
    }

    /// Runs in all.
    pub fn total(&self) -> usize {
        self.manifest.total()
    }

    /// Runs that the folder held when it was taken.
    pub fn resumed(&self) -> usize {
        self.total() - self.pending.len()
    }

    /// What is run.
    pub fn scenario(&self) -> &Scenario {
        self.scenario.borrow()
    }

    /// [`identity`] of this study.
    pub fn identity(&self) -> &str {
        &self.manifest.plan
    }

    /// Keeps the file of a finished run.
    pub fn keep(&self, (cell, seed): Run, file: &[u8]) -> Result<(), Error> {
        self.folder.keep_run(cell, seed, file)
    }

    /// Keeps the file of a run that was performed elsewhere, once it is known to be that run's.
    pub fn keep_foreign(&self, run: Run, file: Vec<u8>) -> Result<(), Error> {
        let refused = |message| Error::Run { cell: format!("cell {}", run.0), seed: run.1, message };
        let bytes = file.into();
        let (cell, seed, _) = read_run(&bytes).map_err(|e| refused(e.to_string()))?;
        if (cell as usize, seed) != run {
            return Err(refused(format!("what came back is the run of cell {cell} with seed {seed}")));
        }
        self.keep(run, &bytes)
    }

    /// How much of the study there is once `kept` runs were kept, as an error.
    pub fn interrupted(&self, kept: usize) -> Error {
        Error::Interrupted { folder: self.folder.file(""), done: self.resumed() + kept, total: self.total() }
    }

    /// Joins the runs, works out what they come to, and writes the record. `jobs` is how many were
    /// performed at a time.
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
                        || io::Error::new(io::ErrorKind::NotFound, "the file of a finished run has vanished");
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

/// Writes the last files of a record.
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

/// What a record says of a file of values.
pub(crate) fn written(folder: &Folder, name: &str, rows: u64) -> Result<SeriesFile, Error> {
    let path = folder.file(name);
    let (hash, bytes) = File::open(&path).and_then(checksum_of).map_err(Error::io("read", &path))?;
    Ok(SeriesFile { rows, bytes, xxh64: format!("{hash:016x}") })
}

pub(crate) fn io_error(error: ParquetError) -> io::Error {
    // Keep the system's own words, and its kind, where it was the system that failed.
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    }
}
