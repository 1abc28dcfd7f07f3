//! `netstage run`: runs a scenario, writes its record and report, and prints a summary.

use super::ScenarioOptions;
use crate::exit::{self, Failure};
use crate::stages::{self, Ready};
use crate::summary;
use indicatif::{ProgressBar, ProgressStyle};
use netstage_scenario::Scenario;
use netstage_study::{
    Observer, PlanRunner, StoredRecord, StudyError, StudyOptions, StudyProgress, TOOL, folders, page, report,
};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "Examples:
  netstage run scenarios/examples/two-hosts.toml
  netstage run fair.toml --vary flow.bulk.count=2,10 --repeat 5 --out out/fair
  netstage run fair.toml --on emu";

/// Options of `run`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    #[command(flatten)]
    chosen: ScenarioOptions,
    #[command(flatten)]
    stage: stages::StageOptions,
    /// Folder of the record [default: out/NAME, or the first free of out/NAME-2, …]
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

/// Settings of a run.
#[derive(Default)]
pub(super) struct RunSettings {
    /// Folder of the record; by default the first usable one below `out`.
    pub out: Option<PathBuf>,
    /// Number of parallel runs; by default that of the stage.
    pub jobs: Option<u16>,
    /// Maximum number of repeats of a void run.
    pub retries: u32,
    /// The result is printed as JSON.
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let scenario = arguments.chosen.load()?;
    let Arguments { out, jobs, retries, json, .. } = arguments;
    let settings = RunSettings { out: out.clone(), jobs: *jobs, retries: *retries, json: *json };
    record(&scenario, arguments.chosen.name(), &settings, |out| arguments.stage.ready(out))
}

/// Runs a scenario called `name` on the stage that `ready` returns, writes record and report, and prints the summary.
pub(super) fn record(
    scenario: &Scenario,
    name: &Path,
    settings: &RunSettings,
    ready: impl Fn(&Path) -> Result<Ready, Failure>,
) -> Result<u8, Failure> {
    let interrupted = watch_interrupt()?;
    let attempt = |out: PathBuf| {
        let (stage, jobs, runner) = ready(&out)?;
        let options = StudyOptions {
            out,
            jobs: settings.jobs.map_or(jobs, usize::from),
            retries: settings.retries,
            stage: stage.into(),
            tool: TOOL.into(),
        };
        Ok::<_, Failure>(perform(scenario, &*runner, &options, Bar::new(), &interrupted))
    };
    let Some(out) = &settings.out else {
        for out in folders(&PathBuf::from("out").join(name)) {
            match attempt(out)? {
                Err(StudyError::Occupied { .. } | StudyError::InUse { .. }) => {}
                record => return show(&record?, settings.json),
            }
        }
        return Err(
            Failure::usage("all default folders of the record are in use").help("choose one with --out")
        );
    };
    show(&attempt(out.clone())??, settings.json)
}

/// Runs a scenario, writes record and report, and prints the summary.
#[cfg(feature = "full")]
pub(super) fn to_record(
    scenario: &Scenario,
    runner: &PlanRunner,
    options: &StudyOptions,
    as_json: bool,
) -> Result<u8, Failure> {
    // Errors as JSON are the only text on stderr.
    let bar = if as_json { Bar::new() } else { Bar::with_lines() };
    let record = perform(scenario, runner, options, bar, &*watch_interrupt()?)?;
    write_incorrect_packets(&record)?;
    show(&record, as_json)
}

/// File of the frames with which the faults of packets of a record are illustrated.
#[cfg(feature = "full")]
const INCORRECT_PACKETS: &str = "incorrect.pcapng";

/// Writes the first frame with each kind of fault of each trial, if there are any.
#[cfg(feature = "full")]
fn write_incorrect_packets(record: &StoredRecord) -> Result<(), Failure> {
    let trials = record.data.cells.iter().flat_map(|cell| &cell.tests).flat_map(|test| &test.outcome.trials);
    let frames: Vec<Vec<u8>> = trials
        .flat_map(|trial| &trial.faults)
        .filter(|fault| !fault.bytes.is_empty())
        .map(|fault| {
            let digits = fault.bytes.as_bytes().as_chunks::<2>().0.iter();
            digits.filter_map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()).collect()
        })
        .collect();
    if frames.is_empty() {
        return Ok(());
    }
    let path = record.folder.join(INCORRECT_PACKETS);
    let written =
        netstage_host::ports::pcapng::write_frames(&path, "router", frames.iter().map(Vec::as_slice));
    written.map_err(|error| Failure::write(&path, &error))
}

/// Runs a scenario with a progress bar.
fn perform(
    scenario: &Scenario,
    runner: &PlanRunner,
    options: &StudyOptions,
    mut bar: Bar,
    interrupted: &AtomicBool,
) -> Result<StoredRecord, StudyError> {
    let record = netstage_study::run(scenario, runner, options, &mut bar, interrupted);
    bar.bar.finish_and_clear();
    if let Err(StudyError::Interrupted { folder, .. }) = &record {
        summary::print_kept_trials(folder);
    }
    record
}

/// Writes the report of a record, prints its summary, and returns the exit code.
fn show(record: &StoredRecord, as_json: bool) -> Result<u8, Failure> {
    let path = record.folder.join(page::NAME);
    let data = report::report(record);
    page::write(&path, &data).map_err(|e| Failure::write(&path, &e))?;
    let code = exit::of(record);
    if as_json {
        let result = json!({
            "exit": code,
            "out": record.folder,
            "report": path,
            "environment": record.environment,
            "record": record.data,
        });
        exit::print(format!("{result:#}\n").as_bytes())?;
    } else {
        exit::print(
            summary::text(&data, Some(&path), Some(std::slice::from_ref(&record.folder))).as_bytes(),
        )?;
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

/// Time between lines of progress.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Progress bar on stderr; hidden unless stderr is a terminal.
struct Bar {
    bar: ProgressBar,
    /// Time of the next line of progress, if stderr is no terminal and lines replace the bar.
    next_line: Option<Instant>,
}

impl Bar {
    fn new() -> Bar {
        let style = ProgressStyle::with_template("{bar:32} {prefix} runs  {elapsed}{msg}")
            .expect("a constant template");
        let bar = ProgressBar::no_length().with_style(style.progress_chars("━╸─"));
        Bar { bar, next_line: None }
    }

    /// Creates a bar that prints lines, 30 s apart, if stderr is no terminal.
    #[cfg(feature = "full")]
    fn with_lines() -> Bar {
        let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        let next_line = (!is_terminal).then(|| Instant::now() + LINE_INTERVAL);
        Bar { next_line, ..Bar::new() }
    }

    /// Prints a line of progress if it is due.
    fn print_line(&mut self, text: &str) {
        let now = Instant::now();
        if self.next_line.is_some_and(|due| now >= due) {
            self.next_line = Some(now + LINE_INTERVAL);
            eprintln!("progress: {text}");
        }
    }
}

impl Observer for Bar {
    fn progress(&mut self, progress: StudyProgress) {
        self.bar.set_prefix(format!("{}/{}", progress.done, progress.total));
        self.bar.set_length(progress.total as u64 * PARTS);
        self.bar.set_position(((progress.done as f64 + progress.in_progress) * PARTS as f64) as u64);
        let left = progress.remaining.map(|left| {
            let left = indicatif::HumanDuration(Duration::from_secs(left.as_secs() + 1));
            format!(", about {left} remaining")
        });
        let doing =
            if progress.activity.is_empty() { String::new() } else { format!(": {}", progress.activity) };
        let message = format!("{}{doing}", left.unwrap_or_default());
        self.print_line(&format!("{} of {} runs{message}", progress.done, progress.total));
        self.bar.set_message(message);
        self.bar.tick();
    }
}
