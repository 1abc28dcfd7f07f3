//! Expectations: what each cell came to, and whether that meets the bound.

use crate::format;
use crate::select::{cell_matches, metric, select};
use crate::statistics::estimate;
use netstage_scenario::Cell;
use netstage_scenario::expect::{Bound, Expectation, Statistic};
use netstage_scenario::outcome::Outcome;
use netstage_scenario::record::{Estimate, ExpectationCell, ExpectationEntry};
use std::collections::BTreeMap;

/// Collects one number per run for each expectation and cell.
pub struct Judge<'a> {
    expectations: &'a [Expectation],
    cells: &'a [Cell],
    /// By expectation, then cell.
    values: Vec<BTreeMap<usize, Vec<f64>>>,
}

impl<'a> Judge<'a> {
    /// Nothing collected yet.
    pub fn new(expectations: &'a [Expectation], cells: &'a [Cell]) -> Judge<'a> {
        Judge { expectations, cells, values: vec![BTreeMap::new(); expectations.len()] }
    }

    /// Adds a run of a cell.
    pub fn add(&mut self, cell: usize, outcome: &Outcome) {
        for (expectation, values) in self.expectations.iter().zip(&mut self.values) {
            let value = select(&self.cells[cell].plan, outcome, &expectation.select);
            values.entry(cell).or_default().push(value);
        }
    }

    /// The verdicts.
    pub fn finish(self) -> Vec<ExpectationEntry> {
        let both = self.expectations.iter().zip(&self.values);
        both.map(|(expectation, values)| judge(expectation, self.cells, values)).collect()
    }
}

fn judge(expectation: &Expectation, cells: &[Cell], values: &BTreeMap<usize, Vec<f64>>) -> ExpectationEntry {
    let unit = match expectation.select.statistic {
        Statistic::ConvergenceTime { .. } => "s",
        _ => metric(&expectation.select.metric).map_or("", |m| m.info().unit),
    };
    let none = Vec::new();
    let of = |cell: usize| values.get(&cell).unwrap_or(&none);
    let mut problem = String::new();
    let mut judged = Vec::new();
    for (index, cell) in cells.iter().enumerate() {
        let excluded = matches!(&expectation.bound, Bound::AboveVariant(other) if *other == cell.variant);
        if excluded || !cell_matches(cell, &expectation.select.cells) {
            continue;
        }
        let value = estimate(of(index));
        let mut achieved = describe(&value, of(index), unit);
        let pass = match &expectation.bound {
            Bound::AtLeast(bound) => value.mean.is_some_and(|mean| mean >= *bound),
            Bound::AtMost(bound) => value.mean.is_some_and(|mean| mean <= *bound),
            Bound::Near { value: target, within } => {
                value.mean.is_some_and(|mean| (mean - target).abs() <= within * target.abs())
            }
            Bound::AboveVariant(variant) => match counterpart(cells, cell, variant) {
                Some(other) => {
                    let other = estimate(of(other));
                    achieved = format!("{achieved} (against {})", format::estimate(&other, unit));
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
        problem = "no value matches: see the metric, the subject and the span".into();
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

/// The cell of `variant` that agrees with `cell` in every path both sweep.
fn counterpart(cells: &[Cell], cell: &Cell, variant: &str) -> Option<usize> {
    let agrees = |other: &Cell| {
        let mut common = other.settings.iter().filter(|(path, _)| cell.settings.iter().any(|(p, _)| p == path));
        other.variant == variant && common.all(|setting| cell.settings.contains(setting))
    };
    cells.iter().position(agrees)
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
    let what = match select.statistic {
        Statistic::Mean => "mean".into(),
        Statistic::Min => "smallest".into(),
        Statistic::Max => "largest".into(),
        Statistic::Sum => "sum".into(),
        Statistic::ConvergenceTime { above } => format!("time until it stays above {}", format::number(above)),
    };
    let bound = match &expectation.bound {
        Bound::AtLeast(bound) => format!("at least {}", format::quantity(*bound, unit)),
        Bound::AtMost(bound) => format!("at most {}", format::quantity(*bound, unit)),
        Bound::Near { value, within } => {
            format!("within {} % of {}", format::number(within * 100.0), format::quantity(*value, unit))
        }
        Bound::AboveVariant(variant) => format!("above that of variant {variant}"),
    };
    let subject = if select.subject.is_empty() { String::new() } else { format!(" of {}", select.subject) };
    format!("{what}{subject} over {}: {bound}", format::span(select.over))
}
