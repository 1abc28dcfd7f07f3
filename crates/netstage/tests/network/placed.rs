//! Tests of further roles of a fleet's agents: provider edge routers, TCP observers, multicast receivers, and service
//! endpoints. Two customers and two routers between them, in namespaces.

use crate::support::fleet::{Fleet, LIMIT};
use crate::support::network::{address, default_route, join};
use crate::support::{mean, output_text, within};
use netstage_agent::fleet::FleetFolder as Folder;
use netstage_harness::scenario::network;
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use netstage_scenario::outcome::{Metric, RunOutcome};
use netstage_scenario::{LoadOptions, parse};
use netstage_stage::hosts::FleetContext;
use netstage_study::Performer;
use netstage_study::stage::live;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Mutex;

const AGENTS: [&str; 4] = ["west-pe", "east-pe", "office", "factory"];

const POLICY: &str = r#"
[policy]
controllers = ["lab"]
max_duration = "1 min"
destinations = ["10.0.0.0/8", "239.192.0.0/14"]
interfaces = ["wan", "customers", "data"]
routers = true
tcp_events = true
"#;

/// Returns a scenario of a VPN with observed TCP flows.
fn vpn_scenario() -> String {
    let nodes = [("host", "a b"), ("pe", "west east")];
    format!("{GOLD}{}", network(&nodes, "office:a,west core:west,east factory:east,b"))
}

const GOLD: &str = r#"
[scenario]
title = "A VPN between hosts"
duration = "3 s"
[defaults.link]
rate = "100 Mbit/s"
buffer = "100 packets"
[vpn.gold]
weight = 2.0
ingress = "west"
egress = "east"
encapsulation = "mpls-in-udp"
control = { kind = "i2vfc", report_within = "10 ms" }
[flow.file]
from = "a"
to = "b"
vpn = "gold"
traffic = { model = "cbr", rate = "4 Mbit/s", packet = "1000 B" }
[flow.voice]
from = "a"
to = "b"
vpn = "gold"
transport = "udp"
traffic = { model = "cbr", rate = "800 kbit/s", packet = "500 B" }
[place]
a = "office"
b = "factory"
[place.west]
agent = "west-pe"
address = "10.9.0.1"
interfaces = { core = "wan", office = { name = "customers", address = ["10.1.1.1/24"] } }
[place.east]
agent = "east-pe"
address = "10.9.0.2"
interfaces = { core = "wan", factory = { name = "customers", address = ["10.1.2.1/24"] } }
[measure]
interval = "100 ms"
flow_detail = true
delay = true
tcp = "events"
[expect.file]
metric = "flow.throughput"
subject = "file"
at_least = "0.1 Mbit/s"
[plot.window]
metric = "vpn.window"
"#;

/// Scenario that uses the routers' hosts as end hosts.
const TELEVISION: &str = r#"
[scenario]
title = "Multicast between hosts"
duration = "2 s"
[node.studio]
[node.viewer]
[link.line]
ends = ["studio", "viewer"]
rate = "100 Mbit/s"
buffer = "100 packets"
[flow.television]
from = "studio"
to = "viewer"
transport = "multicast"
traffic = { model = "cbr", rate = "1 Mbit/s", packet = "500 B" }
[place]
studio = { agent = "west-pe", address = "10.9.0.1" }
viewer = { agent = "east-pe", address = "10.9.0.2" }
[measure]
interval = "100 ms"
[expect.television]
metric = "flow.throughput"
subject = "television"
at_least = "0.1 Mbit/s"
[plot.throughput]
metric = "flow.throughput"
"#;

fn fleet(name: &str) -> Fleet {
    let fleet = Fleet::new(name, &AGENTS);
    let [west, east, office, factory] = &fleet.hosts[..] else { unreachable!("four names") };
    join((west, "wan", 31), (east, "wan", 32));
    join((west, "customers", 33), (office, "data", 34));
    join((east, "customers", 35), (factory, "data", 36));
    for (host, link, own) in [
        (west, "wan", "10.9.0.1"),
        (east, "wan", "10.9.0.2"),
        (office, "data", "10.1.1.2"),
        (factory, "data", "10.1.2.2"),
    ] {
        Netlink::open(host).unwrap().add_address(link, address(own), 24).unwrap();
    }
    for (host, router) in [(office, "10.1.1.1"), (factory, "10.1.2.1")] {
        Netlink::open(host).unwrap().add_route(&default_route(router, "data")).unwrap();
    }
    fs::write(fleet.folder.join("policy.toml"), POLICY).unwrap();
    fs::write(fleet.folder.join("vpn.toml"), vpn_scenario()).unwrap();
    fs::write(fleet.folder.join("television.toml"), TELEVISION).unwrap();
    fleet
}

/// Returns the kernel's `arp_ignore` of the customers' interface: 8 while a router uses it.
fn arp_ignore(fleet: &Fleet) -> String {
    fleet.hosts[0].sysctl_value("net/ipv4/conf/customers/arp_ignore").unwrap()
}

fn agents_run_routers_observe_tcp_and_receive_multicast() {
    let fleet = fleet("placed");
    let _hub = fleet.serve();
    let _agents = fleet.join_all(&["pe", "pe", "site", "site"]);
    let record = fleet.run_live("vpn.toml", "vpn");
    let mean = |metric: &str, subject: &str| mean(&record, metric, subject);
    // Window and memory of the routers.
    assert!(mean("vpn.window", "gold") >= 1.0);
    assert!(mean("pe.memory", "west") > 1e6 && mean("pe.memory", "east") > 1e6);
    // The receivers' throughput matches that of the routers.
    let [file, voice] = ["file", "voice"].map(|flow| mean("flow.throughput", flow));
    assert!(file > 1e5 && voice > 1e5, "{file} {voice}");
    let vpn = mean("vpn.throughput", "gold");
    assert!(vpn > file + voice && vpn < 1.2 * (file + voice), "{vpn} of {file} and {voice}");
    assert!(mean("flow.delay", "voice") > 0.0);
    // The sender's kernel reports its windows.
    assert!(mean("flow.window.peak", "file") >= 1.0);
    assert_eq!(arp_ignore(&fleet), "0", "the interface is released to the kernel");
    let log = fleet.log("west-pe.log");
    assert!(log.contains("router on wan, customers") && log.contains("accepted"), "{log}");

    let record = fleet.run_live("television.toml", "tv");
    assert_eq!(record["expectations"][0]["pass"], true, "{record:#}");

    // An incomplete placement is rejected before the agents are contacted.
    let run = |name: &str, text: String| {
        fs::write(fleet.folder.join("wrong.toml"), text).unwrap();
        let output = fleet.run_with("wrong.toml", name, &[]);
        (output.status.code(), output_text(&output))
    };
    let (code, printed) = run("bare", vpn_scenario().replace(r#"core = "wan", office"#, "office"));
    assert!(code == Some(2) && printed.contains("name it in place.west.interfaces.core"), "{printed}");
    let (code, printed) = run("half", vpn_scenario().replace("[place.east]\nagent", "[place.east]\nlabel"));
    assert!(code == Some(2) && printed.contains("node.east: no agent has label east-pe"), "{printed}");
    // The agent rejects tasks that its policy does not allow.
    let (code, printed) = run("eth0", vpn_scenario().replace("10.9.0.2\"", "192.0.2.2\""));
    assert!(code == Some(1) && printed.contains("does not allow sending to 192.0.2.2"), "{printed}");
}

fn a_router_runs_with_the_privileges_of_its_drop_in() {
    let fleet = fleet("placed-unit");
    fs::write(fleet.folder.join("vpn.toml"), vpn_scenario().replace("tcp = \"events\"\n", "")).unwrap();
    let _hub = fleet.serve();
    let (unit, drop_in) =
        (fleet.unit("agent"), crate::support::project().join("packaging/agent-router.conf"));
    let start = |(index, name): (usize, &&str)| {
        let token = fleet.succeed(&["fleet", "token", name]);
        let output = fleet.join(index, token.trim());
        assert!(output.status.success(), "{}", output_text(&output));
        fleet.agent_as(&unit, name.ends_with("pe").then_some(&*drop_in), index)
    };
    let _agents: Vec<_> = AGENTS.iter().enumerate().map(start).collect();
    fleet.wait_for_all("idle");
    let record = fleet.run_live("vpn.toml", "vpn");
    assert_eq!(record["expectations"][0]["pass"], true, "{record:#}");
    assert_eq!(arp_ignore(&fleet), "0", "the interface is released to the kernel");
}

fn a_run_on_agents_sends_partial_outcomes() {
    let fleet = fleet("placed-outcomes");
    let _hub = fleet.serve();
    let _agents = fleet.join_all(&["pe", "pe", "site", "site"]);
    let scenario = parse("vpn.toml", &vpn_scenario(), None, &LoadOptions::default()).unwrap();
    let means =
        FleetContext::new(Folder::open(&fleet.folder.join("fleet")).unwrap(), &fleet.folder.join("out"));
    let stage = live(means);
    let outcomes = Mutex::new(Vec::new());
    let performer = Performer {
        runner: &stage,
        retries: 0,
        stop: &|| false,
        on_activity: &|_| (),
        on_trial: &|_| (),
        on_progress: &|_, _| (),
        on_outcome: Some(&|_, outcome, is_over| outcomes.lock().unwrap().push((outcome, is_over))),
    };
    performer.perform(&scenario, (0, 1)).unwrap();
    let mut outcomes = outcomes.into_inner().unwrap();
    let (last, is_over) = outcomes.pop().unwrap();
    assert!(is_over && last.bins == 30 && !outcomes.is_empty());
    assert!(outcomes.is_sorted_by_key(|(outcome, _)| outcome.bins), "bins come in order");
    let (early, _) = outcomes.last().unwrap();
    assert!(early.bins > 0 && early.bins <= 30);
    for (metric, subject) in [
        (Metric::VpnThroughput, "gold"),
        (Metric::VpnWindow, "gold"),
        (Metric::FairnessInterVpn, ""),
        (Metric::FlowThroughput, "file"),
        (Metric::FlowWindowPeak, "file"),
        (Metric::FlowCauseTimeout, "file"),
        (Metric::FlowDelay, "voice"),
    ] {
        let series = early.get(metric, subject).unwrap_or_else(|| panic!("no {metric:?} during the run"));
        assert_eq!(series.values.len(), early.bins);
        let count = series.values.iter().filter(|value| value.is_finite()).count();
        assert!(count > 0, "{metric:?}: {:?}", series.values);
    }
    // Partial values equal the final ones, except in bins with late bytes.
    let throughput =
        |outcome: &RunOutcome| outcome.get(Metric::FlowThroughput, "voice").unwrap().values.clone();
    let (early, late) = (throughput(early), throughput(&last));
    assert!(early.iter().zip(&late).filter(|(early, late)| early == late).count() * 2 > early.len());
}

fn a_router_ends_with_its_controller() {
    let fleet = fleet("placed-lost");
    let mut hub = fleet.serve();
    let _agents = fleet.join_all(&["pe", "pe", "site", "site"]);
    let is_prepared = || arp_ignore(&fleet) == "8";
    let is_sending = || fleet.counted("office") > 3;
    // During preparation, and during the run.
    let moments: [(&str, &dyn Fn() -> bool); 2] = [("one", &is_prepared), ("two", &is_sending)];
    for (out, moment) in moments {
        let arguments = ["run", "vpn.toml", "--on", "live", "--out", out, "--set", "scenario.duration=50 s"];
        let run = fleet.start(&fleet.hub, "run.log", &arguments);
        assert!(within(LIMIT, moment), "{out}: {}{}", fleet.log("run.log"), fleet.logs());
        hub.signal("-KILL");
        drop(hub);
        assert!(within(LIMIT, || arp_ignore(&fleet) == "0"), "{out}: {}", fleet.logs());
        drop(run.output());
        hub = fleet.serve_again();
        fleet.wait_for_all("idle");
    }
}

const SITES: [&str; 2] = ["north", "south"];

/// Policy of both ends of the services.
const SERVING: &str = r#"
[policy]
controllers = ["lab"]
destinations = ["10.9.0.0/24"]
interfaces = ["wan"]
services = ["ftp", "iscsi"]
tcp_events = true
"#;

/// Scenario of a file and a disk of one site that the other uses.
const SERVICES: &str = r#"
[scenario]
title = "Services between hosts"
duration = "3 s"
[node.a]
[node.b]
[link.line]
ends = ["a", "b"]
rate = "1 Gbit/s"
buffer = "100 packets"
[service.file]
program = "ftp"
client = "a"
server = "b"
size = "2 MB"
[service.disk]
program = "iscsi"
client = "a"
server = "b"
block = "64 KiB"
[flow.voice]
from = "a"
to = "b"
transport = "udp"
traffic = { model = "cbr", rate = "80 kbit/s", packet = "200 B" }
[place]
a = { agent = "north", address = "10.9.0.1" }
b = { agent = "south", address = "10.9.0.2" }
[measure]
interval = "1 s"
tcp = "events"
[expect.file]
metric = "flow.throughput"
subject = "file"
at_least = "1 Mbit/s"
[plot.throughput]
metric = "flow.throughput"
"#;

fn sites(name: &str) -> Fleet {
    let fleet = Fleet::new(name, &SITES);
    let [north, south] = &fleet.hosts[..] else { unreachable!("two names") };
    join((north, "wan", 31), (south, "wan", 32));
    for (host, own) in [(north, "10.9.0.1"), (south, "10.9.0.2")] {
        Netlink::open(host).unwrap().add_address("wan", address(own), 24).unwrap();
    }
    fs::write(fleet.folder.join("policy.toml"), SERVING).unwrap();
    fs::write(fleet.folder.join("services.toml"), SERVICES).unwrap();
    fleet
}

/// Returns the names of the programs in a namespace, except agents.
fn programs_in(host: &Namespace) -> Vec<String> {
    let own = Some(host.number().unwrap());
    let process = |entry: fs::DirEntry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let is_inside =
            Namespace::of_process(number).ok().and_then(|namespace| namespace.number().ok()) == own;
        (is_inside && name.trim() != "netstage").then(|| name.trim().to_owned())
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(process).collect()
}

/// Returns the files and folders of an agent's services.
fn left_by_services(fleet: &Fleet, agent: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(fleet.folder.join(agent).join("services")) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "lock").collect()
}

/// Returns the owners of the files and folders in a folder.
fn owners(folder: &Path) -> BTreeSet<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of_entry = |entry: fs::DirEntry| {
        let found = entry.metadata().map(|metadata| metadata.uid()).into_iter().collect::<BTreeSet<u32>>();
        if entry.path().is_dir() { &found | &owners(&entry.path()) } else { found }
    };
    entries.flat_map(of_entry).collect()
}

fn services_run_between_hosts_with_a_policy_for_them() {
    let fleet = sites("services");
    let owners_before = owners(&fleet.folder);
    let _hub = fleet.serve();
    let mut agents = fleet.join_all(&["site", "site"]);
    let printed = output_text(&fleet.at_hub(&["fleet", "doctor"]));
    assert!(printed.contains("north: can run services: ftp, iscsi"), "{printed}");
    let record = fleet.run_live("services.toml", "out");
    let mean = |metric: &str, subject: &str| mean(&record, metric, subject);
    assert_eq!(mean("app.transactions", "file"), 1.0);
    assert!((mean("flow.throughput", "file") * 3.0 - 16e6).abs() < 1.0, "exactly the file");
    assert!(mean("flow.throughput", "disk") > 1e6 && mean("flow.throughput", "voice") > 1e4);
    // The servers' kernel reports their windows.
    for service in ["file[backward]", "disk[backward]"] {
        assert!(mean("flow.window.peak", service) >= 1.0);
    }
    let log = fleet.log("south.log");
    assert!(log.contains("iscsi server, ftp server") && log.contains("accepted"), "{log}");
    for (host, agent) in fleet.hosts.iter().zip(SITES) {
        assert_eq!((programs_in(host), left_by_services(&fleet, agent)), (vec![], vec![]), "{agent}");
    }
    // Programs own the folder of their service, and nothing else of the agent that starts them.
    assert_eq!(owners(&fleet.folder), owners_before);

    let run = |scenario: &str, name: &str| {
        fs::write(fleet.folder.join("other.toml"), scenario).unwrap();
        let output = fleet.run_with("other.toml", name, &[]);
        (output.status.code(), output_text(&output))
    };
    // The agent rejects programs that its policy does not allow or that are not installed, before the run starts.
    for (starts, policy, path, message, code) in [
        (
            2,
            SERVING.replace("services", "# services"),
            None,
            "south refused: service disk: this agent's policy does not allow starting programs of service kind iscsi (add \"iscsi\" to `services`",
            1,
        ),
        (
            3,
            SERVING.into(),
            Some("/nowhere"),
            "agent north refused: service disk: iscsi-perf is not installed (on that host: apt-get install libiscsi-bin",
            4,
        ),
    ] {
        drop(std::mem::take(&mut agents));
        fs::write(fleet.folder.join("policy.toml"), policy).unwrap();
        agents.extend((0..SITES.len()).map(|index| fleet.agent_with(index, path)));
        // Earlier states may be those of the previous agents.
        let log = || fleet.log("hub.log");
        let is_connected = |agent: &str| log().matches(&format!("agent {agent} connected")).count() == starts;
        assert!(within(LIMIT, || SITES.into_iter().all(is_connected)), "{}", log());
        fleet.wait_for_all("idle");
        let (exit, printed) = run(SERVICES, "refused");
        assert!(exit == Some(code) && printed.contains(message), "{exit:?}: {printed}");
        if path.is_some() {
            // The controller updates its view of the agents once a second.
            let printed = || output_text(&fleet.at_hub(&["fleet", "doctor"]));
            let missing = "programs of service ftp are missing; on its host run `apt-get install curl`";
            assert!(within(LIMIT, || printed().contains(missing)), "{}", printed());
        }
    }
    let daemons = "[service.core]\nprogram = \"frr\"\ncore = [\"a\"]\nedges = { b = 65001 }\n";
    let routers = SERVICES.replace("[node.a]", "[node.a]\nkind = \"router\"");
    let (code, printed) = run(&format!("{routers}{daemons}"), "frr");
    assert!(code == Some(2), "{printed}");
}

fn services_end_with_their_controller_or_agent() {
    let fleet = sites("services-lost");
    let mut hub = fleet.serve();
    let mut agents = fleet.join_all(&["site", "site"]);
    let [north, south] = &fleet.hosts[..] else { unreachable!("two names") };
    let start = |out: &str| {
        let arguments =
            ["run", "services.toml", "--on", "live", "--out", out, "--set", "scenario.duration=50 s"];
        let run = fleet.start(&fleet.hub, "run.log", &arguments);
        let is_running = || {
            programs_in(south).contains(&"tgtd".to_owned())
                && programs_in(north).contains(&"iscsi-perf".to_owned())
        };
        assert!(within(LIMIT, is_running), "{}{}", fleet.log("run.log"), fleet.logs());
        run
    };
    let has_ended = |host: &Namespace| within(LIMIT, || programs_in(host).is_empty());

    let run = start("one");
    // Programs have no privileges.
    let server = fs::read_dir("/proc").unwrap().flatten().find(|entry| {
        let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let number = entry.file_name().to_str().and_then(|number| number.parse().ok());
        let own = number.and_then(|number| Namespace::of_process(number).ok()?.number().ok());
        own == Some(south.number().unwrap()) && status.starts_with("Name:\ttgtd")
    });
    let status = fs::read_to_string(server.unwrap().path().join("status")).unwrap();
    for expected in ["Uid:\t65534\t65534", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"] {
        assert!(status.contains(expected), "{status}");
    }
    hub.signal("-KILL");
    drop(hub);
    assert!(has_ended(south) && has_ended(north), "{}", fleet.logs());
    drop(run.output());
    for agent in SITES {
        assert!(within(LIMIT, || left_by_services(&fleet, agent).is_empty()), "{agent}");
    }

    hub = fleet.serve_again();
    fleet.wait_for_all("idle");
    let run = start("two");
    for agent in &mut agents {
        agent.signal("-KILL");
    }
    drop(agents);
    assert!(has_ended(south) && has_ended(north), "{}", fleet.logs());
    drop(run.output());
    // The files are removed by hand, or when the agent starts again.
    assert!(SITES.iter().all(|agent| !left_by_services(&fleet, agent).is_empty()));
    let cleaned = fleet.succeed(&["clean", "--state", "north"]);
    assert!(cleaned.contains("removed service files in north"), "{cleaned}");
    assert!(!fleet.folder.join("north/services").exists());
    let _agents = (fleet.agent(0), fleet.agent(1));
    assert!(within(LIMIT, || left_by_services(&fleet, "south").is_empty()), "{}", fleet.logs());
    fleet.wait_for_all("idle");
    drop(hub);
}

netstage_harness::tests![
    agents_run_routers_observe_tcp_and_receive_multicast,
    a_router_runs_with_the_privileges_of_its_drop_in,
    a_run_on_agents_sends_partial_outcomes,
    a_router_ends_with_its_controller,
    services_run_between_hosts_with_a_policy_for_them,
    services_end_with_their_controller_or_agent,
];
