//! From a selection to one number per run.

use crate::derive::{is_whole_span, of, whole_span};
use netstage_core::measure::{Bound, converged_from};
use netstage_core::time::Instant;
use netstage_scenario::Cell;
use netstage_scenario::expect::{Selection, Statistic};
use netstage_scenario::outcome::{Aggregation, Metric, Outcome};
use netstage_scenario::plan::Plan;
use std::ops::Range;

/// Whether `name` matches a pattern in which `*` stands for any text; an empty pattern
/// matches every name.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern.is_empty() || pattern == name;
    };
    let Some(mut name) = name.strip_prefix(head) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let tail = parts.pop().unwrap_or("");
    for part in parts {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    name.ends_with(tail)
}

/// Whether a cell has all the values asked for; `variant` is a path too.
pub fn cell_matches(cell: &Cell, asked: &[(String, String)]) -> bool {
    asked.iter().all(|(path, value)| cell_value(cell, path) == Some(value))
}

/// The value of a swept path in a cell.
pub fn cell_value<'a>(cell: &'a Cell, path: &str) -> Option<&'a str> {
    if path == "variant" {
        return Some(&cell.variant);
    }
    cell.settings.iter().find(|(p, _)| p == path).map(|(_, value)| value.as_str())
}

/// The metric of this name.
pub fn metric(name: &str) -> Option<Metric> {
    Metric::ALL.iter().copied().find(|m| m.info().name == name)
}

/// Bins that lie wholly within a span.
pub fn bins_within(plan: &Plan, outcome: &Outcome, over: (Instant, Instant)) -> Range<usize> {
    let interval = outcome.interval.0.max(1);
    let first = over.0.0.div_ceil(interval) as usize;
    // The last bin may be cut short by the end of the run.
    let last = if over.1.0 >= plan.duration.0 { outcome.bins } else { (over.1.0 / interval) as usize };
    let last = last.min(outcome.bins);
    first.min(last)..last
}

/// The number a selection comes to in one run: NaN where nothing is selected, infinite for
/// a convergence that never comes.
pub fn select(plan: &Plan, outcome: &Outcome, selection: &Selection) -> f64 {
    let Some(metric) = metric(&selection.metric) else { return f64::NAN };
    let bins = bins_within(plan, outcome, selection.over);
    if is_whole_span(metric) {
        let values = whole_span(plan, outcome, metric, &bins);
        let chosen = values.iter().filter(|(subject, _)| matches(&selection.subject, subject));
        return reduce(chosen.map(|(_, value)| *value), selection.statistic);
    }
    let chosen = of(outcome, metric).iter().filter(|s| matches(&selection.subject, &s.subject));
    let chosen: Vec<&[f64]> = chosen.filter_map(|s| s.values.get(bins.clone())).collect();
    if let Statistic::ConvergenceTime { above } = selection.statistic {
        let worst = |bin: usize| chosen.iter().map(|v| v[bin]).filter(|v| !v.is_nan()).reduce(f64::min);
        let mut worst: Vec<f64> = (0..bins.len()).map(|bin| worst(bin).unwrap_or(f64::NAN)).collect();
        let Some(last) = worst.iter().rposition(|v| !v.is_nan()) else { return f64::NAN };
        // Nothing is measured before the first flow starts or after the last one stops; a gap
        // between them is not convergence.
        worst.truncate(last + 1);
        let Some(bin) = converged_from(&worst, Bound::AtLeast(above)) else { return f64::INFINITY };
        let at = (bins.start + bin) as u64 * outcome.interval.0;
        return at.saturating_sub(selection.over.0.0) as f64 / 1e9;
    }
    reduce(chosen.into_iter().flatten().copied(), selection.statistic)
}

fn reduce(values: impl Iterator<Item = f64>, statistic: Statistic) -> f64 {
    let values = values.filter(|v| !v.is_nan());
    match statistic {
        Statistic::Min => values.reduce(f64::min).unwrap_or(f64::NAN),
        Statistic::Max => values.reduce(f64::max).unwrap_or(f64::NAN),
        Statistic::Mean => {
            let (sum, n) = values.fold((0.0, 0u64), |(sum, n), v| (sum + v, n + 1));
            sum / n as f64
        }
        Statistic::Sum => values.reduce(|a, b| a + b).unwrap_or(f64::NAN),
        Statistic::ConvergenceTime { .. } => f64::NAN,
    }
}

/// Each selected subject as one number over a span: the sum of a metric whose bins are
/// sums, the mean of any other.
pub fn per_subject(plan: &Plan, outcome: &Outcome, metric: Metric, subject: &str, bins: &Range<usize>) -> Vec<(String, f64)> {
    if is_whole_span(metric) {
        let mut values = whole_span(plan, outcome, metric, bins);
        values.retain(|(name, _)| matches(subject, name));
        return values;
    }
    let statistic = match metric.info().aggregation {
        Aggregation::Sum => Statistic::Sum,
        Aggregation::Mean | Aggregation::Last => Statistic::Mean,
    };
    let chosen = of(outcome, metric).iter().filter(|s| matches(subject, &s.subject));
    let value = |values: &[f64]| reduce(values.get(bins.clone()).unwrap_or(&[]).iter().copied(), statistic);
    chosen.map(|s| (s.subject.clone(), value(&s.values))).collect()
}
