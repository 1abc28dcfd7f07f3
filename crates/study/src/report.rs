//! Data of a report, displayed in the terminal and on the HTML page, for one record or a comparison.

use crate::StoredRecord;
use crate::correlate::MAX_FLOWS as MAX_CORRELATED;
use crate::figure::Figure;
use crate::format;
use crate::overview::{cell_name, flow_groups, overview};
use crate::table::{ReportTable, TableColumn};
use crate::trials;
use netstage_scenario::plan::Plan;
use netstage_scenario::record::{
    CellEntry, CorrelationEntry, DistributionEntry, MetricEntry, StudyRecord as Data,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// Contents of a report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReportData {
    /// Version of this format.
    pub schema: u32,
    /// Title.
    pub title: String,
    /// Line below the title.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subtitle: String,
    /// Name and version of the tool.
    pub tool: String,
    /// Warnings about the results.
    pub warnings: Vec<String>,
    /// Facts about the study.
    pub facts: Vec<Fact>,
    /// Results of expectations, one per expectation and cell.
    pub expectations: Vec<ExpectationVerdict>,
    /// Reason for which the verdicts are not valid: "the measurement is void"; empty if they are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub void: String,
    /// Tables.
    pub tables: Vec<ReportTable>,
    /// Topology.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<TopologyDiagram>,
    /// Figures.
    pub figures: Vec<Figure>,
    /// Text of the scenario.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scenario: String,
}

/// Name and value.
#[derive(Clone, Debug, Serialize)]
pub struct Fact {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// Result of an expectation in a cell.
#[derive(Clone, Debug, Serialize)]
pub struct ExpectationVerdict {
    /// Name of the expectation.
    pub name: String,
    /// Metric.
    pub metric: String,
    /// Expected value.
    pub condition: String,
    /// Measured value.
    pub achieved: String,
    /// Claim that the expectation verifies.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// Reason given for an expectation that is not met.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub missed: String,
    /// Whether the expectation is met.
    pub pass: bool,
    /// Cell; empty if the study has one cell.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cell: String,
}

/// Topology for the diagram.
#[derive(Clone, Debug, Serialize)]
pub struct TopologyDiagram {
    nodes: Vec<netstage_scenario::record::TopologyNode>,
    links: Vec<DiagramLink>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    vpns: Vec<DiagramVpn>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    paths: Vec<Vec<String>>,
}

#[derive(Clone, Debug, Serialize)]
struct DiagramVpn {
    name: String,
    /// Weight; `None` if it differs between cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<f64>,
    path: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct DiagramLink {
    name: String,
    ends: (String, String),
    rate: String,
    delay: String,
    flows: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    utilization: Option<f64>,
}

/// Returns the report of one record.
pub fn report(record: &StoredRecord) -> ReportData {
    let data = &record.data;
    let warnings = warnings(data);
    let mut tables = vec![overview(data)];
    for (family, title) in [("vpn", "VPNs"), ("link", "Links, by direction"), ("flow", "Flow groups")] {
        tables.extend(family_table(data, family, title));
    }
    tables.extend(trials::tables(data));
    tables.extend(correlation_table(data));
    tables.extend(distribution_table(data));
    tables.extend(load_table(data));
    tables.extend(differences_table(data));
    ReportData {
        schema: 1,
        title: data.title.clone(),
        subtitle: data.description.clone(),
        tool: data.tool.clone(),
        warnings,
        facts: facts(record),
        expectations: verdicts(data, ""),
        void: if data.void.is_empty() { String::new() } else { "the measurement is void".into() },
        tables,
        topology: topology(data),
        figures: record.figures.clone(),
        scenario: data.scenario.clone(),
    }
}

/// Returns the warnings of a record, the most severe first.
pub fn warnings(data: &Data) -> Vec<String> {
    let failed = data.failures.iter().map(|what| format!("Failed while running: {what}"));
    let void = data.void.iter().map(|why| format!("The measurement is void: {why}"));
    let short = data.shortfalls().map(|why| format!("A result is a lower bound: {why}"));
    failed.chain(void).chain(short).chain(data.warnings.iter().cloned()).collect()
}

fn facts(record: &StoredRecord) -> Vec<Fact> {
    let (data, environment) = (&record.data, &record.environment);
    let last = data.seed.wrapping_add(u64::from(data.repeat.max(1)) - 1);
    let seeds = if data.repeat > 1 { format!("{} to {last}", data.seed) } else { data.seed.to_string() };
    let mut facts = vec![("Stage", data.stage.clone()), ("Seeds", seeds)];
    if let Some(cell) = data.cells.first() {
        // A study whose flows only provide load for tests has no run of the flows.
        if cell.duration_ns > 0 {
            facts.push(("Duration", format::duration(cell.duration_ns)));
            facts.push(("Interval", format::duration(cell.interval_ns)));
        }
    }
    facts.push(("Cells", data.cells.len().to_string()));
    facts.push((
        "Confidence",
        if data.repeat > 1 { "95 %, Student's t".into() } else { "none (one run)".into() },
    ));
    let sum = |value: fn(&CellEntry) -> u64| data.cells.iter().map(value).sum::<u64>();
    facts.push(("Packets sent", sum(|c| c.totals.sent).to_string()));
    facts.push(("Packets lost", sum(|c| c.totals.lost).to_string()));
    facts.push(("Plan", data.plan.clone()));
    if !environment.started.is_empty() {
        facts.push(("Started", environment.started.clone()));
        facts.push((
            "Took",
            format!(
                "{} (CPU {})",
                format::quantity(environment.wall_seconds, "s"),
                format::quantity(environment.cpu_seconds, "s")
            ),
        ));
        facts.push(("Host", format!("{}, {}, {}", environment.host, environment.kernel, environment.cpu)));
    }
    let fact = |(name, value): (&str, String)| Fact { name: name.into(), value };
    facts.into_iter().map(fact).collect()
}

/// Returns the results of all expectations in all cells. `record` is the name of the record in a comparison, or empty.
pub fn verdicts(data: &Data, record: &str) -> Vec<ExpectationVerdict> {
    let mut verdicts = Vec::new();
    for expectation in &data.expectations {
        let verdict = |achieved: String, pass, cell: String| ExpectationVerdict {
            name: expectation.name.clone(),
            metric: expectation.metric.clone(),
            condition: expectation.condition.clone(),
            achieved,
            claim: expectation.claim.clone(),
            missed: expectation.missed.clone(),
            pass,
            cell: [record, &cell].into_iter().filter(|t| !t.is_empty()).collect::<Vec<_>>().join(": "),
        };
        if !expectation.problem.is_empty() {
            verdicts.push(verdict(expectation.problem.clone(), false, String::new()));
        }
        for cell in &expectation.cells {
            let name = data.cells.get(cell.cell).map_or_else(String::new, |entry| cell_name(data, entry));
            verdicts.push(verdict(cell.achieved.clone(), cell.pass, name));
        }
    }
    verdicts
}

/// Returns a table of the metrics of one family, with a row per cell and subject.
fn family_table(data: &Data, family: &str, title: &str) -> Option<ReportTable> {
    let belongs = |m: &&MetricEntry| {
        m.name.split('.').next() == Some(family)
            || (family == "vpn" && m.name.starts_with("fairness.intra_vpn.per_vpn"))
    };
    let mut metrics: Vec<&MetricEntry> = data.metrics.iter().filter(belongs).collect();
    // Columns without a value other than zero are omitted.
    let is_nonzero = |m: &&MetricEntry| {
        let all = data.cells.iter().flat_map(|c| &c.summary);
        all.filter(|s| s.metric == m.name).any(|s| s.value.mean.is_some_and(|v| v != 0.0))
    };
    let count = metrics.len();
    // If all are zero, that is the result.
    if metrics.iter().any(is_nonzero) {
        metrics.retain(is_nonzero);
    }
    let several = data.cells.len() > 1;
    let mut table = ReportTable { title: title.into(), ..ReportTable::default() };
    table.note = "Means over the measured span; packets: totals per run.".into();
    if metrics.len() < count {
        table
            .note
            .push_str(&format!(" Metrics that are 0 everywhere and omitted: {}.", count - metrics.len()));
    }
    table.columns.extend(several.then(|| TableColumn::left("cell")));
    table.columns.push(TableColumn::left(family));
    let name =
        |m: &&MetricEntry| m.name.strip_prefix(family).map_or(m.name.clone(), |n| n[1..].replace('_', " "));
    table.columns.extend(metrics.iter().map(|m| TableColumn::right(name(m))));
    for cell in &data.cells {
        let mut subjects: Vec<&str> = Vec::new();
        for entry in cell.summary.iter().filter(|s| metrics.iter().any(|m| m.name == s.metric)) {
            if !subjects.contains(&entry.subject.as_str()) {
                subjects.push(&entry.subject);
            }
        }
        for subject in subjects {
            let value = |m: &&MetricEntry| {
                let summary = cell.summary(&m.name, subject);
                summary.map_or_else(|| "–".into(), |s| format::estimate(&s.value, &m.unit))
            };
            let mut row = Vec::new();
            row.extend(several.then(|| cell_name(data, cell)));
            row.push(subject.to_owned());
            row.extend(metrics.iter().map(value));
            table.rows.push(row);
        }
    }
    (!metrics.is_empty() && !table.rows.is_empty()).then_some(table)
}

/// Returns a table of the correlations of TCP throughput with other metrics.
fn correlation_table(data: &Data) -> Option<ReportTable> {
    let name = |cell: Option<usize>| match cell {
        Some(index) => data.cells.get(index).map_or(String::new(), |cell| cell_name(data, cell)),
        None => "all cells".to_owned(),
    };
    let row = |entry: &CorrelationEntry| {
        let number = |value: f64| format!("{value:.2}");
        let interval = format!("{} … {}", number(entry.low), number(entry.high));
        let (subject, metric) = (entry.subject.clone(), entry.metric.clone());
        vec![name(entry.cell), subject, metric, number(entry.coefficient), interval, entry.count.to_string()]
    };
    let left = ["cell", "flow", "metric"].map(TableColumn::left);
    let right = ["rank correlation", "95 % interval", "bins or cells"].map(TableColumn::right);
    let flows = flow_groups(data).len();
    let omitted = match flows > MAX_CORRELATED {
        true => {
            format!(" The first {MAX_CORRELATED} of {flows} flows; series.parquet has the values of all.")
        }
        false => String::new(),
    };
    (!data.correlations.is_empty()).then(|| ReportTable {
        title: "Correlation with throughput".into(),
        note: "1: throughput always increases with the metric; -1: it always decreases; an interval around 0: no \
               correlation is detectable. Autocorrelated bins have less weight."
            .to_owned()
            + &omitted,
        columns: left.into_iter().chain(right).collect(),
        rows: data.correlations.iter().map(row).collect(),
    })
}

/// Returns a table of the distributions, with a row per cell, metric and subject.
fn distribution_table(data: &Data) -> Option<ReportTable> {
    let several = data.cells.len() > 1;
    let mut table = ReportTable { title: "Distributions".into(), ..ReportTable::default() };
    table.note = "All values of all runs, with three significant digits. In brackets: 95 % interval, for independent values. A \
                  percentile needs enough values for it: 6 for the median, 36, 72, 368 and 3,688 for the others."
        .into();
    table.columns.extend(several.then(|| TableColumn::left("cell")));
    table.columns.extend([
        TableColumn::left("metric"),
        TableColumn::left("subject"),
        TableColumn::right("values"),
    ]);
    let names = ["mean", "min", "median", "90 %", "95 %", "99 %", "99.9 %", "max"];
    table.columns.extend(names.map(TableColumn::right));
    for cell in &data.cells {
        for entry in &cell.distributions {
            let unit = data.metric(&entry.metric).map_or("", |m| m.unit.as_str());
            let DistributionEntry { mean, min, p50, p90, p95, p99, p999, max, .. } = *entry;
            let shown = |value| format::quantity(value, unit);
            let percentile = |(name, value): (&str, Option<f64>)| {
                let interval = entry.intervals.get(name);
                let interval = interval.map(|(low, high)| format!(" [{}, {}]", shown(*low), shown(*high)));
                value.map_or_else(|| "–".into(), |value| shown(value) + &interval.unwrap_or_default())
            };
            let percentiles = [("p50", p50), ("p90", p90), ("p95", p95), ("p99", p99), ("p999", p999)];
            let mut row = Vec::new();
            row.extend(several.then(|| cell_name(data, cell)));
            row.extend([entry.metric.clone(), entry.subject.clone(), entry.count.to_string()]);
            row.extend([mean, min].map(shown));
            row.extend(percentiles.map(percentile));
            row.push(shown(max));
            table.rows.push(row);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Returns a table of requested and achieved loads.
fn load_table(data: &Data) -> Option<ReportTable> {
    let several = data.cells.len() > 1;
    let mut table = ReportTable { title: "Requested and achieved load".into(), ..ReportTable::default() };
    table.note = "Means over runs; worst: the run with the largest deviation.".into();
    table.columns.extend(several.then(|| TableColumn::left("cell")));
    table.columns.extend([TableColumn::left("subject"), TableColumn::left("quantity")]);
    table.columns.extend(["requested", "achieved", "worst"].map(TableColumn::right));
    for cell in &data.cells {
        for entry in &cell.loads {
            let layer = if entry.layer.is_empty() { String::new() } else { format!(" ({})", entry.layer) };
            let mut row = Vec::new();
            row.extend(several.then(|| cell_name(data, cell)));
            row.extend([entry.subject.clone(), format!("{}{layer}", entry.quantity)]);
            row.extend(
                [entry.requested, entry.achieved, entry.worst].map(|v| format::quantity(v, &entry.unit)),
            );
            table.rows.push(row);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Returns a table of the differences between the stage and the scenario.
fn differences_table(data: &Data) -> Option<ReportTable> {
    let mut table = ReportTable { title: "Differences from the scenario".into(), ..ReportTable::default() };
    table.columns.push(TableColumn::left(format!("on {}", data.stage)));
    table.rows = data.differences.iter().map(|text| vec![text.clone()]).collect();
    (!table.rows.is_empty()).then_some(table)
}

fn topology(data: &Data) -> Option<TopologyDiagram> {
    let cell = data.cells.first()?;
    let utilization = |name: &str| {
        let direction = |d: &str| cell.summary("link.utilization", &format!("{name}.{d}"))?.value.mean;
        direction("forward").into_iter().chain(direction("reverse")).reduce(f64::max)
    };
    // A record contains the weights of its first cell only.
    let keeps_weights = |cell: &CellEntry| {
        cell.variant.is_empty() && !cell.settings.iter().any(|(path, _)| may_set_weights(path))
    };
    let are_equal = data.cells.len() == 1 || data.cells.iter().all(keeps_weights);
    drawn(&data.topology, utilization, |_, weight| are_equal.then_some(weight))
}

/// Returns whether a path may set the weight of a VPN, in its table or in the defaults.
fn may_set_weights(path: &str) -> bool {
    let head = path.split('.').next().unwrap_or_default();
    (head.contains('*') || ["vpn", "defaults"].contains(&head)) && !path.contains(".control.")
}

/// Returns the topology of cells that have not run, from the plan of the first and the names and weights of the VPNs of
/// each; `None` if it is empty.
pub fn planned_topology(first: &Plan, weights: &[BTreeMap<String, f64>]) -> Option<TopologyDiagram> {
    let is_equal = |name: &str, weight: f64| weights.iter().all(|cell| cell.get(name) == Some(&weight));
    let weight = |name: &str, weight: f64| is_equal(name, weight).then_some(weight);
    drawn(&first.into(), |_| None, weight)
}

fn drawn(
    topology: &netstage_scenario::record::NetworkTopology,
    utilization: impl Fn(&str) -> Option<f64>,
    weight: impl Fn(&str, f64) -> Option<f64>,
) -> Option<TopologyDiagram> {
    let both = |forward: String, reverse: Option<String>| match reverse.filter(|reverse| *reverse != forward)
    {
        Some(reverse) => format!("{forward} → / ← {reverse}"),
        None => forward,
    };
    let links = topology.links.iter().map(|l| DiagramLink {
        name: l.name.clone(),
        ends: l.ends.clone(),
        rate: both(format::rate(l.rate_bps), l.reverse.map(|(rate, _)| format::rate(rate))),
        delay: both(format::duration(l.delay_ns), l.reverse.map(|(_, delay)| format::duration(delay))),
        flows: l.flows,
        utilization: utilization(&l.name).map(|u| (u * 1e4).round() / 1e4),
    });
    let vpns = topology.vpns.iter().map(|v| DiagramVpn {
        name: v.name.clone(),
        weight: weight(&v.name, v.weight),
        path: v.path.clone(),
    });
    let (nodes, paths) = (topology.nodes.clone(), topology.paths.clone());
    (!nodes.is_empty()).then(|| TopologyDiagram {
        nodes,
        links: links.collect(),
        vpns: vpns.collect(),
        paths,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::rng::RandomStream;
    use netstage_scenario::record::SeriesFile;
    use serde_json::json;

    /// Returns a record with `cells` cells, which have these flows and metrics.
    fn data(cells: usize, flows: &[String], metrics: &[(&str, bool)], random: &mut RandomStream) -> Data {
        let names = || metrics.iter();
        let mut cell = |number: usize| {
            let summary: Vec<_> = names()
                .flat_map(|(metric, is_nonzero)| {
                    let mean = if *is_nonzero { 1.0 + random.uniform() } else { 0.0 };
                    flows.iter().map(move |flow| json!({ "metric": metric, "subject": flow, "mean": mean }))
                })
                .collect();
            let distribution = |flow| json!({ "metric": "flow.delay", "subject": flow, "count": 1, "mean": 1.0, "min": 1.0, "max": 1.0 });
            let load = |flow| json!({ "subject": flow, "quantity": "rate", "requested": 1.0, "achieved": 1.0, "worst": 1.0 });
            json!({
                "variant": format!("cell{number}"), "duration_ns": 1, "interval_ns": 1, "measured_ns": [0, 1],
                "summary": summary, "distributions": flows.iter().map(distribution).collect::<Vec<_>>(),
                "loads": flows.iter().map(load).collect::<Vec<_>>(),
            })
        };
        let cells: Vec<_> = (0..cells).map(&mut cell).collect();
        let metric = |(name, _): &(&str, bool)| {
            let info =
                json!({ "name": name, "unit": "", "layer": "", "aggregation": "mean", "bin": "start" });
            let mut info = info.as_object().unwrap().clone();
            info.insert("help".into(), "".into());
            info
        };
        let correlation = |flow: &String| {
            json!({
                "cell": 0, "subject": flow, "metric": "flow.round_trip", "coefficient": 0.5, "low": 0.4,
                "high": 0.6, "count": 9,
            })
        };
        serde_json::from_value(json!({
            "schema": "1.4", "tool": "", "stage": "sim", "title": "", "plan": "", "seed": 1, "repeat": 1,
            "cells": cells, "metrics": names().map(metric).collect::<Vec<_>>(), "series": SeriesFile::default(),
            "scenario": "", "correlations": flows.iter().take(MAX_CORRELATED).map(correlation).collect::<Vec<_>>(),
        }))
        .unwrap()
    }

    /// Draws flows, cells and metrics. Each appears in every table, or the note of the table counts those that do not.
    #[test]
    fn tables_leave_nothing_out_in_silence() {
        let seed = netstage_harness::seed("report tables");
        let (mut omitted_cases, mut zero_cases, mut many_cases) = (0, 0, 0);
        for case in 0..100 {
            let mut random = RandomStream::new(seed, &format!("case.{case}"));
            let flows: Vec<String> = (0..1 + random.below(40)).map(|number| format!("f{number}")).collect();
            let cells = 1 + random.below(5) as usize;
            let names = ["flow.throughput", "flow.lost", "flow.round_trip", "flow.delay", "flow.window"];
            let names = &names[..1 + random.below(5) as usize];
            let metrics: Vec<(&str, bool)> = names.iter().map(|name| (*name, random.chance(0.5))).collect();
            let data = data(cells, &flows, &metrics, &mut random);
            let zero = metrics.iter().filter(|(_, is_nonzero)| !is_nonzero).count();
            // If all are zero, all are in the table.
            let omitted = if zero == metrics.len() { 0 } else { zero };
            let names_all = |table: &ReportTable| {
                let has = |flow: &String| table.rows.iter().filter(|row| row.contains(flow)).count() == cells;
                table.rows.len() == cells * flows.len() && flows.iter().all(has)
            };
            let family = family_table(&data, "flow", "Flow groups").unwrap();
            for table in [&family, &distribution_table(&data).unwrap(), &load_table(&data).unwrap()] {
                assert!(names_all(table), "case {case}: {table:?}");
            }
            let shown = family.columns.len() - 1 - usize::from(cells > 1);
            assert_eq!(shown, metrics.len() - omitted, "case {case}: {family:?}");
            let note = format!(" Metrics that are 0 everywhere and omitted: {omitted}.");
            assert_eq!(family.note.ends_with(&note), omitted > 0, "case {case}: {}", family.note);
            let correlations = correlation_table(&data).unwrap();
            let count = format!(" The first {} of {} flows;", correlations.rows.len(), flows.len());
            let is_complete = correlations.rows.len() == flows.len();
            assert_eq!(
                correlations.note.contains(&count),
                !is_complete,
                "case {case}: {}",
                correlations.note
            );
            omitted_cases += usize::from(omitted > 0);
            zero_cases += usize::from(zero == metrics.len());
            many_cases += usize::from(!is_complete);
        }
        let counts = [omitted_cases, zero_cases, many_cases];
        assert!(counts.iter().all(|count| *count > 5), "omitted, all zero, many flows: {counts:?}");
    }

    #[test]
    fn only_paths_to_vpns_hide_weights() {
        for path in ["vpn.gold.weight", "vpn.gold", "defaults.vpn.weight", "*.gold.weight"] {
            assert!(may_set_weights(path), "{path}");
        }
        for path in ["vpn.*.control.increase", "link.core.delay", "flow.*.traffic.rate", "scenario.duration"]
        {
            assert!(!may_set_weights(path), "{path}");
        }
    }
}
