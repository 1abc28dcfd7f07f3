//! What can go wrong, as far as a caller can act on it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a study yields no record.
#[derive(Debug)]
pub enum Error {
    /// The output folder holds something else, or a finished study; it is untouched.
    Occupied {
        /// The folder.
        folder: PathBuf,
        /// What it holds.
        holds: String,
    },
    /// Another process works in the output folder.
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// A run failed.
    Run {
        /// Its cell, in words.
        cell: String,
        /// Its seed.
        seed: u64,
        /// Why.
        message: String,
    },
    /// The stage cannot run a plan of this scenario.
    Unsupported(String),
    /// This host or this user lacks what the stage needs.
    Missing {
        /// What is missing.
        message: String,
        /// How to get it.
        remedy: String,
    },
    /// Reading or writing failed. Finished runs are kept.
    Io {
        /// What failed: "write", "read", …
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Interrupted; the finished runs are kept.
    Interrupted {
        /// The folder.
        folder: PathBuf,
        /// Runs finished.
        done: usize,
        /// Runs in all.
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
                write!(f, "{} {holds}; it is left as it is", folder.display())
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

/// Why a folder is not a record that can be read.
#[derive(Debug)]
pub enum OpenError {
    /// There is no record.
    Missing(PathBuf),
    /// Its study is not finished.
    Incomplete {
        /// The folder.
        folder: PathBuf,
        /// What its scenario is called.
        title: String,
        /// What it runs on.
        stage: String,
        /// Runs finished.
        done: usize,
        /// Runs in all.
        total: usize,
    },
    /// A file is damaged, or of a version this tool does not read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Missing(folder) => write!(f, "{} holds no record (no record.json)", folder.display()),
            OpenError::Incomplete { folder, done, total, .. } => write!(
                f,
                "{} is unfinished: {done} of {total} runs are done; the same `netstage run` goes on with it",
                folder.display()
            ),
            OpenError::Unreadable { path, why } => write!(f, "{}: {why}", path.display()),
        }
    }
}

impl std::error::Error for OpenError {}
