//! What agents of a fleet are beside hosts of flows: provider edge routers, watchers of TCP, receivers of
//! multicast, ends of services. Two customers, and two routers between them, in namespaces.

use crate::support::fleet::{Fleet, LIMIT};
use crate::support::network::{address, default_route, join};
use crate::support::{mean, said, within};
use netstage_agent::fleet::Fleet as Folder;
use netstage_harness::scenario::network;
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use netstage_scenario::outcome::{Metric, Outcome};
use netstage_scenario::{Options, parse};
use netstage_stage::hosts::Means;
use netstage_study::Performer;
use netstage_study::stage::live;
use std::fs;
use std::sync::Mutex;

const AGENTS: [&str; 4] = ["west-pe", "east-pe", "office", "factory"];

const POLICY: &str = r#"
[policy]
controllers = ["lab"]
longest = "1 min"
destinations = ["10.0.0.0/8", "239.192.0.0/14"]
interfaces = ["wan", "customers", "data"]
routers = true
tcp_events = true
"#;

/// Routers of a VPN, whose flows are watched.
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

/// The routers' hosts as hosts, on the line between them.
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

/// The kernel's `arp_ignore` of the customers' interface: 8 as long as a router has it.
fn arp_ignore(fleet: &Fleet) -> String {
    fleet.hosts[0].sysctl_value("net/ipv4/conf/customers/arp_ignore").unwrap()
}

fn agents_are_routers_watch_tcp_and_receive_multicast() {
    let fleet = fleet("placed");
    let _hub = fleet.serve();
    let _agents = fleet.join_all(&["pe", "pe", "site", "site"]);
    let record = fleet.run_live("vpn.toml", "vpn");
    let mean = |metric: &str, subject: &str| mean(&record, metric, subject);
    // What the routers decided, and took.
    assert!(mean("vpn.window", "gold") >= 1.0);
    assert!(mean("pe.memory", "west") > 1e6 && mean("pe.memory", "east") > 1e6);
    // Both flows went through them, by what their receivers tell.
    let [file, voice] = ["file", "voice"].map(|flow| mean("flow.throughput", flow));
    assert!(file > 1e5 && voice > 1e5, "{file} {voice}");
    let vpn = mean("vpn.throughput", "gold");
    assert!(vpn > file + voice && vpn < 1.2 * (file + voice), "{vpn} of {file} and {voice}");
    assert!(mean("flow.delay", "voice") > 0.0);
    // The sender's kernel told of its windows.
    assert!(mean("flow.window.peak", "file") >= 1.0);
    assert_eq!(arp_ignore(&fleet), "0", "the router's interface is the kernel's again");
    let log = fleet.log("west-pe.log");
    assert!(log.contains("router on wan, customers") && log.contains("accepted"), "{log}");

    let record = fleet.run_live("television.toml", "tv");
    assert_eq!(record["expectations"][0]["pass"], true, "{record:#}");

    // What a placement lacks is told before anybody is asked.
    let run = |name: &str, text: String| {
        fs::write(fleet.folder.join("wrong.toml"), text).unwrap();
        let output = fleet.run_with("wrong.toml", name, &[]);
        (output.status.code(), said(&output))
    };
    let (code, told) = run("bare", vpn_scenario().replace(r#"core = "wan", office"#, "office"));
    assert!(code == Some(2) && told.contains("name it in place.west.interfaces.core"), "{told}");
    let (code, told) = run("half", vpn_scenario().replace("[place.east]\nagent", "[place.east]\nlabel"));
    assert!(code == Some(2) && told.contains("node.east: no agent has label east-pe"), "{told}");
    // And what a policy does not allow, by the agent.
    let (code, told) = run("eth0", vpn_scenario().replace("10.9.0.2\"", "192.0.2.2\""));
    assert!(code == Some(1) && told.contains("does not allow sending to 192.0.2.2"), "{told}");
}

fn a_router_needs_no_more_than_its_drop_in_gives() {
    let fleet = fleet("placed-unit");
    fs::write(fleet.folder.join("vpn.toml"), vpn_scenario().replace("tcp = \"events\"\n", "")).unwrap();
    let _hub = fleet.serve();
    let (unit, drop_in) =
        (fleet.unit("agent"), crate::support::project().join("packaging/agent-router.conf"));
    let start = |(index, name): (usize, &&str)| {
        let token = fleet.well(&["fleet", "token", name]);
        let output = fleet.join(index, token.trim());
        assert!(output.status.success(), "{}", said(&output));
        fleet.agent_as(&unit, name.ends_with("pe").then_some(&*drop_in), index)
    };
    let _agents: Vec<_> = AGENTS.iter().enumerate().map(start).collect();
    fleet.wait_for_all("idle");
    let record = fleet.run_live("vpn.toml", "vpn");
    assert_eq!(record["expectations"][0]["pass"], true, "{record:#}");
    assert_eq!(arp_ignore(&fleet), "0", "the router's interface is the kernel's again");
}

fn a_run_on_agents_is_told_as_it_happens() {
    let fleet = fleet("placed-told");
    let _hub = fleet.serve();
    let _agents = fleet.join_all(&["pe", "pe", "site", "site"]);
    let scenario = parse("vpn.toml", &vpn_scenario(), None, &Options::default()).unwrap();
    let means = Means::new(Folder::open(&fleet.folder.join("fleet")).unwrap(), &fleet.folder.join("out"));
    let stage = live(means);
    let told = Mutex::new(Vec::new());
    let performer = Performer {
        runner: &stage,
        retries: 0,
        stop: &|| false,
        doing: &|_| (),
        reached: &|_, _| (),
        so_far: Some(&|_, outcome, is_over| told.lock().unwrap().push((outcome, is_over))),
    };
    performer.perform(&scenario, (0, 1)).unwrap();
    let mut told = told.into_inner().unwrap();
    let (last, is_over) = told.pop().unwrap();
    assert!(is_over && last.bins == 30 && !told.is_empty());
    assert!(told.is_sorted_by_key(|(outcome, _)| outcome.bins), "bins come in order");
    let (early, _) = told.last().unwrap();
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
        let series = early.get(metric, subject).unwrap_or_else(|| panic!("no {metric:?} while it runs"));
        assert_eq!(series.values.len(), early.bins);
        let known = series.values.iter().filter(|value| value.is_finite()).count();
        assert!(known > 0, "{metric:?}: {:?}", series.values);
    }
    // What the receivers had told of bins, they reported in the end; some bytes come late to their bin.
    let of = |outcome: &Outcome| outcome.get(Metric::FlowThroughput, "voice").unwrap().values.clone();
    let (early, late) = (of(early), of(&last));
    assert!(early.iter().zip(&late).filter(|(early, late)| early == late).count() * 2 > early.len());
}

fn a_router_ends_with_its_controller() {
    let fleet = fleet("placed-lost");
    let mut hub = fleet.serve();
    let _agents = fleet.join_all(&["pe", "pe", "site", "site"]);
    let has_begun = || arp_ignore(&fleet) == "8";
    let sends = || fleet.counted("office/spool/a-2.bins") > 3;
    // While it is prepared, and while it runs.
    let moments: [(&str, &dyn Fn() -> bool); 2] = [("one", &has_begun), ("two", &sends)];
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

/// What is allowed at both ends of the services.
const SERVING: &str = r#"
[policy]
controllers = ["lab"]
destinations = ["10.9.0.0/24"]
interfaces = ["wan"]
services = ["ftp", "iscsi"]
tcp_events = true
"#;

/// A file and a disk of one site, for the other.
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

/// Names of the programs in a namespace, agents apart.
fn programs_in(host: &Namespace) -> Vec<String> {
    let own = Some(host.number().unwrap());
    let process = |entry: fs::DirEntry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        let is_there = Namespace::of_process(number).ok().and_then(|there| there.number().ok()) == own;
        (is_there && name.trim() != "netstage").then(|| name.trim().to_owned())
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(process).collect()
}

/// Files and folders of an agent's services.
fn left_by_services(fleet: &Fleet, agent: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir(fleet.folder.join(agent).join("services")) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name != "lock").collect()
}

fn services_run_between_hosts_that_allow_them() {
    let fleet = sites("services");
    let _hub = fleet.serve();
    let mut agents = fleet.join_all(&["site", "site"]);
    let told = said(&fleet.at_hub(&["fleet", "doctor"]));
    assert!(told.contains("north: can be an end of services: ftp, iscsi"), "{told}");
    let record = fleet.run_live("services.toml", "out");
    let mean = |metric: &str, subject: &str| mean(&record, metric, subject);
    assert_eq!(mean("app.transactions", "file"), 1.0);
    assert!((mean("flow.throughput", "file") * 3.0 - 16e6).abs() < 1.0, "all of the file, and no more");
    assert!(mean("flow.throughput", "disk") > 1e6 && mean("flow.throughput", "voice") > 1e4);
    // The servers' kernel told of their windows.
    for service in ["file[backward]", "disk[backward]"] {
        assert!(mean("flow.window.peak", service) >= 1.0);
    }
    let log = fleet.log("south.log");
    assert!(log.contains("iscsi server, ftp server") && log.contains("accepted"), "{log}");
    for (host, agent) in fleet.hosts.iter().zip(SITES) {
        assert_eq!((programs_in(host), left_by_services(&fleet, agent)), (vec![], vec![]), "{agent}");
    }

    let run = |scenario: &str, name: &str| {
        fs::write(fleet.folder.join("other.toml"), scenario).unwrap();
        let output = fleet.run_with("other.toml", name, &[]);
        (output.status.code(), said(&output))
    };
    // Nothing is started that a policy does not name, or that is not installed: told by its agent, before
    // anything begins.
    for (starts, policy, path, asked, code) in [
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
        // Before that, what the controller tells may be of the agents before.
        let log = || fleet.log("hub.log");
        let is_back = |agent: &str| log().matches(&format!("agent {agent} connected")).count() == starts;
        assert!(within(LIMIT, || SITES.into_iter().all(is_back)), "{}", log());
        fleet.wait_for_all("idle");
        let (exit, told) = run(SERVICES, "refused");
        assert!(exit == Some(code) && told.contains(asked), "{exit:?}: {told}");
        if path.is_some() {
            // The controller looks at its agents once a second.
            let told = || said(&fleet.at_hub(&["fleet", "doctor"]));
            let lacks = "its policy allows ftp, which lacks programs: apt-get install curl";
            assert!(within(LIMIT, || told().contains(lacks)), "{}", told());
        }
    }
    let daemons = "[service.core]\nprogram = \"frr\"\ncore = [\"a\"]\nedges = { b = 65001 }\n";
    let routers = SERVICES.replace("[node.a]", "[node.a]\nkind = \"router\"");
    let (code, told) = run(&format!("{routers}{daemons}"), "frr");
    assert!(code == Some(2), "{told}");
}

fn nothing_of_a_service_outlives_its_controller_or_its_agent() {
    let fleet = sites("services-lost");
    let mut hub = fleet.serve();
    let mut agents = fleet.join_all(&["site", "site"]);
    let [north, south] = &fleet.hosts[..] else { unreachable!("two names") };
    let begin = |out: &str| {
        let arguments =
            ["run", "services.toml", "--on", "live", "--out", out, "--set", "scenario.duration=50 s"];
        let run = fleet.start(&fleet.hub, "run.log", &arguments);
        let is_under_way = || {
            programs_in(south).contains(&"tgtd".to_owned())
                && programs_in(north).contains(&"iscsi-perf".to_owned())
        };
        assert!(within(LIMIT, is_under_way), "{}{}", fleet.log("run.log"), fleet.logs());
        run
    };
    let nothing = |host: &Namespace| within(LIMIT, || programs_in(host).is_empty());

    let run = begin("one");
    // Programs have no more rights than they need.
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
    assert!(nothing(south) && nothing(north), "{}", fleet.logs());
    drop(run.output());
    for agent in SITES {
        assert!(within(LIMIT, || left_by_services(&fleet, agent).is_empty()), "{agent}");
    }

    hub = fleet.serve_again();
    fleet.wait_for_all("idle");
    let run = begin("two");
    for agent in &mut agents {
        agent.signal("-KILL");
    }
    drop(agents);
    assert!(nothing(south) && nothing(north), "{}", fleet.logs());
    drop(run.output());
    // Its files go by hand, or when the agent is back.
    assert!(SITES.iter().all(|agent| !left_by_services(&fleet, agent).is_empty()));
    let cleaned = fleet.well(&["clean", "--state", "north"]);
    assert!(cleaned.contains("removed what services left in north"), "{cleaned}");
    assert!(!fleet.folder.join("north/services").exists());
    let _agents = (fleet.agent(0), fleet.agent(1));
    assert!(within(LIMIT, || left_by_services(&fleet, "south").is_empty()), "{}", fleet.logs());
    fleet.wait_for_all("idle");
    drop(hub);
}

netstage_harness::tests![
    agents_are_routers_watch_tcp_and_receive_multicast,
    a_router_needs_no_more_than_its_drop_in_gives,
    a_run_on_agents_is_told_as_it_happens,
    a_router_ends_with_its_controller,
    services_run_between_hosts_that_allow_them,
    nothing_of_a_service_outlives_its_controller_or_its_agent,
];
