//! Summary of a cell: one estimate per metric and subject.

use crate::derive::{first_start, is_whole_span, measured, series_of};
use crate::select::{AllValues, per_subject};
use crate::statistics::estimate;
use crate::{FlowAggregates, flow_aggregates};
use netstage_scenario::expect::Statistic;
use netstage_scenario::outcome::{Aggregation, Metric, RunOutcome};
use netstage_scenario::plan::Plan;
use netstage_scenario::record::SummaryEntry;
use std::collections::BTreeMap;
use std::ops::Range;

/// Collector of the summary of one cell's runs.
pub struct SummaryCollector<'a> {
    plan: &'a Plan,
    /// Aggregates of each flow's subject.
    parts: BTreeMap<String, FlowAggregates>,
    /// Entries by metric, then in order of first occurrence.
    entries: BTreeMap<Metric, Vec<SummaryValues>>,
}

struct SummaryValues {
    subject: String,
    values: Vec<f64>,
    min: f64,
    max: f64,
}

impl<'a> SummaryCollector<'a> {
    /// Creates an empty collector.
    pub fn new(plan: &'a Plan) -> SummaryCollector<'a> {
        SummaryCollector { plan, parts: flow_aggregates(plan).collect(), entries: BTreeMap::new() }
    }

    /// Adds a run.
    pub fn add(&mut self, outcome: &RunOutcome) {
        let SummaryCollector { plan, parts, entries } = self;
        for &metric in Metric::ALL {
            let bins = summarized(plan, outcome.bins, metric);
            let mut each: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
            let mut order = Vec::new();
            let values = per_subject(plan, outcome, metric, "", &bins);
            for (subject, value) in
                values.iter().flat_map(|(s, value)| aggregates(parts, s).map(move |s| (s, value)))
            {
                let total = each.entry(subject).or_insert_with(|| {
                    order.push(subject);
                    (0.0, 0)
                });
                if !value.is_nan() {
                    *total = (total.0 + value, total.1 + 1);
                }
            }
            for subject in order {
                let (sum, n) = each[subject];
                let value = match metric.info().aggregation {
                    _ if n == 0 => f64::NAN,
                    Aggregation::Sum => sum,
                    Aggregation::Mean | Aggregation::Last | Aggregation::Max => sum / n as f64,
                };
                entry(entries, metric, subject).values.push(value);
            }
            if is_whole_span(metric) {
                continue;
            }
            let all = AllValues::of(plan, outcome, metric, &bins);
            for series in series_of(outcome, metric) {
                let [low, high] =
                    [Statistic::Min, Statistic::Max].map(|statistic| all.reduce(series, &bins, statistic));
                for subject in aggregates(parts, &series.subject) {
                    let entry = entry(entries, metric, subject);
                    (entry.min, entry.max) = (entry.min.min(low), entry.max.max(high));
                }
            }
        }
    }

    /// Returns the summary of the cell.
    pub fn finish(self) -> Vec<SummaryEntry> {
        let finite = |value: f64| value.is_finite().then_some(value);
        let entries = self
            .entries
            .into_iter()
            .flat_map(|(metric, entries)| entries.into_iter().map(move |e| (metric, e)));
        entries
            .map(|(metric, entry)| SummaryEntry {
                metric: metric.info().name.into(),
                value: estimate(&entry.values),
                min: finite(entry.min),
                max: finite(entry.max),
                subject: entry.subject,
            })
            .filter(|entry| entry.value.runs > 0)
            .collect()
    }
}

/// Returns the bins that the summary of a metric covers. Counts include the bin in which the first flow starts; of rates and
/// other means, it would have only a part.
fn summarized(plan: &Plan, bins: usize, metric: Metric) -> Range<usize> {
    let measured = measured(plan, bins);
    match metric.info().aggregation {
        Aggregation::Sum | Aggregation::Max => measured.start.min(first_start(plan, bins))..measured.end,
        Aggregation::Mean | Aggregation::Last => measured,
    }
}

/// Returns the subjects that aggregate a subject's values: its flow group, and its receiver if there are several.
fn aggregates<'b>(
    parts: &'b BTreeMap<String, FlowAggregates>,
    subject: &'b str,
) -> impl Iterator<Item = &'b str> {
    let part = parts.get(subject);
    let group = part.map_or(subject, |part| &part.group);
    std::iter::once(group).chain(part.and_then(|part| part.receiver.as_deref()))
}

fn entry<'b>(
    entries: &'b mut BTreeMap<Metric, Vec<SummaryValues>>,
    metric: Metric,
    subject: &str,
) -> &'b mut SummaryValues {
    let entries = entries.entry(metric).or_default();
    // Subjects have the same order in every run, so the search is short.
    let index = entries.iter().position(|e| e.subject == subject).unwrap_or_else(|| {
        entries.push(SummaryValues {
            subject: subject.to_owned(),
            values: Vec::new(),
            min: f64::NAN,
            max: f64::NAN,
        });
        entries.len() - 1
    });
    &mut entries[index]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use netstage_scenario::outcome::Series;
    use netstage_scenario::plan::Branch;

    #[test]
    fn receivers_are_summarized_separately_and_together() {
        let mut plan = fixture::plan();
        let [near, far] = [plan.flows[0].from, plan.flows[0].to].map(|node| plan.nodes[node].name.clone());
        // Two members of a flow to `r`, with the sender `h` as a second receiver.
        let path = plan.flows[0].path.clone();
        plan.flows[0].branches = vec![Branch { to: plan.flows[0].from, path }];
        let series = |metric, subject: String, value| Series { metric, subject, values: vec![value; 10] };
        let mut outcome = fixture::outcome(&plan, 1);
        outcome.series.clear();
        for (member, node, lost) in [(0, &far, 1.0), (0, &near, 2.0), (1, &far, 4.0), (1, &near, 8.0)] {
            let subject = format!("bulka[{member}]@{node}");
            outcome.series.push(series(Metric::FlowThroughput, subject.clone(), lost));
            outcome.series.push(series(Metric::FlowLost, subject, lost));
        }
        outcome.series.push(series(Metric::FlowSent, "bulka[0]".into(), 100.0));
        outcome.series.sort_by_key(|series| series.metric);
        let mut summary = SummaryCollector::new(&plan);
        summary.add(&outcome);
        let bins = measured(&plan, outcome.bins).len() as f64;
        let entries = summary.finish();
        let found: Vec<(&str, &str, f64)> = entries
            .iter()
            .map(|entry| (entry.metric.as_str(), entry.subject.as_str(), entry.value.mean.unwrap()))
            .collect();
        let (near, far) = (format!("bulka@{near}"), format!("bulka@{far}"));
        let expected = [
            ("flow.throughput", "bulka", 3.75),
            ("flow.throughput", &far, 2.5),
            ("flow.throughput", &near, 5.0),
            ("flow.sent", "bulka", 100.0 * bins),
            ("flow.lost", "bulka", 15.0 * bins),
            ("flow.lost", &far, 5.0 * bins),
            ("flow.lost", &near, 10.0 * bins),
        ];
        assert_eq!(found, expected);
    }
}
