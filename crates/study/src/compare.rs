//! Comparison of several records: their metrics and the differences from the first record.

use crate::StoredRecord;
use crate::figure::{Axis, Figure, FigureKind};
use crate::format;
use crate::report::{self, Fact, ReportData, verdicts};
use crate::table::{ReportTable, TableColumn};
use netstage_scenario::record::{CellEntry, DistributionEntry, Estimate, SummaryEntry};
use std::collections::BTreeSet;

/// Returns a name for each record: that of its folder, numbered if several are equal.
pub fn names(records: &[StoredRecord]) -> Vec<String> {
    let plain: Vec<String> = records.iter().map(StoredRecord::name).collect();
    let number = |(index, name): (usize, &String)| {
        let same = plain.iter().filter(|n| *n == name).count() > 1;
        if same { format!("{name} ({})", index + 1) } else { name.clone() }
    };
    plain.iter().enumerate().map(number).collect()
}

/// Returns the report of several records, with differences from the first.
pub fn compare(records: &[StoredRecord]) -> ReportData {
    let names = names(records);
    let Some(first) = records.first() else { return ReportData::default() };
    let fact = |(name, record): (&String, &StoredRecord)| Fact {
        name: name.clone(),
        value: format!(
            "{}, {}, {} on {}",
            record.data.title, record.data.plan, record.data.tool, record.data.stage
        ),
    };
    let mut warnings = Vec::new();
    let mut expectations = Vec::new();
    for (name, record) in names.iter().zip(records) {
        warnings.extend(report::warnings(&record.data).iter().map(|w| format!("{name}: {w}")));
        expectations.extend(verdicts(&record.data, name));
    }
    ReportData {
        schema: 1,
        title: format!("Comparison of {}", names.join(", ")),
        subtitle: format!("Differences are relative to {}.", names[0]),
        tool: first.data.tool.clone(),
        warnings,
        facts: names.iter().zip(records).map(fact).collect(),
        expectations,
        void: void(records, &names),
        tables: tables(records, &names).into_iter().chain(differences(records, &names)).collect(),
        topology: None,
        figures: figures(records, &names),
        scenario: String::new(),
    }
}

/// Names the void records in a sentence; empty if none is void.
fn void(records: &[StoredRecord], names: &[String]) -> String {
    let void = names.iter().zip(records).filter(|(_, record)| !record.data.void.is_empty());
    let void: Vec<&str> = void.map(|(name, _)| name.as_str()).collect();
    match void.as_slice() {
        [] => String::new(),
        [one] => format!("{one} is void"),
        several => format!("{} are void", several.join(" and ")),
    }
}

/// Returns a table for each cell that more than one record contains.
fn tables(records: &[StoredRecord], names: &[String]) -> Vec<ReportTable> {
    let mut tables = Vec::new();
    for (index, cell) in records[0].data.cells.iter().enumerate() {
        let cells: Vec<Option<&CellEntry>> = records.iter().map(|r| counterpart(r, index, cell)).collect();
        if cells.iter().flatten().count() > 1 {
            tables.push(table(records, names, cell, &cells));
        }
    }
    if tables.is_empty() {
        let note = "The records have no common cell.".into();
        tables.push(ReportTable { title: "Comparison".into(), note, ..ReportTable::default() });
    }
    tables
}

/// Returns the cell of a record that corresponds to a cell of the first record: the cell with the same label, or
/// the only cell.
fn counterpart<'a>(record: &'a StoredRecord, index: usize, cell: &CellEntry) -> Option<&'a CellEntry> {
    let cells = &record.data.cells;
    if cells.len() == 1 && index == 0 {
        return cells.first();
    }
    cells.iter().find(|c| c.label() == cell.label())
}

fn table(
    records: &[StoredRecord],
    names: &[String],
    cell: &CellEntry,
    cells: &[Option<&CellEntry>],
) -> ReportTable {
    let label = cell.label();
    let title = if label.is_empty() { "Comparison".into() } else { format!("Comparison: {label}") };
    let note = "An asterisk marks means whose 95 % intervals do not overlap.".into();
    let mut table = ReportTable { title, note, ..ReportTable::default() };
    table.columns = vec![TableColumn::left("metric"), TableColumn::left("subject")];
    for (index, name) in names.iter().enumerate() {
        table.columns.push(TableColumn::right(name.clone()));
        table.columns.extend((index > 0).then(|| TableColumn::right("difference")));
    }
    let mut keys = Vec::new();
    let mut seen = BTreeSet::new();
    for entry in cells.iter().flatten().flat_map(|c| &c.summary) {
        if seen.insert((&entry.metric, &entry.subject)) {
            keys.push((&entry.metric, &entry.subject));
        }
    }
    for (metric, subject) in keys {
        let unit = records.iter().find_map(|r| r.data.metric(metric)).map_or("", |m| m.unit.as_str());
        let estimate_of =
            |cell: &Option<&CellEntry>| cell.and_then(|c| c.summary(metric, subject)).map(value);
        table.rows.push(row(metric.clone(), subject, cells.iter().map(estimate_of), unit));
    }
    for (metric, subject) in distributions(cells) {
        let unit = records.iter().find_map(|r| r.data.metric(metric)).map_or("", |m| m.unit.as_str());
        for (name, quantile) in QUANTILES {
            let quantile_of = |c: &Option<&CellEntry>| {
                let mut all = c.iter().flat_map(|c| &c.distributions);
                let entry = all.find(|d| d.metric == *metric && d.subject == *subject)?;
                Some(Estimate { mean: quantile(entry), ..Estimate::default() })
            };
            table.rows.push(row(format!("{metric}, {name}"), subject, cells.iter().map(quantile_of), unit));
        }
    }
    table
}

type Quantile = fn(&DistributionEntry) -> Option<f64>;

/// Quantiles of a distribution that are compared.
const QUANTILES: [(&str, Quantile); 3] = [("median", |d| d.p50), ("99 %", |d| d.p99), ("99.9 %", |d| d.p999)];

/// Returns the metric and subject of each distribution that more than one record contains.
fn distributions<'a>(cells: &[Option<&'a CellEntry>]) -> Vec<(&'a String, &'a String)> {
    let all = || cells.iter().flatten().flat_map(|c| &c.distributions).map(|d| (&d.metric, &d.subject));
    let mut seen = BTreeSet::new();
    all().filter(|key| all().filter(|k| k == key).count() > 1 && seen.insert(*key)).collect()
}

/// Returns a table row: the value of each record and its difference from the first.
fn row(
    metric: String,
    subject: &str,
    values: impl Iterator<Item = Option<Estimate>>,
    unit: &str,
) -> Vec<String> {
    let mut row = vec![metric, subject.to_owned()];
    let mut base = None;
    for (index, this) in values.enumerate() {
        row.push(this.map_or_else(|| "–".into(), |v| format::estimate(&v, unit)));
        if index == 0 {
            base = this;
            continue;
        }
        let both = base.zip(this);
        row.push(both.map_or_else(|| "–".into(), |(base, this)| difference(&base, &this, unit)));
    }
    row
}

/// Returns a table of the differences between the records' stages and their scenarios.
fn differences(records: &[StoredRecord], names: &[String]) -> Option<ReportTable> {
    let mut table = ReportTable { title: "Stage limitations".into(), ..ReportTable::default() };
    table.note = "Known differences between each stage and its scenario; they are not measured.".into();
    table.columns =
        vec![TableColumn::left("record"), TableColumn::left("stage"), TableColumn::left("difference")];
    for (name, record) in names.iter().zip(records) {
        let data = &record.data;
        let row = |text: &String| vec![name.clone(), data.stage.clone(), text.clone()];
        table.rows.extend(data.differences.iter().map(row));
    }
    (!table.rows.is_empty()).then_some(table)
}

fn value(entry: &SummaryEntry) -> Estimate {
    entry.value
}

/// Returns the absolute difference between `this` and `base`, and the relative one if `base` is not zero. An
/// asterisk marks disjoint 95 % intervals.
pub fn difference(base: &Estimate, this: &Estimate, unit: &str) -> String {
    let (Some(a), Some(b)) = (base.mean, this.mean) else { return "–".into() };
    let sign = if b >= a { "+" } else { "−" };
    let mut text = format!("{sign}{}", format::quantity((b - a).abs(), unit));
    if a != 0.0 {
        text.push_str(&format!(" ({sign}{} %)", format::number((((b - a) / a).abs() * 1e3).round() / 10.0)));
    }
    let is_disjoint =
        |low: Option<f64>, high: Option<f64>| low.zip(high).is_some_and(|(low, high)| low > high);
    if is_disjoint(base.low, this.high) || is_disjoint(this.low, base.high) {
        text.push('*');
    }
    text
}

/// Adds the boxes of a figure to those of another.
fn append_boxes(figure: &mut Figure, more: Figure) {
    figure.categories.extend(more.categories);
    for (series, more) in figure.series.iter_mut().zip(more.series) {
        series.y.extend(more.y);
        let both = [(&mut series.low, more.low), (&mut series.high, more.high)];
        both.into_iter()
            .for_each(|(ends, more)| ends.iter_mut().for_each(|ends| ends.extend(more.iter().flatten())));
    }
}

/// Merges figures with the same name and axes into one; keeps the others separate.
fn figures(records: &[StoredRecord], names: &[String]) -> Vec<Figure> {
    let mut merged: Vec<Figure> = Vec::new();
    for (index, (name, record)) in names.iter().zip(records).enumerate() {
        for figure in &record.figures {
            let mut figure = figure.clone();
            let shared = figure.shared_x.take();
            let is_box = figure.kind == FigureKind::Box;
            if is_box {
                figure.categories.iter_mut().for_each(|category| *category = format!("{name}: {category}"));
            }
            for series in figure.series.iter_mut().filter(|_| !is_box) {
                series.x = series.x.take().or_else(|| shared.clone());
                // Series with the same name in two records have the same color.
                if series.group.is_empty() {
                    series.group = series.name.clone();
                }
                series.name = format!("{name}: {}", series.name);
                series.dashed |= index > 0;
            }
            let same = |other: &&mut Figure| {
                other.name == figure.name
                    && other.kind == figure.kind
                    && figure.kind != FigureKind::Heatmap
                    && (is_box || other.categories == figure.categories)
                    && format::ratio(&figure.x.unit, &other.x.unit).is_some()
                    && format::ratio(&figure.y.unit, &other.y.unit).is_some()
            };
            match merged.iter_mut().find(same) {
                Some(other) => {
                    let ratio = |a: &Axis, b: &Axis| format::ratio(&a.unit, &b.unit).unwrap_or(1.0);
                    let (x, y) = (ratio(&figure.x, &other.x), ratio(&figure.y, &other.y));
                    figure.series.iter_mut().for_each(|series| series.scale(x, y));
                    if is_box {
                        append_boxes(other, figure);
                    } else {
                        other.series.append(&mut figure.series);
                    }
                }
                None => {
                    if index > 0 || figure.kind == FigureKind::Heatmap {
                        figure.title = format!("{name}: {}", figure.title);
                        figure.name = format!("{}-{}", figure.name, index + 1);
                    }
                    merged.push(figure);
                }
            }
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::FigureSeries;

    #[test]
    fn boxes_of_records_stand_side_by_side() {
        let boxes = |names: &[&str], first: f64| Figure {
            kind: FigureKind::Box,
            categories: names.iter().map(|name| (*name).to_owned()).collect(),
            series: (0..5)
                .map(|part| {
                    let values = || (0..names.len()).map(|k| Some(first + (k * 5 + part) as f64)).collect();
                    let ends = (part == 2).then(values);
                    FigureSeries { y: values(), low: ends.clone(), high: ends, ..FigureSeries::default() }
                })
                .collect(),
            ..Figure::default()
        };
        let mut figure = boxes(&["a: x", "a: y"], 0.0);
        append_boxes(&mut figure, boxes(&["b: x"], 100.0));
        assert_eq!(figure.categories, ["a: x", "a: y", "b: x"]);
        assert_eq!(figure.series[1].y, [1.0, 6.0, 101.0].map(Some));
        assert_eq!(figure.series[2].low, Some([2.0, 7.0, 102.0].map(Some).to_vec()));
        assert!(figure.series.iter().all(|series| series.y.len() == 3));
    }
}
