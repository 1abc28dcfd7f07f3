//! A cell's runs as one number per metric and subject.

use crate::derive::{is_whole_span, measured, of};
use crate::flow_groups;
use crate::select::per_subject;
use crate::statistics::estimate;
use netstage_scenario::outcome::{Aggregation, Metric, Outcome};
use netstage_scenario::plan::Plan;
use netstage_scenario::record::SummaryEntry;
use std::collections::BTreeMap;

/// Collects the runs of one cell.
pub struct Summary<'a> {
    plan: &'a Plan,
    /// Flow group of each flow.
    groups: BTreeMap<String, &'a str>,
    /// In the registry's order, then in that of first appearance.
    entries: BTreeMap<Metric, Vec<Entry>>,
}

struct Entry {
    subject: String,
    values: Vec<f64>,
    min: f64,
    max: f64,
}

impl<'a> Summary<'a> {
    /// Nothing collected yet.
    pub fn new(plan: &'a Plan) -> Summary<'a> {
        Summary { plan, groups: flow_groups(plan).collect(), entries: BTreeMap::new() }
    }

    /// Adds a run.
    pub fn add(&mut self, outcome: &Outcome) {
        let bins = measured(self.plan, outcome.bins);
        for &metric in Metric::ALL {
            let mut each: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
            let mut order = Vec::new();
            let values = per_subject(self.plan, outcome, metric, "", &bins);
            for (subject, value) in &values {
                let subject = self.groups.get(subject).copied().unwrap_or(subject);
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
                    Aggregation::Mean | Aggregation::Last => sum / n as f64,
                };
                self.entry(metric, subject).values.push(value);
            }
            if is_whole_span(metric) {
                continue;
            }
            for series in of(outcome, metric) {
                let subject = self.groups.get(&series.subject).copied().unwrap_or(&series.subject).to_owned();
                let values = series.values.get(bins.clone()).unwrap_or(&[]);
                let (low, high) = values.iter().fold((f64::NAN, f64::NAN), |(l, h), &v| (l.min(v), h.max(v)));
                let entry = self.entry(metric, &subject);
                (entry.min, entry.max) = (entry.min.min(low), entry.max.max(high));
            }
        }
    }

    fn entry(&mut self, metric: Metric, subject: &str) -> &mut Entry {
        let entries = self.entries.entry(metric).or_default();
        // Subjects come in the same order in every run, so the search ends soon or at once.
        let index = entries.iter().position(|e| e.subject == subject).unwrap_or_else(|| {
            entries.push(Entry {
                subject: subject.to_owned(),
                values: Vec::new(),
                min: f64::NAN,
                max: f64::NAN,
            });
            entries.len() - 1
        });
        &mut entries[index]
    }

    /// The cell's summary.
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
