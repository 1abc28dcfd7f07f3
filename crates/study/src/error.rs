//! Errors of studies and records.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Error of a study.
#[derive(Debug)]
pub enum StudyError {
    /// Output folder that holds a finished study or other files. It is unchanged.
    Occupied {
        /// Output folder.
        folder: PathBuf,
        /// Contents, as a predicate: "holds other files".
        contents: String,
    },
    /// Output folder locked by another process.
    InUse {
        /// Output folder.
        folder: PathBuf,
    },
    /// Failed run.
    Run {
        /// Label of the cell.
        cell: String,
        /// Seed.
        seed: u64,
        /// Reason.
        message: String,
    },
    /// Scenario that the stage cannot run.
    Unsupported(String),
    /// Program, kernel feature or permission that the stage requires and this host lacks.
    Missing {
        /// Missing requirement.
        message: String,
        /// Remedy.
        remedy: String,
    },
    /// Failed read or write. Finished runs are kept.
    Io {
        /// Failed operation: "write", "read", …
        operation: &'static str,
        /// File or folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Interruption. Finished runs are kept.
    Interrupted {
        /// Output folder.
        folder: PathBuf,
        /// Finished runs.
        done: usize,
        /// Total runs.
        total: usize,
        /// Finished trials of unfinished runs.
        trials: usize,
    },
}

impl StudyError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StudyError {
        let path = path.to_owned();
        move |source| StudyError::Io { operation: doing, path, source }
    }
}

impl fmt::Display for StudyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StudyError::Occupied { folder, contents: holds } => {
                write!(f, "{} {holds}; it was not changed", folder.display())
            }
            StudyError::InUse { folder } => write!(f, "another netstage is writing to {}", folder.display()),
            StudyError::Run { cell, seed, message } if cell.is_empty() => {
                write!(f, "the run with seed {seed} failed: {message}")
            }
            StudyError::Run { cell, seed, message } => {
                write!(f, "the run of {cell} with seed {seed} failed: {message}")
            }
            StudyError::Unsupported(message) | StudyError::Missing { message, .. } => f.write_str(message),
            StudyError::Io { operation: doing, path, source } => {
                write!(f, "cannot {doing} {}: {source}", path.display())
            }
            StudyError::Interrupted { folder, done, total, trials: 0 } => {
                write!(f, "interrupted: {done} of {total} runs are kept in {}", folder.display())
            }
            StudyError::Interrupted { folder, done, total, trials } => {
                write!(
                    f,
                    "interrupted: {done} of {total} runs and {trials} trials of unfinished runs are kept in {}",
                    folder.display()
                )
            }
        }
    }
}

impl std::error::Error for StudyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StudyError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Error of opening a record.
#[derive(Debug)]
pub enum OpenError {
    /// Folder without a record.
    Missing(PathBuf),
    /// Folder of an unfinished study.
    Incomplete {
        /// Folder.
        folder: PathBuf,
        /// Title of the scenario.
        title: String,
        /// Name of the stage.
        stage: String,
        /// Finished runs.
        done: usize,
        /// Total runs.
        total: usize,
        /// Finished trials of unfinished runs.
        trials: usize,
    },
    /// File that is damaged or has an unsupported version.
    Unreadable {
        /// File.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Missing(folder) => write!(f, "{} holds no record (no record.json)", folder.display()),
            OpenError::Incomplete { folder, done, total, trials, .. } => {
                let trials = if *trials > 0 {
                    format!(" and {trials} trials of unfinished runs")
                } else {
                    String::new()
                };
                write!(
                    f,
                    "{} is unfinished: {done} of {total} runs{trials} are done; repeat the same `netstage run` to resume it",
                    folder.display()
                )
            }
            OpenError::Unreadable { path, reason: why } => write!(f, "{}: {why}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {}
