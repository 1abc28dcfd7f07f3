//! `netstage agent`: carries out one node's part of runs, for a controller.

use super::fleet::{self, StateFolder};
use crate::exit::{Failure, INTERRUPTED, OK};
use netstage_agent::fleet::member::Member;
use netstage_agent::{Agent, EndReason, Engine, Scratch, Serving, Worker};
use netstage_core::fleet::Policy;
use netstage_host::log::Level;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of `agent`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    state: StateFolder,
    /// As an agent of a fleet: do no more for its controller than this file allows
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket", "spool"])]
    policy: Option<PathBuf>,
    /// As an agent of a fleet: tell metrics for Prometheus there [without an address: 127.0.0.1:4703]
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:4703",
        conflicts_with_all = ["socket", "spool"]
    )]
    metrics: Option<SocketAddr>,
    /// Be no agent of a fleet, but listen on this Unix socket, which is made, and removed at the end
    #[arg(long, value_name = "PATH", requires = "spool")]
    socket: Option<PathBuf>,
    /// Then: keep reports in this folder until the controller has them
    #[arg(long, value_name = "DIR", requires = "socket")]
    spool: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    match (&arguments.socket, &arguments.spool) {
        (Some(socket), Some(spool)) => by_socket(socket, spool),
        _ => of_fleet(arguments),
    }
}

/// An agent that has joined a fleet, and dials its controller.
fn of_fleet(arguments: &Arguments) -> Result<u8, Failure> {
    let policy = arguments.policy.as_deref().map(netstage_scenario::agent::load).transpose()?;
    let log = fleet::log("agent");
    let member = Member::open(&arguments.state.path(), policy.clone().unwrap_or_default(), Arc::clone(&log));
    let mut member = member.map_err(fleet::failure)?;
    if let Some(address) = arguments.metrics {
        member.tell_metrics(address);
    }
    let membership = member.membership();
    if policy == Some(Policy::default()) || policy.is_none() {
        log(Level::Note, "no policy limits what its controller may ask (--policy)");
    }
    log(Level::Note, &format!("{} of fleet {}", membership.name, membership.controller));
    let ender = member.ender();
    interrupt(move || ender.end())?;
    let services = policy.is_some_and(|policy| !policy.services.is_empty());
    let worker: Arc<dyn Worker> = match services {
        true => Arc::new(Serving::new(scratch(&arguments.state.path())?)),
        false => Arc::new(Engine),
    };
    member.serve(worker).map_err(|e| Failure::run(format!("the agent failed: {e}")))?;
    Ok(OK)
}

/// Where the programs of services have their files.
fn scratch(state: &Path) -> Result<Scratch, Failure> {
    Scratch::open(state).map_err(|error| {
        let failure = Failure::run(format!("no folder for services in {}: {error}", state.display()));
        match error.kind() {
            io::ErrorKind::WouldBlock => failure.help("another agent has it; give each a --state of its own"),
            _ => failure,
        }
    })
}

/// An agent of this machine, for one controller.
fn by_socket(socket: &Path, spool: &Path) -> Result<u8, Failure> {
    let agent = Agent::bind(socket, spool).map_err(|e| Failure::run(e.to_string()))?;
    let ender = agent.ender();
    interrupt(move || ender.end())?;
    say(&format!("listening on {}", socket.display()));
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

fn interrupt(end: impl Fn() + Send + 'static) -> Result<(), Failure> {
    ctrlc::set_handler(end).map_err(|e| Failure::run(format!("no signal handler: {e}")))
}

fn say(what: &str) {
    let _ = writeln!(io::stderr(), "netstage agent {}: {what}", env!("CARGO_PKG_VERSION"));
}
