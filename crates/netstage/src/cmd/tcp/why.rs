//! `netstage tcp why`: names the bottleneck of each flow.

use super::diagnoses::{DiagnosedFlow, Diagnoses};
use super::filter::Options;
use super::{refused, watch};
use crate::cmd::measure::units;
use crate::cmd::run::watch_interrupt;
use crate::exit::{Failure, INTERRUPTED, OK, VOID, print};
use netstage_core::time::{Duration, Instant};
use netstage_host::clock::monotonic_ns;
use netstage_tcp_watch::flows::Flows;
use serde::Serialize;
use std::sync::atomic::Ordering;

const EXAMPLES: &str = "Examples:
  netstage tcp why --process iperf3
  netstage tcp why --to 192.0.2.7 --for 30
  netstage tcp why --port 3260 --json | jq -r '.flows[0].bottleneck'

The verdict of a flow is certain, shared (with a second bottleneck), unsure (with an alternative) or too-short. Shares add up to 100 %.
Exit codes: 0 diagnosed; 1 no flow sent data, or failure; 5 records were lost, so shares may be wrong";

/// Options of `tcp why`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    filter: Options,
    /// Source: kernel (BPF), tracing or polling, in order of detail [default: first available]
    #[arg(long, value_name = "SOURCE", hide_possible_values = true)]
    source: Option<watch::Source>,
    /// Observe for this time; less if all flows end
    #[arg(long = "for", value_name = "TIME", default_value = "10", value_parser = units::time)]
    span: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Show the N flows that carried most
    #[arg(long, value_name = "N", default_value = "20")]
    flows: usize,
}

/// Output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    /// Flows, those that carried most first.
    flows: &'a [DiagnosedFlow],
    /// Flows that sent data and are not shown.
    hidden: usize,
    /// Kernel records lost because the buffer was full.
    lost: u64,
    /// Information that the source lacks.
    missing: &'a [String],
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let filter = arguments.filter.filter()?;
    let processes = filter.processes.len();
    let namespaces = arguments.filter.namespaces(&filter)?;
    let mut source = watch::open(arguments.source, filter, &namespaces)?;
    let start = monotonic_ns();
    let interrupted = watch_interrupt()?;
    let since_start = || Instant(monotonic_ns().saturating_sub(start));
    let mut flows = Flows::new(start);
    let mut diagnoses = Diagnoses::default();
    let mut refreshed = Instant::ZERO;
    loop {
        std::thread::sleep(std::time::Duration::from_nanos(watch::POLL.0));
        let polled = source.poll(|record, origin| {
            flows.handle(record, origin, &mut |flow, event| diagnoses.handle(flow, event));
        });
        polled.map_err(refused)?;
        let now = since_start();
        let is_over = now.since(Instant::ZERO) >= arguments.span || diagnoses.have_ended();
        if is_over || interrupted.load(Ordering::Relaxed) {
            break;
        }
        if now.since(refreshed) >= watch::REFRESH {
            let gone = source.refresh().len();
            if gone > 0 && gone == processes {
                break;
            }
            refreshed = now;
        }
    }
    let diagnosed = diagnoses.finish(since_start());
    let (lost, shown) = (source.lost(), diagnosed.len().min(arguments.flows));
    let report = Report {
        flows: &diagnosed[..shown],
        hidden: diagnosed.len() - shown,
        lost,
        missing: source.missing(),
    };
    write(arguments, &report)?;
    if diagnosed.is_empty() {
        return Err(Failure::run("no flow sent data")
            .help("start a transfer, widen the filter, or observe longer with --for"));
    }
    Ok(match () {
        () if interrupted.load(Ordering::Relaxed) => INTERRUPTED,
        () if lost > 0 => VOID,
        () => OK,
    })
}

fn write(arguments: &Arguments, report: &Report) -> Result<(), Failure> {
    if report.lost > 0 {
        eprintln!("warning: {} kernel records lost; select fewer flows", report.lost);
    }
    if arguments.json {
        let text = serde_json::to_string_pretty(report).expect("numbers and texts are valid JSON");
        return print(format!("{text}\n").as_bytes());
    }
    let mut text: Vec<String> = report.flows.iter().map(DiagnosedFlow::text).collect();
    if report.hidden > 0 {
        text.push(format!("and {} more (--flows)\n", report.hidden));
    }
    print(text.join("\n").as_bytes())
}
