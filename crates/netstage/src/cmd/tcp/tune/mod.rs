//! `netstage tcp tune`: searches for the best TCP window with transfers to `netstage measure serve`, or to another server
//! that discards data. The search algorithm is `netstage_core::measure::tune`.

mod explain;
mod permanent;
mod transfer;

use crate::cmd::measure::{Family, PORT, key, units};
use crate::cmd::run::watch_interrupt;
use crate::exit::{Failure, INTERRUPTED, OK, VOID, print};
use explain::Ended;
use netstage_agent::measure::UploadServer;
use netstage_core::measure::tune::{Setting, TransferSample, WindowSearch, WindowSearchConfig};
use netstage_core::rng::RandomStream;
use netstage_core::time::Duration;
use netstage_scenario::outcome::RunOutcome;
use netstage_scenario::outcome::finding::{TestOutcome, TrialEntry};
use netstage_study::observed::{Observation, PendingRecord};
use netstage_study::tuned::TuneReport;
use netstage_study::{TOOL, page, report};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use transfer::{BIN, There, Transfers};

/// Payload of a full IPv4 segment on Ethernet with TCP timestamps, bytes.
const SEGMENT_V4: u32 = 1448;
/// Payload of a full IPv6 segment on Ethernet with TCP timestamps, bytes.
const SEGMENT_V6: u32 = 1428;
/// Name of the test in the record.
const NAME: &str = "tune";

const EXAMPLES: &str = "Examples:
  netstage tcp tune server.example --key-file key
  netstage tcp tune server.example -C cubic,bbr --max-round-trip 50ms --out out/tuned
  netstage tcp tune server.example --sink iperf3";

/// Options of `tcp tune`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Host with `netstage measure serve`, a server given by --sink, or http://HOST/PATH for a POST
    target: String,
    /// Port of the server [default: 5201, for discard 9]
    #[arg(short = 'p', long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Server without netstage: discard or iperf3; needs root to limit the window at this host
    #[arg(
        long,
        value_name = "SERVER",
        hide_possible_values = true,
        conflicts_with_all = ["reverse", "data_port", "key_file"]
    )]
    sink: Option<Reads>,
    /// Data port at the receiver [default: chosen by its system]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..))]
    data_port: Option<u16>,
    /// Send from the server to this host
    #[arg(short = 'R', long)]
    reverse: bool,
    /// Congestion controls to compare, as cubic,bbr [default: that of the sender's system]
    #[arg(short = 'C', long, value_name = "NAME", value_delimiter = ',')]
    congestion: Vec<String>,
    /// Maximum mean round trip of the result
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    max_round_trip: Option<Duration>,
    /// Seconds per transfer, without the omitted ones
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "4", value_parser = units::time)]
    time: Duration,
    /// Omit the first seconds of each transfer
    #[arg(short = 'O', long, value_name = "SECONDS", default_value = "1", value_parser = units::time)]
    omit: Duration,
    /// Maximum number of transfers
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..))]
    trials: u16,
    /// Differences in throughput to ignore, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 1.5)]
    tolerance: f64,
    /// Maximum window to try, as 16M
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = units::size)]
    max_window: u64,
    /// Seed of the order of transfers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    family: Family,
    /// File with the server's key [default: environment variable NETSTAGE_KEY]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Write a record and its report to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result, or the error, as JSON
    #[arg(long)]
    pub json: bool,
}

/// Server other than netstage.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Reads {
    /// Discard server, which only reads (RFC 863)
    Discard,
    /// iperf3 -s
    Iperf3,
}

/// Finished transfer.
struct Made {
    setting: Setting,
    sample: TransferSample,
    /// Reason why the transfer is void, if netstage itself was too slow or lost data.
    void: Option<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let TuneTarget { host, port, sink } = parse_target(arguments)?;
    let target = arguments.family.resolve(&host, port)?;
    let config = config(arguments, if target.is_ipv4() { SEGMENT_V4 } else { SEGMENT_V6 })?;
    let there = match sink {
        Some(sink) => There::Sink(sink),
        None => There::Agent(key(arguments.key_file.as_ref())?),
    };
    let title = format!("TCP tuning to {}", arguments.target);
    let place = arguments.out.as_ref().map(|folder| PendingRecord::open(folder, TOOL, &title)).transpose()?;
    let interrupted = watch_interrupt()?;
    let transfers = Transfers::new(arguments, target, there);
    let mut tune = WindowSearch::new(config.clone(), RandomStream::new(arguments.seed, "tune.order"));
    let mut made: Vec<Made> = Vec::new();
    if !arguments.json {
        print(explain::heading(arguments, target.ip(), &config).as_bytes())?;
    }
    while let Some(setting) = tune.next() {
        let Some((sample, void)) = transfers.make(setting, &interrupted)? else { break };
        tune.record(sample);
        made.push(Made { setting, sample, void });
        if !arguments.json {
            print(explain::trial(&arguments.congestion, &made).as_bytes())?;
        }
    }
    let Some(found) = tune.result() else { return Ok(INTERRUPTED) };
    let tuned = TuneReport { test: NAME, config: &config, controls: &arguments.congestion, found: &found };
    let ended = Ended {
        tuned: &tuned,
        made: &made,
        own: transfers.own(),
        target: target.ip(),
        reverse: arguments.reverse,
        length: arguments.time + arguments.omit,
    };
    let text = if arguments.json { format!("{:#}\n", ended.json()) } else { ended.text() };
    print(text.as_bytes())?;
    if let Some(place) = place {
        let record = place.save(observation(arguments, title, &tuned, &made))?;
        let path = record.folder.join(page::NAME);
        page::write(&path, &report::report(&record)).map_err(|e| Failure::write(&path, &e))?;
        eprintln!("report: {}", path.display());
    }
    Ok(match () {
        () if interrupted.load(Ordering::Relaxed) => INTERRUPTED,
        () if made.iter().any(|made| made.void.is_some()) => VOID,
        () => OK,
    })
}

/// Target of the transfers.
struct TuneTarget {
    host: String,
    port: u16,
    /// Server type; `None` for `netstage measure serve`.
    sink: Option<UploadServer>,
}

fn parse_target(arguments: &Arguments) -> Result<TuneTarget, Failure> {
    let Arguments { target, port, sink, .. } = arguments;
    let parsed = |sink: Option<UploadServer>, default: u16| TuneTarget {
        host: target.clone(),
        port: port.unwrap_or(default),
        sink,
    };
    let Some((scheme, rest)) = target.split_once("://") else {
        return Ok(match sink {
            None => parsed(None, PORT),
            Some(Reads::Discard) => parsed(Some(UploadServer::Discard), 9),
            Some(Reads::Iperf3) => parsed(Some(UploadServer::Iperf3), 5201),
        });
    };
    if scheme != "http" {
        let help = "use http://HOST/PATH; encryption would distort the measurement";
        return Err(Failure::usage(format!("unsupported URL scheme {scheme}://")).help(help));
    }
    if sink.is_some() || port.is_some() || arguments.reverse {
        return Err(Failure::usage("--sink, -p and -R cannot be combined with a URL"));
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let unsafe_text = |text: &str| text.chars().any(|c| c.is_control() || c == ' ');
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse().map_err(|_| Failure::usage(format!("invalid port {port:?}")))?)
        }
        _ => (authority, 80),
    };
    if host.is_empty() || unsafe_text(rest) {
        return Err(Failure::usage(format!("invalid URL {target:?}; use http://HOST/PATH")));
    }
    let path = if path.is_empty() { "/" } else { path };
    let sink = Some(UploadServer::Http { host: authority.to_owned(), path: path.to_owned() });
    Ok(TuneTarget { host: host.to_owned(), port, sink })
}

fn config(arguments: &Arguments, segment: u32) -> Result<WindowSearchConfig, Failure> {
    if !arguments.omit.0.is_multiple_of(BIN.0) || arguments.time < Duration::from_millis(500) {
        let help = "-t 4 -O 1 suits round trips below 100 ms";
        return Err(Failure::usage("-t must be 0.5 s or more, and -O a multiple of 0.1 s").help(help));
    }
    if !(0.01..=50.0).contains(&arguments.tolerance) {
        return Err(Failure::usage("--tolerance must be 0.01 to 50 %"));
    }
    if arguments.max_window < 4 * u64::from(segment) || arguments.max_window > 1 << 30 {
        return Err(Failure::usage("--max-window must be at least four segments and at most 1 GiB"));
    }
    Ok(WindowSearchConfig {
        controls: arguments.congestion.len().max(1),
        segment,
        max_window: arguments.max_window,
        delay_bound: arguments.max_round_trip,
        tolerance: arguments.tolerance / 100.0,
        trials: arguments.trials.into(),
    })
}

/// Returns the content of the record.
fn observation(arguments: &Arguments, title: String, tuned: &TuneReport, made: &[Made]) -> Observation {
    let entry = |made: &Made| TrialEntry {
        subject: tuned.name(made.setting),
        transferred: (made.sample.goodput * arguments.time.as_secs_f64() / 8.0).round() as u64,
        retransmissions: made.sample.retransmissions,
        sending_ns: arguments.time.0,
        round_trip_ns: Some(made.sample.mean_round_trip.0),
        void: made.void.clone().unwrap_or_default(),
        ..TrialEntry::default()
    };
    let test = TestOutcome {
        name: NAME.into(),
        kind: "tcp-window".into(),
        findings: tuned.findings(),
        verdicts: vec![tuned.verdict()],
        trials: made.iter().map(entry).collect(),
        ..TestOutcome::default()
    };
    let length = arguments.time + arguments.omit;
    Observation {
        tool: TOOL.into(),
        title,
        description: format!(
            "{} transfers with the TCP of the hosts' kernels and various windows.",
            made.len()
        ),
        duration: length * made.len() as u64,
        outcome: RunOutcome { interval: length, bins: made.len(), ..RunOutcome::default() },
        tests: vec![test],
        figures: tuned.figures(),
    }
}
