//! Measurements between two agents of a fleet. The line is a router's token bucket in the kernel, which no fault delays.

use super::{Case, Processes, disturb};
use crate::support::TestProcess;
use crate::support::fleet::Fleet;
use crate::support::network::{address, default_route, join};
use netstage_core::rng::RandomStream;
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use std::fs;
use std::process::{Command, Output, Stdio};

/// Kinds whose truth this line has: it has no bit errors.
pub const KINDS: [&str; 12] = [
    "rfc2544-throughput",
    "loss",
    "udp",
    "tcp",
    "rfc2544-latency",
    "y1564",
    "y1564-services",
    "stamp",
    "rfc2544-frame-loss",
    "rfc6349",
    "plateau",
    "mlrsearch",
];

/// Packets for which the bucket has tokens. They compensate a late timer of the kernel.
pub const BURST: u64 = 20;

const AGENTS: [&str; 2] = ["left", "right"];

const POLICY: &str = r#"
[policy]
controllers = ["lab"]
max_duration = "10 min"
destinations = ["10.1.0.0/16"]
interfaces = ["data"]
"#;

const PLACES: &str = r#"
[place]
a = "left"
b = "right"
"#;

/// Joins the hosts by a router with the case's line.
fn line(case: &Case, fleet: &Fleet) -> Namespace {
    let core = Namespace::new().unwrap();
    core.sysctl("net/ipv4/ip_forward", "1").unwrap();
    for (number, host) in (1..).zip(&fleet.hosts) {
        let far = format!("d{number}");
        join((host, "data", 30 + number), (&core, &far, 40 + number));
        let mut links = Netlink::open(host).unwrap();
        links.add_address("data", address(&format!("10.1.{number}.2")), 24).unwrap();
        let gateway = format!("10.1.{number}.1");
        Netlink::open(&core).unwrap().add_address(&far, address(&gateway), 24).unwrap();
        links.add_route(&default_route(&gateway, "data")).unwrap();
    }
    // The kernel counts frames with their headers of 14 bytes, without their check sequence.
    let bytes = case.frame - 4;
    let rate = case.rate * bytes as f64 / (case.frame - 18) as f64 / 8.0;
    let burst = BURST * bytes;
    let limit = (case.buffer - BURST) * bytes;
    run_in(&core, "tc", &format!("qdisc add dev d2 root tbf rate {rate:.0}bps burst {burst} limit {limit}"));
    if case.loss > 0.0 {
        let drop = format!("numgen random mod 1000000 < {:.0} drop", case.loss * 1e6);
        let chain = "{ type filter hook forward priority 0; }";
        for rule in [
            "add table ip line".into(),
            format!("add chain ip line loss {chain}"),
            format!("add rule ip line loss ip daddr 10.1.2.2 meta l4proto udp {drop}"),
        ] {
            run_in(&core, "nft", &rule);
        }
    }
    core
}

fn run_in(namespace: &Namespace, program: &str, arguments: &str) {
    let mut command = Command::new(program);
    if program == "nft" {
        command.arg(arguments);
    } else {
        command.args(arguments.split(' '));
    }
    let output = TestProcess::spawn_in(namespace, command).output();
    assert!(output.status.success(), "{program} {arguments}: {output:?}");
}

/// Runs a measurement with its fault. Returns its output, and whether an agent was killed or stopped for good.
pub fn run(case: &Case, random: &mut RandomStream) -> (Output, bool) {
    let fleet = Fleet::new(&format!("chaos-live-{}", case.kind), &AGENTS);
    let _core = line(case, &fleet);
    fs::write(fleet.folder.join("policy.toml"), POLICY).unwrap();
    fs::write(fleet.folder.join("case.toml"), case.scenario() + PLACES).unwrap();
    let mut hub = fleet.serve();
    let mut agents = fleet.join_all(&AGENTS);
    let agents: Vec<u32> = agents.iter_mut().map(|agent| agent.child().id()).collect();
    let mut command = fleet.command(&["run", "case.toml", "--json", "--on", "live", "--out", "out"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut controller = TestProcess::spawn_in(&fleet.hub, command);
    let others = vec![hub.child().id(), controller.child().id()];
    let output = std::thread::spawn(|| controller.output());
    let processes = || Processes { agents: agents.clone(), others: others.clone() };
    let is_harmed = disturb(processes, || output.is_finished(), case.fault, random);
    (output.join().unwrap(), is_harmed)
}
