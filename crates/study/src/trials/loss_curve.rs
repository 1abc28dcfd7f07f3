//! Curves of the loss over the offered rate, from the trials of router tests.

use crate::figure::{Axis, Figure, FigureSeries};
use crate::overview::cell_name;
use netstage_core::measure::clopper_pearson;
use netstage_scenario::outcome::finding::TrialEntry;
use netstage_scenario::record::{CellEntry, StudyRecord as Data};
use std::collections::BTreeMap;

/// Packets sent and lost at a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossCount {
    /// Packets sent.
    pub sent: u64,
    /// Packets lost.
    pub lost: u64,
}

impl LossCount {
    /// Returns the share of packets lost, 0 to 1.
    pub fn ratio(self) -> f64 {
        self.lost as f64 / self.sent as f64
    }
}

/// Returns the loss at each rate at the IP layer, in bits per second, over all valid trials.
pub fn loss_by_rate<'a>(trials: impl Iterator<Item = &'a TrialEntry>) -> BTreeMap<u64, LossCount> {
    let mut rates: BTreeMap<u64, LossCount> = BTreeMap::new();
    for trial in trials.filter(|trial| trial.void.is_empty() && trial.sent > 0) {
        let count = rates.entry(trial.requested_bps.round() as u64).or_default();
        *count = LossCount { sent: count.sent + trial.sent, lost: count.lost + trial.lost };
    }
    rates
}

/// Returns a figure of the loss over the rate, with a line for each cell in which packets were lost.
pub fn loss_curves(data: &Data) -> Option<Figure> {
    let axis = |label: &str, unit: &str| Axis { label: label.into(), unit: unit.into(), ..Axis::default() };
    let lines = data.cells.iter().filter_map(|cell| line(data, cell));
    let figure = Figure {
        name: "loss-curve".into(),
        title: format!("{}: loss over the rate", data.title),
        caption: "Share of the packets lost at each requested rate, over all valid trials.".into(),
        intervals: "95 % confidence intervals of the loss ratio (Clopper and Pearson)".into(),
        x: axis("rate at the IP layer", "bit/s"),
        y: Axis { min: Some(0.0), ..axis("loss ratio", "") },
        series: lines.collect(),
        ..Figure::default()
    };
    (!figure.series.is_empty()).then_some(figure)
}

fn line(data: &Data, cell: &CellEntry) -> Option<FigureSeries> {
    let trials = cell.tests.iter().flat_map(|test| &test.outcome.trials);
    let rates = loss_by_rate(trials);
    let has_loss = rates.values().any(|count| count.lost > 0);
    let interval = |count: &LossCount| clopper_pearson(count.lost, count.sent, 0.95);
    has_loss.then(|| FigureSeries {
        name: cell_name(data, cell),
        x: Some(rates.keys().map(|rate| *rate as f64).collect()),
        y: rates.values().map(|count| Some(count.ratio())).collect(),
        low: Some(rates.values().map(|count| Some(interval(count).lower)).collect()),
        high: Some(rates.values().map(|count| Some(interval(count).upper)).collect()),
        ..FigureSeries::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(requested_bps: f64, sent: u64, lost: u64, void: &str) -> TrialEntry {
        TrialEntry { requested_bps, sent, lost, void: void.into(), ..TrialEntry::default() }
    }

    #[test]
    fn valid_trials_at_a_rate_are_added() {
        let trials = [
            trial(2e6, 900, 9, ""),
            trial(1e6, 500, 0, ""),
            trial(2e6, 100, 1, ""),
            trial(1e6, 10, 5, "busy"),
        ];
        let rates = loss_by_rate(trials.iter());
        let expected =
            [(1_000_000, LossCount { sent: 500, lost: 0 }), (2_000_000, LossCount { sent: 1000, lost: 10 })];
        assert_eq!(rates, BTreeMap::from(expected));
        assert_eq!(rates[&2_000_000].ratio(), 0.01);
    }
}
