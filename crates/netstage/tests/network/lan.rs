//! A LAN: those on it find each other, what one sends to all reaches all; and the exchange that is one, beside
//! MPLS-IX: what its members hear that is not for them, and what growth changes.

use crate::support::routing::{assert_met, namespace, router_namespace, run};
use crate::support::{Folder, Process, within};
use netstage_harness::{needs, skip};
use netstage_host::netns::Namespace;
use netstage_host::ports::Port as _;
use netstage_host::ports::af_packet::{AfPacket, Options};
use netstage_scenario::parse;
use netstage_stage::topology::services::frr::configurations;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
/// The station that is all of them.
const BROADCAST: [u8; 6] = [0xff; 6];
const EXCHANGE: &str = include_str!("../../../../scenarios/papers/mpls-ix/exchange.toml");

/// Three hosts on a LAN, which are nodes 0 to 2, by links of these numbers.
const SHARED: &str = "scenarios/examples/lan.toml";

fn shipped(scenario: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(scenario)
}

fn what_one_sends_to_all_reaches_all() {
    needs::emulation();
    const FRAMES: usize = 50;
    let folder = Folder::new("lan");
    let scenario = shipped(SHARED);
    let mut running = Process::new(run(&scenario, &folder.join("out"), &["--on", "emu"]).spawn().unwrap());
    let process = running.child().id();
    // Where namespaces can be entered, some of those on the LAN have agents.
    let found = || {
        [(0, "link0"), (1, "link1"), (2, "link2")].map(|(node, link)| Some((namespace(process, node)?, link)))
    };
    within(PATIENCE, || running.child().try_wait().unwrap().is_some() || found().iter().all(Option::is_some));
    let ports: Vec<AfPacket> =
        found().into_iter().flatten().filter_map(|(namespace, link)| port(&namespace, link)).collect();
    let Ok([mut one, others @ ..]) = <[AfPacket; 3]>::try_from(ports) else {
        assert_met(&running.output());
        skip("needs to enter the namespaces of agents");
    };
    let frame = [&BROADCAST[..], &[2, 0, 0, 0, 0, 9], &[0x88, 0xb5], &[7; 46]].concat();
    for _ in 0..FRAMES {
        assert!(one.send(&frame).unwrap() && one.flush().unwrap() == 0);
    }
    for mut other in others {
        let mut heard = 0;
        let all = within(Duration::from_secs(5), || {
            other.receive(1_000, &mut |received| heard += usize::from(received.frame == frame)).unwrap();
            heard == FRAMES
        });
        assert!(all, "{heard} of {FRAMES}");
    }
    drop(one);
    assert_met(&running.output());
}

fn port(namespace: &Namespace, link: &str) -> Option<AfPacket> {
    AfPacket::open(namespace, link, Options::default()).ok()
}

fn the_exchange_it_replaces_is_as_it_says() {
    needs::namespaces();
    let folder = Folder::new("lan-exchange");
    let scenario = shipped("scenarios/papers/mpls-ix/lan-ix.toml");
    let output = run(&scenario, &folder.join("out"), &["--on", "emu"]).output().unwrap();
    if output.status.code() == Some(4) {
        skip(String::from_utf8_lossy(&output.stderr));
    }
    assert_met(&output);
}

/// A LAN exchange of so many members, whose last ones by name are its latest. The first one's edge is node 1.
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
        let gone = if member == members { "schedule = [{ at = \"5 s\", up = false }]\n" } else { "" };
        text += &format!(
            "[node.n{member:02}-host]\n[node.n{member:02}-edge]\nkind = \"router\"\n\
             [link.n{member:02}-host]\nends = [\"n{member:02}-host\", \"n{member:02}-edge\"]\n\
             [link.n{member:02}-lan]\nends = [\"n{member:02}-edge\", \"ix\"]\n{gone}"
        );
    }
    text
}

/// The exchange with one member more, whose names come last.
fn with_a_member(exchange: &str) -> String {
    let edges = exchange.replace("edge20 = 65020\n", "edge20 = 65020\nx-edge = 65021\n");
    assert_ne!(edges, exchange);
    edges
        + "\n[node.x-host]\n[node.x-edge]\nkind = \"router\"\n[link.x-host]\nends = [\"x-host\", \"x-edge\"]\n\
           [link.x-site]\nends = [\"x-edge\", \"kochi\"]\n"
}

/// The exchange with one site more, joined to two others.
fn with_a_site(exchange: &str) -> String {
    let core = exchange.replace("\"toyama\", \"kochi\"]", "\"toyama\", \"kochi\", \"x-site\"]");
    assert_ne!(core, exchange);
    core + "\n[node.x-site]\nkind = \"router\"\n[link.x-one]\nends = [\"x-site\", \"kochi\"]\n\
            [link.x-two]\nends = [\"x-site\", \"tokyo-a\"]\n"
}

/// What growth changes at routers that were there before.
#[derive(Debug, PartialEq, Eq)]
struct Growth {
    routers: usize,
    /// Those with other lines than before, and how many: gone and new ones.
    changed: usize,
    lines: usize,
    /// Those one of whose addresses, or its mask, is another one.
    renumbered: usize,
}

fn growth(before: &str, after: &str) -> Growth {
    let told = |text: &str| {
        let scenario = parse("growth.toml", text, None, &Default::default()).unwrap();
        configurations(&scenario.cells[0].plan).unwrap()
    };
    let (before, after) = (told(before), told(after));
    let mut growth = Growth { routers: before.len(), changed: 0, lines: 0, renumbered: 0 };
    for (name, files) in &before {
        let lines: usize = files.iter().map(|(file, text)| differing(text, &after[name][file])).sum();
        growth.changed += usize::from(lines > 0);
        growth.lines += lines;
        let kept = files["addresses"]
            .lines()
            .all(|line| after[name]["addresses"].lines().any(|other| other == line));
        growth.renumbered += usize::from(!kept);
    }
    growth
}

/// Lines one text has and the other has not.
fn differing(one: &str, other: &str) -> usize {
    let count = |text: &str| {
        let mut counts = BTreeMap::<String, isize>::new();
        text.lines().for_each(|line| *counts.entry(line.to_owned()).or_default() += 1);
        counts
    };
    let (one, other) = (count(one), count(other));
    let lines: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    lines.into_iter().map(|line| one.get(line).unwrap_or(&0).abs_diff(*other.get(line).unwrap_or(&0))).sum()
}

fn growth_renumbers_a_lan_and_no_mpls_exchange() {
    let table = [
        ("LAN, member 21 of at most 30", growth(&lan(20), &lan(21))),
        ("LAN, member 31, which the prefix has no room for", growth(&lan(30), &lan(31))),
        ("MPLS-IX, member 21", growth(EXCHANGE, &with_a_member(EXCHANGE))),
        ("MPLS-IX, a seventh site", growth(EXCHANGE, &with_a_site(EXCHANGE))),
    ];
    println!("| | routers | changed | lines | renumbered |\n| :-- | --: | --: | --: | --: |");
    for (what, Growth { routers, changed, lines, renumbered }) in &table {
        println!("| {what} | {routers} | {changed} | {lines} | {renumbered} |");
    }
    let [room, full, member, site] = table.map(|(_, growth)| growth);
    assert_eq!((room.renumbered, member.renumbered, site.renumbered), (0, 0, 0));
    assert_eq!(full.renumbered, full.routers);
    // Those it is joined to.
    assert_eq!(site.changed, 2);
}

/// What a station of a LAN hears that is for all, and is not for it.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    frames: u64,
    bytes: u64,
}

/// Bytes of a frame on Ethernet: at least 60, and the check sequence.
fn on_the_wire(frame: &[u8]) -> u64 {
    frame.len().max(60) as u64 + 4
}

impl Heard {
    /// Takes what has come; questions for `own` count not.
    fn listen(&mut self, port: &mut AfPacket, own: Ipv4Addr) {
        let count = &mut |frame: &[u8]| {
            // A question of ARP (RFC 826) ends with whom it is about.
            let asked = frame.get(38..42).filter(|_| frame[12..14] == [0x08, 0x06]);
            if frame.starts_with(&BROADCAST) && asked != Some(&own.octets()) {
                self.frames += 1;
                self.bytes += on_the_wire(frame);
            }
        };
        while port.receive(1_000, &mut |received| count(received.frame)).unwrap() > 0 {}
    }
}

/// Prints how much of what is for others each member hears, by how many members there are.
fn broadcast_grows_with_the_members() {
    needs::namespaces();
    println!(
        "| members | while sessions come up, frames | then, frames/s | one is gone, frames/s | bytes/s |"
    );
    let mut last = 0.0;
    for members in [5, 10, 20] {
        let folder = Folder::new(&format!("lan-{members}"));
        let scenario = folder.join("lan.toml");
        std::fs::write(&scenario, lan(members)).unwrap();
        let mut running =
            Process::new(run(&scenario, &folder.join("out"), &["--on", "emu"]).spawn().unwrap());
        let process = running.child().id();
        // The first member's edge, and its link to the LAN; its host.
        assert!(within(PATIENCE, || router_namespace(process, 1).is_some()));
        let mut port =
            AfPacket::open(&router_namespace(process, 1).unwrap(), "link1", Options::default()).unwrap();
        let own = Ipv4Addr::new(100, 96, 0, 1);
        let [mut before, mut early, mut late] = [Heard::default(); 3];
        assert!(within(PATIENCE, || {
            before.listen(&mut port, own);
            namespace(process, 2).is_some()
        }));
        std::thread::sleep(Duration::from_secs(4));
        early.listen(&mut port, own);
        // A gone member's peers give it up, and what they know of it grows old.
        std::thread::sleep(Duration::from_secs(15));
        Heard::default().listen(&mut port, own);
        std::thread::sleep(Duration::from_secs(10));
        late.listen(&mut port, own);
        assert_met(&running.output());
        let (idle, asking) = (early.frames as f64 / 4.0, late.frames as f64 / 10.0);
        println!("| {members} | {} | {idle:.1} | {asking:.1} | {} |", before.frames, late.bytes / 10);
        assert!(asking > last, "every member that is there asks");
        last = asking;
    }
}

netstage_harness::tests![
    what_one_sends_to_all_reaches_all,
    the_exchange_it_replaces_is_as_it_says,
    growth_renumbers_a_lan_and_no_mpls_exchange,
    #[ignore = "takes three minutes"]
    broadcast_grows_with_the_members,
];
