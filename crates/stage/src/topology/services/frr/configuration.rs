//! Configuration of daemons, in FRR's language, and of routers. The only text from the plan are names and numbers that
//! were validated.

use super::{Behind, FrrDaemon, bypass};
use crate::topology::layout::AddressLayout;
use crate::topology::network::node_interface;
use crate::topology::routing::is_inside;
use crate::topology::{address, lan};
use netstage_core::time::Duration;
use netstage_scenario::plan::{EdgeRouter, Hop, IpVersion, Plan, RoutingService};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

/// Address at which netstage's router accepts the FPM connection of zebra in each namespace.
const FPM_ADDRESS: &str = "127.0.0.1:2620";
/// Maximum hops of a BGP session between edges, more than the links of any LSP.
const MAX_HOPS: u32 = 64;
/// Minimum LDP hello hold time in seconds, the default of RFC 5036 (section 3.5.2). OSPF detects link failures earlier,
/// and labels of a lost peer do no harm.
const MIN_LDP_HOLD: u64 = 15;
/// BGP keepalive and hold time in seconds. The failure of a core link must not close a session.
const BGP_TIMERS: &str = "10 60";
/// Names of sockets: of netstage's router, and of bfdd for its data plane.
pub const ROUTER_SOCKET: &str = "router.sock";
pub const BFDD_SOCKET: &str = "bfdd-data-plane.sock";
/// Name of the BFD profile.
const BFD_PROFILE: &str = "neighbors";

/// Returns the configuration of netstage's router at a node. Its sockets are in the folder of the file.
pub fn router(plan: &Plan, layout: &AddressLayout, node: usize) -> String {
    let links =
        (0..plan.links.len()).filter(|link| plan.links[*link].ends.contains(&node) && layout.used[*link]);
    let (inside, outside): (Vec<usize>, Vec<usize>) = links.partition(|link| is_inside(plan, *link));
    let names = |links: &[usize]| {
        let names: Vec<String> = links.iter().map(|link| format!("\"{}\"", node_interface(*link))).collect();
        names.join(", ")
    };
    // Emulated links need neither the fast path nor large tables.
    let mut text = format!(
        "[router]\ninterfaces = [{}]\nmpls = [{}]\ncontrol = \"{ROUTER_SOCKET}\"\nfpm = \"{FPM_ADDRESS}\"\n\
         fast_path = \"off\"\nv4_rows = 1024\nv6_rows = 1024\nnext_hops = 4096\n",
        names(&[&inside[..], &outside].concat()),
        names(&inside)
    );
    if let Some(routing) = plan.routing.as_ref().filter(|routing| runs_sessions(routing, node)) {
        let bypass = bypass::settings(plan, routing, node);
        let _ = write!(
            text,
            "{bypass}\n[bfd]\nbfdd = \"{BFDD_SOCKET}\"\n[alternates]\nospfd = \"ospfd.vty\"\nldpd = \"ldpd.vty\"\n"
        );
    }
    text
}

/// Returns whether netstage's router runs the BFD sessions of a router.
pub fn runs_sessions(routing: &RoutingService, node: usize) -> bool {
    routing.bfd.is_some() && routing.core.contains(&node)
}

/// Returns the daemons at a node with their configurations.
pub fn daemons(
    plan: &Plan,
    routing: &RoutingService,
    node: usize,
    behind: &Behind,
) -> Vec<(FrrDaemon, String)> {
    let mut daemons = vec![(FrrDaemon::Zebra, zebra())];
    if routing.lan.is_none() {
        daemons.push((FrrDaemon::Static, static_routes(plan, routing, node)));
        daemons.push((FrrDaemon::Ldp, ldp(plan, routing, node)));
    }
    let is_core = routing.core.contains(&node);
    if let Some(interval) = routing.bfd.filter(|_| is_core || routing.lan.is_some()) {
        daemons.push((FrrDaemon::Bfd, bfd(interval)));
    }
    match routing.edge(node) {
        Some(edge) => daemons.push((FrrDaemon::Bgp, bgp(plan, routing, edge, &behind[&node]))),
        None => daemons.push((FrrDaemon::Ospf, ospf(plan, routing, node))),
    }
    daemons
}

/// Returns the own address of a router.
pub fn own(node: usize) -> IpAddr {
    address::node_address(IpVersion::V4, node, 0)
}

/// Returns the neighbors of a router that also have routing daemons, each with the link and its address on the link.
pub fn neighbors(plan: &Plan, node: usize) -> impl Iterator<Item = (usize, usize, IpAddr)> {
    let inside = (0..plan.links.len()).filter(|link| is_inside(plan, *link));
    inside.filter_map(move |link| {
        let end = plan.links[link].ends.iter().position(|end| *end == node)?;
        let (address, _) = address::link_address(link, 1 - end);
        Some((plan.links[link].ends[1 - end], link, address))
    })
}

fn zebra() -> String {
    let (address, port) = FPM_ADDRESS.split_once(':').expect("the address has a port");
    // Labels must be in the routes sent to the FPM, not in next-hop groups.
    format!("no zebra nexthop kernel enable\nno fpm use-next-hop-groups\nfpm address {address} port {port}\n")
}

/// Returns the static routes of a router. Core routers reach edges by their links to them; edges reach each other and
/// their core routers by their links to the core.
fn static_routes(plan: &Plan, routing: &RoutingService, node: usize) -> String {
    let mut text = String::new();
    let is_edge = routing.edge(node).is_some();
    for (neighbor, _, via) in neighbors(plan, node) {
        let to_core = routing.core.contains(&neighbor);
        let destinations: Vec<usize> = match (is_edge, to_core) {
            (false, true) => Vec::new(),
            (true, true) => {
                let others = routing.edges.iter().map(|edge| edge.node).filter(|edge| *edge != node);
                others.chain([neighbor]).collect()
            }
            (_, false) => vec![neighbor],
        };
        for destination in destinations {
            let _ = writeln!(text, "ip route {}/32 {via}", own(destination));
        }
    }
    text
}

fn bfd(interval: Duration) -> String {
    let interval = interval.0 / 1_000_000;
    format!(
        "bfd\n profile {BFD_PROFILE}\n  transmit-interval {interval}\n  receive-interval {interval}\n  \
         detect-multiplier 3\n exit\nexit\n"
    )
}

fn ospf(plan: &Plan, routing: &RoutingService, node: usize) -> String {
    let mut text = format!(
        "router ospf\n ospf router-id {}\n redistribute static\n timers throttle spf 10 50 1000\n \
         timers throttle lsa all 100\n timers lsa min-arrival 50\nexit\n\
         interface lo\n ip ospf area 0\nexit\n",
        own(node)
    );
    for (_, link, _) in neighbors(plan, node).filter(|(neighbor, ..)| routing.core.contains(neighbor)) {
        let _ = writeln!(
            text,
            "interface {}\n ip ospf area 0\n ip ospf network point-to-point\n ip ospf hello-interval {}\n \
             ip ospf dead-interval {}\n ip ospf retransmit-interval 1",
            node_interface(link),
            seconds(routing.hello),
            seconds(routing.dead)
        );
        if routing.bfd.is_some() {
            let _ = writeln!(text, " ip ospf bfd\n ip ospf bfd profile {BFD_PROFILE}");
        }
        text.push_str("exit\n");
    }
    text
}

/// Returns the configuration of ldpd. Labels are bound only to the routers' own addresses: those of the edges are the
/// destinations of packets between edges, and packets around a failure are tunneled to those of the core. No access list
/// selects them, because ldpd (FRR 8.4) may stop if it is asked for bindings while it checks one.
fn ldp(plan: &Plan, routing: &RoutingService, node: usize) -> String {
    // LSPs end at the edges, not at the penultimate hop: no implicit null.
    let mut text = format!(
        "mpls ldp\n router-id {own}\n discovery hello interval {hello}\n discovery hello holdtime {hold}\n \
         address-family ipv4\n  discovery transport-address {own}\n  label local advertise explicit-null\n  \
         label local allocate host-routes",
        own = own(node),
        hello = seconds(routing.hello),
        hold = (3 * seconds(routing.hello)).max(MIN_LDP_HOLD),
    );
    // Remote alternates need the labels of all other routers of the core.
    let is_remote =
        |other: &usize| *other != node && neighbors(plan, node).all(|(neighbor, ..)| neighbor != *other);
    for other in routing.core.iter().filter(|other| runs_sessions(routing, node) && is_remote(other)) {
        let _ = write!(text, "\n  neighbor {} targeted", own(*other));
    }
    text.push_str("\n exit-address-family\nexit\n");
    text
}

/// Returns the interfaces of a router with LDP peers.
pub fn label_interfaces(plan: &Plan, routing: &RoutingService, node: usize) -> Vec<String> {
    let has_peer = |neighbor| routing.core.contains(&node) || routing.core.contains(&neighbor);
    let peers = neighbors(plan, node).filter(|(neighbor, ..)| has_peer(*neighbor));
    peers.map(|(_, link, _)| node_interface(link)).collect()
}

/// Returns the commands that enable LDP discovery on interfaces.
pub fn label_peers(interfaces: &[String]) -> Vec<String> {
    let prefix = ["configure terminal", "mpls ldp", "address-family ipv4"].map(String::from);
    let commands = interfaces.iter().flat_map(|interface| [format!("interface {interface}"), "exit".into()]);
    prefix.into_iter().chain(commands).collect()
}

/// Returns the BGP peering address of an edge.
fn peering(plan: &Plan, routing: &RoutingService, family: IpVersion, edge: usize) -> IpAddr {
    let link = routing.lan.and_then(|lan| lan::link_to(plan, lan, edge));
    let on_lan = link.and_then(|link| lan::address(plan, family, link));
    on_lan.map_or_else(|| address::node_address(family, edge, 0), |(address, _)| address)
}

fn bgp(plan: &Plan, routing: &RoutingService, edge: &EdgeRouter, behind: &BTreeMap<usize, Hop>) -> String {
    let EdgeRouter { node, system } = *edge;
    let own_address = own(node);
    let source = peering(plan, routing, IpVersion::V4, node);
    let timers = match routing.lan {
        Some(_) => format!("{} {}", seconds(routing.hello), seconds(routing.dead)),
        None => BGP_TIMERS.to_owned(),
    };
    let mut text = format!(
        "router bgp {system}\n bgp router-id {own_address}\n no bgp ebgp-requires-policy\n \
         no bgp default ipv4-unicast\n neighbor members peer-group\n neighbor members update-source {source}\n \
         neighbor members timers {timers}\n neighbor members timers connect 2\n"
    );
    if routing.bfd.is_some() && routing.lan.is_some() {
        let _ = writeln!(text, " neighbor members bfd\n neighbor members bfd profile {BFD_PROFILE}");
    }
    for peer in routing.edges.iter().filter(|edge| edge.node != node) {
        let address = peering(plan, routing, IpVersion::V4, peer.node);
        let _ = writeln!(text, " neighbor {address} remote-as {}", peer.system);
        let _ = writeln!(text, " neighbor {address} peer-group members");
        if peer.system != system && routing.lan.is_none() {
            let _ = writeln!(text, " neighbor {address} ebgp-multihop {MAX_HOPS}");
        }
    }
    let mut family = |name: &str, family: IpVersion, labeled: bool| {
        let _ = writeln!(text, " address-family {name} unicast");
        for owner in behind.keys() {
            let (address, length) = address::prefix(family, *owner);
            let _ = writeln!(text, "  network {address}/{length}");
        }
        if labeled {
            let _ = write!(text, " exit-address-family\n address-family {name} labeled-unicast\n");
        }
        // A member announces only its own prefixes and provides no transit.
        let _ = writeln!(text, "  neighbor members activate\n  neighbor members route-map own-{name} out");
        let _ = writeln!(text, " exit-address-family");
    };
    family("ipv4", IpVersion::V4, false);
    if routing.ipv6 {
        family("ipv6", IpVersion::V6, routing.lan.is_none());
    }
    let next_hop = match routing.lan {
        Some(_) => peering(plan, routing, IpVersion::V6, node).to_string(),
        // IPv4-mapped address of the end of the LSP (RFC 4798 section 2).
        None => format!("::ffff:{own_address}"),
    };
    let _ = writeln!(
        text,
        "exit\nbgp as-path access-list own permit ^$\nroute-map own-ipv4 permit 10\n match as-path own\nexit\n\
         route-map own-ipv6 permit 10\n match as-path own\n set ipv6 next-hop global {next_hop}\nexit"
    );
    text
}

fn seconds(duration: Duration) -> u64 {
    duration.0 / 1_000_000_000
}
