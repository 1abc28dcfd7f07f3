//! Overview table of a study's cells.

use crate::format;
use crate::plot::short;
use crate::table::{ReportTable, TableColumn};
use netstage_scenario::record::{CellEntry, ExpectationEntry, StudyRecord as Data, SummaryEntry};

/// Returns a table with a row per cell: its variant and swept values, fairness and utilization, and the result of each
/// expectation.
pub fn overview(data: &Data) -> ReportTable {
    let mut table = ReportTable { title: "Results".into(), ..ReportTable::default() };
    let variants = data.cells.iter().any(|c| !c.variant.is_empty());
    if variants {
        table.columns.push(TableColumn::left("variant"));
    }
    let paths = swept(data);
    table.columns.extend(paths.iter().map(|path| TableColumn::right(path_name(path, &paths))));
    let measures = measures(data);
    table.columns.extend(measures.iter().map(|m| TableColumn::right(m.name.clone())));
    let groups = flow_groups(data).len();
    let mut notes = Vec::new();
    if data.metric("fairness.inter_vpn").is_none() && groups > MAX_FLOWS {
        notes.push(format!("{MAX_FLOWS} of {groups} flows; the table \"Flow groups\" lists all."));
    }
    if data.repeat <= 1 && data.cells.iter().any(|cell| cell.duration_ns > 0) {
        notes.push(
            "One run: another seed gives other values, and --repeat gives confidence intervals.".into(),
        );
    }
    table.note = notes.join(" ");
    let verdicts = verdict_columns(&data.expectations);
    table.columns.extend(verdicts.iter().map(|column| TableColumn::right(common_name(column))));
    for (index, cell) in data.cells.iter().enumerate() {
        let mut row = Vec::new();
        row.extend(variants.then(|| cell.variant.clone()));
        for path in &paths {
            let value = cell.settings.iter().find(|(p, _)| p == *path);
            row.push(value.map_or_else(|| "–".into(), |(_, value)| value.clone()));
        }
        row.extend(measures.iter().map(|m| (m.value)(cell)));
        row.extend(verdicts.iter().map(|column| verdict_text(column, index)));
        table.rows.push(row);
    }
    table
}

/// Maximum number of columns of flows.
const MAX_FLOWS: usize = 4;

/// Returns the flow groups of all cells.
pub fn flow_groups(data: &Data) -> Vec<&String> {
    let mut groups: Vec<&String> = Vec::new();
    let entries = data.cells.iter().flat_map(|cell| &cell.summary);
    for entry in entries.filter(|entry| entry.metric == "flow.throughput") {
        if !groups.contains(&&entry.subject) {
            groups.push(&entry.subject);
        }
    }
    groups
}

/// Returns all swept paths.
fn swept(data: &Data) -> Vec<&String> {
    let mut paths: Vec<&String> = Vec::new();
    for (path, _) in data.cells.iter().flat_map(|c| &c.settings) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

/// Returns the last component of a path if it is unique, or else the path.
fn path_name<'a>(path: &'a str, paths: &[&String]) -> &'a str {
    let ambiguous = paths.iter().filter(|p| short(p) == short(path)).count() > 1;
    if ambiguous { path } else { short(path) }
}

/// Returns a description of a cell; empty if the study has one cell.
pub fn cell_name(data: &Data, cell: &CellEntry) -> String {
    let paths = swept(data);
    let variant = (!cell.variant.is_empty()).then(|| cell.variant.clone());
    let settings = cell.settings.iter().map(|(path, value)| format!("{} = {value}", path_name(path, &paths)));
    variant.into_iter().chain(settings).collect::<Vec<_>>().join(", ")
}

/// Groups expectations into columns. Similar expectations of different cells share a column.
fn verdict_columns(expectations: &[ExpectationEntry]) -> Vec<Vec<&ExpectationEntry>> {
    let applies = |e: &ExpectationEntry, cell: usize| e.cells.iter().any(|c| c.cell == cell);
    let mut columns: Vec<Vec<&ExpectationEntry>> = Vec::new();
    for expectation in expectations {
        let is_disjoint =
            |other: &&ExpectationEntry| !expectation.cells.iter().any(|c| applies(other, c.cell));
        let fits = |column: &&mut Vec<&ExpectationEntry>| {
            let is_similar = common_prefix(&column[0].name, &expectation.name).len() >= 4;
            is_similar && column[0].metric == expectation.metric && column.iter().all(is_disjoint)
        };
        match columns.iter_mut().find(fits) {
            Some(column) => column.push(expectation),
            None => columns.push(vec![expectation]),
        }
    }
    columns
}

/// Returns the name of a column: that of its expectation, or the common prefix of several.
fn common_name(expectations: &[&ExpectationEntry]) -> String {
    let first = expectations[0].name.as_str();
    let prefix = expectations.iter().fold(first, |prefix, e| common_prefix(prefix, &e.name));
    if prefix == first {
        first.to_owned()
    } else {
        format!("{}…", prefix.trim_end_matches(['-', '_', '.']))
    }
}

/// Returns the common prefix of two texts.
fn common_prefix<'a>(a: &'a str, b: &str) -> &'a str {
    let differs = a.char_indices().zip(b.chars()).find(|((_, x), y)| x != y);
    let end = differs.map_or(a.len().min(b.len()), |((at, _), _)| at);
    a.get(..end).unwrap_or("")
}

fn verdict_text(column: &[&ExpectationEntry], cell: usize) -> String {
    let found = column.iter().flat_map(|e| &e.cells).find(|c| c.cell == cell);
    let text = |achieved: &str| achieved.split(" (").next().unwrap_or("").to_owned();
    found.map_or_else(|| "·".into(), |c| format!("{} {}", text(&c.achieved), if c.pass { "✓" } else { "✗" }))
}

/// Column of the overview with a measured value.
struct OverviewColumn {
    name: String,
    value: Box<dyn Fn(&CellEntry) -> String>,
}

fn measures(data: &Data) -> Vec<OverviewColumn> {
    let summary = |name: &str, metric: &'static str, unit: &'static str| OverviewColumn {
        name: name.into(),
        value: Box::new(move |cell| {
            cell.summary(metric, "").map_or_else(|| "–".into(), |s| format::estimate(&s.value, unit))
        }),
    };
    let mut measures = Vec::new();
    if data.metric("fairness.inter_vpn").is_some() {
        measures.push(summary("F between VPNs", "fairness.inter_vpn", ""));
        measures.push(OverviewColumn {
            name: "worst bin".into(),
            value: Box::new(|cell| {
                let min = cell.summary("fairness.inter_vpn", "").and_then(|s| s.min);
                min.map_or_else(|| "–".into(), format::number)
            }),
        });
        measures.push(summary("F inside VPNs", "fairness.intra_vpn", ""));
    } else {
        for subject in flow_groups(data).into_iter().take(MAX_FLOWS) {
            let subject = subject.clone();
            measures.push(OverviewColumn {
                name: subject.clone(),
                value: Box::new(move |cell| {
                    let summary = cell.summary("flow.throughput", &subject);
                    summary.map_or_else(|| "–".into(), |s| format::estimate(&s.value, "bit/s"))
                }),
            });
        }
    }
    if data.metric("link.utilization.net_of_background").is_some() {
        let has_background = data.metric("link.background").is_some();
        let name = if has_background { "utilization net of background" } else { "utilization" };
        let value = move |cell: &CellEntry| utilization(cell, has_background);
        measures.push(OverviewColumn { name: name.into(), value: Box::new(value) });
    }
    measures
}

/// Returns the utilization of the bottleneck link, or the range of several. Without background traffic, it is that of the
/// link's whole time, in which it may have failed.
fn utilization(cell: &CellEntry, has_background: bool) -> String {
    let net = cell.summary.iter().filter(|s| s.metric == "link.utilization.net_of_background");
    let whole = |entry: &SummaryEntry| cell.summary("link.utilization", &entry.subject);
    let entries: Vec<&SummaryEntry> =
        net.filter_map(|entry| if has_background { Some(entry) } else { whole(entry) }).collect();
    let means: Vec<f64> = entries.iter().filter_map(|s| s.value.mean).collect();
    let (min, max) = means.iter().fold((f64::INFINITY, 0.0), |(l, m): (f64, f64), &v| (l.min(v), m.max(v)));
    match entries.as_slice() {
        [] => "–".into(),
        [one] => format::estimate(&one.value, ""),
        _ if means.is_empty() => "–".into(),
        _ => format!("{min:.3} … {max:.3}"),
    }
}
