//! Analysis of all runs of a study in one pass: summaries, verdicts and figures.

use crate::correlate::Correlations;
use crate::derive::measured;
use crate::distribution::{DistributionCollector, summary};
use crate::figure::Figure;
use crate::folder::Manifest;
use crate::judge::Judge;
use crate::plot::Plotter;
use crate::remarks::Remarks;
use crate::summary::SummaryCollector;
use crate::trials;
use netstage_core::time::Instant;
use netstage_scenario::Scenario;
use netstage_scenario::expect::{Plot, PlotAxis};
use netstage_scenario::outcome::{Distribution, Metric, RunOutcome};
use netstage_scenario::record::{
    CellEntry, MetricEntry, NetworkTopology, ROUTER_STAGE, SeriesFile, StudyRecord, TestEntry, TotalsEntry,
};
use std::collections::BTreeSet;

/// Analysis of a study's runs, added cell by cell.
pub struct Analysis<'a> {
    scenario: &'a Scenario,
    judge: Judge<'a>,
    plotters: Vec<Plotter<'a>>,
    metrics: BTreeSet<Metric>,
    /// Summary of the current cell.
    summary: Option<SummaryCollector<'a>>,
    correlations: Correlations,
    tests: Vec<TestEntry>,
    totals: TotalsEntry,
    bins: usize,
    cells: Vec<CellEntry>,
    collector: Option<DistributionCollector>,
    /// Distributions by cell.
    distributions: Vec<Vec<Distribution>>,
    warnings: Remarks,
    void: Remarks,
    failures: Remarks,
    differences: Remarks,
}

impl<'a> Analysis<'a> {
    /// Creates an empty analysis.
    pub fn new(scenario: &'a Scenario) -> Analysis<'a> {
        Analysis {
            scenario,
            judge: Judge::new(&scenario.expectations, &scenario.cells),
            plotters: plots(scenario).map(|plot| Plotter::new(plot, &scenario.cells)).collect(),
            metrics: BTreeSet::new(),
            summary: None,
            correlations: Correlations::default(),
            tests: Vec::new(),
            totals: TotalsEntry::default(),
            bins: 0,
            cells: Vec::new(),
            collector: None,
            distributions: Vec::new(),
            warnings: Remarks::default(),
            void: Remarks::default(),
            failures: Remarks::default(),
            differences: Remarks::default(),
        }
    }

    /// Adds a run. All runs of a cell are added before those of the next cell.
    pub fn add(&mut self, cell: usize, seed: u64, outcome: &RunOutcome) {
        self.judge.add(cell, outcome);
        for plotter in &mut self.plotters {
            plotter.add(cell, outcome);
        }
        self.metrics.extend(outcome.series.iter().map(|s| s.metric));
        self.summary
            .get_or_insert_with(|| SummaryCollector::new(&self.scenario.cells[cell].plan))
            .add(outcome);
        self.correlations.add(&self.scenario.cells[cell].plan, outcome);
        self.totals.add(&outcome.totals);
        self.bins = outcome.bins;
        self.collector
            .get_or_insert_with(|| DistributionCollector::new(&self.scenario.cells[cell].plan))
            .add(outcome);
        self.tests.extend(outcome.tests.iter().map(|test| TestEntry { seed, outcome: test.clone() }));
        self.warnings.add(cell, &outcome.warnings);
        self.void.add(cell, &outcome.void);
        self.failures.add(cell, &outcome.failures);
        self.differences.add(cell, &outcome.differences);
    }

    /// Completes a cell.
    pub fn end_cell(&mut self, index: usize) {
        let cell = &self.scenario.cells[index];
        let interval = cell.plan.measure.interval;
        let first = (Instant::ZERO + interval * measured(&cell.plan, self.bins).start as u64).0;
        let collected = self.collector.take().map(DistributionCollector::finish).unwrap_or_default();
        self.correlations.end_cell(index);
        for plotter in &mut self.plotters {
            plotter.end_cell(index, &collected);
        }
        let taken = collected.groups.iter();
        self.cells.push(CellEntry {
            distributions: taken.map(|(metric, group, h)| summary(*metric, group, h)).collect(),
            loads: collected.loads,
            variant: cell.variant.clone(),
            settings: cell.settings.clone(),
            duration_ns: cell.plan.duration.0,
            interval_ns: interval.0,
            measured_ns: (first, cell.plan.duration.0),
            summary: self.summary.take().map(SummaryCollector::finish).unwrap_or_default(),
            tests: std::mem::take(&mut self.tests),
            totals: std::mem::take(&mut self.totals),
        });
        self.metrics.extend(collected.subjects.iter().map(|d| d.metric));
        self.distributions.push(collected.subjects);
    }

    /// Returns the distributions of each cell, separately for each member of a flow group.
    pub fn distributions(&self) -> &[Vec<Distribution>] {
        &self.distributions
    }

    /// Returns the record and its figures.
    pub fn finish(
        self,
        manifest: &Manifest,
        series: SeriesFile,
        distributions: Option<SeriesFile>,
    ) -> (StudyRecord, Vec<Figure>) {
        let merged = |remarks: Remarks| remarks.finish(&self.cells, manifest.repeat);
        let mut warnings = self.scenario.warnings.clone();
        warnings.extend(merged(self.warnings));
        let (void, failures, differences) =
            (merged(self.void), merged(self.failures), merged(self.differences));
        let summarized = self.cells.iter().flat_map(|c| &c.summary);
        let whole_span: BTreeSet<Metric> = summarized.filter_map(|s| Metric::by_name(&s.metric)).collect();
        let metrics = self.metrics.union(&whole_span).map(|&metric| MetricEntry::from(metric)).collect();
        let record = StudyRecord {
            schema: manifest.schema.clone(),
            tool: manifest.tool.clone(),
            stage: manifest.stage.clone(),
            title: self.scenario.title.clone(),
            description: self.scenario.description.clone(),
            plan: manifest.plan.clone(),
            seed: manifest.seed,
            repeat: manifest.repeat,
            warnings,
            void,
            failures,
            differences,
            expectations: self.judge.finish(),
            metrics,
            topology: self.scenario.cells.first().map(|c| NetworkTopology::from(&c.plan)).unwrap_or_default(),
            correlations: self.correlations.finish(self.scenario),
            cells: self.cells,
            series,
            distributions,
            scenario: self.scenario.text.clone(),
        };
        let mut figures: Vec<Figure> = self.plotters.into_iter().flat_map(Plotter::finish).collect();
        if record.stage == ROUTER_STAGE {
            figures.extend(trials::loss_curves(&record));
        }
        (record, figures)
    }
}

/// Returns the plots that a scenario defines, or throughput over time if it defines none, and a plot of each
/// distribution that it does not plot itself.
fn plots(scenario: &Scenario) -> impl Iterator<Item = Plot> {
    let is_plotted = |metric: &Metric| {
        let plots_metric = |p: &&Plot| p.metric == metric.info().name;
        scenario.plots.iter().filter(plots_metric).any(|plot| plot.against.is_of_distributions())
    };
    let mut plots = scenario.plots.clone();
    if plots.is_empty() {
        plots.push(automatic(Metric::FlowThroughput, PlotAxis::Time));
    }
    for metric in Metric::DISTRIBUTED.iter().filter(|m| !is_plotted(m)) {
        match metric {
            // Plotted together with the achieved gaps.
            Metric::FlowGapScheduled => {}
            Metric::FlowGap => plots.push(automatic(*metric, PlotAxis::Histogram)),
            // Low scores are of interest, not high ones.
            Metric::AppMos => plots.push(automatic(*metric, PlotAxis::Cdf)),
            _ => plots.push(automatic(*metric, PlotAxis::Percentile)),
        }
    }
    plots.into_iter()
}

fn automatic(metric: Metric, against: PlotAxis) -> Plot {
    let info = metric.info();
    let (ending, caption) = match against {
        PlotAxis::Cdf => ("cdf", ""),
        PlotAxis::Percentile => ("percentiles", "The value at p % is the p-th percentile."),
        PlotAxis::Histogram => {
            ("histogram", "The lowest and highest 0.1 % of values may be outside the axis.")
        }
        _ => ("over-time", ""),
    };
    let name = info.name.split('.').collect::<Vec<_>>().join("-");
    let title = info.help.trim_end_matches('.').split([';', ':']).next().unwrap_or(info.name).into();
    Plot {
        name: format!("{name}-{ending}"),
        title,
        caption: caption.into(),
        claim: String::new(),
        metric: info.name.into(),
        subject: String::new(),
        against,
        reference_lines: Vec::new(),
        cells: Vec::new(),
        range: (None, None),
    }
}
