//! `netstage router`: runs or queries the MPLS and IP router.

use super::table::{Table, counted};
use crate::exit::{Failure, OK, print};
use crate::service_manager;
use clap::ValueEnum;
use netstage_router::daemon::state::{AlternatesState, LabelState, RouteFilter, RouteState};
use netstage_router::daemon::{self, Level, Log, RouterDaemon, RouterState, Signals, query};
use serde::Serialize;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const RUN_EXAMPLES: &str = "Examples:
  netstage router run /etc/netstage/router.toml";
const CHECK_EXAMPLES: &str = "Examples:
  netstage router check router.toml";
const RELOAD_EXAMPLES: &str = "Examples:
  netstage router reload";

/// Subcommands of `router`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Run a router with a configuration file
    #[command(after_help = RUN_EXAMPLES)]
    Run {
        /// Configuration file
        configuration: PathBuf,
    },
    /// Check a configuration file
    #[command(after_help = CHECK_EXAMPLES)]
    Check {
        /// Configuration file
        configuration: PathBuf,
    },
    /// Show interfaces, routes, labels, neighbors, RSVP-TE and counters of a running router
    Show(Show),
    /// Reload the configuration and route file of a running router
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload(Socket),
}

/// Option that names the control socket of a router.
#[derive(clap::Args)]
pub struct Socket {
    /// Control socket of the router
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

/// Default control socket of a router.
pub const SOCKET: &str = "/run/netstage-router.sock";

const SHOW_EXAMPLES: &str = "Examples:
  netstage router show
  netstage router show fib 10.0.0.0/8 --table red
  netstage router show lfib 100 --json";

/// Options of `router show`.
#[derive(clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct Show {
    /// Part of the state to show
    #[arg(value_enum, default_value = "all")]
    what: What,
    /// With fib: a prefix (routes within it) or an address (routes that match it); with lfib: a label
    which: Option<String>,
    /// With fib: routes of this VPN, or of `main`
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    #[command(flatten)]
    router: Socket,
    /// Print JSON: a list with fib and lfib, else the whole state
    #[arg(long)]
    json: bool,
}

/// Part of the state that `router show` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Everything except routes and labels
    All,
    /// Routes, in the syntax of route files
    Fib,
    /// Labels, in the syntax of route files
    Lfib,
    /// Neighbors and their MAC addresses
    Neighbors,
    /// RSVP-TE: tunnels that begin here, and all LSPs
    Rsvp,
    /// BFD sessions
    Bfd,
    /// Packet and event counters
    Counters,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Run { configuration } => serve(configuration),
        Command::Check { configuration } => check(configuration),
        Command::Show(show) => self::show(show),
        Command::Reload(router) => reload(router),
    }
}

fn serve(configuration: &Path) -> Result<u8, Failure> {
    // Must precede the first thread: threads started earlier would not block the signals.
    let signals = Signals::block().map_err(|error| Failure::run(format!("cannot block signals: {error}")))?;
    let log: Log = Arc::new(|level, line| {
        let mark = if level == Level::Alarm { "alarm: " } else { "" };
        print_line(&format!("{mark}{line}"));
    });
    let daemon = RouterDaemon::begin(configuration, log)?;
    print_line(&format!("ready; control socket {}", daemon.control().display()));
    service_manager::ready();
    let last = daemon.serve(&signals)?;
    service_manager::stopping();
    match last {
        Some(_) => Ok(OK),
        None => Err(Failure::run("forwarding stopped unexpectedly")),
    }
}

fn print_line(text: &str) {
    let _ = writeln!(io::stderr(), "netstage router: {text}");
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

fn reload(router: &Socket) -> Result<u8, Failure> {
    match daemon::reload(&router.socket) {
        Ok(changes) if changes.is_empty() => print(b"reloaded: no changes\n").map(|()| OK),
        Ok(changes) => print(format!("reloaded: {}\n", changes.join("; ")).as_bytes()).map(|()| OK),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Err(Failure::usage(error.to_string()).help("the router keeps its current configuration"))
        }
        Err(error) => Err(no_answer(&router.socket, &error)),
    }
}

fn no_answer(socket: &Path, error: &io::Error) -> Failure {
    Failure::run(format!("{}: {error}", socket.display()))
        .help("start the router with `netstage router run`, or give its socket with --socket")
}

fn show(show: &Show) -> Result<u8, Failure> {
    let socket = &show.router.socket;
    let is_chosen = show.which.is_some() || show.table.is_some();
    if is_chosen && !matches!(show.what, What::Fib | What::Lfib) {
        return Err(Failure::usage("only fib and lfib can be filtered").help("use `show fib` or `show lfib`"));
    }
    let printed = match show.what {
        What::Fib => routes(show)?,
        What::Lfib => labels(show)?,
        _ => {
            let state = query(socket).map_err(|error| no_answer(socket, &error))?;
            let text = match show.json {
                true => json(&state)? + "\n",
                false => shown(show.what, &state),
            };
            return print(text.as_bytes()).map(|()| OK);
        }
    };
    match printed {
        // The reader of the output closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(OK),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(Failure::usage(error.to_string())),
        Err(error) => Err(no_answer(socket, &error)),
        Ok(()) => Ok(OK),
    }
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(|error| Failure::run(error.to_string()))
}

/// Streaming printer of items: a line each, or all as a JSON array.
struct Printing<W> {
    to: W,
    is_json: bool,
    any: bool,
}

impl<W: Write> Printing<W> {
    fn one(&mut self, thing: &impl Serialize, line: impl FnOnce() -> String) -> io::Result<()> {
        if !self.is_json {
            return writeln!(self.to, "{}", line());
        }
        let before = if std::mem::replace(&mut self.any, true) { ",\n" } else { "[\n" };
        self.to.write_all(before.as_bytes())?;
        serde_json::to_writer(&mut self.to, thing).map_err(io::Error::other)
    }

    fn end(&mut self) -> io::Result<()> {
        if self.is_json {
            self.to.write_all(if self.any { b"\n]\n" } else { b"[]\n" })?;
        }
        self.to.flush()
    }
}

fn printing(is_json: bool) -> Printing<BufWriter<io::StdoutLock<'static>>> {
    Printing { to: BufWriter::new(io::stdout().lock()), is_json, any: false }
}

fn routes(show: &Show) -> Result<io::Result<()>, Failure> {
    let mut filter = RouteFilter { table: show.table.clone(), ..RouteFilter::default() };
    if let Some(which) = &show.which {
        let invalid =
            || Failure::usage(format!("`{which}` is not a prefix, such as 10.0.0.0/8, or an address"));
        match which.split_once('/') {
            Some((address, length)) => {
                let address: IpAddr = address.parse().map_err(|_| invalid())?;
                let max = if address.is_ipv4() { 32 } else { 128 };
                let length = length.parse().ok().filter(|length| *length <= max).ok_or_else(invalid)?;
                filter.within = Some((address, length));
            }
            None => filter.holding = Some(which.parse().map_err(|_| invalid())?),
        }
    }
    let mut printing = printing(show.json);
    let printed = daemon::routes(&show.router.socket, &filter, &mut |route: RouteState| {
        printing.one(&route, || {
            let table = if route.table == "main" { String::new() } else { format!("table {} ", route.table) };
            format!("{:<18} {table}{}{}", route.prefix, route.to, packets(route.packets))
        })
    });
    Ok(printed.and_then(|()| printing.end()))
}

fn labels(show: &Show) -> Result<io::Result<()>, Failure> {
    if show.table.is_some() {
        return Err(Failure::usage("--table does not apply to lfib").help("omit --table"));
    }
    let invalid =
        |which: &str| Failure::usage(format!("`{which}` is not a label; give a number from 0 to 1048575"));
    let one = show
        .which
        .as_ref()
        .map(|which| which.parse().ok().filter(|label| *label < 1 << 20).ok_or_else(|| invalid(which)));
    let mut printing = printing(show.json);
    let printed = daemon::labels(&show.router.socket, one.transpose()?, &mut |label: LabelState| {
        printing.one(&label, || format!("label {:<12} {}{}", label.label, label.to, packets(label.packets)))
    });
    Ok(printed.and_then(|()| printing.end()))
}

fn shown(what: What, state: &RouterState) -> String {
    let parts = match what {
        What::Neighbors => vec![neighbors(state)],
        What::Counters => vec![counters(state)],
        What::Rsvp => vec![tunnels(state), lsps(state)],
        What::Bfd => vec![sessions(state)],
        _ => vec![interfaces(state), neighbors(state), tunnels(state), sessions(state), counters(state)],
    };
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

fn interfaces(state: &RouterState) -> String {
    let mut table = Table::new(&["interface", "table", "labels", ">received", ">sent", ">queued", "state"]);
    for interface in &state.interfaces {
        let labels = if interface.mpls { "accepted" } else { "rejected" };
        let status = match (&interface.failure, &interface.slow) {
            (Some(failure), _) => failure.clone(),
            (None, Some(slow)) => format!("slow path: {slow}"),
            (None, None) => "up".into(),
        };
        table.row([
            interface.name.clone(),
            interface.table.clone(),
            labels.into(),
            interface.received.packets.to_string(),
            interface.sent.packets.to_string(),
            interface.queued.to_string(),
            status,
        ]);
    }
    let forwarded = if state.fast_path { "forwarded in the kernel" } else { "forwarded in user space" };
    let rejected = match state.refusal.trim_end() {
        "" => String::new(),
        reason => format!("LAST CONFIGURATION REJECTED: {reason}\n"),
    };
    let counted = format!("{}, {}", counted(state.routes, "route"), counted(state.labels, "label"));
    let AlternatesState { paths, without_neighbor } = state.alternates;
    let alternates = match paths {
        0 => String::new(),
        _ => format!("loop-free alternates: {paths} paths, of which {without_neighbor} avoid the neighbor\n"),
    };
    format!("{counted}, {forwarded}\n{alternates}{rejected}\n{}", table.text())
}

fn neighbors(state: &RouterState) -> String {
    let mut table = Table::new(&["neighbor", "interface", "MAC address"]);
    for neighbor in &state.neighbors {
        let mac = neighbor.mac.clone().unwrap_or_else(|| "unknown".into());
        table.row([neighbor.address.clone(), neighbor.interface.clone(), mac]);
    }
    table.text()
}

fn tunnels(state: &RouterState) -> String {
    let mut table = Table::new(&["tunnel", "to", "via", ">label", ">LSP", "state"]);
    for tunnel in &state.tunnels {
        let status = match (&tunnel.failure, tunnel.lsp) {
            (Some(failure), Some(_)) => format!("up; not changed: {failure}"),
            (Some(failure), None) => format!("down: {failure}"),
            (None, Some(_)) => "up".into(),
            (None, None) => "down".into(),
        };
        table.row([
            tunnel.name.clone(),
            tunnel.to.to_string(),
            optional(tunnel.via),
            tunnel.label.map_or("-".into(), label_name),
            optional(tunnel.lsp),
            status,
        ]);
    }
    table.text()
}

/// Returns the table of the BFD sessions.
fn sessions(state: &RouterState) -> String {
    let mut table =
        Table::new(&["BFD neighbor", "interface", "state", ">interval ms", ">detection ms", "reason"]);
    let milliseconds = |us: Option<u64>| us.map_or("-".into(), |us| format!("{}", us as f64 / 1e3));
    for session in &state.bfd {
        table.row([
            session.neighbor.clone(),
            session.interface.clone(),
            session.state.clone(),
            milliseconds(session.interval_us),
            milliseconds(session.detection_us),
            session.reason.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    table.text()
}

fn lsps(state: &RouterState) -> String {
    let heads =
        ["from", "to", ">tunnel", ">LSP", "upstream", ">label", "downstream", ">label", ">Mbit/s", "state"];
    let mut table = Table::new(&heads);
    for lsp in &state.lsps {
        table.row([
            lsp.from.to_string(),
            lsp.to.to_string(),
            lsp.tunnel.to_string(),
            lsp.lsp.to_string(),
            optional(lsp.upstream),
            lsp.incoming.map_or("-".into(), label_name),
            optional(lsp.downstream),
            lsp.outgoing.map_or("-".into(), label_name),
            format!("{:.3}", lsp.bandwidth_bps as f64 / 1e6),
            match (lsp.is_reserved, lsp.is_repaired) {
                (_, true) => "bypassed".into(),
                (true, false) => "reserved".into(),
                (false, false) => "requested".into(),
            },
        ]);
    }
    table.text()
}

fn optional(value: Option<impl ToString>) -> String {
    value.map_or("-".into(), |value| value.to_string())
}

fn label_name(label: u32) -> String {
    match label {
        0 => "explicit null".into(),
        3 => "implicit null".into(),
        _ => label.to_string(),
    }
}

fn counters(state: &RouterState) -> String {
    let mut table = Table::new(&["path", "counter", ">packets", "severity", "meaning"]);
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

/// Formats a packet count as a comment of a route file.
fn packets(count: Option<u64>) -> String {
    count.map_or(String::new(), |count| format!("  # {}", counted(count as usize, "packet")))
}
