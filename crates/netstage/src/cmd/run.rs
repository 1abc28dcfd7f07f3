//! `netstage run`: runs a scenario, writes its record and report, and prints a summary.

use super::Chosen;
use crate::exit::{self, Failure};
use crate::means::means;
use crate::summary;
use indicatif::{ProgressBar, ProgressStyle};
use netstage_scenario::Scenario;
use netstage_stage::hosts;
use netstage_study::stage::{self, Backend};
use netstage_study::{Observer, Options, Progress, Runner, TOOL, page, report};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const EXAMPLES: &str = "Examples:
  netstage run scenarios/examples/two-hosts.toml
  netstage run fair.toml --vary flow.bulk.count=2,10 --repeat 5 --out out/fair
  netstage run fair.toml --on emu";

/// Options of `run`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    chosen: Chosen,
    /// sim (simulator), emu (network namespaces of this host) or live (hosts of a fleet)
    #[arg(long, value_name = "STAGE", default_value = "sim", hide_possible_values = true)]
    on: Stage,
    /// Link emulator for --on emu: own (netstage), netem (kernel), or mixed (netem where it can)
    #[arg(long, value_name = "EMULATOR", default_value = "own", hide_possible_values = true)]
    emulator: Emulator,
    #[command(flatten)]
    fleet: super::fleet::Folder,
    /// Folder of the record [default: out/NAME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Parallel runs [default: one per core with --on sim, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Repeat void runs up to N times, and void trials of a test up to N but at least 2 times
    #[arg(long, value_name = "N", default_value_t = 0)]
    retries: u32,
    /// Print the result, or the error, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Stage {
    /// Simulator, in virtual time
    Sim,
    /// Real packets between network namespaces of this host, in real time
    Emu,
    /// Real packets between hosts of a fleet as placed in `[place]`, in real time
    Live,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Emulator {
    /// Emulator of netstage
    Own,
    /// netem of the kernel, for all links; an error if one cannot be emulated exactly
    Netem,
    /// netem for links it can emulate exactly, netstage for the others
    Mixed,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let scenario = arguments.chosen.load()?;
    let out = arguments.out.clone().unwrap_or_else(|| PathBuf::from("out").join(arguments.chosen.name()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Parallel runs in real time would compete for the CPU, so they run one after another.
    let (name, jobs, runner): (_, _, Box<Runner>) = match (arguments.on, arguments.emulator) {
        (Stage::Sim, Emulator::Own) => ("sim", cores, Box::new(stage::sim)),
        (Stage::Sim, _) => {
            return Err(Failure::usage("--emulator has no effect in the simulator")
                .help("use --emulator with --on emu"));
        }
        (Stage::Live, Emulator::Own) => {
            let means = hosts::Means::new(arguments.fleet.open()?, &out);
            ("live", 1, Box::new(stage::live(means)))
        }
        (Stage::Live, _) => {
            return Err(
                Failure::usage("--emulator has no effect on real hosts").help("use --emulator with --on emu")
            );
        }
        (Stage::Emu, emulator) => {
            let (name, backend) = match emulator {
                Emulator::Own => ("emu", Backend::Own),
                Emulator::Netem => ("emu-netem", Backend::Netem),
                Emulator::Mixed => ("emu-mixed", Backend::Mixed),
            };
            let means = means(&out, backend)?;
            (name, 1, Box::new(stage::emu(means)))
        }
    };
    let options = Options {
        out,
        jobs: arguments.jobs.map_or(jobs, usize::from),
        retries: arguments.retries,
        stage: name.into(),
        tool: TOOL.into(),
    };
    to_record(&scenario, &*runner, &options, arguments.json)
}

/// Runs a scenario, writes record and report, and prints the summary.
pub(super) fn to_record(
    scenario: &Scenario,
    runner: &Runner,
    options: &Options,
    as_json: bool,
) -> Result<u8, Failure> {
    let interrupted = watch_interrupt()?;
    let mut bar = Bar::new();
    let result = netstage_study::run(scenario, runner, options, &mut bar, &interrupted);
    bar.bar.finish_and_clear();
    let record = result?;
    let path = record.folder.join(page::NAME);
    page::write(&path, &report::report(&record)).map_err(|e| Failure::write(&path, &e))?;
    let code = exit::of(&record);
    if as_json {
        let result = json!({
            "exit": code,
            "out": options.out,
            "report": path,
            "environment": record.environment,
            "record": record.data,
        });
        exit::print(format!("{result:#}\n").as_bytes())?;
    } else {
        exit::print(summary::text(&report::report(&record), Some(&path)).as_bytes())?;
    }
    Ok(code)
}

/// Returns a flag that the first interrupt sets. A second interrupt ends the process immediately.
pub(super) fn watch_interrupt() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let handler = move || {
        if set.swap(true, Ordering::Relaxed) {
            std::process::exit(exit::INTERRUPTED.into());
        }
    };
    ctrlc::set_handler(handler)
        .map_err(|e| Failure::usage(format!("cannot install a signal handler: {e}")))?;
    Ok(flag)
}

/// Steps of the progress bar per run.
const PARTS: u64 = 100;

/// Progress bar on stderr; hidden unless stderr is a terminal.
struct Bar {
    bar: ProgressBar,
}

impl Bar {
    fn new() -> Bar {
        let style = ProgressStyle::with_template("{bar:32} {prefix} runs  {elapsed}{msg}")
            .expect("a constant template");
        Bar { bar: ProgressBar::no_length().with_style(style.progress_chars("━╸─")) }
    }
}

impl Observer for Bar {
    fn progress(&mut self, progress: Progress) {
        self.bar.set_prefix(format!("{}/{}", progress.done, progress.total));
        self.bar.set_length(progress.total as u64 * PARTS);
        self.bar.set_position(((progress.done as f64 + progress.under_way) * PARTS as f64) as u64);
        let left = progress.left.map(|left| {
            let left = indicatif::HumanDuration(Duration::from_secs(left.as_secs() + 1));
            format!(", about {left} remaining")
        });
        let doing = if progress.doing.is_empty() { String::new() } else { format!(": {}", progress.doing) };
        self.bar.set_message(format!("{}{doing}", left.unwrap_or_default()));
        self.bar.tick();
    }
}
