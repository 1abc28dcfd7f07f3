//! What an emulation is run with.

use crate::exit::Failure;
use netstage_study::stage::{Backend, Means};
use std::path::{Path, PathBuf};

/// Name of the folder in a record's with what programs said that failed.
const LOGS: &str = "logs";

/// The means of an emulation whose record goes to this folder.
pub fn means(out: &Path, backend: Backend) -> Result<Means, Failure> {
    Ok(Means { program: own_program()?, logs: out.join(LOGS), backend })
}

/// This program, whose processes hold the emulated network.
fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::usage(format!("cannot find this program's own file: {e}")))
}
