//! Tests of the emulator: the same scenarios as in the simulator, and cleanup after every kind of end.

use crate::support::{TemporaryFolder, mean as mean_of, netstage, output_text, signal, within};
use netstage_harness::scenario::network;
use netstage_harness::{needs, skip, skip_busy};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

const SCENARIO: &str = r#"
[scenario]
title = "A transfer and a call"
duration = "3 s"

[node.a]
[node.b]
[node.middle]
kind = "router"

[link.access]
ends = ["a", "middle"]
rate = "100 Mbit/s"
buffer = "100 packets"

[link.line]
ends = ["middle", "b"]
rate = "10 Mbit/s"
delay = "5 ms"
buffer = "50 packets"

[flow.bulk]
from = "a"
to = "b"
tcp = { window = "32 KiB" }

[flow.call]
from = "a"
to = "b"
transport = "udp"
traffic = { model = "cbr", rate = "64 kbit/s", packet = "160 B" }

[measure]
interval = "500 ms"
flow_detail = true
"#;

/// Folder with a scenario.
pub struct ScenarioFolder(TemporaryFolder);

impl ScenarioFolder {
    fn new(name: &str) -> ScenarioFolder {
        ScenarioFolder::of(name, SCENARIO)
    }

    /// Creates a folder with this scenario.
    pub fn of(name: &str, scenario: &str) -> ScenarioFolder {
        let folder = TemporaryFolder::new(name);
        fs::write(folder.join("call.toml"), scenario).unwrap();
        ScenarioFolder(folder)
    }

    pub fn command(&self, stage: &str, out: &str) -> Command {
        let mut command = netstage(&["run", "call.toml", "--json", "--on", stage, "--out", out]);
        command.current_dir(&self.0);
        command
    }

    /// Runs the scenario on a stage and returns the result.
    fn run(&self, stage: &str) -> Value {
        json(&self.command(stage, stage).output().unwrap())
    }
}

/// Parses the result of a run on standard output, or its error on standard error.
pub fn json(output: &Output) -> Value {
    let streams = [&output.stdout, &output.stderr];
    let read = streams.iter().find_map(|bytes| serde_json::from_slice(bytes).ok());
    read.unwrap_or_else(|| panic!("{:?}", streams.map(|bytes| String::from_utf8_lossy(bytes))))
}

/// Returns the mean of a metric of a subject in a result. Skips the test if a sender was late.
pub fn mean(result: &Value, metric: &str, subject: &str) -> f64 {
    let late = |void: &&Value| void.as_str().is_some_and(|void| void.contains("the sender was late"));
    if let Some(void) = result["record"]["void"].as_array().and_then(|void| void.iter().find(late)) {
        skip_busy(void.to_string());
    }
    mean_of(&result["record"], metric, subject)
}

/// Skips the test if the programs for a file transfer are missing.
fn ftp() {
    needs::emulation();
    needs::program("vsftpd", "vsftpd");
    needs::program("curl", "curl");
}

/// Returns whether an emulated rate agrees with the simulated one. On a busy machine, TCP may be slower, but never
/// faster than the line.
fn agrees(emulated: f64, simulated: f64) -> bool {
    let min = if std::env::var_os("NETSTAGE_TEST_FULL").is_some() { 0.95 } else { 0.25 };
    (min..1.05).contains(&(emulated / simulated))
}

/// Returns the processes of a run: those with its folder, which is named by the controller's process, in their command
/// line or as working folder.
pub fn processes_of(controller: u32) -> Vec<u32> {
    let mark = format!("netstage-{controller}-");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|number: &u32| {
            let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            let folder = fs::read_link(format!("/proc/{number}/cwd")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&mark) || folder.to_string_lossy().contains(&mark)
        })
        .collect()
}

pub fn children_of(parent: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Timeout that suffices for the start of a run on any machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts a run and waits until its agents send packets.
fn start_run(mut command: Command) -> Child {
    let child = command.spawn().unwrap();
    assert!(within(LIMIT, || processes_of(child.id()).len() == 2), "both agents start");
    let send = || processes_of(child.id()).into_iter().any(|process| sent_by(process) > 20);
    assert!(within(LIMIT, send), "packets flow");
    child
}

/// Returns the packets sent on the links of a process's namespace (proc_pid_net(5)).
fn sent_by(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap_or_default();
    let links = text.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    links.filter_map(|(_, counts)| counts.split_whitespace().nth(9)?.parse::<u64>().ok()).sum()
}

/// Returns the process of the second host's agent, which receives.
fn agent_of_b(controller: u32) -> u32 {
    let found = processes_of(controller).into_iter().find(|process| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("/1.sock")
    });
    found.expect("the agent of b")
}

/// Asserts that no process of a run remains.
fn assert_no_process_remains(controller: u32) {
    assert!(
        within(Duration::from_secs(5), || processes_of(controller).is_empty()),
        "agents remain after the run"
    );
}

fn folder_of(controller: u32) -> PathBuf {
    std::env::temp_dir().join(format!("netstage-{controller}-0"))
}

fn host_interfaces() -> String {
    fs::read_to_string("/proc/net/dev").unwrap().lines().map(|l| l.split(':').next().unwrap()).collect()
}

fn one_file_runs_on_both_stages() {
    needs::emulation();
    let place = ScenarioFolder::new("both");
    let before = host_interfaces();
    let sim = place.run("sim");
    let child = place.command("emu", "emu").spawn().unwrap();
    let controller = child.id();
    let emu = json(&child.wait_with_output().unwrap());
    for subject in ["bulk", "call"] {
        let (sim, emu) = (mean(&sim, "flow.throughput", subject), mean(&emu, "flow.throughput", subject));
        assert!(agrees(emu, sim), "{subject}: {emu} emulated, {sim} simulated");
    }
    assert_eq!(emu["record"]["stage"], "emu");
    assert!(mean(&emu, "link.throughput", "line.forward") > 1e6);
    assert!(emu["record"]["failures"].as_array().is_none_or(Vec::is_empty), "{}", emu["record"]["failures"]);
    let sent = |result: &Value| result["record"]["cells"][0]["totals"]["sent"].as_f64().unwrap();
    // A receiver in Linux may acknowledge every segment (quick ACKs), the simulated one every second segment.
    let counts_agree = agrees(sent(&emu) * 3.0 / 4.0, sent(&sim)) || agrees(sent(&emu), sent(&sim));
    assert!(counts_agree, "{} packets, {} simulated", sent(&emu), sent(&sim));
    assert!(!emu["record"]["differences"].as_array().unwrap().is_empty());
    assert_no_process_remains(controller);
    assert!(!folder_of(controller).exists());
    assert_eq!(host_interfaces(), before, "the host's interfaces are unchanged");
    let report = netstage(&["report", "sim", "emu"]).current_dir(&place.0).output().unwrap();
    assert!(output_text(&report).contains("flow.throughput"));
}

fn nothing_remains_after_a_killed_controller() {
    needs::emulation();
    let place = ScenarioFolder::new("killed");
    let before = host_interfaces();
    let mut child = start_run(place.command("emu", "out"));
    let (controller, fabric) = (child.id(), children_of(child.id()));
    signal(controller, "-KILL");
    child.wait().unwrap();
    assert_no_process_remains(controller);
    assert!(within(Duration::from_secs(5), || fabric
        .iter()
        .all(|f| !Path::new(&format!("/proc/{f}")).exists())));
    assert_eq!(host_interfaces(), before);
    // The next run removes the folder with the agents' spools.
    assert!(folder_of(controller).exists());
    place.command("emu", "next").output().unwrap();
    assert!(!folder_of(controller).exists());
}

fn a_killed_agent_is_named_and_other_results_are_kept() {
    assert_sender_is_kept("killed-agent", "-KILL");
}

fn an_unresponsive_agent_is_named_and_other_results_are_kept() {
    assert_sender_is_kept("silent-agent", "-STOP");
}

/// Sends a signal to the receiver's agent during a run, and verifies that the sender's results are kept.
fn assert_sender_is_kept(name: &str, signal_name: &str) {
    needs::emulation();
    let place = ScenarioFolder::new(name);
    let child = start_run(place.command("emu", "out"));
    let controller = child.id();
    signal(agent_of_b(controller), signal_name);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", output_text(&output));
    let result = json(&output);
    let failures = result["record"]["failures"].to_string();
    assert!(failures.contains("node.b"), "{failures}");
    assert!(mean(&result, "flow.offered", "call") > 0.0, "the results of the sender are kept");
    assert_no_process_remains(controller);
}

fn a_removed_interface_voids_the_run() {
    needs::emulation();
    needs::root();
    let place = ScenarioFolder::new("vanished");
    let child = start_run(place.command("emu", "out"));
    let controller = child.id();
    let namespace = format!("--net=/proc/{}/ns/net", agent_of_b(controller));
    let inside = |command: &[&str]| {
        let output = Command::new("nsenter").arg(&namespace).args(command).output().unwrap();
        assert!(output.status.success(), "{}", output_text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let links = inside(&["ip", "-brief", "link", "show", "type", "veth"]);
    let interface = links.split(['@', ' ']).next().unwrap();
    inside(&["ip", "link", "delete", interface]);
    let output = child.wait_with_output().unwrap();
    let result = json(&output);
    assert_eq!(output.status.code(), Some(5), "{}", output_text(&output));
    let void = result["record"]["void"].to_string();
    assert!(void.contains("link.line.reverse: the input interface failed"), "{void}");
    assert!(mean(&result, "flow.offered", "call") > 0.0, "the measured values are kept");
    assert_no_process_remains(controller);
}

fn an_interrupt_ends_a_run_immediately() {
    needs::emulation();
    let place = ScenarioFolder::new("interrupt");
    let mut command = place.command("emu", "out");
    command.args(["--set", "scenario.duration=\"60 s\""]);
    let child = start_run(command);
    let controller = child.id();
    let began = Instant::now();
    signal(controller, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", output_text(&output));
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_no_process_remains(controller);
    assert!(!folder_of(controller).exists());
}

fn the_record_states_that_a_sender_spun() {
    needs::emulation();
    let spinning =
        SCENARIO.replace("transport = \"udp\"\n", "transport = \"udp\"\nudp = { pacing = \"spin\" }\n");
    let result = ScenarioFolder::of("spin", &spinning).run("emu");
    if let Some(message) = result["error"]["message"].as_str() {
        assert!(message.contains("needs a CPU"), "{message}");
        skip_busy(message);
    }
    let loads = result["record"]["cells"][0]["loads"].as_array().unwrap();
    let spun: Vec<_> = loads.iter().filter(|load| load["quantity"] == "time the sender spun").collect();
    assert_eq!(spun.len(), 1, "{loads:?}");
    assert_eq!((&spun[0]["subject"], spun[0]["requested"].as_f64()), (&"call".into(), Some(0.9)));
}

fn no_privilege_is_needed() {
    let result = run_by_nobody("nobody", SCENARIO);
    assert!(mean(&result, "flow.throughput", "call") > 50_000.0);
    assert!(result["record"]["failures"].as_array().is_none_or(Vec::is_empty));
}

/// Runs a scenario as a user without privileges and returns the result.
fn run_by_nobody(name: &str, scenario: &str) -> Value {
    needs::emulation();
    needs::root();
    let place = ScenarioFolder::of(name, scenario);
    // The build folder may not be readable for other users, so the program is copied.
    let program = place.0.program("netstage", &fs::read(env!("CARGO_BIN_EXE_netstage")).unwrap());
    let nobody = 65_534;
    nix::unistd::chown(&*place.0, Some(nobody.into()), Some(nobody.into())).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all"])
        .arg(&program)
        .args(["run", "call.toml", "--json", "--on", "emu", "--out", "out"])
        .current_dir(&place.0)
        .output()
        .unwrap();
    let result = json(&output);
    if result["error"]["code"] == 4 {
        skip(result["error"]["message"].to_string());
    }
    result
}

/// Returns a scenario of two senders to one group, a source-specific flow to receivers behind both routers, and flows
/// limited to one and two hops.
fn multicast() -> String {
    let nodes = [("host", "s t a b"), ("router", "r1 r2")];
    let network = network(&nodes, "s:s,r1 t:r2,t core:r1,r2 a:r1,a b:r2,b side:a,b");
    format!("{FLOWS}{network}")
}

const FLOWS: &str = r#"
[scenario]
duration = "1500 ms"
[defaults.link]
rate = "20 Mbit/s"
delay = "1 ms"
buffer = "100 packets"
[defaults.flow]
transport = "multicast"
traffic = { model = "cbr", rate = "800 kbit/s", packet = "500 B" }
[flow.first]
from = "s"
to = ["a", "b"]
multicast = { group = "239.1.1.1" }
[flow.second]
from = "t"
to = ["a", "b"]
multicast = { group = "239.1.1.1" }
[flow.own]
from = "s"
to = ["t", "b"]
ip = "v6"
multicast = { source = "sender", hops = 3 }
[flow.beside]
from = "a"
to = "b"
multicast = { group = "224.0.0.99", hops = 1 }
[flow.short]
from = "s"
to = ["a", "b"]
multicast = { hops = 2 }
[measure]
interval = "500 ms"
"#;

/// Asserts that all receivers received their flows, apart from loss on a busy machine.
fn assert_multicast_arrived(result: &Value) {
    for subject in ["first@a", "first@b", "second@a", "second@b", "own@t", "own@b", "beside", "short@a"] {
        let got = mean(result, "flow.throughput", subject);
        // A busy machine loses packets; duplicates would exceed the maximum.
        assert!((200_000.0..=840_000.0).contains(&got), "{subject}: {got}");
        assert_eq!(mean(result, "flow.duplicated", subject), 0.0, "{subject}");
    }
    for flow in ["first", "second", "own", "beside", "short"] {
        assert!((150.0..=300.0).contains(&mean(result, "flow.sent", flow)), "{flow}");
    }
    // The second router drops the packets of `short`, as their hop limit expires.
    let failures = result["record"]["failures"].as_array().cloned().unwrap_or_default();
    assert_eq!(failures, ["flow.short@b: nothing arrived"]);
    assert_eq!(mean(result, "flow.throughput", "short@b"), 0.0);
    // No host receives packets of other groups, and a link carries a packet to several receivers once, apart from IGMP
    // and MLD.
    let warnings = result["record"]["warnings"].to_string();
    assert!(!warnings.contains("not its own"), "{warnings}");
    let sent = |flows: &[&str]| flows.iter().map(|flow| mean(result, "flow.sent", flow)).sum::<f64>();
    let bits = |bytes: f64| bytes * 8.0 / 1.5;
    for (link, flows) in [
        ("s.forward", &["first", "own", "short"][..]),
        ("core.forward", &["first", "own", "short"]),
        ("core.reverse", &["second"]),
        ("a.forward", &["first", "second", "short"]),
        ("side.forward", &["beside"]),
        ("side.reverse", &[]),
        ("a.reverse", &[]),
    ] {
        // Headers have 28 bytes, or 48 bytes with IPv6.
        let max = bits(sent(flows) * 528.0 * 1.02);
        let carried = mean(result, "link.throughput", link);
        assert!(carried <= max, "{link}: {carried} of {max}");
    }
}

fn multicast_is_replicated_at_branches_and_reaches_all_receivers() {
    needs::emulation();
    let place = ScenarioFolder::of("multicast", &multicast());
    let result = place.run("emu");
    if result["error"]["code"] == 4 {
        skip(result["error"]["message"].to_string());
    }
    assert_multicast_arrived(&result);
    // The loss of the flow is the sum over its receivers.
    let lost = |subject: &str| mean(&result, "flow.lost", subject);
    assert_eq!(lost("first"), lost("first@a") + lost("first@b"));
    let sim = place.command("sim", "sim").output().unwrap();
    assert_eq!(sim.status.code(), Some(2));
    assert!(json(&sim)["error"]["message"].as_str().unwrap().contains("--on emu"));
}

fn multicast_needs_no_privilege() {
    let result = run_by_nobody("multicast-nobody", &multicast());
    assert_multicast_arrived(&result);
}

const FTP: &str = r#"
[scenario]
duration = "4 s"
[node.a]
[node.b]
[link.line]
ends = ["a", "b"]
rate = "20 Mbit/s"
delay = "2 ms"
buffer = "50 packets"
[service.file]
program = "ftp"
server = "a"
client = "b"
size = "2 MB"
tcp = { window = "32 KiB" }
"#;

fn a_real_ftp_transfer_matches_the_simulator() {
    ftp();
    let place = ScenarioFolder::of("ftp", FTP);
    let transfer_rate = |stage: &str| {
        let result = place.run(stage);
        assert_eq!(mean(&result, "app.transactions", "file"), 1.0, "{stage}: {result:#}");
        let rate = mean(&result, "app.transfer_rate", "file");
        // The throughput includes all bytes: 16 Mbit in 4 s.
        assert!((mean(&result, "flow.throughput", "file") / 4e6 - 1.0).abs() < 0.01);
        rate
    };
    let (real, simulated) = (transfer_rate("emu"), transfer_rate("sim"));
    // On a busy machine the real transfer is slower, but never faster than the line.
    assert!(real < 20e6 && simulated < 20e6 && simulated > 15e6, "{real} and {simulated}");
}

/// Modeled application in addition to a real program, both observed by the kernel at both ends.
const WATCHED: &str = r#"
[measure]
interval = "500 ms"
tcp = "events"
[flow.pages]
from = "b"
to = "a"
traffic = { model = "web", think = "200 ms" }
"#;

fn windows_of_applications_and_services_are_measured_at_both_ends() {
    ftp();
    let place = ScenarioFolder::of("watched", &format!("{FTP}{WATCHED}"));
    for stage in ["sim", "emu"] {
        let result = place.run(stage);
        if result["error"].to_string().contains("CAP_BPF") {
            skip(result["error"].to_string());
        }
        // The server sends the file with a window of 32 KiB.
        let window = mean(&result, "flow.window.usable", "file[backward]");
        assert!((1.0..=24.0).contains(&window), "{stage}: {window} packets");
        let limited = mean(&result, "flow.limited.peer_window", "file[backward]");
        assert!((0.05..=1.0).contains(&limited), "{stage}: {limited} of the time");
        for subject in ["pages[forward]", "pages[backward]"] {
            assert!(mean(&result, "flow.window.peak", subject) >= 1.0, "{stage}: {subject}");
        }
    }
}

fn no_process_of_a_service_remains_after_its_run() {
    ftp();
    // The transfer is slow enough to be in progress, with its server process.
    let slow = FTP.replace("20 Mbit/s", "100 kbit/s").replace("4 s", "60 s");
    let place = ScenarioFolder::of("ftp-killed", &slow);
    let mut run = place.command("emu", "killed").spawn().unwrap();
    let controller = run.id();
    let (folder, started) = (folder_of(controller), Instant::now());
    let is_transferring = within(Duration::from_secs(30), || {
        let log = fs::read_to_string(folder.join("service-0/server.log")).unwrap_or_default();
        log.contains("150 Opening")
    });
    assert!(is_transferring, "no transfer after {:?}", started.elapsed());
    assert!(processes_of(controller).len() >= 3, "{:?}", processes_of(controller));
    signal(controller, "-KILL");
    run.wait().unwrap();
    assert_no_process_remains(controller);
    fs::remove_dir_all(folder).unwrap();
}

fn a_missing_program_is_named_with_its_package() {
    ftp();
    let place = ScenarioFolder::of("ftp-missing", FTP);
    let output = place.command("emu", "missing").env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let message = output_text(&output);
    assert!(message.contains("service.file: curl is not installed"), "{message}");
    assert!(message.contains("apt-get install curl"), "{message}");
}

fn the_output_of_a_failed_program_is_kept() {
    ftp();
    let place = ScenarioFolder::of("ftp-failed", &FTP.replace("4 s", "1 s"));
    place.0.program("curl", b"#!/bin/sh\necho 'curl: out of paper' >&2\nexit 7\n");
    let path = format!("{}:{}", place.0.display(), std::env::var("PATH").unwrap());
    let output = place.command("emu", "failed").env("PATH", path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let failures = json(&output)["record"]["failures"].to_string();
    assert!(failures.contains("service.file: curl: out of paper"), "{failures}");
    let log = fs::read_to_string(place.0.join("failed/logs/file-1.log")).unwrap();
    assert!(log.contains("out of paper") && log.contains("== server.log"), "{log}");
}

fn one_ended_tests_and_payload_tests_run_with_real_packets() {
    needs::emulation();
    let text = r#"
[scenario]
seed = 1
[node.a]
[node.b]
[link.line]
ends = ["a", "b"]
rate = "20 Mbit/s"
delay = "2 ms"
buffer = "50 packets"
ber = 4e-6
[test.echo]
kind = "loss"
transport = "icmp-echo"
from = "a"
to = "b"
rate = "8 Mbit/s"
trial = "1500 ms"
drain = "200 ms"
frame_sizes = ["1018 B"]
[test.unreachable]
kind = "loss"
transport = "udp-unreachable"
from = "a"
to = "b"
rate = "8 Mbit/s"
trial = "1500 ms"
drain = "200 ms"
frame_sizes = ["1018 B"]
[test.bits]
kind = "bit-error"
by = "payload"
from = "a"
to = "b"
rate = "16 Mbit/s"
trial = "1500 ms"
drain = "200 ms"
frame_sizes = ["1018 B"]
[test.udp]
kind = "loss"
from = "a"
to = "b"
rate = "8 Mbit/s"
trial = "1500 ms"
drain = "200 ms"
frame_sizes = ["1018 B"]
"#;
    let result = ScenarioFolder::of("one-ended", text).run("emu");
    let tests = result["record"]["cells"][0]["tests"].as_array().unwrap();
    // On a busy machine a trial may be void. The results of valid trials, with 4,500 packets or more, are checked
    // within five standard deviations.
    let found = |name: &str, metric: &str| {
        let test = tests.iter().find(|test| test["name"] == name).unwrap();
        let findings = test["findings"].as_array().unwrap().iter();
        let value =
            findings.filter(|found| found["metric"] == metric).map(|found| found["value"].as_f64()).next();
        let void = test["void"].to_string();
        assert!(value.is_some() || void.contains("late") || void.contains("generator"), "{name}: {test:#}");
        assert!(
            !void.contains("receiving host"),
            "damaged packets are not counted as drops of the host: {void}"
        );
        value.flatten()
    };
    let near = |value: Option<f64>, expected: f64, deviation: f64| {
        assert!(value.is_none_or(|value| (value - expected).abs() < deviation), "{value:?} for {expected}");
    };
    // One way 1 - (1 - 4e-6) ^ 8000 = 0.0315, both ways 0.062; replies of closed ports are shorter.
    near(found("udp", "test.loss_ratio"), 0.0315, 0.023);
    near(found("echo", "test.loss_ratio"), 0.062, 0.032);
    near(found("unreachable", "test.loss_ratio"), 0.049, 0.029);
    // 24 Mbit with 96 wrong bits.
    near(found("bits", "test.bit_error_rate"), 4e-6, 2.1e-6);
}

fn stamp_measures_both_directions_on_both_stages() {
    needs::emulation();
    let text = r#"
[scenario]
seed = 1
[node.a]
[node.b]
[link.line]
ends = ["a", "b"]
rate = "20 Mbit/s"
delay = "4 ms"
loss = "5 %"
buffer = "50 packets"
reverse = { delay = "9 ms", loss = "15 %" }
[flow.call]
from = "b"
to = "a"
transport = "udp"
traffic = { model = "cbr", rate = "64 kbit/s", packet = "160 B" }
[test.sla]
kind = "stamp"
from = "a"
to = "b"
interval = "5 ms"
trial = "2500 ms"
drain = "500 ms"
load = ["call"]
warm_up = "100 ms"
[expect.there]
metric = "test.loss_ratio"
subject = "sla[forward]"
at_most = 0.2
"#;
    let place = ScenarioFolder::of("stamp", text);
    for stage in ["sim", "emu"] {
        let output = place.command(stage, stage).output().unwrap();
        let result = json(&output);
        let test = &result["record"]["cells"][0]["tests"][0];
        let findings = test["findings"].as_array().unwrap_or_else(|| panic!("{result:#}"));
        let void = test["void"].to_string();
        let causes = ["late", "generator", "the tester stopped"];
        if stage == "emu" && findings.is_empty() && causes.iter().any(|cause| void.contains(cause)) {
            skip_busy(&void);
        }
        let found = |metric: &str, part: &str| {
            let subject = format!("sla{part}");
            let found = findings.iter().find(|f| f["metric"] == metric && f["subject"] == subject.as_str());
            found.unwrap_or_else(|| panic!("no {metric} of {subject}: {test:#}"))["value"].as_f64().unwrap()
        };
        // 500 packets, of which a busy generator may omit 1 %; five standard deviations.
        assert!((495.0..=500.0).contains(&found("test.sent", "")), "{test:#}");
        for (part, expected, deviation) in
            [("[forward]", 0.05, 0.049), ("[backward]", 0.15, 0.083), ("[round-trip]", 0.1925, 0.09)]
        {
            let ratio = found("test.loss_ratio", part);
            assert!((ratio - expected).abs() < deviation, "{stage}, {part}: {ratio}");
        }
        assert_eq!(found("test.clock_error", ""), 0.0);
        // The transmission of 72 B takes 29 µs. A real packet may be late, but not early.
        for (part, min) in [("[forward]", 4.0288e-3), ("[backward]", 9.0288e-3), ("[round-trip]", 13.0576e-3)]
        {
            let measured = found("test.latency.min", part);
            let bounds = if stage == "sim" { 0.999..1.001 } else { 0.98..f64::INFINITY };
            assert!(bounds.contains(&(measured / min)), "{stage}, {part}: {measured}");
            let [median, p99, max] =
                ["median", "p99", "max"].map(|name| found(&format!("test.latency.{name}"), part));
            assert!(measured <= median && median <= p99 && p99 <= max, "{stage}, {part}: {test:#}");
            assert!(found("test.delay_variation", part) <= max - measured + 1e-9, "{stage}, {part}");
        }
        assert_eq!(output.status.code(), Some(0), "{result:#}");
    }
}

/// Emulates links by netem if the kernel has it and supports their properties. Otherwise the run names the reason.
fn netem_emulates_the_links_or_the_reason_is_reported() {
    needs::emulation();
    let place = ScenarioFolder::new("netem");
    let run = |out: &str, more: &[&str]| {
        let mut command = place.command("emu", out);
        command.args(["--emulator", "netem", "--set", "scenario.duration=1 s"]).args(more);
        let output = command.output().unwrap();
        (output.status.code(), json(&output))
    };
    // Unsupported properties are rejected before the kernel is used.
    let (code, rejected) = run("errors", &["--set", "link.line.ber=1e-6"]);
    let message = rejected["error"]["message"].as_str().unwrap();
    assert!(code == Some(2) && message.contains("link.line: a bit error rate"), "{message}");
    assert!(!message.contains("link.access"), "{message}");
    match run("netem", &[]) {
        (Some(4), error) => {
            let help = error["error"]["help"].as_str().unwrap();
            assert!(help.contains("modprobe sch_netem"), "{help}");
            skip("this kernel has no netem (CONFIG_NET_SCH_NETEM) or no bridge (CONFIG_BRIDGE)");
        }
        (Some(0 | 5), result) => {
            assert_eq!(result["record"]["stage"], "emu-netem");
            let differences = result["record"]["differences"].to_string();
            assert!(
                differences.contains("the kernel's netem emulated link.access, link.line"),
                "{differences}"
            );
            assert!(mean(&result, "link.throughput", "line.forward") > 1e6);
        }
        (code, result) => panic!("{code:?}: {result}"),
    }
    let simulated = place.command("sim", "sim").args(["--emulator", "netem"]).output().unwrap();
    assert_eq!(simulated.status.code(), Some(2), "the simulator does not use netem");
}

netstage_harness::tests![
    one_file_runs_on_both_stages,
    nothing_remains_after_a_killed_controller,
    a_killed_agent_is_named_and_other_results_are_kept,
    an_unresponsive_agent_is_named_and_other_results_are_kept,
    a_removed_interface_voids_the_run,
    an_interrupt_ends_a_run_immediately,
    the_record_states_that_a_sender_spun,
    no_privilege_is_needed,
    multicast_is_replicated_at_branches_and_reaches_all_receivers,
    multicast_needs_no_privilege,
    a_real_ftp_transfer_matches_the_simulator,
    windows_of_applications_and_services_are_measured_at_both_ends,
    no_process_of_a_service_remains_after_its_run,
    a_missing_program_is_named_with_its_package,
    the_output_of_a_failed_program_is_kept,
    one_ended_tests_and_payload_tests_run_with_real_packets,
    stamp_measures_both_directions_on_both_stages,
    netem_emulates_the_links_or_the_reason_is_reported,
];
