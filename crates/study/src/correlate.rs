//! How strongly the throughput of TCP flows follows their windows, round trips and losses: bin by bin in each
//! cell, and from cell to cell across a sweep.

use crate::derive::{measured, of};
use netstage_core::measure::{Correlation, correlation, correlation_in_time};
use netstage_scenario::Scenario;
use netstage_scenario::outcome::{Metric, Outcome};
use netstage_scenario::plan::{Direction, Plan};
use netstage_scenario::record::CorrelationEntry;
use std::collections::BTreeMap;
use std::ops::Range;

/// What throughput may follow.
const FOLLOWED: [Metric; 9] = [
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
/// Flows of a plan that are looked at: more would be read by nobody.
const MOST_FLOWS: usize = 20;

type Pairs = BTreeMap<(String, Metric), Vec<(f64, f64)>>;

/// Collects runs, cell by cell.
#[derive(Default)]
pub struct Correlations {
    /// Of the cell under way, a pair per bin.
    bins: Pairs,
    /// A pair per cell.
    cells: Pairs,
    entries: Vec<CorrelationEntry>,
}

impl Correlations {
    /// Adds a run of the cell under way.
    pub fn add(&mut self, plan: &Plan, outcome: &Outcome) {
        if !plan.measure.tcp_events {
            return;
        }
        for (key, pairs) in pairs(outcome, measured(plan, outcome.bins)) {
            self.bins.entry(key).or_default().extend(pairs);
        }
    }

    /// Ends a cell.
    pub fn end_cell(&mut self, index: usize) {
        for (key, pairs) in std::mem::take(&mut self.bins) {
            if let Some(found) = correlation_in_time(&pairs) {
                self.entries.push(entry(Some(index), &key, found));
            }
            let mean = |of: fn(&(f64, f64)) -> f64| {
                let values: Vec<f64> = pairs.iter().map(of).filter(|value| !value.is_nan()).collect();
                values.iter().sum::<f64>() / values.len() as f64
            };
            self.cells.entry(key).or_default().push((mean(|pair| pair.0), mean(|pair| pair.1)));
        }
    }

    /// What was found: in each cell, and last across the cells.
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

/// How strongly the throughput of flows that were watched follows all that, bin by bin.
pub fn of_observed(outcome: &Outcome) -> Vec<CorrelationEntry> {
    let pairs = pairs(outcome, 0..outcome.bins);
    let found = pairs.iter().filter_map(|(key, pairs)| Some((key, correlation_in_time(pairs)?)));
    found.map(|(key, found)| entry(Some(0), key, found)).collect()
}

/// The values of a flow's throughput in some bins beside those of what it may follow. An application's windows are
/// those of either end.
fn pairs(outcome: &Outcome, bins: Range<usize>) -> Pairs {
    let mut all = Pairs::new();
    for throughput in of(outcome, Metric::FlowThroughput).iter().take(MOST_FLOWS) {
        let flow = &throughput.subject;
        let subjects = [flow.clone()].into_iter().chain(Direction::BOTH.map(|direction| direction.of(flow)));
        let subjects: Vec<String> = subjects.collect();
        for metric in FOLLOWED {
            for series in of(outcome, metric).iter().filter(|series| subjects.contains(&series.subject)) {
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
