//! `netstage tcp watch`.

use super::filter::Options;
use super::record::Keeper;
use super::refused;
use super::view::View;
use crate::cmd::measure::units;
use crate::cmd::run::watch_interrupt;
use crate::exit::{Failure, INTERRUPTED, OK, print};
use netstage_core::tcp::event::FlowEvent;
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::monotonic_ns;
use netstage_study::observed::{Observation, Place};
use netstage_study::{TOOL, page, report};
use netstage_tcp_watch::filter::Filter;
use netstage_tcp_watch::flows::{Flow, Flows};
use netstage_tcp_watch::source::{By, Source};
use serde::Serialize;
use std::io::{self, BufWriter, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// How often records are taken, and how often it is looked which sockets processes have.
const POLL: Duration = Duration::from_millis(20);
const REFRESH: Duration = Duration::from_millis(200);
/// The record's title.
const TITLE: &str = "TCP, watched";

/// Options of `tcp watch`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    filter: Options,
    /// Who tells: programs in the kernel, its tracing, or its list of sockets; each tells less than the one before
    /// [default: the first that can]
    #[arg(long, value_name = "WHO")]
    by: Option<Teller>,
    /// End after so long
    #[arg(long = "for", value_name = "TIME", value_parser = units::time)]
    span: Option<Duration>,
    /// Write every event as a line of JSON, in place of the view
    #[arg(long)]
    ndjson: bool,
    /// Keep a record, with a report, in this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Width of a bin of the record
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = units::time)]
    interval: Duration,
    /// Time between two looks of the view
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = units::time)]
    every: Duration,
    /// Show so many flows at most, those that send most
    #[arg(long, value_name = "N", default_value = "20")]
    flows: usize,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Teller {
    /// Programs in the kernel
    Kernel,
    /// The kernel's tracing
    Tracing,
    /// The kernel's list of sockets, again and again
    Polling,
}

/// An event as a line.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    flow: &'a Flow,
    #[serde(flatten)]
    event: &'a FlowEvent,
}

/// The last line.
#[derive(Serialize)]
struct Over {
    /// Flows seen.
    flows: usize,
    /// Records taken: an event each, or several.
    records: u64,
    /// Records for which the kernel had no room.
    lost: u64,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let filter = arguments.filter.filter()?;
    if arguments.interval < Duration::from_millis(1) {
        return Err(Failure::usage("--interval: expected 1ms or more"));
    }
    let processes = filter.processes.clone();
    let mut source = open(arguments, filter)?;
    let start = monotonic_ns();
    let place = arguments.out.as_ref().map(|folder| Place::take(folder, TOOL, TITLE)).transpose()?;
    let interrupted = watch_interrupt()?;
    let since_start = || Instant(monotonic_ns().saturating_sub(start));
    let mut flows = Flows::new(start);
    let mut view = View::default();
    let mut keeper = place.as_ref().map(|_| Keeper::new(arguments.interval));
    let mut out = BufWriter::new(io::stdout().lock());
    let mut records = 0;
    let (mut refreshed, mut shown) = (Instant::ZERO, Instant::ZERO);
    let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let (ended, code) = loop {
        std::thread::sleep(std::time::Duration::from_nanos(POLL.0));
        let mut written = Ok(());
        let polled = source.poll(|record, told| {
            records += 1;
            flows.handle(record, told, &mut |flow, event| {
                if let Some(keeper) = &mut keeper {
                    keeper.handle(flow, event);
                }
                if !arguments.ndjson {
                    view.handle(flow, event);
                } else if written.is_ok() {
                    written = line(&mut out, &Line { flow, event });
                }
            });
        });
        polled.map_err(refused)?;
        // A reader that has gone away has seen enough.
        if written.and_then(|()| out.flush()).is_err() {
            break (None, OK);
        }
        let now = since_start();
        if now.since(shown) >= arguments.every && !arguments.ndjson {
            let page = view.page(now, now.since(shown), source.lost(), arguments.flows);
            print(format!("{clear}{page}\n").as_bytes())?;
            shown = now;
        }
        if now.since(refreshed) >= REFRESH {
            let gone = source.refresh();
            if !gone.is_empty() && gone.len() == processes.len() {
                break (gone.first().cloned(), OK);
            }
            refreshed = now;
        }
        if interrupted.load(Ordering::Relaxed) {
            break (None, if arguments.span.is_some() { INTERRUPTED } else { OK });
        }
        if arguments.span.is_some_and(|span| now.since(Instant::ZERO) >= span) {
            break (None, OK);
        }
    };
    let lost = source.lost();
    if arguments.ndjson {
        let _ = line(&mut out, &Over { flows: flows.all().len(), records, lost }).and_then(|()| out.flush());
    }
    if let Some(process) = ended {
        eprintln!("{process} has ended");
    }
    if lost > 0 {
        eprintln!("warning: {lost} records were lost: the flows were too many for this machine; filter them");
    }
    if let (Some(place), Some(keeper)) = (place, keeper) {
        let lost = (lost > 0).then(|| format!("{lost} records of the kernel's were lost"));
        let missing = source.missing().iter().map(|missing| format!("not told here: {missing}"));
        let warnings = lost.into_iter().chain(missing).collect();
        keep(place, keeper.finish(TITLE.into(), since_start(), warnings))?;
    }
    Ok(code)
}

fn open(arguments: &Arguments, filter: Filter) -> Result<Source, Failure> {
    let by = match arguments.by {
        None => By::Any,
        Some(Teller::Kernel) => By::Programs,
        Some(Teller::Tracing) => By::Tracing,
        Some(Teller::Polling) => By::Polling,
    };
    let namespaces = arguments.filter.namespaces(&filter)?;
    let mut source = Source::open(by, filter, &namespaces).map_err(refused)?;
    for missing in source.missing() {
        eprintln!("note: not told here: {missing}");
    }
    match source.refresh().first() {
        Some(process) => Err(Failure::run(format!("there is no {process}"))),
        None => Ok(source),
    }
}

/// Writes the record and its report.
fn keep(place: Place, observation: Observation) -> Result<(), Failure> {
    let record = place.keep(observation)?;
    let path = record.folder.join(page::NAME);
    page::write(&path, &report::report(&record)).map_err(|e| Failure::write(&path, &e))?;
    eprintln!("report: {}", path.display());
    Ok(())
}

fn line(out: &mut impl io::Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}
