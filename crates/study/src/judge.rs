//! Evaluation of expectations in each cell.

use crate::derive::unfinished;
use crate::format;
use crate::select::{cell_matches, covers_run, matches, select};
use crate::statistics::{estimate, in_unit};
use netstage_core::measure::{Histogram, values_needed};
use netstage_scenario::Cell;
use netstage_scenario::expect::{Bound, Expectation, Selection, Statistic};
use netstage_scenario::outcome::finding::Finding;
use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::record::{Estimate, ExpectationCell, ExpectationEntry};
use std::collections::BTreeMap;

/// Collector of the values of each expectation and cell.
pub struct Judge<'a> {
    expectations: &'a [Expectation],
    cells: &'a [Cell],
    /// By expectation, then cell.
    values: Vec<BTreeMap<usize, Collected>>,
}

/// Values of an expectation in a cell.
#[derive(Clone, Debug, Default)]
struct Collected {
    /// One value per run.
    runs: Vec<f64>,
    /// All values of all runs, for a quantile.
    distribution: Histogram,
    /// A result of a test is an upper bound only.
    has_upper_bound: bool,
    /// A result of a test, or a completion time, is a lower bound only.
    has_lower_bound: bool,
}

/// Comparison with the values of another cell.
struct CellComparison {
    is_above: bool,
    /// The interval of the difference needs more runs.
    needs_runs: bool,
    description: String,
}

impl Collected {
    fn add(&mut self, cell: &Cell, outcome: &RunOutcome, selection: &Selection) {
        self.runs.push(select(&cell.plan, outcome, selection));
        let findings = outcome.tests.iter().flat_map(|test| &test.findings);
        let is_selected =
            |f: &&Finding| f.metric == selection.metric && matches(&selection.subject, &f.subject);
        for finding in findings.filter(is_selected) {
            self.has_upper_bound |= finding.low.is_none() && finding.high.is_some();
            self.has_lower_bound |= finding.low.is_some() && finding.high.is_none();
        }
        // Transfers that have not ended take longer than the run.
        self.has_lower_bound |= selection.metric == Metric::FlowCompletionTime.info().name
            && !unfinished(&cell.plan, outcome, |name| matches(&selection.subject, name)).is_empty();
        if let (Statistic::Quantile(_), Some(metric)) =
            (selection.statistic, Metric::by_name(&selection.metric))
        {
            let taken = outcome.distributions.iter().filter(|taken| taken.metric == metric);
            for taken in taken.filter(|taken| matches(&selection.subject, &taken.subject)) {
                self.distribution.add(&taken.buckets);
            }
        }
    }

    /// Reduces the values to the one that is bounded: a quantile of the distribution; of minima and maxima the most
    /// extreme; otherwise the mean over the runs.
    fn reduce(&self, statistic: Statistic) -> Estimate {
        let mean = estimate(&self.runs);
        let present = self.runs.iter().copied().filter(|value| !value.is_nan());
        let extreme = match statistic {
            Statistic::Min => present.reduce(f64::min),
            Statistic::Max => present.reduce(f64::max),
            Statistic::Quantile(share) => return self.quantile(share),
            Statistic::Mean | Statistic::Sum | Statistic::ConvergenceTime { .. } => return mean,
        };
        Estimate { mean: extreme, low: None, high: None, ..mean }
    }

    /// Returns why the values do not show whether a bound is met, if so.
    fn unknown(&self, bound: &Bound) -> Option<&'static str> {
        let (needs_low, needs_high) = match bound {
            Bound::AtLeast(_) | Bound::Above { .. } => (true, false),
            Bound::AtMost(_) => (false, true),
            Bound::Near { .. } => (true, true),
        };
        if needs_low && self.has_upper_bound {
            Some("an upper bound; the value may be lower")
        } else {
            (needs_high && self.has_lower_bound).then_some("a lower bound; the value may be higher")
        }
    }

    fn compare(
        &self,
        other: &Collected,
        statistic: Statistic,
        confident: bool,
        unit: &str,
    ) -> CellComparison {
        let [own, others] = [self, other].map(|values| values.reduce(statistic));
        let mut description = format!(" (versus {})", other.describe(statistic, &others, unit));
        if other.has_lower_bound {
            description += ", which is a lower bound";
            return CellComparison { is_above: false, needs_runs: false, description };
        }
        if !confident || matches!(statistic, Statistic::Quantile(_)) {
            let ends = if confident { (own.low, others.high) } else { (own.mean, others.mean) };
            let is_above = ends.0.zip(ends.1).is_some_and(|(own, other)| own > other);
            return CellComparison { is_above, needs_runs: false, description };
        }
        let pairs = self.runs.iter().zip(&other.runs);
        let difference = estimate(&pairs.map(|(value, other)| value - other).collect::<Vec<f64>>());
        description += &format!(", difference {}", format::estimate(&difference, unit));
        let needs_runs = difference.runs < 2;
        let is_above = !needs_runs && difference.low.is_some_and(|low| low > 0.0);
        CellComparison { is_above, needs_runs, description }
    }

    fn quantile(&self, share: f64) -> Estimate {
        let quantile = self.distribution.estimate(share);
        Estimate {
            mean: quantile.map(|quantile| in_unit(quantile.value)),
            low: quantile.map(|quantile| in_unit(quantile.low)),
            high: quantile.map(|quantile| in_unit(quantile.high)),
            runs: if self.distribution.count() > 0 { self.runs.len() as u32 } else { 0 },
        }
    }

    fn describe(&self, statistic: Statistic, value: &Estimate, unit: &str) -> String {
        if let Statistic::Quantile(share) = statistic {
            return match (value.mean, value.low, value.high) {
                (Some(mean), Some(low), Some(high)) => {
                    let [mean, low, high] = [mean, low, high].map(|value| format::quantity(value, unit));
                    format!("{mean} [{low}, {high}]")
                }
                _ => format!("{} of {} values needed", self.distribution.count(), values_needed(share)),
            };
        }
        let never = self.runs.iter().filter(|v| v.is_infinite()).count();
        match never {
            0 => format::estimate(value, unit),
            n if n == self.runs.len() => "never".into(),
            n => format!("never in {n} of {} runs", self.runs.len()),
        }
    }
}

impl<'a> Judge<'a> {
    /// Creates an empty collector.
    pub fn new(expectations: &'a [Expectation], cells: &'a [Cell]) -> Judge<'a> {
        Judge { expectations, cells, values: vec![BTreeMap::new(); expectations.len()] }
    }

    /// Adds a run of a cell.
    pub fn add(&mut self, cell: usize, outcome: &RunOutcome) {
        for (expectation, values) in self.expectations.iter().zip(&mut self.values) {
            values.entry(cell).or_default().add(&self.cells[cell], outcome, &expectation.select);
        }
    }

    /// Returns the results of all expectations.
    pub fn finish(self) -> Vec<ExpectationEntry> {
        let both = self.expectations.iter().zip(&self.values);
        both.map(|(expectation, values)| judge(expectation, self.cells, values)).collect()
    }
}

fn judge(expectation: &Expectation, cells: &[Cell], values: &BTreeMap<usize, Collected>) -> ExpectationEntry {
    let unit = match expectation.select.statistic {
        Statistic::ConvergenceTime { .. } => "s",
        _ => Metric::by_name(&expectation.select.metric).map_or("", |m| m.info().unit),
    };
    let statistic = expectation.select.statistic;
    let none = Collected::default();
    let values_of = |cell: usize| values.get(&cell).unwrap_or(&none);
    let mut problem = String::new();
    let mut judged = Vec::new();
    for (index, cell) in cells.iter().enumerate() {
        let is_other = match &expectation.bound {
            Bound::Above { other, .. } => cell_matches(cell, other),
            _ => false,
        };
        if is_other || !cell_matches(cell, &expectation.select.cells) {
            continue;
        }
        let value = values_of(index).reduce(statistic);
        let mut achieved = values_of(index).describe(statistic, &value, unit);
        let pass = match &expectation.bound {
            Bound::AtLeast(bound) => value.mean.is_some_and(|mean| mean >= *bound),
            Bound::AtMost(bound) => value.mean.is_some_and(|mean| mean <= *bound),
            Bound::Near { value: target, within } => {
                value.mean.is_some_and(|mean| (mean - target).abs() <= within * target.abs())
            }
            Bound::Above { other, confident } => match counterpart(cells, cell, other) {
                Some(other) => {
                    let compared = values_of(index).compare(values_of(other), statistic, *confident, unit);
                    achieved += &compared.description;
                    if compared.needs_runs {
                        problem = "the comparison needs at least two runs; increase `repeat`".into();
                    }
                    compared.is_above
                }
                None => {
                    problem = format!("no cell with {} to compare with", settings(other));
                    false
                }
            },
        };
        let unknown = values_of(index).unknown(&expectation.bound);
        if let Some(unknown) = unknown {
            achieved = format!("{achieved} ({unknown})");
        }
        let pass = pass && unknown.is_none();
        judged.push(ExpectationCell { cell: index, value, achieved, pass });
    }
    if judged.is_empty() {
        problem = "no cell matches".into();
    } else if problem.is_empty() && judged.iter().all(|c| c.value.runs == 0) {
        problem = "no value matches; check the metric, the subject and the span".into();
    }
    let pass = !judged.is_empty() && judged.iter().all(|c| c.pass);
    if pass && !expectation.missed.is_empty() {
        problem = "it is met; remove `missed` from the scenario".into();
    }
    ExpectationEntry {
        name: expectation.name.clone(),
        metric: expectation.select.metric.clone(),
        condition: condition(expectation, unit, cells),
        claim: expectation.claim.clone(),
        unit: unit.into(),
        pass,
        missed: expectation.missed.clone(),
        problem,
        cells: judged,
    }
}

/// Returns the cell with these settings that has the same variant and the same values as `cell` in all other paths that
/// both sweep.
fn counterpart(cells: &[Cell], cell: &Cell, changed: &[(String, String)]) -> Option<usize> {
    let is_changed = |path: &str| changed.iter().any(|(changed, _)| changed == path);
    let is_counterpart = |other: &Cell| {
        let mut common = other
            .settings
            .iter()
            .filter(|(path, _)| !is_changed(path) && cell.settings.iter().any(|(p, _)| p == path));
        cell_matches(other, changed)
            && (is_changed("variant") || other.variant == cell.variant)
            && common.all(|setting| cell.settings.contains(setting))
    };
    cells.iter().position(is_counterpart)
}

fn settings(settings: &[(String, String)]) -> String {
    settings.iter().map(|(path, value)| format!("{path} = {value}")).collect::<Vec<_>>().join(", ")
}

fn condition(expectation: &Expectation, unit: &str, cells: &[Cell]) -> String {
    let select = &expectation.select;
    let statistic = match select.statistic {
        Statistic::Mean => "mean".into(),
        Statistic::Min => "minimum".into(),
        Statistic::Max => "maximum".into(),
        Statistic::Sum => "sum".into(),
        Statistic::ConvergenceTime { above } => {
            format!("time until it stays above {}", format::number(above))
        }
        Statistic::Quantile(share) => format!("{} % quantile", format::number(share * 100.0)),
    };
    let bound = match &expectation.bound {
        Bound::AtLeast(bound) => format!("at least {}", format::quantity(*bound, unit)),
        Bound::AtMost(bound) => format!("at most {}", format::quantity(*bound, unit)),
        Bound::Near { value, within } => {
            format!("within {} % of {}", format::number(within * 100.0), format::quantity(*value, unit))
        }
        Bound::Above { other, confident } => {
            let confidence = if *confident { " with 95 % confidence" } else { "" };
            format!("above the value of {}{confidence}", settings(other))
        }
    };
    let subject = if select.subject.is_empty() { String::new() } else { format!(" of {}", select.subject) };
    if Metric::by_name(&select.metric).is_some_and(Metric::is_finding) {
        return format!("{statistic}{subject}: {bound}");
    }
    let span = format::span(select.over);
    // Distributions cover the whole run; within a part of it, only the means of bins are known.
    let of_bins = Metric::by_name(&select.metric).is_some_and(|metric| Metric::DISTRIBUTED.contains(&metric))
        && matches!(select.statistic, Statistic::Min | Statistic::Max)
        && !cells.iter().all(|cell| covers_run(&cell.plan, select.over));
    let of_bins = if of_bins { " of the means of bins" } else { "" };
    format!("{statistic}{of_bins}{subject} over {span}: {bound}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, at};

    /// Evaluates values, by cell, against a bound on the cells that match `only`.
    fn verdict(
        statistic: Statistic,
        bound: Bound,
        only: &[(&str, &str)],
        values: [&[f64]; 4],
    ) -> ExpectationEntry {
        judged(statistic, bound, only, values.map(runs))
    }

    fn judged(
        statistic: Statistic,
        bound: Bound,
        only: &[(&str, &str)],
        values: impl IntoIterator<Item = Collected>,
    ) -> ExpectationEntry {
        let cells = only.iter().map(|(p, v)| (p.to_string(), v.to_string())).collect();
        let metric = "fairness.inter_vpn".into();
        let select = Selection { metric, subject: String::new(), over: (at(5), at(50)), statistic, cells };
        let expectation =
            Expectation { name: "e".into(), select, bound, claim: String::new(), missed: String::new() };
        let values = values.into_iter().enumerate().collect();
        judge(&expectation, &fixture::scenario().cells, &values)
    }

    fn runs(values: &[f64]) -> Collected {
        Collected { runs: values.to_vec(), ..Collected::default() }
    }

    #[test]
    fn a_quantile_needs_enough_values() {
        let cells = &fixture::scenario().cells;
        let judged = |count: u64, bound: f64| {
            let mut collected = runs(&[0.0, 0.0]);
            (1..=count).for_each(|ms| collected.distribution.record(ms * 1_000_000));
            let select = Selection {
                metric: "flow.delay".into(),
                subject: String::new(),
                over: (at(0), at(50)),
                statistic: Statistic::Quantile(0.99),
                cells: Vec::new(),
            };
            let (bound, claim, missed) = (Bound::AtMost(bound), String::new(), String::new());
            let expectation = Expectation { name: "e".into(), select, bound, claim, missed };
            let entry = judge(&expectation, cells, &[(0, collected)].into());
            (entry.cells[0].pass, entry.cells[0].achieved.clone())
        };
        assert_eq!(judged(367, 1.0), (false, "367 of 368 values needed".into()));
        let (pass, achieved) = judged(1_000, 1.0);
        assert!(pass && achieved.starts_with("990.1 ms [98"), "{achieved}");
        assert!(!judged(1_000, 0.9).0);
    }

    fn above(variant: &str, confident: bool) -> Bound {
        Bound::Above { other: vec![("variant".into(), variant.into())], confident }
    }

    fn passes(entry: &ExpectationEntry) -> Vec<(usize, bool)> {
        entry.cells.iter().map(|c| (c.cell, c.pass)).collect()
    }

    #[test]
    fn bounds_apply_to_the_mean_over_runs() {
        let values: [&[f64]; 4] = [&[0.8, 1.0], &[0.9, 0.8], &[0.9], &[1.0, f64::NAN]];
        for (bound, expected) in [
            (Bound::AtLeast(0.9), [true, false, true, true]),
            (Bound::AtMost(0.9), [true, true, true, false]),
            (Bound::Near { value: 1.0, within: 0.1 }, [true, false, true, true]),
        ] {
            let entry = verdict(Statistic::Mean, bound, &[], values);
            assert_eq!(passes(&entry), (0..4).zip(expected).collect::<Vec<_>>());
            assert_eq!(entry.pass, expected.iter().all(|p| *p));
        }
    }

    /// A search that the tester ended gives bounds, of which only one may be known.
    #[test]
    fn a_bound_passes_only_if_the_values_show_it() {
        let with = |has_lower_bound, has_upper_bound| {
            let collected = || Collected { has_lower_bound, has_upper_bound, ..runs(&[1.0]) };
            let passes = |bound| {
                let entry = judged(Statistic::Mean, bound, &[], (0..4).map(|_| collected()));
                assert!(entry.pass || entry.cells[0].achieved.contains("bound"), "{entry:?}");
                entry.pass
            };
            [Bound::AtLeast(0.9), Bound::AtMost(1.1), Bound::Near { value: 1.0, within: 0.1 }].map(passes)
        };
        assert_eq!(with(false, false), [true, true, true]);
        assert_eq!(with(true, false), [true, false, false]);
        assert_eq!(with(false, true), [false, true, false]);
        let compared = |has_lower_bound| {
            let other = Collected { has_lower_bound, ..runs(&[0.5]) };
            let values = [runs(&[0.9]), runs(&[0.9]), other.clone(), other];
            judged(Statistic::Mean, above("without", false), &[], values).pass
        };
        assert_eq!((compared(false), compared(true)), (true, false));
    }

    #[test]
    fn only_matching_cells_are_evaluated() {
        let values: [&[f64]; 4] = [&[1.0], &[0.0], &[1.0], &[0.0]];
        let entry = verdict(Statistic::Mean, Bound::AtLeast(0.5), &[("flow.bulka.x", "0.1")], values);
        assert_eq!((passes(&entry), entry.pass), (vec![(0, true), (2, true)], true));
        let entry = verdict(
            Statistic::Mean,
            Bound::AtLeast(0.5),
            &[("variant", "with"), ("flow.bulka.x", "0.5")],
            values,
        );
        assert_eq!((passes(&entry), entry.pass), (vec![(1, false)], false));
        let entry = verdict(Statistic::Mean, Bound::AtLeast(0.5), &[("variant", "other")], values);
        assert!(!entry.pass && entry.problem == "no cell matches");
    }

    #[test]
    fn a_variant_is_compared_with_the_corresponding_cell() {
        let values: [&[f64]; 4] = [&[0.9], &[0.5], &[0.8], &[0.5]];
        let entry = verdict(Statistic::Mean, above("without", false), &[], values);
        assert_eq!(passes(&entry), [(0, true), (1, false)]);
        assert_eq!(entry.cells[0].achieved, "0.9 (versus 0.8)");
        let entry = verdict(Statistic::Mean, above("other", false), &[], values);
        assert!(!entry.pass && entry.problem.contains("other"));
    }

    #[test]
    fn extremes_are_those_of_the_worst_run() {
        let values: [&[f64]; 4] = [&[0.2, 1.0], &[0.6, 0.9], &[1.0, f64::NAN], &[0.5, 0.5]];
        let entry = verdict(Statistic::Min, Bound::AtLeast(0.5), &[], values);
        assert_eq!(passes(&entry), [(0, false), (1, true), (2, true), (3, true)]);
        let entry = verdict(Statistic::Max, Bound::AtMost(0.9), &[], values);
        assert_eq!(passes(&entry), [(0, false), (1, true), (2, false), (3, true)]);
    }

    #[test]
    fn a_confident_comparison_uses_pairs_of_runs() {
        // The differences are 0.1 ± 0.0, although the values of the runs differ more.
        let paired: [&[f64]; 4] = [&[0.5, 0.9, 0.7], &[], &[0.4, 0.8, 0.6], &[]];
        let cells = [("variant", "with"), ("flow.bulka.x", "0.1")];
        assert!(verdict(Statistic::Mean, above("without", true), &cells, paired).pass);
        let noisy: [&[f64]; 4] = [&[0.5, 0.9, 0.7], &[], &[0.8, 0.6, 0.4], &[]];
        assert!(verdict(Statistic::Mean, above("without", false), &cells, noisy).pass);
        assert!(!verdict(Statistic::Mean, above("without", true), &cells, noisy).pass);
        let single: [&[f64]; 4] = [&[0.9], &[], &[0.1], &[]];
        let entry = verdict(Statistic::Mean, above("without", true), &cells, single);
        assert!(!entry.pass && entry.problem.contains("at least two runs"), "{entry:?}");
    }

    #[test]
    fn cells_of_one_variant_are_compared() {
        let bound = |value: &str| Bound::Above {
            other: vec![("flow.bulka.x".into(), value.into())],
            confident: false,
        };
        let values: [&[f64]; 4] = [&[0.9], &[0.5], &[0.4], &[0.6]];
        let entry = verdict(Statistic::Mean, bound("0.5"), &[], values);
        assert_eq!(passes(&entry), [(0, true), (2, false)]);
        let entry = verdict(Statistic::Mean, bound("7"), &[], values);
        assert!(entry.problem.contains("no cell with flow.bulka.x = 7"), "{entry:?}");
    }

    #[test]
    fn an_expectation_known_to_be_missed_fails_once_it_is_met() {
        let cells = &fixture::scenario().cells;
        let judged = |value: f64, missed: &str| {
            let select = Selection {
                metric: "fairness.inter_vpn".into(),
                subject: String::new(),
                over: (at(5), at(50)),
                statistic: Statistic::Mean,
                cells: Vec::new(),
            };
            let (bound, claim) = (Bound::AtLeast(0.5), String::new());
            let expectation = Expectation { name: "e".into(), select, bound, claim, missed: missed.into() };
            let values = (0..cells.len()).map(|cell| (cell, runs(&[value]))).collect();
            judge(&expectation, cells, &values)
        };
        let met_and_fails = |entry: ExpectationEntry| (entry.pass, entry.fails());
        assert_eq!(met_and_fails(judged(0.9, "")), (true, false));
        assert_eq!(met_and_fails(judged(0.1, "")), (false, true));
        assert_eq!(met_and_fails(judged(0.1, "the paper's queue is unknown")), (false, false));
        assert_eq!(met_and_fails(judged(0.9, "the paper's queue is unknown")), (true, true));
        assert!(judged(0.9, "reason").problem.contains("remove `missed`"));
    }

    #[test]
    fn a_run_without_convergence_fails_and_is_reported() {
        let statistic = Statistic::ConvergenceTime { above: 0.9 };
        let never = f64::INFINITY;
        let values: [&[f64]; 4] = [&[1.0, 3.0], &[1.0, never], &[never, never], &[f64::NAN]];
        let entry = verdict(statistic, Bound::AtMost(10.0), &[], values);
        assert_eq!(passes(&entry), [(0, true), (1, false), (2, false), (3, false)]);
        let achieved: Vec<&str> = entry.cells.iter().map(|c| c.achieved.as_str()).collect();
        assert_eq!(achieved, ["2 ± 13 s", "never in 1 of 2 runs", "never", "–"]);
        assert_eq!(entry.condition, "time until it stays above 0.9 over 5–50 s: at most 10 s");
    }

    #[test]
    fn a_selection_without_values_fails_with_a_reason() {
        let entry = verdict(Statistic::Mean, Bound::AtLeast(0.0), &[], [&[f64::NAN], &[], &[], &[]]);
        assert!(!entry.pass && entry.problem.contains("no value"));
    }
}
