//! Tests of an MPLS exchange with routing daemons: LSPs from edge to edge, a core without routes of members, rejection
//! of foreign labels, and rerouting around a failed link.

use crate::support::routing::{assert_met, namespace, run, sockets};
use crate::support::{TemporaryFolder, TestProcess, record, text, within};
use netstage_core::rng::RandomStream;
use netstage_harness::scenario::network;
use netstage_harness::{needs, seed, skip};
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_router::daemon::state::{LabelState, RouteFilter, RouteState};
use netstage_router::daemon::{RouterState, labels, query, routes};
use std::path::{Path, PathBuf};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Three members and two sites. The core, an edge and a member are connected by Ethernet and by TUN interfaces. Nodes
/// and links are numbered in the order of their names.
const SMALL: &str = r#"
[scenario]
title = "Three members"
duration = "30 s"

[defaults.link]
rate = "50 Mbit/s"
delay = "1 ms"

[link.b]
ends = ["b", "edge-b"]
kind = "tun"
[link.core]
ends = ["core1", "core2"]
kind = "tun"
[link.edge-b]
ends = ["edge-b", "core1"]
kind = "tun"

[service.exchange]
program = "frr"
core = ["core1", "core2"]
edges = { edge-a = 65001, edge-b = 65002, edge-c = 65003 }

[defaults.flow]
transport = "udp"
traffic = { model = "cbr", rate = "64 kbit/s", packet = "160 B" }
stop = "3 s"
[flow.four]
from = "a"
to = "c"
[flow.six]
from = "c"
to = "b"
ip = "v6"
# This flow determines the duration of the run.
[flow.pulse]
from = "b"
to = "c"
traffic = { model = "cbr", rate = "1280 bit/s", packet = "160 B" }
stop = "30 s"

[expect.arrives]
metric = "flow.throughput"
subject = "four"
over = ["1 s", "3 s"]
at_least = "60 kbit/s"
"#;

/// Three sites in a ring, whose shortest link fails. OSPF alone would detect that after the end of the run.
const RING: &str = r#"
[scenario]
title = "A ring"
duration = "16 s"

[defaults.link]
rate = "50 Mbit/s"
delay = "1 ms"

[link.direct]
ends = ["core1", "core2"]
schedule = [{ at = "4 s", up = false }]

[service.exchange]
program = "frr"
core = ["core1", "core2", "core3"]
edges = { edge-a = 65001, edge-b = 65002 }
dead = "60 s"
bfd = "100 ms"
patience = "240 s"

[defaults.flow]
transport = "udp"
traffic = { model = "cbr", rate = "1.6 Mbit/s", packet = "200 B" }
[flow.there]
from = "a"
to = "b"
[flow.back]
from = "b"
to = "a"

[expect.outage]
claim = "Each flow loses the packets of less than five seconds."
metric = "flow.lost"
subject = "*"
statistic = "sum"
at_most = "10000 packets"
[expect.detour]
metric = "flow.throughput"
subject = "*"
over = ["9 s", "16 s"]
statistic = "min"
at_least = "1 Mbit/s"
"#;

const CORES: [usize; 2] = [3, 4];
const EDGES: [usize; 3] = [5, 6, 7];

fn socket(run: u32, node: usize) -> PathBuf {
    sockets(run).join(format!("routing/{node}/router.sock"))
}

fn state(run: u32, node: usize) -> RouterState {
    query(&socket(run, node)).unwrap_or_default()
}

fn shown_routes(run: u32, node: usize) -> Vec<RouteState> {
    let mut found = Vec::new();
    let all = routes(&socket(run, node), &RouteFilter::default(), &mut |route| {
        found.push(route);
        Ok(())
    });
    all.map(|()| found).unwrap()
}

fn shown_labels(run: u32, node: usize) -> Vec<LabelState> {
    let mut found = Vec::new();
    let all = labels(&socket(run, node), None, &mut |label| {
        found.push(label);
        Ok(())
    });
    all.map(|()| found).unwrap()
}

fn counted(state: &RouterState, name: &str) -> u64 {
    state
        .counters
        .iter()
        .filter(|count| count.path == "program" && count.name == name)
        .map(|c| c.packets)
        .sum()
}

fn lsp<'a>(routes: &'a [RouteState], prefix: &str) -> Option<&'a str> {
    let route = routes.iter().find(|route| route.prefix == prefix)?;
    route.to.split_once(" push ").map(|(_, labels)| labels)
}

/// Returns a member's frame. A TUN interface carries the part after the addresses.
fn frame(to: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &[0x02, 0x6e, 0, 0, 0, 0], &kind.to_be_bytes(), payload].concat()
}

/// Returns a member's UDP packet without a checksum.
fn packet(member: u8, to: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, member, 2];
    bytes.extend(to);
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[10..12].copy_from_slice(&folded.to_be_bytes());
    bytes.extend([0x13, 0x88, 0x13, 0x88, 0, 8, 0, 0]);
    bytes
}

fn lsps_connect_the_edges_and_foreign_labels_are_dropped() {
    needs::namespaces();
    const FRAMES: u64 = 500;
    let folder = TemporaryFolder::new("exchange-small");
    let scenario = folder.join("small.toml");
    let nodes = [("host", "a b c"), ("router", "core1 core2 edge-a edge-b edge-c")];
    let ethernet = network(&nodes, "a:a,edge-a c:c,edge-c edge-a:edge-a,core1 edge-c:edge-c,core2");
    std::fs::write(&scenario, format!("{SMALL}{ethernet}")).unwrap();
    let mut running =
        TestProcess::new(run(&scenario, &folder.join("out"), &["--on", "emu", "--json"]).spawn().unwrap());
    let process = running.child().id();
    let is_started =
        within(TIMEOUT, || running.child().try_wait().unwrap().is_some() || namespace(process, 0).is_some());
    if namespace(process, 0).is_none() {
        let output = running.output();
        assert!(output.status.code() == Some(4) && is_started, "{}", text(&output.stderr));
        skip(text(&output.stderr));
    }

    // Members have exchanged IPv4 and IPv6 routes, each with an LSP to the other's edge.
    let edges = EDGES.map(|edge| shown_routes(process, edge));
    for (own, edge) in edges.iter().enumerate() {
        for other in (0..EDGES.len()).filter(|other| *other != own) {
            let label = lsp(edge, &format!("10.0.{}.1/32", EDGES[other]));
            assert!(label.is_some(), "{own} to {other}: {edge:?}");
            assert_eq!(lsp(edge, &format!("10.0.{other}.0/24")), label);
            assert_eq!(lsp(edge, &format!("fd6e:7374::{}/112", tail(other))), label);
        }
    }
    // The core has labels to the edges and to each other, which end with explicit null, and no routes to members.
    for core in CORES {
        assert!(!shown_routes(process, core).iter().any(|route| {
            (0..EDGES.len()).any(|member| route.prefix.starts_with(&format!("10.0.{member}.")))
                || route.prefix.starts_with("fd6e:7374::1:")
                || route.prefix.starts_with("fd6e:7374::2:")
        }));
        let labels = shown_labels(process, core);
        let ends = labels.iter().filter(|label| label.to.ends_with(" push 0")).count();
        let adjacent = if core == CORES[0] { 3 } else { 2 };
        assert_eq!((labels.len(), ends), (EDGES.len() + 1, adjacent));
    }

    // Labels and broadcasts from a member are dropped, with Ethernet and with TUN interfaces. The flows have ended when
    // the core forwards little more per second than the daemons' messages.
    let forwarded_per_second = || {
        let before = counted(&state(process, CORES[0]), "forwarded");
        std::thread::sleep(Duration::from_secs(1));
        counted(&state(process, CORES[0]), "forwarded") - before
    };
    assert!(within(TIMEOUT, || forwarded_per_second() < 25));
    for (number, edge) in EDGES.into_iter().enumerate().take(2) {
        let nodes = [edge, CORES[0]];
        let before = nodes.map(|node| state(process, node));
        let routes = shown_routes(process, edge);
        let label = lsp(&routes, "10.0.2.0/24");
        let Some(label) = label.and_then(|label| label.parse::<u32>().ok()) else {
            panic!("{routes:?}\n{}", text(&running.output().stderr));
        };
        let member = namespace(process, number).unwrap();
        let mut port = AfPacket::open(&member, &format!("link{number}"), AfPacketOptions::default()).unwrap();
        let mac = [0x02, 0x6e, 0, number as u8, 1, 0];
        let entry = (label << 12 | 1 << 8 | 64).to_be_bytes();
        let source = number as u8;
        for _ in 0..FRAMES {
            let injected = frame(mac, 0x8847, &[&entry[..], &packet(source, [10, 0, 2, 2])].concat());
            let broadcast = frame([0xff; 6], 0x0800, &packet(source, [255; 4]));
            for bytes in [injected, broadcast] {
                assert!(port.send(&bytes).unwrap() || (port.flush().is_ok() && port.send(&bytes).unwrap()));
            }
            port.flush().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let rejected =
            |state: &RouterState| counted(state, "unexpected_label") + counted(state, "unknown_label");
        let all = within(Duration::from_secs(5), || {
            rejected(&state(process, edge)) - rejected(&before[0]) == FRAMES
        });
        let after = nodes.map(|node| state(process, node));
        if !all {
            // A void run skips the test: the emulator of a busy machine loses frames on the way to the router.
            assert_met(&running.output());
            panic!("{:?}", after[0].counters);
        }
        for (before, after) in before.iter().zip(&after) {
            // Messages of the daemons are still forwarded.
            let forwarded = counted(after, "forwarded") - counted(before, "forwarded");
            assert!(forwarded < FRAMES / 4, "{forwarded} of {FRAMES}");
        }
    }
    assert_met(&running.output());
}

/// Runs a scenario in namespaces and asserts that all expectations were met. Skips the test if a program is missing.
fn emulate(scenario: &Path, folder: &TemporaryFolder) {
    let output = run(scenario, &folder.join("out"), &["--on", "emu"]).output().unwrap();
    if output.status.code() == Some(4) {
        skip(text(&output.stderr));
    }
    assert_met(&output);
}

/// OSPF, LDP and the router follow a failure that BFD detects within 300 ms. ospfd (FRR 8.4) calculates external routes,
/// which those to edges are, a second after a change of the core. The other tests on this machine delay the daemons further,
/// but far less than the 60 s of OSPF.
fn a_failed_core_link_is_bypassed_after_bfd_detects_it() {
    needs::namespaces();
    let folder = TemporaryFolder::new("exchange-bfd");
    let scenario = folder.join("ring.toml");
    let nodes = [("host", "a b"), ("router", "core1 core2 core3 edge-a edge-b")];
    let links =
        "a:a,edge-a b:b,edge-b edge-a:edge-a,core1 edge-b:edge-b,core2 left:core1,core3 right:core3,core2";
    std::fs::write(&scenario, format!("{RING}{}", network(&nodes, links))).unwrap();
    emulate(&scenario, &folder);
}

/// Returns the last groups of a node's first IPv6 address.
fn tail(node: usize) -> String {
    if node == 0 { String::new() } else { format!("{node}:0") }
}

fn the_papers_exchange_meets_its_expectations() {
    needs::namespaces();
    let folder = TemporaryFolder::new("exchange-paper");
    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/papers/mpls-ix/exchange.toml");
    let rejected = run(&scenario, &folder.join("sim"), &[]).output().unwrap();
    let stderr = text(&rejected.stderr);
    assert!(
        rejected.status.code() == Some(2)
            && stderr.contains("service.exchange")
            && stderr.contains("--on emu")
    );
    emulate(&scenario, &folder);
    // Voice waits only for the packet in transmission; the same flow without its DSCP waits for the whole queue.
    let record = record(&folder.join("out"));
    let median = |flow: &str| {
        let mut all = record["cells"][0]["distributions"].as_array().unwrap().iter();
        let found = all.find(|entry| entry["metric"] == "flow.delay" && entry["subject"] == flow).unwrap();
        found["p50"].as_f64().unwrap()
    };
    let (voice, plain) = (median("voice-to-osaka"), median("plain-to-osaka"));
    assert!(voice < plain / 2.0, "{voice} {plain}");
}

/// A core router of the paper's exchange, drawn at random, dies. The calls between the others take loop-free alternates,
/// some of them remote ones, after BFD has detected it within 150 ms. Without alternates they would wait for OSPF, which
/// calculates external routes after a second.
fn a_core_router_that_dies_costs_less_than_a_calculation_of_ospf() {
    needs::namespaces();
    const SITES: [&str; 6] = ["tokyo-a", "tokyo-b", "osaka-a", "osaka-b", "toyama", "kochi"];
    const PER_SECOND: f64 = 50.0;
    let dead = RandomStream::new(seed("exchange"), "dead").below(6) as usize;
    let paper = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/papers/mpls-ix/exchange.toml");
    let paper = std::fs::read_to_string(paper).unwrap().replace("duration = \"30 s\"", "duration = \"17 s\"");
    let mut scenario = String::new();
    for line in paper.split_once("\n[flow.").unwrap().0.lines().filter(|line| !line.starts_with("schedule")) {
        scenario += &format!("{line}\n");
        if line.starts_with("ends = ") && line.contains(&format!("\"{}\"", SITES[dead])) {
            scenario += "schedule = [{ at = \"12 s\", up = false }]\n";
        }
    }
    for from in (0..SITES.len()).filter(|site| *site != dead) {
        for to in (0..SITES.len()).filter(|site| ![from, dead].contains(site)) {
            scenario += &format!(
                "[flow.{}_{}]\nfrom = \"m{:02}\"\nto = \"m{:02}\"\n\
                 traffic = {{ model = \"cbr\", rate = \"80 kbit/s\", packet = \"200 B\" }}\n",
                SITES[from],
                SITES[to],
                from + 1,
                to + 1
            );
        }
    }
    scenario += "[expect.outage]\nmetric = \"flow.lost\"\nsubject = \"*\"\nstatistic = \"sum\"\n\
                 at_most = \"45 packets\"\n";
    let folder = TemporaryFolder::new("exchange-dead");
    let file = folder.join("dead.toml");
    std::fs::write(&file, scenario).unwrap();
    emulate(&file, &folder);
    let record = record(&folder.join("out"));
    let summary = record["cells"][0]["summary"].as_array().unwrap();
    let lost = summary.iter().filter(|entry| entry["metric"] == "flow.lost");
    let most = lost.filter_map(|entry| entry["mean"].as_f64()).fold(0.0, f64::max);
    println!(
        "{} dies: no flow was interrupted for more than {:.0} ms",
        SITES[dead],
        1e3 * (most + 1.0) / PER_SECOND
    );
}

netstage_harness::tests![
    a_core_router_that_dies_costs_less_than_a_calculation_of_ospf,
    lsps_connect_the_edges_and_foreign_labels_are_dropped,
    a_failed_core_link_is_bypassed_after_bfd_detects_it,
    the_papers_exchange_meets_its_expectations,
];
