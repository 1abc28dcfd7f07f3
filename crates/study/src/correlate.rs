//! Correlation of TCP throughput with window, round trip and losses: over the bins of each cell, and over the
//! cells of a sweep.

use crate::derive::{measured, series_of};
use netstage_core::measure::{Correlation, correlation, correlation_in_time};
use netstage_scenario::Scenario;
use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::plan::{FlowDirection, Plan};
use netstage_scenario::record::CorrelationEntry;
use std::collections::BTreeMap;
use std::ops::Range;

/// Metrics that throughput is correlated with.
const CORRELATED: [Metric; 9] = [
    Metric::FlowWindowUsable,
    Metric::FlowRoundTrip,
    Metric::FlowRetransmissions,
    Metric::FlowReductions,
    Metric::FlowCauseLocalDevice,
    Metric::FlowCauseEcn,
    Metric::FlowCauseFastRetransmit,
    Metric::FlowCauseTailLossProbe,
    Metric::FlowCauseTimeout,
];
/// Maximum number of correlated flows, which keeps the report short.
pub const MAX_FLOWS: usize = 20;

type Pairs = BTreeMap<(String, Metric), Vec<(f64, f64)>>;

/// Correlations of a study's runs, added cell by cell.
#[derive(Default)]
pub struct Correlations {
    /// Pair of values per bin of the current cell.
    bins: Pairs,
    /// Pair of mean values per cell.
    cells: Pairs,
    entries: Vec<CorrelationEntry>,
}

impl Correlations {
    /// Adds a run of the current cell.
    pub fn add(&mut self, plan: &Plan, outcome: &RunOutcome) {
        if !plan.measure.tcp_events {
            return;
        }
        for (key, pairs) in pairs(outcome, measured(plan, outcome.bins)) {
            self.bins.entry(key).or_default().extend(pairs);
        }
    }

    /// Completes a cell.
    pub fn end_cell(&mut self, index: usize) {
        for (key, pairs) in std::mem::take(&mut self.bins) {
            if let Some(found) = correlation_in_time(&pairs) {
                self.entries.push(entry(Some(index), &key, found));
            }
            let mean = |component: fn(&(f64, f64)) -> f64| {
                let values: Vec<f64> = pairs.iter().map(component).filter(|value| !value.is_nan()).collect();
                values.iter().sum::<f64>() / values.len() as f64
            };
            self.cells.entry(key).or_default().push((mean(|pair| pair.0), mean(|pair| pair.1)));
        }
    }

    /// Returns the correlations within each cell, then those across all cells.
    pub fn finish(mut self, scenario: &Scenario) -> Vec<CorrelationEntry> {
        if scenario.cells.len() > 1 {
            for (key, pairs) in &self.cells {
                if let Some(found) = correlation(pairs) {
                    self.entries.push(entry(None, key, found));
                }
            }
        }
        self.entries
    }
}

/// Returns the correlations of observed flows, over bins.
pub fn observed_correlations(outcome: &RunOutcome) -> Vec<CorrelationEntry> {
    let pairs = pairs(outcome, 0..outcome.bins);
    let found = pairs.iter().filter_map(|(key, pairs)| Some((key, correlation_in_time(pairs)?)));
    found.map(|(key, found)| entry(Some(0), key, found)).collect()
}

/// Returns pairs of a correlated metric and the flow's throughput for these bins. An application has windows at
/// both ends.
fn pairs(outcome: &RunOutcome, bins: Range<usize>) -> Pairs {
    let mut all = Pairs::new();
    for throughput in series_of(outcome, Metric::FlowThroughput).iter().take(MAX_FLOWS) {
        let flow = &throughput.subject;
        let subjects =
            [flow.clone()].into_iter().chain(FlowDirection::BOTH.map(|direction| direction.subject(flow)));
        let subjects: Vec<String> = subjects.collect();
        for metric in CORRELATED {
            for series in
                series_of(outcome, metric).iter().filter(|series| subjects.contains(&series.subject))
            {
                let values = series.values.iter().zip(&throughput.values);
                let values = values.take(bins.end).skip(bins.start).map(|(x, y)| (*x, *y));
                all.insert((series.subject.clone(), metric), values.collect());
            }
        }
    }
    all
}

fn entry(cell: Option<usize>, (subject, metric): &(String, Metric), found: Correlation) -> CorrelationEntry {
    CorrelationEntry {
        cell,
        subject: subject.clone(),
        metric: metric.info().name.to_owned(),
        coefficient: found.coefficient,
        low: found.low,
        high: found.high,
        count: found.count,
    }
}
