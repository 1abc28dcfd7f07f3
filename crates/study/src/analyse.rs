//! What all runs together come to: summary, verdicts and figures, in one pass over the runs.

use crate::derive::measured;
use crate::figure::Figure;
use crate::folder::Manifest;
use crate::judge::Judge;
use crate::plot::Plotter;
use crate::summary::Summary;
use netstage_core::time::Instant;
use netstage_scenario::Scenario;
use netstage_scenario::outcome::{Metric, Outcome};
use netstage_scenario::record::{CellEntry, MetricEntry, Record, SeriesFile, Topology, TotalsEntry};
use std::collections::BTreeSet;

/// Collects runs, cell by cell.
pub struct Analysis<'a> {
    scenario: &'a Scenario,
    judge: Judge<'a>,
    plotters: Vec<Plotter<'a>>,
    metrics: BTreeSet<Metric>,
    /// The cell being collected.
    summary: Option<Summary<'a>>,
    totals: TotalsEntry,
    bins: usize,
    cells: Vec<CellEntry>,
    warnings: Vec<Warning>,
}

/// A run's warning, and the cells whose runs gave it.
struct Warning {
    text: String,
    cells: BTreeSet<usize>,
}

impl<'a> Analysis<'a> {
    /// Nothing collected yet.
    pub fn new(scenario: &'a Scenario) -> Analysis<'a> {
        Analysis {
            scenario,
            judge: Judge::new(&scenario.expectations, &scenario.cells),
            plotters: scenario.plots.iter().map(|plot| Plotter::new(plot, &scenario.cells)).collect(),
            metrics: BTreeSet::new(),
            summary: None,
            totals: TotalsEntry::default(),
            bins: 0,
            cells: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Adds a run. Cells come in order, each with all its runs.
    pub fn add(&mut self, cell: usize, outcome: &Outcome) {
        self.judge.add(cell, outcome);
        for plotter in &mut self.plotters {
            plotter.add(cell, outcome);
        }
        self.metrics.extend(outcome.series.iter().map(|s| s.metric));
        self.summary.get_or_insert_with(|| Summary::new(&self.scenario.cells[cell].plan)).add(outcome);
        self.totals.add(&outcome.totals);
        self.bins = outcome.bins;
        for text in &outcome.warnings {
            match self.warnings.iter_mut().find(|w| w.text == *text) {
                Some(warning) => drop(warning.cells.insert(cell)),
                None => self.warnings.push(Warning { text: text.clone(), cells: [cell].into() }),
            }
        }
    }

    /// Ends a cell.
    pub fn end_cell(&mut self, index: usize) {
        for plotter in &mut self.plotters {
            plotter.end_cell(index);
        }
        let cell = &self.scenario.cells[index];
        let interval = cell.plan.measure.interval;
        let first = (Instant::ZERO + interval * measured(&cell.plan, self.bins).start as u64).0;
        self.cells.push(CellEntry {
            variant: cell.variant.clone(),
            settings: cell.settings.clone(),
            duration_ns: cell.plan.duration.0,
            interval_ns: interval.0,
            measured_ns: (first, cell.plan.duration.0),
            summary: self.summary.take().map(Summary::finish).unwrap_or_default(),
            totals: std::mem::take(&mut self.totals),
        });
    }

    /// The record and its figures.
    pub fn finish(self, manifest: &Manifest, series: SeriesFile) -> (Record, Vec<Figure>) {
        let mut warnings = self.scenario.warnings.clone();
        for warning in &self.warnings {
            let labels: Vec<String> = warning.cells.iter().map(|&cell| self.cells[cell].label()).collect();
            warnings.push(match labels.len() {
                all if all == self.cells.len() => warning.text.clone(),
                1..=3 => format!("{} (in {})", warning.text, labels.join("; ")),
                some => format!("{} (in {some} of {} cells)", warning.text, self.cells.len()),
            });
        }
        let summarised = self.cells.iter().flat_map(|c| &c.summary);
        let whole_span: BTreeSet<Metric> =
            summarised.filter_map(|s| crate::select::metric(&s.metric)).collect();
        let metrics = self.metrics.union(&whole_span).map(|&metric| MetricEntry::from(metric)).collect();
        let record = Record {
            schema: manifest.schema.clone(),
            tool: manifest.tool.clone(),
            stage: manifest.stage.clone(),
            title: self.scenario.title.clone(),
            description: self.scenario.description.clone(),
            plan: manifest.plan.clone(),
            seed: manifest.seed,
            repeat: manifest.repeat,
            warnings,
            void: Vec::new(),
            expectations: self.judge.finish(),
            metrics,
            topology: self.scenario.cells.first().map(|c| Topology::from(&c.plan)).unwrap_or_default(),
            cells: self.cells,
            series,
            scenario: self.scenario.text.clone(),
        };
        let figures = self.plotters.into_iter().flat_map(Plotter::finish).collect();
        (record, figures)
    }
}
