//! Errors of BPF programs, shared by all their loaders.

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use std::fmt;
use std::io;

/// Error that makes a BPF program unusable.
#[derive(Debug)]
pub enum BpfError {
    /// The kernel rejects the program.
    Load(EbpfError),
    /// The program cannot be attached or run.
    Program(ProgramError),
    /// The program's maps cannot be mapped.
    Maps(io::Error),
}

impl fmt::Display for BpfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BpfError::Load(error) => write!(f, "the kernel cannot load the BPF program: {error}"),
            BpfError::Program(error) => write!(f, "the BPF program cannot be run: {error}"),
            BpfError::Maps(error) => write!(f, "the maps of the BPF program cannot be read: {error}"),
        }
    }
}

impl std::error::Error for BpfError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BpfError::Load(error) => Some(error),
            BpfError::Program(error) => Some(error),
            BpfError::Maps(error) => Some(error),
        }
    }
}

impl From<EbpfError> for BpfError {
    fn from(error: EbpfError) -> BpfError {
        BpfError::Load(error)
    }
}

impl From<MapError> for BpfError {
    fn from(error: MapError) -> BpfError {
        BpfError::Load(EbpfError::MapError(error))
    }
}

impl From<ProgramError> for BpfError {
    fn from(error: ProgramError) -> BpfError {
        BpfError::Program(error)
    }
}
