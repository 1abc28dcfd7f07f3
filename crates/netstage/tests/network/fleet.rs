//! A fleet as people meet it: agents in namespaces of their own that join by token and dial
//! their controller over a management network, scenarios placed on them, and what goes wrong.

use crate::support::fleet::{Fleet, LIMIT};
use crate::support::network::{address, default_route, join};
use crate::support::{Folder, Process, said, within};
use netstage_core::rng::Stream;
use netstage_harness::needs;
use netstage_harness::scenario::network;
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use netstage_host::netns::routes::Route;
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

const POLICY: &str = r#"
[policy]
controllers = ["lab"]
rate = "50 Mbit/s"
longest = "1 min"
destinations = ["10.1.0.0/16"]
interfaces = ["data"]
"#;

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
/// The journal of the first agent in the first run.
const JOURNAL: &str = "ber-1/spool/a-1.bins";

/// Three agents' hosts, with a network for traffic between them.
struct Stage {
    fleet: Fleet,
    _core: Namespace,
}

impl Deref for Stage {
    type Target = Fleet;

    fn deref(&self) -> &Fleet {
        &self.fleet
    }
}

impl Stage {
    fn new(name: &str) -> Stage {
        let fleet = Fleet::new(name, &AGENTS);
        let core = Namespace::new().unwrap();
        core.sysctl("net/ipv4/ip_forward", "1").unwrap();
        for (index, host) in fleet.hosts.iter().enumerate() {
            let number = index as u8 + 1;
            let far = format!("d{number}");
            join((host, "data", 30 + number), (&core, &far, 40 + number));
            let mut links = Netlink::open(host).unwrap();
            links.add_address("data", address(&format!("10.1.{number}.2")), 24).unwrap();
            let gateway = format!("10.1.{number}.1");
            let mut core_links = Netlink::open(&core).unwrap();
            core_links.add_address(&far, address(&gateway), 24).unwrap();
            let route = Route { destination: (address("10.1.0.0"), 16), ..default_route(&gateway, "data") };
            links.add_route(&route).unwrap();
        }
        fs::write(fleet.folder.join("policy.toml"), POLICY).unwrap();
        fs::write(fleet.folder.join("three.toml"), scenario()).unwrap();
        Stage { fleet, _core: core }
    }

    /// All three join and dial.
    fn join_all(&self) -> Vec<Process> {
        self.fleet.join_all(&["berlin", "frankfurt", "munich"])
    }
}

fn three_agents_joined_by_token_carry_a_scenario() {
    let stage = Stage::new("fleet-live");
    let _hub = stage.serve();
    let agents = stage.join_all();

    let record = stage.run_live("three.toml", "out");
    assert_eq!(record["stage"], "live");
    let text = record.to_string();
    assert!(text.contains("flow.throughput") && text.contains("flow.clock_error"), "{record:#}");
    for agent in AGENTS {
        assert!(stage.spooled(agent).is_empty(), "a report that was fetched is not kept");
        let log = stage.log(&format!("{agent}.log"));
        assert!(log.contains("requests preparation of run 1") && log.contains("accepted"), "{log}");
    }
    assert_eq!(stage.well(&["fleet", "runs"]), "all runs are closed\n");

    // What they tell Prometheus, each on its own loopback interface.
    let told = stage.scrape(&stage.hub, "127.0.0.1:4702");
    let names = scheme::check(&told, "fleet");
    assert!(
        names.contains("netstage_fleet_joined_total") && told.contains("netstage_fleet_joined_total 3\n"),
        "{told}"
    );
    assert!(told.contains("netstage_fleet_agent_up{agent=\"muc-1\"} 1\n"), "{told}");
    let told = stage.scrape(&stage.hosts[0], "127.0.0.1:4703");
    scheme::check(&told, "agent");
    assert!(told.contains("netstage_agent_kept_reports 0\n"), "{told}");
    let sent = told.lines().find_map(|line| line.strip_prefix("netstage_agent_sent_packets_total "));
    let sent: u64 = sent.expect("it counts what it sends").parse().unwrap();
    assert!(sent > 0, "counts stay when a run and its controller have gone: {told}");

    // Beyond the policy: refused by name, with what would help, and nothing is sent.
    let run = |out: &str, set: &str| stage.run_with("three.toml", out, &["--set", set]);
    let output = run("fast", "flow.file.traffic.rate=60 Mbit/s");
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("agent fra-1 refused") && told.contains("raise `rate` in the policy"), "{told}");
    // The controller's management address is none of the policy's destinations.
    let told = said(&run("far", "place.c.address=192.168.77.13"));
    assert!(told.contains("agent muc-1 refused") && told.contains("does not allow interface mgmt"), "{told}");

    // A scenario that names nobody, and one agent too many.
    let output = run("none", "place.a=berlin-1");
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("there is no agent berlin-1"), "{}", said(&output));

    // Removed, an agent is cut off at once, and does not get in again.
    stage.well(&["fleet", "remove", "muc-1"]);
    stage.wait_for_log("hub.log", "disconnecting agent muc-1");
    stage.wait_for_log("hub.log", "unknown certificate: the agent was removed");
    stage.wait_for_log("muc-1.log", "this agent was removed or replaced there");
    assert_eq!(stage.states().len(), 2);
    drop(agents);
    stage.wait_for(&[("ber-1", "offline"), ("fra-1", "offline")]);
}

fn hosts_of_other_clocks_compare_them_between_each_other() {
    let stage = Stage::new("fleet-clocks");
    let _hub = stage.serve();
    // Booted weeks apart, as far as they can tell.
    let ahead = [1_000_000, 0, 3_000];
    let agent = |index| stage.agent_ahead(index, ahead[index]);
    let _agents = stage.fleet.join_all_as(&["berlin", "frankfurt", "munich"], agent);

    let run = |out: &str| {
        let record = stage.run_live("three.toml", out);
        let summary = record["cells"][0]["summary"].as_array().unwrap();
        let error = summary.iter().find(|row| row["metric"] == "flow.clock_error").expect("voice has one");
        let warnings: Vec<String> = serde_json::from_value(record["warnings"].clone()).unwrap();
        let warning =
            warnings.into_iter().find(|told| told.contains("clocks of agents")).expect("it is told");
        println!("{out}: {warning}");
        (error["mean"].as_f64().unwrap(), warning)
    };
    let (error, warning) = run("between");
    assert!(warning.contains("between ber-1 and fra-1, by STAMP between the hosts:"), "{warning}");
    assert!(error > 0.0, "{error}");

    // Where that port is somebody else's, the controller's word is all there is.
    let taken = stage.hosts[1].run(|| UdpSocket::bind("10.1.2.2:4704")).unwrap().unwrap();
    let (error, warning) = run("over-the-controller");
    assert!(warning.contains("for 0 of 1 pairs, UDP port 4704"), "{warning}");
    assert!(error > 0.0, "{error}");
    drop(taken);
}

/// Agents and controller as the units of the Debian package have them run, where no systemd is needed for it: their
/// accounts, capabilities, limits, system calls and address families.
fn what_their_units_leave_agents_and_controller_is_enough() {
    let stage = Stage::new("fleet-unit");
    let [copy, controller] = ["agent", "fleet"].map(|of| stage.unit(of));
    // Tenths on systemd's scale, of which 10 is all there is; the controller is root, though with one right of its.
    // The one foreign unit without which systemd verifies no service; those of this machine are not looked at.
    fs::write(stage.folder.join("sysinit.target"), "[Unit]\n").unwrap();
    let analyze = |arguments: &[&str], unit: &Path| {
        let mut command = Command::new("systemd-analyze");
        command.args(arguments).arg(unit).env("SYSTEMD_UNIT_PATH", &*stage.folder);
        command.output().unwrap()
    };
    for (unit, most_exposed) in [(&copy, 25), (&controller, 30)] {
        let verified = analyze(&["verify"], unit);
        assert!(verified.status.success() && said(&verified).is_empty(), "{}", said(&verified));
        let exposure = ["security", "--offline=true", "--no-pager", &format!("--threshold={most_exposed}")];
        let exposed = analyze(&exposure, unit);
        assert!(exposed.status.success(), "{}", said(&exposed));
    }

    let mut hub = stage.serve_as(&controller);
    let policy = POLICY.replace("rate =", "# rate =");
    let policy = policy.replace("[policy]", "[policy]\none_ended = true\nservices = [\"ftp\", \"iscsi\"]");
    fs::write(stage.folder.join("policy.toml"), policy).unwrap();
    let label = ["berlin", "frankfurt", "munich"];
    let mut agents = Vec::new();
    for (index, name) in AGENTS.into_iter().enumerate() {
        let token = stage.well(&["fleet", "token", name, "--label", label[index]]);
        assert!(stage.join(index, token.trim()).status.success());
        agents.push(stage.agent_as(&copy, None, index));
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
    // Nobody's process and root's, and no more of them than the units say.
    for (process, account, rights) in
        [(&mut agents[0], "Uid:\t65534", "0000000000802000"), (&mut hub, "Uid:\t0", "0000000000800000")]
    {
        let status = fs::read_to_string(format!("/proc/{}/status", process.child().id())).unwrap();
        let rights = [format!("CapEff:\t{rights}"), format!("CapBnd:\t{rights}")];
        for expected in [account, &rights[0], &rights[1], "Seccomp:\t2"] {
            assert!(status.contains(expected), "{expected}: {status}");
        }
    }
}

fn the_page_works_as_it_stands() {
    needs::namespaces();
    let said = crate::support::run_page("fleet.md", &Folder::new("fleet-page"));
    assert!(said.contains("same clock") && said.contains("Two hosts and a stand-in"), "{said}");
}

fn nobody_gets_in_twice_or_from_elsewhere() {
    let stage = Stage::new("fleet-join");
    let _hub = stage.serve();
    let token = stage.well(&["fleet", "token", "ber-1"]);
    assert!(stage.join(0, token.trim()).status.success());
    let again = stage.join(1, token.trim());
    assert_eq!(again.status.code(), Some(2));
    assert!(said(&again).contains("the token was used"), "{}", said(&again));
    // Another fleet's token: its fingerprint is not of the controller that answers.
    let foreign = format!("{}.{}", "0123456789abcdeffedcba9876543210", "ab".repeat(32));
    let foreign = stage.join(1, &foreign);
    assert!(said(&foreign).contains("belongs to another fleet"), "{}", said(&foreign));
    assert!(said(&stage.join(1, "nonsense")).contains("invalid token"));

    // A second controller of the same fleet.
    let second = stage.at_hub(&["fleet", "serve", "--listen", "192.168.77.1:4701"]);
    assert!(said(&second).contains("another controller serves"), "{}", said(&second));

    // An identity of another fleet, and one whose certificate is as short-lived as it gets.
    let other = stage.folder.join("other");
    let init = stage.command(&["fleet", "init"]).env("NETSTAGE_FLEET", &other).output().unwrap();
    assert!(init.status.success(), "{}", said(&init));
    fs::copy(other.join("authority.pem"), stage.folder.join("ber-1/authority.pem")).unwrap();
    let _stranger = stage.agent(0);
    stage.wait_for_log("ber-1.log", "belongs to another fleet");
    let brief = stage.well(&["fleet", "token", "muc-1", "--certificate", "1s"]);
    assert!(stage.join(2, brief.trim()).status.success());
    // Certificates count in seconds: this one is over two seconds later.
    std::thread::sleep(Duration::from_millis(2_100));
    let _late = stage.agent(2);
    stage.wait_for_log("hub.log", "certificate has expired");
    let doctor = stage.at_hub(&["fleet", "doctor"]);
    assert!(said(&doctor).contains("muc-1: its certificate has expired"), "{}", said(&doctor));
}

fn a_lost_controller_stops_traffic_and_loses_no_result() {
    let stage = Stage::new("fleet-lost");
    let mut hub = stage.serve();
    let _agents = stage.join_all();
    let run = stage.start(&stage.hub, "run.log", &[&RUN[..], &["--set", "scenario.duration=50 s"]].concat());
    stage.wait_for_all("taken");
    AGENTS
        .iter()
        .for_each(|agent| stage.wait_for_log(&format!("{agent}.log"), "requests preparation of run 1"));
    // Let it send before its controller dies.
    assert!(within(LIMIT, || stage.counted(JOURNAL) > 3), "{}", stage.logs());
    hub.signal("-KILL");
    drop(hub);
    AGENTS.iter().for_each(|agent| stage.wait_for_log(&format!("{agent}.log"), "lost the controller"));
    for agent in AGENTS {
        let [report] = &stage.spooled(agent)[..] else { panic!("{agent} keeps no report\n{}", stage.logs()) };
        let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
        assert!(report["void"].to_string().contains("lost its controller"), "{report:#}");
    }
    drop(run.output());

    // Fetched later, by another controller's process.
    let _hub = stage.serve();
    stage.wait_for_all("idle");
    let open = stage.well(&["fleet", "runs"]);
    assert!(open.contains("Three hosts"), "{open}");
    let fetched = stage.well(&["fleet", "runs", "--fetch"]);
    assert!(fetched.starts_with("3 reports fetched"), "{fetched}");
    assert!(AGENTS.iter().all(|agent| stage.spooled(agent).is_empty()));
    assert!(stage.well(&["fleet", "close", "1"]).contains("run 1 is closed"));
    assert_eq!(stage.well(&["fleet", "runs"]), "all runs are closed\n");
    // Its number is never given again.
    stage.run_live("three.toml", "again");
    assert!(stage.log("ber-1.log").contains("requests preparation of run 2"), "{}", stage.log("ber-1.log"));
}

/// A run whose agents have counted a while.
fn run_under_way(stage: &Stage) -> Process {
    let run = stage.start(&stage.hub, "run.log", &RUN);
    let counts = || stage.counted(JOURNAL) > 3;
    assert!(within(LIMIT, counts), "{}{}", stage.log("run.log"), stage.logs());
    run
}

fn a_run_whose_process_was_killed_is_taken_up() {
    let stage = Stage::new("fleet-again");
    let _hub = stage.serve();
    let _agents = stage.join_all();
    let mut run = run_under_way(&stage);
    run.signal("-KILL");
    drop(run);
    // What they had counted stays with the agents.
    assert!(within(LIMIT, || AGENTS.iter().all(|agent| stage.spooled(agent).len() == 1)), "{}", stage.logs());
    // What was cut short is fetched, and the run begun anew.
    stage.run_live("three.toml", "out");
    assert!(AGENTS.iter().all(|agent| stage.spooled(agent).is_empty()));
    assert_eq!(stage.well(&["fleet", "runs"]), "all runs are closed\n");
    assert!(stage.log("ber-1.log").contains("requests preparation of run 2"), "{}", stage.logs());
    assert!(stage.folder.join("fleet/runs/1/ber-1.report.json").exists());
}

fn a_run_that_was_interrupted_is_run_anew() {
    let stage = Stage::new("fleet-interrupted");
    let _hub = stage.serve();
    let _agents = stage.join_all();
    let mut run = run_under_way(&stage);
    run.signal("-INT");
    assert_eq!(run.output().status.code(), Some(130));
    // Its beginning is at the controller, and nothing more is to come.
    assert!(AGENTS.iter().all(|agent| stage.spooled(agent).is_empty()));
    assert_eq!(stage.well(&["fleet", "runs"]), "all runs are closed\n");
    stage.run_live("three.toml", "out");
    assert!(stage.log("ber-1.log").contains("requests preparation of run 2"), "{}", stage.logs());
}

fn an_agent_renews_its_certificate_in_time() {
    let stage = Stage::new("fleet-renewal");
    let _hub = stage.serve();
    let token = stage.well(&["fleet", "token", "ber-1", "--certificate", "12s"]);
    assert!(stage.join(0, token.trim()).status.success());
    let _agent = stage.agent(0);
    stage.wait_for(&[("ber-1", "idle")]);
    let renewed = || stage.log("hub.log").matches("agent ber-1 renewed its certificate").count();
    // By the second time, the certificate it has dialled with has ended, and the connection goes on.
    assert!(within(LIMIT, || renewed() >= 2), "{}", stage.logs());
    stage.wait_for(&[("ber-1", "idle")]);
    assert!(!stage.log("hub.log").contains("disconnecting agent"), "{}", stage.logs());
    assert_eq!(stage.log("hub.log").matches("agent ber-1 connected").count(), 1, "{}", stage.logs());
}

fn an_agent_is_one_process_of_one_folder() {
    let stage = Stage::new("fleet-copy");
    let _hub = stage.serve();
    let token = stage.well(&["fleet", "token", "ber-1"]);
    assert!(stage.join(0, token.trim()).status.success());
    let agent = stage.agent(0);
    stage.wait_for(&[("ber-1", "idle")]);
    let second = stage.run_in(&stage.hosts[0], &["agent", "--state", "ber-1"]);
    assert_eq!(second.status.code(), Some(2));
    assert!(said(&second).contains("another agent uses ber-1"), "{}", said(&second));

    // A host that was copied with its agent's folder.
    fs::create_dir(stage.folder.join("fra-1")).unwrap();
    for file in ["membership.json", "agent.key", "agent.pem", "authority.pem"] {
        fs::copy(stage.folder.join("ber-1").join(file), stage.folder.join("fra-1").join(file)).unwrap();
    }
    let _copy = stage.agent(1);
    stage.wait_for_log("hub.log", "second agent ber-1 at 192.168.77.12 rejected");
    stage.wait_for_log("fra-1.log", "a copy of its folder");
    assert!(
        !stage.log("ber-1.log").contains("connection to the controller"),
        "the first goes on: {}",
        stage.logs()
    );
    // Once that is gone, the other may have its place.
    drop(agent);
    stage.wait_for_log("fra-1.log", "connected to");
}

/// Agents, the controller and whoever commands are killed a hundred times, at any moment: every report an
/// agent ever had is at the controller in the end, once.
fn no_result_is_lost_over_a_hundred_kills() {
    needs::namespaces();
    const KILLS: u64 = 100;
    let stage = Stage::new("fleet-kills");
    let mut hub = Some(stage.serve());
    let mut agents: Vec<Option<Process>> = stage.join_all().into_iter().map(Some).collect();
    let mut random = Stream::new(1, "kills");
    let mut command: Option<Process> = None;
    // Runs whose report an agent was seen to have, or was counting for.
    let mut seen: BTreeSet<(usize, u64)> = BTreeSet::new();
    let note = |seen: &mut BTreeSet<(usize, u64)>| {
        for (index, agent) in AGENTS.iter().enumerate() {
            let Ok(entries) = fs::read_dir(stage.folder.join(agent).join("spool")) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name().into_string().unwrap();
                let run = name.rsplit_once('-').and_then(|(_, rest)| rest.split_once('.'));
                if let Some((run, "json" | "bins")) = run {
                    seen.extend(run.parse().ok().map(|run| (index, run)));
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
            which => {
                let index = which as usize - 2;
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
    stage.well(&["fleet", "runs", "--fetch"]);
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
    assert!(seen.len() > 30, "hardly anything ran: {seen:?}");
}

netstage_harness::tests![
    three_agents_joined_by_token_carry_a_scenario,
    hosts_of_other_clocks_compare_them_between_each_other,
    what_their_units_leave_agents_and_controller_is_enough,
    the_page_works_as_it_stands,
    nobody_gets_in_twice_or_from_elsewhere,
    a_lost_controller_stops_traffic_and_loses_no_result,
    a_run_whose_process_was_killed_is_taken_up,
    a_run_that_was_interrupted_is_run_anew,
    an_agent_renews_its_certificate_in_time,
    an_agent_is_one_process_of_one_folder,
    #[ignore = "a hundred kills take ten minutes"]
    no_result_is_lost_over_a_hundred_kills,
];
