//! Distributions and loads of a cell. Histograms are summed over its runs, loads are averaged.

use crate::flow_aggregates;
use crate::select::matches;
use crate::statistics::in_unit;
use netstage_core::measure::Histogram;
use netstage_scenario::outcome::{AchievedLoad, Distribution, Metric, RunOutcome};
use netstage_scenario::plan::Plan;
use netstage_scenario::record::{DistributionEntry, LoadEntry};
use std::collections::BTreeMap;

/// Collector of the distributions and loads of one cell's runs.
pub struct DistributionCollector {
    /// Flow group of each flow, separately for each receiver.
    groups: BTreeMap<String, String>,
    histograms: BTreeMap<DistributionKey, Histogram>,
    /// Loads, each with the requested and achieved value of each run.
    loads: Vec<(AchievedLoad, Vec<(f64, f64)>)>,
}

/// Metric, group, and the subject preceded by its length, so that `bulk[9]` sorts before `bulk[10]`.
type DistributionKey = (Metric, String, usize, String);

/// Distributions and loads of a cell.
#[derive(Default)]
pub struct CellDistributions {
    /// Distributions of individual flows, sorted by metric and subject.
    pub subjects: Vec<Distribution>,
    /// Distributions of flow groups: metric, group and histogram.
    pub groups: Vec<(Metric, String, Histogram)>,
    /// Loads, averaged over the runs.
    pub loads: Vec<LoadEntry>,
}

impl CellDistributions {
    /// Returns the distributions of a metric whose flow group matches a pattern or, if none does, those of matching
    /// flows.
    pub fn chosen(&self, metric: Metric, pattern: &str) -> Vec<(String, Histogram)> {
        let groups = self.groups.iter().filter(|(m, group, _)| *m == metric && matches(pattern, group));
        let groups: Vec<_> = groups.map(|(_, group, histogram)| (group.clone(), histogram.clone())).collect();
        if !groups.is_empty() {
            return groups;
        }
        let members = self.subjects.iter().filter(|d| d.metric == metric && matches(pattern, &d.subject));
        let member = |d: &Distribution| {
            let mut histogram = Histogram::default();
            histogram.add(&d.buckets);
            (d.subject.clone(), histogram)
        };
        members.map(member).collect()
    }
}

impl DistributionCollector {
    /// Creates an empty collector.
    pub fn new(plan: &Plan) -> DistributionCollector {
        let groups =
            flow_aggregates(plan).map(|(subject, part)| (subject, part.narrowest().to_owned())).collect();
        DistributionCollector { groups, histograms: BTreeMap::new(), loads: Vec::new() }
    }

    /// Adds a run.
    pub fn add(&mut self, outcome: &RunOutcome) {
        for taken in &outcome.distributions {
            let subject = &taken.subject;
            let group = self.groups.get(subject).unwrap_or(subject).clone();
            let key = (taken.metric, group, subject.len(), subject.clone());
            self.histograms.entry(key).or_default().add(&taken.buckets);
        }
        for load in &outcome.loads {
            let is_same = |(other, _): &(AchievedLoad, _)| {
                (&other.subject, &other.quantity, &other.unit) == (&load.subject, &load.quantity, &load.unit)
            };
            let index = self.loads.iter().position(is_same).unwrap_or_else(|| {
                self.loads.push((load.clone(), Vec::new()));
                self.loads.len() - 1
            });
            self.loads[index].1.push((load.requested, load.achieved));
        }
    }

    /// Returns the sums of the histograms and the means of the loads.
    pub fn finish(self) -> CellDistributions {
        let mut groups: Vec<(Metric, String, Histogram)> = Vec::new();
        let mut subjects = Vec::new();
        for ((metric, group, _, subject), histogram) in self.histograms {
            if histogram.count() == 0 {
                continue;
            }
            let buckets: Vec<(u64, u64)> = histogram.buckets().collect();
            match groups.last_mut() {
                Some((m, g, sum)) if (*m, &*g) == (metric, &group) => sum.add(&buckets),
                _ => groups.push((metric, group, histogram)),
            }
            subjects.push(Distribution { metric, subject, buckets });
        }
        let loads = self.loads.into_iter().filter_map(|(load, runs)| averaged(load, &runs)).collect();
        CellDistributions { subjects, groups, loads }
    }
}

/// Returns the mean of a load over its runs, or `None` if a value is missing.
fn averaged(load: AchievedLoad, runs: &[(f64, f64)]) -> Option<LoadEntry> {
    let mean = |values: fn(&(f64, f64)) -> f64| runs.iter().map(values).sum::<f64>() / runs.len() as f64;
    let deviation = |(requested, achieved): &(f64, f64)| (achieved - requested).abs();
    let worst = runs.iter().max_by(|a, b| deviation(a).total_cmp(&deviation(b)))?.1;
    let (requested, achieved) = (mean(|r| r.0), mean(|r| r.1));
    let AchievedLoad { subject, quantity, unit, layer, .. } = load;
    let entry = LoadEntry { subject, quantity, unit, layer, requested, achieved, worst };
    (requested.is_finite() && achieved.is_finite()).then_some(entry)
}

/// Returns summary statistics of a distribution, in the unit of its metric.
pub fn summary(metric: Metric, subject: &str, histogram: &Histogram) -> DistributionEntry {
    let extreme = |q| histogram.quantile(q).map_or(0.0, in_unit);
    let mut intervals = BTreeMap::new();
    let mut quantile = |name: &str, q| {
        let estimate = histogram.estimate(q)?;
        intervals.insert(name.to_owned(), (in_unit(estimate.low), in_unit(estimate.high)));
        Some(in_unit(estimate.value))
    };
    DistributionEntry {
        metric: metric.info().name.into(),
        subject: subject.into(),
        count: histogram.count(),
        mean: histogram.mean() / 1e9,
        min: extreme(0.0),
        p50: quantile("p50", 0.5),
        p90: quantile("p90", 0.9),
        p95: quantile("p95", 0.95),
        p99: quantile("p99", 0.99),
        p999: quantile("p999", 0.999),
        max: extreme(1.0),
        intervals,
    }
}
