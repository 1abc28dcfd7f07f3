//! Startup errors of a daemon, with remedies.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// Error that keeps a daemon from running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// Description of the error.
    pub message: String,
    /// Remedy; empty if unknown.
    pub remedy: String,
    /// Whether a privilege or kernel feature is missing, rather than the configuration being wrong.
    pub is_missing: bool,
}

impl Obstacle {
    /// Creates an error without a known remedy.
    pub fn broken(message: impl Into<String>) -> Obstacle {
        Obstacle::new(message, "")
    }

    /// Creates the error of a missing privilege or kernel feature.
    pub fn missing(message: impl Into<String>, remedy: impl Into<String>) -> Obstacle {
        Obstacle { is_missing: true, ..Obstacle::new(message, remedy) }
    }

    /// Creates an error with a remedy.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> Obstacle {
        Obstacle { message: message.into(), remedy: remedy.into(), is_missing: false }
    }

    /// Creates the error of a system call; a permission error counts as a missing privilege.
    pub fn system(message: impl fmt::Display, error: &io::Error) -> Obstacle {
        let is_missing = error.kind() == io::ErrorKind::PermissionDenied;
        let remedy = match is_missing {
            true => "run as root, or in a user namespace (unshare -Urn)",
            false => "check the system (ip link, dmesg)",
        };
        Obstacle { message: format!("{message}: {error}"), remedy: remedy.into(), is_missing }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

impl std::error::Error for Obstacle {}

/// Error of a daemon's start or reload; `C` is an error in the configuration.
#[derive(Debug)]
pub enum Error<C> {
    /// Invalid configuration.
    Configuration(C),
    /// Feature or permission that the configuration needs and the machine lacks.
    Machine(Obstacle),
}

impl<C: fmt::Display> fmt::Display for Error<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Configuration(errors) => errors.fmt(f),
            Error::Machine(obstacle) => obstacle.fmt(f),
        }
    }
}

impl<C: fmt::Debug + fmt::Display> std::error::Error for Error<C> {}

impl<C> From<Obstacle> for Error<C> {
    fn from(obstacle: Obstacle) -> Error<C> {
        Error::Machine(obstacle)
    }
}
