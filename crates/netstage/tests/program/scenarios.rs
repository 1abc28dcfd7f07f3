//! Tests of the published scenarios: runs them with the program and verifies their expectations.

use netstage_harness::{needs, skip, skip_busy};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

fn run(scenario: &Path, out: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netstage"));
    command.arg("run").arg(scenario).arg("--out").arg(out).args(arguments);
    command.output().expect("netstage starts")
}

/// Returns an empty folder below the build folder.
fn fresh(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scenarios").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn assert_met(scenario: &Path) {
    let name = scenario.file_stem().unwrap().to_str().unwrap();
    // Several papers have figures of the same number.
    let paper = scenario.parent().unwrap().file_name().unwrap().to_str().unwrap();
    let output = run(scenario, &fresh(&format!("{paper}-{name}")), &[]);
    assert!(
        output.status.success(),
        "{name}: {:?}\n{}{}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Returns whether the comment at the start of the file contains these words.
fn comment_contains(scenario: &Path, words: &str) -> bool {
    let text = std::fs::read_to_string(scenario).unwrap();
    text.lines().take_while(|line| line.starts_with('#')).any(|line| line.contains(words))
}

/// Like [`assert_met`], in the emulator. The simulator must reject the file.
fn assert_met_by_real_packets(scenario: &Path) {
    let name = scenario.file_stem().unwrap().to_str().unwrap();
    let rejected = run(scenario, &fresh(&format!("{name}-sim")), &[]);
    let message = String::from_utf8_lossy(&rejected.stderr);
    assert!(rejected.status.code() == Some(2) && message.contains("--on emu"), "{name}: {message}");
    let output = run(scenario, &fresh(name), &["--on", "emu"]);
    let details = format!(
        "{name}: {:?}\n{}{}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    match output.status.code() {
        Some(0) => {}
        Some(4) => skip(details),
        Some(5) => skip_busy(&details),
        _ => panic!("{details}"),
    }
}

/// Returns the examples that the simulator runs, or those that need real packets, without those that take too long.
fn examples(of_real_packets: bool) -> Vec<PathBuf> {
    let found = std::fs::read_dir(scenarios().join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let is_scenario = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml");
    let is_tested = |path: &PathBuf| {
        comment_contains(path, "--on emu") == of_real_packets
            && !comment_contains(path, "takes a quarter of an hour")
    };
    found.filter(is_scenario).filter(is_tested).collect()
}

fn every_example_meets_its_expectations() {
    needs::time(10);
    let examples = examples(false);
    examples.iter().for_each(|path| assert_met(path));
    assert!(examples.len() >= 6, "{examples:?}");
}

fn every_example_of_real_packets_meets_its_expectations() {
    needs::emulation();
    examples(true).iter().for_each(|path| assert_met_by_real_packets(path));
}

fn figures_2_and_3_of_the_i2vfc_paper_are_reproduced() {
    needs::time(5);
    assert_met(&scenarios().join("papers/i2vfc/fig2.toml"));
    assert_met(&scenarios().join("papers/i2vfc/fig3.toml"));
}

fn the_vpn_papers_figures_are_reproduced() {
    needs::time(3);
    let figures = ["fig3", "fig4", "fig5", "fig6", "direct-windows"];
    let further =
        ["best-window", "iscsi", "iscsi-writes", "iscsi-loop", "iscsi-delays", "iscsi-window", "gateways"];
    for name in figures.into_iter().chain(further) {
        assert_met(&scenarios().join(format!("papers/vpn-tcp/{name}.toml")));
    }
}

fn the_stage_papers_tests_meet_their_expectations() {
    let name = scenarios().join("papers/stage/line.toml");
    assert_met(&name);
    assert_met(&scenarios().join("papers/stage/rfc2544.toml"));
    assert_met(&scenarios().join("papers/stage/bit-errors.toml"));
    assert_met(&scenarios().join("papers/stage/backbone.toml"));
    let record = fresh("line-again");
    let output = run(&name, &record, &["--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let verdict = |cell: usize| {
        let tests = document["record"]["cells"][cell]["tests"].as_array().unwrap().iter();
        let tcp = tests.filter(|test| test["name"] == "tcp").map(|test| &test["verdicts"]).next().unwrap();
        tcp.to_string()
    };
    assert!(verdict(0).contains("limited by the line rate"), "{}", verdict(0));
    assert!(verdict(1).contains("limited by the window"), "{}", verdict(1));
    assert!(verdict(2).contains("limited by loss"), "{}", verdict(2));
}

/// Figures 4, 5, 7 and 10 miss their expectations in some cells (docs/results/i2vfc.md); the others must be met.
fn the_other_figures_are_reproduced_where_known() {
    needs::time(40);
    let assert_met = |scenario: &str, repeat: &str, expectation: &str, cells: &str| {
        let out = fresh(&format!("{scenario}-{expectation}"));
        let path = scenarios().join("papers/i2vfc").join(format!("{scenario}.toml"));
        let output = run(&path, &out, &["--repeat", repeat, "--json"]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let expectations = document["record"]["expectations"].as_array().unwrap().iter();
        let verdicts: Vec<bool> = expectations
            .filter(|entry| entry["name"] == expectation)
            .flat_map(|entry| entry["cells"].as_array().unwrap().iter())
            .map(|cell| cell["pass"].as_bool().unwrap())
            .collect();
        assert!(
            !verdicts.is_empty() && verdicts.iter().all(|pass| *pass),
            "{scenario}: {expectation} {cells}"
        );
    };
    // The difference is 1 %, which requires more than two runs.
    assert_met("fig4", "10", "best-at-small-a-and-b", "against large a and b");
    assert_met("fig7", "2", "used-link1", "for each B₃");
    assert_met("no-control", "2", "baseline-2", "with 2 flows");
    assert_met("fig10", "2", "inter", "in the mean");
    assert_met("fig10", "2", "used", "in the mean");
    assert_met("fig10", "2", "weighted", "in the mean");
}

fn shares_follow_a_weight_set_on_the_command_line() {
    let scenario = scenarios().join("examples/fair-two-vpns.toml");
    let share = |weight: &str| {
        let out = fresh(&format!("weight-{weight}"));
        let set = format!("vpn.gold.weight={weight}");
        let output = run(&scenario, &out, &["--set", &set, "--repeat", "1", "--json"]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let summary = document["record"]["cells"][0]["summary"].as_array().unwrap().clone();
        let mean = |vpn: &str| {
            let entry = summary.iter().find(|e| e["metric"] == "vpn.throughput" && e["subject"] == vpn);
            entry.unwrap()["mean"].as_f64().unwrap()
        };
        mean("gold") / mean("silver")
    };
    for weight in [1.0, 3.0, 5.0] {
        let got = share(&weight.to_string());
        assert!((got / weight - 1.0).abs() < 0.25, "weight {weight}: gold has {got:.2} times silver's share");
    }
}

netstage_harness::tests![
    every_example_meets_its_expectations,
    every_example_of_real_packets_meets_its_expectations,
    figures_2_and_3_of_the_i2vfc_paper_are_reproduced,
    the_vpn_papers_figures_are_reproduced,
    the_stage_papers_tests_meet_their_expectations,
    the_other_figures_are_reproduced_where_known,
    shares_follow_a_weight_set_on_the_command_line,
];
