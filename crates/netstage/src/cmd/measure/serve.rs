//! `netstage measure serve`: server for measurements by clients that have its key.

use super::{KEY_VARIABLE, PORT, find_key, units};
use crate::exit::{FAILED, Failure, INTERRUPTED, OK};
use netstage_agent::measure::source_address;
use netstage_agent::{AssignmentEngine, EndReason, HostAgent, HostEvent, Limits};
use netstage_agent_api::task::{Assignment, FlowSide, TaskTransport};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_host::shared_key::PresharedKey;
use netstage_host::shutdown::DaemonShutdown;
use netstage_study::format;
use netstage_traffic::stamp::{Reflector, Timescale};
use serde_json::json;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

const EXAMPLES: &str = "Examples:
  netstage measure serve
  netstage measure serve --key-file key --max-rate 100M --max-time 60
  netstage measure serve --stamp 8620";

/// Options of `measure serve`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Address to listen on [default: all addresses]
    #[arg(long, value_name = "ADDRESS")]
    bind: Option<IpAddr>,
    /// Control port (TCP); 0 uses any free port
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// File with the key [default: environment variable NETSTAGE_KEY, else a new key]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Exit after the first client
    #[arg(long)]
    once: bool,
    /// Maximum payload rate of all flows of a run together, as 100M (bit/s)
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    max_rate: Option<BitRate>,
    /// Maximum length of a run, seconds
    #[arg(long, value_name = "SECONDS", value_parser = units::time)]
    max_time: Option<Duration>,
    /// Also run a STAMP reflector (RFC 8762) on this UDP port [port if omitted: 862]
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "862")]
    stamp: Option<u16>,
    /// File with the HMAC key for authenticated STAMP; without it, STAMP is open to anyone
    #[arg(long, value_name = "FILE", requires = "stamp")]
    stamp_key_file: Option<PathBuf>,
    /// Print events as JSON, one object per line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let given = find_key(arguments.key_file.as_deref())?;
    let is_generated = given.is_none();
    let key = match given {
        Some(key) => key,
        None => PresharedKey::generate().map_err(|error| Failure::run(error.to_string()))?,
    };
    let limits = Limits { rate: arguments.max_rate, time: arguments.max_time };
    let host = bind(arguments, &key, limits)?;
    let address = host.address().map_err(|error| Failure::run(error.to_string()))?;
    let ender = host.shutdown_handle();
    ctrlc::set_handler(move || ender.request())
        .map_err(|e| Failure::run(format!("cannot install a signal handler: {e}")))?;
    let reflectors = reflect(arguments)?;
    announce(arguments, address, is_generated.then_some(&key));
    let as_json = arguments.json;
    let watcher = Arc::new(move |event| report(&event, as_json));
    let reason = host
        .serve(Arc::new(AssignmentEngine), arguments.once, watcher)
        .map_err(|error| Failure::run(format!("the server failed: {error}")))?;
    reflectors.iter().for_each(DaemonShutdown::request);
    Ok(match reason {
        EndReason::Finished => OK,
        EndReason::ControllerGone => FAILED,
        EndReason::Interrupted => INTERRUPTED,
    })
}

/// Listens on the given address, or on all addresses of both families, or of IPv4 if IPv6 is disabled.
fn bind(arguments: &Arguments, key: &PresharedKey, limits: Limits) -> Result<HostAgent, Failure> {
    let port = arguments.port;
    let open = |ip: IpAddr| HostAgent::bind(SocketAddr::new(ip, port), key, limits);
    let bound = match arguments.bind {
        Some(ip) => open(ip),
        None => match open(Ipv6Addr::UNSPECIFIED.into()) {
            // IPv6 is disabled on this host.
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => open(Ipv4Addr::UNSPECIFIED.into()),
            other => other,
        },
    };
    bound.map_err(|error| {
        let failure = Failure::run(format!("cannot listen on port {port}: {error}"));
        match error.kind() {
            io::ErrorKind::AddrInUse => failure.help("another server uses this port; choose another with -p"),
            io::ErrorKind::AddrNotAvailable => {
                failure.help("list the addresses of this host with `ip address`")
            }
            _ => failure,
        }
    })
}

/// Starts the STAMP reflectors, if requested, on threads of their own.
fn reflect(arguments: &Arguments) -> Result<Vec<DaemonShutdown>, Failure> {
    let Some(port) = arguments.stamp else { return Ok(Vec::new()) };
    let key = arguments.stamp_key_file.as_deref().map(super::stamp::hmac_key).transpose()?;
    let all = [IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()];
    let addresses = arguments.bind.map_or(all.to_vec(), |address| vec![address]);
    let mut enders = Vec::new();
    let mut problem = None;
    for ip in addresses {
        match Reflector::bind(SocketAddr::new(ip, port), key.clone(), Timescale::Wall) {
            Ok(reflector) => {
                enders.push(reflector.shutdown_handle());
                // The thread ends with the process. A client notices a socket error as missing replies.
                std::thread::spawn(move || reflector.run());
            }
            Err(error) => problem = Some(error),
        }
    }
    match problem {
        // One address family may be disabled on this host.
        Some(error) if enders.is_empty() || error.kind() == io::ErrorKind::AddrInUse => {
            let failure = Failure::run(format!("cannot reflect STAMP packets on UDP port {port}: {error}"));
            Err(match error.kind() {
                io::ErrorKind::PermissionDenied => failure
                    .help("ports below 1024 need CAP_NET_BIND_SERVICE; or choose another: --stamp 8620"),
                _ => failure.help("choose another port: --stamp 8620"),
            })
        }
        _ => Ok(enders),
    }
}

/// Prints the addresses and, with a generated key, the command for the other host.
fn announce(arguments: &Arguments, address: SocketAddr, generated: Option<&PresharedKey>) {
    let port = address.port();
    let host = if address.ip().is_unspecified() { own_address() } else { address.ip() };
    if arguments.json {
        let key = generated.map(PresharedKey::to_hexadecimal);
        line(
            &json!({
                "event": "listening",
                "address": address.ip(),
                "port": port,
                "key": key,
                "stamp_port": arguments.stamp,
            })
            .to_string(),
        );
        return;
    }
    if let Some(port) = arguments.stamp {
        let mode = if arguments.stamp_key_file.is_some() { "authenticated" } else { "unauthenticated" };
        line(&format!("Reflecting {mode} STAMP packets on UDP port {port}"));
    }
    line(&format!("Listening on TCP port {port} (data ports vary per run); clients need the key"));
    if let Some(key) = generated {
        let option = if port == PORT { String::new() } else { format!(" -p {port}") };
        line("Generated a key. On the other host, run:\n");
        line(&format!("  {KEY_VARIABLE}={} netstage measure tcp {host}{option}\n", key.to_hexadecimal()));
    }
}

/// Returns the source address of the default route, or loopback without such a route.
fn own_address() -> IpAddr {
    // A documentation address (RFC 5737), to which nothing is sent.
    let source = source_address(SocketAddr::from(([192, 0, 2, 1], 9)));
    source.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.ip())
}

fn report(event: &HostEvent, as_json: bool) {
    if as_json {
        let event = match event {
            HostEvent::TurnedAway { from, reason } => {
                json!({ "event": "turned-away", "from": from, "reason": reason })
            }
            HostEvent::Taken { peer } => json!({ "event": "client", "from": peer.remote }),
            HostEvent::Requested { assignment } => json!({
                "event": "run",
                "time_s": assignment.duration.as_secs_f64(),
                "flows": assignment.flows.len(),
                "what": description(assignment),
            }),
            HostEvent::Free { reason } => json!({ "event": "free", "reason": words(*reason) }),
        };
        return line(&event.to_string());
    }
    line(&match event {
        HostEvent::TurnedAway { from, reason } => format!("{from}: rejected: {reason}"),
        HostEvent::Taken { peer } => format!("{}: connected", peer.remote),
        HostEvent::Requested { assignment } => format!("  {}", description(assignment)),
        HostEvent::Free { reason } => format!("  {}; ready for the next client", words(*reason)),
    });
}

/// Describes a run: `receives 2 UDP flows of 10 Mbit/s for up to 10 s`.
fn description(assignment: &Assignment) -> String {
    let mut parts = Vec::new();
    for (side, verb) in [(FlowSide::Receive, "receives"), (FlowSide::Send, "sends")] {
        let flows: Vec<_> = assignment.flows.iter().filter(|flow| flow.side == side).collect();
        let Some(first) = flows.first() else { continue };
        let transport = match first.transport {
            TaskTransport::Tcp(_) => "TCP",
            TaskTransport::Udp(_) => "UDP",
            TaskTransport::Quic => "QUIC",
            _ => "other",
        };
        let rate = first.traffic.pattern().and_then(|pattern| pattern.mean_rate());
        let rate = rate.map_or(String::new(), |rate| format!(" of {}", format::rate(rate as u64)));
        let plural = if flows.len() == 1 { "" } else { "s" };
        parts.push(format!("{verb} {} {transport} flow{plural}{rate}", flows.len()));
    }
    let time = format::quantity(assignment.duration.as_secs_f64(), "s");
    format!("{} for up to {time}", parts.join(" and "))
}

fn words(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Finished => "finished",
        EndReason::ControllerGone => "client disconnected unexpectedly",
        EndReason::Interrupted => "interrupted",
    }
}

/// Prints a line. A closed pipe does not stop the server.
fn line(text: &str) {
    let mut stdout = io::stdout().lock();
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}
