//! `netstage pe run`: the router itself, until a signal ends it.

use super::json;
use crate::exit::{Failure, OK};
use netstage_pe::daemon::{Daemon, Ended, Level, Log, Signals};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of `pe run`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The configuration file
    configuration: PathBuf,
    /// At the end, write how it stood to this file, as JSON
    #[arg(long, value_name = "FILE")]
    last_state: Option<PathBuf>,
    /// Write what the VPN flows are told and decide to this new file, for `netstage pe replay`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    // Before any thread begins: each would be ended by a signal otherwise.
    let signals = Signals::block().map_err(|error| Failure::run(format!("no signals: {error}")))?;
    let log: Log = Arc::new(|level, line| {
        let mark = if level == Level::Alarm { "alarm: " } else { "" };
        say(&format!("{mark}{line}"));
    });
    let daemon = Daemon::begin(&arguments.configuration, arguments.trace.as_deref(), log)?;
    let control = daemon.router().control.clone();
    let ready = || say(&format!("ready; control socket {}", control.display()));
    let (ended, daemon) = daemon.serve(signals, ready)?;
    if let (Some(state), Some(path)) = (daemon.end(), &arguments.last_state) {
        write(path, &json(&state)?).map_err(|error| Failure::write(path, &error))?;
    }
    match ended {
        Ended::Asked => Ok(OK),
        Ended::Broken => Err(Failure::run("forwarding ended by itself")),
    }
}

/// Whole or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".part");
    std::fs::write(&aside, text)?;
    std::fs::rename(&aside, path)
}

fn say(what: &str) {
    let _ = writeln!(io::stderr(), "netstage pe: {what}");
}
