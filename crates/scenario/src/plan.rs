//! Plan: a scenario that passed all checks, with names resolved to indices.
//!
//! All stages run plans, and need not check them again. Lists are ordered by name, so equal scenarios give equal
//! plans.

mod gateway;
mod route_server;
pub(crate) mod routes;
mod test;

pub use gateway::{GatewaySoftware, GatewayTunnel, TunnelCrossing};
pub use route_server::{LimitAction, MemberAction, MemberChange, RouteServer};
pub use test::{ErrorDetection, Method, ROUND_TRIP, RateSearchConfig, TestPlan, TransferConfig, TuneConfig};

use netstage_core::edge::VpnFlowSettings;
use netstage_core::quantity::BitRate;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::FlowTraffic;
use netstage_core::traffic::application::TransportKind;
use netstage_core::{link, queue, tcp};
use netstage_wire::Encapsulation;
use routes::NodeAdjacency;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Scenario ready to run, for one cell of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Title of the scenario.
    pub title: String,
    /// Duration of a run of the flows; zero if flows are only the load of tests.
    pub duration: Duration,
    /// Time for which agents on hosts continue a run without their controller, if it is set.
    pub lease: Option<Duration>,
    /// Nodes, ordered by name.
    pub nodes: Vec<NodePlan>,
    /// Links, ordered by name.
    pub links: Vec<LinkPlan>,
    /// VPNs, ordered by name; the index is the class of their packets.
    pub vpns: Vec<VpnPlan>,
    /// Flow groups, ordered by name, and after them services, ordered by name.
    pub flows: Vec<FlowGroup>,
    /// Tests, ordered by name; they run after the flows.
    pub tests: Vec<TestPlan>,
    /// Tunnels between gateways, ordered by their first end.
    pub tunnels: Vec<GatewayTunnel>,
    /// Routers that run another project's routing daemons, if any.
    pub routing: Option<RoutingService>,
    /// Route server of an exchange, if any.
    pub route_server: Option<RouteServer>,
    /// Scope of the recording.
    pub measure: MeasureConfig,
}

/// Internet exchange or provider network that runs FRR: OSPF between core routers, LDP among all routers, BGP-4
/// between edges; or BGP-4 alone, between edges on a LAN.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutingService {
    /// Name, as in `[service.NAME]`.
    pub name: String,
    /// Node indices of the core routers; empty if edges peer over a LAN.
    pub core: Vec<usize>,
    /// LAN over which edges peer, without a core.
    pub lan: Option<usize>,
    /// Edge routers.
    pub edges: Vec<EdgeRouter>,
    /// Edges advertise IPv6 routes as well.
    pub ipv6: bool,
    /// Hello interval.
    pub hello: Duration,
    /// Dead interval of neighbors in the core.
    pub dead: Duration,
    /// Interval of BFD packets between neighbors.
    pub bfd: Option<Duration>,
    /// Maximum wait until all routes are learned.
    pub ready_timeout: Duration,
}

/// Edge router of a [`RoutingService`], or member of a [`RouteServer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeRouter {
    /// Index of the node.
    pub node: usize,
    /// Autonomous system number.
    pub system: u32,
}

impl RoutingService {
    /// Returns whether a node is a router of the service.
    pub fn contains(&self, node: usize) -> bool {
        self.core.contains(&node) || self.edge(node).is_some()
    }

    /// Returns the edge router at a node.
    pub fn edge(&self, node: usize) -> Option<&EdgeRouter> {
        self.edges.iter().find(|edge| edge.node == node)
    }
}

/// Node of the network.
#[derive(Clone, Debug, PartialEq)]
pub struct NodePlan {
    /// Name, as in `[node.NAME]`.
    pub name: String,
    /// Kind of the node.
    pub kind: NodeKind,
    /// Network device of a host, if it may limit its rate.
    pub device: Option<HostDevice>,
    /// Lifetime of the ARP entries of a LAN's hosts; `None` for the default of their systems.
    pub arp_timeout: Option<Duration>,
    /// Agent that runs a host or provider edge router on `live`.
    pub placement: Option<NodePlacement>,
}

/// Placement of a node on an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlacement {
    /// Selection of the agent.
    pub agent: AgentSelector,
    /// Address of the agent's host for flows or tunnels; `None` for the first one the agent reports.
    pub address: Option<IpAddr>,
    /// Interfaces of a provider edge router, by the name of the link.
    pub interfaces: BTreeMap<String, LinkAttachment>,
}

/// Interface of an agent's host that is the end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkAttachment {
    /// Name of the interface.
    pub name: String,
    /// Addresses of the provider edge router on the link, with the prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Next-hop router to the customers, if they are not on the link.
    pub via: Option<IpAddr>,
}

/// Selection of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentSelector {
    /// By name.
    Named(String),
    /// Any free agent with this label.
    Labeled(String),
}

/// Network device of a host. Its full queue is reported to TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// Sending rate at the IP layer.
    pub rate: BitRate,
    /// Capacity of its queue in bytes.
    pub buffer: u64,
}

/// Kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Host, which sends and receives traffic.
    Host,
    /// Router.
    Router,
    /// Provider edge router, which forwards packets and controls the VPNs that enter at it.
    Pe,
    /// Gateway, which forwards packets through a tunnel to another gateway.
    Gateway(GatewaySoftware),
    /// Ethernet switch, whose hosts and routers share a subnet.
    Lan,
}

impl NodeKind {
    /// Returns the name in scenarios.
    pub fn name(self) -> &'static str {
        match self {
            NodeKind::Host => "host",
            NodeKind::Router => "router",
            NodeKind::Pe => "pe",
            NodeKind::Gateway(software) => software.kind(),
            NodeKind::Lan => "lan",
        }
    }
}

/// Kind of a link's interfaces on stages with real packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// Ethernet interfaces.
    #[default]
    Ethernet,
    /// TUN interfaces: packets without a link-layer header.
    Tun,
}

/// Full-duplex link between two nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkPlan {
    /// Name, as in `[link.NAME]`.
    pub name: String,
    /// Indices of both nodes.
    pub ends: [usize; 2],
    /// Kind of its interfaces.
    pub kind: LinkKind,
    /// Direction from `ends[0]` to `ends[1]`, then the opposite one.
    pub directions: [link::LinkDirectionConfig; 2],
}

/// Direction of a link, as a step of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// Index of the link.
    pub link: usize,
    /// 0 from `ends[0]` to `ends[1]`, 1 in the opposite direction.
    pub direction: usize,
}

/// Traffic of a VPN in one direction, from one ingress PE to one egress PE.
#[derive(Clone, Debug, PartialEq)]
pub struct VpnPlan {
    /// Name, as in `[vpn.NAME]`.
    pub name: String,
    /// Control and queueing at the ingress, with the weight computed from the topology if requested.
    pub settings: VpnFlowSettings,
    /// Node index of the ingress PE.
    pub ingress: usize,
    /// Node index of the egress PE.
    pub egress: usize,
    /// Encapsulation between the PEs.
    pub encapsulation: Encapsulation,
    /// Path of management packets, from ingress to egress.
    pub path: Vec<Hop>,
    /// Path of replies, from egress to ingress.
    pub reverse: Vec<Hop>,
    /// Index of the VPN of the opposite direction, if any.
    pub opposite: Option<usize>,
}

/// Group of flows that differ only in number and start time.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowGroup {
    /// Name, as in `[flow.NAME]`; members are `NAME[0]`, `NAME[1]`, …
    pub name: String,
    /// Node index of the sender.
    pub from: usize,
    /// Node index of the receiver.
    pub to: usize,
    /// Index of the VPN of the flow, if any.
    pub vpn: Option<usize>,
    /// Transport protocol.
    pub transport: FlowTransport,
    /// IP version.
    pub family: IpVersion,
    /// The scenario does not set the IP version: hosts of a fleet that do not both have `family` use the other one.
    pub any_version: bool,
    /// Socket options of its datagrams.
    pub datagrams: DatagramOptions,
    /// Traffic pattern or application.
    pub traffic: FlowTraffic,
    /// Number of members.
    pub count: usize,
    /// Start time of member 0.
    pub start: Instant,
    /// Interval between the start times of consecutive members.
    pub stagger: Duration,
    /// Time at which the application stops sending.
    pub stop: Instant,
    /// Background load. Its throughput is subtracted from the capacity of other flows.
    pub background: bool,
    /// Hops from sender to receiver.
    pub path: Vec<Hop>,
    /// Hops from receiver to sender.
    pub reverse: Vec<Hop>,
    /// Receivers of a multicast flow after the first, with their paths.
    pub branches: Vec<Branch>,
    /// External program of the flow on stages with real packets; `None` for netstage itself.
    pub program: Option<ServiceProgram>,
    /// Whether the simulator sends exactly on schedule, as for the probe of a test. Other flows start at random up to a
    /// packet's time late, and their hosts delay segments by up to a packet's time, as in a real network.
    pub exact: bool,
}

/// External program of a `[service.NAME]`. The client is `from` of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceProgram {
    /// FTP server and client (RFC 959), which downloads one file.
    Ftp,
    /// iSCSI target and initiator (RFC 7143), which reads blocks.
    Iscsi,
}

impl ServiceProgram {
    /// All programs.
    pub const ALL: [ServiceProgram; 2] = [ServiceProgram::Ftp, ServiceProgram::Iscsi];

    /// Returns the name in scenario and policy files.
    pub fn name(self) -> &'static str {
        crate::table::word(self)
    }
}

impl FlowGroup {
    /// Returns the paths to all receivers.
    pub fn paths(&self) -> impl Iterator<Item = &[Hop]> {
        std::iter::once(&self.path[..]).chain(self.branches.iter().map(|branch| &branch.path[..]))
    }

    /// Returns the hops of all paths, each once.
    pub fn hops(&self) -> BTreeSet<Hop> {
        self.paths().flatten().copied().collect()
    }
}

/// Further receiver of a multicast flow. The paths to all receivers form a tree that leaves the sender on one link.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// Node index of the receiver.
    pub to: usize,
    /// Hops from the sender.
    pub path: Vec<Hop>,
}

/// Transport protocol of a flow.
#[derive(Clone, Debug, PartialEq)]
pub enum FlowTransport {
    /// TCP.
    Tcp(tcp::TcpConfig),
    /// UDP.
    Udp,
    /// UDP to a multicast group.
    Multicast(MulticastGroup),
    /// ICMP echo: one-ended, with a reply of the same size from any host.
    IcmpEcho,
    /// UDP to a closed port: one-ended, with a port-unreachable reply.
    UdpUnreachable,
    /// QUIC (RFC 9000).
    Quic,
    /// STAMP (RFC 8762), in tests only: the receiver reflects each packet.
    Stamp {
        /// Interval between packets.
        interval: Duration,
    },
}

/// Direction of a flow with replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowDirection {
    /// To the receiver.
    Forward,
    /// To the sender.
    Backward,
}

impl FlowDirection {
    /// Both directions, in the order of their packets.
    pub const BOTH: [FlowDirection; 2] = [FlowDirection::Forward, FlowDirection::Backward];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            FlowDirection::Forward => "forward",
            FlowDirection::Backward => "backward",
        }
    }

    /// Returns the subject of a flow's metrics in this direction: `sla[forward]`.
    pub fn subject(self, flow: &str) -> String {
        format!("{flow}[{}]", self.name())
    }
}

/// Multicast group of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastGroup {
    /// Group address; `None` for one chosen by the stage.
    pub group: Option<IpAddr>,
    /// Source-specific multicast (RFC 4607): receivers join the channel of the sender only.
    pub source_specific: bool,
    /// Time to live of packets.
    pub hops: u8,
}

/// IP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IpVersion {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// Returns the length of the IP header in bytes.
    pub fn header(self) -> u32 {
        match self {
            IpVersion::V4 => netstage_wire::IPV4_HEADER,
            IpVersion::V6 => netstage_wire::IPV6_HEADER,
        }
    }
}

/// Socket options of a flow's packets; all but the DSCP are those of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramOptions {
    /// Differentiated services codepoint (RFC 2474), used by routers, and by PEs with classes.
    pub dscp: u8,
    /// UDP checksum. Without it (IPv4 only), corrupted packets reach the receiver.
    pub checksum: bool,
    /// Bit errors are counted by comparing payloads with a known pattern.
    pub compare: bool,
    /// Packets per buffer passed to the kernel (UDP GSO). Above 1, packets have no individual departure times.
    pub batch: u16,
    /// The sender spins on a CPU of its own until each packet is due.
    pub spin: bool,
}

impl Default for DatagramOptions {
    fn default() -> DatagramOptions {
        DatagramOptions { dscp: 0, checksum: true, compare: false, batch: 1, spin: false }
    }
}

impl FlowTransport {
    /// Returns whether any host answers the packets, without a receiver of its own.
    pub fn is_one_ended(&self) -> bool {
        matches!(self, FlowTransport::IcmpEcho | FlowTransport::UdpUnreachable)
    }

    /// Returns how application messages are carried; `None` if they cannot be.
    pub fn carriage(&self) -> Option<TransportKind> {
        match self {
            FlowTransport::Tcp(_) | FlowTransport::Quic => Some(TransportKind::Stream),
            FlowTransport::Udp => Some(TransportKind::Datagram),
            FlowTransport::Multicast(_)
            | FlowTransport::IcmpEcho
            | FlowTransport::UdpUnreachable
            | FlowTransport::Stamp { .. } => None,
        }
    }

    /// Returns the name in scenarios.
    pub fn name(&self) -> &'static str {
        match self {
            FlowTransport::Tcp(_) => "tcp",
            FlowTransport::Udp => "udp",
            FlowTransport::Multicast(_) => "multicast",
            FlowTransport::IcmpEcho => "icmp-echo",
            FlowTransport::UdpUnreachable => "udp-unreachable",
            FlowTransport::Quic => "quic",
            FlowTransport::Stamp { .. } => "stamp",
        }
    }
}

/// Scope and resolution of the recording.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasureConfig {
    /// Width of a bin.
    pub interval: Duration,
    /// Series of the window, round trip and retransmissions of every flow, in addition to its throughput.
    pub flow_detail: bool,
    /// Window events of TCP flows, with their causes.
    pub tcp_events: bool,
    /// Delays of the packets of UDP flows, as series and distributions.
    pub delay: bool,
}

impl Plan {
    /// Returns the name of a link direction, which is the subject of its series: `core.forward`.
    pub fn hop_name(&self, hop: Hop) -> String {
        let direction = ["forward", "reverse"][hop.direction];
        format!("{}.{direction}", self.links[hop.link].name)
    }

    /// Returns the configuration of a link direction.
    pub fn hop(&self, hop: Hop) -> &link::LinkDirectionConfig {
        &self.links[hop.link].directions[hop.direction]
    }

    /// Returns the nodes at the start and the end of a hop.
    pub fn ends(&self, hop: Hop) -> [usize; 2] {
        let ends = self.links[hop.link].ends;
        [ends[hop.direction], ends[1 - hop.direction]]
    }

    /// Returns the path with the fewest links between two nodes, with ties resolved by name; `None` if there is none
    /// without a host in the middle.
    pub fn shortest(&self, from: usize, to: usize) -> Option<Vec<Hop>> {
        let kinds: Vec<NodeKind> = self.nodes.iter().map(|node| node.kind).collect();
        let links = self.links.iter().enumerate().map(|(index, link)| (index, link.ends));
        NodeAdjacency::new(&kinds, links).shortest(from, to).map(|path| path.to_vec())
    }

    /// Returns the name of member `index` of a group: `bulk[3]`, or `bulk` if it has one member.
    pub fn flow_name(&self, group: usize, index: usize) -> String {
        let group = &self.flows[group];
        if group.count == 1 { group.name.clone() } else { format!("{}[{index}]", group.name) }
    }

    /// Returns the receivers of member `index` of a group, with the subjects of their metrics: the flow's name, or
    /// `tv@kitchen` if the flow has several receivers.
    pub fn receivers(&self, group: usize, index: usize) -> Vec<(usize, String)> {
        let (flow, name) = (&self.flows[group], self.flow_name(group, index));
        if flow.branches.is_empty() {
            return vec![(flow.to, name)];
        }
        let subject = |node: usize| format!("{name}@{}", self.nodes[node].name);
        let further = flow.branches.iter().map(|branch| branch.to);
        std::iter::once(flow.to).chain(further).map(|node| (node, subject(node))).collect()
    }

    /// Returns the LAN at an end of a link, if any.
    pub fn lan_of(&self, link: usize) -> Option<usize> {
        self.links[link].ends.into_iter().find(|end| self.is_lan(*end))
    }

    /// Returns whether a node is a LAN.
    pub fn is_lan(&self, node: usize) -> bool {
        matches!(self.nodes[node].kind, NodeKind::Lan)
    }

    /// Returns whether the plan has a run of flows or of a route server: false if all flows are the load of tests.
    pub fn has_run(&self) -> bool {
        let is_load = |flow: usize| self.tests.iter().any(|test| test.load.contains(&flow));
        self.route_server.is_some() || (0..self.flows.len()).any(|flow| !is_load(flow))
    }

    /// Returns whether the run uses random numbers, so that results depend on the seed.
    pub fn is_random(&self) -> bool {
        let is_random_link = |link: &link::LinkDirectionConfig| {
            let schedule = link.schedule.iter().map(|(_, change)| change);
            let later = schedule.flat_map(|change| [change.loss, change.bit_error_rate]).flatten();
            link.loss + link.bit_error_rate + link.duplicate + later.sum::<f64>() > 0.0
                || link.jitter.amount > Duration::ZERO
                || matches!(link.queue, queue::QueueConfig::Red(_) | queue::QueueConfig::FqCodel(_))
        };
        // Flows start at random offsets.
        !self.flows.is_empty() || self.links.iter().flat_map(|link| &link.directions).any(is_random_link)
    }
}
