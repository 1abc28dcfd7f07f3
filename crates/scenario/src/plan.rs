//! Plan: a scenario that passed all checks, with names resolved to indices.
//!
//! All stages run plans, and need not check them again. Lists are ordered by name, so equal scenarios give equal
//! plans.

mod gateway;
pub(crate) mod routes;
mod test;

pub use gateway::{Crossing, Software, Tunnel};
pub use test::{ErrorsBy, Method, ROUND_TRIP, Search, Test, Transfer, Tune};

use netstage_core::edge::Settings;
use netstage_core::quantity::BitRate;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::Carriage;
use netstage_core::traffic::{Pattern, Traffic};
use netstage_core::{link, queue, tcp};
use netstage_wire::Encapsulation;
use routes::Topology;
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
    /// Nodes, ordered by name.
    pub nodes: Vec<Node>,
    /// Links, ordered by name.
    pub links: Vec<Link>,
    /// VPNs, ordered by name; the index is the class of their packets.
    pub vpns: Vec<Vpn>,
    /// Flow groups, ordered by name, and after them services, ordered by name.
    pub flows: Vec<FlowGroup>,
    /// Tests, ordered by name; they run after the flows.
    pub tests: Vec<Test>,
    /// Tunnels between gateways, ordered by their first end.
    pub tunnels: Vec<Tunnel>,
    /// Routers that run another project's routing daemons, if any.
    pub routing: Option<Routing>,
    /// Scope of the recording.
    pub measure: Measure,
}

/// Internet exchange or provider network that runs FRR: OSPF between core routers, LDP among all routers, BGP-4
/// between edges; or BGP-4 alone, between edges on a LAN.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Name, as in `[service.NAME]`.
    pub name: String,
    /// Node indices of the core routers; empty if edges peer over a LAN.
    pub core: Vec<usize>,
    /// LAN over which edges peer, without a core.
    pub lan: Option<usize>,
    /// Edge routers.
    pub edges: Vec<Edge>,
    /// Edges advertise IPv6 routes as well.
    pub ipv6: bool,
    /// Hello interval.
    pub hello: Duration,
    /// Dead interval of neighbors in the core.
    pub dead: Duration,
    /// Maximum wait until all routes are learned.
    pub patience: Duration,
}

/// Edge router of a [`Routing`] service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Index of the node.
    pub node: usize,
    /// Autonomous system number.
    pub system: u32,
}

impl Routing {
    /// Returns whether a node is a router of the service.
    pub fn drives(&self, node: usize) -> bool {
        self.core.contains(&node) || self.edge(node).is_some()
    }

    /// Returns the edge router at a node.
    pub fn edge(&self, node: usize) -> Option<&Edge> {
        self.edges.iter().find(|edge| edge.node == node)
    }
}

/// Node of the network.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Name, as in `[node.NAME]`.
    pub name: String,
    /// Kind of the node.
    pub kind: NodeKind,
    /// Network device of a host, if it may limit its rate.
    pub device: Option<Device>,
    /// Lifetime of the ARP entries of a LAN's hosts; `None` for the default of their systems.
    pub arp_timeout: Option<Duration>,
    /// Agent that runs a host or provider edge router on `live`.
    pub place: Option<Placement>,
}

/// Placement of a node on an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Selection of the agent.
    pub agent: Chosen,
    /// Address of the agent's host for flows or tunnels; `None` for the first one the agent reports.
    pub address: Option<IpAddr>,
    /// Interfaces of a provider edge router, by the name of the link.
    pub interfaces: BTreeMap<String, Attachment>,
}

/// Interface of an agent's host that is the end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the interface.
    pub name: String,
    /// Addresses of the provider edge router on the link, with the prefix length.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Next-hop router to the customers, if they are not on the link.
    pub via: Option<IpAddr>,
}

/// Selection of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// By name.
    Named(String),
    /// Any free agent with this label.
    Labelled(String),
}

/// Network device of a host. Its full queue is reported to TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
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
    Gateway(Software),
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
pub struct Link {
    /// Name, as in `[link.NAME]`.
    pub name: String,
    /// Indices of both nodes.
    pub ends: [usize; 2],
    /// Kind of its interfaces.
    pub kind: LinkKind,
    /// Direction from `ends[0]` to `ends[1]`, then the opposite one.
    pub directions: [link::Config; 2],
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
pub struct Vpn {
    /// Name, as in `[vpn.NAME]`.
    pub name: String,
    /// Control and queueing at the ingress, with the weight computed from the topology if requested.
    pub settings: Settings,
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
    pub back: Option<usize>,
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
    pub transport: Transport,
    /// IP version.
    pub family: Family,
    /// Socket options of its datagrams.
    pub datagrams: Datagrams,
    /// Traffic pattern or application.
    pub traffic: Traffic,
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
    pub program: Option<Program>,
}

/// External program of a `[service.NAME]`. The client is `from` of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// FTP server and client (RFC 959), which downloads one file.
    Ftp,
    /// iSCSI target and initiator (RFC 7143), which reads blocks.
    Iscsi,
}

impl Program {
    /// All programs.
    pub const ALL: [Program; 2] = [Program::Ftp, Program::Iscsi];

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
pub enum Transport {
    /// TCP.
    Tcp(tcp::Config),
    /// UDP.
    Udp,
    /// UDP to a multicast group.
    Multicast(Multicast),
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
pub enum Direction {
    /// To the receiver.
    Forward,
    /// To the sender.
    Backward,
}

impl Direction {
    /// Both directions, in the order of their packets.
    pub const BOTH: [Direction; 2] = [Direction::Forward, Direction::Backward];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        }
    }

    /// Returns the subject of a flow's metrics in this direction: `sla[forward]`.
    pub fn of(self, flow: &str) -> String {
        format!("{flow}[{}]", self.name())
    }
}

/// Multicast group of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multicast {
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
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Returns the length of the IP header in bytes.
    pub fn header(self) -> u32 {
        match self {
            Family::V4 => netstage_wire::IPV4_HEADER,
            Family::V6 => netstage_wire::IPV6_HEADER,
        }
    }
}

/// Socket options of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// Differentiated services codepoint (RFC 2474), used by routers, and by PEs with classes.
    pub dscp: u8,
    /// UDP checksum. Without it (IPv4 only), corrupted packets reach the receiver.
    pub checksum: bool,
    /// Bit errors are counted by comparing payloads with a known pattern.
    pub compare: bool,
    /// Packets per buffer passed to the kernel (UDP GSO). Above 1, packets have no individual departure times.
    pub batch: u16,
}

impl Default for Datagrams {
    fn default() -> Datagrams {
        Datagrams { dscp: 0, checksum: true, compare: false, batch: 1 }
    }
}

impl Transport {
    /// Returns how application messages are carried; `None` if they cannot be.
    pub fn carriage(&self) -> Option<Carriage> {
        match self {
            Transport::Tcp(_) | Transport::Quic => Some(Carriage::Stream),
            Transport::Udp => Some(Carriage::Datagram),
            Transport::Multicast(_)
            | Transport::IcmpEcho
            | Transport::UdpUnreachable
            | Transport::Stamp { .. } => None,
        }
    }

    /// Returns the name in scenarios.
    pub fn name(&self) -> &'static str {
        match self {
            Transport::Tcp(_) => "tcp",
            Transport::Udp => "udp",
            Transport::Multicast(_) => "multicast",
            Transport::IcmpEcho => "icmp-echo",
            Transport::UdpUnreachable => "udp-unreachable",
            Transport::Quic => "quic",
            Transport::Stamp { .. } => "stamp",
        }
    }
}

/// Scope and resolution of the recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
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
    pub fn hop(&self, hop: Hop) -> &link::Config {
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
        Topology::new(&kinds, links).shortest(from, to)
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

    /// Returns whether the plan has a run of flows: false if all flows are the load of tests.
    pub fn has_run(&self) -> bool {
        (0..self.flows.len()).any(|flow| !self.tests.iter().any(|test| test.load.contains(&flow)))
    }

    /// Returns whether the run uses random numbers, so that results depend on the seed.
    pub fn is_random(&self) -> bool {
        let is_random_link = |link: &link::Config| {
            let schedule = link.schedule.iter().map(|(_, change)| change);
            let later = schedule.flat_map(|change| [change.loss, change.bit_error_rate]).flatten();
            link.loss + link.bit_error_rate + link.duplicate + later.sum::<f64>() > 0.0
                || link.jitter.amount > Duration::ZERO
                || matches!(link.queue, queue::Config::Red(_) | queue::Config::FqCodel(_))
        };
        // Applications may use random numbers regardless of their settings.
        let is_random_traffic = |traffic: &Traffic| {
            let is_drawn = |pattern: &Pattern| {
                !matches!(pattern, Pattern::Bulk { .. } | Pattern::Cbr { .. } | Pattern::Trace { .. })
            };
            traffic.pattern().is_none_or(is_drawn)
        };
        self.links.iter().flat_map(|link| &link.directions).any(is_random_link)
            || self.flows.iter().any(|flow| is_random_traffic(&flow.traffic))
    }
}
