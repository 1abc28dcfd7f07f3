//! `netstage pe`: the provider edge router, and what can be asked of one that runs.

mod replay;
mod run;
mod top;
mod views;

use crate::cmd::table;
use crate::exit::{Failure, OK, print};
use clap::ValueEnum;
use netstage_pe::daemon::client::{self, Client};
use netstage_pe::daemon::{self, Snapshot};
use std::path::{Path, PathBuf};

/// Subcommands of `pe`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Be a provider edge router, as a configuration file says
    Run(run::Arguments),
    /// Check a configuration file
    Check {
        /// The configuration file
        configuration: PathBuf,
    },
    /// Show how a router stands
    Show(Show),
    /// Watch a router's VPN flows
    Top(top::Arguments),
    /// Have a router read its configuration file again
    Reload(Socket),
    /// Decide once more, in virtual time, what a router has decided, and compare
    Replay(replay::Arguments),
}

/// Which router.
#[derive(clap::Args)]
pub struct Socket {
    /// The router's control socket
    #[arg(long, value_name = "PATH", default_value = "/run/netstage-pe.sock")]
    socket: PathBuf,
}

/// Options of `pe show`.
#[derive(clap::Args)]
pub struct Show {
    /// What to show
    #[arg(value_enum, default_value = "all")]
    what: What,
    #[command(flatten)]
    router: Socket,
    /// Print the whole state as JSON
    #[arg(long)]
    json: bool,
}

/// What can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// All of it
    All,
    /// VPN flows: what they carry, their windows
    Vpns,
    /// The other routers, and the ways there
    Peers,
    /// Flows that weights are relative to, and what is known of them
    References,
    /// Circuits, and the stations known there
    Circuits,
    /// What was refused or noticed
    Counters,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Run(arguments) => run::run(arguments),
        Command::Check { configuration } => check(configuration),
        Command::Show(show) => self::show(show),
        Command::Top(arguments) => top::run(arguments),
        Command::Reload(router) => reload(router),
        Command::Replay(arguments) => replay::run(arguments),
    }
}

fn check(configuration: &Path) -> Result<u8, Failure> {
    let router = netstage_scenario::pe::load(configuration)?;
    let flows: usize = router.vpns.iter().map(|vpn| vpn.flows.len()).sum();
    let text = format!(
        "{}: {}, {}, {}, {}\n",
        configuration.display(),
        table::counted(router.peers.len(), "peer"),
        table::counted(router.vpns.len(), "VPN"),
        table::counted(flows, "VPN flow"),
        table::counted(router.circuits.len(), "circuit"),
    );
    print(text.as_bytes()).map(|()| OK)
}

fn show(show: &Show) -> Result<u8, Failure> {
    let state = connect(&show.router)?.show().map_err(unanswered)?;
    let text = match show.json {
        true => json(&state)?,
        false => shown(show.what, &state),
    };
    print(text.as_bytes()).map(|()| OK)
}

fn shown(what: What, state: &Snapshot) -> String {
    let parts = match what {
        What::All => vec![
            views::router(state),
            views::peers(state),
            views::flows(state),
            views::references(state),
            views::circuits(state),
            views::counters(state),
        ],
        What::Vpns => vec![views::flows(state)],
        What::Peers => vec![views::peers(state)],
        What::References => vec![views::references(state)],
        What::Circuits => vec![views::circuits(state), views::neighbours(state)],
        What::Counters => vec![views::counters(state)],
    };
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

fn reload(router: &Socket) -> Result<u8, Failure> {
    match connect(router)?.reload().map_err(unanswered)? {
        Ok(changes) if changes.is_empty() => print(b"taken; nothing has changed\n").map(|()| OK),
        Ok(changes) => print(format!("taken: {}\n", changes.join("; ")).as_bytes()).map(|()| OK),
        Err(refusal) => Err(Failure::usage(refusal).help("the router keeps the configuration it had")),
    }
}

fn connect(router: &Socket) -> Result<Client, Failure> {
    Client::connect(&router.socket).map_err(unanswered)
}

fn unanswered(error: client::Error) -> Failure {
    let failure = Failure::run(error.to_string());
    match error {
        client::Error::Absent(..) => {
            failure.help("start one with `netstage pe run`, or name its socket with --socket")
        }
        client::Error::Version(_) => failure.help("use the router's own netstage"),
        client::Error::Broken(_) => failure,
    }
}

fn json(told: &impl serde::Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(told).map_err(|error| Failure::run(error.to_string()))?;
    Ok(text + "\n")
}

impl From<daemon::Error> for Failure {
    fn from(error: daemon::Error) -> Failure {
        match error {
            daemon::Error::Configuration(errors) => errors.into(),
            daemon::Error::Machine(obstacle) if obstacle.is_missing => {
                Failure::missing(obstacle.message).help(obstacle.remedy)
            }
            daemon::Error::Machine(obstacle) => Failure::run(obstacle.message).help(obstacle.remedy),
        }
    }
}
