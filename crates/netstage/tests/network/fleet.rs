//! Tests of a fleet: agents in separate namespaces join with tokens and connect to their controller over a management
//! network; scenarios run on them; failures.

use crate::support::fleet::{CONTROLLER, Fleet, LIMIT};
use crate::support::{TemporaryFolder, TestProcess, output_text, within};
use netstage_core::fleet::run_number;
use netstage_core::rng::RandomStream;
use netstage_harness::needs;
use netstage_harness::scenario::network;
use netstage_host::netns::Namespace;
use netstage_host::prometheus::scheme;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::net::UdpSocket;
use std::ops::Deref;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const AGENTS: [&str; 3] = ["ber-1", "fra-1", "muc-1"];

const RULES: &str = "rate = \"50 Mbit/s\"\nmax_duration = \"1 min\"";

fn scenario() -> String {
    let nodes = [("host", "a b c"), ("router", "core")];
    format!("{FLOWS}{}", network(&nodes, "a:a,core b:b,core c:c,core"))
}

const FLOWS: &str = r#"
[scenario]
title = "Three hosts"
duration = "2 s"
[defaults.link]
rate = "100 Mbit/s"
buffer = "100 packets"
[flow.voice]
from = "a"
to = "b"
transport = "udp"
traffic = { model = "cbr", rate = "800 kbit/s", packet = "500 B" }
[flow.file]
from = "b"
to = "c"
traffic = { model = "cbr", rate = "4 Mbit/s", packet = "1000 B" }
[place]
a = "ber-1"
b = { label = "frankfurt" }
c = { agent = "muc-1", address = "10.1.3.2" }
[measure]
interval = "100 ms"
[expect.voice]
metric = "flow.throughput"
subject = "voice"
at_least = "0.1 Mbit/s"
[plot.throughput]
metric = "flow.throughput"
"#;

const RUN: [&str; 6] = ["run", "three.toml", "--on", "live", "--out", "out"];

/// Fleet of three agents, with a data network between their hosts.
struct FleetNetwork {
    fleet: Fleet,
    _core: Namespace,
}

impl Deref for FleetNetwork {
    type Target = Fleet;

    fn deref(&self) -> &Fleet {
        &self.fleet
    }
}

impl FleetNetwork {
    fn new(name: &str) -> FleetNetwork {
        let fleet = Fleet::new(name, &AGENTS);
        let core = fleet.join_by_router();
        fleet.write_policy(RULES);
        fs::write(fleet.folder.join("three.toml"), scenario()).unwrap();
        FleetNetwork { fleet, _core: core }
    }

    /// Joins and starts all three agents.
    fn join_all(&self) -> Vec<TestProcess> {
        self.fleet.join_all(&["berlin", "frankfurt", "munich"])
    }
}

fn three_agents_joined_with_tokens_run_a_scenario() {
    let stage = FleetNetwork::new("fleet-live");
    let _hub = stage.serve();
    let agents = stage.join_all();

    let record = stage.run_live("three.toml", "out");
    assert_eq!(record["stage"], "live");
    let text = record.to_string();
    assert!(text.contains("flow.throughput") && text.contains("flow.clock_error"), "{record:#}");
    for agent in AGENTS {
        assert!(stage.spooled(agent).is_empty(), "a fetched report is not kept");
        let log = stage.log(&format!("{agent}.log"));
        assert!(log.contains("requests preparation of run 1") && log.contains("accepted"), "{log}");
    }
    assert_eq!(stage.succeed(&["fleet", "runs"]), "no open runs\n");

    // Prometheus metrics on the loopback interfaces.
    let metrics = stage.scrape(&stage.hub, "127.0.0.1:4702");
    let names = scheme::check(&metrics, "fleet");
    assert!(
        names.contains("netstage_fleet_joined_total") && metrics.contains("netstage_fleet_joined_total 3\n"),
        "{metrics}"
    );
    assert!(metrics.contains("netstage_fleet_agent_up{agent=\"muc-1\"} 1\n"), "{metrics}");
    let metrics = stage.scrape(&stage.hosts[0], "127.0.0.1:4703");
    scheme::check(&metrics, "agent");
    assert!(metrics.contains("netstage_agent_kept_reports 0\n"), "{metrics}");
    let sent = metrics.lines().find_map(|line| line.strip_prefix("netstage_agent_sent_packets_total "));
    let sent: u64 = sent.expect("sent packets are counted").parse().unwrap();
    assert!(sent > 0, "counters remain after the end of a run: {metrics}");

    // Requests beyond the policy are rejected with a remedy, and nothing is sent.
    let run = |out: &str, set: &str| stage.run_with("three.toml", out, &["--set", set]);
    let output = run("fast", "flow.file.traffic.rate=60 Mbit/s");
    let printed = output_text(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("agent fra-1 refused") && printed.contains("raise `rate` in the policy"),
        "{printed}"
    );
    // The policy does not allow the management network as a destination.
    let printed = output_text(&run("far", "place.c.address=192.168.77.13"));
    assert!(
        printed.contains("agent muc-1 refused") && printed.contains("does not allow interface mgmt"),
        "{printed}"
    );

    // A scenario that names an unknown agent.
    let output = run("none", "place.a=berlin-1");
    assert_eq!(output.status.code(), Some(2));
    assert!(output_text(&output).contains("there is no agent berlin-1"), "{}", output_text(&output));

    // A removed agent is disconnected immediately and cannot connect again.
    stage.succeed(&["fleet", "remove", "muc-1"]);
    stage.wait_for_log("hub.log", "disconnecting agent muc-1");
    stage.wait_for_log("hub.log", "unknown certificate: the agent was removed");
    stage.wait_for_log("muc-1.log", "this agent was removed or replaced there");
    assert_eq!(stage.states().len(), 2);
    drop(agents);
    stage.wait_for(&[("ber-1", "offline"), ("fra-1", "offline")]);
}

fn hosts_with_different_clocks_compare_them_directly() {
    let stage = FleetNetwork::new("fleet-clocks");
    let _hub = stage.serve();
    // Monotonic clocks that are weeks apart.
    let ahead = [1_000_000, 0, 3_000];
    let agent = |index| stage.agent_ahead(index, ahead[index]);
    let _agents = stage.fleet.join_all_as(&["berlin", "frankfurt", "munich"], agent);

    let run = |out: &str| {
        let record = stage.run_live("three.toml", out);
        let summary = record["cells"][0]["summary"].as_array().unwrap();
        let error =
            summary.iter().find(|row| row["metric"] == "flow.clock_error").expect("the clock error of voice");
        let warnings: Vec<String> = serde_json::from_value(record["warnings"].clone()).unwrap();
        let warning = warnings
            .into_iter()
            .find(|text| text.contains("clock offsets of agents"))
            .expect("a warning of the clocks");
        println!("{out}: {warning}");
        (error["mean"].as_f64().unwrap(), warning)
    };
    let (error, warning) = run("between");
    assert!(warning.contains("between ber-1 and fra-1, by STAMP between the hosts)"), "{warning}");
    assert!(error > 0.0, "{error}");

    // If the port is in use, only the comparison with the controller remains.
    let socket = stage.hosts[1].run(|| UdpSocket::bind("10.1.2.2:4704")).unwrap().unwrap();
    let (error, warning) = run("over-the-controller");
    assert!(warning.contains("for 0 of 1 pairs, UDP port 4704"), "{warning}");
    assert!(error > 0.0, "{error}");
    drop(socket);
}

/// Runs agents and the controller with the accounts, capabilities, limits, system calls and address families of the
/// Debian package's units, without systemd.
fn agents_and_controller_run_with_the_restrictions_of_their_units() {
    let stage = FleetNetwork::new("fleet-unit");
    let [agent_unit, controller_unit] = ["agent", "fleet"].map(|name| stage.unit(name));
    // systemd verifies services only with this unit. Units of the test machine are not used.

    fs::write(stage.folder.join("sysinit.target"), "[Unit]\n").unwrap();
    let analyze = |arguments: &[&str], unit: &Path| {
        let mut command = Command::new("systemd-analyze");
        command.args(arguments).arg(unit).env("SYSTEMD_UNIT_PATH", &*stage.folder);
        command.output().unwrap()
    };
    // Maximum exposure level in tenths; 10 is the highest level. The controller is root, but with one capability.
    for (unit, max_exposure) in [(&agent_unit, 25), (&controller_unit, 30)] {
        let verified = analyze(&["verify"], unit);
        assert!(verified.status.success() && output_text(&verified).is_empty(), "{}", output_text(&verified));
        let exposure = ["security", "--offline=true", "--no-pager", &format!("--threshold={max_exposure}")];
        let exposed = analyze(&exposure, unit);
        assert!(exposed.status.success(), "{}", output_text(&exposed));
    }

    let mut hub = stage.serve_as(&controller_unit);
    // The kernel enforces the policy for this account, too, so that programs of services are permitted.
    stage.write_policy(&format!("{RULES}\none_ended = true\nservices = [\"ftp\", \"iscsi\"]"));
    let label = ["berlin", "frankfurt", "munich"];
    let mut agents = Vec::new();
    for (index, name) in AGENTS.into_iter().enumerate() {
        let token = stage.succeed(&["fleet", "token", name, "--label", label[index]]);
        assert!(stage.join(index, token.trim()).status.success());
        agents.push(stage.agent_as(&agent_unit, None, index));
    }
    stage.wait_for_all("idle");
    let ping = r#"
[flow.ping]
from = "a"
to = "c"
transport = "icmp-echo"
traffic = { model = "cbr", rate = "80 kbit/s", packet = "500 B" }
[service.archive]
program = "ftp"
server = "c"
client = "b"
size = "500 kB"
[service.disk]
program = "iscsi"
server = "a"
client = "b"
"#;
    fs::write(stage.folder.join("unit.toml"), scenario() + ping).unwrap();
    let record = stage.run_live("unit.toml", "out");
    let warnings = record["warnings"].to_string();
    assert!(!warnings.contains("real-time scheduling was refused"), "{warnings}");
    let summary = record.to_string();
    assert!(
        ["voice", "file", "ping", "archive", "disk"].iter().all(|flow| summary.contains(flow)),
        "{record:#}"
    );
    // Accounts and capabilities of the units.
    for (process, account, capabilities) in
        [(&mut agents[0], "Uid:\t65534", "0000000000802000"), (&mut hub, "Uid:\t0", "0000000000800000")]
    {
        let threads = format!("/proc/{}/task", process.child().id());
        for thread in fs::read_dir(threads).unwrap() {
            let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            let sets = ["CapInh", "CapPrm", "CapEff", "CapAmb"];
            let sets = sets.map(|set| format!("{set}:\t{capabilities}"));
            for expected in sets.iter().map(String::as_str).chain([account, "NoNewPrivs:\t1", "Seccomp:\t2"])
            {
                assert!(status.contains(expected), "{expected}: {status}");
            }
        }
    }
    let policies = stage.succeed(&["fleet", "policies"]);
    assert_eq!(policies.matches("kernel").count(), AGENTS.len(), "{policies}");
}

fn the_commands_of_the_page_work() {
    needs::namespaces();
    let printed = crate::support::run_page("fleet.md", &TemporaryFolder::new("fleet-page"));
    assert!(printed.contains("same clock") && printed.contains("Two hosts and a stand-in"), "{printed}");
    // The agents have the mounts that `ip netns exec` leaves them.
    let is_enforced =
        |line: &&str| !line.contains('#') && line.contains("enforced-by") && line.contains("kernel");
    assert_eq!(printed.lines().filter(is_enforced).count(), AGENTS.len(), "{printed}");
}

fn used_and_foreign_tokens_and_certificates_are_rejected() {
    let stage = FleetNetwork::new("fleet-join");
    let _hub = stage.serve();
    let token = stage.succeed(&["fleet", "token", "ber-1"]);
    assert!(stage.join(0, token.trim()).status.success());
    let again = stage.join(1, token.trim());
    assert_eq!(again.status.code(), Some(2));
    assert!(output_text(&again).contains("the token was used"), "{}", output_text(&again));
    // The token of another fleet: its fingerprint does not match the controller.
    let foreign = format!("{}.{}", "0123456789abcdeffedcba9876543210", "ab".repeat(32));
    let foreign = stage.join(1, &foreign);
    assert!(output_text(&foreign).contains("belongs to another fleet"), "{}", output_text(&foreign));
    assert!(output_text(&stage.join(1, "nonsense")).contains("invalid token"));

    // A second controller of the same fleet.
    let second = stage.at_hub(&["fleet", "serve", "--listen", "192.168.77.1:4701"]);
    assert!(output_text(&second).contains("another controller serves"), "{}", output_text(&second));

    // An identity of another fleet, and one with the shortest certificate lifetime.
    let other = stage.folder.join("other");
    let init = stage.command(&["fleet", "init"]).env("NETSTAGE_FLEET", &other).output().unwrap();
    assert!(init.status.success(), "{}", output_text(&init));
    fs::copy(other.join("authority.pem"), stage.folder.join("ber-1/authority.pem")).unwrap();
    let _stranger = stage.agent(0);
    stage.wait_for_log("ber-1.log", "belongs to another fleet");
    let brief = stage.succeed(&["fleet", "token", "muc-1", "--certificate", "1s"]);
    assert!(stage.join(2, brief.trim()).status.success());
    // Certificates have a resolution of 1 s; this one has expired after 2 s.
    std::thread::sleep(Duration::from_millis(2_100));
    let late = stage.agent(2);
    stage.wait_for_log("hub.log", "certificate has expired");
    let doctor = stage.at_hub(&["fleet", "doctor"]);
    assert!(output_text(&doctor).contains("muc-1: certificate expired"), "{}", output_text(&doctor));
    // It joins again as its log says, and keeps its reports.
    stage.wait_for_log("muc-1.log", "delete membership.json in its state folder");
    drop(late);
    fs::write(stage.folder.join("muc-1/spool/c-1.json"), "{}").unwrap();
    stage.succeed(&["fleet", "remove", "muc-1"]);
    fs::remove_file(stage.folder.join("muc-1/membership.json")).unwrap();
    let again = stage.succeed(&["fleet", "token", "muc-1"]);
    assert!(stage.join(2, again.trim()).status.success());
    let _again = stage.agent(2);
    stage.wait_for(&[("muc-1", "idle")]);
    assert_eq!(stage.spooled("muc-1").len(), 1);
}

fn traffic_stops_without_the_controller_and_results_are_kept() {
    let stage = FleetNetwork::new("fleet-lost");
    let mut hub = stage.serve();
    let _agents = stage.join_all();
    let run = stage.start(&stage.hub, "run.log", &[&RUN[..], &["--set", "scenario.duration=50 s"]].concat());
    stage.wait_for_all("taken");
    AGENTS
        .iter()
        .for_each(|agent| stage.wait_for_log(&format!("{agent}.log"), "requests preparation of run 1"));
    // Packets are sent before the controller is killed.
    assert!(within(LIMIT, || stage.counted("ber-1") > 3), "{}", stage.logs());
    hub.signal("-KILL");
    drop(hub);
    AGENTS.iter().for_each(|agent| stage.wait_for_log(&format!("{agent}.log"), "lost the controller"));
    for agent in AGENTS {
        let [report] = &stage.spooled(agent)[..] else { panic!("{agent} has no report\n{}", stage.logs()) };
        let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
        assert!(report["void"].to_string().contains("lost its controller"), "{report:#}");
    }
    drop(run.output());

    // Another controller process fetches the reports.
    let _hub = stage.serve();
    stage.wait_for_all("idle");
    let open = stage.succeed(&["fleet", "runs"]);
    assert!(open.contains("Three hosts"), "{open}");
    let fetched = stage.succeed(&["fleet", "runs", "--fetch"]);
    assert!(fetched.starts_with("3 reports fetched"), "{fetched}");
    assert!(AGENTS.iter().all(|agent| stage.spooled(agent).is_empty()));
    assert!(stage.succeed(&["fleet", "close", "1"]).contains("closed run 1"));
    assert_eq!(stage.succeed(&["fleet", "runs"]), "no open runs\n");
    // Run numbers are not reused.
    stage.run_live("three.toml", "again");
    assert!(stage.log("ber-1.log").contains("requests preparation of run 2"), "{}", stage.log("ber-1.log"));
}

/// Starts a run and waits until its agents have recorded some bins.
fn start_run(stage: &FleetNetwork) -> TestProcess {
    let run = stage.start(&stage.hub, "run.log", &RUN);
    let is_recording = || stage.counted("ber-1") > 3;
    assert!(within(LIMIT, is_recording), "{}{}", stage.log("run.log"), stage.logs());
    run
}

fn a_run_whose_command_was_killed_is_repeated() {
    let stage = FleetNetwork::new("fleet-again");
    let _hub = stage.serve();
    let _agents = stage.join_all();
    let mut run = start_run(&stage);
    run.signal("-KILL");
    drop(run);
    // The agents keep their results.
    assert!(within(LIMIT, || AGENTS.iter().all(|agent| stage.spooled(agent).len() == 1)), "{}", stage.logs());
    // The partial results are fetched, and the run is repeated.
    stage.run_live("three.toml", "out");
    assert!(AGENTS.iter().all(|agent| stage.spooled(agent).is_empty()));
    assert_eq!(stage.succeed(&["fleet", "runs"]), "no open runs\n");
    assert!(stage.log("ber-1.log").contains("requests preparation of run 2"), "{}", stage.logs());
    assert!(stage.folder.join("fleet/runs/1/ber-1.report.json").exists());
}

fn an_interrupted_run_is_repeated() {
    let stage = FleetNetwork::new("fleet-interrupted");
    let _hub = stage.serve();
    let _agents = stage.join_all();
    let mut run = start_run(&stage);
    run.signal("-INT");
    assert_eq!(run.output().status.code(), Some(130));
    // The controller has the partial results, and no reports remain.
    assert!(AGENTS.iter().all(|agent| stage.spooled(agent).is_empty()));
    assert_eq!(stage.succeed(&["fleet", "runs"]), "no open runs\n");
    stage.run_live("three.toml", "out");
    assert!(stage.log("ber-1.log").contains("requests preparation of run 2"), "{}", stage.logs());
}

fn a_run_that_lost_all_agents_is_repeated() {
    let stage = FleetNetwork::new("fleet-killed");
    let _hub = stage.serve();
    let mut agents = stage.join_all();
    let mut run = start_run(&stage);
    agents.iter_mut().for_each(|agent| agent.signal("-KILL"));
    drop(agents);
    assert!(within(LIMIT, || run.child().try_wait().unwrap().is_some()), "{}", stage.log("run.log"));
    assert_eq!(run.output().status.code(), Some(1));
    let log = stage.log("run.log");
    assert!(AGENTS.iter().all(|agent| log.contains(&format!("agent {agent} was lost"))), "{log}");
    // The run is not finished: nothing was measured.
    assert!(!stage.folder.join("out/record.json").exists());
    let report = output_text(&stage.at_hub(&["report", "out"]));
    assert!(report.contains("unfinished: 0 of 1 runs"), "{report}");
    let _agents: Vec<_> = (0..AGENTS.len()).map(|index| stage.agent(index)).collect();
    // The controller has seen the second connection; a killed agent may not have printed its first one.
    let is_connected =
        |agent: &&str| stage.log("hub.log").matches(&format!("agent {agent} connected from")).count() == 2;
    assert!(within(LIMIT, || AGENTS.iter().all(is_connected)), "{}", stage.logs());
    stage.wait_for_all("idle");
    stage.run_live("three.toml", "out");
}

fn a_controller_restored_from_a_backup_is_accepted() {
    let stage = FleetNetwork::new("fleet-restored");
    let hub = stage.serve();
    let _agents = stage.join_all();
    let (fleet, backup) = (stage.folder.join("fleet"), stage.folder.join("backup"));
    let copy = |from: &Path, to: &Path| {
        assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    };
    copy(&fleet, &backup);
    stage.run_live("three.toml", "before");
    drop(hub);
    fs::remove_dir_all(&fleet).unwrap();
    copy(&backup, &fleet);
    // One agent has renewed its certificate after the backup.
    let file = fleet.join("agents/ber-1.json");
    let mut agent: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    agent["certificates"][0][0] = "00".into();
    fs::write(&file, agent.to_string()).unwrap();
    let hub = stage.serve_again();
    stage.wait_for_log("hub.log", "unknown certificate");
    drop(hub);
    assert!(stage.succeed(&["fleet", "restore"]).starts_with("3 agents"));
    let _hub = stage.serve_again();
    stage.wait_for_all("idle");
    // The number of the run is used again, its identifier is not.
    stage.run_live("three.toml", "after");
    let log = stage.log("ber-1.log");
    assert_eq!(log.matches("requests preparation of run 1 ").count(), 2, "{log}");
    let accepted = fs::read_to_string(stage.folder.join("ber-1/spool/accepted-runs")).unwrap();
    let accepted: BTreeSet<&str> = accepted.lines().collect();
    assert_eq!(accepted.len(), 2);
    // The certificate was accepted once; a copy with another one is not.
    let agent: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(
        (agent["adopts_next"].as_bool(), agent["certificates"].as_array().unwrap().len()),
        (Some(false), 2)
    );
}

fn an_agent_renews_its_certificate_before_expiry() {
    let stage = FleetNetwork::new("fleet-renewal");
    let _hub = stage.serve();
    let token = stage.succeed(&["fleet", "token", "ber-1", "--certificate", "12s"]);
    assert!(stage.join(0, token.trim()).status.success());
    let _agent = stage.agent(0);
    stage.wait_for(&[("ber-1", "idle")]);
    let renewed = || stage.log("hub.log").matches("agent ber-1 renewed its certificate").count();
    // At the second renewal, the certificate of the connection has expired, but the connection remains.
    assert!(within(LIMIT, || renewed() >= 2), "{}", stage.logs());
    stage.wait_for(&[("ber-1", "idle")]);
    assert!(!stage.log("hub.log").contains("disconnecting agent"), "{}", stage.logs());
    assert_eq!(stage.log("hub.log").matches("agent ber-1 connected").count(), 1, "{}", stage.logs());
}

fn the_authority_is_replaced_and_the_old_one_refused_after_the_transition() {
    let stage = FleetNetwork::new("fleet-rotate");
    let hub = stage.serve();
    let mut agents = stage.join_all();
    // An agent that is not connected during the transition.
    drop(agents.pop());
    stage.wait_for(&[("muc-1", "offline")]);
    let rotated = stage.succeed(&["fleet", "rotate", "--transition", "30s"]);
    assert!(rotated.contains("the old one is trusted for another 30"), "{rotated}");
    let again = stage.at_hub(&["fleet", "rotate"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(output_text(&again).contains("is in transition for another"), "{}", output_text(&again));
    for agent in ["ber-1", "fra-1"] {
        stage.wait_for_log(&format!("{agent}.log"), "certificate renewed");
    }
    let doctor = output_text(&stage.at_hub(&["fleet", "doctor"]));
    assert!(doctor.contains("muc-1: no certificate of the new authority"), "{doctor}");
    assert!(!doctor.contains("ber-1: no certificate"), "{doctor}");
    // A host joins during the transition.
    let token = stage.succeed(&["fleet", "token", "late", "--label", "munich"]);
    let arguments = ["fleet", "join", CONTROLLER, token.trim(), "--state", "late"];
    let joined = stage.run_in(&stage.hosts[2], &arguments);
    assert!(joined.status.success(), "{}", output_text(&joined));

    stage.wait_for_log("hub.log", "the previous authority is no longer trusted");
    let renewals = stage.log("ber-1.log").matches("certificate renewed").count();
    assert_eq!(renewals, 1, "{}", stage.logs());
    // Another process of the controller, and agents that dial again.
    drop(hub);
    let _hub = stage.serve_again();
    let _late =
        stage.start(&stage.hosts[2], "late.log", &["agent", "--state", "late", "--policy", "policy.toml"]);
    stage.wait_for(&[("ber-1", "idle"), ("fra-1", "idle"), ("late", "idle")]);
    let scenario = scenario().replace("agent = \"muc-1\"", "agent = \"late\"");
    fs::write(stage.folder.join("three.toml"), scenario).unwrap();
    stage.run_live("three.toml", "out");
    // The old certificate is not accepted, and the old agent does not accept the controller.
    let _old = stage.agent(2);
    stage.wait_for_log("muc-1.log", "an authority that was rotated out");
    assert!(!stage.log("hub.log").contains("agent muc-1 connected"), "{}", stage.logs());
}

/// Two controllers whose fleet folders are copies of each other serve at the same address, one after the other.
fn controllers_with_copies_of_the_folder_are_refused() {
    let stage = FleetNetwork::new("fleet-copied");
    let hub = stage.serve();
    let token = stage.succeed(&["fleet", "token", "ber-1"]);
    assert!(stage.join(0, token.trim()).status.success());
    let _agent = stage.agent(0);
    stage.wait_for(&[("ber-1", "idle")]);
    let copy = Command::new("cp").arg("-r").args(["fleet", "copy"]).current_dir(&*stage.folder).status();
    assert!(copy.unwrap().success());
    drop(hub);
    // The copy takes over, as on a new host.
    let serve = ["fleet", "serve", "--fleet", "copy", "--listen", CONTROLLER];
    let other = stage.start(&stage.hub, "copy.log", &serve);
    stage.wait_for_log("copy.log", "agent ber-1 connected");
    drop(other);
    // The original is outdated now.
    let original = stage.serve_again();
    stage.wait_for_log("hub.log", "two controllers use copies of the fleet's folder");
    stage.wait_for_log("ber-1.log", "controller refused");
    assert!(!stage.log("hub.log").contains("agent ber-1 connected"), "{}", stage.logs());
    drop(original);
    let _other = stage.start(&stage.hub, "copy-again.log", &serve);
    stage.wait_for_log("copy-again.log", "agent ber-1 connected");
}

fn a_second_process_or_copy_of_an_agent_is_rejected() {
    let stage = FleetNetwork::new("fleet-copy");
    let _hub = stage.serve();
    let token = stage.succeed(&["fleet", "token", "ber-1"]);
    assert!(stage.join(0, token.trim()).status.success());
    let agent = stage.agent(0);
    stage.wait_for(&[("ber-1", "idle")]);
    let second = stage.run_in(&stage.hosts[0], &["agent", "--state", "ber-1"]);
    assert_eq!(second.status.code(), Some(2));
    assert!(output_text(&second).contains("another agent uses ber-1"), "{}", output_text(&second));

    // A copy of a host with its agent's folder.
    fs::create_dir(stage.folder.join("fra-1")).unwrap();
    for file in ["membership.json", "agent.key", "agent.pem", "authority.pem"] {
        fs::copy(stage.folder.join("ber-1").join(file), stage.folder.join("fra-1").join(file)).unwrap();
    }
    let _copy = stage.agent(1);
    stage.wait_for_log("hub.log", "second agent ber-1 at 192.168.77.12:");
    stage.wait_for_log("hub.log", "rejected: the first one is connected");
    stage.wait_for_log("fra-1.log", "a copy of its folder");
    assert!(
        !stage.log("ber-1.log").contains("lost the controller"),
        "the first agent remains connected: {}",
        stage.logs()
    );
    // After the end of the first agent, the second may connect.
    drop(agent);
    stage.wait_for_log("fra-1.log", "connected to");
}

/// Kills agents, the controller and the command a hundred times at random moments. All reports of the agents must
/// arrive at the controller exactly once.
fn no_result_is_lost_after_a_hundred_kills() {
    needs::namespaces();
    const KILLS: u64 = 100;
    let stage = FleetNetwork::new("fleet-kills");
    let mut hub = Some(stage.serve());
    let mut agents: Vec<Option<TestProcess>> = stage.join_all().into_iter().map(Some).collect();
    let mut random = RandomStream::new(1, "kills");
    let mut command: Option<TestProcess> = None;
    // Runs for which an agent had a report or a journal.
    let mut seen: BTreeSet<(usize, u64)> = BTreeSet::new();
    let note = |seen: &mut BTreeSet<(usize, u64)>| {
        for (index, agent) in AGENTS.iter().enumerate() {
            let Ok(entries) = fs::read_dir(stage.folder.join(agent).join("spool")) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name().into_string().unwrap();
                let run = name.rsplit_once('-').and_then(|(_, rest)| rest.split_once('.'));
                if let Some((run, "json" | "bins")) = run {
                    seen.extend(run.parse().ok().map(|run| (index, run_number(run).into())));
                }
            }
        }
    };
    for kill in 0..KILLS {
        if command.as_mut().is_none_or(|command| command.child().try_wait().unwrap().is_some()) {
            let out = format!("out-{kill}");
            let arguments = ["run", "three.toml", "--on", "live", "--out", &out];
            command = Some(stage.start(&stage.hub, "run.log", &arguments));
        }
        let until = Instant::now() + Duration::from_millis(200 + random.below(4_000));
        while Instant::now() < until {
            note(&mut seen);
            std::thread::sleep(Duration::from_millis(20));
        }
        match random.below(5) {
            0 => {
                drop(hub.take());
                hub = Some(stage.serve_again());
            }
            1 => drop(command.take()),
            choice => {
                let index = choice as usize - 2;
                drop(agents[index].take());
                agents[index] = Some(stage.agent(index));
            }
        }
    }
    if let Some(command) = command {
        drop(command.output());
    }
    note(&mut seen);
    stage.wait_for_all("idle");
    stage.succeed(&["fleet", "runs", "--fetch"]);
    let runs = stage.folder.join("fleet/runs");
    let lost: Vec<_> = seen
        .iter()
        .filter(|(index, run)| {
            !runs.join(run.to_string()).join(format!("{}.report.json", AGENTS[*index])).exists()
        })
        .collect();
    println!("{KILLS} kills, {} reports, {} lost", seen.len(), lost.len());
    assert!(lost.is_empty(), "{lost:?}\n{}", stage.logs());
    assert!(AGENTS.iter().all(|agent| stage.spooled(agent).is_empty()));
    assert!(seen.len() > 30, "too few runs: {seen:?}");
}

netstage_harness::tests![
    three_agents_joined_with_tokens_run_a_scenario,
    hosts_with_different_clocks_compare_them_directly,
    agents_and_controller_run_with_the_restrictions_of_their_units,
    the_commands_of_the_page_work,
    used_and_foreign_tokens_and_certificates_are_rejected,
    traffic_stops_without_the_controller_and_results_are_kept,
    a_run_whose_command_was_killed_is_repeated,
    an_interrupted_run_is_repeated,
    a_run_that_lost_all_agents_is_repeated,
    a_controller_restored_from_a_backup_is_accepted,
    an_agent_renews_its_certificate_before_expiry,
    the_authority_is_replaced_and_the_old_one_refused_after_the_transition,
    controllers_with_copies_of_the_folder_are_refused,
    a_second_process_or_copy_of_an_agent_is_rejected,
    #[ignore = "a hundred kills take ten minutes"]
    no_result_is_lost_after_a_hundred_kills,
];
