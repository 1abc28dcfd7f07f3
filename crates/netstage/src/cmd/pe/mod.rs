//! `netstage pe`: runs or queries the provider edge router.

mod replay;
mod run;
mod top;
mod views;

use crate::cmd::table;
use crate::exit::{Failure, OK, print};
use clap::ValueEnum;
use netstage_pe::daemon::client::{self, PeControlClient};
use netstage_pe::daemon::{self, PeSnapshot};
use netstage_pe::private_key::PrivateKey;
use netstage_scenario::pe::format_key;
use std::path::{Path, PathBuf};

const CHECK_EXAMPLES: &str = "Examples:
  netstage pe check west.toml";
const KEY_EXAMPLES: &str = "Examples:
  netstage pe key /etc/netstage/pe.key";
const RELOAD_EXAMPLES: &str = "Examples:
  netstage pe reload";

/// Subcommands of `pe`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Run a provider edge router with a configuration file
    Run(run::Arguments),
    /// Check a configuration file
    #[command(after_help = CHECK_EXAMPLES)]
    Check {
        /// Configuration file
        configuration: PathBuf,
    },
    /// Print the public key of a private key file, and create the file if it does not exist
    #[command(after_help = KEY_EXAMPLES)]
    Key {
        /// File with the private key
        file: PathBuf,
    },
    /// Show VPN flows, peers, references, circuits and counters of a running router
    Show(Show),
    /// Watch the rates and windows of a router's VPN flows
    Top(top::Arguments),
    /// Reload the configuration file of a running router
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload(Socket),
    /// Replay a router's trace in virtual time and compare its decisions
    Replay(replay::Arguments),
}

/// Option that names the control socket of a router.
#[derive(clap::Args)]
pub struct Socket {
    /// Control socket of the router
    #[arg(long, value_name = "PATH", default_value = "/run/netstage-pe.sock")]
    socket: PathBuf,
}

const SHOW_EXAMPLES: &str = "Examples:
  netstage pe show
  netstage pe show vpns --json";

/// Options of `pe show`.
#[derive(clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct Show {
    /// Part of the state to show
    #[arg(value_enum, default_value = "all")]
    what: What,
    #[command(flatten)]
    router: Socket,
    /// Print the whole state as JSON
    #[arg(long)]
    json: bool,
}

/// Part of the state that `pe show` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Everything except customer neighbors
    All,
    /// VPN flows: traffic, losses, windows
    Vpns,
    /// Peers and the paths to them
    Peers,
    /// Reference flows, which weights are relative to
    References,
    /// Circuits and the MAC addresses of customer neighbors
    Circuits,
    /// Packet and event counters
    Counters,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Run(arguments) => run::run(arguments),
        Command::Check { configuration } => check(configuration),
        Command::Key { file } => key(file),
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
    print(text.as_bytes())?;
    router.warnings().iter().try_for_each(|warning| print(format!("warning: {warning}\n").as_bytes()))?;
    Ok(OK)
}

fn key(file: &Path) -> Result<u8, Failure> {
    let key = match PrivateKey::create(file) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => PrivateKey::read(file),
        created => created,
    };
    let key = key.map_err(|error| Failure::run(format!("{}: {error}", file.display())))?;
    print(format!("{}\n", format_key(&key.public())).as_bytes()).map(|()| OK)
}

fn show(show: &Show) -> Result<u8, Failure> {
    let state = connect(&show.router)?.show().map_err(no_answer)?;
    let text = match show.json {
        true => json(&state)?,
        false => shown(show.what, &state),
    };
    print(text.as_bytes()).map(|()| OK)
}

fn shown(what: What, state: &PeSnapshot) -> String {
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
        What::Circuits => vec![views::circuits(state), views::neighbors(state)],
        What::Counters => vec![views::counters(state)],
    };
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

fn reload(router: &Socket) -> Result<u8, Failure> {
    match connect(router)?.reload().map_err(no_answer)? {
        Ok(changes) if changes.is_empty() => print(b"reloaded: no changes\n").map(|()| OK),
        Ok(changes) => print(format!("reloaded: {}\n", changes.join("; ")).as_bytes()).map(|()| OK),
        Err(refusal) => Err(Failure::usage(refusal).help("the router keeps its current configuration")),
    }
}

fn connect(router: &Socket) -> Result<PeControlClient, Failure> {
    PeControlClient::connect(&router.socket).map_err(no_answer)
}

fn no_answer(error: client::ControlError) -> Failure {
    let failure = Failure::run(error.to_string());
    match error {
        client::ControlError::Absent(..) => {
            failure.help("start the router with `netstage pe run`, or give its socket with --socket")
        }
        client::ControlError::Version(_) => failure.help("use the netstage version of the router"),
        client::ControlError::Broken(_) => failure,
    }
}

fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::run(error.to_string()))?;
    Ok(text + "\n")
}

impl From<daemon::PeError> for Failure {
    fn from(error: daemon::PeError) -> Failure {
        match error {
            daemon::PeError::Configuration(errors) => errors.into(),
            daemon::PeError::Machine(obstacle) if obstacle.is_missing => {
                Failure::missing(obstacle.message).help(obstacle.remedy)
            }
            daemon::PeError::Machine(obstacle) => Failure::run(obstacle.message).help(obstacle.remedy),
        }
    }
}
