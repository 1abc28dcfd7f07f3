//! Tests of the command line: exit codes, messages and files.

use crate::support::{TemporaryFolder, netstage};
use netstage_harness::needs;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

const SCENARIO: &str = r#"
[scenario]
title = "Two flows, one line"
duration = "2 s"
seed = 3
repeat = 2

[node.a]
[node.b]

[link.line]
ends = ["a", "b"]
rate = "10 Mbit/s"
delay = "5 ms"
buffer = "30 packets"

[flow.bulk]
from = "a"
to = "b"
transport = "tcp"
traffic = { model = "bulk" }
count = 2

[measure]
interval = "100 ms"

[sweep]
"link.line.rate" = ["5 Mbit/s", "10 Mbit/s"]

[expect.used]
metric = "link.utilization"
subject = "line.forward"
over = ["1 s", "2 s"]
at_least = 0.5
claim = "TCP fills the line"

[plot.throughput]
title = "Throughput"
metric = "flow.throughput"
"#;

/// Folder with a scenario.
struct Workspace(TemporaryFolder);

impl Workspace {
    fn new(name: &str) -> Workspace {
        let folder = TemporaryFolder::new(name);
        fs::write(folder.join("line.toml"), SCENARIO).unwrap();
        Workspace(folder)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = netstage(arguments);
        command.current_dir(&self.0);
        command
    }

    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        let Output { status, stdout, stderr } = self.command(arguments).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }

    #[track_caller]
    fn expect(&self, code: i32, arguments: &[&str]) -> (String, String) {
        let (got, stdout, stderr) = self.run(arguments);
        assert_eq!(got, code, "{arguments:?}\n{stdout}\n{stderr}");
        (stdout, stderr)
    }

    fn bytes(&self, folder: &str) -> Vec<Vec<u8>> {
        let names = ["record.json", "series.parquet", "figures.json"];
        names.iter().map(|name| fs::read(self.0.join(folder).join(name)).unwrap()).collect()
    }

    /// Starts a study of many runs and waits until some have finished.
    fn start_long(&self, out: &str) -> Child {
        let mut command = self.command(&["run", "line.toml", "--repeat", "150", "--out", out]);
        let child = command.spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while finished_runs(&self.0.join(out)) < 3 {
            assert!(Instant::now() < deadline, "no run has finished within a minute");
            std::thread::sleep(Duration::from_millis(2));
        }
        child
    }
}

fn finished_runs(out: &Path) -> usize {
    let entries = fs::read_dir(out.join("runs")).into_iter().flatten().flatten();
    entries.filter(|e| e.path().extension().is_some_and(|x| x == "parquet")).count()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn router_configurations_are_written_to_a_folder() {
    let place = Workspace::new("cli-routers");
    let exchange = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/papers/mpls-ix/lan-ix.toml");
    place.expect(0, &["check", exchange.to_str().unwrap(), "--routers", "generated"]);
    let generated = |file: &str| fs::read_to_string(place.0.join("generated/edge20").join(file)).unwrap();
    assert!(generated("bgpd.conf").starts_with("router bgp 65020\n"));
    let addresses = generated("addresses");
    assert!(addresses.lines().any(|line| line == "link39 100.96.0.20/27"), "{addresses}");
    let (_, stderr) = place.expect(2, &["check", "line.toml", "--routers", "none"]);
    assert!(stderr.contains("no routers") && !place.0.join("none").exists(), "{stderr}");
}

fn a_run_writes_a_record_a_report_and_a_summary() {
    let place = Workspace::new("run");
    let (stdout, stderr) = place.expect(0, &["run", "line.toml"]);
    assert_eq!(stderr, "", "progress is not shown without a terminal");
    for part in
        ["Two flows, one line", "5 Mbit/s", "✓ used", "claimed: TCP fills the line", "out/line/report.html"]
    {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    let page = fs::read_to_string(place.0.join("out/line/report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("Two flows, one line"));
    for remote in ["src=\"http", "href=\"http", "@import", "url(http"] {
        assert!(!page.contains(remote), "the page needs no network: {remote}");
    }
    let record = json(&fs::read_to_string(place.0.join("out/line/record.json")).unwrap());
    assert_eq!((&record["stage"], &record["repeat"]), (&"sim".into(), &2.into()));
    let (stdout, _) = place.expect(0, &["run", "line.toml"]);
    assert!(stdout.contains("out/line-2/report.html"), "a default folder is never overwritten: {stdout}");
    let (_, stderr) = place.expect(2, &["run", "line.toml", "--out", "out/line"]);
    assert!(stderr.contains("already holds this study") && stderr.contains("--out"), "{stderr}");
}

fn doctor_lists_missing_features_with_remedies() {
    let place = Workspace::new("doctor");
    let (code, stdout, stderr) = place.run(&["doctor", "--json"]);
    let found = json(&stdout);
    assert_eq!(code, if found["emu"] == true { 0 } else { 4 }, "{stderr}");
    let findings = found["findings"].as_array().unwrap();
    let missing = |f: &&Value| f["present"] == false;
    assert!(findings.iter().filter(missing).all(|f| f["remedy"] != ""), "{stdout}");
    assert_eq!(found["emu"] == true, !findings.iter().filter(missing).any(|f| f["required"] == true));
    assert!(findings.iter().any(|f| f["name"] == "timers"));
}

fn the_same_seed_gives_the_same_record_with_any_number_of_threads() {
    let place = Workspace::new("bytes");
    place.expect(0, &["run", "line.toml", "--jobs", "1", "--out", "a"]);
    place.expect(0, &["run", "line.toml", "--jobs", "3", "--out", "b"]);
    assert_eq!(place.bytes("a"), place.bytes("b"));
    place.expect(0, &["run", "line.toml", "--seed", "4", "--out", "c"]);
    assert_ne!(place.bytes("a"), place.bytes("c"));
}

fn a_failed_expectation_is_exit_3_and_the_record_is_kept() {
    let place = Workspace::new("fails");
    let (stdout, _) = place.expect(3, &["run", "line.toml", "--set", "expect.used.at_least=2.0"]);
    assert!(stdout.contains("✗ used") && stdout.contains("0 of 2 cells"), "{stdout}");
    let (stdout, _) = place.expect(0, &["report", "out/line", "--json"]);
    assert_eq!(json(&stdout)["expectations"][0]["pass"], false);
}

fn options_override_the_scenario() {
    let place = Workspace::new("options");
    let arguments =
        ["--set", "flow.bulk.count=3", "--vary", "link.line.delay=1 ms,2 ms,3 ms", "--repeat", "1"];
    let (stdout, _) = place.expect(0, &[&["check", "line.toml", "--json"], &arguments[..]].concat());
    let checked = json(&stdout);
    assert_eq!(checked["cells"].as_array().unwrap().len(), 6);
    assert_eq!(checked["repeat"], 1);
    let (stdout, _) =
        place.expect(0, &[&["run", "line.toml", "--json", "--out", "o"], &arguments[..]].concat());
    let result = json(&stdout);
    assert_eq!(result["record"]["cells"].as_array().unwrap().len(), 6);
    assert_eq!((&result["exit"], &result["out"]), (&0.into(), &"o".into()));
    assert!(result["record"]["scenario"].as_str().unwrap().contains("count = 3"));
}

fn an_invalid_scenario_is_exit_2_with_its_position() {
    let place = Workspace::new("wrong");
    fs::write(place.0.join("bad.toml"), SCENARIO.replace("rate = \"10", "rat = \"10")).unwrap();
    for command in ["check", "run"] {
        let (_, stderr) = place.expect(2, &[command, "bad.toml"]);
        assert!(stderr.contains("bad.toml:13:1") && stderr.contains("rate"), "{stderr}");
        let (stdout, stderr) = place.expect(2, &[command, "bad.toml", "--json"]);
        let error = &json(&stderr)["error"];
        let lines = error["problems"].as_array().unwrap().iter().map(|p| &p["line"]);
        assert!(error["code"] == 2 && lines.into_iter().any(|line| *line == 13), "{error}");
        assert_eq!(stdout, "");
    }
    let (_, stderr) = place.expect(2, &["check", "missing.toml"]);
    assert!(stderr.contains("missing.toml") && stderr.contains("No such file"), "{stderr}");
    assert!(!place.0.join("out").exists());
}

fn invalid_usage_is_exit_2() {
    let place = Workspace::new("usage");
    for arguments in [
        &["run"][..],
        &["run", "line.toml", "--on", "mars"],
        &["run", "line.toml", "--jobs", "0"],
        &["run", "line.toml", "--set", "novalue"],
        &["report"],
        &["dance"],
    ] {
        let (_, stderr) = place.expect(2, arguments);
        assert!(stderr.starts_with("error:"), "{stderr}");
    }
    let (_, stderr) = place.expect(2, &["run", "line.toml", "--json", "--frobnicate"]);
    assert_eq!(json(&stderr)["error"]["kind"], "usage");
    let (stdout, _) = place.expect(0, &["--help"]);
    assert!(stdout.contains("Exit codes"), "{stdout}");
}

fn an_interrupt_is_exit_130_and_the_study_can_be_resumed() {
    let place = Workspace::new("interrupt");
    let child = place.start_long("out");
    let signal = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(signal.success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted") && stderr.contains("of 300 runs are kept"), "{stderr}");
    let (_, stderr) = place.expect(2, &["report", "out"]);
    assert!(stderr.contains("unfinished"), "{stderr}");
    let kept = finished_runs(&place.0.join("out"));
    let (stdout, _) = place.expect(0, &["run", "line.toml", "--repeat", "150", "--out", "out", "--json"]);
    assert_eq!(json(&stdout)["environment"]["resumed_runs"], kept);
}

fn a_kill_loses_no_finished_run() {
    needs::time(2);
    let place = Workspace::new("kill");
    let mut child = place.start_long("out");
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = finished_runs(&place.0.join("out"));
    let (stdout, _) = place.expect(0, &["run", "line.toml", "--repeat", "150", "--out", "out", "--json"]);
    assert_eq!(json(&stdout)["environment"]["resumed_runs"], kept);
    place.expect(0, &["run", "line.toml", "--repeat", "150", "--out", "whole"]);
    assert_eq!(place.bytes("out"), place.bytes("whole"));
}

fn a_record_is_reported_in_all_formats() {
    let place = Workspace::new("forms");
    place.expect(0, &["run", "line.toml", "--out", "a"]);
    place.expect(0, &["run", "line.toml", "--out", "b", "--seed", "9"]);
    let (stdout, _) =
        place.expect(0, &["report", "a", "--html", "page.html", "--svg", "pictures", "--csv", "v.csv"]);
    assert!(stdout.contains("page.html"));
    assert!(fs::read_to_string(place.0.join("pictures/throughput.svg")).unwrap().contains("</svg>"));
    let csv = fs::read_to_string(place.0.join("v.csv")).unwrap();
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("record,cell,settings,seed,time_s,subject,metric,value"));
    let record = json(&fs::read_to_string(place.0.join("a/record.json")).unwrap());
    assert_eq!(lines.count() as u64, record["series"]["rows"].as_u64().unwrap());
    let (stdout, _) = place.expect(0, &["report", "a", "--csv", "-"]);
    assert_eq!(stdout, csv);
    let (stdout, _) = place.expect(0, &["report", "a", "b", "--html", "both.html"]);
    assert!(stdout.contains("difference") && stdout.contains("Comparison of a, b"), "{stdout}");
    let (stdout, _) = place.expect(0, &["report", "a", "b", "--json"]);
    let report = json(&stdout);
    assert_eq!(report["schema"], 1);
    assert_eq!((&report["records"][0]["name"], &report["records"][0]["record"]), (&"a".into(), &record));
    assert_eq!(report["records"][1]["record"]["seed"], 9);
    assert!(report["records"][1]["environment"]["runs"].as_u64() > Some(0));
}

fn an_invalid_record_is_reported() {
    let place = Workspace::new("norecord");
    let (_, stderr) = place.expect(2, &["report", "nowhere"]);
    assert!(stderr.contains("holds no record"), "{stderr}");
    place.expect(0, &["run", "line.toml", "--out", "a"]);
    let series = place.0.join("a/series.parquet");
    let mut bytes = fs::read(&series).unwrap();
    bytes[100] ^= 1;
    fs::write(&series, bytes).unwrap();
    let (_, stderr) = place.expect(1, &["report", "a", "--csv", "v.csv"]);
    assert!(stderr.contains("series.parquet"), "{stderr}");
    fs::write(place.0.join("a/record.json"), r#"{"schema": "9.0"}"#).unwrap();
    let (_, stderr) = place.expect(1, &["report", "a", "--json"]);
    assert!(json(&stderr)["error"]["message"].as_str().unwrap().contains("version 9.0"));
}

fn a_folder_that_cannot_be_written_is_exit_1() {
    let place = Workspace::new("unwritable");
    fs::write(place.0.join("file"), "").unwrap();
    let (_, stderr) = place.expect(1, &["run", "line.toml", "--out", "file/out"]);
    assert!(stderr.contains("cannot create file/out"), "{stderr}");
    place.expect(0, &["run", "line.toml", "--out", "a"]);
    place.expect(1, &["report", "a", "--html", "file/page.html"]);
}

fn a_closed_pipe_is_not_a_failure() {
    let place = Workspace::new("pipe");
    place.expect(0, &["run", "line.toml", "--out", "a"]);
    let mut child = place.command(&["report", "a", "--csv", "-"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

fn schema_and_completions_are_printed() {
    let place = Workspace::new("schema");
    let (stdout, _) = place.expect(0, &["schema"]);
    assert!(json(&stdout)["$schema"].is_string());
    for shell in ["bash", "zsh", "fish"] {
        let (stdout, _) = place.expect(0, &["completions", shell]);
        assert!(stdout.contains("netstage") && stdout.contains("vary"));
    }
}

/// Returns a pcap file of ten DNS lookups, one per second: queries of 45 bytes, responses of 160 bytes after 8 ms.
fn lookups() -> Vec<u8> {
    let mut file: Vec<u8> = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    for second in 0..10_u32 {
        for (client, microseconds, payload) in [(true, 0_u32, 45_u16), (false, 8_000, 160)] {
            let (hosts, ports) = if client { ([1, 2], [40_000_u16, 53]) } else { ([2, 1], [53, 40_000]) };
            let mut packet = vec![0x45, 0];
            packet.extend((28 + payload).to_be_bytes());
            packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, hosts[0], 10, 0, 0, hosts[1]]);
            ports.iter().for_each(|port| packet.extend(port.to_be_bytes()));
            packet.extend((8 + payload).to_be_bytes());
            packet.extend([0, 0]);
            let length = packet.len() as u32;
            [second, microseconds, length, length].iter().for_each(|word| file.extend(word.to_le_bytes()));
            file.extend(packet);
        }
    }
    file
}

fn a_model_learned_from_a_capture_runs() {
    let place = Workspace::new("learn");
    fs::write(place.0.join("dns.pcap"), lookups()).unwrap();
    let (stdout, _) = place.expect(0, &["traffic", "learn", "dns.pcap", "-o", "dns.json"]);
    assert!(stdout.contains("udp port 53: 20 packets") && stdout.contains("45 B"), "{stdout}");
    assert!(
        stdout.contains("Held-out test: ") && stdout.contains("not tested: a fifth of the capture"),
        "{stdout}"
    );
    let scenario = SCENARIO.replace(
        "transport = \"tcp\"\ntraffic = { model = \"bulk\" }",
        "transport = \"udp\"\ntraffic = { model = \"learned\", file = \"dns.json\", replay = true }",
    );
    assert_ne!(scenario, SCENARIO);
    fs::write(place.0.join("learned.toml"), scenario).unwrap();
    // The expectation applies to a bulk transfer and fails for lookups.
    let (stdout, _) = place.expect(3, &["run", "learned.toml", "--json", "--repeat", "1"]);
    let summary = json(&stdout)["record"]["cells"][0]["summary"].clone();
    let entry = |metric: &str| {
        let found = summary.as_array().unwrap().iter().find(|entry| entry["metric"] == metric);
        found.unwrap_or_else(|| panic!("{metric}")).clone()
    };
    assert!(entry("app.transaction_time")["mean"].as_f64().unwrap() > 0.008);
    fs::write(place.0.join("broken.pcap"), b"no capture").unwrap();
    let (_, stderr) = place.expect(2, &["traffic", "learn", "broken.pcap"]);
    assert!(stderr.contains("neither a pcap nor a pcapng file"), "{stderr}");
    let (_, stderr) = place.expect(2, &["traffic", "learn", "dns.pcap", "--flow", "tcp"]);
    assert!(stderr.contains("no flow of the capture matches"), "{stderr}");
}

netstage_harness::tests![
    router_configurations_are_written_to_a_folder,
    a_run_writes_a_record_a_report_and_a_summary,
    doctor_lists_missing_features_with_remedies,
    the_same_seed_gives_the_same_record_with_any_number_of_threads,
    a_failed_expectation_is_exit_3_and_the_record_is_kept,
    options_override_the_scenario,
    an_invalid_scenario_is_exit_2_with_its_position,
    invalid_usage_is_exit_2,
    an_interrupt_is_exit_130_and_the_study_can_be_resumed,
    a_kill_loses_no_finished_run,
    a_record_is_reported_in_all_formats,
    an_invalid_record_is_reported,
    a_folder_that_cannot_be_written_is_exit_1,
    a_closed_pipe_is_not_a_failure,
    schema_and_completions_are_printed,
    a_model_learned_from_a_capture_runs,
];
