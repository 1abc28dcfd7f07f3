//! Reading of records.

use crate::environment::Environment;
use crate::figure::Figure;
use crate::folder::{Manifest, PLAN, RECORD, count_runs, count_trials};
use crate::series::SeriesReader;
use crate::{OpenError, checksum_of};
use netstage_scenario::record::{SeriesFile, StudyRecord as Data};
use netstage_scenario::regular_file;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// File of the measured values.
pub const SERIES: &str = "series.parquet";
/// File of the distributions, if any were measured.
pub const DISTRIBUTIONS: &str = "distributions.parquet";
/// File of the figures.
pub const FIGURES: &str = "figures.json";
/// File of the host and time.
pub const ENVIRONMENT: &str = "environment.json";

/// All files of a record, `record.json` first.
pub const RECORD_FILES: [&str; 5] = [RECORD, SERIES, DISTRIBUTIONS, FIGURES, ENVIRONMENT];

/// Record of a finished study.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRecord {
    /// Folder.
    pub folder: PathBuf,
    /// Contents of `record.json`.
    pub data: Data,
    /// Figures.
    pub figures: Vec<Figure>,
    /// Host and time; empty if the file is missing.
    pub environment: Environment,
}

impl StoredRecord {
    /// Opens a record's folder. Measured values are not loaded; see [`StoredRecord::series`].
    pub fn open(folder: &Path) -> Result<StoredRecord, OpenError> {
        // A path to the file `record.json` is accepted as well.
        let folder = match folder.file_name() {
            Some(name) if name == RECORD => folder.parent().unwrap_or(Path::new("")),
            _ => folder,
        };
        let unreadable =
            |path: &Path, why: String| OpenError::Unreadable { path: path.to_owned(), reason: why };
        let path = folder.join(RECORD);
        if !path.exists() {
            return Err(match Manifest::read(folder) {
                Some(manifest) => OpenError::Incomplete {
                    folder: folder.to_owned(),
                    done: count_runs(folder),
                    trials: count_trials(folder),
                    total: manifest.total(),
                    title: manifest.title,
                    stage: manifest.stage,
                },
                None if folder.join(PLAN).exists() => unreadable(
                    &folder.join(PLAN),
                    "the file is damaged, and the study has no record yet".into(),
                ),
                None => OpenError::Missing(folder.to_owned()),
            });
        }
        let text = regular_file::read_to_string(&path).map_err(|e| unreadable(&path, e.to_string()))?;
        let data = Data::from_json(&text).map_err(|e| unreadable(&path, e.to_string()))?;
        let path = folder.join(FIGURES);
        let figures = match regular_file::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| unreadable(&path, e.to_string()))?,
            Err(_) => Vec::new(),
        };
        let environment = regular_file::read(&folder.join(ENVIRONMENT)).ok();
        let environment = environment.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Ok(StoredRecord { folder: folder.to_owned(), data, figures, environment })
    }

    /// Returns the first missing or damaged file of the record, as far as it is detectable without reading the files
    /// completely.
    pub fn damage(&self) -> Option<OpenError> {
        let length = |file: &str| match fs::metadata(self.folder.join(file)) {
            Ok(found) if found.is_file() => Ok(found.len()),
            Ok(_) => Err("not a regular file".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err("the file is missing".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let check_length = |file: &'static str, expected: &SeriesFile| {
            let found = length(file).map_err(|why| (file, why))?;
            let reason = || format!("the file has {found} bytes instead of {}", expected.bytes);
            if found == expected.bytes { Ok(()) } else { Err((file, reason())) }
        };
        let check = || {
            length(FIGURES).map_err(|why| (FIGURES, why))?;
            check_length(SERIES, &self.data.series)?;
            SeriesReader::open(&self.folder.join(SERIES)).map_err(|why| (SERIES, why.to_string()))?;
            self.data.distributions.as_ref().map_or(Ok(()), |expected| check_length(DISTRIBUTIONS, expected))
        };
        let damage = |(file, why)| OpenError::Unreadable { path: self.folder.join(file), reason: why };
        check().err().map(damage)
    }

    /// Opens the measured values after verifying the checksum of their file.
    pub fn series(&self) -> Result<SeriesReader, OpenError> {
        let path = self.series_file()?;
        SeriesReader::open(&path).map_err(|e| unreadable(&path, e.to_string()))
    }

    /// Returns the path of the measured values after verifying the file's checksum.
    pub fn series_file(&self) -> Result<PathBuf, OpenError> {
        self.checked(SERIES, &self.data.series)
    }

    /// Returns the path of the distributions after verifying the file's checksum, or `None` if none were measured.
    pub fn distributions_file(&self) -> Result<Option<PathBuf>, OpenError> {
        self.data.distributions.as_ref().map(|expected| self.checked(DISTRIBUTIONS, expected)).transpose()
    }

    fn checked(&self, name: &str, expected: &SeriesFile) -> Result<PathBuf, OpenError> {
        let path = self.folder.join(name);
        let found = regular_file::open(&path).and_then(checksum_of);
        let (hash, bytes) = found.map_err(|e| unreadable(&path, e.to_string()))?;
        if bytes != expected.bytes || format!("{hash:016x}") != expected.xxh64 {
            return Err(unreadable(&path, "the file was changed after the record was written".into()));
        }
        Ok(path)
    }

    /// Returns a short name: that of the folder.
    pub fn name(&self) -> String {
        let folder = fs::canonicalize(&self.folder).unwrap_or_else(|_| self.folder.clone());
        folder.file_name().map_or_else(|| self.data.title.clone(), |n| n.to_string_lossy().into_owned())
    }
}

fn unreadable(path: &Path, why: String) -> OpenError {
    OpenError::Unreadable { path: path.to_owned(), reason: why }
}
