//! `netstage tcp limit`: limits the windows of TCP connections.

use super::filter::Options;
use super::refused;
use crate::cmd::measure::units;
use crate::cmd::run::watch_interrupt;
use crate::cmd::table::{Table, counted};
use crate::exit::{Failure, OK, print};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::monotonic_ns;
use netstage_tcp_watch::clean;
use netstage_tcp_watch::gateway::{Gateway, GatewayCounters};
use netstage_tcp_watch::limit::{ConnectionWindows, Limiter, Limits};
use netstage_tcp_watch::limit_file::FOLDER;
use netstage_tcp_watch::route::LimitRoutes;
use std::io::IsTerminal as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Interval at which new connections are searched for and limits are restored.
const POLL: Duration = Duration::from_millis(100);

const EXAMPLES: &str = "Examples:
  netstage tcp limit --process iperf3 --cwnd 20
  netstage tcp limit --route 192.0.2.7 --cwnd 20 --for 1h
  netstage tcp limit --gateway eth0 --window 64K --port 3260";

/// Options of `tcp limit`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    filter: Options,
    /// Maximum congestion window, segments
    #[arg(long, value_name = "SEGMENTS", value_parser = clap::value_parser!(u32).range(1..1 << 30))]
    cwnd: Option<u32>,
    /// Maximum window to advertise to peers, bytes
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    window: Option<u64>,
    /// Limit forwarded connections on this interface; with --window, --port and --address only
    #[arg(long, value_name = "INTERFACE", requires = "window", conflicts_with = "cwnd")]
    gateway: Option<String>,
    /// Limit new connections to this address with a route, instead of existing connections
    #[arg(long, value_name = "ADDRESS", conflicts_with = "gateway")]
    route: Vec<IpAddr>,
    /// Stop after this time
    #[arg(long = "for", value_name = "TIME", value_parser = units::time)]
    span: Option<Duration>,
    /// Time between updates
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = units::time)]
    every: Duration,
    /// Maximum connections to show
    #[arg(long, value_name = "N", default_value = "20")]
    flows: usize,
    /// Folder for the state that `netstage clean` restores
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    state: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let window = arguments.window.map(u32::try_from).transpose();
    let window = window.map_err(|_| Failure::usage("--window: value is 4 GiB or more"))?;
    let limits = Limits { cwnd: arguments.cwnd, window };
    if limits == Limits::default() {
        return Err(Failure::usage("no limit").help("give --cwnd SEGMENTS, --window SIZE, or both"));
    }
    if let (Some(interface), Some(window)) = (&arguments.gateway, window) {
        return limit_forwarded(arguments, interface, window);
    }
    if !arguments.route.is_empty() {
        return limit_new(arguments, limits);
    }
    if arguments.filter.is_empty() {
        return Err(Failure::usage("this would limit every connection of this host").help(
            "choose with --process, --port, --address, …; for all use --address 0.0.0.0/0 --address ::/0",
        ));
    }
    let filter = arguments.filter.filter()?;
    let namespaces = arguments.filter.namespaces(&filter)?;
    let interrupted = watch_interrupt()?;
    let mut limiter = Limiter::new(limits, filter, namespaces, &arguments.state).map_err(refused)?;
    let start = monotonic_ns();
    let mut shown = None;
    let clear = if std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    loop {
        let (standings, gone) = limiter.apply().map_err(refused)?;
        if let Some(process) = gone.first()
            && standings.is_empty()
        {
            let is_first = shown.is_none();
            return if is_first { Err(Failure::run(format!("no such {process}"))) } else { Ok(OK) };
        }
        let now = Instant(monotonic_ns().saturating_sub(start));
        if shown.is_none_or(|shown| now.since(shown) >= arguments.every) {
            print(format!("{clear}{}\n", page(&standings, arguments.flows)).as_bytes())?;
            shown = Some(now);
        }
        if interrupted.load(Ordering::Relaxed) || arguments.span.is_some_and(|span| now.0 >= span.0) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_nanos(POLL.0));
    }
    let count = limiter.undo().map_err(refused)?;
    print(format!("restored {}\n", counted(count, "connection")).as_bytes()).map(|()| OK)
}

/// Limits new connections, with routes.
fn limit_new(arguments: &Arguments, limits: Limits) -> Result<u8, Failure> {
    if !arguments.filter.is_empty() {
        return Err(Failure::usage("--route cannot be combined with filters of connections")
            .help("give --route alone, or omit it to limit existing connections"));
    }
    let interrupted = watch_interrupt()?;
    let start = monotonic_ns();
    let routes = LimitRoutes::new(limits, &arguments.route, &arguments.state).map_err(refused)?;
    let addresses: Vec<String> = arguments.route.iter().map(IpAddr::to_string).collect();
    print(format!("limiting new connections to {}\n", addresses.join(", ")).as_bytes())?;
    if limits.cwnd.is_some() {
        eprintln!(
            "note: the limit of the congestion window takes effect from the second connection to a host, and only after \
             `ip tcp_metrics delete ADDRESS` if the kernel has metrics of the host"
        );
    }
    while !interrupted.load(Ordering::Relaxed)
        && arguments.span.is_none_or(|span| monotonic_ns().saturating_sub(start) < span.0)
    {
        std::thread::sleep(std::time::Duration::from_nanos(POLL.0));
    }
    drop(routes);
    print(format!("removed {}\n", counted(addresses.len(), "route")).as_bytes()).map(|()| OK)
}

/// Limits connections forwarded through an interface.
fn limit_forwarded(arguments: &Arguments, interface: &str, window: u32) -> Result<u8, Failure> {
    let interrupted = watch_interrupt()?;
    let gateway = Gateway::new(interface, window, arguments.filter.filter()?).map_err(refused)?;
    let start = monotonic_ns();
    let mut shown = Instant::ZERO;
    loop {
        std::thread::sleep(std::time::Duration::from_nanos(POLL.0));
        let now = Instant(monotonic_ns().saturating_sub(start));
        let is_over =
            interrupted.load(Ordering::Relaxed) || arguments.span.is_some_and(|span| now.0 >= span.0);
        if is_over || now.since(shown) >= arguments.every {
            let GatewayCounters { lowered, unchanged, unknown } = gateway.counters();
            let text = format!(
                "segments with lowered window: {lowered}, unchanged: {unchanged}, of older connections: {unknown}\n"
            );
            print(text.as_bytes())?;
            shown = now;
        }
        if is_over {
            return Ok(OK);
        }
    }
}

/// Restores what killed commands left behind, and returns the number of connections and routes.
pub fn clean() -> Result<usize, Failure> {
    clean::clean(Path::new(FOLDER)).map_err(refused)
}

fn page(standings: &[ConnectionWindows], max: usize) -> String {
    let flows = standings.iter().filter(|standing| !standing.listens);
    let listeners = standings.iter().filter(|standing| standing.listens).count();
    let heads = ["connection", ">cwnd", ">limit", ">advertised", ">limit", ">peer window"];
    let mut table = Table::new(&heads);
    for standing in flows.clone().take(max) {
        let limit = |limit: u32| if limit < 1 << 30 { limit.to_string() } else { "-".into() };
        table.row([
            format!("{} > {}", standing.local, standing.remote),
            standing.cwnd.to_string(),
            limit(standing.cwnd_limit),
            standing.window.to_string(),
            limit(standing.window_limit),
            standing.peer_window.to_string(),
        ]);
    }
    let count = flows.count();
    let hidden = count.saturating_sub(max);
    let rest = if hidden > 0 { format!("and {hidden} more (--flows)\n") } else { String::new() };
    format!(
        "{} and {} limited; cwnd in segments, other windows in bytes\n\n{}{rest}",
        counted(count, "connection"),
        counted(listeners, "listening socket"),
        table.text()
    )
}
