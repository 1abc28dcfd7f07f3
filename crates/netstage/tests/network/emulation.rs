//! The emulated stage as people meet it: the same file as on the simulator, and nothing
//! left behind however a run ends.

use crate::support::{Folder, mean as mean_of, netstage, said, signal, within};
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

/// A folder with the scenario in it.
struct Place(Folder);

impl Place {
    fn new(name: &str) -> Place {
        Place::of(name, SCENARIO)
    }

    /// With another scenario.
    fn of(name: &str, scenario: &str) -> Place {
        let folder = Folder::new(name);
        fs::write(folder.join("call.toml"), scenario).unwrap();
        Place(folder)
    }

    fn command(&self, stage: &str, out: &str) -> Command {
        let mut command = netstage(&["run", "call.toml", "--json", "--on", stage, "--out", out]);
        command.current_dir(&self.0);
        command
    }

    /// The result of a run.
    fn run(&self, stage: &str) -> Value {
        json(&self.command(stage, stage).output().unwrap())
    }
}

/// What a run says: its result, or on the other output why there is none.
fn json(output: &Output) -> Value {
    let said = [&output.stdout, &output.stderr];
    let read = said.iter().find_map(|bytes| serde_json::from_slice(bytes).ok());
    read.unwrap_or_else(|| panic!("{:?}", said.map(|bytes| String::from_utf8_lossy(bytes))))
}

/// The mean of a metric of a subject in a result.
fn mean(result: &Value, metric: &str, subject: &str) -> f64 {
    mean_of(&result["record"], metric, subject)
}

/// Skips the test where the programs for a file transfer are missing.
fn ftp() {
    needs::emulation();
    needs::program("vsftpd", "vsftpd");
    needs::program("curl", "curl");
}

/// Whether a rate on real packets is that of the simulator, as far as a busy machine can tell: TCP on a
/// kernel that is not scheduled falls behind, and never runs ahead of the line.
fn agrees(emulated: f64, simulated: f64) -> bool {
    let lowest = if std::env::var_os("NETSTAGE_TEST_FULL").is_some() { 0.95 } else { 0.25 };
    (lowest..1.05).contains(&(emulated / simulated))
}

/// Processes of a run: those that carry its folder's name, which has the controller's number, or are in it.
fn processes_of(controller: u32) -> Vec<u32> {
    let mark = format!("netstage-{controller}-");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|number: &u32| {
            let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            let place = fs::read_link(format!("/proc/{number}/cwd")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&mark) || place.to_string_lossy().contains(&mark)
        })
        .collect()
}

fn children_of(parent: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Far longer than any run takes to begin, on any machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A run whose agents are there and have begun to send.
fn under_way(mut command: Command) -> Child {
    let child = command.spawn().unwrap();
    assert!(within(LIMIT, || processes_of(child.id()).len() == 2), "both agents start");
    let send = || processes_of(child.id()).into_iter().any(|process| sent_by(process) > 20);
    assert!(within(LIMIT, send), "packets flow");
    child
}

/// Packets that left the namespace of a process by its links (proc_pid_net(5)).
fn sent_by(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap_or_default();
    let links = text.lines().filter_map(|line| line.split_once(':')).filter(|(name, _)| name.trim() != "lo");
    links.filter_map(|(_, counts)| counts.split_whitespace().nth(9)?.parse::<u64>().ok()).sum()
}

/// The agent of the second host, which receives.
fn agent_of_b(controller: u32) -> u32 {
    let found = processes_of(controller).into_iter().find(|process| {
        let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("/1.sock")
    });
    found.expect("the agent of b")
}

/// Nothing of a run is left: no process, no folder.
fn nothing_is_left(controller: u32) {
    assert!(within(Duration::from_secs(5), || processes_of(controller).is_empty()), "agents outlive the run");
}

fn folder_of(controller: u32) -> PathBuf {
    std::env::temp_dir().join(format!("netstage-{controller}-0"))
}

fn host_interfaces() -> String {
    fs::read_to_string("/proc/net/dev").unwrap().lines().map(|l| l.split(':').next().unwrap()).collect()
}

fn one_file_runs_on_both_stages() {
    needs::emulation();
    let place = Place::new("both");
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
    assert!(agrees(sent(&emu), sent(&sim)), "{} packets, {} simulated", sent(&emu), sent(&sim));
    assert!(!emu["record"]["differences"].as_array().unwrap().is_empty());
    nothing_is_left(controller);
    assert!(!folder_of(controller).exists());
    assert_eq!(host_interfaces(), before, "the host's interfaces are as they were");
    let report = netstage(&["report", "sim", "emu"]).current_dir(&place.0).output().unwrap();
    assert!(said(&report).contains("flow.throughput"));
}

fn a_killed_controller_leaves_nothing() {
    needs::emulation();
    let place = Place::new("killed");
    let before = host_interfaces();
    let mut child = under_way(place.command("emu", "out"));
    let (controller, fabric) = (child.id(), children_of(child.id()));
    signal(controller, "-KILL");
    child.wait().unwrap();
    nothing_is_left(controller);
    assert!(within(Duration::from_secs(5), || fabric
        .iter()
        .all(|f| !Path::new(&format!("/proc/{f}")).exists())));
    assert_eq!(host_interfaces(), before);
    // The next run removes the folder with what the agents had spooled.
    assert!(folder_of(controller).exists());
    place.command("emu", "next").output().unwrap();
    assert!(!folder_of(controller).exists());
}

fn a_killed_agent_is_named_and_the_other_kept() {
    the_other_is_kept("killed-agent", "-KILL");
}

fn an_agent_that_never_answers_is_named_and_the_other_kept() {
    the_other_is_kept("silent-agent", "-STOP");
}

/// The receiver's agent is lost mid-run, by this signal.
fn the_other_is_kept(name: &str, how: &str) {
    needs::emulation();
    let place = Place::new(name);
    let child = under_way(place.command("emu", "out"));
    let controller = child.id();
    signal(agent_of_b(controller), how);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let result = json(&output);
    let failures = result["record"]["failures"].to_string();
    assert!(failures.contains("node.b"), "{failures}");
    assert!(mean(&result, "flow.offered", "call") > 0.0, "the sender's side is kept");
    nothing_is_left(controller);
}

fn an_interface_that_vanishes_voids_the_run() {
    needs::emulation();
    needs::root();
    let place = Place::new("vanished");
    let child = under_way(place.command("emu", "out"));
    let controller = child.id();
    let namespace = format!("--net=/proc/{}/ns/net", agent_of_b(controller));
    let inside = |command: &[&str]| {
        let output = Command::new("nsenter").arg(&namespace).args(command).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let links = inside(&["ip", "-brief", "link", "show", "type", "veth"]);
    let interface = links.split(['@', ' ']).next().unwrap();
    inside(&["ip", "link", "delete", interface]);
    let output = child.wait_with_output().unwrap();
    let result = json(&output);
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    let void = result["record"]["void"].to_string();
    assert!(void.contains("link.line.reverse: the interface its packets come from failed"), "{void}");
    assert!(mean(&result, "flow.offered", "call") > 0.0, "what was measured is kept");
    nothing_is_left(controller);
}

fn an_interrupt_ends_a_run_at_once() {
    needs::emulation();
    let place = Place::new("interrupt");
    let mut command = place.command("emu", "out");
    command.args(["--set", "scenario.duration=\"60 s\""]);
    let child = under_way(command);
    let controller = child.id();
    let began = Instant::now();
    signal(controller, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(began.elapsed() < Duration::from_secs(20));
    nothing_is_left(controller);
    assert!(!folder_of(controller).exists());
}

fn no_privilege_is_needed() {
    let result = run_by_nobody("nobody", SCENARIO);
    assert!(mean(&result, "flow.throughput", "call") > 50_000.0);
    assert!(result["record"]["failures"].as_array().is_none_or(Vec::is_empty));
}

/// What a user without any privilege gets of a scenario.
fn run_by_nobody(name: &str, scenario: &str) -> Value {
    needs::emulation();
    needs::root();
    let place = Place::of(name, scenario);
    // Build folders are not open to everybody: the program is run from a copy.
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

/// Two senders to one group, a third of its own to receivers on both routers, and one whose packets
/// may not pass any.
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

/// What every receiver should have had of each flow, and had: all of it, where the machine was quiet.
fn multicast_arrived(result: &Value) {
    for subject in ["first@a", "first@b", "second@a", "second@b", "own@t", "own@b", "beside", "short@a"] {
        let got = mean(result, "flow.throughput", subject);
        // A busy machine takes a share of what is sent; what comes twice would be above.
        assert!((200_000.0..=840_000.0).contains(&got), "{subject}: {got}");
        assert_eq!(mean(result, "flow.duplicated", subject), 0.0, "{subject}");
    }
    for flow in ["first", "second", "own", "beside", "short"] {
        assert!((150.0..=300.0).contains(&mean(result, "flow.sent", flow)), "{flow}");
    }
    // The packet whose hops end at the second router is heard of by its receiver alone.
    let failures = result["record"]["failures"].as_array().cloned().unwrap_or_default();
    assert_eq!(failures, ["flow.short@b: nothing arrived"]);
    assert_eq!(mean(result, "flow.throughput", "short@b"), 0.0);
    // Nobody hears of what is not for them, and a link carries a packet once, group membership
    // (IGMP, MLD) not counted: what goes to two receivers, too.
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
        // Headers are 28 bytes, and 48 of IPv6.
        let most = bits(sent(flows) * 528.0 * 1.02);
        let carried = mean(result, "link.throughput", link);
        assert!(carried <= most, "{link}: {carried} of {most}");
    }
}

fn multicast_is_copied_where_ways_part_and_reaches_every_receiver() {
    needs::emulation();
    let place = Place::of("multicast", &multicast());
    let result = place.run("emu");
    if result["error"]["code"] == 4 {
        skip(result["error"]["message"].to_string());
    }
    multicast_arrived(&result);
    // The whole flow is its receivers together.
    let lost = |subject: &str| mean(&result, "flow.lost", subject);
    assert_eq!(lost("first"), lost("first@a") + lost("first@b"));
    let sim = place.command("sim", "sim").output().unwrap();
    assert_eq!(sim.status.code(), Some(2));
    assert!(json(&sim)["error"]["message"].as_str().unwrap().contains("--on emu"));
}

fn multicast_needs_no_privilege() {
    let result = run_by_nobody("multicast-nobody", &multicast());
    multicast_arrived(&result);
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

fn a_file_comes_by_real_ftp_as_in_the_simulator() {
    ftp();
    let place = Place::of("ftp", FTP);
    let took = |stage: &str| {
        let result = place.run(stage);
        assert_eq!(mean(&result, "app.transactions", "file"), 1.0, "{stage}: {result:#}");
        let rate = mean(&result, "app.transfer_rate", "file");
        // All bytes are seen as they come, too: 16 Mbit in 4 s.
        assert!((mean(&result, "flow.throughput", "file") / 4e6 - 1.0).abs() < 0.01);
        rate
    };
    let (real, simulated) = (took("emu"), took("sim"));
    // A busy machine makes the real one slower, never faster than the line.
    assert!(real < 20e6 && simulated < 20e6 && simulated > 15e6, "{real} and {simulated}");
}

/// An application of ours beside a program of others', both told of by the kernel, at either end.
const WATCHED: &str = r#"
[measure]
interval = "500 ms"
tcp = "events"
[flow.pages]
from = "b"
to = "a"
traffic = { model = "web", think = "200 ms" }
"#;

fn windows_of_applications_and_services_are_told_of_at_either_end() {
    ftp();
    let place = Place::of("watched", &format!("{FTP}{WATCHED}"));
    for stage in ["sim", "emu"] {
        let result = place.run(stage);
        if result["error"].to_string().contains("CAP_BPF") {
            skip(result["error"].to_string());
        }
        // The file goes from the server to the client, with a window of 32 KiB.
        let window = mean(&result, "flow.window.usable", "file[backward]");
        assert!((1.0..=24.0).contains(&window), "{stage}: {window} packets");
        let held = mean(&result, "flow.limited.peer_window", "file[backward]");
        assert!((0.05..=1.0).contains(&held), "{stage}: {held} of the time");
        for subject in ["pages[forward]", "pages[backward]"] {
            assert!(mean(&result, "flow.window.peak", subject) >= 1.0, "{stage}: {subject}");
        }
    }
}

fn nothing_of_a_service_outlives_its_run() {
    ftp();
    // So slow that the transfer is under way, the server's process for it too.
    let slow = FTP.replace("20 Mbit/s", "100 kbit/s").replace("4 s", "60 s");
    let place = Place::of("ftp-killed", &slow);
    let mut run = place.command("emu", "killed").spawn().unwrap();
    let controller = run.id();
    let (folder, started) = (folder_of(controller), Instant::now());
    let under_way = within(Duration::from_secs(30), || {
        let log = fs::read_to_string(folder.join("service-0/server.log")).unwrap_or_default();
        log.contains("150 Opening")
    });
    assert!(under_way, "no transfer after {:?}", started.elapsed());
    assert!(processes_of(controller).len() >= 3, "{:?}", processes_of(controller));
    signal(controller, "-KILL");
    run.wait().unwrap();
    nothing_is_left(controller);
    fs::remove_dir_all(folder).unwrap();
}

fn a_program_that_is_missing_is_named_with_its_package() {
    ftp();
    let place = Place::of("ftp-missing", FTP);
    let output = place.command("emu", "missing").env("PATH", "/nowhere").output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let message = said(&output);
    assert!(message.contains("service.file: curl is not installed"), "{message}");
    assert!(message.contains("apt-get install curl"), "{message}");
}

fn what_a_program_said_is_kept_where_it_failed() {
    ftp();
    let place = Place::of("ftp-failed", &FTP.replace("4 s", "1 s"));
    place.0.program("curl", b"#!/bin/sh\necho 'curl: out of paper' >&2\nexit 7\n");
    let path = format!("{}:{}", place.0.display(), std::env::var("PATH").unwrap());
    let output = place.command("emu", "failed").env("PATH", path).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let failures = json(&output)["record"]["failures"].to_string();
    assert!(failures.contains("service.file: curl: out of paper"), "{failures}");
    let log = fs::read_to_string(place.0.join("failed/logs/file-1.log")).unwrap();
    assert!(log.contains("out of paper") && log.contains("== server.log"), "{log}");
}

fn tests_from_one_end_and_of_payloads_run_on_real_packets() {
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
    let result = Place::of("one-ended", text).run("emu");
    let tests = result["record"]["cells"][0]["tests"].as_array().unwrap();
    // Whether the machine was quiet enough for a trial to count is the machine's affair; what
    // came of those that counted is ours. 4,500 packets and more: five deviations each way.
    let found = |name: &str, metric: &str| {
        let test = tests.iter().find(|test| test["name"] == name).unwrap();
        let findings = test["findings"].as_array().unwrap().iter();
        let value =
            findings.filter(|found| found["metric"] == metric).map(|found| found["value"].as_f64()).next();
        let void = test["void"].to_string();
        assert!(value.is_some() || void.contains("late") || void.contains("generator"), "{name}: {test:#}");
        assert!(!void.contains("receiving host"), "damaged packets are no drops of the host: {void}");
        value.flatten()
    };
    let near = |value: Option<f64>, expected: f64, deviation: f64| {
        assert!(value.is_none_or(|value| (value - expected).abs() < deviation), "{value:?} for {expected}");
    };
    // One way 1 - (1 - 4e-6) ^ 8000 = .0315, both .062; the answers of closed ports are shorter.
    near(found("udp", "test.loss_ratio"), 0.0315, 0.023);
    near(found("echo", "test.loss_ratio"), 0.062, 0.032);
    near(found("unreachable", "test.loss_ratio"), 0.049, 0.029);
    // 24 Mbit, 96 wrong.
    near(found("bits", "test.bit_error_rate"), 4e-6, 2.1e-6);
}

fn stamp_tells_both_directions_apart_on_both_stages() {
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
    let place = Place::of("stamp", text);
    for stage in ["sim", "emu"] {
        let output = place.command(stage, stage).output().unwrap();
        let result = json(&output);
        let test = &result["record"]["cells"][0]["tests"][0];
        let findings = test["findings"].as_array().unwrap_or_else(|| panic!("{result:#}"));
        let void = test["void"].to_string();
        if stage == "emu" && findings.is_empty() && (void.contains("late") || void.contains("generator")) {
            skip_busy(&void);
        }
        let found = |metric: &str, part: &str| {
            let subject = format!("sla{part}");
            let found = findings.iter().find(|f| f["metric"] == metric && f["subject"] == subject.as_str());
            found.unwrap_or_else(|| panic!("no {metric} of {subject}: {test:#}"))["value"].as_f64().unwrap()
        };
        // 500 packets, of which a busy generator may leave out one in a hundred; five deviations.
        assert!((495.0..=500.0).contains(&found("test.sent", "")), "{test:#}");
        for (part, expected, deviation) in
            [("[forward]", 0.05, 0.049), ("[backward]", 0.15, 0.083), ("[round-trip]", 0.1925, 0.09)]
        {
            let ratio = found("test.loss_ratio", part);
            assert!((ratio - expected).abs() < deviation, "{stage}, {part}: {ratio}");
        }
        assert_eq!(found("test.clock_error", ""), 0.0);
        // 72 B take 29 us to send; a real packet may be late, but not early.
        for (part, least) in
            [("[forward]", 4.0288e-3), ("[backward]", 9.0288e-3), ("[round-trip]", 13.0576e-3)]
        {
            let measured = found("test.latency.least", part);
            let bounds = if stage == "sim" { 0.999..1.001 } else { 0.98..f64::INFINITY };
            assert!(bounds.contains(&(measured / least)), "{stage}, {part}: {measured}");
            let [median, p99, most] =
                ["median", "p99", "most"].map(|name| found(&format!("test.latency.{name}"), part));
            assert!(measured <= median && median <= p99 && p99 <= most, "{stage}, {part}: {test:#}");
            assert!(found("test.delay_variation", part) <= most - measured + 1e-9, "{stage}, {part}");
        }
        assert_eq!(output.status.code(), Some(0), "{result:#}");
    }
}

/// Links go to the kernel's netem where it is there and can be them; else the run says why not.
fn netem_works_the_links_or_the_run_says_why_not() {
    needs::emulation();
    let place = Place::new("netem");
    let run = |out: &str, more: &[&str]| {
        let mut command = place.command("emu", out);
        command.args(["--emulator", "netem", "--set", "scenario.duration=1 s"]).args(more);
        let output = command.output().unwrap();
        (output.status.code(), json(&output))
    };
    // What it would do otherwise is known before any kernel is asked.
    let (code, refused) = run("errors", &["--set", "link.line.ber=1e-6"]);
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(code == Some(2) && message.contains("link.line: a bit error rate"), "{message}");
    assert!(!message.contains("link.access"), "{message}");
    match run("netem", &[]) {
        (Some(4), without) => {
            let help = without["error"]["help"].as_str().unwrap();
            assert!(help.contains("modprobe sch_netem"), "{help}");
            skip("this kernel has no netem (CONFIG_NET_SCH_NETEM) or no bridge (CONFIG_BRIDGE)");
        }
        (Some(0 | 5), result) => {
            assert_eq!(result["record"]["stage"], "emu-netem");
            let told = result["record"]["differences"].to_string();
            assert!(told.contains("the kernel's netem worked link.access, link.line"), "{told}");
            assert!(mean(&result, "link.throughput", "line.forward") > 1e6);
        }
        (code, result) => panic!("{code:?}: {result}"),
    }
    let simulated = place.command("sim", "sim").args(["--emulator", "netem"]).output().unwrap();
    assert_eq!(simulated.status.code(), Some(2), "the simulator has no links to hand on");
}

netstage_harness::tests![
    one_file_runs_on_both_stages,
    a_killed_controller_leaves_nothing,
    a_killed_agent_is_named_and_the_other_kept,
    an_agent_that_never_answers_is_named_and_the_other_kept,
    an_interface_that_vanishes_voids_the_run,
    an_interrupt_ends_a_run_at_once,
    no_privilege_is_needed,
    multicast_is_copied_where_ways_part_and_reaches_every_receiver,
    multicast_needs_no_privilege,
    a_file_comes_by_real_ftp_as_in_the_simulator,
    windows_of_applications_and_services_are_told_of_at_either_end,
    nothing_of_a_service_outlives_its_run,
    a_program_that_is_missing_is_named_with_its_package,
    what_a_program_said_is_kept_where_it_failed,
    tests_from_one_end_and_of_payloads_run_on_real_packets,
    stamp_tells_both_directions_apart_on_both_stages,
    netem_works_the_links_or_the_run_says_why_not,
];
