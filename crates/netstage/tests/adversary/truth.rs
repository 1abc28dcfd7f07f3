//! Truth of the suite: counters of nftables in the namespaces at the far ends of the agent's links.

use super::draw::TestPolicy;
use super::eve::CONFIRMATION_PORT;
use super::stage::{CONTROLLER_HOST, UNASKED};
use netstage_host::netns::Namespace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Bytes that may leave at once: the burst of the policy's bucket, and the debt that one packet may leave.
const BURST_MS: u64 = 50;
const MIN_BURST: u64 = 16 << 10;
const LARGEST_PACKET: u64 = 66_000;

/// Packets and bytes by counter.
pub type Counters = BTreeMap<String, (u64, u64)>;

/// Returns the bytes that may leave at once under a rate limit.
pub fn burst(rate_bps: u64) -> u64 {
    (rate_bps / 8 * BURST_MS / 1000).max(MIN_BURST) + LARGEST_PACKET
}

/// Rules that sort what kernels send by themselves: neighbor discovery, group membership, answers to errors and
/// echo requests, and acknowledgments. At the ingress of a device, nftables reads the type of an ICMP message from any
/// fragment, so that payload could pass for an answer: later fragments belong to none of them.
fn kernel_packets() -> String {
    let mut rules = String::from(
        "ether type arp counter name kernel accept\n\
         ip protocol igmp counter name kernel accept\n\
         icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, mld-listener-report, \
         mld2-listener-report, mld-listener-done, destination-unreachable, echo-reply } ip6 nexthdr != 44 \
         counter name kernel accept\n\
         ip frag-off & 0x1fff == 0 icmp type { destination-unreachable, echo-reply } counter name kernel accept\n\
         tcp flags & rst == rst counter name acknowledgments accept\n",
    );
    for words in 5..=15 {
        let bytes = words * 4;
        for (length, fixed) in [("ip length", 20), ("ip6 length", 0)] {
            rules += &format!(
                "{length} {} tcp doff {words} tcp flags & syn == 0 counter name acknowledgments accept\n",
                bytes + fixed
            );
        }
    }
    rules
}

/// Counts the packets that arrive from the agent over its data links, anew.
pub fn watch_data(far: &Namespace, policy: &TestPolicy) {
    let mut rules = kernel_packets();
    rules += "counter name sent\n";
    if !policy.side {
        rules += "meta iifname \"side\" counter name interface\n";
    }
    if let Some(prefixes) = &policy.destinations {
        for (family, is_v4) in [("ip", true), ("ip6", false)] {
            let list: Vec<&str> =
                prefixes.iter().copied().filter(|prefix| prefix.contains('.') == is_v4).collect();
            rules += &match list.is_empty() {
                true => format!("meta protocol {family} counter name destination\n"),
                false => format!("{family} daddr != {{ {} }} counter name destination\n", list.join(", ")),
            };
        }
    }
    rules += &format!("udp dport {CONFIRMATION_PORT} counter name questions\n");
    rules += &format!("udp dport != {CONFIRMATION_PORT} counter name datagrams\n");
    if !policy.one_ended {
        // Path checks contain the magic cookie of STUN, or open connections to the ports of the search.
        let unasked = format!("ip daddr {UNASKED}");
        for (kind, is_check, is_other) in [
            (format!("udp dport != {CONFIRMATION_PORT}"), "@th,96,32 0x2112a442", "@th,96,32 != 0x2112a442"),
            ("meta l4proto tcp".into(), "tcp dport 6001-6016", "tcp dport != 6001-6016"),
        ] {
            rules += &format!("{unasked} {kind} {is_check} counter name checks\n");
            rules += &format!("{unasked} {kind} {is_other} counter name unasked\n");
        }
        rules += &format!("{unasked} meta l4proto != {{ tcp, udp }} counter name unasked\n");
    }
    if let Some(rate) = policy.rate {
        rules += &format!(
            "limit rate over {} bytes/second burst {} bytes counter name rate\n",
            rate / 8,
            burst(rate)
        );
    }
    load(far, "devices = { \"data\", \"side\" }", &rules);
}

/// Counts the packets that arrive from the agent over its management link, anew. It asks the controller by STUN, with
/// requests of 20 bytes, at which addresses it is seen. Under a policy that permits all
/// destinations, the agent may ask any host whether it consents.
pub fn watch_management(hub: &Namespace, device: &str, policy: &TestPolicy) {
    let mut rules = format!("ip daddr {CONTROLLER_HOST} tcp dport 4700 counter name control accept\n");
    rules += &format!(
        "ip daddr {CONTROLLER_HOST} udp dport {{ 4730, 4731 }} udp length 28 counter name control accept\n"
    );
    if policy.is_open() {
        rules += &format!("udp dport {CONFIRMATION_PORT} counter name questions accept\n");
    }
    load(hub, &format!("device \"{device}\""), &(rules + &kernel_packets() + "counter name stray\n"));
}

/// Returns the maximum memory of a process since the last call of [`forget_peak`], bytes.
pub fn peak_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Forgets the maximum memory of a process.
pub fn forget_peak(process: u32) {
    fs::write(format!("/proc/{process}/clear_refs"), "5").unwrap();
}

fn load(namespace: &Namespace, devices: &str, rules: &str) {
    let names = [
        "kernel",
        "acknowledgments",
        "sent",
        "interface",
        "destination",
        "rate",
        "questions",
        "datagrams",
        "unasked",
        "checks",
        "control",
        "stray",
    ];
    let counters: String = names.iter().map(|name| format!("counter {name} {{ }}\n")).collect();
    let table = format!(
        "table netdev truth {{ }}\ndelete table netdev truth\ntable netdev truth {{\n{counters}\
         chain arriving {{ type filter hook ingress {devices} priority 0; policy accept;\n{rules}}}\n}}\n"
    );
    let output = namespace
        .run(|| {
            let mut command = Command::new("nft");
            command.args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(table.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        })
        .unwrap();
    assert!(output.status.success(), "{}\n{table}", String::from_utf8_lossy(&output.stderr));
}

/// Reads all counters of a namespace, and as `given` those of what it sent over the data links.
pub fn read(namespace: &Namespace) -> Counters {
    let read = || {
        let listed = Command::new("nft").args(["-j", "list", "counters"]).output().unwrap();
        (listed, fs::read_to_string("/proc/thread-self/net/dev").unwrap())
    };
    let (listed, devices) = namespace.run(read).unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let counters = listed["nftables"].as_array().unwrap().iter().filter_map(|entry| entry.get("counter"));
    let number = |value: &Value| value.as_u64().unwrap();
    let mut counters: Counters = counters
        .map(|one| (one["name"].as_str().unwrap().into(), (number(&one["packets"]), number(&one["bytes"]))))
        .collect();
    let mut given = (0, 0);
    for device in ["data:", "side:"] {
        let found = devices.lines().find_map(|line| line.trim().strip_prefix(device));
        let fields: Vec<u64> =
            found.unwrap_or_default().split_whitespace().map(|field| field.parse().unwrap()).collect();
        if let [_, _, _, _, _, _, _, _, bytes, packets, ..] = fields[..] {
            given = (given.0 + packets, given.1 + bytes);
        }
    }
    counters.insert("given".into(), given);
    counters
}
