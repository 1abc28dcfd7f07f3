//! Errors of BPF programs, shared by all their loaders.

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use std::fmt;
use std::io;

/// Error that makes a BPF program unusable.
#[derive(Debug)]
pub enum Error {
    /// The kernel rejects the program.
    Load(EbpfError),
    /// The program cannot be attached or run.
    Program(ProgramError),
    /// The program's maps cannot be mapped.
    Maps(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Load(error) => write!(f, "the kernel cannot load the BPF program: {error}"),
            Error::Program(error) => write!(f, "the BPF program cannot be run: {error}"),
            Error::Maps(error) => write!(f, "the maps of the BPF program cannot be read: {error}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Load(error) => Some(error),
            Error::Program(error) => Some(error),
            Error::Maps(error) => Some(error),
        }
    }
}

impl From<EbpfError> for Error {
    fn from(error: EbpfError) -> Error {
        Error::Load(error)
    }
}

impl From<MapError> for Error {
    fn from(error: MapError) -> Error {
        Error::Load(EbpfError::MapError(error))
    }
}

impl From<ProgramError> for Error {
    fn from(error: ProgramError) -> Error {
        Error::Program(error)
    }
}
