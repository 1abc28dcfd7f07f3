//! Errors of studies and records.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Error of a study.
#[derive(Debug)]
pub enum Error {
    /// Output folder that holds a finished study or other files. It is unchanged.
    Occupied {
        /// Output folder.
        folder: PathBuf,
        /// Contents, as a predicate: "holds other files".
        holds: String,
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
        doing: &'static str,
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
    },
}

impl Error {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io { doing, path, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Occupied { folder, holds } => {
                write!(f, "{} {holds}; it was not changed", folder.display())
            }
            Error::InUse { folder } => write!(f, "another netstage is writing to {}", folder.display()),
            Error::Run { cell, seed, message } if cell.is_empty() => {
                write!(f, "the run with seed {seed} failed: {message}")
            }
            Error::Run { cell, seed, message } => {
                write!(f, "the run of {cell} with seed {seed} failed: {message}")
            }
            Error::Unsupported(message) | Error::Missing { message, .. } => f.write_str(message),
            Error::Io { doing, path, source } => write!(f, "cannot {doing} {}: {source}", path.display()),
            Error::Interrupted { folder, done, total } => {
                write!(f, "interrupted: {done} of {total} runs are kept in {}", folder.display())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
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
    },
    /// File that is damaged or has an unsupported version.
    Unreadable {
        /// File.
        path: PathBuf,
        /// Reason.
        why: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Missing(folder) => write!(f, "{} holds no record (no record.json)", folder.display()),
            OpenError::Incomplete { folder, done, total, .. } => write!(
                f,
                "{} is unfinished: {done} of {total} runs are done; repeat the same `netstage run` to resume it",
                folder.display()
            ),
            OpenError::Unreadable { path, why } => write!(f, "{}: {why}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {}
