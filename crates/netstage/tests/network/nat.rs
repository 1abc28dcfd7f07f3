//! Tests of flows between agents behind NATs of nftables: one controller in a public network, and sites with private
//! addresses, all the same. Which flows can be measured follows from the kinds of the NATs.

use crate::support::fleet::Fleet;
use crate::support::network::{address, default_route, join};
use crate::support::{TemporaryFolder, TestProcess, mean, output_text};
use netstage_core::rng::RandomStream;
use netstage_harness::scenario::network;
use netstage_harness::{needs, seed};
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::Netlink;
use netstage_host::netns::routes::StaticRoute;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

const POLICY: &str = r#"
[policy]
controllers = ["lab"]
rate = "50 Mbit/s"
destinations = ["192.168.77.0/24", "10.0.0.0/24", "2001:db8::/32"]
interfaces = ["lan"]
"#;

/// NAT in front of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nat {
    /// The host has a public address.
    None,
    /// One mapping for all destinations; packets pass only from where the host has sent to.
    Cone,
    /// Two NATs of that kind in series, the second one of the carrier.
    Carrier,
    /// A mapping for each destination.
    Symmetric,
    /// One mapping, to which UDP packets pass from anywhere.
    Open,
    /// A public address of its own, translated one to one.
    Static,
}

impl Nat {
    /// Returns whether UDP packets of any host pass.
    fn is_open(self) -> bool {
        matches!(self, Nat::None | Nat::Open | Nat::Static)
    }

    /// Returns whether connections of any host pass.
    fn accepts_connections(self) -> bool {
        matches!(self, Nat::None | Nat::Static)
    }

    /// Returns the rules of the router in front of the site. Like home routers, it drops what arrives for itself.
    fn rules(self, public: &str) -> String {
        let source = match self {
            Nat::Symmetric => "masquerade fully-random".to_owned(),
            Nat::Static => format!("snat to {public}"),
            _ => "masquerade persistent".to_owned(),
        };
        let destination = match self {
            Nat::Open => "iifname \"wan\" udp dport 1024-65535 dnat to 10.0.0.2;".to_owned(),
            Nat::Static => format!("iifname \"wan\" ip daddr {public} dnat to 10.0.0.2;"),
            _ => String::new(),
        };
        format!(
            r#"table ip nat {{
    chain post {{ type nat hook postrouting priority srcnat; oifname "wan" {source}; }}
    chain pre {{ type nat hook prerouting priority dstnat; {destination} }}
}}
table ip filter {{
    chain input {{ type filter hook input priority filter; iifname "wan" ct state new drop; }}
    chain forward {{
        type filter hook forward priority filter;
        iifname "wan" ct state new ct status & dnat == 0 drop;
    }}
}}
"#
        )
    }
}

/// Host with its site.
struct Site {
    name: &'static str,
    nat: Nat,
    /// Number of another site whose LAN the host is on.
    beside: Option<usize>,
    has_ipv6: bool,
}

const fn site(name: &'static str, nat: Nat) -> Site {
    Site { name, nat, beside: None, has_ipv6: false }
}

/// Sites of the random tests. Two have the same kind of NAT.
const SITES: [Site; 9] = [
    site("public", Nat::None),
    site("cone", Nat::Cone),
    site("carrier", Nat::Carrier),
    site("open", Nat::Open),
    site("fixed", Nat::Static),
    Site { has_ipv6: true, ..site("dual", Nat::Symmetric) },
    Site { has_ipv6: true, ..site("double", Nat::Symmetric) },
    site("symmetric", Nat::Symmetric),
    Site { beside: Some(7), ..site("neighbor", Nat::Symmetric) },
];

/// Returns whether a flow between two sites can be measured.
fn is_reachable(from: &Site, to: &Site, transport: &str) -> bool {
    let is_beside = |one: &Site, other: &Site| one.beside.is_some_and(|site| SITES[site].name == other.name);
    if is_beside(from, to) || is_beside(to, from) || (from.has_ipv6 && to.has_ipv6) {
        return true;
    }
    if transport == "tcp" {
        return from.nat.accepts_connections() || to.nat.accepts_connections();
    }
    let is_blocked = |one: &Site, other: &Site| one.nat == Nat::Symmetric && !other.nat.is_open();
    !is_blocked(from, to) && !is_blocked(to, from)
}

/// Fleet whose agents are at sites of a public network, 192.168.77.0/24.
struct NatFleet {
    fleet: Fleet,
    routers: Vec<Namespace>,
}

impl NatFleet {
    fn new(name: &str, sites: &[Site]) -> NatFleet {
        needs::namespaces();
        needs::program("nft", "nftables");
        let hub = namespace();
        let mut links = Netlink::open(&hub).unwrap();
        links.create_bridge("public").unwrap();
        links.add_address("public", address("192.168.77.1"), 24).unwrap();
        links.set_up("public").unwrap();
        let (mut hosts, mut routers, mut lans) = (Vec::new(), Vec::new(), Vec::new());
        for (number, site) in (1..).zip(sites) {
            let host = namespace();
            let port = format!("site{number}");
            let public = format!("192.168.77.{}", 10 + number);
            match (site.nat, site.beside) {
                (Nat::None, _) => {
                    join((&host, "lan", 10 + number), (&hub, &port, 40 + number));
                    links.set_bridge(&port, "public").unwrap();
                    Netlink::open(&host).unwrap().add_address("lan", address(&public), 24).unwrap();
                }
                (_, Some(beside)) => {
                    let router: &Namespace = &routers[lans[beside]];
                    plug_in(&host, router, number, "10.0.0.3");
                }
                (nat, None) => {
                    let router = namespace();
                    add_bridge(&router);
                    plug_in(&host, &router, number, "10.0.0.2");
                    let outside = match nat {
                        Nat::Carrier => {
                            let carrier = namespace();
                            join((&router, "wan", 80 + number), (&carrier, "lan", 100 + number));
                            set_address(&router, "wan", "100.64.0.2", 24);
                            set_address(&carrier, "lan", "100.64.0.1", 24);
                            add_default_route(&router, "100.64.0.1", "wan");
                            translate(&router, Nat::Cone, "");
                            routers.push(router);
                            carrier
                        }
                        _ => router,
                    };
                    join((&outside, "wan", 120 + number), (&hub, &port, 40 + number));
                    links.set_bridge(&port, "public").unwrap();
                    set_address(&outside, "wan", &public, 24);
                    if site.has_ipv6 {
                        add_ipv6(&host, &outside, number, sites);
                    }
                    translate(&outside, nat, &public);
                    routers.push(outside);
                }
            }
            lans.push(routers.len().saturating_sub(1));
            hosts.push(host);
        }
        let names = sites.iter().map(|site| site.name).collect();
        let fleet = Fleet { hub, hosts, names, folder: TemporaryFolder::new(name), environment: Vec::new() };
        fleet.succeed(&["fleet", "init", "--name", "lab"]);
        fs::write(fleet.folder.join("policy.toml"), POLICY).unwrap();
        NatFleet { fleet, routers }
    }

    fn join_all(&self) -> Vec<TestProcess> {
        let labels = vec!["site"; self.fleet.names.len()];
        self.fleet.join_all(&labels)
    }

    /// Runs flows, each between two sites with a transport, for some seconds, and returns exit code and output.
    fn run(&self, flows: &[(&Site, &Site, &str)], out: &str, settings: &str) -> (Option<i32>, String) {
        self.write_scenario(flows, settings);
        let output = self.fleet.run_with("nat.toml", out, &[]);
        (output.status.code(), output_text(&output))
    }

    /// Checks flows, each between two sites with a transport, and returns exit code and output.
    fn check(&self, flows: &[(&Site, &Site, &str)]) -> (Option<i32>, String) {
        self.write_scenario(flows, DURATION);
        let output = self.fleet.at_hub(&["check", "nat.toml", "--live"]);
        (output.status.code(), output_text(&output))
    }

    fn write_scenario(&self, flows: &[(&Site, &Site, &str)], settings: &str) {
        let names = self.fleet.names.join(" ");
        let attached: Vec<String> =
            self.fleet.names.iter().map(|name| format!("{name}_link:{name},core")).collect();
        let mut text = format!(
            "[scenario]\ntitle = \"NAT\"\n{settings}\n[defaults.link]\nrate = \"100 Mbit/s\"\nbuffer = \"100 packets\"\n\
             [measure]\ninterval = \"100 ms\"\ndelay = true\n"
        );
        for (from, to, transport) in flows {
            text += &format!(
                "[flow.{}]\nfrom = \"{}\"\nto = \"{}\"\ntransport = \"{transport}\"\nstart = \"{START} s\"\n\
                 traffic = {{ model = \"cbr\", rate = \"{RATE} bit/s\", packet = \"500 B\" }}\n",
                flow_name(from, to, transport),
                from.name,
                to.name
            );
        }
        text += "[place]\n";
        for name in &self.fleet.names {
            text += &format!("{name} = \"{name}\"\n");
        }
        text += &network(&[("host", &names), ("router", "core")], &attached.join(" "));
        fs::write(self.fleet.folder.join("nat.toml"), text).unwrap();
    }
}

/// Rate of the flows, and their start in the run, after which the mappings of idle flows would have expired.
const RATE: f64 = 800_000.0;
const START: u64 = 8;
const DURATION: &str = "duration = \"10 s\"";
/// Time after which NATs forget a mapping, in seconds.
const MAPPING_TIMEOUT: &str = "6";

fn flow_name(from: &Site, to: &Site, transport: &str) -> String {
    format!("{transport}_{}_{}", from.name, to.name)
}

fn namespace() -> Namespace {
    let namespace = Namespace::new().unwrap();
    for name in ["net/ipv6/conf/default/accept_dad", "net/ipv6/conf/all/accept_dad"] {
        namespace.sysctl(name, "0").unwrap();
    }
    for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        namespace.sysctl(name, "1").unwrap();
    }
    namespace.loopback_up().unwrap();
    namespace
}

fn set_address(namespace: &Namespace, link: &str, own: &str, length: u8) {
    Netlink::open(namespace).unwrap().add_address(link, address(own), length).unwrap();
}

fn add_default_route(namespace: &Namespace, gateway: &str, link: &'static str) {
    Netlink::open(namespace).unwrap().add_route(&default_route(gateway, link)).unwrap();
}

/// Adds the network of a site to its router.
fn add_bridge(router: &Namespace) {
    let mut links = Netlink::open(router).unwrap();
    links.create_bridge("lan").unwrap();
    links.add_address("lan", address("10.0.0.1"), 24).unwrap();
    links.set_up("lan").unwrap();
}

/// Connects a host to the network of a site.
fn plug_in(host: &Namespace, router: &Namespace, number: u8, own: &str) {
    let port = format!("host{number}");
    join((host, "lan", 10 + number), (router, &port, 60 + number));
    Netlink::open(router).unwrap().set_bridge(&port, "lan").unwrap();
    set_address(host, "lan", own, 24);
    add_default_route(host, "10.0.0.1", "lan");
}

/// Gives a site an IPv6 prefix, and its router a route to those of the other sites.
fn add_ipv6(host: &Namespace, router: &Namespace, number: u8, sites: &[Site]) {
    set_address(host, "lan", &format!("2001:db8:{number}::2"), 64);
    set_address(router, "lan", &format!("2001:db8:{number}::1"), 64);
    // A router asks for neighbors from its link-local address.
    for own in ["2001:db8::", "fe80::"] {
        set_address(router, "wan", &format!("{own}{number}"), 64);
    }
    let mut links = Netlink::open(host).unwrap();
    let gateway = format!("2001:db8:{number}::1");
    links.add_route(&default_route(&gateway, "lan")).unwrap();
    let others = (1..).zip(sites).filter(|(other, site)| site.has_ipv6 && *other != number);
    for (other, _) in others {
        let next_hop = format!("2001:db8::{other}");
        let destination = (address(&format!("2001:db8:{other}::")), 64);
        let route = StaticRoute { destination, ..default_route(&next_hop, "wan") };
        Netlink::open(router).unwrap().add_route(&route).unwrap();
    }
}

/// Makes a router a NAT.
fn translate(router: &Namespace, nat: Nat, public: &str) {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = TestProcess::spawn_in(router, command);
    let mut rules = process.child().stdin.take().unwrap();
    rules.write_all(nat.rules(public).as_bytes()).unwrap();
    drop(rules);
    let output = process.output();
    assert!(output.status.success(), "{}\n{}", output_text(&output), nat.rules(public));
    for timeout in ["udp_timeout", "udp_timeout_stream"] {
        router.sysctl(&format!("net/netfilter/nf_conntrack_{timeout}"), MAPPING_TIMEOUT).unwrap();
    }
}

/// Asserts that a flow was measured completely.
fn assert_measured(record: &Value, flow: &str) {
    let rate = mean(record, "flow.throughput", flow);
    assert!((0.9..1.1).contains(&(rate / RATE)), "{flow}: {rate} bit/s\n{record:#}");
    if !flow.starts_with("tcp") && !flow.starts_with("quic") {
        assert_eq!(mean(record, "flow.lost", flow), 0.0, "{flow}");
        // A late sender does not send its backlog; the record counts what is missing.
        let loads = record["cells"][0]["loads"].as_array().unwrap();
        let packets = loads.iter().find(|load| load["subject"] == flow && load["quantity"] == "packets");
        let packets = packets.unwrap_or_else(|| panic!("no packets of {flow}: {record:#}"));
        assert_eq!(packets["requested"], 2.0 * RATE / 4000.0, "{flow}");
        assert_eq!(packets["achieved"], mean(record, "flow.sent", flow), "{flow}");
    }
}

/// Draws flows between the sites, asserts that exactly those without a path are refused, and measures the others.
fn assert_measured_or_refused(rounds: u32) {
    const FLOWS: u64 = 14;
    let mut random = RandomStream::new(seed("nat"), "flows");
    let stage = NatFleet::new("nat-random", &SITES);
    let _hub = stage.fleet.serve();
    let _agents = stage.join_all();
    let named = |flows: &[(&Site, &Site, &str)]| -> BTreeSet<String> {
        flows.iter().map(|(from, to, transport)| flow_name(from, to, transport)).collect()
    };
    for round in 0..rounds {
        // One flow that is refused, and one that is measured.
        let mut flows = vec![(&SITES[7], &SITES[1], "udp"), (&SITES[1], &SITES[4], "tcp")];
        let mut names = named(&flows);
        while (flows.len() as u64) < FLOWS {
            let from = &SITES[random.below(SITES.len() as u64) as usize];
            let to = &SITES[random.below(SITES.len() as u64) as usize];
            let transport = ["udp", "tcp", "quic"][random.below(3) as usize];
            let is_translated = from.nat != Nat::None || to.nat != Nat::None;
            if from.name != to.name && is_translated && names.insert(flow_name(from, to, transport)) {
                flows.push((from, to, transport));
            }
        }
        let (reachable, refused): (Vec<_>, Vec<_>) =
            flows.iter().partition(|(from, to, transport)| is_reachable(from, to, transport));
        println!("round {round}: {:?}, refused {:?}", named(&reachable), named(&refused));
        let (code, printed) = stage.run(&flows, &format!("all-{round}"), DURATION);
        assert_eq!(code, Some(2), "{printed}\n{}", stage.fleet.logs());
        let found: BTreeSet<String> =
            printed.split("flow.").skip(1).map(|rest| rest.split(':').next().unwrap().to_owned()).collect();
        assert_eq!(found, named(&refused), "{printed}\n{}", stage.fleet.logs());
        for (from, to, _) in &refused {
            assert!(printed.contains(&format!("agent {}", from.name)), "{printed}");
            assert!(printed.contains(&format!("agent {}", to.name)), "{printed}");
        }
        let out = format!("reachable-{round}");
        let (code, printed) = stage.run(&reachable, &out, DURATION);
        assert!(matches!(code, Some(0 | 5)), "{printed}\n{}", stage.fleet.logs());
        let record = crate::support::record(&stage.fleet.folder.join(&out));
        assert!(record["failures"].is_null(), "{record:#}");
        named(&reachable).iter().for_each(|flow| assert_measured(&record, flow));
    }
    drop(stage.routers);
}

fn flows_are_measured_where_the_nats_admit_them_and_refused_elsewhere() {
    assert_measured_or_refused(1);
}

fn many_flows_are_measured_where_the_nats_admit_them_and_refused_elsewhere() {
    assert_measured_or_refused(20);
}

fn two_hosts_behind_nat_are_measured_within_30_seconds() {
    let sites = [site("cone", Nat::Cone), site("carrier", Nat::Carrier)];
    let stage = NatFleet::new("nat-quick", &sites);
    let _hub = stage.fleet.serve();
    let start = Instant::now();
    let _agents = stage.join_all();
    let flow = (&sites[0], &sites[1], "udp");
    let (code, printed) = stage.run(&[flow], "out", DURATION);
    assert!(matches!(code, Some(0 | 5)), "{printed}\n{}", stage.fleet.logs());
    let taken = start.elapsed();
    println!("from join to the record: {taken:.1?}");
    assert!(taken.as_secs() < 30, "{taken:?}");
    let listed = stage.fleet.succeed(&["fleet", "ls"]);
    assert!(listed.contains("192.168.77.11 (fixed port)"), "{listed}");
    let record = crate::support::record(&stage.fleet.folder.join("out"));
    assert_measured(&record, "udp_cone_carrier");
    let text = record.to_string();
    assert!(
        text.contains("flow udp_cone_carrier passes NAT: its sender 10.0.0.2 appears as 192.168.77.11,"),
        "{record:#}"
    );
}

fn ipv6_is_preferred_where_both_hosts_have_it() {
    let sites = [
        Site { has_ipv6: true, ..site("dual", Nat::Symmetric) },
        Site { has_ipv6: true, ..site("double", Nat::Symmetric) },
    ];
    let stage = NatFleet::new("nat-ipv6", &sites);
    let _hub = stage.fleet.serve();
    let _agents = stage.join_all();
    let [dual, double] = &sites;
    let flows = ["udp", "tcp"].map(|transport| (dual, double, transport));
    let (code, printed) = stage.run(&flows, "out", DURATION);
    assert!(matches!(code, Some(0 | 5)), "{printed}\n{}", stage.fleet.logs());
    let record = crate::support::record(&stage.fleet.folder.join("out"));
    for (from, to, transport) in &flows {
        assert_measured(&record, &flow_name(from, to, transport));
    }
    let passes = record.to_string();
    assert_eq!(passes.matches("its sender 2001:db8:1::2 appears as 2001:db8:1::2").count(), 2, "{record:#}");
}

fn two_nats_with_varying_ports_are_refused_before_the_run() {
    let sites = [
        site("symmetric", Nat::Symmetric),
        Site { beside: Some(0), ..site("neighbor", Nat::Symmetric) },
        site("remote", Nat::Symmetric),
        site("cone", Nat::Cone),
    ];
    let stage = NatFleet::new("nat-varying", &sites);
    let _hub = stage.fleet.serve();
    let _agents = stage.join_all();
    let [symmetric, neighbor, remote, cone] = &sites;
    for transport in ["udp", "tcp"] {
        let flow = (symmetric, remote, transport);
        let (code, printed) = stage.check(&[(symmetric, neighbor, transport), (cone, remote, "quic"), flow]);
        assert_eq!(code, Some(2), "{printed}");
        for part in [
            &format!("flow.{}: no path from agent symmetric", flow_name(symmetric, remote, transport)),
            "(behind NAT 192.168.77.11 (varying port))",
            "agent remote (behind NAT 192.168.77.13 (varying port)): both NATs use another port for each destination",
            "give both hosts IPv6",
        ] {
            assert!(printed.contains(part), "{part}: {printed}");
        }
        assert_eq!(printed.matches("no path").count(), 1, "{printed}");
    }
    let (code, printed) = stage.check(&[(symmetric, neighbor, "udp")]);
    assert_eq!(code, Some(0), "{printed}");
    let (code, printed) = stage.run(&[(symmetric, remote, "udp")], "out", DURATION);
    assert_eq!(code, Some(2), "{printed}");
    assert!(printed.contains("both NATs use another port for each destination"), "{printed}");
}

netstage_harness::tests![
    two_nats_with_varying_ports_are_refused_before_the_run,
    ipv6_is_preferred_where_both_hosts_have_it,
    flows_are_measured_where_the_nats_admit_them_and_refused_elsewhere,
    #[ignore = "takes ten minutes"]
    many_flows_are_measured_where_the_nats_admit_them_and_refused_elsewhere,
    two_hosts_behind_nat_are_measured_within_30_seconds,
];
