//! Record of observed flows, without a scenario: one cell and one run.

use crate::correlate::observed_correlations;
use crate::environment::StudyTimer;
use crate::figure::Figure;
use crate::folder::{Manifest, StudyFolder};
use crate::record::SERIES;
use crate::series::{Joiner, encode_run};
use crate::study::{complete, io_error, written};
use crate::{StoredRecord, StudyError, checksum};
use netstage_core::time::Duration;
use netstage_scenario::outcome::finding::{Finding, TestOutcome};
use netstage_scenario::outcome::{Aggregation, Metric, RunOutcome, Series};
use netstage_scenario::record::{
    CellEntry, Estimate, MAJOR, MINOR, MetricEntry, NetworkTopology, StudyRecord as Data, SummaryEntry,
    TestEntry, TotalsEntry,
};
use std::collections::BTreeSet;
use std::io::{BufWriter, Write as _};
use std::path::Path;

/// Data of a record of observed flows.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Name and version of the tool.
    pub tool: String,
    /// Title.
    pub title: String,
    /// Description.
    pub description: String,
    /// Duration of the observation.
    pub duration: Duration,
    /// Measured values.
    pub outcome: RunOutcome,
    /// Results of tests.
    pub tests: Vec<TestOutcome>,
    /// Figures.
    pub figures: Vec<Figure>,
}

/// Locked folder of a future record, opened before the observation so that its result can be saved.
pub struct PendingRecord {
    folder: StudyFolder,
    manifest: Manifest,
    watch: StudyTimer,
}

impl PendingRecord {
    /// Opens and locks a new or empty folder.
    pub fn open(path: &Path, tool: &str, title: &str) -> Result<PendingRecord, StudyError> {
        let watch = StudyTimer::start();
        let identity = format!("{tool}{title}{:?}", std::time::SystemTime::now());
        let manifest = Manifest {
            schema: format!("{MAJOR}.{MINOR}"),
            tool: tool.into(),
            stage: "live".into(),
            title: title.into(),
            plan: format!("{:016x}", checksum(identity.as_bytes())),
            cells: 1,
            seed: 0,
            repeat: 1,
        };
        Ok(PendingRecord { folder: StudyFolder::open(path, &manifest)?, manifest, watch })
    }

    /// Writes the record.
    pub fn save(self, observation: Observation) -> Result<StoredRecord, StudyError> {
        let PendingRecord { folder, manifest, watch } = self;
        let Observation { tool, title, description, duration, outcome, tests, figures } = observation;
        let mut rows = 0;
        folder.write(SERIES, |file| {
            let bytes = encode_run(0, manifest.seed, &outcome).map_err(io_error)?;
            let mut joiner = Joiner::new(BufWriter::new(file)).map_err(io_error)?;
            joiner.push(&bytes.into()).map_err(io_error)?;
            let (mut sink, count) = joiner.finish().map_err(io_error)?;
            rows = count;
            sink.flush()
        })?;
        let series = written(&folder, SERIES, rows)?;
        let finding_metrics =
            tests.iter().flat_map(|test| &test.findings).map(|finding| finding.metric.as_str());
        let finding_metrics = finding_metrics.filter_map(Metric::by_name);
        let series_metrics = outcome.series.iter().map(|series| series.metric);
        let correlations = observed_correlations(&outcome);
        let metrics: BTreeSet<Metric> = series_metrics.chain(finding_metrics).collect();
        let found: Vec<SummaryEntry> =
            tests.iter().flat_map(|test| &test.findings).map(finding_summary).collect();
        let cell = CellEntry {
            variant: String::new(),
            settings: Vec::new(),
            duration_ns: duration.0,
            interval_ns: outcome.interval.0,
            measured_ns: (0, duration.0),
            summary: outcome.series.iter().map(summary).chain(found).collect(),
            distributions: Vec::new(),
            loads: Vec::new(),
            tests: tests.into_iter().map(|outcome| TestEntry { seed: manifest.seed, outcome }).collect(),
            totals: TotalsEntry::default(),
        };
        let data = Data {
            schema: manifest.schema,
            tool,
            stage: manifest.stage,
            title,
            description,
            plan: manifest.plan,
            seed: manifest.seed,
            repeat: manifest.repeat,
            warnings: outcome.warnings,
            void: outcome.void,
            failures: outcome.failures,
            differences: outcome.differences,
            expectations: Vec::new(),
            correlations,
            cells: vec![cell],
            metrics: metrics.into_iter().map(MetricEntry::from).collect(),
            topology: NetworkTopology::default(),
            series,
            distributions: None,
            scenario: String::new(),
        };
        complete(&folder, data, figures, watch.stop(1, 1, 0))
    }
}

fn summary(series: &Series) -> SummaryEntry {
    let values: Vec<f64> = series.values.iter().copied().filter(|value| !value.is_nan()).collect();
    let sum: f64 = values.iter().sum();
    let value = match series.metric.info().aggregation {
        Aggregation::Sum => sum,
        Aggregation::Mean | Aggregation::Last | Aggregation::Max => sum / values.len() as f64,
    };
    let is_known = !values.is_empty();
    SummaryEntry {
        metric: series.metric.info().name.into(),
        subject: series.subject.clone(),
        value: Estimate { mean: is_known.then_some(value), runs: u32::from(is_known), ..Estimate::default() },
        min: values.iter().copied().reduce(f64::min),
        max: values.iter().copied().reduce(f64::max),
    }
}

fn finding_summary(finding: &Finding) -> SummaryEntry {
    let mean = Some(finding.value);
    SummaryEntry {
        metric: finding.metric.clone(),
        subject: finding.subject.clone(),
        value: Estimate { mean, runs: 1, ..Estimate::default() },
        min: mean,
        max: mean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observation_can_be_opened_as_a_record() {
        let scratch = netstage_harness::TemporaryFolder::new("observed");
        let path = scratch.join("seen");
        let pending = PendingRecord::open(&path, "netstage test", "seen").unwrap();
        let series =
            |metric, values: [f64; 3]| Series { metric, subject: "a > b".into(), values: values.into() };
        let outcome = RunOutcome {
            interval: Duration::from_secs(1),
            bins: 3,
            series: vec![
                series(Metric::FlowThroughput, [1e6, 3e6, f64::NAN]),
                series(Metric::FlowReductions, [1.0, 0.0, 2.0]),
            ],
            warnings: vec!["seven records were lost".into()],
            ..RunOutcome::default()
        };
        let observation = Observation {
            tool: "netstage test".into(),
            title: "seen".into(),
            description: String::new(),
            duration: Duration::from_secs(3),
            outcome,
            tests: vec![TestOutcome {
                findings: Finding::new(Metric::TestWindow, "tune", 1e5).into_iter().collect(),
                ..TestOutcome::default()
            }],
            figures: vec![Figure { name: "windows".into(), ..Figure::default() }],
        };
        pending.save(observation).unwrap();
        let record = StoredRecord::open(&path).unwrap();
        let mean = |metric| record.data.cells[0].summary(metric, "a > b").unwrap().value.mean;
        assert_eq!((mean("flow.throughput"), mean("flow.reductions")), (Some(2e6), Some(3.0)));
        let found = record.data.cells[0].summary("test.window", "tune").unwrap();
        assert_eq!(
            (found.value.mean, record.data.metric("test.window").unwrap().unit.as_str()),
            (Some(1e5), "B")
        );
        assert_eq!(record.data.warnings, ["seven records were lost"]);
        assert_eq!(record.figures[0].name, "windows");
        let blocks = record.series().unwrap().next_blocks().unwrap().unwrap();
        assert_eq!(blocks.iter().map(|block| block.values.len()).sum::<usize>(), 5);
        assert!(PendingRecord::open(&path, "netstage test", "seen").is_err());
    }
}
