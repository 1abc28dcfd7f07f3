//! Tests of a route server: what its members see of a leak, of too many prefixes, of a flood and of a withdrawal. The
//! counts of BIRD itself are compared with those that the members record.

use crate::support::routing::{assert_met, run, sockets};
use crate::support::{TemporaryFolder, TestProcess, record, text, within};
use netstage_harness::{needs, skip};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Five members with 100 prefixes each. The names of the nodes are numbered as they are sorted.
const SMALL: &str = r#"
[scenario]
title = "Five members"
duration = "14 s"

[defaults.link]
rate = "1 Gbit/s"
buffer = "1000 packets"

[service.exchange]
program = "bird"
server = "server"
members = { m = 65001 }
routes = 100
import_limit = 150
schedule = [
  { at = "3 s", action = "leak", member = "m2", routes = 200 },
  { at = "5 s", action = "announce", member = "m3", routes = 100 },
  { at = "8 s", action = "flood", member = "m4", duration = "3 s" },
  { at = "9 s", action = "shutdown", member = "m5" },
]

[node.ix]
kind = "lan"
[node.server]
[link.server]
ends = ["server", "ix"]
[node.m]
count = 5
[link.m]
ends = ["m", "ix"]

[measure]
interval = "500 ms"
"#;

/// Expectations with validation of origins.
const EXPECTATIONS: &str = r#"
[expect.all]
claim = "Each member has the routes of the four others."
metric = "bgp.routes"
subject = "m*"
over = ["2.5 s", "5 s"]
statistic = "min"
at_least = 400
[expect.no-hijack]
claim = "The leak reaches nobody."
metric = "bgp.hijacked"
subject = "*"
statistic = "max"
at_most = 0
[expect.limit]
claim = "The member beyond the limit has lost its session."
metric = "bgp.session"
subject = "m3"
over = ["9 s", "14 s"]
at_most = 0
[expect.sessions]
claim = "Leak and flood leave all other sessions up."
metric = "bgp.session"
subject = "m1"
over = ["2.5 s", "14 s"]
at_least = 1
[expect.session-of-leak]
metric = "bgp.session"
subject = "m2"
over = ["2.5 s", "14 s"]
at_least = 1
[expect.session-of-flood]
metric = "bgp.session"
subject = "m4"
over = ["2.5 s", "14 s"]
at_least = 1
[expect.remaining]
claim = "After the flood, member 1 has the routes of members 2 and 4."
metric = "bgp.routes"
subject = "m1"
over = ["12.5 s", "14 s"]
near = 200
within = 0.001
"#;

fn write(folder: &TemporaryFolder, text: &str) -> PathBuf {
    let scenario = folder.join("exchange.toml");
    std::fs::write(&scenario, text).unwrap();
    scenario
}

/// Returns the answer of a run's BIRD to a command, or nothing while it does not answer.
fn ask(run: u32, command: &str) -> String {
    let socket = sockets(run).join("route-server/bird.ctl");
    let answer = Command::new(needs::program("birdc", "bird2")).arg("-s").arg(socket).arg(command).output();
    text(&answer.unwrap().stdout)
}

/// Returns the number of members that have followed a change.
fn followers(record: &Value, change: &str) -> u64 {
    let mut all = record["cells"][0]["distributions"].as_array().unwrap().iter();
    let found = all.find(|entry| entry["metric"] == "bgp.convergence" && entry["subject"] == change);
    found.map_or(0, |entry| entry["count"].as_u64().unwrap())
}

fn members_are_isolated_from_a_leak_an_excess_and_a_flood() {
    needs::emulation();
    needs::program("bird", "bird2");
    needs::program("stayrtr", "stayrtr");
    let folder = TemporaryFolder::new("route-server");
    let scenario = write(&folder, &format!("{SMALL}{EXPECTATIONS}"));
    let mut running =
        TestProcess::new(run(&scenario, &folder.join("out"), &["--on", "emu"]).spawn().unwrap());
    let process = running.child().id();
    // Counts of BIRD, which rejects the 200 leaked prefixes.
    let mut has = |command: &str, expected: &[&str]| {
        let mut answer = String::new();
        let is_met = within(TIMEOUT, || {
            answer = ask(process, command);
            expected.iter().all(|part| answer.contains(part)) || running.child().try_wait().unwrap().is_some()
        });
        assert!(is_met && expected.iter().all(|part| answer.contains(part)), "{command}: {answer}");
    };
    has("show route count", &["500 of 500 routes"]);
    has("show protocols all member1", &["Import updates:            300          0        200"]);
    has("show protocols all member2", &["[HIT]"]);
    // The routes of members 1, 2 and 4.
    has("show route count", &["300 of 300 routes"]);
    assert_met(&running.output());
    let record = record(&folder.join("out"));
    let counts =
        ["exchange.start", "m2.leak", "m3.announce", "m5.shutdown"].map(|name| followers(&record, name));
    assert_eq!(counts, [5, 0, 4, 3], "members that followed: {record:#}");
    assert!(followers(&record, "m4.flood") >= 1, "{record:#}");
    assert!(!sockets(process).exists(), "the folder of the run is removed");
}

fn without_validation_a_leak_reaches_members() {
    needs::emulation();
    needs::program("bird", "bird2");
    let folder = TemporaryFolder::new("route-server-leak");
    let expectation = "[expect.hijack]\nmetric = \"bgp.hijacked\"\nsubject = \"m5\"\nover = [\"4 s\", \"5 s\"]\nat_least = 1\n";
    let scenario = write(&folder, &format!("{SMALL}{expectation}"));
    let arguments =
        ["--on", "emu", "--set", "service.exchange.rpki=false", "--set", "scenario.duration=12 s"];
    assert_met(&run(&scenario, &folder.join("out"), &arguments).output().unwrap());
}

fn missing_programs_and_the_simulator_are_reported() {
    let folder = TemporaryFolder::new("route-server-missing");
    let scenario = write(&folder, SMALL);
    let output = run(&scenario, &folder.join("sim"), &[]).output().unwrap();
    let stderr = text(&output.stderr);
    assert!(output.status.code() == Some(2) && stderr.contains("service.exchange"), "{stderr}");
    needs::emulation();
    let mut command = run(&scenario, &folder.join("out"), &["--on", "emu"]);
    // The folders of system programs are always searched.
    if Path::new("/usr/sbin/stayrtr").exists() {
        skip("stayrtr is in /usr/sbin");
    }
    let output = command.env("PATH", "/nonexistent").output().unwrap();
    let stderr = text(&output.stderr);
    assert!(output.status.code() == Some(4) && stderr.contains("sudo apt-get install"), "{stderr}");
}

/// Takes a quarter of an hour and both processors of a small machine.
fn a_hundred_members_exchange_a_million_routes() {
    needs::emulation();
    needs::program("bird", "bird2");
    needs::program("stayrtr", "stayrtr");
    let folder = TemporaryFolder::new("route-server-large");
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/examples/route-server.toml");
    assert_met(&run(&scenario, &folder.join("out"), &["--on", "emu"]).output().unwrap());
    println!("{:#}", record(&folder.join("out"))["cells"][0]["distributions"]);
}

netstage_harness::tests![
    members_are_isolated_from_a_leak_an_excess_and_a_flood,
    without_validation_a_leak_reaches_members,
    missing_programs_and_the_simulator_are_reported,
    #[ignore = "takes a quarter of an hour"]
    a_hundred_members_exchange_a_million_routes,
];
