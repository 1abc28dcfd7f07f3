//! A record on disk, read back.

use crate::environment::Environment;
use crate::figure::Figure;
use crate::folder::{Manifest, PLAN, RECORD, count_runs};
use crate::series::SeriesReader;
use crate::{OpenError, checksum_of};
use netstage_scenario::record::{Record as Data, SeriesFile};
use netstage_scenario::regular;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The values.
pub const SERIES: &str = "series.parquet";
/// How often each value occurred, where distributions were taken.
pub const DISTRIBUTIONS: &str = "distributions.parquet";
/// The figures.
pub const FIGURES: &str = "figures.json";
/// Host and time.
pub const ENVIRONMENT: &str = "environment.json";

/// All files of a record, that which makes it one first.
pub const RECORD_FILES: [&str; 5] = [RECORD, SERIES, DISTRIBUTIONS, FIGURES, ENVIRONMENT];

/// A finished study.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Its folder.
    pub folder: PathBuf,
    /// Its `record.json`.
    pub data: Data,
    /// Its figures.
    pub figures: Vec<Figure>,
    /// Host and time; empty where they were not kept.
    pub environment: Environment,
}

impl Record {
    /// Reads a record's folder. The values stay in their file; see [`Record::series`].
    pub fn open(folder: &Path) -> Result<Record, OpenError> {
        // Naming the file inside the folder is as good as naming the folder.
        let folder = match folder.file_name() {
            Some(name) if name == RECORD => folder.parent().unwrap_or(Path::new("")),
            _ => folder,
        };
        let unreadable = |path: &Path, why: String| OpenError::Unreadable { path: path.to_owned(), why };
        let path = folder.join(RECORD);
        if !path.exists() {
            return Err(match Manifest::read(folder) {
                Some(manifest) => OpenError::Incomplete {
                    folder: folder.to_owned(),
                    done: count_runs(folder),
                    total: manifest.total(),
                    title: manifest.title,
                    stage: manifest.stage,
                },
                None if folder.join(PLAN).exists() => {
                    unreadable(&folder.join(PLAN), "it is damaged, and the study has no record yet".into())
                }
                None => OpenError::Missing(folder.to_owned()),
            });
        }
        let text = regular::read_to_string(&path).map_err(|e| unreadable(&path, e.to_string()))?;
        let data = Data::from_json(&text).map_err(|e| unreadable(&path, e.to_string()))?;
        let path = folder.join(FIGURES);
        let figures = match regular::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|e| unreadable(&path, e.to_string()))?,
            Err(_) => Vec::new(),
        };
        let environment = regular::read(&folder.join(ENVIRONMENT)).ok();
        let environment = environment.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Ok(Record { folder: folder.to_owned(), data, figures, environment })
    }

    /// What of the files beside `record.json` is missing or damaged, as far as that is told without reading all of
    /// their bytes.
    pub fn damage(&self) -> Option<OpenError> {
        let length = |file: &str| match fs::metadata(self.folder.join(file)) {
            Ok(found) if found.is_file() => Ok(found.len()),
            Ok(_) => Err("it is no regular file".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err("it is missing".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let whole = |file: &'static str, kept: &SeriesFile| {
            let found = length(file).map_err(|why| (file, why))?;
            let said = || format!("it has {found} bytes, and was written with {}", kept.bytes);
            if found == kept.bytes { Ok(()) } else { Err((file, said())) }
        };
        let check = || {
            length(FIGURES).map_err(|why| (FIGURES, why))?;
            whole(SERIES, &self.data.series)?;
            SeriesReader::open(&self.folder.join(SERIES)).map_err(|why| (SERIES, why.to_string()))?;
            self.data.distributions.as_ref().map_or(Ok(()), |kept| whole(DISTRIBUTIONS, kept))
        };
        let damage = |(file, why)| OpenError::Unreadable { path: self.folder.join(file), why };
        check().err().map(damage)
    }

    /// The values, once their file is known to be the one the record was written with.
    pub fn series(&self) -> Result<SeriesReader, OpenError> {
        let path = self.series_file()?;
        SeriesReader::open(&path).map_err(|e| unreadable(&path, e.to_string()))
    }

    /// The file of the values, once it is known to be the one the record was written with.
    pub fn series_file(&self) -> Result<PathBuf, OpenError> {
        self.checked(SERIES, &self.data.series)
    }

    /// The file of the distributions, likewise; none where none were taken.
    pub fn distributions_file(&self) -> Result<Option<PathBuf>, OpenError> {
        self.data.distributions.as_ref().map(|expected| self.checked(DISTRIBUTIONS, expected)).transpose()
    }

    fn checked(&self, name: &str, expected: &SeriesFile) -> Result<PathBuf, OpenError> {
        let path = self.folder.join(name);
        let found = regular::open(&path).and_then(checksum_of);
        let (hash, bytes) = found.map_err(|e| unreadable(&path, e.to_string()))?;
        if bytes != expected.bytes || format!("{hash:016x}") != expected.xxh64 {
            return Err(unreadable(&path, "its bytes are not those the record was written with".into()));
        }
        Ok(path)
    }

    /// A short name: that of its folder.
    pub fn name(&self) -> String {
        let folder = fs::canonicalize(&self.folder).unwrap_or_else(|_| self.folder.clone());
        folder.file_name().map_or_else(|| self.data.title.clone(), |n| n.to_string_lossy().into_owned())
    }
}

fn unreadable(path: &Path, why: String) -> OpenError {
    OpenError::Unreadable { path: path.to_owned(), why }
}
