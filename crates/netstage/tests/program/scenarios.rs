//! Every published scenario that must hold, run as a person would: its expectations decide.

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

/// A folder of its own under the build's, empty.
fn fresh(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scenarios").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn assert_met(scenario: &Path) {
    let name = scenario.file_stem().unwrap().to_str().unwrap();
    // Papers have figures of the same number.
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

/// Whether the file says of itself that the simulator has no model of something in it.
fn needs_real_packets(scenario: &Path) -> bool {
    let text = std::fs::read_to_string(scenario).unwrap();
    text.lines().take_while(|line| line.starts_with('#')).any(|line| line.contains("--on emu"))
}

/// As [`assert_met`] on the emulated stage; the simulator refuses the file.
fn assert_met_by_real_packets(scenario: &Path) {
    let name = scenario.file_stem().unwrap().to_str().unwrap();
    let refused = run(scenario, &fresh(&format!("{name}-sim")), &[]);
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && message.contains("--on emu"), "{name}: {message}");
    let output = run(scenario, &fresh(name), &["--on", "emu"]);
    let said = format!(
        "{name}: {:?}\n{}{}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    match output.status.code() {
        Some(0) => {}
        Some(4) => skip(said),
        Some(5) => skip_busy(&said),
        _ => panic!("{said}"),
    }
}

fn examples(of_real_packets: bool) -> Vec<PathBuf> {
    let found = std::fs::read_dir(scenarios().join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let is_scenario = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "toml");
    found.filter(is_scenario).filter(|path| needs_real_packets(path) == of_real_packets).collect()
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

fn figures_2_and_3_of_the_i2vfc_paper_hold() {
    needs::time(5);
    assert_met(&scenarios().join("papers/i2vfc/fig2.toml"));
    assert_met(&scenarios().join("papers/i2vfc/fig3.toml"));
}

fn the_vpn_papers_figures_hold() {
    needs::time(3);
    let figures = ["fig3", "fig4", "fig5", "fig6", "direct-windows"];
    let further = ["best-window", "iscsi", "iscsi-writes", "iscsi-loop", "gateways"];
    for name in figures.into_iter().chain(further) {
        assert_met(&scenarios().join(format!("papers/vpn-tcp/{name}.toml")));
    }
}

fn the_stage_papers_line_is_as_its_tests_say() {
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
    assert!(verdict(0).contains("the line limits"), "{}", verdict(0));
    assert!(verdict(1).contains("the window limits"), "{}", verdict(1));
    assert!(verdict(2).contains("loss limits"), "{}", verdict(2));
}

/// Figures 4, 5, 7 and 10 fall short in some cells (docs/results/i2vfc.md): what holds, must hold on.
fn the_other_figures_hold_where_they_did() {
    needs::time(40);
    let holds = |scenario: &str, repeat: &str, expectation: &str, cells: &str| {
        let out = fresh(&format!("{scenario}-{expectation}"));
        let path = scenarios().join("papers/i2vfc").join(format!("{scenario}.toml"));
        let output = run(&path, &out, &["--repeat", repeat, "--json"]);
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let judged = document["record"]["expectations"].as_array().unwrap().iter();
        let verdicts: Vec<bool> = judged
            .filter(|entry| entry["name"] == expectation)
            .flat_map(|entry| entry["cells"].as_array().unwrap().iter())
            .map(|cell| cell["pass"].as_bool().unwrap())
            .collect();
        assert!(
            !verdicts.is_empty() && verdicts.iter().all(|pass| *pass),
            "{scenario}: {expectation} {cells}"
        );
    };
    // Where a is 5 and b is 0.1 the margin is half a percent, which two runs do not show.
    holds("fig4", "10", "above-none-scale-a-equal-weights", "in all 16 cells");
    holds("fig7", "2", "used-link1", "for each B₃");
    holds("no-control", "2", "baseline-2", "with 2 flows");
    holds("fig10", "2", "inter", "in the mean");
    holds("fig10", "2", "used", "in the mean");
    holds("fig10", "2", "weighted", "in the mean");
}

fn shares_follow_a_weight_changed_by_hand() {
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
    figures_2_and_3_of_the_i2vfc_paper_hold,
    the_vpn_papers_figures_hold,
    the_stage_papers_line_is_as_its_tests_say,
    the_other_figures_hold_where_they_did,
    shares_follow_a_weight_changed_by_hand,
];
