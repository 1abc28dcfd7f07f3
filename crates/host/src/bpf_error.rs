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
    /// The cgroup to which the program applies cannot be created.
    Cgroup(io::Error),
}

impl fmt::Display for BpfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BpfError::Load(error) => write!(f, "the kernel cannot load the BPF program: {error}"),
            BpfError::Program(ProgramError::LoadError { io_error, verifier_log }) => {
                let reason =
                    rejection(&verifier_log.to_string()).map_or(String::new(), |line| format!(" ({line})"));
                write!(f, "the kernel rejects the BPF program: {io_error}{reason}")
            }
            BpfError::Program(error) => write!(f, "the BPF program cannot be run: {error}"),
            BpfError::Maps(error) => write!(f, "the maps of the BPF program cannot be read: {error}"),
            BpfError::Cgroup(error) => write!(f, "the cgroup of limited threads cannot be created: {error}"),
        }
    }
}

impl std::error::Error for BpfError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BpfError::Load(error) => Some(error),
            BpfError::Program(error) => Some(error),
            BpfError::Maps(error) | BpfError::Cgroup(error) => Some(error),
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

/// Returns the line of a verifier's log that has the reason of a rejection: the last one before its statistics. The log
/// itself has a line per instruction.
fn rejection(log: &str) -> Option<String> {
    const STATISTICS: [&str; 3] = ["verification time", "stack depth", "processed"];
    let mut lines = log.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    lines.find(|line| STATISTICS.iter().all(|start| !line.starts_with(start))).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejection_is_one_line() {
        let log = "55: (7b) *(u64 *)(r0 +0) = r1         ; R0=map_value(map=port_counts,ks=4,vs=16) R1=scalar()\n\
            56: (1f) r6 -= r7\nR6 pointer -= pointer prohibited\nverification time 3931 usec\nstack depth 48\n\
            processed 55 insns (limit 1000000) max_states_per_insn 0 total_states 3 peak_states 3 mark_read 0\n\n";
        assert_eq!(rejection(log).as_deref(), Some("R6 pointer -= pointer prohibited"));
        assert_eq!(rejection("\nstack depth 0\n"), None);
        assert_eq!(rejection(""), None);
    }
}
