//! From text and options to a checked scenario.

use crate::build::Builder;
use crate::error::{Errors, Place, Problems};
use crate::file::expand::expand;
use crate::file::{File, MOST_SEED, apply_defaults, root_kind};
use crate::judge::Judge;
use crate::plan::Plan;
use crate::set::assign;
use crate::sweep::{CellTree, cells};
use crate::table::Decode;
use crate::trace::Traces;
use crate::tree::{Node, Table, Value, document, parse_argument, parse_document};
use crate::{Cell, Scenario};
use std::collections::BTreeSet;
use std::path::Path;

/// What the command line changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `--set path=value`, in order.
    pub sets: Vec<(String, String)>,
    /// `--vary path=value,value,…`: sweeps this path, in place of what the file says of it.
    pub vary: Vec<(String, Vec<String>)>,
    /// `--seed N`.
    pub seed: Option<u64>,
    /// `--repeat N`.
    pub repeat: Option<u32>,
}

/// A scenario file larger than this is not one.
const MOST_BYTES: u64 = 16 << 20;

/// Reads and checks a scenario file. Trace files are looked for beside it.
pub fn load(path: &Path, options: &Options) -> Result<Scenario, Errors> {
    let text = read_text(path, "scenario")?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    parse(&path.display().to_string(), &text, Some(folder), options)
}

/// Reads and checks a daemon's configuration, which `build` makes of what is written.
pub(crate) fn configuration<F: Decode, T>(
    name: &str,
    text: &str,
    build: impl FnOnce(&F, &mut Problems) -> Option<T>,
) -> Result<T, Errors> {
    let mut problems = Problems::default();
    problems.add_source(name, text);
    let root = parse_document(0, &mut problems);
    if problems.is_empty()
        && let Some(file) = F::decode(&root, &mut problems)
        && let Some(built) = build(&file, &mut problems)
        && problems.is_empty()
    {
        return Ok(built);
    }
    if problems.is_empty() {
        problems.push(Place::new(0, 0..0), "the configuration cannot be used");
    }
    Err(problems.into_errors())
}

/// The text of a file that is said to be a `what`.
pub(crate) fn read_text(path: &Path, what: &str) -> Result<String, Errors> {
    let name = path.display().to_string();
    let fail = |message: String| {
        let mut problems = Problems::default();
        problems.add_source(name.clone(), "");
        problems.push(Place::new(0, 0..0), message);
        problems.into_errors()
    };
    match std::fs::metadata(path) {
        Err(error) => return Err(fail(format!("cannot read the file: {error}"))),
        Ok(found) if found.len() > MOST_BYTES => {
            return Err(fail(format!("a file this large is not a {what}")));
        }
        Ok(_) => {}
    }
    let bytes = std::fs::read(path).map_err(|error| fail(format!("cannot read the file: {error}")))?;
    String::from_utf8(bytes).map_err(|error| {
        let line =
            error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count() + 1;
        fail(format!("the file is not UTF-8 text (line {line})"))
    })
}

/// Reads and checks a scenario. `base` is the folder that trace files are relative to;
/// without one, naming a trace file is an error.
pub fn parse(name: &str, text: &str, base: Option<&Path>, options: &Options) -> Result<Scenario, Errors> {
    let mut problems = Problems::default();
    problems.add_source(name, text);
    match check(text, base, options, &mut problems) {
        Some(scenario) if problems.is_empty() => Ok(scenario),
        _ => Err(problems.into_errors()),
    }
}

fn check(text: &str, base: Option<&Path>, options: &Options, problems: &mut Problems) -> Option<Scenario> {
    if text.len() as u64 > MOST_BYTES {
        problems.push(Place::new(0, 0..0), "a text this large is not a scenario");
        return None;
    }
    let mut root = parse_document(0, problems);
    if !problems.is_empty() {
        return None;
    }
    let changed = apply_options(&mut root, options, problems);
    let mut warnings = BTreeSet::new();
    let mut traces = Traces::new(base);
    let (file, plan) = build(root.clone(), problems, &mut warnings, &mut traces);
    let file = file?;
    let trees = cells(&root, &file, problems);
    if plan.is_none() || !problems.is_empty() {
        // Metrics and the like can be checked without cells.
        let mut judge = Judge::new(&[], problems, false);
        judge.expectations(&file);
        judge.plots(&file);
        return None;
    }
    let cells = plans(trees, plan, problems, &mut warnings, &mut traces);
    let mut judge = Judge::new(&cells, problems, changed);
    let expectations = judge.expectations(&file);
    let plots = judge.plots(&file);
    for (table, name, reason) in judge.left_out {
        leave_out(&mut root, table, &name);
        warnings.insert(format!("{table}.{name} is left out: {reason}"));
    }
    let text = if changed { document(&root) } else { text.to_owned() };
    let head = file.scenario.as_ref()?.0.as_ref()?;
    let seed = head.seed.value.0;
    if seed + (head.repeat.0 - 1) > MOST_SEED {
        let message = format!("the last of {} runs would have a seed above {MOST_SEED}", head.repeat.0);
        problems.push(head.seed.place, message);
        return None;
    }
    if head.repeat.0 > 1 && !cells.iter().any(|cell| cell.plan.is_random()) {
        let seeds =
            "nothing in this scenario is random: simulated, every seed gives the same run, and no interval";
        warnings.insert(seeds.to_owned());
    }
    Some(Scenario {
        title: head.title.clone(),
        description: head.description.trim().to_owned(),
        seed,
        repeat: head.repeat.0 as u32,
        cells,
        expectations,
        plots,
        text,
        warnings: warnings.into_iter().collect(),
        files: traces.files(),
    })
}

fn build(
    mut root: Node,
    problems: &mut Problems,
    warnings: &mut BTreeSet<String>,
    traces: &mut Traces<'_>,
) -> (Option<File>, Option<Plan>) {
    apply_defaults(&mut root);
    let mut file = File::decode(&root, problems);
    if let Some(file) = &mut file {
        expand(file, problems);
    }
    let plan = file.as_ref().and_then(|file| Builder { file, problems, warnings, traces }.plan());
    (file, plan)
}

/// Every cell's plan. `plan` is that of the file as it stands.
fn plans(
    trees: Vec<CellTree>,
    plan: Option<Plan>,
    problems: &mut Problems,
    warnings: &mut BTreeSet<String>,
    traces: &mut Traces<'_>,
) -> Vec<Cell> {
    let only = trees.len() == 1;
    let mut cells = Vec::with_capacity(trees.len());
    for CellTree { variant, settings, root } in trees {
        let unchanged = only && settings.is_empty();
        let plan = match &plan {
            Some(plan) if unchanged && matches!(variant.as_str(), "") => Some(plan.clone()),
            _ => build(root, problems, warnings, traces).1,
        };
        if let Some(plan) = plan {
            cells.push(Cell { variant, settings, plan });
        }
    }
    cells
}

/// Applies what the command line says; tells whether it says anything.
fn apply_options(root: &mut Node, options: &Options, problems: &mut Problems) -> bool {
    let mut sets: Vec<(String, &str, String)> = Vec::new();
    if let Some(seed) = options.seed {
        sets.push((format!("--seed {seed}"), "scenario.seed", seed.to_string()));
    }
    if let Some(repeat) = options.repeat {
        sets.push((format!("--repeat {repeat}"), "scenario.repeat", repeat.to_string()));
    }
    for (path, value) in &options.sets {
        sets.push((format!("--set {path}={value}"), path, value.clone()));
    }
    for (option, path, value) in &sets {
        let source = problems.add_source("command line", option.as_str());
        let start = option.len() - value.len();
        let place = Place::new(source, start..option.len());
        let path_place = match option.strip_prefix("--set ") {
            Some(_) => Place::new(source, 6..6 + path.len()),
            None => place,
        };
        let value = parse_argument(value, place, problems);
        assign(root, root_kind(), path, path_place, &value, problems);
        narrow_sweep(root, path, &value);
    }
    for (path, values) in &options.vary {
        vary(root, path, values, problems);
    }
    !sets.is_empty() || !options.vary.is_empty()
}

/// A swept path that `--set` sets keeps this one value.
fn narrow_sweep(root: &mut Node, path: &str, value: &Node) {
    let Value::Table(table) = &mut root.value else { return };
    if let Some(Node { value: Value::Table(sweep), .. }) = table.get_mut("sweep")
        && let Some(values) = sweep.get_mut(path)
    {
        *values = Node::new(Value::Array(vec![value.clone()]), value.place);
    }
}

fn leave_out(root: &mut Node, table: &str, name: &str) {
    let Value::Table(root) = &mut root.value else { return };
    if let Some(Node { value: Value::Table(members), .. }) = root.get_mut(table) {
        members.remove(name);
    }
}

fn vary(root: &mut Node, path: &str, values: &[String], problems: &mut Problems) {
    let option = format!("--vary {path}={}", values.join(","));
    let source = problems.add_source("command line", option.as_str());
    let path_place = Place::new(source, 7..7 + path.len());
    let mut start = 7 + path.len() + 1;
    let mut items = Vec::with_capacity(values.len());
    for value in values {
        let place = Place::new(source, start..start + value.len());
        items.push(parse_argument(value, place, problems));
        start += value.len() + 1;
    }
    let list = Node::new(Value::Array(items), Place::new(source, 7 + path.len() + 1..option.len()));
    let Value::Table(table) = &mut root.value else { return };
    if table.get("sweep").is_none() {
        table.insert("sweep", path_place, Node::empty_table(path_place));
    }
    if let Some(sweep) = table.get_mut("sweep") {
        if sweep.table().is_none() {
            sweep.value = Value::Table(Table::default());
        }
        if let Value::Table(sweep) = &mut sweep.value {
            sweep.insert(path, path_place, list);
        }
    }
}
