//! Assignments for agents. They are sent as JSON inside messages of the agent protocol; [`VERSION`] is
//! incremented by every change that an older agent would misread.

use crate::service::{ServiceRole, ServiceWorkload};
use crate::watch::FlowSpec;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::{FlowTraffic, Pattern};
use netstage_core::{quantity::BitRate, tcp};
use netstage_scenario::plan::Plan;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Version of the JSON encoding of tasks and results.
pub const VERSION: u32 = 1;

/// Complete task of one agent in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// Name of the node the agent represents.
    pub node: String,
    /// Seed of the run.
    pub seed: u64,
    /// Length of the run.
    pub duration: Duration,
    /// Width of a bin.
    pub interval: Duration,
    /// Time for which the run continues without its controller, if it has a lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Duration>,
    /// Flows the agent sends or receives.
    pub flows: Vec<FlowTask>,
    /// Provider edge router to run, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge: Option<EdgeTask>,
    /// TCP flows sent by the agent whose windows it records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<FlowSpec>,
    /// Ends of services, whose programs are third-party.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceTask>,
    /// Clock comparison with the hosts that exchange flows with the agent, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clocks: Option<ClockTask>,
}

impl Assignment {
    /// Returns an empty assignment for a node of a plan.
    pub fn new(plan: &Plan, node: usize, seed: u64) -> Assignment {
        let (duration, interval) = (plan.duration, plan.measure.interval);
        Assignment { seed, ..Assignment::of_flows(&plan.nodes[node].name, duration, interval, Vec::new()) }
    }

    /// Returns an assignment for flows that belong to no plan, with seed 1.
    pub fn of_flows(node: &str, duration: Duration, interval: Duration, flows: Vec<FlowTask>) -> Assignment {
        Assignment {
            node: node.into(),
            seed: 1,
            duration,
            interval,
            lease: None,
            flows,
            edge: None,
            watch: Vec::new(),
            services: Vec::new(),
            clocks: None,
        }
    }

    /// Returns the number and local endpoint of each received flow and of each service. A client's port is not
    /// known in advance, and is zero.
    pub fn received(&self) -> impl Iterator<Item = (u32, SocketAddr)> {
        let flows = self.flows.iter().filter(|flow| flow.side == FlowSide::Receive);
        let services = self.services.iter().map(|service| (service.id, service.local_endpoint()));
        flows.map(|flow| (flow.id, flow.destination)).chain(services)
    }

    /// Returns the numbers of the sent flows and of the services.
    pub fn sent(&self) -> impl Iterator<Item = u32> {
        let flows = self.flows.iter().filter(|flow| flow.side == FlowSide::Send).map(|flow| flow.id);
        flows.chain(self.services.iter().map(|service| service.id))
    }
}

/// Maximum number of hosts with which one host compares clocks.
pub const MAX_CLOCK_PEERS: usize = 64;

/// Clock comparison by STAMP (RFC 8762, authenticated, with monotonic clocks as timestamps). It is available
/// from the preparation of the run until the next run is prepared or the controller is gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockTask {
    /// Key of the run, hexadecimal.
    pub key: String,
    /// Addresses at which the agent answers; it receives flows at them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<SocketAddr>,
    /// Local and remote address of each host to ask; the agent sends flows to these hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<(SocketAddr, SocketAddr)>,
}

/// One end of a service, from the preparation of the run until its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTask {
    /// Name of the service in the scenario.
    pub name: String,
    /// Number of the service among the flows of the run.
    pub id: u32,
    /// Local role.
    pub role: ServiceRole,
    /// Workload of the programs.
    pub task: ServiceWorkload,
    /// Address of the client.
    pub source: IpAddr,
    /// Address and port at which the server listens.
    pub destination: SocketAddr,
    /// Time at which the client starts.
    pub start: Instant,
}

impl ServiceTask {
    /// Returns the local endpoint: the server's address and port, or the client's address with port zero.
    pub fn local_endpoint(&self) -> SocketAddr {
        self.endpoint(self.role == ServiceRole::Server)
    }

    /// Returns the remote endpoint, in the same form.
    pub fn remote_endpoint(&self) -> SocketAddr {
        self.endpoint(self.role == ServiceRole::Client)
    }

    /// Returns the server port of the data connection.
    pub fn data_port(&self) -> u16 {
        self.task.data_port(self.destination)
    }

    fn endpoint(&self, is_server: bool) -> SocketAddr {
        if is_server { self.destination } else { SocketAddr::new(self.source, 0) }
    }
}

/// Provider edge router, from the preparation of the run until its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeTask {
    /// Content of its configuration file.
    pub configuration: String,
}

/// One side of one flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowTask {
    /// Name of the flow in the scenario, as in `bulk[3]`. Its random stream is that of `flow.NAME`, as in the
    /// simulator.
    pub name: String,
    /// Number of the flow, unique in the run and carried in its packets.
    pub id: u32,
    /// Local side.
    pub side: FlowSide,
    /// Transport and its options.
    pub transport: TaskTransport,
    /// Address and port of the sender; port 0 lets the system choose.
    pub source: SocketAddr,
    /// Address and port of the receiver, or the group of a multicast flow.
    pub destination: SocketAddr,
    /// Pattern by which bytes are handed to the transport.
    pub traffic: FlowTraffic,
    /// Start of the flow, relative to the start of the run.
    pub start: Duration,
    /// Time at which the application stops sending.
    pub stop: Duration,
    /// Record per bin the window, round trip and retransmissions, or the delays.
    pub detail: bool,
    /// Time from which delays are recorded; earlier ones belong to the flow's start-up.
    #[serde(default)]
    pub settled: Duration,
    /// DSCP and ECN octet of the IP header (RFC 2474), set by the sender.
    #[serde(default)]
    pub traffic_class: u8,
    /// Path of the flow, if a NAT is between its ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nat: Option<NatPath>,
}

/// Path of a flow through NATs, which the agents have found by path checks. [`FlowTask::source`] and
/// [`FlowTask::destination`] are the addresses of the hosts themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NatPath {
    /// Address of the sender as the receiver sees it. Port 0 stands for any.
    pub source: SocketAddr,
    /// Address at which the sender reaches the receiver. Port 0 stands for any.
    pub destination: SocketAddr,
    /// Side that opens the connection of a TCP flow.
    pub opened_by: FlowSide,
}

impl FlowTask {
    /// Returns the address to which the sender really sends: that of the receiver, or of the NAT in front of it.
    pub fn reached_at(&self) -> SocketAddr {
        self.nat.map_or(self.destination, |path| path.destination)
    }

    /// Returns the address from which the receiver really receives: that of the sender, or of the NAT in front of it.
    pub fn seen_from(&self) -> SocketAddr {
        self.nat.map_or(self.source, |path| path.source)
    }

    /// Returns the local address and the remote one, as this side sees them.
    pub fn local_and_remote(&self) -> (SocketAddr, SocketAddr) {
        match self.side {
            FlowSide::Send => (self.source, self.reached_at()),
            FlowSide::Receive => (self.destination, self.seen_from()),
        }
    }

    /// Returns whether the receiver opens the connection of a TCP flow, because it is behind NAT.
    pub fn is_opened_by_receiver(&self) -> bool {
        self.nat.is_some_and(|path| path.opened_by == FlowSide::Receive)
    }

    /// Returns whether this side sends and requests a CPU for itself.
    pub fn spins(&self) -> bool {
        self.side == FlowSide::Send && matches!(&self.transport, TaskTransport::Udp(options) if options.spin)
    }

    /// Returns a UDP flow with number 1 that begins at the start of the run and records no details.
    pub fn udp(
        name: &str,
        side: FlowSide,
        [source, destination]: [SocketAddr; 2],
        pattern: Pattern,
        stop: Duration,
    ) -> FlowTask {
        FlowTask {
            name: name.into(),
            id: 1,
            side,
            transport: TaskTransport::Udp(UdpOptions::default()),
            source,
            destination,
            traffic: pattern.into(),
            start: Duration::ZERO,
            stop,
            detail: false,
            settled: Duration::ZERO,
            traffic_class: 0,
            nat: None,
        }
    }
}

/// Side of a flow. One-ended transports have a sender only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowSide {
    /// Sender.
    Send,
    /// Receiver.
    Receive,
}

/// Transport of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum TaskTransport {
    /// TCP of the host's kernel.
    Tcp(TcpOptions),
    /// UDP.
    Udp(UdpOptions),
    /// UDP to a multicast group.
    Multicast {
        /// Only source accepted (source-specific multicast); any source where absent.
        source: Option<IpAddr>,
        /// Hop limit of the packets.
        ttl: u8,
        /// Address of the interface on which the receiver joins; every interface where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receiver: Option<IpAddr>,
    },
    /// One-ended ICMP echo, which any host answers.
    IcmpEcho(OneEnded),
    /// One-ended UDP to a closed port, which the host answers with port unreachable.
    UdpUnreachable(OneEnded),
    /// QUIC with one stream.
    Quic,
    /// STAMP (RFC 8762), in which the receiver answers each packet. The traffic pattern determines the packet
    /// size, and contains the interval as well.
    Stamp {
        /// Time between packets.
        interval: Duration,
    },
}

/// TCP socket options. The system's defaults apply to absent ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpOptions {
    /// Congestion control by its kernel name: `reno`, `cubic`, `bbr`.
    pub congestion_control: Option<String>,
    /// Maximum segment size, bytes.
    pub max_segment_size: Option<u32>,
    /// Window the receiver advertises, bytes.
    pub window: Option<u64>,
    /// Send small segments at once (no Nagle).
    pub no_delay: bool,
}

/// UDP options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UdpOptions {
    /// Send with checksum zero, so that packets with flipped bits reach the receiver and can be compared
    /// (IPv4).
    pub checksum_zero: bool,
    /// Fill payloads with a pseudo-random bit sequence and count differing bits.
    pub compare_payload: bool,
    /// Packets the kernel may split from one buffer (UDP GSO). Above 1, packets have no individual timing.
    pub batch: u16,
    /// Reserve a CPU for the sender, which spins until each packet is due. Applies to all flows that the host sends
    /// on schedule.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub spin: bool,
}

/// Restriction on a sender to which no receiver has consented.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OneEnded {
    /// Maximum average rate, payload bits per second; [`ONE_ENDED_LIMIT`] where absent.
    pub limit: Option<BitRate>,
    /// Keep the rate if the host limits its answers; by default, probes are then sent below the limit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_rate: bool,
}

impl From<&tcp::TcpConfig> for TcpOptions {
    fn from(config: &tcp::TcpConfig) -> TcpOptions {
        let name = match config.algorithm {
            tcp::Algorithm::Cubic | tcp::Algorithm::LinuxCubic => "cubic",
            tcp::Algorithm::Reno | tcp::Algorithm::NewReno | tcp::Algorithm::Aimd { .. } => "reno",
        };
        TcpOptions {
            congestion_control: Some(name.into()),
            max_segment_size: Some(config.max_segment_size),
            window: Some(config.window),
            no_delay: true,
        }
    }
}

/// Default rate limit of a one-ended sender, which sends without the receiver's consent.
pub const ONE_ENDED_LIMIT: BitRate = BitRate(10_000_000);
