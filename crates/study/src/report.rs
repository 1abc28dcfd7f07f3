//! What a report shows, as data: the terminal, the HTML page and comparisons draw the same.

use crate::Record;
use crate::figure::Figure;
use crate::format;
use crate::overview::{cell_name, overview};
use crate::table::{Column, Table};
use crate::trials;
use netstage_scenario::Cell;
use netstage_scenario::record::{
    CellEntry, CorrelationEntry, DistributionEntry, MetricEntry, Record as Data,
};
use serde::Serialize;

/// Everything on the page.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ReportData {
    /// Version of this shape.
    pub schema: u32,
    /// The headline.
    pub title: String,
    /// The line below it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subtitle: String,
    /// Who wrote it.
    pub tool: String,
    /// What to know before trusting the figures.
    pub warnings: Vec<String>,
    /// How it was obtained.
    pub facts: Vec<Fact>,
    /// Verdicts, one per expectation and cell.
    pub expectations: Vec<Verdict>,
    /// What the verdicts cannot rest on: "the measurement is void"; empty where all stands.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub void: String,
    /// Numbers.
    pub tables: Vec<Table>,
    /// The network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// Figures.
    pub figures: Vec<Figure>,
    /// The scenario as run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub scenario: String,
}

/// A name and a value.
#[derive(Clone, Debug, Serialize)]
pub struct Fact {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// An expectation in a cell.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The expectation's name.
    pub name: String,
    /// Its metric.
    pub metric: String,
    /// What was asked.
    pub condition: String,
    /// What came of it.
    pub achieved: String,
    /// What the paper claims.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// Whether it holds.
    pub pass: bool,
    /// The cell; empty where there is only one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cell: String,
}

/// The network, for drawing.
#[derive(Clone, Debug, Serialize)]
pub struct Topology {
    nodes: Vec<netstage_scenario::record::TopologyNode>,
    links: Vec<Link>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    vpns: Vec<Vpn>,
}

#[derive(Clone, Debug, Serialize)]
struct Vpn {
    name: String,
    /// None where it is not the same in all cells.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<f64>,
    path: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct Link {
    name: String,
    ends: (String, String),
    rate: String,
    delay: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    utilisation: Option<f64>,
}

/// The report of one record.
pub fn report(record: &Record) -> ReportData {
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

/// What to know before trusting a record, the worst first.
pub fn warnings(data: &Data) -> Vec<String> {
    let failed = data.failures.iter().map(|what| format!("Failed while running: {what}"));
    let void = data.void.iter().map(|why| format!("The measurement is void: {why}"));
    failed.chain(void).chain(data.warnings.iter().cloned()).collect()
}

fn facts(record: &Record) -> Vec<Fact> {
    let (data, environment) = (&record.data, &record.environment);
    let last = data.seed.wrapping_add(u64::from(data.repeat.max(1)) - 1);
    let seeds = if data.repeat > 1 { format!("{} to {last}", data.seed) } else { data.seed.to_string() };
    let mut facts = vec![("Stage", data.stage.clone()), ("Seeds", seeds)];
    if let Some(cell) = data.cells.first() {
        // Flows that run only beside tests have no run of their own.
        if cell.duration_ns > 0 {
            facts.push(("Duration", format::duration(cell.duration_ns)));
            facts.push(("Interval", format::duration(cell.interval_ns)));
        }
    }
    facts.push(("Cells", data.cells.len().to_string()));
    facts.push((
        "Confidence",
        if data.repeat > 1 { "95 %, Student's t".into() } else { "one run: none".into() },
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

/// One line per expectation and cell; `of` names the record where there are several.
pub fn verdicts(data: &Data, of: &str) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for expectation in &data.expectations {
        let verdict = |achieved: String, pass, cell: String| Verdict {
            name: expectation.name.clone(),
            metric: expectation.metric.clone(),
            condition: expectation.condition.clone(),
            achieved,
            claim: expectation.claim.clone(),
            pass,
            cell: [of, &cell].into_iter().filter(|t| !t.is_empty()).collect::<Vec<_>>().join(": "),
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

/// Metrics of one family as columns, a row per cell and subject.
fn family_table(data: &Data, family: &str, title: &str) -> Option<Table> {
    let belongs = |m: &&MetricEntry| {
        m.name.split('.').next() == Some(family)
            || (family == "vpn" && m.name.starts_with("fairness.intra_vpn.per_vpn"))
    };
    let mut metrics: Vec<&MetricEntry> = data.metrics.iter().filter(belongs).collect();
    // A column in which nothing ever happens tells nothing.
    let happens = |m: &&MetricEntry| {
        let all = data.cells.iter().flat_map(|c| &c.summary);
        all.filter(|s| s.metric == m.name).any(|s| s.value.mean.is_some_and(|v| v != 0.0))
    };
    metrics.retain(happens);
    let several = data.cells.len() > 1;
    let mut table = Table { title: title.into(), ..Table::default() };
    table.note = "Means over the measured span; packets are totals of a run.".into();
    table.columns.extend(several.then(|| Column::left("cell")));
    table.columns.push(Column::left(family));
    let name =
        |m: &&MetricEntry| m.name.strip_prefix(family).map_or(m.name.clone(), |n| n[1..].replace('_', " "));
    table.columns.extend(metrics.iter().map(|m| Column::right(name(m))));
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

/// How strongly throughput follows what else was seen of TCP flows.
fn correlation_table(data: &Data) -> Option<Table> {
    let name = |cell: Option<usize>| match cell {
        Some(index) => data.cells.get(index).map_or(String::new(), |cell| cell_name(data, cell)),
        None => "across all cells".to_owned(),
    };
    let row = |entry: &CorrelationEntry| {
        let number = |value: f64| format!("{value:.2}");
        let interval = format!("{} … {}", number(entry.low), number(entry.high));
        let (subject, metric) = (entry.subject.clone(), entry.metric.clone());
        vec![name(entry.cell), subject, metric, number(entry.coefficient), interval, entry.count.to_string()]
    };
    let left = ["cell", "flow", "throughput follows"].map(Column::left);
    let right = ["rank correlation", "95 % interval", "bins or cells"].map(Column::right);
    (!data.correlations.is_empty()).then(|| Table {
        title: "What throughput follows".into(),
        note:
            "1: throughput always rises with it; -1: it always falls; an interval around 0: nothing is seen \
               of that. Bins of a run that resemble those before them count less."
                .into(),
        columns: left.into_iter().chain(right).collect(),
        rows: data.correlations.iter().map(row).collect(),
    })
}

/// A row per cell, metric and subject that has a distribution.
fn distribution_table(data: &Data) -> Option<Table> {
    let several = data.cells.len() > 1;
    let mut table = Table { title: "Distributions".into(), ..Table::default() };
    table.note = "Over all packets of all runs; values carry three significant digits.".into();
    table.columns.extend(several.then(|| Column::left("cell")));
    table.columns.extend([Column::left("metric"), Column::left("subject"), Column::right("values")]);
    let names = ["mean", "smallest", "median", "90 %", "99 %", "99.9 %", "largest"];
    table.columns.extend(names.map(Column::right));
    for cell in &data.cells {
        for entry in &cell.distributions {
            let unit = data.metric(&entry.metric).map_or("", |m| m.unit.as_str());
            let DistributionEntry { mean, min, p50, p90, p99, p999, max, .. } = *entry;
            let mut row = Vec::new();
            row.extend(several.then(|| cell_name(data, cell)));
            row.extend([entry.metric.clone(), entry.subject.clone(), entry.count.to_string()]);
            row.extend([mean, min, p50, p90, p99, p999, max].map(|value| format::quantity(value, unit)));
            table.rows.push(row);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// What was asked of the tool beside what it achieved.
fn load_table(data: &Data) -> Option<Table> {
    let several = data.cells.len() > 1;
    let mut table = Table { title: "Asked and achieved".into(), ..Table::default() };
    table.note = "Means over runs; worst is the run furthest from what was asked.".into();
    table.columns.extend(several.then(|| Column::left("cell")));
    table.columns.extend([Column::left("subject"), Column::left("quantity")]);
    table.columns.extend(["asked", "achieved", "worst"].map(Column::right));
    for cell in &data.cells {
        for entry in &cell.loads {
            let layer = if entry.layer.is_empty() { String::new() } else { format!(" ({})", entry.layer) };
            let mut row = Vec::new();
            row.extend(several.then(|| cell_name(data, cell)));
            row.extend([entry.subject.clone(), format!("{}{layer}", entry.quantity)]);
            row.extend([entry.asked, entry.achieved, entry.worst].map(|v| format::quantity(v, &entry.unit)));
            table.rows.push(row);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// Where the stage differs from what the scenario says.
fn differences_table(data: &Data) -> Option<Table> {
    let mut table = Table { title: "Differences from the scenario".into(), ..Table::default() };
    table.columns.push(Column::left(format!("on {}", data.stage)));
    table.rows = data.differences.iter().map(|text| vec![text.clone()]).collect();
    (!table.rows.is_empty()).then_some(table)
}

fn topology(data: &Data) -> Option<Topology> {
    let cell = data.cells.first()?;
    let utilisation = |name: &str| {
        let direction = |d: &str| cell.summary("link.utilisation", &format!("{name}.{d}"))?.value.mean;
        direction("forward").into_iter().chain(direction("reverse")).reduce(f64::max)
    };
    // A record tells the weights of its first cell alone.
    let keeps_weights = |cell: &CellEntry| {
        cell.variant.is_empty() && !cell.settings.iter().any(|(path, _)| may_set_weights(path))
    };
    let are_alike = data.cells.len() == 1 || data.cells.iter().all(keeps_weights);
    drawn(&data.topology, utilisation, |_, weight| are_alike.then_some(weight))
}

/// Whether a path may lead to weights of VPNs: into their tables, or what these fall back on, beyond their control.
fn may_set_weights(path: &str) -> bool {
    let head = path.split('.').next().unwrap_or_default();
    (head.contains('*') || ["vpn", "defaults"].contains(&head)) && !path.contains(".control.")
}

/// The network of cells that have not run; none where there is nothing to draw.
pub fn planned(cells: &[Cell]) -> Option<Topology> {
    let is_alike = |name: &str, weight: f64| {
        cells
            .iter()
            .all(|cell| cell.plan.vpns.iter().any(|vpn| vpn.name == name && vpn.settings.weight == weight))
    };
    let weight = |name: &str, weight: f64| is_alike(name, weight).then_some(weight);
    drawn(&(&cells.first()?.plan).into(), |_| None, weight)
}

fn drawn(
    topology: &netstage_scenario::record::Topology,
    utilisation: impl Fn(&str) -> Option<f64>,
    weight: impl Fn(&str, f64) -> Option<f64>,
) -> Option<Topology> {
    let links = topology.links.iter().map(|l| Link {
        name: l.name.clone(),
        ends: l.ends.clone(),
        rate: format::rate(l.rate_bps),
        delay: format::duration(l.delay_ns),
        utilisation: utilisation(&l.name).map(|u| (u * 1e4).round() / 1e4),
    });
    let vpns = topology.vpns.iter().map(|v| Vpn {
        name: v.name.clone(),
        weight: weight(&v.name, v.weight),
        path: v.path.clone(),
    });
    let nodes = topology.nodes.clone();
    (!nodes.is_empty()).then(|| Topology { nodes, links: links.collect(), vpns: vpns.collect() })
}

#[cfg(test)]
mod tests {
    use super::may_set_weights;

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
