//! `netstage router`: the MPLS and IP router, and what can be asked of one that runs.

use super::table::{Table, counted};
use crate::exit::{Failure, OK, print};
use clap::ValueEnum;
use netstage_live::router::daemon::{Daemon, State, ask, signals};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Subcommands of `router`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Be a router, as a configuration file says
    Run {
        /// The configuration file
        configuration: PathBuf,
    },
    /// Check a configuration file
    Check {
        /// The configuration file
        configuration: PathBuf,
    },
    /// Show how a router stands
    Show(Show),
}

/// Options of `router show`.
#[derive(clap::Args)]
pub struct Show {
    /// What to show
    #[arg(value_enum, default_value = "all")]
    what: What,
    /// The router's control socket
    #[arg(long, value_name = "PATH", default_value = "/run/netstage-router.sock")]
    socket: PathBuf,
    /// Print the whole state as JSON
    #[arg(long)]
    json: bool,
}

/// What can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// All but the routes
    All,
    /// Routes: where addresses lead
    Fib,
    /// Labels: what they mean
    Lfib,
    /// Neighbours, and their stations
    Neighbours,
    /// What was forwarded, refused or noticed
    Counters,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Run { configuration } => serve(configuration),
        Command::Check { configuration } => check(configuration),
        Command::Show(show) => self::show(show),
    }
}

fn serve(configuration: &Path) -> Result<u8, Failure> {
    // Before any thread begins: each would be ended by a signal otherwise.
    let signals = signals().map_err(|error| Failure::run(format!("no signals: {error}")))?;
    let daemon = Daemon::begin(configuration, say)?;
    say(&format!("ready; control socket {}", daemon.router().control.display()));
    let last = daemon.serve(&signals)?;
    match last {
        Some(_) => Ok(OK),
        None => Err(Failure::run("forwarding ended by itself")),
    }
}

fn say(what: &str) {
    let _ = writeln!(io::stderr(), "netstage router: {what}");
}

fn check(configuration: &Path) -> Result<u8, Failure> {
    let router = netstage_scenario::router::load(configuration)?;
    let text = format!(
        "{}: {}, {}\n",
        configuration.display(),
        counted(router.interfaces.len(), "interface"),
        counted(router.tables.len() - 1, "VPN"),
    );
    print(text.as_bytes()).map(|()| OK)
}

fn show(show: &Show) -> Result<u8, Failure> {
    let state = ask(&show.socket).map_err(|error| {
        Failure::run(format!("{}: {error}", show.socket.display()))
            .help("start one with `netstage router run`, or name its socket with --socket")
    })?;
    let text = match show.json {
        true => serde_json::to_string_pretty(&state).map_err(|error| Failure::run(error.to_string()))? + "\n",
        false => shown(show.what, &state),
    };
    print(text.as_bytes()).map(|()| OK)
}

fn shown(what: What, state: &State) -> String {
    let parts = match what {
        What::All => vec![interfaces(state), labels(state), neighbours(state), counters(state)],
        What::Fib => vec![routes(state)],
        What::Lfib => vec![labels(state)],
        What::Neighbours => vec![neighbours(state)],
        What::Counters => vec![counters(state)],
    };
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

fn interfaces(state: &State) -> String {
    let mut table = Table::new(&["interface", "table", "labels", "state"]);
    for interface in &state.interfaces {
        let labels = if interface.mpls { "taken" } else { "not taken" };
        let failure = interface.failure.clone().unwrap_or_else(|| "works".into());
        table.row([interface.name.clone(), interface.table.clone(), labels.into(), failure]);
    }
    let decided = if state.fast_path { "in the kernel" } else { "by the program" };
    format!("{} routes, decided {decided}\n\n{}", state.routes.len(), table.text())
}

fn routes(state: &State) -> String {
    let mut table = Table::new(&["table", "prefix", "to", ">packets there"]);
    for route in &state.routes {
        table.row([route.table.clone(), route.prefix.clone(), route.to.clone(), packets(route.packets)]);
    }
    table.text()
}

fn labels(state: &State) -> String {
    let mut table = Table::new(&[">label", "to", ">packets"]);
    for label in &state.labels {
        table.row([label.label.to_string(), label.to.clone(), packets(label.packets)]);
    }
    table.text()
}

fn neighbours(state: &State) -> String {
    let mut table = Table::new(&["neighbour", "on", "station"]);
    for neighbour in &state.neighbours {
        let station = neighbour.station.clone().unwrap_or_else(|| "not known".into());
        table.row([neighbour.address.clone(), neighbour.interface.clone(), station]);
    }
    table.text()
}

fn counters(state: &State) -> String {
    let mut table = Table::new(&["by", "counter", ">packets", "severity", "meaning"]);
    for count in state.counters.iter().filter(|count| count.packets > 0) {
        table.row([
            count.path.clone(),
            count.name.clone(),
            count.packets.to_string(),
            count.severity.clone(),
            count.meaning.clone(),
        ]);
    }
    table.text()
}

fn packets(count: Option<u64>) -> String {
    count.map_or("not counted".into(), |count| count.to_string())
}
