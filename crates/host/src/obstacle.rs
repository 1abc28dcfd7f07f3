//! What keeps a daemon from running, told with its remedy.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// What stands in the way, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// What is wrong.
    pub message: String,
    /// What helps; empty where nothing is known to.
    pub remedy: String,
    /// A privilege or kernel feature is missing, rather than something in the configuration.
    pub is_missing: bool,
}

impl Obstacle {
    /// Something broke, and nothing is known to help.
    pub fn broken(message: impl Into<String>) -> Obstacle {
        Obstacle::new(message, "")
    }

    /// A privilege or kernel feature is missing.
    pub fn missing(message: impl Into<String>, remedy: impl Into<String>) -> Obstacle {
        Obstacle { is_missing: true, ..Obstacle::new(message, remedy) }
    }

    /// Something is in the way, and this helps.
    pub fn new(message: impl Into<String>, remedy: impl Into<String>) -> Obstacle {
        Obstacle { message: message.into(), remedy: remedy.into(), is_missing: false }
    }

    /// The system refused; without a privilege, where that is why.
    pub fn system(message: impl fmt::Display, error: &io::Error) -> Obstacle {
        let is_missing = error.kind() == io::ErrorKind::PermissionDenied;
        let remedy = match is_missing {
            true => "run it as root, or within a user namespace of your own (unshare -Urn)",
            false => "see what the system says of it (ip link, dmesg)",
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

/// Why a daemon does not start, or refuses a configuration; `C` says what is wrong in the configuration.
#[derive(Debug)]
pub enum Error<C> {
    /// The file is wrong.
    Configuration(C),
    /// The machine does not have, or allow, what the file asks for.
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
