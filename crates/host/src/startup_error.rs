//! Startup errors of a daemon, with remedies.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// Error that keeps a daemon from running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartupError {
    /// Description of the error.
    pub message: String,
    /// Remedy; empty if unknown.
    pub remedy: String,
    /// Whether a privilege or kernel feature is missing, rather than the configuration being wrong.
    pub is_missing: bool,
}

impl StartupError {
    /// Creates an error without a known remedy.
    pub fn without_remedy(message: impl Into<String>) -> StartupError {
        StartupError::new(message, "")
    }

    /// Creates the error of a missing privilege or kernel feature.
    pub fn missing_feature(message: impl Into<String>, remedy: impl Into<String>) -> StartupError {
        StartupError { is_missing: true, ..StartupError::new(message, remedy) }
    }

    /// Creates an error with a remedy.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> StartupError {
        StartupError { message: message.into(), remedy: remedy.into(), is_missing: false }
    }

    /// Creates the error of a system call; a permission error counts as a missing privilege.
    pub fn from_system(message: impl fmt::Display, error: &io::Error) -> StartupError {
        let is_missing = error.kind() == io::ErrorKind::PermissionDenied;
        let remedy = match is_missing {
            true => "run as root, or in a user namespace (unshare -Urn)",
            false => "check the system (ip link, dmesg)",
        };
        StartupError { message: format!("{message}: {error}"), remedy: remedy.into(), is_missing }
    }
}

impl fmt::Display for StartupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

impl std::error::Error for StartupError {}

/// Error of a daemon's start or reload; `C` is an error in the configuration.
#[derive(Debug)]
pub enum DaemonError<C> {
    /// Invalid configuration.
    Configuration(C),
    /// Feature or permission that the configuration needs and the machine lacks.
    Machine(StartupError),
}

impl<C: fmt::Display> fmt::Display for DaemonError<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DaemonError::Configuration(errors) => errors.fmt(f),
            DaemonError::Machine(obstacle) => obstacle.fmt(f),
        }
    }
}

impl<C: fmt::Debug + fmt::Display> std::error::Error for DaemonError<C> {}

impl<C> From<StartupError> for DaemonError<C> {
    fn from(obstacle: StartupError) -> DaemonError<C> {
        DaemonError::Machine(obstacle)
    }
}
