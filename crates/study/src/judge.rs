//! Evaluation of expectations in each cell.

use crate::format;
use crate::select::{cell_matches, select};
use crate::statistics::estimate;
use netstage_scenario::Cell;
use netstage_scenario::expect::{Bound, Expectation, Statistic};
use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::record::{Estimate, ExpectationCell, ExpectationEntry};
use std::collections::BTreeMap;

/// Collector of one value per run for each expectation and cell.
pub struct Judge<'a> {
    expectations: &'a [Expectation],
    cells: &'a [Cell],
    /// Values by expectation, then cell.
    values: Vec<BTreeMap<usize, Vec<f64>>>,
}

impl<'a> Judge<'a> {
    /// Creates an empty collector.
    pub fn new(expectations: &'a [Expectation], cells: &'a [Cell]) -> Judge<'a> {
        Judge { expectations, cells, values: vec![BTreeMap::new(); expectations.len()] }
    }

    /// Adds a run of a cell.
    pub fn add(&mut self, cell: usize, outcome: &RunOutcome) {
        for (expectation, values) in self.expectations.iter().zip(&mut self.values) {
            let value = select(&self.cells[cell].plan, outcome, &expectation.select);
            values.entry(cell).or_default().push(value);
        }
    }

    /// Returns the results of all expectations.
    pub fn finish(self) -> Vec<ExpectationEntry> {
        let both = self.expectations.iter().zip(&self.values);
        both.map(|(expectation, values)| judge(expectation, self.cells, values)).collect()
    }
}

fn judge(expectation: &Expectation, cells: &[Cell], values: &BTreeMap<usize, Vec<f64>>) -> ExpectationEntry {
    let unit = match expectation.select.statistic {
        Statistic::ConvergenceTime { .. } => "s",
        _ => Metric::by_name(&expectation.select.metric).map_or("", |m| m.info().unit),
    };
    let none = Vec::new();
    let values_of = |cell: usize| values.get(&cell).unwrap_or(&none);
    let mut problem = String::new();
    let mut judged = Vec::new();
    for (index, cell) in cells.iter().enumerate() {
        let excluded = matches!(&expectation.bound, Bound::AboveVariant(other) if *other == cell.variant);
        if excluded || !cell_matches(cell, &expectation.select.cells) {
            continue;
        }
        let value = estimate(values_of(index));
        let mut achieved = describe(&value, values_of(index), unit);
        let pass = match &expectation.bound {
            Bound::AtLeast(bound) => value.mean.is_some_and(|mean| mean >= *bound),
            Bound::AtMost(bound) => value.mean.is_some_and(|mean| mean <= *bound),
            Bound::Near { value: target, within } => {
                value.mean.is_some_and(|mean| (mean - target).abs() <= within * target.abs())
            }
            Bound::AboveVariant(variant) => match counterpart(cells, cell, variant) {
                Some(other) => {
                    let other = estimate(values_of(other));
                    achieved = format!("{achieved} (versus {})", format::estimate(&other, unit));
                    value.mean.zip(other.mean).is_some_and(|(mean, other)| mean > other)
                }
                None => {
                    problem = format!("no cell of variant {variant} to compare with");
                    false
                }
            },
        };
        judged.push(ExpectationCell { cell: index, value, achieved, pass });
    }
    if judged.is_empty() {
        problem = "no cell matches".into();
    } else if problem.is_empty() && judged.iter().all(|c| c.value.runs == 0) {
        problem = "no value matches; check the metric, the subject and the span".into();
    }
    ExpectationEntry {
        name: expectation.name.clone(),
        metric: expectation.select.metric.clone(),
        condition: condition(expectation, unit),
        claim: expectation.claim.clone(),
        unit: unit.into(),
        pass: !judged.is_empty() && judged.iter().all(|c| c.pass),
        problem,
        cells: judged,
    }
}

/// Returns the cell of `variant` with the same values as `cell` in all paths that both sweep.
fn counterpart(cells: &[Cell], cell: &Cell, variant: &str) -> Option<usize> {
    let is_counterpart = |other: &Cell| {
        let mut common =
            other.settings.iter().filter(|(path, _)| cell.settings.iter().any(|(p, _)| p == path));
        other.variant == variant && common.all(|setting| cell.settings.contains(setting))
    };
    cells.iter().position(is_counterpart)
}

fn describe(value: &Estimate, values: &[f64], unit: &str) -> String {
    let never = values.iter().filter(|v| v.is_infinite()).count();
    match never {
        0 => format::estimate(value, unit),
        n if n == values.len() => "never".into(),
        n => format!("never in {n} of {} runs", values.len()),
    }
}

fn condition(expectation: &Expectation, unit: &str) -> String {
    let select = &expectation.select;
    let statistic = match select.statistic {
        Statistic::Mean => "mean".into(),
        Statistic::Min => "minimum".into(),
        Statistic::Max => "maximum".into(),
        Statistic::Sum => "sum".into(),
        Statistic::ConvergenceTime { above } => {
            format!("time until it stays above {}", format::number(above))
        }
    };
    let bound = match &expectation.bound {
        Bound::AtLeast(bound) => format!("at least {}", format::quantity(*bound, unit)),
        Bound::AtMost(bound) => format!("at most {}", format::quantity(*bound, unit)),
        Bound::Near { value, within } => {
            format!("within {} % of {}", format::number(within * 100.0), format::quantity(*value, unit))
        }
        Bound::AboveVariant(variant) => format!("above the value of variant {variant}"),
    };
    let subject = if select.subject.is_empty() { String::new() } else { format!(" of {}", select.subject) };
    if Metric::by_name(&select.metric).is_some_and(Metric::is_finding) {
        return format!("{statistic}{subject}: {bound}");
    }
    format!("{statistic}{subject} over {}: {bound}", format::span(select.over))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, at};
    use netstage_scenario::expect::Selection;

    /// Evaluates values, by cell, against a bound on the cells that match `only`.
    fn verdict(
        statistic: Statistic,
        bound: Bound,
        only: &[(&str, &str)],
        values: [&[f64]; 4],
    ) -> ExpectationEntry {
        let cells = only.iter().map(|(p, v)| (p.to_string(), v.to_string())).collect();
        let metric = "fairness.inter_vpn".into();
        let select = Selection { metric, subject: String::new(), over: (at(5), at(50)), statistic, cells };
        let expectation = Expectation { name: "e".into(), select, bound, claim: String::new() };
        let values = values.iter().map(|v| v.to_vec()).enumerate().collect();
        judge(&expectation, &fixture::scenario().cells, &values)
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
        let entry = verdict(Statistic::Mean, Bound::AboveVariant("without".into()), &[], values);
        assert_eq!(passes(&entry), [(0, true), (1, false)]);
        assert_eq!(entry.cells[0].achieved, "0.9 (versus 0.8)");
        let entry = verdict(Statistic::Mean, Bound::AboveVariant("other".into()), &[], values);
        assert!(!entry.pass && entry.problem.contains("other"));
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
