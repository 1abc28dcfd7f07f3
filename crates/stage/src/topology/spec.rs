//! What the fabric builds: namespaces, interfaces, addresses, routes. Made from a plan by
//! the controller, handed to the fabric's own process as JSON.

use super::address;
use super::distribution::Tree;
use super::layout::{Address, Layout, Placement, RouteOptions};
use super::network::node_interface;
use super::pe::{Circuit, Router, Routers};
use super::{lan, routing};
use netstage_core::link;
use netstage_core::traffic::Pattern;
use netstage_emulator::netem::Stages;
use netstage_scenario::plan::{Family, FlowGroup, Hop, LinkKind, NodeKind, Plan, Transport, Tunnel};
use netstage_wire::Encapsulation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Smallest MTU of an interface: Ethernet's.
const ETHERNET_MTU: u32 = 1500;
/// Headers of IPv6 and TCP with timestamps: the most that is put before a segment's payload.
const TCP_IP_HEADERS: u32 =
    netstage_wire::IPV6_HEADER + netstage_wire::TCP_HEADER + netstage_wire::TCP_TIMESTAMPS;

/// A network of namespaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Its nodes: those of the plan, in its order.
    pub nodes: Vec<NodeSpec>,
    /// Its links: those of the plan that carry something, in its order.
    pub links: Vec<LinkSpec>,
    /// MTU of every interface.
    pub mtu: u32,
}

/// A node: a namespace of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Its name.
    pub name: String,
    /// Whether anything is in it at all.
    pub used: bool,
    /// Its addresses, its own first.
    pub addresses: Vec<AddressSpec>,
    /// Where it sends what it does not keep.
    pub routes: Vec<RouteSpec>,
    /// Where it sends what goes to multicast groups.
    pub multicast: Vec<MulticastSpec>,
    /// Whether it is a LAN: a bridge joins its links.
    pub is_lan: bool,
    /// Indices, in the plan, of the links at which it is a provider edge router with customers.
    pub circuits: Vec<usize>,
    /// Kernel settings that are its own.
    pub settings: Vec<(String, String)>,
    /// How fast its interfaces send, where that may limit it.
    pub device: Option<DeviceSpec>,
}

/// A network device. Sizes count at the IP layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// Bits a second.
    pub rate_bps: u64,
    /// Bytes that may wait.
    pub buffer: u64,
}

/// An address of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressSpec {
    /// The address.
    pub address: IpAddr,
    /// Bits of the prefix whose other addresses are on the same link.
    pub length: u8,
    /// Index, in the plan, of the link it lies on; none: on the node itself.
    pub link: Option<usize>,
}

/// A route of packets to a multicast group. Links are told by their indices in the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MulticastSpec {
    /// Who sends them.
    pub source: IpAddr,
    /// The group.
    pub group: IpAddr,
    /// The link they come by.
    pub from: usize,
    /// The links they leave by.
    pub to: Vec<usize>,
}

/// A link: two interfaces with the emulator between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSpec {
    /// Index in the plan.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Indices of its nodes.
    pub ends: [usize; 2],
    /// From `ends[0]` to `ends[1]`, then the other way.
    pub directions: [link::Config; 2],
    /// What the kernel's netems are told, where they work this link.
    pub netem: Option<[Stages; 2]>,
    /// Its ends find each other themselves.
    pub resolves: bool,
    /// Its ends are TUN interfaces, whose far sides are the emulator's.
    pub is_tun: bool,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteSpec {
    /// The address, or the first of a prefix.
    pub destination: IpAddr,
    /// Bits of the prefix.
    pub length: u8,
    /// Index, in the plan, of the link that leads there.
    pub link: usize,
    /// The node's end of that link.
    pub end: usize,
    /// The neighbour's own address.
    pub gateway: IpAddr,
    /// The address of those that send there and choose none themselves.
    pub source: Option<IpAddr>,
    /// Initial congestion window, segments.
    pub initial_window: Option<u32>,
    /// Lower bound of the retransmission timeout, milliseconds.
    pub min_rto_ms: Option<u32>,
    /// Negotiate ECN.
    pub ecn: bool,
    /// Largest window to advertise, bytes.
    pub window: Option<u32>,
    /// Largest packet, bytes.
    pub mtu: Option<u32>,
    /// Congestion control by the kernel's name for it.
    pub congestion_control: Option<String>,
}

impl Spec {
    /// The network a plan asks for.
    pub fn new(plan: &Plan, layout: &Layout, routers: &Routers) -> Spec {
        let links: Vec<LinkSpec> = (plan.links.iter().enumerate())
            .filter(|(index, _)| layout.used[*index])
            .map(|(index, link)| LinkSpec {
                index,
                name: link.name.clone(),
                ends: link.ends,
                directions: link.directions.clone(),
                netem: None,
                resolves: routing::is_inside(plan, index) || plan.lan_of(index).is_some(),
                is_tun: link.kind == LinkKind::Tun,
            })
            .collect();
        let on_a_way: BTreeSet<usize> = links.iter().flat_map(|link| link.ends).collect();
        let node = |index: usize| NodeSpec {
            circuits: routers.get(&index).map_or(Vec::new(), links_to_customers),
            name: plan.nodes[index].name.clone(),
            used: on_a_way.contains(&index),
            is_lan: plan.is_lan(index),
            addresses: address::FAMILIES
                .into_iter()
                .filter(|_| !plan.is_lan(index))
                .flat_map(|family| {
                    let placed = layout.addresses[index].iter().enumerate();
                    placed.map(move |(number, placed)| {
                        let address = address::of(family, index, number);
                        let link = placed.treatment.multicast.map(|sending| sending.link);
                        AddressSpec { address, length: address::host_prefix(address), link }
                    })
                })
                .collect(),
            routes: Vec::new(),
            multicast: multicast(plan, layout, index),
            settings: settings(plan, index, routers.get(&index)),
            device: plan.nodes[index]
                .device
                .map(|device| DeviceSpec { rate_bps: device.rate.0, buffer: device.buffer }),
        };
        let mut nodes: Vec<NodeSpec> = (0..plan.nodes.len()).map(node).collect();
        for (&pe, router) in routers {
            for &Circuit { link, number, .. } in &router.circuits {
                // The customer's end has an address that the PE can ask for.
                let end = usize::from(plan.links[link].ends[0] == pe);
                let customer = &mut nodes[plan.links[link].ends[end]];
                customer.addresses.extend(address::FAMILIES.map(|family| {
                    let (address, length) = address::on_circuit(family, number, end);
                    AddressSpec { address, length, link: Some(link) }
                }));
            }
        }
        for (node, link) in routing::interfaces(plan) {
            let end = usize::from(plan.links[link].ends[1] == node);
            let (address, length) = address::on_link(link, end);
            nodes[node].addresses.push(AddressSpec { address, length, link: Some(link) });
        }
        for link in (0..plan.links.len()).filter(|link| layout.used[*link]) {
            let Some(lan) = plan.lan_of(link) else { continue };
            let station = &mut nodes[lan::station(plan, lan, link)];
            let on_lan = lan::addresses(plan, link).into_iter();
            let placed = on_lan.map(|(address, length)| AddressSpec { address, length, link: Some(link) });
            station.addresses.extend(placed);
        }
        for (edge, behind) in routing::behind(plan, &layout.used) {
            nodes[edge].routes.extend(behind.iter().flat_map(|(owner, hop)| {
                address::FAMILIES.map(|family| route_to_all(plan, family, *owner, *hop))
            }));
        }
        add_routes(plan, layout, &mut nodes);
        Spec { nodes, links, mtu: mtu(plan, routers) }
    }
}

/// Adds the routes to each address, at nodes where no routing daemon has them.
fn add_routes(plan: &Plan, layout: &Layout, nodes: &mut [NodeSpec]) {
    for (owner, addresses) in layout.addresses.iter().enumerate() {
        for (number, address) in addresses.iter().enumerate() {
            let own = address
                .routes
                .iter()
                .filter(|(from, _)| !routing::drives(plan, **from) && !plan.is_lan(**from));
            for (&from, &hop) in own {
                for family in address::FAMILIES {
                    let route = route(plan, family, (owner, number), hop, address.treatment.tcp.as_ref());
                    let gateway = next_router(plan, family, &address.routes, hop);
                    let source = source(plan, layout, family, from, address);
                    nodes[from].routes.push(RouteSpec { gateway, source, ..route });
                }
            }
        }
    }
}

/// What a node does with packets to multicast groups.
fn multicast(plan: &Plan, layout: &Layout, node: usize) -> Vec<MulticastSpec> {
    let groups = plan.flows.iter().zip(&layout.groups).zip(&layout.trees);
    let route = |((flow, placed), tree): ((&FlowGroup, &Placement), &Option<Tree>)| {
        let tree = tree.as_ref()?;
        let forwarding = tree.forwarding.get(&node)?;
        Some(MulticastSpec {
            source: address::of(flow.family, flow.from, placed.source),
            group: tree.group,
            from: forwarding.from,
            to: forwarding.to.iter().copied().collect(),
        })
    };
    groups.filter_map(route).collect()
}

/// To all that a node behind an edge is, whichever of its addresses.
fn route_to_all(plan: &Plan, family: Family, owner: usize, hop: Hop) -> RouteSpec {
    let (destination, length) = address::prefix(family, owner);
    RouteSpec { destination, length, ..route(plan, family, (owner, 0), hop, None) }
}

/// Whom a hop leads to: the station beyond, where it leads to a LAN.
fn next_router(plan: &Plan, family: Family, routes: &BTreeMap<usize, Hop>, hop: Hop) -> IpAddr {
    let [_, neighbour] = plan.ends(hop);
    let onward = routes.get(&neighbour).filter(|_| plan.is_lan(neighbour));
    let on_lan = onward.and_then(|onward| lan::address(plan, family, onward.link));
    on_lan.map_or_else(|| address::of(family, neighbour, 0), |(address, _)| address)
}

fn route(
    plan: &Plan,
    family: Family,
    (owner, number): (usize, usize),
    hop: Hop,
    options: Option<&RouteOptions>,
) -> RouteSpec {
    let socket = options.and_then(|options| options.socket.as_ref());
    let [_, neighbour] = plan.ends(hop);
    let destination = address::of(family, owner, number);
    RouteSpec {
        destination,
        length: address::host_prefix(destination),
        link: hop.link,
        end: hop.direction,
        gateway: address::of(family, neighbour, 0),
        source: None,
        initial_window: options.map(|o| o.initial_window),
        min_rto_ms: options.map(|o| u32::try_from(o.min_rto.0 / 1_000_000).unwrap_or(u32::MAX).max(1)),
        ecn: options.is_some_and(|o| o.ecn),
        window: socket.map(|s| s.window),
        // IPv6 has a least one (RFC 8200 section 5).
        mtu: socket.map(|s| if family == Family::V6 { s.mtu.max(1280) } else { s.mtu }),
        congestion_control: socket.map(|s| s.congestion_control.clone()),
    }
}

/// The address a service's client sends from: not every program lets that be said.
fn source(plan: &Plan, layout: &Layout, family: Family, from: usize, to: &Address) -> Option<IpAddr> {
    let service = to.treatment.service.filter(|service| plan.flows[*service].from == from)?;
    Some(address::of(family, from, layout.groups[service].source))
}

/// Large enough that nothing a flow sends has to be fragmented, with whatever is around it.
fn mtu(plan: &Plan, routers: &Routers) -> u32 {
    let around = if routers.is_empty() { 0 } else { Encapsulation::MplsInUdp.overhead() };
    let labels = if plan.routing.is_some() { Encapsulation::Mpls.overhead() } else { 0 };
    let largest = |group: &FlowGroup| match &group.transport {
        Transport::Tcp(tcp) => tcp.max_segment_size + TCP_IP_HEADERS,
        _ => {
            let payload = group.traffic.pattern().map_or(0, Pattern::largest_packet);
            payload + netstage_wire::IPV6_HEADER + netstage_wire::UDP_HEADER
        }
    };
    let customers = plan.flows.iter().map(largest).fold(ETHERNET_MTU, u32::max);
    let protected = |tunnel: &Tunnel| tunnel.mtu + tunnel.overhead();
    let tunnels = plan.tunnels.iter().map(protected).max().unwrap_or(0);
    (customers + around + labels).max(tunnels).min(65_535)
}

fn links_to_customers(router: &Router) -> Vec<usize> {
    let links: BTreeSet<usize> = router.circuits.iter().map(|circuit| circuit.link).collect();
    links.into_iter().collect()
}

/// Settings of a node's kernel. All of them belong to the node's namespace.
fn settings(plan: &Plan, node: usize, router: Option<&Router>) -> Vec<(String, String)> {
    let mut settings = vec![
        // Paths may differ by direction.
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        // One-ended measurement counts every answer.
        ("net.ipv4.icmp_ratemask", "0"),
        ("net.ipv6.icmp.ratelimit", "0"),
        // Echo sockets of the kernel's own, which let nothing damaged through.
        ("net.ipv4.ping_group_range", "0 0"),
        // A receiver joins its group on every interface.
        ("net.ipv4.igmp_max_memberships", "1000"),
        // A flow learns nothing from the one before it.
        ("net.ipv4.tcp_no_metrics_save", "1"),
        ("net.ipv4.tcp_wmem", "4096 65536 67108864"),
        ("net.ipv4.tcp_rmem", "4096 131072 67108864"),
    ];
    if routing::drives(plan, node) {
        // Where the kernel knows labels, it has room for those the daemons bind.
        settings.push(("net.mpls.platform_labels", "1048575"));
    }
    if plan.nodes[node].kind != NodeKind::Host && !plan.is_lan(node) && router.is_none() {
        settings.push(("net.ipv4.ip_forward", "1"));
        settings.push(("net.ipv6.conf.all.forwarding", "1"));
    }
    if plan.nodes[node].device.is_some() {
        // TCP small queues let a connection have a millisecond of its pacing rate in a device's queue, which
        // then hardly overflows. Nothing is paced here, so the rate only decides that.
        settings.push(("net.ipv4.tcp_pacing_ss_ratio", "1000"));
        settings.push(("net.ipv4.tcp_pacing_ca_ratio", "1000"));
        // The token bucket sends by whichever processor is free, and a veth end has a queue for each: now and then
        // segments overtake others by microseconds. RACK that always waits a quarter of the round trip (its
        // reordering window, RFC 8985 section 6.2) does not take that for a loss.
        settings.push(("net.ipv4.tcp_recovery", "7"));
    }
    let of_node = plan.flows.iter().filter(|group| group.from == node || group.to == node);
    let mut configurations = of_node.filter_map(|group| match &group.transport {
        Transport::Tcp(tcp) => Some(tcp),
        _ => None,
    });
    // Where the flows of one host differ, the last one's settings hold; `differences` says so.
    if let Some(tcp) = configurations.next_back() {
        settings.push(("net.ipv4.tcp_sack", flag(tcp.sack)));
        settings.push(("net.ipv4.tcp_timestamps", flag(tcp.timestamps)));
    }
    let mut settings: Vec<(String, String)> =
        settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    settings.extend(lan::settings(plan, node));
    // The interfaces of circuits are the router's alone.
    for link in router.into_iter().flat_map(links_to_customers) {
        let interface = node_interface(link);
        settings.push((format!("net.ipv4.conf.{interface}.arp_ignore"), "8".into()));
        settings.push((format!("net.ipv6.conf.{interface}.disable_ipv6"), "1".into()));
    }
    // Of a service's client; our own sockets set their buffers themselves.
    let clients = plan.flows.iter().filter(|group| group.from == node && group.program.is_some());
    if let Some(buffer) = clients.filter_map(receive_buffer).max() {
        settings.push(("net.ipv4.tcp_moderate_rcvbuf".into(), "0".into()));
        settings.push(("net.ipv4.tcp_rmem".into(), format!("4096 {buffer} {buffer}")));
    }
    settings
}

/// The receive buffer that makes the window of a socket which is not ours what the plan says.
///
/// The kernel lifts a window that was set by other means to what the buffer holds, counting what
/// each segment takes in memory (`tcp_measure_rcv_mss`): a power of two, and its descriptor.
fn receive_buffer(group: &FlowGroup) -> Option<u64> {
    const BESIDE_SEGMENT: u64 = 440;
    const DESCRIPTOR: u64 = 256;
    let Transport::Tcp(tcp) = &group.transport else { return None };
    let segment = u64::from(tcp.max_segment_size);
    let memory = (segment + BESIDE_SEGMENT).next_power_of_two() + DESCRIPTOR;
    // The kernel counts in 256ths, rounded down; one part in a hundred makes up for it.
    Some(tcp.window * memory / segment * 101 / 100)
}

fn flag(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}
