//! `netstage tcp tune`: transfers to a host that agreed to them, or to a server that reads whatever it is sent, each with the window that the search asks for
//! (`netstage_core::measure::tune`), and what they say together.

mod explain;
mod permanent;
mod transfer;

use crate::cmd::measure::{Family, PORT, key, units};
use crate::cmd::run::watch_interrupt;
use crate::exit::{Failure, INTERRUPTED, OK, VOID, print};
use explain::Ended;
use netstage_agent::measure::Sink;
use netstage_core::measure::tune::{Config, Sample, Setting, Tune};
use netstage_core::rng::Stream;
use netstage_core::time::Duration;
use netstage_scenario::outcome::Outcome;
use netstage_scenario::outcome::finding::{TestOutcome, TrialEntry};
use netstage_study::observed::{Observation, Place};
use netstage_study::tuned::Tuned;
use netstage_study::{TOOL, page, report};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use transfer::{BIN, There, Transfers};

/// Payload of a full segment on Ethernet, with timestamps.
const SEGMENT_V4: u32 = 1448;
const SEGMENT_V6: u32 = 1428;
/// The test's name in the record.
const NAME: &str = "tune";

/// Options of `tcp tune`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The host that runs `netstage measure serve`; or another server, with --sink, or as http://HOST/PATH to which
    /// data is posted
    target: String,
    /// Its port [default: 5201, 9 of discard, 80 of HTTP]
    #[arg(short = 'p', long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// What reads there, in place of `netstage measure serve`: the window is then limited at this end, as root
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["reverse", "data_port", "key_file"])]
    sink: Option<Reads>,
    /// First port where data is received [default: the receiver's system chooses]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1024..))]
    data_port: Option<u16>,
    /// From the server to here
    #[arg(short = 'R', long)]
    reverse: bool,
    /// Congestion controls to choose from, by the sending kernel's names: cubic,bbr [default: the system's]
    #[arg(short = 'C', long, value_name = "NAME", value_delimiter = ',')]
    congestion: Vec<String>,
    /// The longest mean round trip a window may make
    #[arg(long, value_name = "TIME", value_parser = units::time)]
    max_round_trip: Option<Duration>,
    /// Seconds of a transfer, without its beginning
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "4", value_parser = units::time)]
    time: Duration,
    /// Leave the first seconds of each transfer out
    #[arg(short = 'O', long, value_name = "SECONDS", default_value = "1", value_parser = units::time)]
    omit: Duration,
    /// Most transfers
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..))]
    trials: u16,
    /// Percent of throughput that make no difference
    #[arg(long, value_name = "PERCENT", default_value_t = 1.5)]
    tolerance: f64,
    /// The largest window tried, as 16M
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = units::size)]
    largest: u64,
    /// Seed of the order of transfers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    family: Family,
    /// File with the key the server has [default: the environment's NETSTAGE_KEY]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Keep a record, with a report, in this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result, or the error, as JSON
    #[arg(long)]
    pub json: bool,
}

/// A server that is not ours.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Reads {
    /// Whatever reads without a word, as the discard service
    Discard,
    /// iperf3 -s
    Iperf3,
}

/// A transfer that was made.
struct Made {
    setting: Setting,
    sample: Sample,
    /// Why it does not count in full: this program itself fell short.
    void: Option<String>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let Asked { host, port, sink } = asked(arguments)?;
    let target = arguments.family.resolve(&host, port)?;
    let config = config(arguments, if target.is_ipv4() { SEGMENT_V4 } else { SEGMENT_V6 })?;
    let there = match sink {
        Some(sink) => There::Sink(sink),
        None => There::Agent(key(arguments.key_file.as_ref())?),
    };
    let title = format!("TCP, tuned to {}", arguments.target);
    let place = arguments.out.as_ref().map(|folder| Place::take(folder, TOOL, &title)).transpose()?;
    let interrupted = watch_interrupt()?;
    let transfers = Transfers::new(arguments, target, there);
    let mut tune = Tune::new(config.clone(), Stream::new(arguments.seed, "tune.order"));
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
    let tuned = Tuned { test: NAME, config: &config, controls: &arguments.congestion, found: &found };
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
        let record = place.keep(observation(arguments, title, &tuned, &made))?;
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

/// Whom transfers go to.
struct Asked {
    host: String,
    port: u16,
    /// Who reads there; none where an agent does.
    sink: Option<Sink>,
}

fn asked(arguments: &Arguments) -> Result<Asked, Failure> {
    let Arguments { target, port, sink, .. } = arguments;
    let of =
        |sink: Option<Sink>, usual: u16| Asked { host: target.clone(), port: port.unwrap_or(usual), sink };
    let Some((scheme, rest)) = target.split_once("://") else {
        return Ok(match sink {
            None => of(None, PORT),
            Some(Reads::Discard) => of(Some(Sink::Discard), 9),
            Some(Reads::Iperf3) => of(Some(Sink::Iperf3), 5201),
        });
    };
    if scheme != "http" {
        let help = "http://HOST/PATH; encryption would be measured with the path";
        return Err(Failure::usage(format!("nothing is sent to {scheme}://")).help(help));
    }
    if sink.is_some() || port.is_some() || arguments.reverse {
        return Err(Failure::usage("a URL says what reads and where: without --sink, -p and -R"));
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let unsafe_text = |text: &str| text.chars().any(|c| c.is_control() || c == ' ');
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => {
            (host, port.parse().map_err(|_| Failure::usage(format!("{port:?} is no port")))?)
        }
        _ => (authority, 80),
    };
    if host.is_empty() || unsafe_text(rest) {
        return Err(Failure::usage(format!("{target:?} names no host: expected http://HOST/PATH")));
    }
    let path = if path.is_empty() { "/" } else { path };
    let sink = Some(Sink::Http { host: authority.to_owned(), path: path.to_owned() });
    Ok(Asked { host: host.to_owned(), port, sink })
}

fn config(arguments: &Arguments, segment: u32) -> Result<Config, Failure> {
    if !arguments.omit.0.is_multiple_of(BIN.0) || arguments.time < Duration::from_millis(500) {
        let help = "-t 4 -O 1 is what it takes where round trips are below 100 ms";
        return Err(Failure::usage("expected 0.5 s or more for -t, and tenths of a second for -O").help(help));
    }
    if !(0.01..=50.0).contains(&arguments.tolerance) {
        return Err(Failure::usage("--tolerance: expected 0.01 to 50 %"));
    }
    if arguments.largest < 4 * u64::from(segment) || arguments.largest > 1 << 30 {
        return Err(Failure::usage("--largest: expected room for four segments, and no more than 1 GiB"));
    }
    Ok(Config {
        controls: arguments.congestion.len().max(1),
        segment,
        largest: arguments.largest,
        delay_bound: arguments.max_round_trip,
        tolerance: arguments.tolerance / 100.0,
        trials: arguments.trials.into(),
    })
}

/// What the record keeps.
fn observation(arguments: &Arguments, title: String, tuned: &Tuned, made: &[Made]) -> Observation {
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
            "{} transfers by the TCP of the hosts' kernels, each with another window.",
            made.len()
        ),
        duration: length * made.len() as u64,
        outcome: Outcome { interval: length, bins: made.len(), ..Outcome::default() },
        tests: vec![test],
        figures: tuned.figures(),
    }
}
