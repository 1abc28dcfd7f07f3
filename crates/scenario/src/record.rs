//! Schema of `record.json`: the scenario, the metrics and the results of a study.
//!
//! Values are in `series.parquet` in the same folder. Data that may differ between equal runs (host, time) is in
//! `environment.json`, so that the same seed gives the same bytes. A new field raises the minor version, any other
//! change the major version. Readers ignore unknown fields.

mod layout;

use crate::outcome::finding::TestOutcome;
use crate::outcome::{Aggregation, Metric, RunTotals, metric_name};
use crate::plan::{FlowGroup, Plan};
use layout::JsonLayout;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Major version of the schema. Readers refuse any other one.
pub const MAJOR: u32 = 1;
/// Minor version of the schema.
pub const MINOR: u32 = 5;

/// Stage of a record of a router test.
pub const ROUTER_STAGE: &str = "router";

/// Content of `record.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudyRecord {
    /// Schema version, `MAJOR.MINOR`.
    pub schema: String,
    /// Name and version of the tool that wrote it.
    pub tool: String,
    /// Stage: `sim`, `emu` or `live`.
    pub stage: String,
    /// Title of the scenario.
    pub title: String,
    /// Description of the scenario.
    #[serde(default)]
    pub description: String,
    /// Identifier of the plan: equal for equal scenario, seeds, stage and tool.
    pub plan: String,
    /// Seed of the first run; each repeat used the next seed.
    pub seed: u64,
    /// Runs per cell.
    pub repeat: u32,
    /// Warnings about the validity of the results.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Reasons why the measurement is void (the tool itself fell short); empty if it is valid.
    #[serde(default)]
    pub void: Vec<String>,
    /// Partial failures, such as a lost agent or a flow that did not start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// Differences between the stage and the scenario.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
    /// Expectations and their results.
    #[serde(default)]
    pub expectations: Vec<ExpectationEntry>,
    /// Correlations of throughput with the limits of TCP, if these were recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub correlations: Vec<CorrelationEntry>,
    /// Cells of the sweep.
    pub cells: Vec<CellEntry>,
    /// Metrics that occur.
    pub metrics: Vec<MetricEntry>,
    /// Network of the first cell.
    #[serde(default)]
    pub topology: NetworkTopology,
    /// File of the values.
    pub series: SeriesFile,
    /// File of the distributions, if any were recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distributions: Option<SeriesFile>,
    /// Text of the scenario, with command-line options applied.
    pub scenario: String,
}

/// Rank correlation of a flow's throughput with another of its metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CorrelationEntry {
    /// Index of the cell whose bins are correlated; `None` for the means of all cells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<usize>,
    /// Name of the flow.
    pub subject: String,
    /// Metric, by its name in the registry.
    #[serde(deserialize_with = "metric_name")]
    pub metric: String,
    /// Spearman's rho, from -1 to 1.
    pub coefficient: f64,
    /// Lower bound of its 95 % confidence interval.
    pub low: f64,
    /// Upper bound of its 95 % confidence interval.
    pub high: f64,
    /// Number of bins or cells compared.
    pub count: usize,
}

/// Size and checksum of a file of values, which identify the file of this record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesFile {
    /// Number of rows.
    pub rows: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// XXH64 of its bytes, in hexadecimal.
    pub xxh64: String,
}

/// Cell of the sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellEntry {
    /// Name of the variant; empty if none.
    #[serde(default)]
    pub variant: String,
    /// Swept paths and values.
    #[serde(default)]
    pub settings: Vec<(String, String)>,
    /// Duration of a run, nanoseconds.
    pub duration_ns: u64,
    /// Width of a bin, nanoseconds.
    pub interval_ns: u64,
    /// Time span of the summary, from the bin in which the first measured flow starts to the end of the run.
    pub measured_ns: (u64, u64),
    /// Summary of each metric and subject.
    pub summary: Vec<SummaryEntry>,
    /// Summary of each distribution.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distributions: Vec<DistributionEntry>,
    /// Requested and achieved values of the tool itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loads: Vec<LoadEntry>,
    /// Outcome of each test in each run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tests: Vec<TestEntry>,
    /// Totals of all runs.
    #[serde(default)]
    pub totals: TotalsEntry,
}

/// Outcome of a test in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestEntry {
    /// Seed of the run.
    pub seed: u64,
    /// Outcome of the test.
    #[serde(flatten)]
    pub outcome: TestOutcome,
}

/// Summary of a metric and subject over the measured span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SummaryEntry {
    /// Metric, by its name in the registry.
    #[serde(deserialize_with = "metric_name")]
    pub metric: String,
    /// Name of a VPN, link direction or flow group (mean or sum over its members); empty for the whole network.
    pub subject: String,
    /// Mean over the span, or sum if the metric's bins are sums.
    #[serde(flatten)]
    pub value: Estimate,
    /// Minimum of all bins and runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Maximum of all bins and runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// Summary of a distribution over all packets of all runs, in the metric's unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistributionEntry {
    /// Metric, by its name in the registry.
    #[serde(deserialize_with = "metric_name")]
    pub metric: String,
    /// Subject, as in [`SummaryEntry`].
    pub subject: String,
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean: f64,
    /// Minimum.
    pub min: f64,
    /// Median. Each percentile is `None` with too few values for a 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    /// 90th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<f64>,
    /// 95th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95: Option<f64>,
    /// 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    /// 99.9th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p999: Option<f64>,
    /// Maximum.
    pub max: f64,
    /// 95 % interval of each percentile, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub intervals: BTreeMap<String, (f64, f64)>,
}

/// Requested and achieved value of a quantity that the tool itself controls, as means over runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadEntry {
    /// Name of a flow or link direction.
    pub subject: String,
    /// Name of the quantity.
    pub quantity: String,
    /// Unit of the values; empty if none.
    #[serde(default)]
    pub unit: String,
    /// Layer at which a rate or size is counted, or empty.
    #[serde(default)]
    pub layer: String,
    /// Requested value.
    #[serde(alias = "asked")]
    pub requested: f64,
    /// Achieved value.
    pub achieved: f64,
    /// Achieved value of the run furthest from the requested value.
    pub worst: f64,
}

/// Mean over runs, with its 95 % confidence interval (Student's t).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Mean; `None` if no run has a value, or a run never met the condition.
    pub mean: Option<f64>,
    /// Lower bound; `None` with fewer than two runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper bound; `None` with fewer than two runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Number of runs with a value.
    #[serde(default)]
    pub runs: u32,
}

/// Expectation and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectationEntry {
    /// Name in the scenario.
    pub name: String,
    /// Metric, by name.
    #[serde(deserialize_with = "metric_name")]
    pub metric: String,
    /// Condition, in words.
    pub condition: String,
    /// Claim of the paper or another source.
    #[serde(default)]
    pub claim: String,
    /// Unit of the values.
    #[serde(default)]
    pub unit: String,
    /// Result over all selected cells.
    pub pass: bool,
    /// Reason given for an expectation that is not met; empty if it must be met.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub missed: String,
    /// Reason for a missing result; empty otherwise.
    #[serde(default)]
    pub problem: String,
    /// Results of the selected cells.
    pub cells: Vec<ExpectationCell>,
}

impl ExpectationEntry {
    /// Returns whether the run fails: the expectation is not met, or is met although it has a reason for not being met.
    pub fn fails(&self) -> bool {
        self.pass != self.missed.is_empty() || !self.problem.is_empty()
    }
}

/// Result of an expectation in one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectationCell {
    /// Index of the cell.
    pub cell: usize,
    /// Value over the runs.
    #[serde(flatten)]
    pub value: Estimate,
    /// Formatted value.
    pub achieved: String,
    /// Result of the comparison with the bound.
    pub pass: bool,
}

/// Description of a metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricEntry {
    /// Name of the metric.
    #[serde(deserialize_with = "metric_name")]
    pub name: String,
    /// Unit of the values; empty if none.
    pub unit: String,
    /// Layer at which a rate or size is counted, or empty.
    pub layer: String,
    /// Aggregation of a bin's values: `mean`, `sum`, `last` or `max`.
    pub aggregation: String,
    /// Meaning of `time_ns`: always `start`, the start of the bin.
    pub bin: String,
    /// One-line description.
    pub help: String,
}

/// Totals of runs; see [`RunTotals`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TotalsEntry {
    /// Events processed by the simulator.
    #[serde(default)]
    pub events: u64,
    /// Packets sent into the network.
    #[serde(default)]
    pub sent: u64,
    /// Packets whose payload reached their destination host.
    #[serde(default)]
    pub delivered_data: u64,
    /// Copies made by links that deliver packets twice.
    #[serde(default)]
    pub duplicated: u64,
    /// Packets that reached their destination host or PE, with copies.
    #[serde(default)]
    pub delivered: u64,
    /// Packets dropped by queues or lost on links.
    #[serde(default)]
    pub lost: u64,
    /// Packets still in flight at the end.
    #[serde(default)]
    pub in_flight: u64,
    /// Links crossed by packets, total over all packets.
    #[serde(default)]
    pub packet_hops: u64,
}

/// Network topology, for its diagram.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkTopology {
    /// Nodes.
    pub nodes: Vec<TopologyNode>,
    /// Links.
    pub links: Vec<TopologyLink>,
    /// VPNs.
    #[serde(default)]
    pub vpns: Vec<TopologyVpn>,
    /// Names of the nodes on the paths of flows from sender to receiver, each path once; empty if there are VPNs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<Vec<String>>,
}

/// Maximum number of paths of flows. More do not change the diagram.
const MAX_PATHS: usize = 500;

/// Node of the topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyNode {
    /// Name of the node.
    pub name: String,
    /// Kind, as in the scenario.
    pub kind: String,
}

/// Link of the topology, with the rate and delay of its first direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyLink {
    /// Name of the link.
    pub name: String,
    /// Names of both nodes.
    pub ends: (String, String),
    /// Rate, bits per second.
    pub rate_bps: u64,
    /// One-way delay, nanoseconds.
    pub delay_ns: u64,
    /// Flows that cross the link in either direction.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub flows: usize,
    /// Rate and delay of the reverse direction, if they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverse: Option<(u64, u64)>,
}

/// VPN of the topology.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopologyVpn {
    /// Name of the VPN.
    pub name: String,
    /// Weight.
    pub weight: f64,
    /// Names of the nodes from ingress to egress.
    pub path: Vec<String>,
}

/// Error of reading a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The text is not JSON, or does not match the schema.
    Malformed(String),
    /// The major version is not supported.
    Version(String),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Malformed(reason) => write!(f, "not a record: {reason}"),
            ReadError::Version(found) => {
                write!(f, "unsupported schema version {found}, expected {MAJOR}; use a newer netstage")
            }
        }
    }
}

impl std::error::Error for ReadError {}

impl StudyRecord {
    /// Reads the text of a `record.json`.
    pub fn from_json(text: &str) -> Result<StudyRecord, ReadError> {
        /// Fields common to all schema versions.
        #[derive(Deserialize)]
        struct SchemaVersion {
            schema: String,
        }
        let malformed = |e: serde_json::Error| ReadError::Malformed(e.to_string());
        let head: SchemaVersion = serde_json::from_str(text).map_err(malformed)?;
        let major = head.schema.split('.').next().and_then(|m| m.parse::<u32>().ok());
        if major != Some(MAJOR) {
            return Err(ReadError::Version(head.schema));
        }
        let record: StudyRecord = serde_json::from_str(text).map_err(malformed)?;
        let cells = record.cells.len();
        if record.expectations.iter().flat_map(|e| &e.cells).any(|c| c.cell >= cells) {
            return Err(ReadError::Malformed("an expectation refers to a missing cell".into()));
        }
        Ok(record)
    }

    /// Returns the text of `record.json`.
    pub fn to_json(&self) -> String {
        let mut bytes = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, JsonLayout::default());
        self.serialize(&mut serializer).expect("a record consists of serializable types");
        bytes.push(b'\n');
        String::from_utf8(bytes).expect("JSON is UTF-8")
    }

    /// Returns the entry of a metric, if it occurs.
    pub fn metric(&self, name: &str) -> Option<&MetricEntry> {
        self.metrics.iter().find(|m| m.name == name)
    }

    /// Returns the reasons why findings of a router test are lower bounds only: the tester could not offer more. On other
    /// stages, the hosts that send are part of the path under test.
    pub fn shortfalls(&self) -> impl Iterator<Item = &String> {
        let tests = self.cells.iter().filter(|_| self.stage == ROUTER_STAGE).flat_map(|cell| &cell.tests);
        tests.flat_map(|test| &test.outcome.shortfalls)
    }

    /// Returns whether all expectations hold that must.
    pub fn passes(&self) -> bool {
        !self.expectations.iter().any(ExpectationEntry::fails)
    }
}

impl CellEntry {
    /// Returns the variant and settings of the cell as text; empty if there is one cell.
    pub fn label(&self) -> String {
        let variant = (!self.variant.is_empty()).then(|| self.variant.clone());
        let settings = self.settings.iter().map(|(path, value)| format!("{path}={value}"));
        variant.into_iter().chain(settings).collect::<Vec<_>>().join(" ")
    }

    /// Returns the summary of a metric and subject.
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
    /// Adds the totals of a run.
    pub fn add(&mut self, totals: &RunTotals) {
        self.events += totals.events;
        self.sent += totals.sent;
        self.delivered_data += totals.delivered_data;
        self.duplicated += totals.duplicated;
        self.delivered += totals.delivered;
        self.lost += totals.lost;
        self.in_flight += totals.in_flight;
        self.packet_hops += totals.packet_hops;
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl From<&Plan> for NetworkTopology {
    fn from(plan: &Plan) -> NetworkTopology {
        let mut flows = vec![0; plan.links.len()];
        for group in &plan.flows {
            let branches = group.branches.iter().flat_map(|branch| &branch.path);
            let hops = group.path.iter().chain(&group.reverse).chain(branches);
            let crossed: BTreeSet<usize> = hops.map(|hop| hop.link).collect();
            crossed.into_iter().for_each(|link| flows[link] += group.count);
        }
        let node = |index: usize| plan.nodes[index].name.clone();
        let nodes =
            plan.nodes.iter().map(|n| TopologyNode { name: n.name.clone(), kind: n.kind.name().into() });
        let links = plan.links.iter().zip(flows).map(|(l, flows)| {
            let [forward, reverse] =
                l.directions.each_ref().map(|direction| (direction.rate.0, direction.delay.0));
            TopologyLink {
                name: l.name.clone(),
                ends: (node(l.ends[0]), node(l.ends[1])),
                rate_bps: forward.0,
                delay_ns: forward.1,
                flows,
                reverse: (reverse != forward).then_some(reverse),
            }
        });
        let vpns = plan.vpns.iter().map(|v| {
            let nodes = v.path.iter().map(|hop| node(plan.ends(*hop)[1]));
            TopologyVpn {
                name: v.name.clone(),
                weight: v.settings.weight,
                path: std::iter::once(node(v.ingress)).chain(nodes).collect(),
            }
        });
        let path = |group: &FlowGroup| -> Vec<String> {
            let nodes = group.path.iter().map(|hop| node(plan.ends(*hop)[1]));
            std::iter::once(node(group.from)).chain(nodes).collect()
        };
        let mut seen = BTreeSet::new();
        let ends = plan.flows.iter().filter(|group| seen.insert((group.from, group.to)));
        let paths = if plan.vpns.is_empty() { ends.take(MAX_PATHS).map(path).collect() } else { Vec::new() };
        NetworkTopology { nodes: nodes.collect(), links: links.collect(), vpns: vpns.collect(), paths }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_major_versions_are_refused_and_unknown_fields_are_ignored() {
        let newer = r#"{"schema": "2.0", "cells": "something else"}"#;
        assert_eq!(StudyRecord::from_json(newer), Err(ReadError::Version("2.0".into())));
        let known = r#"{"schema": "1.9", "tool": "t", "stage": "sim", "title": "x", "plan": "p", "seed": 1,
            "repeat": 2, "cells": [{"duration_ns": 1, "interval_ns": 1, "measured_ns": [0, 1], "summary": [
            {"metric": "m", "subject": "", "mean": null, "colour": "red"}], "shape": "round"}], "metrics": [],
            "series": {"rows": 0, "bytes": 0, "xxh64": "0"}, "scenario": "", "later": true}"#;
        let record = StudyRecord::from_json(known).unwrap();
        assert_eq!(record.repeat, 2);
        assert_eq!(StudyRecord::from_json(&record.to_json()), Ok(record));
    }

    #[test]
    fn records_of_version_0_1_are_read_with_current_names() {
        let old = r#"{"schema": "1.0", "tool": "netstage 0.1.0", "stage": "emu", "title": "x", "plan": "p", "seed": 1,
            "repeat": 1, "cells": [{"duration_ns": 1, "interval_ns": 1, "measured_ns": [0, 1],
            "summary": [{"metric": "link.utilisation", "subject": "line", "mean": 0.5}],
            "loads": [{"subject": "call", "quantity": "rate", "unit": "bit/s", "layer": "ip", "asked": 2.0,
                "achieved": 1.0, "worst": 1.0}],
            "tests": [{"seed": 1, "name": "t", "kind": "loss", "findings": [
                {"metric": "test.latency.most", "subject": "t", "value": 0.1}], "trials": [{"subject": "t",
                "frame": 64, "asked_bps": 3.0, "offered_bps": 3.0, "sending_ns": 1, "sent": 1, "lost": 0}]}]}],
            "metrics": [{"name": "link.utilisation", "unit": "", "layer": "", "aggregation": "mean", "bin": "start",
                "help": ""}], "series": {"rows": 0, "bytes": 0, "xxh64": "0"}, "scenario": ""}"#;
        let record = StudyRecord::from_json(old).unwrap();
        let cell = &record.cells[0];
        assert!(
            cell.summary("link.utilization", "line").is_some() && record.metric("link.utilization").is_some()
        );
        let test = &cell.tests[0].outcome;
        assert_eq!(test.findings[0].metric, "test.latency.max");
        assert_eq!((cell.loads[0].requested, test.trials[0].requested_bps), (2.0, 3.0));
    }

    #[test]
    fn malformed_records_are_refused() {
        for text in ["", "{}", "[1]", "{\"schema\": 1}", "{\"schema\": \"1.0\"}", "\u{0}"] {
            assert!(matches!(StudyRecord::from_json(text), Err(ReadError::Malformed(_))), "{text}");
        }
    }
}
