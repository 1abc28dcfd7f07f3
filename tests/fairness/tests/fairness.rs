//! Fifty small random cases: what must hold for every control, and that the oracle shares fairly what an edge can share.
//! `make fairness` draws 800. The distributions are those of the shipped cases.

use netstage_fairness::{CaseRecord, Control, Measures, Records, packets, run, scenario, standard_controls};
use netstage_harness::{TemporaryFolder, needs};
use std::fs;
use std::path::Path;
use std::sync::Mutex;

/// Shipped cases of seed 1.
const SHIPPED: [(&str, u64); 2] = [("leaving-vpn", 59), ("parking-lot", 46)];

/// Packets that the bottlenecks of a small case carry.
const SMALL: f64 = 100e3;

fn controls_of_fifty_random_cases_are_judged() {
    needs::time(60);
    let seed = netstage_harness::seed("fairness");
    let cases = (0..).filter(|index| packets(seed, *index) <= SMALL).take(50);
    let controls = standard_controls();
    let records = Mutex::new(Records::default());
    run(seed, cases, &controls, &records, &|_| ()).unwrap();
    let records = records.into_inner().unwrap();
    assert_eq!(records.cases.len(), 50);
    let median = |control: &str| {
        let fairness = |case: &CaseRecord| case.runs[control].measures.fairness;
        let mut values: Vec<f64> = records.cases.values().map(fairness).collect();
        values.sort_by(f64::total_cmp);
        values[25]
    };
    let (consensus, i2vfc) = (median("rate-consensus"), median("i2vfc"));
    assert!(consensus > i2vfc + 0.1, "seed {seed}: median F {consensus} with consensus, {i2vfc} with I2VFC");
    for (index, case) in &records.cases {
        assert_eq!(case.runs.len(), controls.len());
        for (control, run) in &case.runs {
            let context = format!("seed {seed}, case {index}, {control}: {:?}", run.measures);
            assert!(is_plausible(&run.measures), "{context}");
        }
        let oracle = &case.runs["oracle"].measures;
        if is_easy(case) {
            assert!(oracle.fairness > 0.9, "seed {seed}, case {index}: {:?} {oracle:?}", case.features);
        }
    }
}

fn is_plausible(measures: &Measures) -> bool {
    let Measures { fairness, fairness_5s, inside, loss, worst, .. } = *measures;
    let indices = [Some(fairness), Some(fairness_5s), inside, Some(loss)];
    let waits = [measures.core_wait, measures.core_wait_p95, measures.edge_wait_p95];
    indices.into_iter().flatten().all(|index| (0.0..=1.0 + 1e-12).contains(&index))
        && waits.iter().all(|wait| *wait >= 0.0 && wait.is_finite())
        && (0.0..2.0).contains(&measures.delivered)
        && worst >= 0.0
        && measures.rate > 0.0
        && measures.events > 1.0
}

/// Returns whether TCP can follow a shaper: many flows, no random loss, no uncontrolled TCP, and no changes.
fn is_easy(case: &CaseRecord) -> bool {
    let features = &case.features;
    features.flows >= 5
        && features.loss == 0.0
        && features.loss_back == 0.0
        && features.background != "tcp"
        && !features.changes
}

fn drawn_cases_are_those_shipped() {
    for (name, index) in SHIPPED {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../scenarios/fairness/{name}.toml"));
        let shipped = fs::read_to_string(&path).unwrap();
        let drawn = scenario(1, index, &Control::none()).unwrap();
        if std::env::var("BLESS").is_ok() {
            let [start, end] = ["[scenario]", "\n[plot."].map(|table| shipped.find(table).unwrap());
            fs::write(&path, [&shipped[..start], &drawn, &shipped[end..]].concat()).unwrap();
        } else {
            assert!(shipped.contains(&drawn), "case {index} of seed 1 is no longer {}", path.display());
        }
    }
}

/// An interrupted run continues from its file, even if the last line is incomplete.
fn records_continue() {
    let folder = TemporaryFolder::new("fairness-records");
    let path = folder.join("results.jsonl");
    let case = (0..).find(|index| packets(1, *index) <= SMALL / 5.0).unwrap();
    let controls = standard_controls();
    let run_with = |controls: &[(String, Control)]| {
        let records = Mutex::new(Records::open(&path).unwrap());
        run(1, [case], controls, &records, &|_| ()).unwrap();
        records.into_inner().unwrap().cases.remove(&case).unwrap()
    };
    let first = run_with(&controls[..1]);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.clone() + "{\"run\":{\"ca").unwrap();
    let both = run_with(&controls[..2]);
    assert_eq!(first.runs["none"], both.runs["none"]);
    assert_eq!(both.runs.keys().collect::<Vec<_>>(), ["i2vfc", "none"]);
    let all = fs::read_to_string(&path).unwrap();
    assert!(all.starts_with(&text) && all.lines().count() == text.lines().count() + 1);
    // Another control of the same name is an error, not a second result.
    let other = [("none".to_owned(), Control::Law("\"i2vfc\"".to_owned()))];
    let records = Mutex::new(Records::open(&path).unwrap());
    assert!(run(1, [case], &other, &records, &|_| ()).unwrap_err().contains("another control"));
}

netstage_harness::tests![
    controls_of_fifty_random_cases_are_judged,
    drawn_cases_are_those_shipped,
    records_continue
];
netstage_harness::main![self];
