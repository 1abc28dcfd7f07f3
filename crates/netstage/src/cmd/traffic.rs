//! `netstage traffic learn`: fits a traffic model to a capture.

use crate::exit::{self, Failure, OK};
use netstage_scenario::learned::{GoodnessOfFit, HeldOutFit};
use netstage_traffic::learn::{Filter, LearnError, LearnedApplication, learn};
use serde_json::json;
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

/// Subcommands of `traffic`.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Fit a model to a pcap or pcapng capture, for traffic = { model = "learned" }
    Learn(Learn),
}

const EXAMPLES: &str = "Examples:
  netstage traffic learn dns.pcap --flow 'udp port 53' --output dns.json";

/// Options of `traffic learn`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Learn {
    /// Capture file
    capture: PathBuf,
    /// Model file to write [default: CAPTURE with the extension .json]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Flows to use, as 'udp port 53 host 192.0.2.1' [default: the service with the most bytes]
    #[arg(long, value_name = "FILTER")]
    flow: Option<Filter>,
    /// Print the fit, or the error, as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(command: &Command) -> Result<u8, Failure> {
    let Command::Learn(arguments) = command;
    let path = &arguments.capture;
    let file = File::open(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let lesson =
        learn(&name, BufReader::with_capacity(1 << 20, file), arguments.flow.as_ref()).map_err(|error| {
            let failure = Failure::usage(format!("{}: {error}", path.display()));
            match error {
                LearnError::NoMatchingFlow(_) => {
                    failure.help("combine tcp, udp, port N and host ADDRESS, as --flow 'udp port 53'")
                }
                _ => failure,
            }
        })?;
    let output = arguments.output.clone().unwrap_or_else(|| path.with_extension("json"));
    std::fs::write(&output, lesson.file.to_json()).map_err(|error| Failure::write(&output, &error))?;
    let text = if arguments.json {
        let found = json!({
            "out": output,
            "subject": lesson.subject,
            "read": lesson.file.read,
            "fit": lesson.file.fit,
            "warnings": lesson.warnings,
        });
        format!("{found:#}\n")
    } else {
        summary(&lesson) + &format!("model: {}\n", output.display())
    };
    exit::print(text.as_bytes())?;
    Ok(OK)
}

/// Meaning of the comparison below it.
const HELD_OUT: &str = "Held-out test: the capture is divided into 5 parts in time. KS is the maximum distance of the distribution
function of a part from that of a model of the other 4, of the part that fits worst. If samples are
independent and have one distribution, it exceeds the limit with a probability of at most 1 %.";

fn summary(lesson: &LearnedApplication) -> String {
    let read = &lesson.file.read;
    let mut text = format!(
        "Fitted to {}: {} packets in {} flows ({} other packets, {} malformed)\n\n",
        lesson.subject, read.used, read.flows, read.other, read.broken
    );
    let _ = writeln!(
        text,
        "{:10} {:>8} {:>12} {:>7} {:>7}  {:>4} {:>8} {:>7} {:>7}",
        "", "samples", "mean", "CV", "lag 1", "part", "samples", "KS", "limit"
    );
    for fit in &lesson.file.fit {
        let held_out = match &fit.held_out {
            HeldOutFit::Tested { part, parts, samples, distance, limit, .. } => {
                let verdict = if fit.held_out.differs() { "differs" } else { "fits" };
                format!("{part:>2}/{parts} {samples:>8} {distance:>7.4} {limit:>7.4} {verdict}")
            }
            HeldOutFit::NotTested { reason } => format!("not tested: {reason}"),
        };
        let _ = writeln!(
            text,
            "{:10} {:>8} {:>12} {:>7.3} {:>7.3}  {held_out}",
            fit.quantity,
            fit.samples,
            mean(fit),
            fit.variation,
            fit.autocorrelation,
        );
    }
    let _ = writeln!(text, "\n{HELD_OUT}\n");
    for warning in &lesson.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    text
}

fn mean(fit: &GoodnessOfFit) -> String {
    match fit.unit.as_str() {
        "s" => format!("{:.3} ms", fit.mean * 1e3),
        "bytes" => format!("{:.0} B", fit.mean),
        _ => format!("{:.1}", fit.mean),
    }
}
