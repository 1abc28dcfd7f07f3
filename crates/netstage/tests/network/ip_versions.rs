//! Tests of flows between agents of which some have IPv4 only, IPv6 only, or both.

use crate::support::fleet::Fleet;
use crate::support::network::{address, join};
use crate::support::{mean, output_text};
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use std::fs;

/// Agents, and their addresses in one network.
const AGENTS: [&str; 3] = ["four", "both", "six"];
const ADDRESSES: [&[(&str, u8)]; 3] =
    [&[("10.1.0.4", 24)], &[("10.1.0.5", 24), ("fd00:1::5", 64)], &[("fd00:1::6", 64)]];
const POLICY: &str = "[policy]\ncontrollers = [\"lab\"]\ndestinations = [\"10.1.0.0/16\", \"fd00:1::/64\"]\ninterfaces = [\"data\"]\n";

/// Joins the hosts by a switch.
fn join_by_switch(fleet: &Fleet) -> Namespace {
    let switch = Namespace::new().unwrap();
    let mut ports = Netlink::open(&switch).unwrap();
    ports.create_bridge("switch").unwrap();
    ports.set_up("switch").unwrap();
    for (number, (host, addresses)) in (1..).zip(fleet.hosts.iter().zip(ADDRESSES)) {
        host.sysctl("net/ipv6/conf/default/accept_dad", "0").unwrap();
        let port = format!("d{number}");
        join((host, "data", 30 + number), (&switch, &port, 40 + number));
        ports.set_bridge(&port, "switch").unwrap();
        for (own, length) in addresses {
            Netlink::open(host).unwrap().add_address("data", address(own), *length).unwrap();
        }
    }
    switch
}

fn flow(name: &str, transport: &str, from: &str, to: &str, more: &str) -> String {
    format!(
        "[flow.{name}]\nfrom = \"{from}\"\nto = \"{to}\"\ntransport = \"{transport}\"\n{more}\n\
         traffic = {{ model = \"cbr\", rate = \"800 kbit/s\", packet = \"200 B\" }}\n"
    )
}

fn write_scenario(fleet: &Fleet, name: &str, flows: &[String]) {
    let text = format!(
        "[scenario]\nduration = \"2 s\"\n[node.four]\n[node.both]\n[node.six]\n[node.core]\nkind = \"router\"\n\
         [defaults.link]\nrate = \"1 Gbit/s\"\nbuffer = \"100 packets\"\n[link.a]\nends = [\"four\", \"core\"]\n\
         [link.b]\nends = [\"both\", \"core\"]\n[link.c]\nends = [\"six\", \"core\"]\n{}\
         [place]\nfour = \"four\"\nboth = \"both\"\nsix = \"six\"\n[measure]\ninterval = \"100 ms\"\n",
        flows.concat()
    );
    fs::write(fleet.folder.join(name), text).unwrap();
}

fn flows_use_the_ip_version_that_both_agents_have() {
    let fleet = Fleet::new("ip-versions", &AGENTS);
    let _switch = join_by_switch(&fleet);
    fs::write(fleet.folder.join("policy.toml"), POLICY).unwrap();
    let _hub = fleet.serve();
    let _agents = fleet.join_all(&AGENTS);
    let possible = [
        flow("voice", "udp", "both", "six", ""),
        flow("file", "tcp", "six", "both", ""),
        flow("old", "udp", "four", "both", ""),
    ];
    write_scenario(&fleet, "possible.toml", &possible);
    fleet.succeed(&["check", "possible.toml", "--live"]);
    let measured = fleet.run_live("possible.toml", "out");
    for name in ["voice", "file", "old"] {
        let rate = mean(&measured, "flow.throughput", name);
        assert!((0.7e6..0.9e6).contains(&rate), "{name}: {rate} bit/s\n{measured:#}");
    }
    let differences = measured["differences"].to_string();
    for part in [
        "flow voice uses IPv6, the only IP version that its agents both and six have in common",
        "flow file uses IPv6, the only IP version that its agents six and both have in common",
    ] {
        assert!(differences.contains(part), "{differences}");
    }
    assert!(!differences.contains("flow old"), "{differences}");

    let impossible =
        [flow("none", "udp", "four", "six", ""), flow("fixed", "udp", "both", "six", "ip = \"v4\"")];
    write_scenario(&fleet, "none.toml", &impossible);
    let checked = fleet.at_hub(&["check", "none.toml", "--live"]);
    let printed = output_text(&checked);
    assert_eq!(checked.status.code(), Some(2), "{printed}");
    let none =
        "flow.none: agent four (IPv4) and agent six (IPv6) have no IP version in common; give their hosts";
    assert!(printed.contains(none), "{printed}");
    assert!(printed.contains("flow.fixed: node.six: agent six reports no IPv4 address"), "{printed}");
    let run = fleet.run_with("none.toml", "none", &[]);
    assert_eq!(run.status.code(), Some(2), "{}", output_text(&run));
    assert!(output_text(&run).contains(none), "{}", output_text(&run));
    fleet.wait_for_all("idle");
}

netstage_harness::tests![flows_use_the_ip_version_that_both_agents_have];
