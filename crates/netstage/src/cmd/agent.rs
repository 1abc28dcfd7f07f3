//! `netstage agent`: executes this host's part of runs for a controller.

use super::fleet;
use crate::exit::{Failure, INTERRUPTED, OK};
use crate::state_folders::{AgentOption, failure};
use netstage_agent::fleet::member::FleetAgent;
use netstage_agent::{AssignmentEngine, EndReason, LocalAgent, Scratch, ServiceEngine, Worker};
use netstage_core::fleet::Policy;
use netstage_host::log::Level;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const EXAMPLES: &str = "Examples:
  netstage agent --policy /etc/netstage/agent.toml
  netstage agent --state /var/lib/netstage/agent --metrics";

/// Options of `agent`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    state: AgentOption,
    /// Policy file that restricts the controller's requests
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket", "spool"])]
    policy: Option<PathBuf>,
    /// Serve Prometheus metrics [address if omitted: 127.0.0.1:4703]
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:4703",
        conflicts_with_all = ["socket", "spool"]
    )]
    metrics: Option<SocketAddr>,
    /// Listen on this Unix socket instead of joining a fleet; needs --spool
    #[arg(long, value_name = "PATH", requires = "spool")]
    socket: Option<PathBuf>,
    /// With --socket: folder for reports until the controller fetches them
    #[arg(long, value_name = "DIR", requires = "socket")]
    spool: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    match (&arguments.socket, &arguments.spool) {
        (Some(socket), Some(spool)) => serve_socket(socket, spool),
        _ => serve_fleet(arguments),
    }
}

/// Runs an agent that has joined a fleet and connects to its controller.
fn serve_fleet(arguments: &Arguments) -> Result<u8, Failure> {
    let policy = arguments.policy.as_deref().map(netstage_scenario::agent::load).transpose()?;
    let log = fleet::log("agent");
    let member =
        FleetAgent::open(&arguments.state.path(), policy.clone().unwrap_or_default(), Arc::clone(&log));
    let mut member = member.map_err(failure)?;
    if let Some(address) = arguments.metrics {
        member.serve_metrics(address);
    }
    let membership = member.membership();
    if policy == Some(Policy::default()) || policy.is_none() {
        log(Level::Note, "no policy restricts the controller's requests; set one with --policy");
    }
    log(Level::Note, &format!("{} of fleet {}", membership.name, membership.controller));
    let ender = member.shutdown_handle();
    interrupt(move || ender.request())?;
    let services = policy.is_some_and(|policy| !policy.services.is_empty());
    let worker: Arc<dyn Worker> = match services {
        true => Arc::new(ServiceEngine::new(scratch(&arguments.state.path())?)),
        false => Arc::new(AssignmentEngine),
    };
    member.serve(worker).map_err(|e| Failure::run(format!("the agent failed: {e}")))?;
    Ok(OK)
}

/// Opens the folder for files of service programs.
fn scratch(state: &Path) -> Result<Scratch, Failure> {
    Scratch::open(state).map_err(|error| {
        let failure =
            Failure::run(format!("cannot create the service folder in {}: {error}", state.display()));
        match error.kind() {
            io::ErrorKind::WouldBlock => {
                failure.help("another agent uses it; give each agent its own --state")
            }
            _ => failure,
        }
    })
}

/// Runs an agent of this host for one controller.
fn serve_socket(socket: &Path, spool: &Path) -> Result<u8, Failure> {
    let agent = LocalAgent::bind(socket, spool).map_err(|e| Failure::run(e.to_string()))?;
    let ender = agent.shutdown_handle();
    interrupt(move || ender.request())?;
    print_line(&format!("listening on {}", socket.display()));
    let ended = agent.serve(AssignmentEngine).map_err(|e| Failure::run(format!("the agent failed: {e}")))?;
    for problem in &ended.problems {
        print_line(problem);
    }
    let kept: Vec<String> = ended.stored_reports.iter().map(|path| path.display().to_string()).collect();
    if !kept.is_empty() {
        print_line(&format!("reports not fetched by any controller: {}", kept.join(", ")));
    }
    match ended.reason {
        EndReason::Finished => Ok(OK),
        EndReason::Interrupted => Ok(INTERRUPTED),
        EndReason::ControllerGone => Err(Failure::run("the controller disconnected unexpectedly")),
    }
}

fn interrupt(end: impl Fn() + Send + 'static) -> Result<(), Failure> {
    ctrlc::set_handler(end).map_err(|e| Failure::run(format!("cannot install a signal handler: {e}")))
}

fn print_line(text: &str) {
    let _ = writeln!(io::stderr(), "netstage agent {}: {text}", env!("CARGO_PKG_VERSION"));
}
