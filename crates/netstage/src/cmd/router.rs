//! `netstage router`: the MPLS and IP router, and what can be asked of one that runs.

use super::table::{Table, counted};
use crate::exit::{Failure, OK, print};
use clap::ValueEnum;
use netstage_router::daemon::state::{Label, Route, RouteFilter};
use netstage_router::daemon::{self, Daemon, Level, Log, Signals, State, ask};
use serde::Serialize;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// Have a router read its configuration and its file of routes again
    Reload(Socket),
}

/// Which router.
#[derive(clap::Args)]
pub struct Socket {
    /// The router's control socket
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

/// Where a router is asked, unless its configuration says otherwise.
pub const SOCKET: &str = "/run/netstage-router.sock";

/// Options of `router show`.
#[derive(clap::Args)]
pub struct Show {
    /// What to show
    #[arg(value_enum, default_value = "all")]
    what: What,
    /// Of the fib: a prefix, for the routes within, or an address, for those that hold it; of the lfib: a label
    which: Option<String>,
    /// Of the fib: this table's routes, a VPN's name or `main`
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    #[command(flatten)]
    router: Socket,
    /// Print it as JSON: all but routes and labels, or these, one after the other
    #[arg(long)]
    json: bool,
}

/// What can be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// All but routes and labels
    All,
    /// Routes: where addresses lead, as a file of routes says it
    Fib,
    /// Labels: what they mean, as a file of routes says it
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
        Command::Reload(router) => reload(router),
    }
}

fn serve(configuration: &Path) -> Result<u8, Failure> {
    // Before any thread begins: each would be ended by a signal otherwise.
    let signals = Signals::block().map_err(|error| Failure::run(format!("no signals: {error}")))?;
    let log: Log = Arc::new(|level, line| {
        let mark = if level == Level::Alarm { "alarm: " } else { "" };
        say(&format!("{mark}{line}"));
    });
    let daemon = Daemon::begin(configuration, log)?;
    say(&format!("ready; control socket {}", daemon.control().display()));
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

fn reload(router: &Socket) -> Result<u8, Failure> {
    match daemon::reload(&router.socket) {
        Ok(changes) if changes.is_empty() => print(b"taken; nothing has changed\n").map(|()| OK),
        Ok(changes) => print(format!("taken: {}\n", changes.join("; ")).as_bytes()).map(|()| OK),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Err(Failure::usage(error.to_string()).help("the router keeps the configuration it had"))
        }
        Err(error) => Err(unanswered(&router.socket, &error)),
    }
}

fn unanswered(socket: &Path, error: &io::Error) -> Failure {
    Failure::run(format!("{}: {error}", socket.display()))
        .help("start one with `netstage router run`, or name its socket with --socket")
}

fn show(show: &Show) -> Result<u8, Failure> {
    let socket = &show.router.socket;
    let is_chosen = show.which.is_some() || show.table.is_some();
    if is_chosen && !matches!(show.what, What::Fib | What::Lfib) {
        return Err(Failure::usage("only routes and labels can be chosen from").help("show fib, or lfib"));
    }
    let told = match show.what {
        What::Fib => routes(show)?,
        What::Lfib => labels(show)?,
        _ => {
            let state = ask(socket).map_err(|error| unanswered(socket, &error))?;
            let text = match show.json {
                true => json(&state)? + "\n",
                false => shown(show.what, &state),
            };
            return print(text.as_bytes()).map(|()| OK);
        }
    };
    match told {
        // Whoever read the output has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(OK),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(Failure::usage(error.to_string())),
        Err(error) => Err(unanswered(socket, &error)),
        Ok(()) => Ok(OK),
    }
}

fn json(told: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(told).map_err(|error| Failure::run(error.to_string()))
}

/// Prints things as they come: each as a line, or all as a list of JSON.
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
        let wrong = || Failure::usage(format!("`{which}` is no prefix such as 10.0.0.0/8, and no address"));
        match which.split_once('/') {
            Some((address, length)) => {
                let address: IpAddr = address.parse().map_err(|_| wrong())?;
                let most = if address.is_ipv4() { 32 } else { 128 };
                let length = length.parse().ok().filter(|length| *length <= most).ok_or_else(wrong)?;
                filter.within = Some((address, length));
            }
            None => filter.holding = Some(which.parse().map_err(|_| wrong())?),
        }
    }
    let mut printing = printing(show.json);
    let told = daemon::routes(&show.router.socket, &filter, &mut |route: Route| {
        printing.one(&route, || {
            let table = if route.table == "main" { String::new() } else { format!("table {} ", route.table) };
            format!("{:<18} {table}{}{}", route.prefix, route.to, packets(route.packets))
        })
    });
    Ok(told.and_then(|()| printing.end()))
}

fn labels(show: &Show) -> Result<io::Result<()>, Failure> {
    if show.table.is_some() {
        return Err(Failure::usage("labels have one table").help("leave --table out"));
    }
    let wrong = |which: &str| Failure::usage(format!("`{which}` is no label: a number up to 1048575"));
    let one = show
        .which
        .as_ref()
        .map(|which| which.parse().ok().filter(|label| *label < 1 << 20).ok_or_else(|| wrong(which)));
    let mut printing = printing(show.json);
    let told = daemon::labels(&show.router.socket, one.transpose()?, &mut |label: Label| {
        printing.one(&label, || format!("label {:<12} {}{}", label.label, label.to, packets(label.packets)))
    });
    Ok(told.and_then(|()| printing.end()))
}

fn shown(what: What, state: &State) -> String {
    let parts = match what {
        What::Neighbours => vec![neighbours(state)],
        What::Counters => vec![counters(state)],
        _ => vec![interfaces(state), neighbours(state), counters(state)],
    };
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n")
}

fn interfaces(state: &State) -> String {
    let mut table = Table::new(&["interface", "table", "labels", ">received", ">sent", ">waiting", "state"]);
    for interface in &state.interfaces {
        let labels = if interface.mpls { "taken" } else { "not taken" };
        let told = match (&interface.failure, &interface.slow) {
            (Some(failure), _) => failure.clone(),
            (None, Some(slow)) => format!("sent by the slow path: {slow}"),
            (None, None) => "works".into(),
        };
        table.row([
            interface.name.clone(),
            interface.table.clone(),
            labels.into(),
            interface.received.packets.to_string(),
            interface.sent.packets.to_string(),
            interface.queued.to_string(),
            told,
        ]);
    }
    let decided = if state.fast_path { "in the kernel" } else { "by the program" };
    let refused = match state.refusal.trim_end() {
        "" => String::new(),
        why => format!("THE LAST CONFIGURATION WAS REFUSED: {why}\n"),
    };
    let counted = format!("{}, {}", counted(state.routes, "route"), counted(state.labels, "label"));
    format!("{counted}, decided {decided}\n{refused}\n{}", table.text())
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

/// A comment in a file of routes.
fn packets(count: Option<u64>) -> String {
    count.map_or(String::new(), |count| format!("  # {}", counted(count as usize, "packet")))
}
