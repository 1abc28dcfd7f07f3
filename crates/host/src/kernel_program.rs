//! What keeps a program of ours from running in the kernel, whoever loads it.

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use std::fmt;
use std::io;

/// Why a program cannot be used.
#[derive(Debug)]
pub enum Error {
    /// The kernel does not take it.
    Load(EbpfError),
    /// It does not run, or not there.
    Program(ProgramError),
    /// What it shares with us cannot be had.
    Maps(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Load(error) => write!(f, "the kernel does not load the program: {error}"),
            Error::Program(error) => write!(f, "the program does not run in the kernel: {error}"),
            Error::Maps(error) => write!(f, "what the program in the kernel shares cannot be had: {error}"),
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
