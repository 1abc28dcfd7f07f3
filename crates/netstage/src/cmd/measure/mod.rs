//! `netstage measure`: single measurements without a scenario, and their server.

mod flows;
mod json;
mod methods;
mod one_ended;
mod serve;
mod show;
mod stamp;
mod text;
pub(super) mod units;

use crate::exit::{FAILED, Failure, INTERRUPTED, OK, VOID};
use netstage_agent::controller::ControllerError;
use netstage_agent::measure::{MeasurementOutcome, MeasurementParameters, OpenError, PreparedMeasurement};
use netstage_agent_api::protocol::OrderRefusalKind;
use netstage_host::shared_key::{KeyError, PresharedKey};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

/// Environment variable with the key, used without `--key-file`.
pub const KEY_VARIABLE: &str = "NETSTAGE_KEY";
/// Default control port of a server, that of iperf3.
pub const PORT: u16 = 5201;

/// Subcommands of `measure`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Measure TCP throughput to a host that runs `netstage measure serve`
    Tcp(flows::Tcp),
    /// Measure UDP loss, delay and jitter to a host that runs `netstage measure serve`
    Udp(flows::Udp),
    /// Measure QUIC throughput to a host that runs `netstage measure serve`
    Quic(flows::Quic),
    /// Measure round trips and loss to any host with ICMP echo
    Icmp(one_ended::Icmp),
    /// Measure round trips and loss with UDP to a closed port, answered by ICMP errors
    UdpUnreachable(one_ended::UdpUnreachable),
    /// Measure delay and loss per direction to a STAMP reflector (RFC 8762)
    Stamp(stamp::Arguments),
    /// Measure throughput, latency, loss and bursts of a path (RFC 2544, RFC 9004)
    Rfc2544(methods::rates::Rfc2544),
    /// Measure repeatable throughput of a path (MLRsearch, RFC 9971)
    Mlrsearch(methods::rates::Mlrsearch),
    /// Measure the bit error ratio of a path
    Ber(methods::rates::Ber),
    /// Compare services of a path with their agreements (ITU-T Y.1564)
    Y1564(methods::services::Y1564),
    /// Compare a TCP transfer with the path's capacity (RFC 6349)
    Rfc6349(methods::transfer::Rfc6349),
    /// Measure latency under load, as flent's rrul
    Rrul(methods::rrul::Rrul),
    /// Run the server for measurements by clients that have its key
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
        Command::Rfc2544(arguments) => arguments.run(),
        Command::Mlrsearch(arguments) => arguments.run(),
        Command::Ber(arguments) => arguments.run(),
        Command::Y1564(arguments) => arguments.run(),
        Command::Rfc6349(arguments) => arguments.run(),
        Command::Rrul(arguments) => arguments.run(),
        Command::Serve(arguments) => serve::run(arguments),
    }
}

/// Options that choose an address family.
#[derive(clap::Args)]
pub struct Family {
    /// Use IPv4 only
    #[arg(short = '4', conflicts_with = "v6")]
    v4: bool,
    /// Use IPv6 only
    #[arg(short = '6')]
    v6: bool,
}

impl Family {
    /// Returns whether IPv6 is chosen; `None` if neither family is.
    pub fn is_ipv6(&self) -> Option<bool> {
        (self.v4 || self.v6).then_some(self.v6)
    }

    /// Resolves a host to an address of the chosen family.
    pub fn resolve(&self, target: &str, port: u16) -> Result<SocketAddr, Failure> {
        // An IPv6 address may be in brackets, as in front of a port.
        let host = target.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(target);
        let unknown = |reason: String| {
            Failure::usage(format!("cannot resolve {target}: {reason}"))
                .help("give a host name or an address; give the port with -p")
        };
        let addresses = (host, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
        let wanted =
            |address: &SocketAddr| (address.is_ipv4() || !self.v4) && (address.is_ipv6() || !self.v6);
        let family = if self.v4 { "IPv4" } else { "IPv6" };
        addresses.into_iter().find(wanted).ok_or_else(|| unknown(format!("no {family} address")))
    }
}

/// Reads the key from a file or the environment; `None` if neither is given.
fn find_key(file: Option<&Path>) -> Result<Option<PresharedKey>, Failure> {
    let failure = |error: KeyError| {
        Failure::usage(error.to_string())
            .help("generate a key with `openssl rand -hex 16` or `netstage measure serve`")
    };
    if let Some(path) = file {
        warn_of_readers(path);
        return PresharedKey::read(path).map(Some).map_err(failure);
    }
    match std::env::var(KEY_VARIABLE) {
        Ok(text) => PresharedKey::parse(&text).map(Some).map_err(|error| {
            let failure = failure(error);
            failure.prefix(KEY_VARIABLE)
        }),
        Err(_) => Ok(None),
    }
}

/// Warns if other users can read the key, which lets them start measurements from this host.
fn warn_of_readers(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let open = std::fs::metadata(path).is_ok_and(|file| file.permissions().mode() & 0o044 != 0);
    if open {
        let path = path.display();
        eprintln!("warning: other users can read the key; run `chmod 600 {path}`");
    }
}

/// Reads the key of a client; a missing key is an error.
pub(super) fn key(file: Option<&PathBuf>) -> Result<PresharedKey, Failure> {
    find_key(file.map(PathBuf::as_path))?.ok_or_else(|| {
        Failure::usage(format!("missing key; give --key-file or set {KEY_VARIABLE}"))
            .help("`netstage measure serve` on the other host prints the command with its key")
    })
}

/// Connects, measures and prints the result.
fn measure(
    order: &MeasurementParameters,
    target: SocketAddr,
    key: Option<PresharedKey>,
    as_json: bool,
) -> Result<u8, Failure> {
    let stop = super::run::watch_interrupt()?;
    let session = PreparedMeasurement::open(order.clone(), target, key).map_err(failure)?;
    let mut show = show::Show::new(order, target, &session, as_json)?;
    let mut printed = Ok(());
    let outcome = session.run(&stop, |interval| {
        if printed.is_ok() {
            printed = show.interval(interval);
        }
    });
    let outcome = outcome.map_err(|error| failure(OpenError::Agents(error)))?;
    printed?;
    let code = code(&outcome);
    show.outcome(&outcome, code)?;
    Ok(code)
}

/// Returns the exit code for an outcome.
fn code(outcome: &MeasurementOutcome) -> u8 {
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
        ControllerError::WrongKey { place, .. } => {
            Failure::usage(format!("wrong key for the server at {place}"))
                .help("use the key that the server printed, or the same --key-file on both hosts")
        }
        ControllerError::Unreachable { place, reason, .. } => Failure::run(format!(
            "no server at {place}: {reason}"
        ))
        .help(
            "run `netstage measure serve` there and open its port in the firewall (-p selects another port)",
        ),
        ControllerError::Refused(refusals) => {
            let (agent, refusal) = &refusals[0];
            let origin = if agent == "there" { "rejected by the server" } else { "rejected by this host" };
            let reason = &refusal.reason;
            let message = match (refusal.kind, refusal.subject.as_str()) {
                (OrderRefusalKind::Busy, _) => "the server is busy with another client".to_string(),
                (_, "") => format!("{origin}: {reason}"),
                (_, subject) => format!("{origin}: {subject}: {reason}"),
            };
            let failure = match refusal.kind {
                OrderRefusalKind::Missing => Failure::missing(message),
                OrderRefusalKind::Assignment | OrderRefusalKind::Policy | OrderRefusalKind::Version => {
                    Failure::usage(message)
                }
                _ => Failure::run(message),
            };
            match refusal.kind {
                OrderRefusalKind::Busy => failure.help("retry later, or use another server"),
                _ => failure.help(&refusal.remedy),
            }
        }
        _ => Failure::run(error.to_string()),
    }
}
