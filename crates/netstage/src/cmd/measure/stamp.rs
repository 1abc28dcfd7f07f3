//! `netstage measure stamp`: STAMP sender for reflectors of netstage or others.

use super::{Family, flows, units};
use crate::exit::{self, FAILED, Failure, INTERRUPTED, OK, VOID};
use netstage_core::measure::lateness::MAX_SHARE;
use netstage_core::measure::stamp::SenderResult;
use netstage_core::time::Duration;
use netstage_host::shared_key::PresharedKey;
use netstage_study::format::quantity;
use netstage_traffic::stamp::{
    self, DelayHistogram, HmacKey, StampSessionConfig, StampSessionResult, Timescale,
};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Default port of a reflector (RFC 8762 section 4.1).
pub const PORT: u16 = 862;
/// Maximum packets of a session.
const MAX_PACKETS: u64 = 10_000_000;
/// Minimum interval between packets, since the operator of the reflector may not have agreed to more.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
/// Quantiles in results, with their names in the text.
const QUANTILES: [(f64, &str); 6] =
    [(0.0, "min"), (0.5, "median"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (1.0, "max")];

const EXAMPLES: &str = "Examples:
  netstage measure stamp router.example
  netstage measure stamp server.example -p 8620 -t 60 -i 10ms --dscp ef
  netstage measure stamp server.example --key-file stamp.key";

/// Options of `measure stamp`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Reflector: `netstage measure serve --stamp`, a router or a TWAMP Light responder
    target: String,
    /// UDP port of the reflector
    #[arg(short = 'p', long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Seconds to send
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "10", value_parser = units::time)]
    time: Duration,
    /// Seconds between packets, at least 1ms
    #[arg(short = 'i', long, value_name = "SECONDS", default_value = "0.1", value_parser = units::time)]
    interval: Duration,
    /// Bytes of extra padding (RFC 8972)
    #[arg(long, value_name = "BYTES")]
    padding: Option<u16>,
    /// Session identifier (RFC 8972)
    #[arg(long, value_name = "N", default_value_t = 0)]
    session: u16,
    /// Accept a stateless reflector: loss per direction is unknown
    #[arg(long)]
    stateless: bool,
    /// DSCP of packets and replies, as 46 or ef
    #[arg(long, value_name = "DSCP", value_parser = flows::dscp)]
    dscp: Option<u8>,
    /// File with the HMAC key for authenticated mode, in hexadecimal
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    #[command(flatten)]
    family: Family,
    /// Print the result, or the error, as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    if arguments.interval < MIN_INTERVAL {
        return Err(Failure::usage("-i is below 1 ms")
            .help("give an interval of 1 ms or more; to load a path, use `netstage measure udp`"));
    }
    let count = arguments.time.0 / arguments.interval.0;
    if !(1..=MAX_PACKETS).contains(&count) {
        return Err(Failure::usage(format!("-t and -i give {count} packets"))
            .help(format!("choose -t and -i for 1 to {MAX_PACKETS} packets")));
    }
    let key = arguments.key_file.as_deref().map(hmac_key).transpose()?;
    let sending = StampSessionConfig {
        source: None,
        timescale: Timescale::Wall,
        target: arguments.family.resolve(&arguments.target, arguments.port)?,
        key,
        traffic_class: arguments.dscp.unwrap_or(0) << 2,
        interval: arguments.interval,
        count: count as u32,
        timeout: Duration::from_secs(2),
        session: arguments.session,
        padding: arguments.padding,
        reflector_is_stateful: !arguments.stateless,
    };
    let stop = crate::cmd::run::watch_interrupt()?;
    let target = sending.target;
    if !arguments.json {
        let every = quantity(arguments.interval.as_secs_f64(), "s");
        let mode = if sending.key.is_some() { "authenticated" } else { "unauthenticated" };
        exit::print(format!("STAMP to {target}, {mode}: {count} packets, one every {every}\n").as_bytes())?;
    }
    let found = stamp::run(&sending, &stop, |_| {})
        .map_err(|error| Failure::run(format!("cannot send to {target}: {error}")))?;
    let code = match (found.interrupted, found.counts.answered) {
        (true, _) => INTERRUPTED,
        (false, 0) => FAILED,
        _ if found.clock_change.found().is_some() || is_short(&found.counts) => VOID,
        _ => OK,
    };
    let text = if arguments.json { format!("{:#}\n", document(&found, code)) } else { summary(&found) };
    exit::print(text.as_bytes())?;
    Ok(code)
}

/// Reads the key for authenticated mode.
pub fn hmac_key(path: &Path) -> Result<HmacKey, Failure> {
    super::warn_of_readers(path);
    let key = PresharedKey::read(path).map_err(|error| {
        Failure::usage(error.to_string())
            .help("generate a key with `openssl rand -hex 16`; both hosts need the same key")
    })?;
    Ok(HmacKey::new(key.bytes()))
}

fn summary(found: &StampSessionResult) -> String {
    let counts = &found.counts;
    let unanswered =
        counts.lost_forward + counts.lost_backward + counts.lost_unattributed + counts.outstanding;
    let mut text = format!("\n{} sent, {} answered", counts.sent, counts.answered);
    if unanswered > 0 {
        let _ = write!(
            text,
            ", lost: {} forward, {} backward, {} in an unknown direction",
            counts.lost_forward,
            counts.lost_backward,
            counts.lost_unattributed + counts.outstanding
        );
    }
    if counts.reordered > 0 {
        let _ = write!(text, ", {} reordered", counts.reordered);
    }
    text.push('\n');
    let clocks = match found.uncertainty_ns {
        Some(error) => format!("; clock error ± {} as reported by both hosts", nanoseconds(error as i64)),
        None => "; clocks not synchronized, use the variation".into(),
    };
    let [one_way, other_way] = one_way(found);
    let (forward, backward) = (one_way.above_min(), other_way.above_min());
    for (name, delays, note) in [
        ("round trip", &found.round_trip, ""),
        ("forward delay", &one_way, clocks.as_str()),
        ("backward delay", &other_way, clocks.as_str()),
        ("forward variation (PDV)", &forward, ""),
        ("backward variation (PDV)", &backward, ""),
        ("reflector turnaround", &found.at_reflector, ""),
        ("send lateness", &found.lateness, ""),
    ] {
        // A quantile of too few delays is left out.
        let known = QUANTILES.iter().zip(QUANTILES.map(|(share, _)| delays.quantile(share)));
        let shown = known.filter_map(|((_, name), delay)| Some(format!("{name} {}", nanoseconds(delay?))));
        let shown: Vec<String> = shown.collect();
        if !shown.is_empty() {
            let _ = writeln!(text, "  {name}: {}{note}", shown.join(", "));
        }
    }
    for warning in warnings(found) {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

/// Returns the one-way delays, which are unknown if the clocks changed against each other.
fn one_way(found: &StampSessionResult) -> [DelayHistogram; 2] {
    match found.clock_change.found() {
        Some(_) => Default::default(),
        None => [found.forward.clone(), found.backward.clone()],
    }
}

/// Returns whether the sender skipped more packets than a measurement may.
fn is_short(counts: &SenderResult) -> bool {
    f64::from(counts.skipped) > MAX_SHARE * f64::from(counts.sent + counts.skipped)
}

fn warnings(found: &StampSessionResult) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some((count, reason)) = &found.failed_sends {
        warnings.push(format!("{count} packets were not sent: {reason}"));
    }
    if is_short(&found.counts) {
        let SenderResult { sent, skipped, .. } = found.counts;
        let late = found
            .lateness
            .quantile(1.0)
            .map_or_else(String::new, |late| format!(", at most by {}", nanoseconds(late)));
        warnings.push(format!(
            "{skipped} of {} packets were not sent, because the sender was late{late}; what happened to them is unknown",
            sent + skipped
        ));
    }
    if let Some(change) = found.clock_change.found() {
        warnings.push(format!(
            "the clocks of the two hosts changed against each other by at least {}: one of them was set, or they run at \
             different rates; one-way delays and their variation are unknown",
            nanoseconds(change as i64)
        ));
    }
    if found.counts.rejected > 0 {
        let reason = found.rejection.as_deref().unwrap_or("unknown reason");
        warnings.push(format!("{} replies were rejected: {reason}", found.counts.rejected));
    }
    if found.counts.answered == 0 && found.counts.sent > 0 {
        warnings.push(
            "no reply; check that a reflector runs on this port, in the same mode and with the same key"
                .into(),
        );
    }
    warnings
}

fn document(found: &StampSessionResult, code: u8) -> Value {
    let delays = |delays: &DelayHistogram| {
        let [min, p50, p90, p99, p999, max] = QUANTILES.map(|(share, _)| delays.quantile(share));
        min.map(|min| {
            json!({
                "count": delays.count(), "min_ns": min, "p50_ns": p50, "p90_ns": p90, "p99_ns": p99,
                "p999_ns": p999, "max_ns": max,
            })
        })
    };
    let [forward, backward] = one_way(found);
    json!({
        "version": 1,
        "tool": concat!("netstage ", env!("CARGO_PKG_VERSION")),
        "exit": code,
        "counts": found.counts,
        "round_trip": delays(&found.round_trip),
        "forward": delays(&forward),
        "backward": delays(&backward),
        "forward_variation": delays(&forward.above_min()),
        "backward_variation": delays(&backward.above_min()),
        "at_reflector": delays(&found.at_reflector),
        "late": delays(&found.lateness),
        "one_way_uncertainty_ns": found.uncertainty_ns,
        "clock_change_ns": found.clock_change.found(),
        "own_clock_synchronized": found.local_clock.map(|clock| clock.synchronized),
        "interrupted": found.interrupted,
        "warnings": warnings(found),
    })
}

fn nanoseconds(ns: i64) -> String {
    quantity(ns as f64 / 1e9, "s")
}
