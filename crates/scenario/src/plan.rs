//! The plan: a scenario after every check, with every name resolved to an index.
//!
//! Simulator and live controller run a plan as it stands; whatever could be wrong with a
//! scenario was refused before one exists. Tables keep the order of their names, so
//! equal scenarios give equal plans.

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

/// A scenario ready to run, for one cell of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What the scenario is called.
    pub title: String,
    /// How long a run of the flows lasts; zero where flows run only beside tests.
    pub duration: Duration,
    /// Nodes, ordered by name.
    pub nodes: Vec<Node>,
    /// Links, ordered by name.
    pub links: Vec<Link>,
    /// VPNs, ordered by name; the index is the class of their packets.
    pub vpns: Vec<Vpn>,
    /// Flow groups, ordered by name, and after them services, ordered by name.
    pub flows: Vec<FlowGroup>,
    /// Measurements made of trials, ordered by name; they follow the run of the flows.
    pub tests: Vec<Test>,
    /// Tunnels between gateways, ordered by the first of their ends.
    pub tunnels: Vec<Tunnel>,
    /// Routers whose routes another project's daemons find, if any.
    pub routing: Option<Routing>,
    /// What is recorded.
    pub measure: Measure,
}

/// An exchange or provider that FRR's daemons drive: OSPF between core routers, LDP among all, BGP-4 between
/// edges; or BGP-4 alone, between edges on a LAN.
#[derive(Clone, Debug, PartialEq)]
pub struct Routing {
    /// Its name, as in `[service.NAME]`.
    pub name: String,
    /// Node indices of the core routers; none where edges peer over a LAN.
    pub core: Vec<usize>,
    /// The LAN over which edges peer where there is no core.
    pub lan: Option<usize>,
    /// Routers at the edge.
    pub edges: Vec<Edge>,
    /// Edges tell each other of IPv6 too.
    pub ipv6: bool,
    /// From greeting to greeting.
    pub hello: Duration,
    /// A neighbour of the core not heard for so long is gone.
    pub dead: Duration,
    /// Longest wait for all routes to be there.
    pub patience: Duration,
}

/// A router at the edge of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Its node.
    pub node: usize,
    /// The number of its autonomous system.
    pub system: u32,
}

impl Routing {
    /// Whether a node is one of its routers.
    pub fn drives(&self, node: usize) -> bool {
        self.core.contains(&node) || self.edge(node).is_some()
    }

    /// The edge at a node.
    pub fn edge(&self, node: usize) -> Option<&Edge> {
        self.edges.iter().find(|edge| edge.node == node)
    }
}

/// A node of the network.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its name, as in `[node.NAME]`.
    pub name: String,
    /// What it is.
    pub kind: NodeKind,
    /// Of a host: its network device, where that may limit it.
    pub device: Option<Device>,
    /// Of a LAN: how long its stations take an answer of address resolution for true, if not as long as their
    /// systems do.
    pub arp_timeout: Option<Duration>,
    /// Of a host or a provider edge router: which agent stands for it on `live`.
    pub place: Option<Placement>,
}

/// Which agent stands for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The agent.
    pub agent: Chosen,
    /// The address of its host that flows, or tunnels, use; none: the first it tells of.
    pub address: Option<IpAddr>,
    /// Of a provider edge router: the interfaces that stand for its links, by the names of the links.
    pub interfaces: BTreeMap<String, Attachment>,
}

/// An interface of a host that stands for a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The interface.
    pub name: String,
    /// The router's addresses there, each with the length of the link's prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The router that customers are behind where they are not on the link.
    pub via: Option<IpAddr>,
}

/// How an agent is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// By name.
    Named(String),
    /// Any that is free and has this label.
    Labelled(String),
}

/// A host's network device, whose full queue TCP is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// How fast it sends, bytes at the IP layer.
    pub rate: BitRate,
    /// Bytes that may wait in its queue.
    pub buffer: u64,
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Sends and receives traffic.
    Host,
    /// Forwards.
    Router,
    /// A provider edge router: forwards, and controls the VPNs that enter at it.
    Pe,
    /// Forwards, through tunnels that it and another gateway are the ends of.
    Gateway(Software),
    /// An Ethernet switch: those joined to it share a subnet.
    Lan,
}

impl NodeKind {
    /// Its name in scenarios.
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

/// What a link's ends are where packets are real.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// Ethernet's.
    #[default]
    Ethernet,
    /// TUN interfaces: packets without a link's header.
    Tun,
}

/// A full-duplex link between two nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Its name, as in `[link.NAME]`.
    pub name: String,
    /// Indices of its two nodes.
    pub ends: [usize; 2],
    /// What its ends are.
    pub kind: LinkKind,
    /// From `ends[0]` to `ends[1]`, then the other way.
    pub directions: [link::Config; 2],
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hop {
    /// Index of the link.
    pub link: usize,
    /// 0: from `ends[0]` to `ends[1]`; 1: the other way.
    pub direction: usize,
}

/// A VPN's traffic in one direction, from one ingress PE to one egress PE.
#[derive(Clone, Debug, PartialEq)]
pub struct Vpn {
    /// Its name, as in `[vpn.NAME]`.
    pub name: String,
    /// How it is treated at its ingress; its weight is resolved from the topology where so asked.
    pub settings: Settings,
    /// Node index of the ingress PE.
    pub ingress: usize,
    /// Node index of the egress PE.
    pub egress: usize,
    /// What its packets have around them between the PEs.
    pub encapsulation: Encapsulation,
    /// From ingress to egress: the way of its management packets.
    pub path: Vec<Hop>,
    /// From egress to ingress: the way of the replies.
    pub reverse: Vec<Hop>,
    /// The VPN that carries what comes back, if any.
    pub back: Option<usize>,
}

/// Flows that differ only in their number and start time.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowGroup {
    /// Its name, as in `[flow.NAME]`; members are `NAME[0]`, `NAME[1]`, …
    pub name: String,
    /// Node index of the sender.
    pub from: usize,
    /// Node index of the receiver.
    pub to: usize,
    /// Index of the VPN that carries it, if any.
    pub vpn: Option<usize>,
    /// How bytes are carried.
    pub transport: Transport,
    /// Version of IP that carries it.
    pub family: Family,
    /// What sockets do with its datagrams.
    pub datagrams: Datagrams,
    /// When bytes are handed over.
    pub traffic: Traffic,
    /// Number of members.
    pub count: usize,
    /// When member 0 starts.
    pub start: Instant,
    /// Member k starts k times this later.
    pub stagger: Duration,
    /// When the application stops sending.
    pub stop: Instant,
    /// Background load: its throughput is subtracted from what others can use.
    pub background: bool,
    /// Hops from sender to receiver.
    pub path: Vec<Hop>,
    /// Hops from receiver to sender.
    pub reverse: Vec<Hop>,
    /// Receivers of a multicast flow beside the first, each with the hops that lead to it.
    pub branches: Vec<Branch>,
    /// Whose programs carry it where packets are real; none: netstage's own.
    pub program: Option<Program>,
}

/// Another project's programs, as `[service.NAME]` names them. `from` of their flow is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    /// An FTP server and client (RFC 959): one file to the client.
    Ftp,
    /// An iSCSI target and initiator (RFC 7143): blocks read by the client.
    Iscsi,
}

impl Program {
    /// All of them.
    pub const ALL: [Program; 2] = [Program::Ftp, Program::Iscsi];

    /// As files call it.
    pub fn name(self) -> &'static str {
        crate::table::word(self)
    }
}

impl FlowGroup {
    /// The ways to all its receivers.
    pub fn paths(&self) -> impl Iterator<Item = &[Hop]> {
        std::iter::once(&self.path[..]).chain(self.branches.iter().map(|branch| &branch.path[..]))
    }

    /// The hops its packets cross, each once.
    pub fn hops(&self) -> BTreeSet<Hop> {
        self.paths().flatten().copied().collect()
    }
}

/// A further receiver of a multicast flow. The ways to all receivers form a tree that leaves the
/// sender by one link.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// Node index of the receiver.
    pub to: usize,
    /// Hops from the sender.
    pub path: Vec<Hop>,
}

/// How a flow's bytes are carried.
#[derive(Clone, Debug, PartialEq)]
pub enum Transport {
    /// TCP.
    Tcp(tcp::Config),
    /// UDP.
    Udp,
    /// UDP to a multicast group.
    Multicast(Multicast),
    /// ICMP echo: one-ended, any host answers with as many bytes.
    IcmpEcho,
    /// UDP to a closed port: one-ended, the host answers port-unreachable.
    UdpUnreachable,
    /// QUIC (RFC 9000).
    Quic,
    /// STAMP (RFC 8762): the receiver answers each packet. Of tests only.
    Stamp {
        /// From packet to packet.
        interval: Duration,
    },
}

/// A direction of a flow whose packets are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To the one who answers.
    Forward,
    /// Back.
    Backward,
}

impl Direction {
    /// Both, as their packets go.
    pub const BOTH: [Direction; 2] = [Direction::Forward, Direction::Backward];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        }
    }

    /// Subject of what is measured of a flow in this direction: `sla[forward]`.
    pub fn of(self, flow: &str) -> String {
        format!("{flow}[{}]", self.name())
    }
}

/// A multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multicast {
    /// Its address; `None` for one the stage chooses.
    pub group: Option<IpAddr>,
    /// Receivers join the sender's channel alone (RFC 4607), not what any source sends.
    pub source_specific: bool,
    /// Hops a packet may live.
    pub hops: u8,
}

/// A version of IP.
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
    /// Length of its header, bytes.
    pub fn header(self) -> u32 {
        match self {
            Family::V4 => netstage_wire::IPV4_HEADER,
            Family::V6 => netstage_wire::IPV6_HEADER,
        }
    }
}

/// What sockets do with datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagrams {
    /// What routers, and PEs with classes, are told of its urgency (RFC 2474).
    pub dscp: u8,
    /// UDP carries a checksum. Without one (IPv4), changed packets reach the receiver.
    pub checksum: bool,
    /// Payloads hold a known pattern, and bits that differ are counted.
    pub compare: bool,
    /// Packets handed to the kernel in one buffer (UDP GSO); above 1 none has its own time.
    pub batch: u16,
}

impl Default for Datagrams {
    fn default() -> Datagrams {
        Datagrams { dscp: 0, checksum: true, compare: false, batch: 1 }
    }
}

impl Transport {
    /// How it carries the messages of an application; `None` where it cannot.
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

    /// Its name in scenarios.
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

/// What is recorded, and how finely.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Width of a bin.
    pub interval: Duration,
    /// Series of every flow's window, round trip and retransmissions, not only its throughput.
    pub flow_detail: bool,
    /// What happens to the windows of TCP flows, and why.
    pub tcp_events: bool,
    /// Delays of the packets of UDP flows, as series and distributions.
    pub delay: bool,
}

impl Plan {
    /// Name of one direction of a link, the subject of its series: `core.forward`.
    pub fn hop_name(&self, hop: Hop) -> String {
        let direction = ["forward", "reverse"][hop.direction];
        format!("{}.{direction}", self.links[hop.link].name)
    }

    /// Configuration of one direction of a link.
    pub fn hop(&self, hop: Hop) -> &link::Config {
        &self.links[hop.link].directions[hop.direction]
    }

    /// The node a hop leaves, and the one it leads to.
    pub fn ends(&self, hop: Hop) -> [usize; 2] {
        let ends = self.links[hop.link].ends;
        [ends[hop.direction], ends[1 - hop.direction]]
    }

    /// The path with the fewest links from one node to another, of several the one whose names come
    /// first; none where only hosts lead there.
    pub fn shortest(&self, from: usize, to: usize) -> Option<Vec<Hop>> {
        let kinds: Vec<NodeKind> = self.nodes.iter().map(|node| node.kind).collect();
        let links = self.links.iter().enumerate().map(|(index, link)| (index, link.ends));
        Topology::new(&kinds, links).shortest(from, to)
    }

    /// Name of member `index` of a group: `bulk[3]`, or `bulk` where there is only one.
    pub fn flow_name(&self, group: usize, index: usize) -> String {
        let group = &self.flows[group];
        if group.count == 1 { group.name.clone() } else { format!("{}[{index}]", group.name) }
    }

    /// Who receives member `index` of a group, each with the subject of what is measured there:
    /// the flow's name, or `tv@kitchen` where it has several receivers.
    pub fn receivers(&self, group: usize, index: usize) -> Vec<(usize, String)> {
        let (flow, name) = (&self.flows[group], self.flow_name(group, index));
        if flow.branches.is_empty() {
            return vec![(flow.to, name)];
        }
        let subject = |node: usize| format!("{name}@{}", self.nodes[node].name);
        let further = flow.branches.iter().map(|branch| branch.to);
        std::iter::once(flow.to).chain(further).map(|node| (node, subject(node))).collect()
    }

    /// The LAN a link leads to, if one of its ends is.
    pub fn lan_of(&self, link: usize) -> Option<usize> {
        self.links[link].ends.into_iter().find(|end| self.is_lan(*end))
    }

    /// Whether a node is a LAN.
    pub fn is_lan(&self, node: usize) -> bool {
        matches!(self.nodes[node].kind, NodeKind::Lan)
    }

    /// Whether flows run by themselves: not if all of them are there only beside tests.
    pub fn has_run(&self) -> bool {
        (0..self.flows.len()).any(|flow| !self.tests.iter().any(|test| test.load.contains(&flow)))
    }

    /// Whether anything draws random numbers, so that seeds differ.
    pub fn is_random(&self) -> bool {
        let random_link = |link: &link::Config| {
            let schedule = link.schedule.iter().map(|(_, change)| change);
            let later = schedule.flat_map(|change| [change.loss, change.bit_error_rate]).flatten();
            link.loss + link.bit_error_rate + link.duplicate + later.sum::<f64>() > 0.0
                || link.jitter.amount > Duration::ZERO
                || matches!(link.queue, queue::Config::Red(_) | queue::Config::FqCodel(_))
        };
        // An application may draw in ways its settings do not show.
        let random_traffic = |traffic: &Traffic| {
            let drawn = |pattern: &Pattern| {
                !matches!(pattern, Pattern::Bulk { .. } | Pattern::Cbr { .. } | Pattern::Trace { .. })
            };
            traffic.pattern().is_none_or(drawn)
        };
        self.links.iter().flat_map(|link| &link.directions).any(random_link)
            || self.flows.iter().any(|flow| random_traffic(&flow.traffic))
    }
}
