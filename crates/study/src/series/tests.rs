use super::*;
use crate::derive::derive;
use crate::fixture;
use bytes::Bytes;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_scenario::outcome::{AchievedLoad, Distribution, Metric, RunOutcome, Series};
use std::time::Instant;

fn assert_same(a: &RunOutcome, b: &RunOutcome) {
    let stored = a.series.iter().filter(|s| s.values.iter().any(|v| !v.is_nan()));
    let without_series = |o: &RunOutcome| RunOutcome { series: Vec::new(), ..o.clone() };
    assert_eq!(without_series(a), without_series(b));
    let text = |s: &Series| format!("{:?}", (s.metric, &s.subject, &s.values));
    assert!(stored.map(text).eq(b.series.iter().map(text)));
}

#[test]
fn a_run_is_read_as_it_was_written() {
    let plan = fixture::plan();
    let mut outcome = fixture::outcome(&plan, 7);
    derive(&plan, &mut outcome);
    outcome.distributions.push(Distribution {
        metric: Metric::FlowDelay,
        subject: "bulka[1]".into(),
        buckets: vec![(0, 1), (50_003_968, u64::MAX)],
    });
    outcome.loads.push(AchievedLoad {
        subject: "noise".into(),
        quantity: "rate".into(),
        unit: "bit/s".into(),
        layer: "payload".into(),
        requested: 1e7,
        achieved: 1e7 - 1.0 / 3.0,
    });
    outcome.void.push("the emulator fell behind".into());
    outcome.limited_by_policy.push(("noise".into(), "policy of h: dropped 7 packets".into()));
    outcome.sender_limits.push(("noise".into(), BitRate(10_000_000)));
    outcome.failures.push("the agent of h ended".into());
    outcome.differences.push("TCP: Linux reno for newreno".into());
    let bytes = Bytes::from(encode_run(3, u64::MAX, &outcome).unwrap());
    let (cell, seed, read) = read_run(&bytes).unwrap();
    assert_eq!((cell, seed), (3, u64::MAX));
    assert_same(&outcome, &read);
}

#[test]
fn values_are_stored_exactly_and_missing_values_have_no_row() {
    let values =
        vec![f64::NAN, 0.0, -0.0, f64::MIN_POSITIVE / 2.0, f64::MAX, f64::INFINITY, 1.0 / 3.0, f64::NAN];
    let series = |subject: &str, values| Series { metric: Metric::VpnLoss, subject: subject.into(), values };
    let outcome = RunOutcome {
        interval: Duration(1),
        bins: 8,
        series: vec![
            series("ünï", values.clone()),
            series("none", vec![f64::NAN; 8]),
            series("", vec![1.0; 8]),
        ],
        warnings: vec!["\"quoted\"".into()],
        ..RunOutcome::default()
    };
    let bytes = Bytes::from(encode_run(0, 1, &outcome).unwrap());
    assert_same(&outcome, &read_run(&bytes).unwrap().2);
    let mut reader = SeriesReader::new(bytes).unwrap();
    let blocks = reader.next_blocks().unwrap().unwrap();
    assert_eq!(blocks[0].times, [1, 2, 3, 4, 5, 6]);
    assert!(blocks[0].values.iter().zip(&values[1..7]).all(|(a, b)| a.to_bits() == b.to_bits()));
    assert_eq!(blocks.len(), 2);
}

#[test]
fn all_index_widths_are_read_as_written() {
    for bins in [1usize, 2, 3, 5, 9, 17, 33, 64, 65, 1000, 70_000] {
        let values: Vec<f64> = (0..bins).map(|b| if b % 7 == 3 { f64::NAN } else { b as f64 }).collect();
        let outcome = RunOutcome {
            interval: Duration(10),
            bins,
            series: vec![Series { metric: Metric::LinkQueue, subject: "l".into(), values }],
            ..RunOutcome::default()
        };
        assert_same(&outcome, &read_run(&encode_run(0, 0, &outcome).unwrap().into()).unwrap().2);
    }
}

#[test]
fn an_outcome_without_values_is_written() {
    let outcome = RunOutcome { interval: Duration(1), bins: 0, series: vec![], ..RunOutcome::default() };
    let bytes = Bytes::from(encode_run(0, 1, &outcome).unwrap());
    assert_eq!(read_run(&bytes).unwrap().2, outcome);
    let mut joiner = Joiner::new(Vec::new()).unwrap();
    joiner.push(&bytes).unwrap();
    let (file, rows) = joiner.finish().unwrap();
    assert_eq!(rows, 0);
    assert_eq!(SeriesReader::new(Bytes::from(file)).unwrap().next_blocks().unwrap(), None);
}

#[test]
fn joining_preserves_all_rows_and_large_runs_have_several_groups() {
    let plan = fixture::plan();
    let small = fixture::outcome(&plan, 1);
    let mut large = fixture::outcome(&plan, 2);
    large.series = (0..40_000)
        .map(|k| Series {
            metric: Metric::FlowThroughput,
            subject: format!("f[{k}]"),
            values: vec![f64::from(k); 10],
        })
        .collect();
    let mut joiner = Joiner::new(Vec::new()).unwrap();
    for (cell, outcome) in [(0, &small), (1, &large)] {
        joiner.push(&encode_run(cell, 1, outcome).unwrap().into()).unwrap();
    }
    let (file, rows) = joiner.finish().unwrap();
    let mut reader = SeriesReader::new(Bytes::from(file)).unwrap();
    let mut blocks = Vec::new();
    let mut groups = 0;
    while let Some(more) = reader.next_blocks().unwrap() {
        groups += 1;
        blocks.extend(more);
    }
    assert_eq!(groups, 3);
    assert_eq!(blocks.iter().map(|b| b.values.len() as u64).sum::<u64>(), rows);
    let last = blocks.last().unwrap();
    assert_eq!((last.cell, &*last.subject, last.values[9]), (1, "f[39999]", 39_999.0));
}

/// Measures writing: six million values take about 0.5 s on one core.
#[test]
#[ignore = "a measurement: run it with --release --nocapture"]
fn measures_writing() {
    let metrics = [Metric::FlowThroughput, Metric::FlowWindow, Metric::FlowRoundTrip, Metric::VpnWindow];
    let mut stream = netstage_core::rng::RandomStream::new(1, "values");
    let mut series = Vec::new();
    for metric in metrics {
        for k in 0..500 {
            let values = (0..50).map(|_| (stream.uniform() * 1e5).round() * 80.0 / 3.0).collect();
            series.push(Series { metric, subject: format!("bulk[{k}]"), values });
        }
    }
    let outcome = RunOutcome { interval: Duration(1_000_000_000), bins: 50, series, ..RunOutcome::default() };
    let start = Instant::now();
    let files: Vec<Bytes> = (0..60).map(|seed| encode_run(0, seed, &outcome).unwrap().into()).collect();
    let encoded = start.elapsed();
    let mut joiner = Joiner::new(Vec::new()).unwrap();
    files.iter().for_each(|f| joiner.push(f).unwrap());
    let (file, rows) = joiner.finish().unwrap();
    let joined = start.elapsed() - encoded;
    files.iter().for_each(|f| assert_eq!(read_run(f).unwrap().2.series.len(), 2000));
    let read = start.elapsed() - encoded - joined;
    println!(
        "{rows} rows, {} bytes: encoded in {encoded:?}, joined in {joined:?}, read in {read:?}",
        file.len()
    );
}

#[test]
fn series_of_version_0_1_are_read_with_current_names() {
    let old = Bytes::from_static(include_bytes!("../../../../fuzz/corpus/series/small"));
    let blocks = SeriesReader::new(old).unwrap().next_blocks().unwrap().unwrap();
    let has = |name: &str| blocks.iter().any(|block| &*block.metric == name);
    assert!(has("link.utilization") && !has("link.utilisation"));
}
