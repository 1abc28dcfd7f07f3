//! Tests of complete studies with a runner that generates random outcomes.

use crate::fixture::{Scratch, options, runner, scenario};
use crate::folder::StudyFolder;
use crate::{
    Observer, OpenError, Performer, RunFailure, RunId, StoredRecord, Study, StudyError, StudyOptions,
    StudyProgress, compare, identity, kept_trials, report, run, series,
};
use netstage_core::rng::RandomStream;
use netstage_harness::needs;
use netstage_scenario::outcome::{AchievedLoad, Distribution, Metric, RunObserver, RunOutcome};
use netstage_scenario::plan::Plan;
use netstage_scenario::{LoadOptions, Scenario};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const FILES: [&str; 3] = ["record.json", "series.parquet", "figures.json"];
const RUNS: usize = 8;

fn never() -> AtomicBool {
    AtomicBool::new(false)
}

fn finished(scenario: &Scenario, out: &Path, jobs: usize) -> StoredRecord {
    run(scenario, &runner, &options(out, jobs), &mut (), &never()).unwrap()
}

fn bytes(out: &Path) -> Vec<Vec<u8>> {
    FILES.iter().map(|name| fs::read(out.join(name)).unwrap()).collect()
}

fn listing(out: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(out).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Performs `runs` runs, then interrupts the study.
fn interrupted_after(scenario: &Scenario, out: &Path, runs: usize) -> StudyError {
    let flag = never();
    let count = AtomicUsize::new(0);
    let stops = |plan: &Plan, seed: u64, stop: &dyn RunObserver| -> Result<RunOutcome, RunFailure> {
        if count.fetch_add(1, Ordering::Relaxed) == runs {
            flag.store(true, Ordering::Relaxed);
        }
        if stop.stop() { Err(RunFailure::Interrupted) } else { runner(plan, seed, stop) }
    };
    run(scenario, &stops, &options(out, 1), &mut (), &flag).unwrap_err()
}

fn run_files(out: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(out.join("runs")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

/// Observer that records the outcome of each run.
#[derive(Default)]
struct OutcomeRecorder(Vec<(RunId, RunOutcome)>);

impl Observer for OutcomeRecorder {
    fn progress(&mut self, _: StudyProgress) {}

    fn wants_outcomes(&self) -> bool {
        true
    }

    fn outcome(&mut self, run: RunId, outcome: RunOutcome, is_over: bool) {
        assert!(is_over, "this runner reports no partial outcomes");
        self.0.push((run, outcome));
    }
}

#[test]
fn an_observer_receives_all_outcomes_and_does_not_change_the_record() {
    let scenario = scenario();
    let scratch = Scratch::new("observed");
    let (observed_out, unobserved_out) = (scratch.join("observed"), scratch.join("unobserved"));
    let mut listener = OutcomeRecorder::default();
    let never = never();
    run(&scenario, &runner, &options(&observed_out, 2), &mut listener, &never).unwrap();
    run(&scenario, &runner, &options(&unobserved_out, 2), &mut (), &never).unwrap();
    assert_eq!(bytes(&observed_out), bytes(&unobserved_out));
    let mut runs: Vec<RunId> = listener.0.iter().map(|(run, _)| *run).collect();
    runs.sort();
    let cells = 0..scenario.cells.len();
    let (seed, repeat) = (scenario.seed, u64::from(scenario.repeat));
    let all = cells.flat_map(|cell| (0..repeat).map(move |k| (cell, seed + k)));
    assert_eq!(runs, all.collect::<Vec<_>>());
    let fairness = |outcome: &RunOutcome| outcome.get(Metric::FairnessInterVpn, "").map(|s| s.values.len());
    assert!(listener.0.iter().all(|(_, outcome)| fairness(outcome) == Some(outcome.bins)));
}

#[test]
fn a_void_run_is_repeated_up_to_the_limit() {
    let scenario = scenario();
    // The first two attempts of each run are void.
    let record = |retries: u32| {
        let (scratch, attempts) = (Scratch::new(&format!("retries-{retries}")), AtomicUsize::new(0));
        let spoiled = |plan: &Plan, seed: u64, stop: &dyn RunObserver| -> Result<RunOutcome, RunFailure> {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed) % 3;
            let void = (attempt < 2).then(|| format!("late {attempt}")).into_iter().collect();
            Ok(RunOutcome { void, ..runner(plan, seed, stop)? })
        };
        let options = StudyOptions { retries, ..options(&scratch, 1) };
        let record = run(&scenario, &spoiled, &options, &mut (), &never()).unwrap();
        (record.data, attempts.into_inner())
    };
    let (retried, attempts) = record(2);
    assert_eq!((attempts, retried.void.is_empty()), (3 * RUNS, true));
    let warnings = retried.warnings.join("\n");
    assert!(
        warnings.contains("attempt 1 was void: late 0") && warnings.contains("attempt 2 was void: late 1"),
        "{warnings}"
    );
    let (single, attempts) = record(0);
    assert_eq!((attempts, single.void.is_empty()), (RUNS, false));
}

/// Returns a runner that counts its runs.
fn counting(
    count: &AtomicUsize,
) -> impl Fn(&Plan, u64, &dyn RunObserver) -> Result<RunOutcome, RunFailure> + Sync + '_ {
    move |plan, seed, stop| {
        count.fetch_add(1, Ordering::Relaxed);
        runner(plan, seed, stop)
    }
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let scratch = Scratch::new("record");
    let out = scratch.join("out");
    let record = finished(&scenario(), &out, 2);
    assert_eq!(listing(&out), ["environment.json", "figures.json", "record.json", "series.parquet"]);
    let read = StoredRecord::open(&out).unwrap();
    assert!(read.data == record.data);
    assert!(read.figures == record.figures);
    assert!(StoredRecord::open(&out.join("record.json")).unwrap().data == record.data);
    assert_eq!(read.data.cells.len(), 4);
    assert_eq!(read.data.warnings, ["made up", "seven (in 4 of 8 runs)"]);
    let mut reader = read.series().unwrap();
    let mut rows = 0;
    let mut last = (0, 0);
    while let Some(blocks) = reader.next_blocks().unwrap() {
        for block in blocks {
            assert!(last <= (block.cell, block.seed));
            last = (block.cell, block.seed);
            rows += block.values.len() as u64;
        }
    }
    assert_eq!((rows, last), (read.data.series.rows, (3, 8)));
    let names: Vec<&str> = read.figures.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["time", "swept", "map", "bars"]);
    assert_eq!(read.figures[2].cells.len(), 2);
    assert_eq!(read.figures[0].series.len(), 8);
    assert!(report::report(&read).tables[0].rows.len() == 4);
}

/// Runner that reports distributions, loads and remarks.
fn with_remarks(plan: &Plan, seed: u64, stop: &dyn RunObserver) -> Result<RunOutcome, RunFailure> {
    let mut outcome = runner(plan, seed, stop)?;
    let delay = |subject: &str, buckets: &[(u64, u64)]| Distribution {
        metric: Metric::FlowDelay,
        subject: subject.into(),
        buckets: buckets.to_vec(),
    };
    // 2048 and 2049 share a bucket.
    outcome.distributions = vec![
        delay("bulka[1]", &[(1000, 97), (2048, 1)]),
        delay("bulka[0]", &[(1000, 1), (2049, 1)]),
        delay("bulkb[0]", &[]),
    ];
    outcome.loads = vec![AchievedLoad {
        subject: "noise".into(),
        quantity: "packets".into(),
        unit: "packets".into(),
        layer: String::new(),
        requested: 100.0,
        achieved: 100.0 - (seed - 7) as f64,
    }];
    outcome.void = vec!["the emulator fell behind".into()];
    outcome.failures = if seed == 7 { vec!["the agent of h ended".into()] } else { Vec::new() };
    outcome.differences = vec!["TCP: Linux reno".into(), "TCP: Linux reno".into()];
    Ok(outcome)
}

#[test]
fn distributions_are_summed_and_remarks_are_recorded() {
    let scratch = Scratch::new("remarks");
    let (scenario, out) = (scenario(), scratch.join("out"));
    let record = run(&scenario, &with_remarks, &options(&out, 2), &mut (), &never()).unwrap();
    let [delay] = record.data.cells[0].distributions.as_slice() else { panic!("one metric of one group") };
    assert_eq!((delay.metric.as_str(), delay.subject.as_str(), delay.count), ("flow.delay", "bulka", 200));
    assert_eq!((delay.p50, delay.max), (Some(1e-6), 2.049e-6));
    assert_eq!(delay.intervals["p50"].0, 1e-6);
    // 200 values are too few.
    assert_eq!((delay.p99, delay.p999), (None, None));
    let load = &record.data.cells[0].loads[0];
    assert_eq!((load.requested, load.achieved, load.worst), (100.0, 99.5, 99.0));
    assert_eq!(record.data.void, ["the emulator fell behind"]);
    assert_eq!(record.data.failures, ["the agent of h ended (in 4 of 8 runs)"]);
    assert_eq!(record.data.differences, ["TCP: Linux reno"]);
    assert!(record.data.metric("flow.delay").is_some());
    // Two subjects of two values each in each of four cells.
    assert_eq!(record.data.distributions.as_ref().unwrap().rows, 16);
    let report = report::report(&record);
    assert_eq!(report.warnings[0], "Failed while running: the agent of h ended (in 4 of 8 runs)");
    assert_eq!(report.warnings[1], "The measurement is void: the emulator fell behind");
    assert_eq!(record.distributions_file().unwrap(), Some(out.join("distributions.parquet")));
    let again = scratch.join("again");
    run(&scenario, &with_remarks, &options(&again, 1), &mut (), &never()).unwrap();
    let file = |folder: &Path| fs::read(folder.join("distributions.parquet")).unwrap();
    assert_eq!(file(&out), file(&again));
    assert_eq!(bytes(&out), bytes(&again));
    fs::write(again.join("distributions.parquet"), "PAR1").unwrap();
    let error = StoredRecord::open(&again).unwrap().distributions_file().unwrap_err();
    assert!(error.to_string().contains("distributions.parquet: the file was changed"), "{error}");
}

#[test]
fn an_unsupported_scenario_is_not_a_failed_run() {
    let scratch = Scratch::new("unable");
    let attempt = |stopped: RunFailure| {
        let refuses = |_: &Plan, _: u64, _: &dyn RunObserver| -> Result<RunOutcome, RunFailure> {
            Err(stopped.clone())
        };
        run(&scenario(), &refuses, &options(&scratch.join("out"), 2), &mut (), &never()).unwrap_err()
    };
    let missing = RunFailure::Missing { message: "no veth".into(), remedy: "load it".into() };
    assert!(matches!(attempt(missing), StudyError::Missing { remedy, .. } if remedy == "load it"));
    assert!(matches!(attempt(RunFailure::Unsupported("no PE".into())), StudyError::Unsupported(_)));
}

#[test]
fn the_number_of_jobs_does_not_change_the_record() {
    let scratch = Scratch::new("jobs");
    let scenario = scenario();
    let reference = scratch.join("one");
    finished(&scenario, &reference, 1);
    for jobs in [2, 7] {
        let out = scratch.join(jobs.to_string());
        finished(&scenario, &out, jobs);
        assert_eq!(bytes(&out), bytes(&reference), "{jobs} jobs");
    }
}

#[test]
fn a_resumed_study_writes_the_same_record() {
    let scratch = Scratch::new("interrupt");
    let scenario = scenario();
    let reference = scratch.join("whole");
    finished(&scenario, &reference, 2);
    for finished in [0, 1, 5, 7] {
        let out = scratch.join(finished.to_string());
        let error = interrupted_after(&scenario, &out, finished);
        assert!(
            matches!(error, StudyError::Interrupted { done, total: RUNS, .. } if done == finished),
            "{error}"
        );
        let opened = StoredRecord::open(&out).unwrap_err();
        assert!(
            matches!(opened, OpenError::Incomplete { done, total: RUNS, .. } if done == finished),
            "{opened}"
        );
        let count = AtomicUsize::new(0);
        let record = run(&scenario, &counting(&count), &options(&out, 2), &mut (), &never()).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), RUNS - finished);
        assert_eq!((record.environment.runs, record.environment.resumed_runs), (RUNS - finished, finished));
        assert_eq!(bytes(&out), bytes(&reference));
    }
}

#[test]
fn runs_performed_elsewhere_give_the_same_record() {
    let scratch = Scratch::new("elsewhere");
    let scenario = scenario();
    let reference = scratch.join("whole");
    finished(&scenario, &reference, 2);
    let options = options(&scratch.join("out"), 1);
    let study = Study::open(&scenario, &options).unwrap();
    assert_eq!(study.identity(), identity(&scenario, &options.stage, &options.tool));
    let performer = Performer {
        runner: &runner,
        retries: 0,
        stop: &|| false,
        on_activity: &|_| (),
        on_trial: &|_| (),
        on_progress: &|_, _| (),
        on_outcome: None,
    };
    let perform = |run| performer.perform(&scenario, run).unwrap().unwrap();
    let pending = study.pending();
    assert_eq!(pending.len(), RUNS);
    // The file of another run, and a file of no run, are rejected.
    let error = study.save_remote_run(pending[0], perform(pending[1])).unwrap_err();
    assert!(error.to_string().contains("received the run of cell 0 with seed 8"), "{error}");
    assert!(study.save_remote_run(pending[0], b"PAR1".to_vec()).is_err());
    for &run in pending.iter().rev() {
        study.save_remote_run(run, perform(run)).unwrap();
    }
    study.finish(1).unwrap();
    assert_eq!(bytes(&options.out), bytes(&reference));
}

/// Scenario with tests that use every kind of result of a trial.
const TESTS: &str = r#"
[scenario]
title = "tests"
duration = "1 s"

[node.a]

[node.b]

[link.l]
ends = ["a", "b"]
rate = "2 Mbit/s"
delay = "5 ms"
buffer = "20 packets"
loss = 0.001

[flow.f]
from = "a"
to = "b"
transport = "udp"
traffic = { model = "poisson", rate = "200 kbit/s" }

[test.throughput]
kind = "rfc2544-throughput"
from = "a"
to = "b"
trial = "1 s"
resolution = "20 %"

[test.latency]
kind = "rfc2544-latency"
from = "a"
to = "b"
trial = "1 s"
rate = "1 Mbit/s"

[test.plateau]
kind = "plateau"
from = "a"
to = "b"
trial = "1 s"
load = ["f"]

[test.tcp]
kind = "rfc6349"
from = "a"
to = "b"
trial = "2 s"

[test.stamp]
kind = "stamp"
from = "a"
to = "b"
trial = "1 s"
interval = "20 ms"
"#;

/// Download over an asymmetric link, whose data takes the reverse path of the flow.
const DOWNLOAD: &str = r#"
[scenario]
title = "download"
duration = "10 s"

[node.client]

[node.server]

[link.l]
ends = ["client", "server"]
rate = "2 Mbit/s"
delay = "5 ms"
reverse = { rate = "10 Mbit/s" }

[flow.get]
from = "client"
to = "server"
traffic = { model = "ftp", size = "20 MB" }
"#;

#[test]
fn the_utilization_of_a_download_is_that_of_its_direction() {
    let scenario = netstage_scenario::parse("download.toml", DOWNLOAD, None, &LoadOptions::default());
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    let scratch = Scratch::new("download");
    let record = run(&scenario, &crate::stage::sim, &options(&scratch, 1), &mut (), &never()).unwrap();
    let cell = &record.data.cells[0];
    let utilization = |subject| cell.summary("link.utilization.net_of_background", subject);
    assert!(utilization("l.forward").is_none());
    let used = utilization("l.reverse").unwrap().value.mean.unwrap();
    assert!(used > 0.8, "{used}");
    // The diagram shows both rates.
    let diagram = serde_json::to_value(report::report(&record)).unwrap()["topology"].clone();
    assert_eq!(diagram["links"][0]["rate"], "2 Mbit/s → / ← 10 Mbit/s");
    assert_eq!(
        diagram["links"][0]["flows"],
        scenario.cells[0].plan.flows.iter().map(|flow| flow.count).sum::<usize>()
    );
}

#[test]
fn an_interrupted_series_of_tests_goes_on_from_the_last_trial() {
    let scenario = netstage_scenario::parse("tests.toml", TESTS, None, &LoadOptions::default());
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    let scratch = Scratch::new("tests");
    let count = AtomicUsize::new(0);
    // Returns the result of a study that is interrupted before a performance of the stage.
    let perform = |out: &Path, stop_before: Option<usize>| {
        let flag = never();
        count.store(0, Ordering::Relaxed);
        let stops = |plan: &Plan, seed: u64, observer: &dyn RunObserver| {
            if Some(count.fetch_add(1, Ordering::Relaxed)) == stop_before {
                flag.store(true, Ordering::Relaxed);
                return Err(RunFailure::Interrupted);
            }
            crate::stage::sim(plan, seed, observer)
        };
        run(&scenario, &stops, &options(out, 1), &mut (), &flag)
    };
    let reference = scratch.join("whole");
    perform(&reference, None).unwrap();
    let total = count.load(Ordering::Relaxed);
    assert!(total > 10, "{total} performances");
    let mut stream = RandomStream::new(netstage_harness::seed("interrupted tests"), "stops");
    for case in 0..needs::cases(10) {
        let out = scratch.join(format!("out{case}"));
        let (mut done, mut kept) = (0, 0);
        while done < total {
            let stop = stream.below((total - done) as u64 + 1) as usize;
            let ended = perform(&out, Some(stop));
            done += stop;
            if done < total {
                let error = ended.unwrap_err();
                let StudyError::Interrupted { trials, .. } = error else { panic!("{error}") };
                assert!(trials >= kept, "{trials} trials after {kept}");
                kept = trials;
                let table = kept_trials(&out);
                assert_eq!(table.map_or(0, |table| table.rows.len()), kept);
            }
        }
        // The last performance may have ended the study.
        if !out.join("record.json").exists() {
            perform(&out, None).unwrap();
            assert_eq!(count.load(Ordering::Relaxed), 0, "no trial is repeated");
        }
        assert_eq!(bytes(&out), bytes(&reference), "case {case}");
        assert!(!out.join("trials").exists());
    }
}

#[test]
fn a_damaged_run_is_repeated() {
    let scratch = Scratch::new("truncate");
    let mut scenario = scenario();
    scenario.cells.truncate(1);
    let reference = scratch.join("whole");
    finished(&scenario, &reference, 1);
    let out = scratch.join("out");
    interrupted_after(&scenario, &out, 1);
    let file = run_files(&out).remove(0);
    let whole = fs::read(&file).unwrap();
    let manifest = crate::folder::Manifest::new(&scenario, "sim", "netstage test");
    for length in 0..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        let folder = StudyFolder::open(&out, &manifest).unwrap();
        assert!(folder.finished_runs().unwrap().is_empty(), "{length} of {} bytes", whole.len());
    }
    let mut stream = RandomStream::new(1, "bits");
    for _ in 0..500 {
        let mut damaged = whole.clone();
        damaged[stream.next_u64() as usize % whole.len()] ^= 1 << (stream.next_u64() % 8);
        fs::write(&file, &damaged).unwrap();
        assert!(StudyFolder::open(&out, &manifest).unwrap().finished_runs().unwrap().is_empty());
    }
    // A temporary file left by a kill is not used either.
    fs::write(out.join("runs/0-8.parquet.partial"), &whole).unwrap();
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let count = AtomicUsize::new(0);
    run(&scenario, &counting(&count), &options(&out, 1), &mut (), &never()).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert_eq!(bytes(&out), bytes(&reference));
}

#[test]
fn a_kill_while_finishing_loses_nothing() {
    let scratch = Scratch::new("finishing");
    let scenario = scenario();
    let reference = scratch.join("whole");
    finished(&scenario, &reference, 2);
    // All runs have finished, and some of the final files are complete or partial.
    for left in [&[][..], &["series.parquet"], &["series.parquet", "environment.json", "figures.json"]] {
        let out = scratch.join(left.len().to_string());
        interrupted_after(&scenario, &out, 7);
        for name in left {
            fs::copy(reference.join(name), out.join(name)).unwrap();
        }
        fs::write(out.join("record.json.partial"), "{\"sche").unwrap();
        finished(&scenario, &out, 1);
        assert_eq!(bytes(&out), bytes(&reference));
    }
    // Killed during the write of the manifest.
    let out = scratch.join("manifest");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("plan.json.partial"), "{").unwrap();
    finished(&scenario, &out, 1);
    assert_eq!(bytes(&out), bytes(&reference));
}

#[test]
fn an_occupied_folder_is_not_changed() {
    let scratch = Scratch::new("occupied");
    let scenario = scenario();
    let mut other = scenario.clone();
    other.text.push_str("\n# changed");
    let assert_rejected = |scenario: &Scenario, out: &Path, reason: &str| {
        let snapshot = || -> Vec<(String, Option<Vec<u8>>)> {
            listing(out).into_iter().map(|n| (n.clone(), fs::read(out.join(n)).ok())).collect()
        };
        let before = snapshot();
        let error = run(scenario, &runner, &options(out, 1), &mut (), &never()).unwrap_err();
        assert!(
            matches!(error, StudyError::Occupied { .. }) && error.to_string().contains(reason),
            "{error}"
        );
        assert_eq!(snapshot(), before);
    };
    let complete = scratch.join("complete");
    finished(&scenario, &complete, 1);
    assert_rejected(&scenario, &complete, "already holds this study");
    assert_rejected(&other, &complete, "another study");
    let partial = scratch.join("partial");
    interrupted_after(&scenario, &partial, 3);
    assert_rejected(&other, &partial, "the scenario differs");
    let mut more = scenario.clone();
    more.repeat = 3;
    assert_rejected(&more, &partial, "seed 7, repeat 2");
    let foreign = scratch.join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.tex"), "").unwrap();
    assert_rejected(&scenario, &foreign, "other files");
    fs::write(foreign.join("plan.json"), "?").unwrap();
    assert_rejected(&scenario, &foreign, "cannot be read");
}

#[test]
fn a_folder_without_finished_runs_is_reused() {
    let scratch = Scratch::new("refused");
    let out = scratch.join("out");
    let scenario = scenario();
    let mut other = scenario.clone();
    other.text.push_str("\n# changed");
    let refuses = |_: &Plan, _: u64, _: &dyn RunObserver| -> Result<RunOutcome, RunFailure> {
        Err(RunFailure::Unsupported("no such queue".into()))
    };
    run(&other, &refuses, &options(&out, 1), &mut (), &never()).unwrap_err();
    let record = finished(&scenario, &out, 1);
    assert_eq!(record.data.scenario, scenario.text);
    assert!(record.series().is_ok());
}

#[test]
fn a_folder_is_locked_by_one_process() {
    let scratch = Scratch::new("lock");
    let out = scratch.join("out");
    let scenario = scenario();
    let manifest = crate::folder::Manifest::new(&scenario, "sim", "netstage test");
    let locked = StudyFolder::open(&out, &manifest).unwrap();
    assert!(matches!(StudyFolder::open(&out, &manifest), Err(StudyError::InUse { .. })));
    drop(locked);
    assert!(StudyFolder::open(&out, &manifest).is_ok());
}

#[test]
fn a_failed_run_names_its_cell_and_preserves_the_others() {
    let scratch = Scratch::new("fails");
    let out = scratch.join("out");
    let scenario = scenario();
    let count = AtomicUsize::new(0);
    let fails = |plan: &Plan, seed: u64, stop: &dyn RunObserver| match count.fetch_add(1, Ordering::Relaxed) {
        3 => Err(RunFailure::Failed("lost an agent".into())),
        _ => runner(plan, seed, stop),
    };
    let error = run(&scenario, &fails, &options(&out, 1), &mut (), &never()).unwrap_err();
    assert_eq!(error.to_string(), "the run of with flow.bulka.x=0.5 with seed 8 failed: lost an agent");
    assert_eq!(run_files(&out).len(), 3);
    let panics = |_: &Plan, _: u64, _: &dyn RunObserver| -> Result<RunOutcome, RunFailure> {
        panic!("a broken invariant")
    };
    let error = run(&scenario, &panics, &options(&out, 2), &mut (), &never()).unwrap_err();
    assert!(error.to_string().contains("internal error: a broken invariant"), "{error}");
    finished(&scenario, &out, 1);
}

#[test]
fn progress_counts_each_run_once() {
    #[derive(Default)]
    struct ProgressLog(Vec<StudyProgress>);
    impl Observer for ProgressLog {
        fn progress(&mut self, progress: StudyProgress) {
            self.0.push(progress);
        }
    }
    let scratch = Scratch::new("progress");
    let out = scratch.join("out");
    let scenario = scenario();
    interrupted_after(&scenario, &out, 2);
    let mut reports = ProgressLog::default();
    run(&scenario, &runner, &options(&out, 2), &mut reports, &never()).unwrap();
    let done: Vec<usize> = reports.0.iter().map(|p| p.done).collect();
    assert!(done.is_sorted() && done[0] == 2 && *done.last().unwrap() == RUNS);
    assert!(reports.0.iter().all(|p| p.done as f64 + p.in_progress <= RUNS as f64));
    assert!(
        reports.0[0].remaining.is_none() && reports.0.last().unwrap().remaining.is_some_and(|l| l.is_zero())
    );
}

#[test]
fn a_damaged_record_is_an_error_without_a_panic() {
    let scratch = Scratch::new("damage");
    let out = scratch.join("out");
    finished(&scenario(), &out, 2);
    let mut stream = RandomStream::new(2, "damage");
    let mut rejected = [0; 3];
    let rounds = needs::cases(400);
    for (index, name) in FILES.iter().enumerate() {
        let path = out.join(name);
        let whole = fs::read(&path).unwrap();
        for round in 0..rounds {
            let mut damaged = whole.clone();
            match round % 3 {
                0 => damaged.truncate(stream.next_u64() as usize % whole.len()),
                1 => damaged[stream.next_u64() as usize % whole.len()] = stream.next_u64() as u8,
                _ => {
                    let from = stream.next_u64() as usize % whole.len();
                    let length = (stream.next_u64() as usize % 40).min(whole.len() - from);
                    damaged.drain(from..from + length);
                }
            }
            fs::write(&path, &damaged).unwrap();
            match StoredRecord::open(&out) {
                Ok(record) => {
                    if let Ok(mut reader) = record.series() {
                        while let Ok(Some(_)) = reader.next_blocks() {}
                    } else {
                        rejected[index] += 1;
                    }
                    report::report(&record);
                    compare::compare(&[record.clone(), record.clone()]);
                    record.figures.iter().for_each(|f| drop(crate::svg::svg(f)));
                }
                Err(error) => {
                    assert!(error.to_string().contains(name), "{error}");
                    rejected[index] += 1;
                }
            }
        }
        fs::write(&path, &whole).unwrap();
    }
    // A changed digit in a summary is not detected; a changed measured value always is.
    let min = rounds * 5 / 8;
    assert!(rejected[0] > min && rejected[1] * 40 > rounds * 39 && rejected[2] > min, "{rejected:?}");
}

#[test]
fn a_record_compared_with_itself_has_no_differences() {
    let scratch = Scratch::new("compare");
    let (a, b) = (scratch.join("a"), scratch.join("b"));
    finished(&scenario(), &a, 1);
    let mut other = scenario();
    other.seed = 100;
    finished(&other, &b, 1);
    let open = |path: &Path| StoredRecord::open(path).unwrap();
    let same = compare::compare(&[open(&a), open(&a)]);
    assert_eq!(same.tables.len(), 4);
    let differences = same.tables.iter().flat_map(|t| &t.rows).map(|row| row.last().unwrap());
    assert!(differences.clone().count() > 20);
    assert!(differences.clone().all(|d| d.starts_with("+0") && !d.contains('*')));
    let different = compare::compare(&[open(&a), open(&b)]);
    assert!(different.tables[0].rows.iter().any(|row| !row.last().unwrap().starts_with("+0")));
    assert_eq!(different.figures[0].series.len(), 16);
    assert_eq!(different.expectations.len(), 8);
    assert!(different.expectations[0].cell.starts_with("a: "));
    assert_eq!(different.void, "");
    let mut void = open(&b);
    void.data.void.push("the generator fell behind".into());
    assert_eq!(crate::report::report(&void).void, "the measurement is void");
    assert_eq!(compare::compare(&[open(&a), void]).void, "b is void");
}

#[test]
fn a_series_file_is_not_read_as_the_file_of_a_run() {
    let plan = crate::fixture::plan();
    let bytes = series::encode_run(0, 1, &crate::fixture::outcome(&plan, 1)).unwrap();
    let mut joiner = series::Joiner::new(Vec::new()).unwrap();
    joiner.push(&bytes.into()).unwrap();
    let (joined, _) = joiner.finish().unwrap();
    assert!(series::read_run(&joined.into()).is_err());
}

/// Measures the overhead of a study: 60 runs of 2,000 series of 50 bins.
#[test]
#[ignore = "a measurement: run it with --release --nocapture"]
fn measures_a_large_study() {
    let scratch = Scratch::new("large");
    let mut scenario = scenario();
    scenario.repeat = 15;
    let mut canned = crate::fixture::outcome(&scenario.cells[0].plan, 1);
    canned.bins = 50;
    let mut stream = RandomStream::new(1, "values");
    for series in &mut canned.series {
        series.values = (0..50).map(|_| (stream.uniform() * 1e6).round()).collect();
    }
    for k in 0..2000 {
        let values = (0..50).map(|_| (stream.uniform() * 1e5).round() * 80.0 / 3.0).collect();
        let metric = netstage_scenario::outcome::Metric::FlowWindow;
        canned.series.push(netstage_scenario::outcome::Series {
            metric,
            subject: format!("bulk[{k}]"),
            values,
        });
    }
    canned.series.sort_by_key(|s| s.metric);
    let instant = |_: &Plan, _: u64, _: &dyn RunObserver| Ok(canned.clone());
    let record = run(&scenario, &instant, &options(&scratch.join("out"), 2), &mut (), &never()).unwrap();
    println!("{} rows: {:?}", record.data.series.rows, record.environment);
}
