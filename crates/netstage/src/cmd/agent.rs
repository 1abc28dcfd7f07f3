//! `netstage agent`: carries out one node's part of runs, for a controller.

use crate::exit::{Failure, INTERRUPTED, OK};
use netstage_live::agent::{Agent, EndReason, Engine};
use std::io::{self, Write as _};
use std::path::PathBuf;

/// Options of `agent`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Listen on this Unix socket, which is made, and removed at the end
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// Keep reports in this folder until the controller has them
    #[arg(long, value_name = "DIR")]
    spool: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let agent = Agent::bind(&arguments.socket, &arguments.spool).map_err(|e| Failure::run(e.to_string()))?;
    let ender = agent.ender();
    ctrlc::set_handler(move || ender.end()).map_err(|e| Failure::run(format!("no signal handler: {e}")))?;
    say(&format!("listening on {}", arguments.socket.display()));
    let ended = agent.serve(Engine).map_err(|e| Failure::run(format!("the agent failed: {e}")))?;
    for problem in &ended.problems {
        say(problem);
    }
    let kept: Vec<String> = ended.kept.iter().map(|path| path.display().to_string()).collect();
    if !kept.is_empty() {
        say(&format!("not fetched by any controller: {}", kept.join(", ")));
    }
    match ended.reason {
        EndReason::Finished => Ok(OK),
        EndReason::Interrupted => Ok(INTERRUPTED),
        EndReason::ControllerGone => Err(Failure::run("the controller went away without a word")),
    }
}

fn say(what: &str) {
    let _ = writeln!(io::stderr(), "netstage agent {}: {what}", env!("CARGO_PKG_VERSION"));
}
