//! Evaluation of a selection: one value per run.

use crate::derive::{is_whole_span, series_of, whole_span};
use netstage_core::measure::{Bound, converged_from};
use netstage_core::time::Instant;
use netstage_scenario::Cell;
use netstage_scenario::expect::{Selection, Statistic};
use netstage_scenario::outcome::{Aggregation, Metric, RunOutcome};
use netstage_scenario::pattern;
use netstage_scenario::plan::Plan;
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
    let chosen = series_of(outcome, metric).iter().filter(|s| matches(subject, &s.subject));
    let value = |values: &[f64]| reduce(values.get(bins.clone()).unwrap_or(&[]).iter().copied(), statistic);
    chosen.map(|s| (s.subject.clone(), value(&s.values))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, at};
    use netstage_core::time::Duration;
    use netstage_scenario::outcome::Series;

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
            ("b", 0, 5, Statistic::Sum, 3.3),
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
