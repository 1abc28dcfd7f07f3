//! `netstage tcp limit`.

use super::filter::Options;
use super::refused;
use crate::cmd::measure::units;
use crate::cmd::run::watch_interrupt;
use crate::cmd::table::{Table, counted};
use crate::exit::{Failure, OK, print};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::monotonic_ns;
use netstage_tcp_watch::clean;
use netstage_tcp_watch::gateway::{Gateway, Passed};
use netstage_tcp_watch::limit::{Limiter, Limits, Standing};
use netstage_tcp_watch::note::FOLDER;
use netstage_tcp_watch::route::Routes;
use std::io::IsTerminal as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// How often new connections are looked for, and raised limits set again.
const LOOK: Duration = Duration::from_millis(100);

/// Options of `tcp limit`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    filter: Options,
    /// Congestion windows of at most so many segments
    #[arg(long, value_name = "SEGMENTS", value_parser = clap::value_parser!(u32).range(1..1 << 30))]
    cwnd: Option<u32>,
    /// Windows advertised to peers of at most so many bytes
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    window: Option<u64>,
    /// Limit what hosts advertise to each other by segments that pass this interface, in place of connections of
    /// this machine; goes with --window, and choices by --port and --address
    #[arg(long, value_name = "INTERFACE", requires = "window", conflicts_with = "cwnd")]
    gateway: Option<String>,
    /// Limit connections to this address that begin from now on, by a route, in place of connections that run
    #[arg(long, value_name = "ADDRESS", conflicts_with = "gateway")]
    route: Vec<IpAddr>,
    /// End after so long
    #[arg(long = "for", value_name = "TIME", value_parser = units::time)]
    span: Option<Duration>,
    /// Time between two looks of the view
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = units::time)]
    every: Duration,
    /// Show so many connections at most
    #[arg(long, value_name = "N", default_value = "20")]
    flows: usize,
    /// Where it is kept what is limited, for `netstage clean`
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    state: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let window = arguments.window.map(u32::try_from).transpose();
    let window = window.map_err(|_| Failure::usage("--window: expected less than 4 GiB"))?;
    let limits = Limits { cwnd: arguments.cwnd, window };
    if limits == Limits::default() {
        return Err(Failure::usage("nothing to limit").help("--cwnd SEGMENTS, --window SIZE, or both"));
    }
    if let (Some(interface), Some(window)) = (&arguments.gateway, window) {
        return pass(arguments, interface, window);
    }
    if !arguments.route.is_empty() {
        return by_route(arguments, limits);
    }
    if arguments.filter.is_empty() {
        return Err(Failure::usage("every connection of this machine would be limited")
            .help("say which: --process, --port, --address, …; all: --address 0.0.0.0/0 --address ::/0"));
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
            let never = shown.is_none();
            return if never { Err(Failure::run(format!("there is no {process}"))) } else { Ok(OK) };
        }
        let now = Instant(monotonic_ns().saturating_sub(start));
        if shown.is_none_or(|shown| now.since(shown) >= arguments.every) {
            print(format!("{clear}{}\n", page(&standings, arguments.flows)).as_bytes())?;
            shown = Some(now);
        }
        if interrupted.load(Ordering::Relaxed) || arguments.span.is_some_and(|span| now.0 >= span.0) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_nanos(LOOK.0));
    }
    let count = limiter.undo().map_err(refused)?;
    print(format!("put back {}\n", counted(count, "connection")).as_bytes()).map(|()| OK)
}

/// Limits what begins, by routes.
fn by_route(arguments: &Arguments, limits: Limits) -> Result<u8, Failure> {
    if !arguments.filter.is_empty() {
        return Err(Failure::usage("a route knows no processes, ports, namespaces or cgroups")
            .help("--route alone; or limit connections that run, without --route"));
    }
    let interrupted = watch_interrupt()?;
    let start = monotonic_ns();
    let routes = Routes::new(limits, &arguments.route, &arguments.state).map_err(refused)?;
    let addresses: Vec<String> = arguments.route.iter().map(IpAddr::to_string).collect();
    print(format!("connections to {} that begin now are limited\n", addresses.join(", ")).as_bytes())?;
    if limits.cwnd.is_some() {
        eprintln!(
            "note: congestion windows of connections after the first; what the kernel remembers of a host goes before: \
             ip tcp_metrics delete ADDRESS"
        );
    }
    while !interrupted.load(Ordering::Relaxed)
        && arguments.span.is_none_or(|span| monotonic_ns().saturating_sub(start) < span.0)
    {
        std::thread::sleep(std::time::Duration::from_nanos(LOOK.0));
    }
    drop(routes);
    print(format!("took away {}\n", counted(addresses.len(), "route")).as_bytes()).map(|()| OK)
}

/// Limits what passes an interface.
fn pass(arguments: &Arguments, interface: &str, window: u32) -> Result<u8, Failure> {
    let interrupted = watch_interrupt()?;
    let gateway = Gateway::new(interface, window, arguments.filter.filter()?).map_err(refused)?;
    let start = monotonic_ns();
    let mut shown = Instant::ZERO;
    loop {
        std::thread::sleep(std::time::Duration::from_nanos(LOOK.0));
        let now = Instant(monotonic_ns().saturating_sub(start));
        let is_over =
            interrupted.load(Ordering::Relaxed) || arguments.span.is_some_and(|span| now.0 >= span.0);
        if is_over || now.since(shown) >= arguments.every {
            let Passed { lowered, unchanged, unknown } = gateway.passed();
            let text = format!(
                "segments whose window was lowered: {lowered}, was small enough: {unchanged}, of connections that \
                 began before: {unknown}\n"
            );
            print(text.as_bytes())?;
            shown = now;
        }
        if is_over {
            return Ok(OK);
        }
    }
}

/// Puts back what killed ones left; how many connections and routes.
pub fn clean() -> Result<usize, Failure> {
    clean::clean(Path::new(FOLDER)).map_err(refused)
}

fn page(standings: &[Standing], most: usize) -> String {
    let flows = standings.iter().filter(|standing| !standing.listens);
    let listeners = standings.iter().filter(|standing| standing.listens).count();
    let heads = ["connection", ">cwnd", ">limit", ">peer sees", ">limit", ">peer's window"];
    let mut table = Table::new(&heads);
    for standing in flows.clone().take(most) {
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
    let hidden = count.saturating_sub(most);
    let rest = if hidden > 0 { format!("and {hidden} more (--flows)\n") } else { String::new() };
    format!(
        "{} limited, and {}; congestion windows in segments, others in bytes\n\n{}{rest}",
        counted(count, "connection"),
        counted(listeners, "listening socket"),
        table.text()
    )
}
