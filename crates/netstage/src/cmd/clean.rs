//! `netstage clean`: restores what a killed router, agent, `tcp limit` or `tcp watch` left behind.

use super::router::SOCKET;
use super::table::counted;
use crate::exit::{Failure, OK, print};
use crate::state_folders::AgentOption;
use netstage_agent::Scratch;
use netstage_host::startup_error::DaemonError;
use netstage_router::daemon::clean;
use netstage_tcp_watch::tracefs;
use std::path::PathBuf;

const EXAMPLES: &str = "Examples:
  netstage clean
  netstage clean --socket /run/netstage-west.sock";

/// Options of `clean`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Control socket of the killed router
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    #[command(flatten)]
    agent: AgentOption,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let cleaned = clean(&arguments.socket).map_err(DaemonError::Machine)?;
    let mut lines: Vec<String> = Vec::new();
    lines.extend(cleaned.settings.iter().map(|name| format!("restored {name}\n")));
    lines.extend(
        cleaned.programs.iter().map(|pin| format!("detached the program pinned at {}\n", pin.display())),
    );
    let connections = super::tcp::limit::clean()?;
    let traces = tracefs::clean();
    let state = arguments.agent.path();
    let files = Scratch::clean(&state).map_err(|error| {
        Failure::run(format!("cannot remove service files in {}: {error}", state.display()))
    })?;
    if lines.is_empty() && connections + traces == 0 && !files {
        lines.push(format!("nothing to clean up for a router at {}\n", arguments.socket.display()));
    } else if !lines.is_empty() {
        lines.push(format!("{}, ", counted(cleaned.settings.len(), "setting")));
        lines.push(format!("{}\n", counted(cleaned.programs.len(), "program")));
    }
    if connections > 0 {
        lines.push(format!("restored the windows of {}\n", counted(connections, "connection")));
    }
    if traces > 0 {
        lines.push(format!("removed {}\n", counted(traces, "kernel tracing instance")));
    }
    if files {
        lines.push(format!("removed service files in {}\n", state.display()));
    }
    print(lines.concat().as_bytes()).map(|()| OK)
}
