//! Conversion of text and options to a checked scenario.

use crate::build::{Builder, NodeGraph, PlacedVpns};
use crate::error::{Errors, Problems, SourceRange};
use crate::file::expand::{Expansion, expand};
use crate::file::{MAX_SEED, ScenarioFile, apply_defaults, root_kind};
use crate::judge::{CellFacts, ExpectationChecker};
use crate::plan::Plan;
use crate::set::assign;
use crate::sweep::{CellLabel, CellTree, is_complete, visit_cells};
use crate::table::Decode;
use crate::trace::TraceFiles;
use crate::tree::{TomlNode, TomlValue, document, parse_argument, parse_document};
use crate::{Cell, Scenario};
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;

/// Changes made on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// `--set path=value`, in order.
    pub sets: Vec<(String, String)>,
    /// `--vary path=value,value,…`: sweeps this path, and replaces a sweep of it in the file.
    pub vary: Vec<(String, Vec<String>)>,
    /// `--seed N`.
    pub seed: Option<u64>,
    /// `--repeat N`.
    pub repeat: Option<u32>,
}

/// Maximum size of a scenario file in bytes.
const MAX_BYTES: u64 = 16 << 20;

/// Reads and checks a scenario file. Paths of trace files are relative to its folder.
pub fn load(path: &Path, options: &LoadOptions) -> Result<Scenario, Errors> {
    load_with(path, options, |cell| cell)
}

/// Reads and checks a scenario file like [`load`], and keeps what `keep` returns of each cell. The plans of a large
/// sweep then need no memory.
pub fn load_with<C>(
    path: &Path,
    options: &LoadOptions,
    keep: impl FnMut(Cell) -> C,
) -> Result<Scenario<C>, Errors> {
    let text = read_text(path, "scenario")?;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    parse_with(&path.display().to_string(), &text, Some(folder), options, keep)
}

/// Reads and checks a daemon's configuration. `build` converts the decoded tables.
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
        problems.push(SourceRange::new(0, 0..0), "invalid configuration");
    }
    Err(problems.into_errors())
}

/// Reads the text of a file. `what` names the kind of file in the messages.
pub(crate) fn read_text(path: &Path, what: &str) -> Result<String, Errors> {
    let name = path.display().to_string();
    let fail = |message: String| {
        let mut problems = Problems::default();
        problems.add_source(name.clone(), "");
        problems.push(SourceRange::new(0, 0..0), message);
        problems.into_errors()
    };
    match std::fs::metadata(path) {
        Err(error) => return Err(fail(format!("cannot read the file: {error}"))),
        Ok(metadata) if metadata.len() > MAX_BYTES => {
            return Err(fail(format!(
                "the file is too large for a {what}: the limit is {} MiB",
                MAX_BYTES >> 20
            )));
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

/// Reads and checks a scenario. Paths of trace files are relative to `base`; without it, a trace file is
/// an error.
pub fn parse(name: &str, text: &str, base: Option<&Path>, options: &LoadOptions) -> Result<Scenario, Errors> {
    parse_with(name, text, base, options, |cell| cell)
}

/// Reads and checks a scenario like [`parse`], and keeps what `keep` returns of each cell.
pub fn parse_with<C>(
    name: &str,
    text: &str,
    base: Option<&Path>,
    options: &LoadOptions,
    mut keep: impl FnMut(Cell) -> C,
) -> Result<Scenario<C>, Errors> {
    let mut problems = Problems::default();
    problems.add_source(name, text);
    let mut cells = Vec::new();
    match check(text, base, options, &mut problems, &mut |cell| cells.push(keep(cell))) {
        Some(scenario) if problems.is_empty() => Ok(scenario.with_cells(cells)),
        _ => Err(problems.into_errors()),
    }
}

/// Checks a scenario. Its cells are passed to `visit`.
fn check(
    text: &str,
    base: Option<&Path>,
    options: &LoadOptions,
    problems: &mut Problems,
    visit: &mut dyn FnMut(Cell),
) -> Option<Scenario<()>> {
    if text.len() as u64 > MAX_BYTES {
        let message = format!("the text is too large for a scenario: the limit is {} MiB", MAX_BYTES >> 20);
        problems.push(SourceRange::new(0, 0..0), message);
        return None;
    }
    let mut root = parse_document(0, problems);
    if !problems.is_empty() {
        return None;
    }
    let changed = apply_options(&mut root, options, problems);
    let mut warnings = BTreeSet::new();
    let mut traces = TraceFiles::new(base);
    let mut last = LastCell::default();
    let (file, plan) = build(root.clone(), problems, &mut warnings, &mut traces, &mut last);
    let file = file?;
    problems.mark_for_suppression();
    let mut facts = CellFacts::new(&file);
    let mut labels = Vec::new();
    visit_cells(&root, &file, problems, &mut |CellTree { label, root }, problems| {
        labels.push(label.clone());
        let CellLabel { variant, settings } = label;
        let plan = match variant.is_empty() && settings.is_empty() {
            true => plan.clone(),
            false => build(root, problems, &mut warnings, &mut traces, &mut last).1,
        };
        if let Some(plan) = plan {
            facts.add(&plan);
            visit(Cell { variant, settings, plan });
        }
    });
    // The labels are unknown if a fault hides part of the sweep or the variants.
    if !is_complete(&root, &file) {
        labels.clear();
    }
    let has_base_plan = plan.is_some();
    let mut judge = ExpectationChecker::new(&labels, &facts, problems, changed);
    let expectations = judge.expectations(&file);
    let plots = judge.plots(&file);
    let left_out = judge.left_out;
    if !has_base_plan || !problems.is_empty() {
        return None;
    }
    for (table, name, reason) in left_out {
        leave_out(&mut root, table, &name);
        warnings.insert(format!("{table}.{name} is left out: {reason}"));
    }
    let text = if changed { document(&root) } else { text.to_owned() };
    let head = file.scenario.as_ref()?.0.as_ref()?;
    let seed = head.seed.value.0;
    if seed + (head.repeat.0 - 1) > MAX_SEED {
        let message = format!("the seed of the last of {} runs would exceed {MAX_SEED}", head.repeat.0);
        problems.push_help(head.seed.place, message, "lower `seed` or `repeat`");
        return None;
    }
    if head.repeat.0 > 1 && !facts.is_random {
        let warning = "nothing in this scenario is random: on `sim`, every seed gives the same run, and results \
                       have no confidence interval";
        warnings.insert(warning.to_owned());
    }
    Some(Scenario {
        title: head.title.clone(),
        description: head.description.trim().to_owned(),
        seed,
        repeat: head.repeat.0 as u32,
        cells: Vec::new(),
        expectations,
        plots,
        text,
        warnings: warnings.into_iter().collect(),
        files: traces.files(),
    })
}

/// Parts of the cell built before, which the next one reuses if they would be the same.
#[derive(Default)]
struct LastCell {
    expansion: Expansion,
    graph: Option<Rc<NodeGraph>>,
    placed: Option<PlacedVpns>,
}

fn build(
    mut root: TomlNode,
    problems: &mut Problems,
    warnings: &mut BTreeSet<String>,
    traces: &mut TraceFiles<'_>,
    last: &mut LastCell,
) -> (Option<ScenarioFile>, Option<Plan>) {
    apply_defaults(&mut root);
    let mut file = ScenarioFile::decode(&root, problems);
    if let Some(file) = &mut file {
        expand(file, &mut last.expansion, problems);
    }
    // A fault of the base file's topology is reported once, and not again for each value swept or set by a variant.
    problems.suppress(true);
    let plan = file.as_ref().and_then(|file| {
        Builder { file, problems, warnings, traces, graph: &mut last.graph, placed: &mut last.placed }.plan()
    });
    problems.suppress(false);
    (file, plan)
}

/// Applies the options of the command line. Returns whether there are any.
fn apply_options(root: &mut TomlNode, options: &LoadOptions, problems: &mut Problems) -> bool {
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
        let place = SourceRange::new(source, start..option.len());
        let path_place = match option.strip_prefix("--set ") {
            Some(_) => SourceRange::new(source, 6..6 + path.len()),
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

/// Reduces the sweep of a path set by `--set` to this value.
fn narrow_sweep(root: &mut TomlNode, path: &str, value: &TomlNode) {
    let sweep = root.table_mut().and_then(|table| table.get_mut("sweep"));
    if let Some(values) = sweep.and_then(TomlNode::table_mut).and_then(|sweep| sweep.get_mut(path)) {
        *values = TomlNode::new(TomlValue::Array(vec![value.clone()]), value.place);
    }
}

fn leave_out(root: &mut TomlNode, table: &str, name: &str) {
    let members = root.table_mut().and_then(|root| root.get_mut(table));
    if let Some(members) = members.and_then(TomlNode::table_mut) {
        members.remove(name);
    }
}

fn vary(root: &mut TomlNode, path: &str, values: &[String], problems: &mut Problems) {
    let option = format!("--vary {path}={}", values.join(","));
    let source = problems.add_source("command line", option.as_str());
    let path_place = SourceRange::new(source, 7..7 + path.len());
    let mut start = 7 + path.len() + 1;
    let mut items = Vec::with_capacity(values.len());
    for value in values {
        let place = SourceRange::new(source, start..start + value.len());
        items.push(parse_argument(value, place, problems));
        start += value.len() + 1;
    }
    let list =
        TomlNode::new(TomlValue::Array(items), SourceRange::new(source, 7 + path.len() + 1..option.len()));
    let Some(table) = root.table_mut() else { return };
    if table.get("sweep").is_none() {
        table.insert("sweep", path_place, TomlNode::empty_table(path_place));
    }
    if let Some(sweep) = table.get_mut("sweep") {
        if sweep.table().is_none() {
            sweep.value = TomlValue::Table(Rc::default());
        }
        if let Some(sweep) = sweep.table_mut() {
            sweep.insert(path, path_place, list);
        }
    }
}

#[cfg(test)]
mod tests;
