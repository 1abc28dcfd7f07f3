//! Checks of random sweeps: the check of all cells at once equals the check of each cell by itself.

use crate::draw::{Draw, network};
use netstage_scenario::{Errors, LoadOptions, parse};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    source: String,
    /// Line and column, unless the source is an option: a value has one option in a sweep, and another in a cell by itself.
    place: Option<(usize, usize)>,
    /// Text at the place.
    text: String,
    message: String,
    help: Option<String>,
}

/// Swept path, and its values as text.
type Axis = (String, Vec<String>);

/// Draws a scenario, or chooses one of a folder, and sweeps one or two of its values. Returns whether the sweep has faults,
/// or how its check differs from the checks of its cells by themselves.
pub fn sweep_difference(seed: u64, folder: &Path) -> Result<bool, String> {
    let mut draw = Draw::new(seed, "sweep");
    let (folder, text) = if draw.one_in(2) {
        (folder.to_owned(), network(seed).file())
    } else {
        let file = draw.pick(&files(folder));
        let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        (file.parent().unwrap_or(folder).to_owned(), without_study(&text))
    };
    let mut axes = vec![axis(&mut draw, &text)];
    if draw.one_in(3) {
        axes.push(axis(&mut draw, &text));
        axes.dedup_by(|a, b| a.0 == b.0);
    }
    let check = |sets: Vec<(String, String)>, vary: Vec<Axis>| {
        let options = LoadOptions { sets, vary, repeat: Some(1), ..LoadOptions::default() };
        parse("swept.toml", &text, Some(&folder), &options)
    };
    let base = check(Vec::new(), Vec::new()).map_err(|errors| format!("the unchanged file: {errors}"))?;
    let mut warnings: BTreeSet<String> = base.warnings.into_iter().collect();
    let (mut plans, mut faults) = (Vec::new(), BTreeSet::new());
    for sets in cells(&axes) {
        match check(sets, Vec::new()) {
            Ok(scenario) => {
                warnings.extend(scenario.warnings);
                plans.extend(scenario.cells.into_iter().map(|cell| cell.plan));
            }
            Err(errors) => faults.extend(self::faults(&errors)),
        }
    }
    let found = match check(Vec::new(), axes.clone()) {
        Ok(_) if !faults.is_empty() => format!("the sweep has no fault, but its cells have {faults:#?}"),
        Ok(swept) => {
            let swept_warnings: BTreeSet<String> = swept.warnings.into_iter().collect();
            let differs = |(a, b): (&netstage_scenario::Cell, &netstage_scenario::plan::Plan)| a.plan != *b;
            match swept.cells.len() == plans.len() {
                false => format!("{} cells, not {}", swept.cells.len(), plans.len()),
                true if swept.cells.iter().zip(&plans).any(differs) => "the plans differ".to_owned(),
                true if swept_warnings != warnings => {
                    format!("warnings {swept_warnings:#?}, not {warnings:#?}")
                }
                true => return Ok(false),
            }
        }
        Err(errors) => {
            let swept: BTreeSet<Fault> = self::faults(&errors).into_iter().collect();
            let places = errors.problems.iter().map(|fault| (fault.source, fault.span.start, &fault.message));
            // A fault of several cells has the help of the first.
            let without_help = |faults: &BTreeSet<Fault>| -> BTreeSet<Fault> {
                faults.iter().map(|fault| Fault { help: None, ..fault.clone() }).collect()
            };
            match swept.is_subset(&faults) && without_help(&swept) == without_help(&faults) {
                true if places.collect::<BTreeSet<_>>().len() == errors.problems.len() => return Ok(true),
                true => format!("a fault is reported twice: {errors}"),
                false => format!("faults {swept:#?}, not {faults:#?}"),
            }
        }
    };
    Err(format!("seed {seed}, sweep of {axes:?}: {found}\n{text}"))
}

fn faults(errors: &Errors) -> Vec<Fault> {
    let fault = |problem: &netstage_scenario::FileProblem| {
        let source = errors.source_of(problem);
        Fault {
            source: source.name.clone(),
            place: (source.name != "command line").then_some((problem.line, problem.column)),
            text: source.text.get(problem.span.clone()).unwrap_or_default().to_owned(),
            message: problem.message.clone(),
            help: problem.help.clone(),
        }
    };
    errors.problems.iter().map(fault).collect()
}

/// Returns the values of each cell.
fn cells(axes: &[Axis]) -> Vec<Vec<(String, String)>> {
    axes.iter().fold(vec![Vec::new()], |cells, (path, values)| {
        let extended = |cell: Vec<(String, String)>| {
            values.iter().map(move |value| [&cell[..], &[(path.clone(), value.clone())]].concat())
        };
        cells.into_iter().flat_map(extended).collect()
    })
}

/// Returns the scenario files in a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![path],
        })
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    found.sort();
    found
}

/// Removes the tables of a file that refer to cells.
fn without_study(text: &str) -> String {
    let mut keeps = true;
    let keep = |line: &&str| {
        if line.starts_with('[') {
            let of_cells = ["[expect.", "[plot.", "[variant.", "[sweep]"];
            keeps = !of_cells.iter().any(|header| line.starts_with(header));
        }
        keeps
    };
    text.lines().filter(keep).map(|line| format!("{line}\n")).collect()
}

/// Draws a path of a file, and valid and invalid values.
fn axis(draw: &mut Draw, text: &str) -> Axis {
    let fields = fields(text);
    let (path, own) = draw.pick(&fields);
    let parts: Vec<&str> = path.split('.').collect();
    let path = match parts[..] {
        [section, _, key] if section != "defaults" && draw.one_in(3) => format!("{section}.*.{key}"),
        [section, name, key] if section != "defaults" && draw.one_in(8) => format!("{section}.{name}x.{key}"),
        ["link" | "vpn" | "flow" | "node", _, key] if draw.one_in(4) => {
            format!("defaults.{}.{key}", parts[0])
        }
        _ if draw.one_in(6) => {
            let paths = ["scenario.duration", "defaults.tcp.window", "link.*.delay", "flow.*.start"];
            draw.pick(&paths).to_owned()
        }
        _ => path.clone(),
    };
    let key = path.rsplit('.').next().unwrap_or_default();
    let similar: Vec<&String> = fields
        .iter()
        .filter(|(path, _)| path.ends_with(&format!(".{key}")))
        .map(|(_, value)| value)
        .collect();
    let usual =
        ["1", "0.5", "3 Mbit/s", "40 ms", "2 s", "30 s", "30 packets", "9 kB", "true", "{}", "x", "-1"];
    let mut values = vec![own];
    for _ in 0..draw.between(1, 5) {
        let of_this_field = !similar.is_empty() && draw.one_in(2);
        values.push(if of_this_field { draw.pick(&similar).clone() } else { draw.pick(&usual).to_owned() });
    }
    let mut known = BTreeSet::new();
    let label =
        |value: &str| value.parse::<f64>().map_or(value.trim_matches('"').to_owned(), |n| n.to_string());
    values.retain(|value| known.insert(label(value)));
    (path, values)
}

/// Returns the paths and values of the fields of a file that are on one line.
fn fields(text: &str) -> Vec<(String, String)> {
    let mut table = String::new();
    let mut fields = Vec::new();
    for line in text.lines() {
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            table = header.to_owned();
        } else if let Some((key, value)) = line.split_once(" = ") {
            let is_key = key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            // The seeds and repeats of the file apply to all cells.
            if is_key && !value.ends_with('[') && !["seed", "repeat", "description"].contains(&key) {
                fields.push((format!("{table}.{key}"), value.to_owned()));
            }
        }
    }
    fields
}
