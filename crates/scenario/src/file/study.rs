//! `[measure]`, `[sweep]`, `[variant.NAME]`, `[expect.NAME]` and `[plot.NAME]`.

use crate::error::{Problems, SourceRange};
use crate::quantity::Dimension;
use crate::scalar::{Amount, MetricName, Number, PositiveDuration, SubjectPattern, SweptPath, number, share};
use crate::table::{Decode, List, Located, ValueKind, choice, mismatch, table};
use crate::tree::{TomlNode, TomlValue};
use netstage_core::time::Duration;

table! {
    /// Recording of results.
    pub(crate) struct MeasureTable "[measure]" {
        /// Width of a bin. It must divide the duration of the run; by default 1 s, or the longest of 500, 250, 200, 100,
        /// … ms that does.
        interval: Option<Located<PositiveDuration>>,
        /// Record the window, round-trip time and retransmissions of every flow in addition to its throughput.
        flow_detail: bool = false,
        /// With "events", record the window changes of every TCP flow and their causes; of applications and services at
        /// both ends, as `NAME[forward]` (from the client) and `NAME[backward]`.
        tcp: Option<TcpWatch>,
        /// Record the distribution of the one-way delays of every UDP flow.
        delay: bool = false,
    }
}

/// Observation of TCP flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpWatch {
    Events,
}

choice!(TcpWatch {
    /// Every window change and its cause: metrics `flow.window.*`, `flow.reductions`, `flow.cause.*`, `flow.limited.*`.
    "events" => TcpWatch::Events,
});

/// Path and the value it is set to.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub path: String,
    pub place: SourceRange,
    pub value: TomlNode,
}

/// Assignments in the order of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assignments(pub Vec<Assignment>);

impl Decode for Assignments {
    fn kind() -> ValueKind {
        ValueKind::Assignments {
            what: "a table of quoted paths such as \"vpn.*.weight\", each with its value",
        }
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let Some(table) = node.table() else { return mismatch(node, &Self::kind(), problems) };
        let assignments = table.entries().iter().map(|entry| Assignment {
            path: entry.key.to_string(),
            place: entry.key_place,
            value: entry.node.clone(),
        });
        Some(Assignments(assignments.collect()))
    }

    const IS_OPTIONAL: bool = true;
    fn missing() -> Option<Self> {
        Some(Assignments::default())
    }
}

/// Swept paths and their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweep(pub Vec<SweptValues>);

#[derive(Clone, Debug)]
pub(crate) struct SweptValues {
    pub path: String,
    pub place: SourceRange,
    pub values: Vec<TomlNode>,
}

impl Decode for Sweep {
    fn kind() -> ValueKind {
        ValueKind::Assignments {
            what: "a table of quoted paths such as \"vpn.*.weight\", each with a list of values",
        }
    }

    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let Some(table) = node.table() else { return mismatch(node, &Self::kind(), problems) };
        let mut swept = Vec::new();
        for entry in table.entries() {
            match &entry.node.value {
                TomlValue::Array(values) if !values.is_empty() => swept.push(SweptValues {
                    path: entry.key.to_string(),
                    place: entry.key_place,
                    values: values.clone(),
                }),
                TomlValue::Array(_) => problems.push_help(
                    entry.node.place,
                    "the list of values is empty",
                    "add a value, or remove the path",
                ),
                TomlValue::Table(_) => {
                    let help = format!("quote the complete path: \"{}.…\" = […]", entry.key);
                    problems.push_help(entry.key_place, "expected a list of values, found a table", help);
                }
                _ => {
                    let message = format!("expected a list of values, found {}", entry.node.describe());
                    let help = format!("write it in brackets: [{}]", entry.node.to_toml());
                    problems.push_help(entry.node.place, message, help);
                }
            }
        }
        Some(Sweep(swept))
    }
}

table! {
    /// Variant of the file, with some values set.
    pub(crate) struct VariantTable "a variant" {
        /// Quoted paths and their values.
        set: Assignments,
        /// Whether the sweep applies to the variant; otherwise it is a single cell.
        sweep: bool = true,
    }
}

table! {
    /// Bound on a metric, which decides the exit code.
    pub(crate) struct ExpectTable "an expectation" {
        /// Bounded metric.
        metric: Located<MetricName>,
        /// Subjects; default: all.
        subject: Option<Located<SubjectPattern>>,
        /// Start and end of the evaluated span; default: the whole run.
        over: Option<Located<List<Located<Duration>, 2, 2>>>,
        /// Reduction of bins and subjects to one number per run.
        statistic: Located<Statistic> = "mean",
        /// With `convergence-time`: value to exceed.
        above: Option<Located<Amount>>,
        /// Lower bound.
        at_least: Option<Located<Amount>>,
        /// Upper bound.
        at_most: Option<Located<Amount>>,
        /// Expected value.
        near: Option<Located<Amount>>,
        /// With `near`: tolerance, relative to the value.
        within: Option<Located<Tolerance>>,
        /// Variant whose result must be exceeded.
        above_variant: Option<Located<String>>,
        /// Cell whose result must be exceeded: swept paths, or `variant`, and their values; the other paths keep the values
        /// of the cell.
        above_cell: Assignments,
        /// With `above_variant` or `above_cell`: the difference must be above zero with 95 % confidence, over pairs of runs
        /// with the same seed.
        confident: Option<Located<bool>>,
        /// Claim, in a sentence.
        claim: String = "",
        /// Reason why the expectation is not met. It is then shown as not met without failing the run, and fails the run
        /// once it is met.
        missed: String = "",
        /// Selected cells: swept paths, or `variant`, and their values; default: all.
        cells: Assignments,
    }
}

/// Reduction of bins and subjects to one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statistic {
    Mean,
    Min,
    Max,
    Sum,
    ConvergenceTime,
    P50,
    P90,
    P95,
    P99,
    P999,
}

choice!(Statistic {
    /// Mean over subjects and bins; over the whole run, of all values of a metric with a distribution.
    "mean" => Statistic::Mean,
    /// Minimum, of the same values.
    "min" => Statistic::Min,
    /// Maximum, of the same values.
    "max" => Statistic::Max,
    /// Sum over subjects, of counts over their bins, of rates and other means of their mean.
    "sum" => Statistic::Sum,
    /// Seconds until the value exceeds `above` for the rest of the span.
    "convergence-time" => Statistic::ConvergenceTime,
    /// Median of all values of all runs, of a metric with a distribution; not met with fewer than 6 values.
    "p50" => Statistic::P50,
    /// 90th percentile; not met with fewer than 36 values.
    "p90" => Statistic::P90,
    /// 95th percentile; not met with fewer than 72 values.
    "p95" => Statistic::P95,
    /// 99th percentile; not met with fewer than 368 values.
    "p99" => Statistic::P99,
    /// 99.9th percentile; not met with fewer than 3,688 values.
    "p99.9" => Statistic::P999,
});

/// Relative tolerance: "10 %" or 0.1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tolerance(pub f64);

impl Decode for Tolerance {
    fn kind() -> ValueKind {
        ValueKind::Either(vec![
            ValueKind::Quantity(&[Dimension::Share]),
            ValueKind::Number { bounds: "above 0", min: 0.0, max: f64::INFINITY },
        ])
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let value = match node.text() {
            Some(_) => share(node, problems)?,
            None => number(node).unwrap_or(0.0),
        };
        if value > 0.0 { Some(Tolerance(value)) } else { mismatch(node, &Self::kind(), problems) }
    }
}

table! {
    /// Figure.
    pub(crate) struct PlotTable "a plot" {
        /// Title; default: the name.
        title: Option<String>,
        /// Caption, one or two sentences.
        caption: String = "",
        /// Claim.
        claim: String = "",
        /// Plotted metric.
        metric: Located<MetricName>,
        /// Subjects; default: all.
        subject: Option<Located<SubjectPattern>>,
        /// Horizontal axis: `time`, `subject`, `variant` or a swept path; for metrics with a distribution also
        /// `percentile`, `histogram`, `cdf` or `box`.
        against: Located<SweptPath> = "time",
        /// Second swept path, which gives the rows of a heat map.
        rows: Option<Located<SweptPath>>,
        /// Unless against time: start and end of the averaged span; default: the whole run.
        over: Option<Located<List<Located<Duration>, 2, 2>>>,
        /// Horizontal reference lines.
        reference_lines: List<ReferenceLine, 0, 50>,
        /// Lower and upper end of the value axis; default: automatic.
        range: Option<Located<List<Number, 2, 2>>>,
        /// Selected cells: swept paths, or `variant`, and their values; default: all.
        cells: Assignments,
    }
}

table! {
    /// Horizontal reference line of a figure.
    pub(crate) struct ReferenceLine "a reference line" {
        /// Value.
        value: Located<Amount>,
        /// Label.
        label: String = "",
    }
}
