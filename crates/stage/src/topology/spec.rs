//! Specification of the network that the fabric builds: namespaces, interfaces, addresses, routes. The controller
//! derives it from a plan and passes it to the fabric process as JSON.

use super::address;
use super::distribution::Tree;
use super::layout::{Address, AddressLayout, EndNumbers, RouteOptions};
use super::network::node_interface;
use super::pe::{CustomerCircuit, PeRouter, PeRouters};
use super::{lan, routing};
use netstage_core::link;
use netstage_core::traffic::Pattern;
use netstage_emulator::netem::NetemStages;
use netstage_scenario::plan::{
    FlowGroup, FlowTransport, GatewayTunnel, Hop, IpVersion, LinkKind, NodeKind, Plan,
};
use netstage_wire::Encapsulation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Minimum MTU of an interface: that of Ethernet.
const ETHERNET_MTU: u32 = 1500;
/// Headers of IPv6 and TCP with timestamps, the largest headers of a segment.
const TCP_IP_HEADERS: u32 =
    netstage_wire::IPV6_HEADER + netstage_wire::TCP_HEADER + netstage_wire::TCP_TIMESTAMPS;

/// Network of namespaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// Nodes of the plan, in its order.
    pub nodes: Vec<NodeSpec>,
    /// Used links of the plan, in its order.
    pub links: Vec<LinkSpec>,
    /// MTU of every interface.
    pub mtu: u32,
}

/// Node with a namespace of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Name of the node.
    pub name: String,
    /// True if the node has used links.
    pub used: bool,
    /// Addresses, the node's own one first.
    pub addresses: Vec<AddressSpec>,
    /// Unicast routes.
    pub routes: Vec<RouteSpec>,
    /// Multicast routes.
    pub multicast: Vec<MulticastSpec>,
    /// True if the node is a LAN: a bridge that joins its links.
    pub is_lan: bool,
    /// Indices in the plan of the links to customers, if the node is a provider edge router.
    pub circuits: Vec<usize>,
    /// Kernel settings of the namespace.
    pub settings: Vec<(String, String)>,
    /// Device that limits the rate of its interfaces, if any.
    pub device: Option<DeviceSpec>,
}

/// Network device. Sizes are at the IP layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSpec {
    /// Rate in bits per second.
    pub rate_bps: u64,
    /// Size of its queue in bytes.
    pub buffer: u64,
}

/// Address of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressSpec {
    /// The address.
    pub address: IpAddr,
    /// Prefix length. All addresses of the prefix are on the link.
    pub length: u8,
    /// Index in the plan of the address's link; `None` for the loopback interface.
    pub link: Option<usize>,
}

/// Multicast route. Links are indices in the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MulticastSpec {
    /// Address of the sender.
    pub source: IpAddr,
    /// Multicast group.
    pub group: IpAddr,
    /// Incoming link.
    pub from: usize,
    /// Outgoing links.
    pub to: Vec<usize>,
}

/// Link: two interfaces with the emulator between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSpec {
    /// Index in the plan.
    pub index: usize,
    /// Name of the link.
    pub name: String,
    /// Indices of its nodes.
    pub ends: [usize; 2],
    /// Directions: from `ends[0]` to `ends[1]`, then from `ends[1]` to `ends[0]`.
    pub directions: [link::LinkDirectionConfig; 2],
    /// Configuration of the kernel's netems, if they emulate this link.
    pub netem: Option<[NetemStages; 2]>,
    /// True if its ends resolve each other by ARP and neighbor discovery.
    pub resolves: bool,
    /// True if its ends are TUN interfaces; the emulator holds their descriptors.
    pub is_tun: bool,
}

/// Unicast route.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteSpec {
    /// Destination address, or the first one of the prefix.
    pub destination: IpAddr,
    /// Prefix length.
    pub length: u8,
    /// Index in the plan of the outgoing link.
    pub link: usize,
    /// End of that link at the node.
    pub end: usize,
    /// Address of the neighbor.
    pub gateway: IpAddr,
    /// Source address of sockets that do not set one.
    pub source: Option<IpAddr>,
    /// Initial congestion window in segments.
    pub initial_window: Option<u32>,
    /// Minimum retransmission timeout in milliseconds.
    pub min_rto_ms: Option<u32>,
    /// Negotiate ECN.
    pub ecn: bool,
    /// Maximum window to advertise, in bytes.
    pub window: Option<u32>,
    /// Maximum packet size in bytes.
    pub mtu: Option<u32>,
    /// Name of the congestion control in the kernel.
    pub congestion_control: Option<String>,
}

impl Spec {
    /// Returns the network of a plan.
    pub fn new(plan: &Plan, layout: &AddressLayout, routers: &PeRouters) -> Spec {
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
        let used_nodes: BTreeSet<usize> = links.iter().flat_map(|link| link.ends).collect();
        let node = |index: usize| NodeSpec {
            circuits: routers.get(&index).map_or(Vec::new(), links_to_customers),
            name: plan.nodes[index].name.clone(),
            used: used_nodes.contains(&index),
            is_lan: plan.is_lan(index),
            addresses: address::FAMILIES
                .into_iter()
                .filter(|_| !plan.is_lan(index))
                .flat_map(|family| {
                    let placed = layout.addresses[index].iter().enumerate();
                    placed.map(move |(number, placed)| {
                        let address = address::node_address(family, index, number);
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
            for &CustomerCircuit { link, number, .. } in &router.circuits {
                // The customer's end has an address that the PE can resolve.
                let end = usize::from(plan.links[link].ends[0] == pe);
                let customer = &mut nodes[plan.links[link].ends[end]];
                customer.addresses.extend(address::FAMILIES.map(|family| {
                    let (address, length) = address::circuit_address(family, number, end);
                    AddressSpec { address, length, link: Some(link) }
                }));
            }
        }
        for (node, link) in routing::interfaces(plan) {
            let end = usize::from(plan.links[link].ends[1] == node);
            let (address, length) = address::link_address(link, end);
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

/// Adds the routes to each address at nodes without routing daemons.
fn add_routes(plan: &Plan, layout: &AddressLayout, nodes: &mut [NodeSpec]) {
    for (owner, addresses) in layout.addresses.iter().enumerate() {
        for (number, address) in addresses.iter().enumerate() {
            let own = address
                .routes
                .iter()
                .filter(|(from, _)| !routing::has_daemons(plan, **from) && !plan.is_lan(**from));
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

/// Returns the multicast routes of a node.
fn multicast(plan: &Plan, layout: &AddressLayout, node: usize) -> Vec<MulticastSpec> {
    let groups = plan.flows.iter().zip(&layout.groups).zip(&layout.trees);
    let route = |((flow, placed), tree): ((&FlowGroup, &EndNumbers), &Option<Tree>)| {
        let tree = tree.as_ref()?;
        let forwarding = tree.forwarding.get(&node)?;
        Some(MulticastSpec {
            source: address::node_address(flow.family, flow.from, placed.source),
            group: tree.group,
            from: forwarding.from,
            to: forwarding.to.iter().copied().collect(),
        })
    };
    groups.filter_map(route).collect()
}

/// Returns the route of an edge router to all addresses of a node behind it.
fn route_to_all(plan: &Plan, family: IpVersion, owner: usize, hop: Hop) -> RouteSpec {
    let (destination, length) = address::prefix(family, owner);
    RouteSpec { destination, length, ..route(plan, family, (owner, 0), hop, None) }
}

/// Returns the address of the next router of a hop: on a LAN, that of the station after the LAN.
fn next_router(plan: &Plan, family: IpVersion, routes: &BTreeMap<usize, Hop>, hop: Hop) -> IpAddr {
    let [_, neighbor] = plan.ends(hop);
    let next_hop = routes.get(&neighbor).filter(|_| plan.is_lan(neighbor));
    let on_lan = next_hop.and_then(|next_hop| lan::address(plan, family, next_hop.link));
    on_lan.map_or_else(|| address::node_address(family, neighbor, 0), |(address, _)| address)
}

fn route(
    plan: &Plan,
    family: IpVersion,
    (owner, number): (usize, usize),
    hop: Hop,
    options: Option<&RouteOptions>,
) -> RouteSpec {
    let socket = options.and_then(|options| options.socket.as_ref());
    let [_, neighbor] = plan.ends(hop);
    let destination = address::node_address(family, owner, number);
    RouteSpec {
        destination,
        length: address::host_prefix(destination),
        link: hop.link,
        end: hop.direction,
        gateway: address::node_address(family, neighbor, 0),
        source: None,
        initial_window: options.map(|o| o.initial_window),
        min_rto_ms: options.map(|o| u32::try_from(o.min_rto.0 / 1_000_000).unwrap_or(u32::MAX).max(1)),
        ecn: options.is_some_and(|o| o.ecn),
        window: socket.map(|s| s.window),
        // IPv6 has a minimum MTU (RFC 8200 section 5).
        mtu: socket.map(|s| if family == IpVersion::V6 { s.mtu.max(1280) } else { s.mtu }),
        congestion_control: socket.map(|s| s.congestion_control.clone()),
    }
}

/// Returns the source address of a service's client. Not every program can be configured with one.
fn source(
    plan: &Plan,
    layout: &AddressLayout,
    family: IpVersion,
    from: usize,
    to: &Address,
) -> Option<IpAddr> {
    let service = to.treatment.service.filter(|service| plan.flows[*service].from == from)?;
    Some(address::node_address(family, from, layout.groups[service].source))
}

/// Returns an MTU at which no packet of a flow is fragmented, including its encapsulation.
fn mtu(plan: &Plan, routers: &PeRouters) -> u32 {
    let encapsulation = if routers.is_empty() { 0 } else { Encapsulation::MplsInUdp.overhead() };
    let labels = if plan.routing.is_some() { Encapsulation::Mpls.overhead() } else { 0 };
    let largest = |group: &FlowGroup| match &group.transport {
        FlowTransport::Tcp(tcp) => tcp.max_segment_size + TCP_IP_HEADERS,
        _ => {
            let payload = group.traffic.pattern().map_or(0, Pattern::max_packet_size);
            payload + netstage_wire::IPV6_HEADER + netstage_wire::UDP_HEADER
        }
    };
    let customers = plan.flows.iter().map(largest).fold(ETHERNET_MTU, u32::max);
    let protected = |tunnel: &GatewayTunnel| tunnel.mtu + tunnel.overhead();
    let tunnels = plan.tunnels.iter().map(protected).max().unwrap_or(0);
    (customers + encapsulation + labels).max(tunnels).min(65_535)
}

fn links_to_customers(router: &PeRouter) -> Vec<usize> {
    let links: BTreeSet<usize> = router.circuits.iter().map(|circuit| circuit.link).collect();
    links.into_iter().collect()
}

/// Returns the kernel settings of a node. All of them belong to its namespace.
fn settings(plan: &Plan, node: usize, router: Option<&PeRouter>) -> Vec<(String, String)> {
    let mut settings = vec![
        // Paths may differ by direction.
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        // One-ended measurement counts every reply.
        ("net.ipv4.icmp_ratemask", "0"),
        ("net.ipv6.icmp.ratelimit", "0"),
        // Enables ICMP echo sockets, which discard damaged packets.
        ("net.ipv4.ping_group_range", "0 0"),
        // A receiver joins its group on every interface.
        ("net.ipv4.igmp_max_memberships", "1000"),
        // A flow does not inherit the metrics of an earlier one.
        ("net.ipv4.tcp_no_metrics_save", "1"),
        ("net.ipv4.tcp_wmem", "4096 65536 67108864"),
        ("net.ipv4.tcp_rmem", "4096 131072 67108864"),
    ];
    if routing::has_daemons(plan, node) {
        // A kernel with MPLS has room for the labels that the daemons bind.
        settings.push(("net.mpls.platform_labels", "1048575"));
    }
    let is_forwarding = router.is_none() || super::pe::is_transit(plan, node);
    if plan.nodes[node].kind != NodeKind::Host && !plan.is_lan(node) && is_forwarding {
        settings.push(("net.ipv4.ip_forward", "1"));
        settings.push(("net.ipv6.conf.all.forwarding", "1"));
    }
    if plan.nodes[node].device.is_some() {
        // TCP small queues limit a connection to a millisecond of its pacing rate in the queue of a device, which
        // then hardly overflows. No flow is paced here, so the rate affects only this limit.
        settings.push(("net.ipv4.tcp_pacing_ss_ratio", "1000"));
        settings.push(("net.ipv4.tcp_pacing_ca_ratio", "1000"));
        // The token bucket sends on any free processor, and a veth interface has a queue for each, so segments
        // occasionally overtake others by microseconds. With a permanent reordering window of a quarter of the round
        // trip (RFC 8985 section 6.2), RACK does not detect that as a loss.
        settings.push(("net.ipv4.tcp_recovery", "7"));
    }
    let flows = plan.flows.iter().filter(|group| group.from == node || group.to == node);
    let mut configurations = flows.filter_map(|group| match &group.transport {
        FlowTransport::Tcp(tcp) => Some(tcp),
        _ => None,
    });
    // If the flows of a host differ, the settings of the last one apply, as `differences` reports.
    if let Some(tcp) = configurations.next_back() {
        settings.push(("net.ipv4.tcp_sack", flag(tcp.sack)));
        settings.push(("net.ipv4.tcp_timestamps", flag(tcp.timestamps)));
    }
    let mut settings: Vec<(String, String)> =
        settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    settings.extend(lan::settings(plan, node));
    // Only the PE router uses the interfaces of circuits.
    for link in router.into_iter().flat_map(links_to_customers) {
        let interface = node_interface(link);
        settings.push((format!("net.ipv4.conf.{interface}.arp_ignore"), "8".into()));
        settings.push((format!("net.ipv6.conf.{interface}.disable_ipv6"), "1".into()));
    }
    // For clients of services; netstage's own sockets set their buffers themselves.
    let clients = plan.flows.iter().filter(|group| group.from == node && group.program.is_some());
    if let Some(buffer) = clients.filter_map(receive_buffer).max() {
        settings.push(("net.ipv4.tcp_moderate_rcvbuf".into(), "0".into()));
        settings.push(("net.ipv4.tcp_rmem".into(), format!("4096 {buffer} {buffer}")));
    }
    settings
}

/// Returns the receive buffer in bytes that gives the socket of a third-party program the window of the plan.
///
/// The kernel raises any other window to the content of the buffer, and counts the memory of each segment
/// (`tcp_measure_rcv_mss`): a power of two plus the descriptor.
fn receive_buffer(group: &FlowGroup) -> Option<u64> {
    const SEGMENT_OVERHEAD: u64 = 440;
    const DESCRIPTOR: u64 = 256;
    let FlowTransport::Tcp(tcp) = &group.transport else { return None };
    let segment = u64::from(tcp.max_segment_size);
    let memory = (segment + SEGMENT_OVERHEAD).next_power_of_two() + DESCRIPTOR;
    // The kernel counts in 256ths, rounded down; 1 % compensates for that.
    Some(tcp.window * memory / segment * 101 / 100)
}

fn flag(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}
