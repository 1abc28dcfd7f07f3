//! What keeps a daemon from running, told with its remedy.

use netstage_scenario::Errors;
use std::fmt;
use std::io;

/// What stands in the way, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// What is wrong.
    pub message: String,
    /// What helps.
    pub remedy: String,
    /// A privilege or kernel feature is missing, rather than something in the configuration.
    pub is_missing: bool,
}

impl Obstacle {
    pub(crate) fn new(message: impl Into<String>, remedy: impl Into<String>) -> Obstacle {
        Obstacle { message: message.into(), remedy: remedy.into(), is_missing: false }
    }

    pub(crate) fn system(message: impl fmt::Display, error: &io::Error) -> Obstacle {
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
        write!(f, "{}; {}", self.message, self.remedy)
    }
}

impl std::error::Error for Obstacle {}

/// Why a daemon does not begin, or refuses a configuration.
#[derive(Debug)]
pub enum Error {
    /// The file is wrong.
    Configuration(Errors),
    /// The machine does not have, or allow, what the file asks for.
    Machine(Obstacle),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Configuration(errors) => write!(f, "{errors}"),
            Error::Machine(obstacle) => write!(f, "{obstacle}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Obstacle> for Error {
    fn from(obstacle: Obstacle) -> Error {
        Error::Machine(obstacle)
    }
}

impl From<Errors> for Error {
    fn from(errors: Errors) -> Error {
        Error::Configuration(errors)
    }
}
