//! `netstage man`: writes man pages, from the same texts as `--help`.

use crate::exit::{self, Failure, OK};
use clap::builder::Resettable;
use clap_mangen::Man;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "Examples:
  netstage man /usr/local/share/man/man1";

/// Options of `man`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Folder for the pages: netstage.1, netstage-run.1, …
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments, mut program: clap::Command) -> Result<u8, Failure> {
    let folder = &arguments.folder;
    // The pages of the `help` subcommands would only repeat the others.
    program = program.disable_help_subcommand(true);
    program.build();
    fs::create_dir_all(folder)
        .and_then(|()| write_pages(&program, folder))
        .map_err(|error| Failure::write(folder, &error))?;
    Ok(OK)
}

/// Writes the page of a command and of each of its subcommands.
fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        write_pages(subcommand, folder)?;
    }
    // The text after the options becomes sections of its own, below.
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let page = Man::new(command.clone().after_help(Resettable::Reset))
        .source(concat!("netstage ", env!("CARGO_PKG_VERSION")))
        .manual("netstage");
    let mut text = Vec::new();
    page.render(&mut text)?;
    writeln!(text, ".SH \"EXIT STATUS\"\n{}", exit::HELP)?;
    if let Some(lines) = after.strip_prefix("Examples:\n") {
        // A plain hyphen in roff is not the ASCII one that a shell needs.
        let lines = lines.replace('\\', "\\e").replace('-', "\\-");
        writeln!(text, ".SH EXAMPLES\n.nf\n{lines}\n.fi")?;
    }
    writeln!(text, ".SH \"SEE ALSO\"\nDocumentation in /usr/share/doc/netstage (Debian package).")?;
    fs::write(folder.join(page.get_filename()), text)
}
