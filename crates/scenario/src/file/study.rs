//! `[measure]`, `[sweep]`, `[variant.NAME]`, `[expect.NAME]` and `[plot.NAME]`.

use crate::error::{Place, Problems};
use crate::quantity::Dimension;
use crate::scalar::{Amount, MetricName, Number, Span, SubjectPattern, SweptPath, number, share};
use crate::table::{At, Decode, Kind, List, choice, mismatch, table};
use crate::tree::{Node, Value};
use netstage_core::time::Duration;

table! {
    /// What is recorded.
    pub(crate) struct Measure "[measure]" {
        /// Width of a bin.
        interval: At<Span> = "1 s",
        /// Record every flow's window, round trip and retransmissions, not only its throughput.
        flow_detail: bool = false,
        /// With "events", record what happens to the window of every TCP flow, and why; of applications and services at
        /// either end, as `NAME[forward]` (from the client) and `NAME[backward]`.
        tcp: Option<TcpWatch>,
        /// Record the one-way delays of every UDP flow's packets and how often each occurs.
        delay: bool = false,
    }
}

/// What is watched of TCP flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TcpWatch {
    Events,
}

choice!(TcpWatch {
    /// Each change of a window and its cause: metrics `flow.window.*`, `flow.reductions`, `flow.cause.*`, `flow.limited.*`.
    "events" => TcpWatch::Events,
});

/// A path and what it is set to.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub path: String,
    pub place: Place,
    pub value: Node,
}

/// Paths in the order of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assignments(pub Vec<Assignment>);

impl Decode for Assignments {
    fn kind() -> Kind {
        Kind::Assignments { what: "a table of quoted paths such as \"vpn.*.weight\", each with its value" }
    }

    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        let Some(table) = node.table() else { return mismatch(node, &Self::kind(), problems) };
        let assignments = table.entries.iter().map(|entry| Assignment {
            path: entry.key.clone(),
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

/// Swept paths, each with its list of values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sweep(pub Vec<Swept>);

#[derive(Clone, Debug)]
pub(crate) struct Swept {
    pub path: String,
    pub place: Place,
    pub values: Vec<Node>,
}

impl Decode for Sweep {
    fn kind() -> Kind {
        Kind::Assignments {
            what: "a table of quoted paths such as \"vpn.*.weight\", each with a list of values",
        }
    }

    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        let Some(table) = node.table() else { return mismatch(node, &Self::kind(), problems) };
        let mut swept = Vec::new();
        for entry in &table.entries {
            match &entry.node.value {
                Value::Array(values) if !values.is_empty() => swept.push(Swept {
                    path: entry.key.clone(),
                    place: entry.key_place,
                    values: values.clone(),
                }),
                Value::Array(_) => {
                    problems.push(entry.node.place, "there is nothing in this list to sweep over")
                }
                Value::Table(_) => {
                    let help = format!("quote the whole path, as in \"{}.…\" = […]", entry.key);
                    problems.push_help(
                        entry.key_place,
                        "a swept path has a list of values, found a table",
                        help,
                    );
                }
                _ => {
                    let message =
                        format!("a swept path has a list of values, found {}", entry.node.describe());
                    let help = format!("[{}]", entry.node.to_toml());
                    problems.push_help(entry.node.place, message, help);
                }
            }
        }
        Some(Sweep(swept))
    }
}

table! {
    /// The file with some values set.
    pub(crate) struct Variant "a variant" {
        /// Paths, quoted, and the value of each.
        set: Assignments,
        /// Whether it is swept too; `false`: it is a single cell.
        sweep: bool = true,
    }
}

table! {
    /// A bound on a metric, which decides the exit code.
    pub(crate) struct Expect "an expectation" {
        /// What is bounded.
        metric: At<MetricName>,
        /// Of whom; left out: of all.
        subject: Option<At<SubjectPattern>>,
        /// From when to when; left out: the whole run.
        over: Option<At<List<At<Duration>, 2, 2>>>,
        /// How bins and subjects become one number per run.
        statistic: At<Statistic> = "mean",
        /// With `convergence-time`: the value to stay above.
        above: Option<At<Amount>>,
        /// Lower bound.
        at_least: Option<At<Amount>>,
        /// Upper bound.
        at_most: Option<At<Amount>>,
        /// The value it should be near.
        near: Option<At<Amount>>,
        /// With `near`: how near, as a share of the value.
        within: Option<At<Tolerance>>,
        /// Above the same in this variant.
        above_variant: Option<At<String>>,
        /// What is claimed, in a sentence.
        claim: String = "",
        /// Only cells with these values: swept paths or `variant`.
        cells: Assignments,
    }
}

/// How bins and subjects become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statistic {
    Mean,
    Min,
    Max,
    Sum,
    ConvergenceTime,
}

choice!(Statistic {
    /// Over subjects and bins.
    "mean" => Statistic::Mean,
    /// The smallest single value.
    "min" => Statistic::Min,
    /// The largest single value.
    "max" => Statistic::Max,
    /// Over bins, then over subjects.
    "sum" => Statistic::Sum,
    /// Seconds until the value stays above `above`.
    "convergence-time" => Statistic::ConvergenceTime,
});

/// How far from a value is near: "10 %" or 0.1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tolerance(pub f64);

impl Decode for Tolerance {
    fn kind() -> Kind {
        Kind::Either(vec![
            Kind::Quantity(&[Dimension::Share]),
            Kind::Number { bounds: "above 0", min: 0.0, max: f64::INFINITY },
        ])
    }
    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        let value = match node.text() {
            Some(_) => share(node, problems)?,
            None => number(node).unwrap_or(0.0),
        };
        if value > 0.0 { Some(Tolerance(value)) } else { mismatch(node, &Self::kind(), problems) }
    }
}

table! {
    /// A figure.
    pub(crate) struct Plot "a plot" {
        /// Its title; left out: its name.
        title: Option<String>,
        /// What is shown, in a sentence or two.
        caption: String = "",
        /// What is claimed of it.
        claim: String = "",
        /// What is shown.
        metric: At<MetricName>,
        /// Of whom; left out: of all.
        subject: Option<At<SubjectPattern>>,
        /// The horizontal axis: `time`, `subject`, `variant` or a swept path; of metrics with a
        /// distribution also `percentile` or `histogram`.
        against: At<SweptPath> = "time",
        /// A second swept path: makes a heat map.
        rows: Option<At<SweptPath>>,
        /// Not against time: the span a value is a mean of; left out: the whole run.
        over: Option<At<List<At<Duration>, 2, 2>>>,
        /// Horizontal lines.
        reference_lines: List<ReferenceLine, 0, 50>,
        /// Lower and upper end of the value axis.
        range: Option<At<List<Number, 2, 2>>>,
        /// Only cells with these values: swept paths or `variant`.
        cells: Assignments,
    }
}

table! {
    /// A horizontal line in a figure.
    pub(crate) struct ReferenceLine "a reference line" {
        /// Where.
        value: At<Amount>,
        /// What it says.
        label: String = "",
    }
}
