//! `netstage pe replay`: repeats a router's decisions from a trace and compares them.

use super::json;
use crate::cmd::table::{Table, counted};
use crate::exit::{EXPECTATION, Failure, OK, print};
use netstage_pe::replay::{self, ReplayResult};
use netstage_pe::trace;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "Examples:
  netstage pe replay west.trace";

/// Options of `pe replay`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Trace written by `netstage pe run --trace FILE`
    trace: PathBuf,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let outcome = replay(&arguments.trace)?;
    let text = match arguments.json {
        true => json(&outcome)?,
        false => as_text(&outcome),
    };
    print(text.as_bytes())?;
    Ok(if outcome.difference.is_some() { EXPECTATION } else { OK })
}

fn replay(path: &Path) -> Result<ReplayResult, Failure> {
    let unreadable = |error: trace::TraceFileError| Failure::usage(format!("{} {error}", path.display()));
    let file = File::open(path).map_err(|error| unreadable(trace::TraceFileError::Io(error)))?;
    replay::replay(BufReader::new(file)).map_err(unreadable)
}

fn as_text(outcome: &ReplayResult) -> String {
    let heads =
        ["VPN", "peer", ">packets", ">dropped", ">sent", ">lost", ">queries", ">replies", ">final window"];
    let mut table = Table::new(&heads);
    for flow in &outcome.flows {
        table.row([
            flow.vpn.clone(),
            flow.peer.clone(),
            flow.packets.to_string(),
            flow.refused.to_string(),
            flow.sent.to_string(),
            flow.lost.to_string(),
            flow.queries.to_string(),
            flow.replies.to_string(),
            flow.window.map_or("-".into(), |window| format!("{window:.3}")),
        ]);
    }
    let mut text = table.text();
    let verdict = match &outcome.difference {
        None => "all match the trace".to_owned(),
        Some(difference) => format!("the last one differs from the trace:\n{difference}"),
    };
    let decisions = counted(outcome.decisions as usize, "decision");
    text.push_str(&format!("\n{:.3} s, {decisions}, {verdict}\n", outcome.seconds));
    if outcome.is_cut {
        text.push_str("the last line of the trace is incomplete: the router was killed\n");
    }
    text
}
