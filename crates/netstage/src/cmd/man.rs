//! `netstage man`: manual pages, made of the same descriptions as `--help`.

use crate::exit::{Failure, OK};
use std::fs;
use std::path::PathBuf;

/// Options of `man`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The folder for the pages: netstage.1, netstage-run.1, …
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments, program: clap::Command) -> Result<u8, Failure> {
    let folder = &arguments.folder;
    fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(program, folder))
        .map_err(|error| Failure::write(folder, &error))?;
    Ok(OK)
}
