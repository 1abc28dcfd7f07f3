//! Command line of the judge.

use netstage_fairness::{Control, Records, packets, report, run, scenario, standard_controls};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;

const USAGE: &str = "usage: netstage-fairness run SEED COUNT FOLDER [--packets N] [NAME=CONTROL]...
       netstage-fairness report FOLDER
       netstage-fairness draw SEED CASE [none | i2vfc | oracle | drr | NAME=CONTROL]

FOLDER receives results.jsonl, report.md and heat maps. A run continues if the folder has results.
--packets N selects the cases, among the first COUNT, whose bottlenecks carry at most N packets in a run.
NAME=CONTROL is a further control of the VPNs, for example gentle='{ kind = \"i2vfc\", increase = 0.01 }'.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["run", seed, count, folder, rest @ ..] => {
            let (limit, laws) = match rest {
                ["--packets", limit, laws @ ..] => (limit.parse().ok(), laws),
                laws => (Some(f64::INFINITY), laws),
            };
            match (seed.parse(), count.parse(), limit) {
                (Ok(seed), Ok(count), Some(limit)) => judge(seed, count, limit, Path::new(folder), laws),
                _ => return usage(),
            }
        }
        ["report", folder] => open(Path::new(folder)).and_then(|records| print(Path::new(folder), &records)),
        ["draw", seed, case, control @ ..] if control.len() < 2 => match (seed.parse(), case.parse()) {
            (Ok(seed), Ok(case)) => draw(seed, case, control.first().copied().unwrap_or("none")),
            _ => return usage(),
        },
        _ => return usage(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn open(folder: &Path) -> Result<Records, String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Records::open(&folder.join("results.jsonl"))
}

/// Returns the standard control of this name, or the control of `NAME=CONTROL`.
fn control(text: &str) -> Result<(String, Control), String> {
    if let Some(standard) = standard_controls().into_iter().find(|(name, _)| name == text) {
        return Ok(standard);
    }
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("unknown control {text}: give NAME=CONTROL"))?;
    Ok((name.to_owned(), Control::Law(value.to_owned())))
}

fn judge(seed: u64, count: u64, limit: f64, folder: &Path, laws: &[&str]) -> Result<(), String> {
    let mut controls = standard_controls();
    for law in laws {
        controls.push(control(law)?);
    }
    let records = Mutex::new(open(folder)?);
    let cases: Vec<u64> = (0..count).filter(|index| packets(seed, *index) <= limit).collect();
    let count = cases.len();
    eprintln!("fairness: seed {seed}, {count} cases, {} controls", controls.len());
    let ended = |complete: usize| {
        eprint!("\r{complete} of {count} cases");
        let _ = std::io::stderr().flush();
    };
    run(seed, cases, &controls, &records, &ended)?;
    eprintln!();
    print(folder, &records.into_inner().expect("no thread panics with the lock"))
}

fn print(folder: &Path, records: &Records) -> Result<(), String> {
    let text = report::text(records);
    print!("{text}");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    write("report.md", &text)?;
    report::heat_maps(records).iter().try_for_each(|(name, svg)| write(&format!("{name}.svg"), svg))
}

fn draw(seed: u64, case: u64, name: &str) -> Result<(), String> {
    print!("{}", scenario(seed, case, &control(name)?.1)?);
    Ok(())
}
