//! `netstage man`: manual pages, made of the same descriptions as `--help`.

use crate::exit::{self, Failure, OK};
use clap::builder::Resettable;
use clap_mangen::Man;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Options of `man`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The folder for the pages: netstage.1, netstage-run.1, …
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments, mut program: clap::Command) -> Result<u8, Failure> {
    let folder = &arguments.folder;
    // Pages tell of commands; that each of these has a `help` need not be told by one.
    program = program.disable_help_subcommand(true);
    program.build();
    fs::create_dir_all(folder)
        .and_then(|()| write_pages(&program, folder))
        .map_err(|error| Failure::write(folder, &error))?;
    Ok(OK)
}

/// The page of a command, and those of the commands below it.
fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below, folder)?;
    }
    // What help has at its end, is a section of every page here.
    let page = Man::new(command.clone().after_help(Resettable::Reset))
        .source(concat!("netstage ", env!("CARGO_PKG_VERSION")))
        .manual("netstage");
    let mut text = Vec::new();
    page.render(&mut text)?;
    writeln!(text, ".SH \"EXIT STATUS\"\n{}", exit::HELP)?;
    writeln!(text, ".SH \"SEE ALSO\"\nThe documentation, in /usr/share/doc/netstage of the Debian package.")?;
    fs::write(folder.join(page.get_filename()), text)
}
