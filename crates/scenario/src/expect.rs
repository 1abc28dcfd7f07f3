//! What a scenario expects of its results, and which figures it asks for.

use netstage_core::time::Instant;

/// `[expect.NAME]`: a bound on a metric. It decides the exit code.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// Its name.
    pub name: String,
    /// What is bounded.
    pub select: Selection,
    /// The bound.
    pub bound: Bound,
    /// What the paper (or whoever) claims, in a sentence; may be empty.
    pub claim: String,
}

/// Which values, and how they become one number per cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Metric, by its name in the registry, base or derived.
    pub metric: String,
    /// Subjects; `*` stands for any part of a name. Empty: every subject.
    pub subject: String,
    /// From this time to that.
    pub over: (Instant, Instant),
    /// How bins and subjects become one number per run.
    pub statistic: Statistic,
    /// Only cells whose swept path has this value; `variant` is a path too.
    pub cells: Vec<(String, String)>,
}

/// How the values of one run become one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Statistic {
    /// Mean over subjects and bins.
    Mean,
    /// Smallest single value: the worst bin of the worst subject.
    Min,
    /// Largest single value.
    Max,
    /// Sum over bins, then over subjects.
    Sum,
    /// Seconds after the selection's start until the value stays within the bound
    /// for the rest of the selection.
    ConvergenceTime {
        /// The value it must stay above.
        above: f64,
    },
}

/// The bound on the mean over a cell's runs; it must hold in every selected cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// Not below.
    AtLeast(f64),
    /// Not above.
    AtMost(f64),
    /// Within this fraction of a value.
    Near {
        /// The value.
        value: f64,
        /// 0.1 is 10 %.
        within: f64,
    },
    /// Above the same selection in the cell of this variant.
    AboveVariant(String),
}

/// `[plot.NAME]`: a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Its name, also of its SVG file.
    pub name: String,
    /// Its title.
    pub title: String,
    /// What is plotted, in a sentence or two.
    pub caption: String,
    /// The paper's claim; may be empty.
    pub claim: String,
    /// Metric, by name.
    pub metric: String,
    /// Subjects, as in [`Selection::subject`].
    pub subject: String,
    /// Against what.
    pub against: Against,
    /// Horizontal lines: value and label.
    pub reference_lines: Vec<(f64, String)>,
    /// Only cells that match, as in [`Selection::cells`].
    pub cells: Vec<(String, String)>,
    /// Lower and upper end of the value axis, where given.
    pub range: (Option<f64>, Option<f64>),
}

/// What a figure's horizontal axis shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Against {
    /// Time: a line per cell and subject, mean over seeds with its 95 % interval.
    Time,
    /// A swept path: one value per cell, over the given time span.
    Swept {
        /// The path; a second one makes a heat map.
        path: String,
        /// Rows of a heat map.
        rows: Option<String>,
        /// The span the value is a mean of.
        over: (Instant, Instant),
    },
    /// Percentiles of a distribution, on an axis of nines: a line per cell and subject.
    Percentile,
    /// Values of a distribution, and the share of each: a line per cell and subject.
    Histogram,
    /// Subjects side by side, a bar each.
    Subject {
        /// The span the value is a mean of.
        over: (Instant, Instant),
    },
}
