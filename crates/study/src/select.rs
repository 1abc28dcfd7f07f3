//! Evaluation of a selection: one value per run.

use crate::derive::{is_whole_span, measured, series_of, whole_span};
use crate::statistics::in_unit;
use netstage_core::measure::{Bound, converged_from};
use netstage_core::time::Instant;
use netstage_scenario::Cell;
use netstage_scenario::expect::{Selection, Statistic};
use netstage_scenario::outcome::{Aggregation, Metric, RunOutcome, Series};
use netstage_scenario::pattern;
use netstage_scenario::plan::Plan;
use std::collections::HashMap;
use std::ops::Range;

/// Returns whether the pattern `subject` matches `name`. An empty pattern matches every name.
pub fn matches(subject: &str, name: &str) -> bool {
    subject.is_empty() || pattern::matches(subject, name)
}

/// Returns whether a cell has all these values of paths, where `variant` is a path too.
pub fn cell_matches(cell: &Cell, settings: &[(String, String)]) -> bool {
    settings.iter().all(|(path, value)| cell_value(cell, path) == Some(value))
}

/// Returns the value of a swept path in a cell.
pub fn cell_value<'a>(cell: &'a Cell, path: &str) -> Option<&'a str> {
    if path == "variant" {
        return Some(&cell.variant);
    }
    cell.settings.iter().find(|(p, _)| p == path).map(|(_, value)| value.as_str())
}

/// Returns the bins that lie entirely within a span.
pub fn bins_within(plan: &Plan, outcome: &RunOutcome, over: (Instant, Instant)) -> Range<usize> {
    let interval = outcome.interval.0.max(1);
    let first = over.0.0.div_ceil(interval) as usize;
    // The last bin may be cut short by the end of the run.
    let last = if over.1.0 >= plan.duration.0 { outcome.bins } else { (over.1.0 / interval) as usize };
    let last = last.min(outcome.bins);
    first.min(last)..last
}

/// Returns the value of a selection in one run: NaN if nothing is selected, infinity without convergence.
pub fn select(plan: &Plan, outcome: &RunOutcome, selection: &Selection) -> f64 {
    let Some(metric) = Metric::by_name(&selection.metric) else { return f64::NAN };
    let bins = bins_within(plan, outcome, selection.over);
    if is_whole_span(metric) {
        let values = whole_span(plan, outcome, metric, &bins);
        let chosen = values.iter().filter(|(subject, _)| matches(&selection.subject, subject));
        return reduce(chosen.map(|(_, value)| *value), selection.statistic);
    }
    if covers_run(plan, selection.over) {
        let distributions = outcome.distributions.iter();
        let chosen = distributions.filter(|d| d.metric == metric && matches(&selection.subject, &d.subject));
        if let Some(value) = reduce_all(chosen.flat_map(|d| &d.buckets), selection.statistic) {
            return value;
        }
    }
    let chosen = series_of(outcome, metric).iter().filter(|s| matches(&selection.subject, &s.subject));
    let chosen: Vec<&[f64]> = chosen.filter_map(|s| s.values.get(bins.clone())).collect();
    if let Statistic::ConvergenceTime { above } = selection.statistic {
        let worst = |bin: usize| chosen.iter().map(|v| v[bin]).filter(|v| !v.is_nan()).reduce(f64::min);
        let mut worst: Vec<f64> = (0..bins.len()).map(|bin| worst(bin).unwrap_or(f64::NAN)).collect();
        let Some(last) = worst.iter().rposition(|v| !v.is_nan()) else { return f64::NAN };
        // Bins before the first flow and after the last one have no values; a gap between flows is not
        // convergence.
        worst.truncate(last + 1);
        let Some(bin) = converged_from(&worst, Bound::AtLeast(above)) else { return f64::INFINITY };
        let at = (bins.start + bin) as u64 * outcome.interval.0;
        return at.saturating_sub(selection.over.0.0) as f64 / 1e9;
    }
    // A sum of means of bins would grow with their number.
    if selection.statistic == Statistic::Sum && metric.info().aggregation != Aggregation::Sum {
        let means = chosen.into_iter().map(|values| reduce(values.iter().copied(), Statistic::Mean));
        return reduce(means, Statistic::Sum);
    }
    reduce(chosen.into_iter().flatten().copied(), selection.statistic)
}

/// Returns whether a span covers all that is measured in a run.
pub fn covers_run(plan: &Plan, over: (Instant, Instant)) -> bool {
    let first = measured(plan, usize::MAX).start as u64;
    over.1.0 >= plan.duration.0 && over.0.0 <= first * plan.measure.interval.0
}

/// Returns the mean or an extreme of the values of a distribution. Bins have only the means of these values.
fn reduce_all<'a>(
    buckets: impl Iterator<Item = &'a (u64, u64)> + Clone,
    statistic: Statistic,
) -> Option<f64> {
    let count: u64 = buckets.clone().map(|(_, count)| count).sum();
    let values = buckets.clone().map(|(value, _)| *value);
    match statistic {
        Statistic::Min => values.min().map(in_unit),
        Statistic::Max => values.max().map(in_unit),
        Statistic::Mean if count > 0 => {
            let sum: f64 = buckets.map(|(value, count)| in_unit(*value) * *count as f64).sum();
            Some(sum / count as f64)
        }
        _ => None,
    }
}

/// Distributions of a metric by subject, where the bins cover all that is measured.
pub struct AllValues<'a>(HashMap<&'a str, &'a [(u64, u64)]>);

impl<'a> AllValues<'a> {
    /// Returns the distributions of a run.
    pub fn of(plan: &Plan, outcome: &'a RunOutcome, metric: Metric, bins: &Range<usize>) -> AllValues<'a> {
        let is_covered = bins.end == outcome.bins && bins.start <= measured(plan, outcome.bins).start;
        let chosen = outcome.distributions.iter().filter(|d| is_covered && d.metric == metric);
        AllValues(chosen.map(|d| (d.subject.as_str(), d.buckets.as_slice())).collect())
    }

    /// Returns the statistic of a series over bins: of all its values if it has a distribution.
    pub fn reduce(&self, series: &Series, bins: &Range<usize>, statistic: Statistic) -> f64 {
        let all =
            self.0.get(series.subject.as_str()).and_then(|buckets| reduce_all(buckets.iter(), statistic));
        let of_bins = || reduce(series.values.get(bins.clone()).unwrap_or(&[]).iter().copied(), statistic);
        all.unwrap_or_else(of_bins)
    }
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
        Statistic::ConvergenceTime { .. } | Statistic::Quantile(_) => f64::NAN,
    }
}

/// Returns one value of each selected subject over a span, aggregated as the metric requires.
pub fn per_subject(
    plan: &Plan,
    outcome: &RunOutcome,
    metric: Metric,
    subject: &str,
    bins: &Range<usize>,
) -> Vec<(String, f64)> {
    if is_whole_span(metric) {
        let mut values = whole_span(plan, outcome, metric, bins);
        values.retain(|(name, _)| matches(subject, name));
        return values;
    }
    let statistic = match metric.info().aggregation {
        Aggregation::Sum => Statistic::Sum,
        Aggregation::Max => Statistic::Max,
        Aggregation::Mean | Aggregation::Last => Statistic::Mean,
    };
    let all = AllValues::of(plan, outcome, metric, bins);
    let chosen = series_of(outcome, metric).iter().filter(|s| matches(subject, &s.subject));
    chosen.map(|s| (s.subject.clone(), all.reduce(s, bins, statistic))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, at};
    use netstage_core::time::Duration;
    use netstage_scenario::outcome::Distribution;

    #[test]
    fn an_asterisk_matches_any_text() {
        for (pattern, name, fits) in [
            ("", "anything", true),
            ("*", "", true),
            ("core.*", "core.forward", true),
            ("core.*", "score.forward", false),
            ("*.forward", "core.forward", true),
            ("b*[*]", "bulk[3]", true),
            ("b*[*]", "bulk", false),
            ("a*a", "a", false),
            ("core", "core.forward", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }

    /// Returns an outcome of two subjects over five bins of 1 s. The second subject has no value in the first bin.
    fn outcome() -> RunOutcome {
        let nan = f64::NAN;
        let series = |subject: &str, values: [f64; 5]| Series {
            metric: Metric::VpnLoss,
            subject: subject.into(),
            values: values.to_vec(),
        };
        RunOutcome {
            interval: Duration::from_secs(1),
            bins: 5,
            series: vec![series("a", [0.1, 0.9, 0.5, 0.9, 1.0]), series("b", [nan, 0.7, 0.8, 0.9, 0.9])],
            ..RunOutcome::default()
        }
    }

    fn number(subject: &str, from: u64, to: u64, statistic: Statistic) -> f64 {
        let mut plan = fixture::plan();
        plan.duration = Duration::from_secs(5);
        let metric = "vpn.loss".into();
        let selection =
            Selection { metric, subject: subject.into(), over: (at(from), at(to)), statistic, cells: vec![] };
        select(&plan, &outcome(), &selection)
    }

    #[test]
    fn statistics_match_manual_calculation() {
        let above = |above| Statistic::ConvergenceTime { above };
        for (subject, from, to, statistic, expected) in [
            ("a", 0, 5, Statistic::Mean, 3.4 / 5.0),
            ("", 0, 5, Statistic::Mean, 6.7 / 9.0),
            ("", 1, 3, Statistic::Mean, 2.9 / 4.0),
            ("*", 0, 5, Statistic::Min, 0.1),
            ("b", 0, 5, Statistic::Min, 0.7),
            ("", 0, 5, Statistic::Max, 1.0),
            // The sum of the means of both subjects: a ratio has no sum over time.
            ("b", 0, 5, Statistic::Sum, 3.3 / 4.0),
            ("", 0, 5, Statistic::Sum, 3.3 / 4.0 + 3.4 / 5.0),
            ("a", 0, 5, above(0.9), 3.0),
            ("a", 2, 5, above(0.9), 1.0),
            ("a", 3, 5, above(0.9), 0.0),
            ("", 0, 5, above(0.5), 1.0),
            ("a", 0, 3, above(0.9), f64::INFINITY),
        ] {
            let got = number(subject, from, to, statistic);
            assert!(
                (got - expected).abs() < 1e-12 || got == expected,
                "{subject} {from}–{to} {statistic:?}: {got}"
            );
        }
        assert!(number("c", 0, 5, Statistic::Mean).is_nan());
        assert!(number("a", 5, 9, Statistic::Mean).is_nan());
        assert!(number("c", 0, 5, above(0.5)).is_nan());
    }

    #[test]
    fn values_of_a_whole_run_are_those_of_its_distribution() {
        let mut plan = fixture::plan();
        plan.duration = Duration::from_secs(2);
        plan.flows.iter_mut().for_each(|flow| flow.start = Instant::ZERO);
        let (metric, interval) = (Metric::FlowDelay, Duration::from_secs(1));
        let series = vec![Series { metric, subject: "f".into(), values: vec![0.001, 0.004] }];
        // Nine delays of 1 ms in the first bin, one of 2 ms and one of 6 ms in the second.
        let buckets = vec![(1_000_000, 9), (2_000_000, 1), (6_000_000, 1)];
        let distributions = vec![Distribution { metric, subject: "f".into(), buckets }];
        let outcome = RunOutcome { interval, bins: 2, series, distributions, ..RunOutcome::default() };
        let value = |from: u64, statistic| {
            let metric = metric.info().name.into();
            let over = (at(from), at(2));
            select(
                &plan,
                &outcome,
                &Selection { metric, subject: String::new(), over, statistic, cells: vec![] },
            )
        };
        assert_eq!([Statistic::Min, Statistic::Max].map(|one| value(0, one)), [0.001, 0.006]);
        assert!((value(0, Statistic::Mean) - 0.017 / 11.0).abs() < 1e-12);
        assert_eq!([Statistic::Min, Statistic::Max, Statistic::Mean].map(|one| value(1, one)), [0.004; 3]);
        let summary = per_subject(&plan, &outcome, metric, "", &(0..2));
        assert!((summary[0].1 - 0.017 / 11.0).abs() < 1e-12, "{summary:?}");
    }

    #[test]
    fn only_whole_bins_are_counted() {
        let plan = fixture::plan();
        let outcome = fixture::outcome(&plan, 1);
        let half = |n: u64| Instant(n * 500_000_000);
        assert_eq!(bins_within(&plan, &outcome, (half(1), half(7))), 1..3);
        assert_eq!(bins_within(&plan, &outcome, (half(4), half(20))), 2..10);
        assert_eq!(bins_within(&plan, &outcome, (half(5), half(6))), 3..3);
        assert_eq!(bins_within(&plan, &outcome, (half(4), Instant::NEVER)), 2..10);
    }
}
