//! `netstage tcp watch`: traces the windows of TCP senders.

use super::diagnoses::{DiagnosedFlow, Diagnoses};
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
use netstage_host::netns::Namespace;
use netstage_study::observed::{Observation, PendingRecord};
use netstage_study::{TOOL, page, report};
use netstage_tcp_watch::filter::Filter;
use netstage_tcp_watch::flows::{Flows, WatchedFlow};
use netstage_tcp_watch::source::{RecordSource, SourceKind};
use serde::Serialize;
use std::io::{self, BufWriter, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Interval between reads of kernel records.
pub const POLL: Duration = Duration::from_millis(20);
/// Interval between searches for the sockets of processes.
pub const REFRESH: Duration = Duration::from_millis(200);
/// Title of the record.
const TITLE: &str = "TCP trace";

const EXAMPLES: &str = "Examples:
  netstage tcp watch
  netstage tcp watch --process iperf3 --for 30 --out out/iperf3
  netstage tcp watch --port 3260 --ndjson";

/// Options of `tcp watch`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    filter: Options,
    /// Source: kernel (BPF), tracing or polling, in order of detail [default: first available]
    #[arg(long, value_name = "SOURCE", hide_possible_values = true)]
    source: Option<Source>,
    /// Stop after this time
    #[arg(long = "for", value_name = "TIME", value_parser = units::time)]
    span: Option<Duration>,
    /// Print every event as a line of JSON instead of the view
    #[arg(long)]
    ndjson: bool,
    /// Write a record and its report to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Bin width of the record
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = units::time)]
    interval: Duration,
    /// Time between updates
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = units::time)]
    every: Duration,
    /// Show the N flows with the highest rates
    #[arg(long, value_name = "N", default_value = "20")]
    flows: usize,
}

/// Source of events.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Source {
    /// BPF programs in the kernel
    Kernel,
    /// Tracepoints of the kernel (tracefs)
    Tracing,
    /// Periodic list of the kernel's sockets (sock_diag)
    Polling,
}

/// Line of `--ndjson` with an event.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    flow: &'a WatchedFlow,
    #[serde(flatten)]
    event: &'a FlowEvent,
}

/// Line of `--ndjson` with the diagnosis of a flow.
#[derive(Serialize)]
struct Conclusion<'a> {
    event: &'static str,
    #[serde(flatten)]
    flow: &'a DiagnosedFlow,
}

/// Last line of `--ndjson`.
#[derive(Serialize)]
struct Over {
    /// Number of flows.
    flows: usize,
    /// Number of kernel records, each with one or more events.
    records: u64,
    /// Number of records lost because the kernel's buffer was full.
    lost: u64,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let filter = arguments.filter.filter()?;
    if arguments.interval < Duration::from_millis(1) {
        return Err(Failure::usage("--interval: expected 1ms or more"));
    }
    let processes = filter.processes.clone();
    let namespaces = arguments.filter.namespaces(&filter)?;
    let mut source = open(arguments.source, filter, &namespaces)?;
    let start = monotonic_ns();
    let place = arguments.out.as_ref().map(|folder| PendingRecord::open(folder, TOOL, TITLE)).transpose()?;
    let interrupted = watch_interrupt()?;
    let since_start = || Instant(monotonic_ns().saturating_sub(start));
    let mut flows = Flows::new(start);
    let (mut view, mut diagnoses) = (View::default(), Diagnoses::default());
    let mut keeper = place.as_ref().map(|_| Keeper::new(arguments.interval));
    let mut out = BufWriter::new(io::stdout().lock());
    let mut records = 0;
    let (mut refreshed, mut shown) = (Instant::ZERO, Instant::ZERO);
    let clear = if io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
    let (ended, code) = loop {
        std::thread::sleep(std::time::Duration::from_nanos(POLL.0));
        let mut written = Ok(());
        let polled = source.poll(|record, reported| {
            records += 1;
            flows.handle(record, reported, &mut |flow, event| {
                if let Some(keeper) = &mut keeper {
                    keeper.handle(flow, event);
                }
                diagnoses.handle(flow, event);
                if !arguments.ndjson {
                    view.handle(flow, event);
                } else if written.is_ok() {
                    written = line(&mut out, &Line { flow, event });
                }
            });
        });
        polled.map_err(refused)?;
        // The reader of the output closed the pipe.
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
    // The reader of the output may have closed the pipe.
    let _ = conclude(
        arguments,
        &mut out,
        &diagnoses.finish(since_start()),
        &Over { flows: flows.all().len(), records, lost },
    );
    if let Some(process) = ended {
        eprintln!("{process} exited");
    }
    if lost > 0 {
        eprintln!("warning: {lost} kernel records lost; select fewer flows");
    }
    if let (Some(place), Some(keeper)) = (place, keeper) {
        write(place, keeper.finish(TITLE.into(), since_start(), warnings(&source)))?;
    }
    Ok(code)
}

/// Prints the diagnoses of the flows that carried most.
fn conclude(
    arguments: &Arguments,
    out: &mut impl io::Write,
    diagnosed: &[DiagnosedFlow],
    over: &Over,
) -> io::Result<()> {
    for flow in diagnosed.iter().take(arguments.flows) {
        match arguments.ndjson {
            true => line(out, &Conclusion { event: "diagnosed", flow })?,
            false => writeln!(out, "{}", flow.text())?,
        }
    }
    if arguments.ndjson {
        line(out, over)?;
    }
    out.flush()
}

/// Opens a source of events, and prints the information that it lacks.
pub fn open(
    source: Option<Source>,
    filter: Filter,
    namespaces: &[Namespace],
) -> Result<RecordSource, Failure> {
    let by = match source {
        None => SourceKind::Any,
        Some(Source::Kernel) => SourceKind::Programs,
        Some(Source::Tracing) => SourceKind::Tracing,
        Some(Source::Polling) => SourceKind::Polling,
    };
    let mut source = RecordSource::open(by, filter, namespaces).map_err(refused)?;
    for missing in source.missing() {
        eprintln!("note: not available: {missing}");
    }
    match source.refresh().first() {
        Some(process) => Err(Failure::run(format!("no such {process}"))),
        None => Ok(source),
    }
}

/// Returns what makes the record incomplete.
fn warnings(source: &RecordSource) -> Vec<String> {
    let lost = source.lost();
    let lost = (lost > 0).then(|| format!("{lost} kernel records lost"));
    let missing = source.missing().iter().map(|missing| format!("not available: {missing}"));
    lost.into_iter().chain(missing).collect()
}

/// Writes the record and its report.
fn write(place: PendingRecord, observation: Observation) -> Result<(), Failure> {
    let record = place.save(observation)?;
    let path = record.folder.join(page::NAME);
    page::write(&path, &report::report(&record)).map_err(|e| Failure::write(&path, &e))?;
    eprintln!("report: {}", path.display());
    Ok(())
}

fn line(out: &mut impl io::Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}
