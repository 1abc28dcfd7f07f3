//! The schema of `record.json`: what ran, what was measured, and what it came to.
//!
//! The values themselves are in `series.parquet` beside it. Everything that may differ
//! between two equal runs (host, time) is in `environment.json` instead, so that the
//! same seed gives the same bytes. Adding a field raises the minor version; anything
//! else raises the major version. Readers ignore fields they do not know.

mod layout;

use crate::outcome::finding::TestOutcome;
use crate::outcome::{Aggregation, Metric, Totals};
use crate::plan::Plan;
use layout::Layout;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Major version of the schema: readers refuse a newer one.
pub const MAJOR: u32 = 1;
/// Minor version of the schema.
pub const MINOR: u32 = 2;

/// Everything in `record.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// `MAJOR.MINOR`.
    pub schema: String,
    /// Name and version of the tool that wrote it.
    pub tool: String,
    /// What it ran on: `sim`, `emu` or `live`.
    pub stage: String,
    /// What the scenario is called.
    pub title: String,
    /// A few sentences from the scenario.
    #[serde(default)]
    pub description: String,
    /// Identity of what ran: equal for equal scenario, seeds, stage and tool.
    pub plan: String,
    /// First seed; repeats used the following ones.
    pub seed: u64,
    /// Runs per cell.
    pub repeat: u32,
    /// What a reader must know before trusting the figures.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Why the measurement is void (the tool itself fell short); empty where it is not.
    #[serde(default)]
    pub void: Vec<String>,
    /// What failed while the rest went on: an agent lost, a flow that could not start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// Where the stage differs from what the scenario says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
    /// What was expected, and what came of it.
    #[serde(default)]
    pub expectations: Vec<ExpectationEntry>,
    /// How strongly throughput follows what holds TCP back, where that was watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub correlations: Vec<CorrelationEntry>,
    /// The cells of the sweep.
    pub cells: Vec<CellEntry>,
    /// The metrics that occur.
    pub metrics: Vec<MetricEntry>,
    /// The network of the first cell.
    #[serde(default)]
    pub topology: Topology,
    /// The file with the values.
    pub series: SeriesFile,
    /// The file with the distributions, where any were taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distributions: Option<SeriesFile>,
    /// The scenario as run.
    pub scenario: String,
}

/// The rank correlation of a flow's throughput with another metric of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorrelationEntry {
    /// Index of the cell, whose bins are compared; none: the means of all cells are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<usize>,
    /// The flow.
    pub subject: String,
    /// The metric, by its name in the registry.
    pub metric: String,
    /// Spearman's rho: from -1 to 1.
    pub coefficient: f64,
    /// Lower end of its 95 % interval.
    pub low: f64,
    /// Upper end of its 95 % interval.
    pub high: f64,
    /// Bins or cells compared.
    pub count: usize,
}

/// A file of values, as this record was written with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesFile {
    /// Rows.
    pub rows: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// XXH64 of its bytes, in hexadecimal.
    pub xxh64: String,
}

/// One cell of the sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellEntry {
    /// Name of its variant; empty where there is none.
    #[serde(default)]
    pub variant: String,
    /// Swept path and value.
    #[serde(default)]
    pub settings: Vec<(String, String)>,
    /// Length of a run, nanoseconds.
    pub duration_ns: u64,
    /// Width of a bin, nanoseconds.
    pub interval_ns: u64,
    /// What the summary covers: from the bin in which the first measured flow starts
    /// to the end.
    pub measured_ns: (u64, u64),
    /// Each metric and subject as one number.
    pub summary: Vec<SummaryEntry>,
    /// Each distribution in a few numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distributions: Vec<DistributionEntry>,
    /// How well the tool kept what it was asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<LoadEntry>,
    /// What each test came to, run by run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<TestEntry>,
    /// What its runs cost and moved, together.
    #[serde(default)]
    pub totals: TotalsEntry,
}

/// A test in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestEntry {
    /// Seed of the run.
    pub seed: u64,
    /// What it came to.
    #[serde(flatten)]
    pub outcome: TestOutcome,
}

/// One metric of one subject over the measured span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummaryEntry {
    /// Metric, by its name in the registry.
    pub metric: String,
    /// A VPN, a link's direction, a flow group (mean, or sum, over its members), or empty
    /// for the whole network.
    pub subject: String,
    /// Mean over the span, or sum where the metric's bins are sums.
    #[serde(flatten)]
    pub value: Estimate,
    /// Smallest value of any bin and run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Largest value of any bin and run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// A distribution over all packets of all runs, in the metric's unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistributionEntry {
    /// Metric, by its name in the registry.
    pub metric: String,
    /// As in [`SummaryEntry`].
    pub subject: String,
    /// Values counted.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// The smallest.
    pub min: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// The largest.
    pub max: f64,
}

/// Something asked of the tool itself and what it achieved, means over runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadEntry {
    /// A flow or a link's direction.
    pub subject: String,
    /// What, in a few words.
    pub quantity: String,
    /// Unit of the numbers; empty where there is none.
    #[serde(default)]
    pub unit: String,
    /// Layer a rate or size counts, or empty.
    #[serde(default)]
    pub layer: String,
    /// What was asked.
    pub asked: f64,
    /// What was achieved.
    pub achieved: f64,
    /// What the run furthest from what was asked achieved.
    pub worst: f64,
}

/// A mean over runs with its 95 % confidence interval (Student's t).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The mean; none where no run has a value, or one never reached what was asked.
    pub mean: Option<f64>,
    /// Lower end; none with fewer than two runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Runs that have a value.
    #[serde(default)]
    pub runs: u32,
}

/// An expectation and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectationEntry {
    /// Its name in the scenario.
    pub name: String,
    /// Metric, by name.
    pub metric: String,
    /// What was asked, in words.
    pub condition: String,
    /// What the paper (or whoever) claims.
    #[serde(default)]
    pub claim: String,
    /// Unit of the values.
    #[serde(default)]
    pub unit: String,
    /// Whether it holds in every selected cell.
    pub pass: bool,
    /// Why there is no result, where there is none.
    #[serde(default)]
    pub problem: String,
    /// Each selected cell.
    pub cells: Vec<ExpectationCell>,
}

/// An expectation in one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectationCell {
    /// Index of the cell.
    pub cell: usize,
    /// The number, over the runs.
    #[serde(flatten)]
    pub value: Estimate,
    /// The number as people read it.
    pub achieved: String,
    /// Whether the bound holds.
    pub pass: bool,
}

/// A metric's entry in the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricEntry {
    /// Its name.
    pub name: String,
    /// Unit of its values; empty where there is none.
    pub unit: String,
    /// Layer a rate or size counts, or empty.
    pub layer: String,
    /// How a bin's value is formed: `mean`, `sum` or `last`.
    pub aggregation: String,
    /// What `time_ns` is: always `start`, the start of the bin.
    pub bin: String,
    /// One line for people.
    pub help: String,
}

/// What runs cost and moved; see [`Totals`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TotalsEntry {
    /// Events the simulator processed.
    #[serde(default)]
    pub events: u64,
    /// Packets handed to the network.
    #[serde(default)]
    pub sent: u64,
    /// Packets whose payload reached the host they were addressed to.
    #[serde(default)]
    pub delivered_data: u64,
    /// Packets that reached a host or PE they were addressed to.
    #[serde(default)]
    pub delivered: u64,
    /// Packets dropped by queues or lost on lines.
    #[serde(default)]
    pub lost: u64,
    /// Packets still under way at the end.
    #[serde(default)]
    pub in_flight: u64,
    /// Links crossed by packets, in all.
    #[serde(default)]
    pub packet_hops: u64,
}

/// The network, for drawing it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// Nodes.
    pub nodes: Vec<TopologyNode>,
    /// Links.
    pub links: Vec<TopologyLink>,
    /// VPNs.
    #[serde(default)]
    pub vpns: Vec<TopologyVpn>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyNode {
    /// Its name.
    pub name: String,
    /// `host`, `router` or `pe`.
    pub kind: String,
}

/// A link; rate and delay are those of its first direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyLink {
    /// Its name.
    pub name: String,
    /// Names of its two nodes.
    pub ends: (String, String),
    /// Bits per second.
    pub rate_bps: u64,
    /// One-way delay, nanoseconds.
    pub delay_ns: u64,
}

/// A VPN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopologyVpn {
    /// Its name.
    pub name: String,
    /// Its weight.
    pub weight: f64,
    /// Node names from ingress to egress.
    pub path: Vec<String>,
}

/// Why a text is not a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// Not JSON, or not of this shape.
    Malformed(String),
    /// A major version this tool does not read.
    Version(String),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Malformed(why) => write!(f, "not a record: {why}"),
            ReadError::Version(found) => {
                write!(f, "schema version {found}, but this tool reads version {MAJOR}; use a newer netstage")
            }
        }
    }
}

impl std::error::Error for ReadError {}

impl Record {
    /// Reads the text of a `record.json`.
    pub fn from_json(text: &str) -> Result<Record, ReadError> {
        /// The one field every version has.
        #[derive(Deserialize)]
        struct Head {
            schema: String,
        }
        let malformed = |e: serde_json::Error| ReadError::Malformed(e.to_string());
        let head: Head = serde_json::from_str(text).map_err(malformed)?;
        let major = head.schema.split('.').next().and_then(|m| m.parse::<u32>().ok());
        if major != Some(MAJOR) {
            return Err(ReadError::Version(head.schema));
        }
        let record: Record = serde_json::from_str(text).map_err(malformed)?;
        let cells = record.cells.len();
        if record.expectations.iter().flat_map(|e| &e.cells).any(|c| c.cell >= cells) {
            return Err(ReadError::Malformed("an expectation names a cell that does not exist".into()));
        }
        Ok(record)
    }

    /// The text of its `record.json`.
    pub fn to_json(&self) -> String {
        let mut bytes = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Layout::default());
        self.serialize(&mut serializer).expect("a record holds only names and numbers");
        bytes.push(b'\n');
        String::from_utf8(bytes).expect("JSON is UTF-8")
    }

    /// The entry of a metric, if it occurs.
    pub fn metric(&self, name: &str) -> Option<&MetricEntry> {
        self.metrics.iter().find(|m| m.name == name)
    }

    /// Whether every expectation holds.
    pub fn passes(&self) -> bool {
        self.expectations.iter().all(|e| e.pass)
    }
}

impl CellEntry {
    /// What sets it apart from the others, as text; empty for an only cell.
    pub fn label(&self) -> String {
        let variant = (!self.variant.is_empty()).then(|| self.variant.clone());
        let settings = self.settings.iter().map(|(path, value)| format!("{path}={value}"));
        variant.into_iter().chain(settings).collect::<Vec<_>>().join(" ")
    }

    /// The summary of one metric and subject.
    pub fn summary(&self, metric: &str, subject: &str) -> Option<&SummaryEntry> {
        self.summary.iter().find(|s| s.metric == metric && s.subject == subject)
    }
}

impl From<Metric> for MetricEntry {
    fn from(metric: Metric) -> MetricEntry {
        let info = metric.info();
        let aggregation = match info.aggregation {
            Aggregation::Mean => "mean",
            Aggregation::Sum => "sum",
            Aggregation::Last => "last",
            Aggregation::Max => "max",
        };
        MetricEntry {
            name: info.name.into(),
            unit: info.unit.into(),
            layer: info.layer.into(),
            aggregation: aggregation.into(),
            bin: "start".into(),
            help: info.help.into(),
        }
    }
}

impl TotalsEntry {
    /// Adds one run's.
    pub fn add(&mut self, totals: &Totals) {
        self.events += totals.events;
        self.sent += totals.sent;
        self.delivered_data += totals.delivered_data;
        self.delivered += totals.delivered;
        self.lost += totals.lost;
        self.in_flight += totals.in_flight;
        self.packet_hops += totals.packet_hops;
    }
}

impl From<&Plan> for Topology {
    fn from(plan: &Plan) -> Topology {
        let node = |index: usize| plan.nodes[index].name.clone();
        let nodes =
            plan.nodes.iter().map(|n| TopologyNode { name: n.name.clone(), kind: n.kind.name().into() });
        let links = plan.links.iter().map(|l| TopologyLink {
            name: l.name.clone(),
            ends: (node(l.ends[0]), node(l.ends[1])),
            rate_bps: l.directions[0].rate.0,
            delay_ns: l.directions[0].delay.0,
        });
        let vpns = plan.vpns.iter().map(|v| {
            let way = v.path.iter().map(|hop| node(plan.ends(*hop)[1]));
            TopologyVpn {
                name: v.name.clone(),
                weight: v.settings.weight,
                path: std::iter::once(node(v.ingress)).chain(way).collect(),
            }
        });
        Topology { nodes: nodes.collect(), links: links.collect(), vpns: vpns.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_major_version_is_refused_and_unknown_fields_are_not() {
        let newer = r#"{"schema": "2.0", "cells": "something else"}"#;
        assert_eq!(Record::from_json(newer), Err(ReadError::Version("2.0".into())));
        let known = r#"{"schema": "1.9", "tool": "t", "stage": "sim", "title": "x", "plan": "p", "seed": 1,
            "repeat": 2, "cells": [{"duration_ns": 1, "interval_ns": 1, "measured_ns": [0, 1], "summary": [
            {"metric": "m", "subject": "", "mean": null, "colour": "red"}], "shape": "round"}], "metrics": [],
            "series": {"rows": 0, "bytes": 0, "xxh64": "0"}, "scenario": "", "later": true}"#;
        let record = Record::from_json(known).unwrap();
        assert_eq!(record.repeat, 2);
        assert_eq!(Record::from_json(&record.to_json()), Ok(record));
    }

    #[test]
    fn what_is_not_a_record_is_said_to_be_none() {
        for text in ["", "{}", "[1]", "{\"schema\": 1}", "{\"schema\": \"1.0\"}", "\u{0}"] {
            assert!(matches!(Record::from_json(text), Err(ReadError::Malformed(_))), "{text}");
        }
    }
}
