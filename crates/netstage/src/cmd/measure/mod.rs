//! `netstage measure`: one measurement without a scenario, and the server that agrees to it.

mod flows;
mod json;
mod one_ended;
mod serve;
mod show;
mod stamp;
mod text;
pub(super) mod units;

use crate::exit::{FAILED, Failure, INTERRUPTED, OK, VOID};
use netstage_agent::controller::Error;
use netstage_agent::measure::{OpenError, Order, Outcome, Session};
use netstage_agent_api::protocol::RefusalKind;
use netstage_host::keyed::{Key, KeyError};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

/// Where the key stands if no file is named.
pub const KEY_VARIABLE: &str = "NETSTAGE_KEY";
/// Where a server listens, as iperf3's does.
pub const PORT: u16 = 5201;

/// What to measure.
#[derive(clap::Subcommand)]
pub enum Command {
    /// TCP throughput to a host that runs `netstage measure serve`
    Tcp(flows::Tcp),
    /// UDP loss, delay and its variation, to a host that runs `netstage measure serve`
    Udp(flows::Udp),
    /// QUIC throughput to a host that runs `netstage measure serve`
    Quic(flows::Quic),
    /// Round trips by ICMP echo: any host answers
    Icmp(one_ended::Icmp),
    /// Round trips by UDP to a closed port, which the host's ICMP errors answer
    UdpUnreachable(one_ended::UdpUnreachable),
    /// Delay and loss in each direction towards a STAMP reflector (RFC 8762)
    Stamp(stamp::Arguments),
    /// Agree to measurements: what the other commands connect to
    Serve(serve::Arguments),
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Tcp(arguments) => arguments.run(),
        Command::Udp(arguments) => arguments.run(),
        Command::Quic(arguments) => arguments.run(),
        Command::Icmp(arguments) => arguments.run(),
        Command::UdpUnreachable(arguments) => arguments.run(),
        Command::Stamp(arguments) => stamp::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
    }
}

/// Which of a host's addresses to take.
#[derive(clap::Args)]
pub struct Family {
    /// IPv4 only
    #[arg(short = '4', conflicts_with = "v6")]
    v4: bool,
    /// IPv6 only
    #[arg(short = '6')]
    v6: bool,
}

impl Family {
    /// A host's address, of these families.
    pub fn resolve(&self, target: &str, port: u16) -> Result<SocketAddr, Failure> {
        // An IPv6 address may stand in brackets, as in addresses with a port.
        let host = target.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(target);
        let unknown = |why: String| {
            Failure::usage(format!("cannot find the host {target}: {why}"))
                .help("name a host or an address; ports go with -p")
        };
        let addresses = (host, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
        let wanted =
            |address: &SocketAddr| (address.is_ipv4() || !self.v4) && (address.is_ipv6() || !self.v6);
        let family = if self.v4 { "IPv4" } else { "IPv6" };
        addresses.into_iter().find(wanted).ok_or_else(|| unknown(format!("it has no {family} address")))
    }
}

/// The key of a file, or of the environment; none where neither is given.
fn find_key(file: Option<&Path>) -> Result<Option<Key>, Failure> {
    let failure = |error: KeyError| {
        Failure::usage(error.to_string())
            .help("openssl rand -hex 16 makes a key; so does netstage measure serve")
    };
    if let Some(path) = file {
        warn_of_readers(path);
        return Key::read(path).map(Some).map_err(failure);
    }
    match std::env::var(KEY_VARIABLE) {
        Ok(text) => Key::parse(&text).map(Some).map_err(|error| {
            let failure = failure(error);
            failure.prefix(KEY_VARIABLE)
        }),
        Err(_) => Ok(None),
    }
}

/// The key is a secret: whoever reads it can have this host send.
fn warn_of_readers(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let open = std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o044 != 0);
    if open {
        let path = path.display();
        eprintln!("warning: others on this machine can read the key: chmod 600 {path}");
    }
}

/// A client's key, which it must have.
pub(super) fn key(file: Option<&PathBuf>) -> Result<Key, Failure> {
    find_key(file.map(PathBuf::as_path))?.ok_or_else(|| {
        Failure::usage(format!("no key: name a file with --key-file, or set {KEY_VARIABLE}"))
            .help("netstage measure serve, on the other host, prints the command with its key")
    })
}

/// Connects, measures, shows.
fn measure(order: &Order, target: SocketAddr, key: Option<Key>, as_json: bool) -> Result<u8, Failure> {
    let stop = super::run::watch_interrupt()?;
    let session = Session::open(order.clone(), target, key).map_err(failure)?;
    let mut show = show::Show::new(order, target, &session, as_json)?;
    let mut told = Ok(());
    let outcome = session.run(&stop, |interval| {
        if told.is_ok() {
            told = show.interval(interval);
        }
    });
    let outcome = outcome.map_err(|error| failure(OpenError::Agents(error)))?;
    told?;
    let code = code(&outcome);
    show.outcome(&outcome, code)?;
    Ok(code)
}

/// The exit code an outcome stands for.
fn code(outcome: &Outcome) -> u8 {
    if !outcome.lost.is_empty() {
        FAILED
    } else if outcome.interrupted {
        INTERRUPTED
    } else if outcome.flows.iter().any(|flow| flow.errors().next().is_some()) {
        FAILED
    } else if !outcome.void.is_empty() {
        VOID
    } else {
        OK
    }
}

pub(super) fn failure(error: OpenError) -> Failure {
    let OpenError::Agents(error) = error else { return Failure::run(error.to_string()) };
    match &error {
        Error::OtherKey { place, .. } => Failure::usage(format!("the server at {place} has another key"))
            .help("use the key it printed when it started, or give both sides the same --key-file"),
        Error::Unreachable { place, reason, .. } => Failure::run(format!("no server at {place}: {reason}"))
            .help("start netstage measure serve there, and let its port through the firewall (-p names another)"),
        Error::Refused(refusals) => {
            let (agent, refusal) = &refusals[0];
            let who = if agent == "there" { "the server refuses" } else { "this host cannot" };
            let reason = &refusal.reason;
            let message = match (refusal.kind, refusal.subject.as_str()) {
                (RefusalKind::Busy, _) => "the server is busy: another client measures with it".to_string(),
                (_, "") => format!("{who}: {reason}"),
                (_, subject) => format!("{who}: {subject}: {reason}"),
            };
            let failure = match refusal.kind {
                RefusalKind::Missing => Failure::missing(message),
                RefusalKind::Assignment | RefusalKind::Policy | RefusalKind::Version => Failure::usage(message),
                _ => Failure::run(message),
            };
            match refusal.kind {
                RefusalKind::Busy => failure.help("try again when it has finished, or use another server"),
                _ => failure.help(&refusal.remedy),
            }
        }
        _ => Failure::run(error.to_string()),
    }
}
