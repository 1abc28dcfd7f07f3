//! Tests of a LAN: address resolution and broadcast. Comparison of a LAN exchange with MPLS-IX: broadcast received by
//! members, and configuration changes when it grows.

use crate::support::routing::{assert_met, namespace, router_namespace, run};
use crate::support::{TemporaryFolder, TestProcess, within};
use netstage_harness::{needs, skip};
use netstage_host::netns::Namespace;
use netstage_host::ports::FramePort as _;
use netstage_host::ports::af_packet::{AfPacket, AfPacketOptions};
use netstage_scenario::parse;
use netstage_stage::topology::services::frr::configurations;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Broadcast address.
const BROADCAST: [u8; 6] = [0xff; 6];
const EXCHANGE: &str = include_str!("../../../../scenarios/papers/mpls-ix/exchange.toml");

/// Scenario of three hosts on a LAN: nodes 0 to 2 on links 0 to 2.
const SHARED: &str = "scenarios/examples/lan.toml";

fn shipped(scenario: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(scenario)
}

fn broadcast_reaches_all_hosts() {
    needs::emulation();
    const FRAMES: usize = 50;
    let folder = TemporaryFolder::new("lan");
    let scenario = shipped(SHARED);
    let mut running =
        TestProcess::new(run(&scenario, &folder.join("out"), &["--on", "emu"]).spawn().unwrap());
    let process = running.child().id();
    // The hosts on the LAN have agents, in whose namespaces frames are sent if they can be entered.
    let found = || {
        [(0, "link0"), (1, "link1"), (2, "link2")].map(|(node, link)| Some((namespace(process, node)?, link)))
    };
    within(TIMEOUT, || running.child().try_wait().unwrap().is_some() || found().iter().all(Option::is_some));
    let ports: Vec<AfPacket> =
        found().into_iter().flatten().filter_map(|(namespace, link)| port(&namespace, link)).collect();
    let Ok([mut sender, receivers @ ..]) = <[AfPacket; 3]>::try_from(ports) else {
        assert_met(&running.output());
        skip("needs to enter the namespaces of agents");
    };
    let frame = [&BROADCAST[..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[7; 46]].concat();
    for _ in 0..FRAMES {
        assert!(sender.send(&frame).unwrap() && sender.flush().unwrap() == 0);
    }
    for mut receiver in receivers {
        let mut count = 0;
        let all = within(Duration::from_secs(5), || {
            receiver.receive(1_000, &mut |received| count += usize::from(received.frame == frame)).unwrap();
            count == FRAMES
        });
        assert!(all, "{count} of {FRAMES}");
    }
    drop(sender);
    assert_met(&running.output());
}

fn port(namespace: &Namespace, link: &str) -> Option<AfPacket> {
    AfPacket::open(namespace, link, AfPacketOptions::default()).ok()
}

fn the_lan_exchange_meets_its_expectations() {
    needs::namespaces();
    let folder = TemporaryFolder::new("lan-exchange");
    let scenario = shipped("scenarios/papers/mpls-ix/lan-ix.toml");
    let output = run(&scenario, &folder.join("out"), &["--on", "emu"]).output().unwrap();
    if output.status.code() == Some(4) {
        skip(String::from_utf8_lossy(&output.stderr));
    }
    assert_met(&output);
}

/// Returns a LAN exchange with this number of members. The names of later members sort last. Node 1 is the edge of the
/// first member.
fn lan(members: usize) -> String {
    let mut text = r#"
[scenario]
title = "A LAN exchange"
duration = "30 s"
[defaults.link]
rate = "100 Mbit/s"
delay = "1 ms"
[defaults.flow]
transport = "udp"
traffic = { model = "cbr", rate = "64 kbit/s", packet = "160 B" }
[flow.call]
from = "n01-host"
to = "n02-host"
[node.ix]
kind = "lan"
arp_timeout = "2 s"
[service.exchange]
program = "frr"
dead = "4 s"
patience = "120 s"
"#
    .to_owned();
    let edges: Vec<String> =
        (1..=members).map(|member| format!("n{member:02}-edge = {}", 65_000 + member)).collect();
    text += &format!("edges = {{ {} }}\n", edges.join(", "));
    for member in 1..=members {
        let schedule = if member == members { "schedule = [{ at = \"5 s\", up = false }]\n" } else { "" };
        text += &format!(
            "[node.n{member:02}-host]\n[node.n{member:02}-edge]\nkind = \"router\"\n\
             [link.n{member:02}-host]\nends = [\"n{member:02}-host\", \"n{member:02}-edge\"]\n\
             [link.n{member:02}-lan]\nends = [\"n{member:02}-edge\", \"ix\"]\n{schedule}"
        );
    }
    text
}

/// Returns the exchange with an additional member, whose names sort last.
fn with_a_member(exchange: &str) -> String {
    let edges = exchange.replace("edge20 = 65020\n", "edge20 = 65020\nx-edge = 65021\n");
    assert_ne!(edges, exchange);
    edges
        + "\n[node.x-host]\n[node.x-edge]\nkind = \"router\"\n[link.x-host]\nends = [\"x-host\", \"x-edge\"]\n\
           [link.x-site]\nends = [\"x-edge\", \"kochi\"]\n"
}

/// Returns the exchange with an additional site, connected to two others.
fn with_a_site(exchange: &str) -> String {
    let core = exchange.replace("\"toyama\", \"kochi\"]", "\"toyama\", \"kochi\", \"x-site\"]");
    assert_ne!(core, exchange);
    core + "\n[node.x-site]\nkind = \"router\"\n[link.x-one]\nends = [\"x-site\", \"kochi\"]\n\
            [link.x-two]\nends = [\"x-site\", \"tokyo-a\"]\n"
}

/// Configuration changes of existing routers when an exchange grows.
#[derive(Debug, PartialEq, Eq)]
struct ExchangeGrowth {
    routers: usize,
    /// Routers with changed configurations.
    changed: usize,
    /// Added and removed lines.
    lines: usize,
    /// Routers with a changed address or prefix length.
    renumbered: usize,
}

fn growth(before: &str, after: &str) -> ExchangeGrowth {
    let files_of = |text: &str| {
        let scenario = parse("growth.toml", text, None, &Default::default()).unwrap();
        configurations(&scenario.cells[0].plan).unwrap()
    };
    let (before, after) = (files_of(before), files_of(after));
    let mut growth = ExchangeGrowth { routers: before.len(), changed: 0, lines: 0, renumbered: 0 };
    for (name, files) in &before {
        let lines: usize = files.iter().map(|(file, text)| differing(text, &after[name][file])).sum();
        growth.changed += usize::from(lines > 0);
        growth.lines += lines;
        let is_unchanged = files["addresses"]
            .lines()
            .all(|line| after[name]["addresses"].lines().any(|other| other == line));
        growth.renumbered += usize::from(!is_unchanged);
    }
    growth
}

/// Counts the lines that only one of the texts contains.
fn differing(before: &str, after: &str) -> usize {
    let count = |text: &str| {
        let mut counts = BTreeMap::<String, isize>::new();
        text.lines().for_each(|line| *counts.entry(line.to_owned()).or_default() += 1);
        counts
    };
    let (before, after) = (count(before), count(after));
    let lines: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    lines
        .into_iter()
        .map(|line| before.get(line).unwrap_or(&0).abs_diff(*after.get(line).unwrap_or(&0)))
        .sum()
}

fn growth_renumbers_a_lan_exchange_but_not_an_mpls_exchange() {
    // The exchange of the paper has no bypass LSPs.
    let plain = EXCHANGE.replace("bfd = \"50 ms\"\n", "");
    assert_ne!(plain, EXCHANGE);
    let table = [
        ("LAN, member 21 of max 30", growth(&lan(20), &lan(21))),
        ("LAN, member 31, which exceeds the prefix", growth(&lan(30), &lan(31))),
        ("MPLS-IX, member 21", growth(&plain, &with_a_member(&plain))),
        ("MPLS-IX, a seventh site", growth(&plain, &with_a_site(&plain))),
        ("MPLS-IX with bypass LSPs, a seventh site", growth(EXCHANGE, &with_a_site(EXCHANGE))),
    ];
    println!("| | routers | changed | lines | renumbered |\n| :-- | --: | --: | --: | --: |");
    for (change, ExchangeGrowth { routers, changed, lines, renumbered }) in &table {
        println!("| {change} | {routers} | {changed} | {lines} | {renumbered} |");
    }
    let [within_prefix, beyond_prefix, member, site, protected] = table.map(|(_, growth)| growth);
    assert_eq!((within_prefix.renumbered, member.renumbered, site.renumbered), (0, 0, 0));
    assert_eq!(beyond_prefix.renumbered, beyond_prefix.routers);
    // The sites connected to the new one.
    assert_eq!(site.changed, 2);
    // All core routers have LDP sessions for remote alternates, the others a targeted one.
    assert_eq!((protected.changed, protected.renumbered), (6, 0));
}

/// Broadcast frames that a host receives and that are not addressed to it.
#[derive(Clone, Copy, Debug, Default)]
struct ReceivedBroadcast {
    frames: u64,
    bytes: u64,
}

/// Returns the bytes of a frame on Ethernet, with padding to 60 bytes and the check sequence.
fn on_the_wire(frame: &[u8]) -> u64 {
    frame.len().max(60) as u64 + 4
}

impl ReceivedBroadcast {
    /// Counts received broadcast frames, except ARP requests for `own`.
    fn listen(&mut self, port: &mut AfPacket, own: Ipv4Addr) {
        let count = &mut |frame: &[u8]| {
            // An ARP request ends with the target address (RFC 826).
            let target = frame.get(38..42).filter(|_| frame[12..14] == [0x08, 0x06]);
            if frame.starts_with(&BROADCAST) && target != Some(&own.octets()) {
                self.frames += 1;
                self.bytes += on_the_wire(frame);
            }
        };
        while port.receive(1_000, &mut |received| count(received.frame)).unwrap() > 0 {}
    }
}

/// Prints the broadcast that each member receives for different numbers of members.
fn broadcast_increases_with_the_number_of_members() {
    needs::namespaces();
    println!(
        "| members | frames during session setup | frames/s afterwards | frames/s without one member | bytes/s |"
    );
    let mut last = 0.0;
    for members in [5, 10, 20] {
        let folder = TemporaryFolder::new(&format!("lan-{members}"));
        let scenario = folder.join("lan.toml");
        std::fs::write(&scenario, lan(members)).unwrap();
        let mut running =
            TestProcess::new(run(&scenario, &folder.join("out"), &["--on", "emu"]).spawn().unwrap());
        let process = running.child().id();
        // The edge of the first member with its link to the LAN, then the member's host.
        assert!(within(TIMEOUT, || router_namespace(process, 1).is_some()));
        let mut port =
            AfPacket::open(&router_namespace(process, 1).unwrap(), "link1", AfPacketOptions::default())
                .unwrap();
        let own = Ipv4Addr::new(100, 96, 0, 1);
        let [mut before, mut early, mut late] = [ReceivedBroadcast::default(); 3];
        assert!(within(TIMEOUT, || {
            before.listen(&mut port, own);
            namespace(process, 2).is_some()
        }));
        std::thread::sleep(Duration::from_secs(4));
        early.listen(&mut port, own);
        // The peers of the removed member end their sessions, and their ARP entries expire.
        std::thread::sleep(Duration::from_secs(15));
        ReceivedBroadcast::default().listen(&mut port, own);
        std::thread::sleep(Duration::from_secs(10));
        late.listen(&mut port, own);
        assert_met(&running.output());
        let (idle, removed) = (early.frames as f64 / 4.0, late.frames as f64 / 10.0);
        println!("| {members} | {} | {idle:.1} | {removed:.1} | {} |", before.frames, late.bytes / 10);
        assert!(removed > last, "all remaining members send ARP requests");
        last = removed;
    }
}

netstage_harness::tests![
    broadcast_reaches_all_hosts,
    the_lan_exchange_meets_its_expectations,
    growth_renumbers_a_lan_exchange_but_not_an_mpls_exchange,
    #[ignore = "takes three minutes"]
    broadcast_increases_with_the_number_of_members,
];
