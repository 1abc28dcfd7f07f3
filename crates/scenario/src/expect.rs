//! Expectations and plots of a scenario.

use netstage_core::time::Instant;

/// `[expect.NAME]`: bound on a metric, which decides the exit code.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// Name.
    pub name: String,
    /// Bounded values.
    pub select: Selection,
    /// Bound.
    pub bound: Bound,
    /// Claim of the paper or author, in a sentence; may be empty.
    pub claim: String,
    /// Reason why the expectation is not met; empty if it must be met.
    pub missed: String,
}

/// Selection of values, and their reduction to one number per cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Name of a base or derived metric.
    pub metric: String,
    /// Subjects, as a pattern in which `*` matches any text; empty for all.
    pub subject: String,
    /// Start and end.
    pub over: (Instant, Instant),
    /// Reduction of bins and subjects to one number per run.
    pub statistic: Statistic,
    /// Selected cells: swept paths, or `variant`, and their values.
    pub cells: Vec<(String, String)>,
}

/// Reduction of the values of a run to one number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Statistic {
    /// Mean over subjects and bins; over a whole run, of all values of a metric with a distribution.
    Mean,
    /// Minimum, of the same values.
    Min,
    /// Maximum, of the same values.
    Max,
    /// Sum over subjects: of counts, of their sum over bins; of rates and other means, of their mean.
    Sum,
    /// Seconds from the start of the selection until the value stays above a threshold for the rest of it.
    ConvergenceTime {
        /// Threshold.
        above: f64,
    },
    /// Quantile, as a share, of the distribution of the metric over all values of all runs.
    Quantile(f64),
}

/// Bound on the mean over the runs of a cell. It must hold in every selected cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// Lower bound.
    AtLeast(f64),
    /// Upper bound.
    AtMost(f64),
    /// Within a relative tolerance of a value.
    Near {
        /// Expected value.
        value: f64,
        /// Tolerance; 0.1 is 10 %.
        within: f64,
    },
    /// Above the same selection in another cell.
    Above {
        /// Settings in which the other cell differs: swept paths, or `variant`, and their values.
        other: Vec<(String, String)>,
        /// The difference must be above zero with 95 % confidence.
        confident: bool,
    },
}

/// `[plot.NAME]`: figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Name, also of the SVG file.
    pub name: String,
    /// Title.
    pub title: String,
    /// Caption, one or two sentences.
    pub caption: String,
    /// Claim of the paper or author; may be empty.
    pub claim: String,
    /// Name of the metric.
    pub metric: String,
    /// Subjects, as in [`Selection::subject`].
    pub subject: String,
    /// Horizontal axis.
    pub against: PlotAxis,
    /// Horizontal reference lines: value and label.
    pub reference_lines: Vec<(f64, String)>,
    /// Selected cells, as in [`Selection::cells`].
    pub cells: Vec<(String, String)>,
    /// Lower and upper end of the value axis; automatic if `None`.
    pub range: (Option<f64>, Option<f64>),
}

/// Horizontal axis of a figure.
#[derive(Clone, Debug, PartialEq)]
pub enum PlotAxis {
    /// Time: a line per cell and subject, the mean over seeds with a 95 % confidence interval.
    Time,
    /// Swept path: one value per cell.
    Swept {
        /// Swept path.
        path: String,
        /// Second swept path, which gives the rows of a heat map.
        rows: Option<String>,
        /// Start and end of the averaged span.
        over: (Instant, Instant),
    },
    /// Percentiles of a distribution, on an axis of 90 %, 99 %, 99.9 %, …: a line per cell and subject.
    Percentile,
    /// Values of a distribution and their frequency: a line per cell and subject.
    Histogram,
    /// Cumulative distribution: the share of values up to each value, a line per cell and subject.
    Cdf,
    /// Percentiles 5, 25, 50, 75 and 95 of a distribution: a box per cell and subject.
    Box,
    /// Subjects: a bar per subject.
    Subject {
        /// Start and end of the averaged span.
        over: (Instant, Instant),
    },
}

impl PlotAxis {
    /// Returns whether the figure is of distributions.
    pub fn is_of_distributions(&self) -> bool {
        matches!(self, PlotAxis::Percentile | PlotAxis::Histogram | PlotAxis::Cdf | PlotAxis::Box)
    }
}
