//! Execution environment of an emulation.

use crate::exit::Failure;
use netstage_study::stage::{Backend, Means};
use std::path::{Path, PathBuf};

/// Subfolder of the record for the output of failed programs.
const LOGS: &str = "logs";

/// Returns the execution environment for an emulation that records into `out`.
pub fn means(out: &Path, backend: Backend) -> Result<Means, Failure> {
    Ok(Means { program: own_program()?, logs: out.join(LOGS), backend })
}

/// Returns the path of this program; processes of it hold the emulated network.
fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|e| Failure::usage(format!("cannot find the path of the netstage program: {e}")))
}
