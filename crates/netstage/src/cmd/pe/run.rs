//! `netstage pe run`: runs the router until a signal stops it.

use super::json;
use crate::exit::{Failure, OK};
use crate::service_manager;
use netstage_pe::daemon::{Level, Log, PeDaemon, ServeEnd, Signals};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXAMPLES: &str = "Examples:
  netstage pe run /etc/netstage/pe.toml
  netstage pe run west.toml --trace west.trace --last-state west.json";

/// Options of `pe run`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Configuration file
    configuration: PathBuf,
    /// Write the final state to this file, as JSON
    #[arg(long, value_name = "FILE")]
    last_state: Option<PathBuf>,
    /// Write events and decisions of the VPN flows to this new file, for `netstage pe replay`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    // Must precede the first thread: threads started earlier would not block the signals.
    let signals = Signals::block().map_err(|error| Failure::run(format!("cannot block signals: {error}")))?;
    let log: Log = Arc::new(|level, line| {
        let mark = if level == Level::Alarm { "alarm: " } else { "" };
        print_line(&format!("{mark}{line}"));
    });
    let daemon = PeDaemon::begin(&arguments.configuration, arguments.trace.as_deref(), log)?;
    let control = daemon.router().control.clone();
    let ready = || {
        print_line(&format!("ready; control socket {}", control.display()));
        service_manager::ready();
    };
    let (ended, daemon) = daemon.serve(signals, ready)?;
    service_manager::stopping();
    if let (Some(state), Some(path)) = (daemon.end(), &arguments.last_state) {
        write(path, &json(&state)?).map_err(|error| Failure::write(path, &error))?;
    }
    match ended {
        ServeEnd::Requested => Ok(OK),
        ServeEnd::Broken => Err(Failure::run("forwarding stopped unexpectedly")),
    }
}

/// Writes a file atomically.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".part");
    std::fs::write(&partial, text)?;
    std::fs::rename(&partial, path)
}

fn print_line(text: &str) {
    let _ = writeln!(io::stderr(), "netstage pe: {text}");
}
