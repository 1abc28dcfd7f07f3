//! What an agent is asked to do. Travels as JSON inside the messages of the agents'
//! protocol; [`VERSION`] grows with every change that an older agent would misread.

use crate::service::{Role, Task};
use crate::watch::FlowSpec;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::{Pattern, Traffic};
use netstage_core::{quantity::BitRate, tcp};
use netstage_scenario::plan::Plan;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Version of tasks and results.
pub const VERSION: u32 = 1;

/// Everything one agent does in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// Name of the node it stands for.
    pub node: String,
    /// Seed of the run.
    pub seed: u64,
    /// Length of the run.
    pub duration: Duration,
    /// Width of a bin.
    pub interval: Duration,
    /// Flows it sends or receives.
    pub flows: Vec<FlowTask>,
    /// What it does as a provider edge router, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge: Option<EdgeTask>,
    /// TCP it sends of whose windows it tells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<FlowSpec>,
    /// Ends of services: programs of others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceTask>,
    /// Its part in comparing the clocks of hosts that send to each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clocks: Option<ClockTask>,
}

impl Assignment {
    /// That of a node of a plan, with nothing to do yet.
    pub fn new(plan: &Plan, node: usize, seed: u64) -> Assignment {
        let (duration, interval) = (plan.duration, plan.measure.interval);
        Assignment { seed, ..Assignment::of_flows(&plan.nodes[node].name, duration, interval, Vec::new()) }
    }

    /// That of flows which no plan has, with the seed 1.
    pub fn of_flows(node: &str, duration: Duration, interval: Duration, flows: Vec<FlowTask>) -> Assignment {
        Assignment {
            node: node.into(),
            seed: 1,
            duration,
            interval,
            flows,
            edge: None,
            watch: Vec::new(),
            services: Vec::new(),
            clocks: None,
        }
    }

    /// Number of each flow and service by which it is sent to, and where. A client's port is not known before.
    pub fn received(&self) -> impl Iterator<Item = (u32, SocketAddr)> {
        let flows = self.flows.iter().filter(|flow| flow.side == Side::Receive);
        let services = self.services.iter().map(|service| (service.id, service.own()));
        flows.map(|flow| (flow.id, flow.destination)).chain(services)
    }

    /// Numbers of the flows and services by which it sends to others.
    pub fn sent(&self) -> impl Iterator<Item = u32> {
        let flows = self.flows.iter().filter(|flow| flow.side == Side::Send).map(|flow| flow.id);
        flows.chain(self.services.iter().map(|service| service.id))
    }
}

/// Most hosts whose clocks one host asks.
pub const MOST_ASKED: usize = 64;

/// Comparing clocks by STAMP (RFC 8762, authenticated, the monotonic clocks for timestamps), from when the run is
/// prepared until the next one, or its controller is gone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockTask {
    /// The run's key, hexadecimal.
    pub key: String,
    /// Where it answers: addresses it receives flows at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<SocketAddr>,
    /// Whom it asks, with its own end first: hosts it sends flows to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<(SocketAddr, SocketAddr)>,
}

/// One end of a service, from when the run is prepared until it is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTask {
    /// Name of the service in the scenario.
    pub name: String,
    /// Its number among the run's flows.
    pub id: u32,
    /// Which end this is.
    pub role: Role,
    /// What its programs do.
    pub task: Task,
    /// The client's address.
    pub source: IpAddr,
    /// Where the server listens.
    pub destination: SocketAddr,
    /// When the client begins.
    pub start: Instant,
}

impl ServiceTask {
    /// Where this end is sent to: the server's port, or the client's address with port zero.
    pub fn own(&self) -> SocketAddr {
        self.end(self.role == Role::Server)
    }

    /// Where it sends to, likewise.
    pub fn other(&self) -> SocketAddr {
        self.end(self.role == Role::Client)
    }

    /// The port at the server of the connection that carries what is asked for.
    pub fn data_port(&self) -> u16 {
        self.task.data_port(self.destination)
    }

    fn end(&self, is_server: bool) -> SocketAddr {
        if is_server { self.destination } else { SocketAddr::new(self.source, 0) }
    }
}

/// A provider edge router, from when the run is prepared until it is over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeTask {
    /// Its configuration file.
    pub configuration: String,
}

/// One side of one flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowTask {
    /// Name of the flow in the scenario: `bulk[3]`. Its random stream is that of
    /// `flow.NAME`, as in the simulator.
    pub name: String,
    /// Number of the flow, unique in the run; its packets carry it.
    pub id: u32,
    /// Which side this is.
    pub side: Side,
    /// How bytes are carried.
    pub transport: Transport,
    /// Address and port on the sender's side; port 0 lets the system choose.
    pub source: SocketAddr,
    /// Address and port on the receiver's side; a multicast flow's group.
    pub destination: SocketAddr,
    /// When bytes are handed over.
    pub traffic: Traffic,
    /// When it starts, from the start of the run.
    pub start: Duration,
    /// When its application stops sending.
    pub stop: Duration,
    /// Record window, round trip and retransmissions, or travel times, per bin.
    pub detail: bool,
    /// Travel times count from then on: what comes before is the flow settling.
    #[serde(default)]
    pub settled: Duration,
    /// The IP header's octet of DSCP and ECN (RFC 2474) the sender asks for.
    #[serde(default)]
    pub traffic_class: u8,
}

impl FlowTask {
    /// A flow over UDP between two ends, without details and from the start of the run on; its number is 1.
    pub fn udp(
        name: &str,
        side: Side,
        [source, destination]: [SocketAddr; 2],
        pattern: Pattern,
        stop: Duration,
    ) -> FlowTask {
        FlowTask {
            name: name.into(),
            id: 1,
            side,
            transport: Transport::Udp(UdpOptions::default()),
            source,
            destination,
            traffic: pattern.into(),
            start: Duration::ZERO,
            stop,
            detail: false,
            settled: Duration::ZERO,
            traffic_class: 0,
        }
    }
}

/// A side of a flow. One-ended transports have a sender only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Sends.
    Send,
    /// Receives.
    Receive,
}

/// How bytes are carried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Transport {
    /// TCP, as the system's kernel speaks it.
    Tcp(TcpOptions),
    /// UDP.
    Udp(UdpOptions),
    /// UDP to a multicast group.
    Multicast {
        /// The only source listened to (source-specific multicast), or any.
        source: Option<IpAddr>,
        /// Hops a packet may live.
        ttl: u8,
        /// The receiver's address: it joins on that interface. Left out: on every one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        receiver: Option<IpAddr>,
    },
    /// ICMP echo: one-ended, any host answers.
    IcmpEcho(OneEnded),
    /// UDP to a closed port: one-ended, the host answers port-unreachable.
    UdpUnreachable(OneEnded),
    /// QUIC, one stream.
    Quic,
    /// STAMP (RFC 8762): the receiving side answers each packet. The pattern has the gap, too, and
    /// says how large packets are.
    Stamp {
        /// From packet to packet.
        interval: Duration,
    },
}

/// What a socket is told of TCP. Left out: the system's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TcpOptions {
    /// Congestion control by the kernel's name for it: `reno`, `cubic`, `bbr`.
    pub congestion_control: Option<String>,
    /// Largest payload of a segment, bytes.
    pub max_segment_size: Option<u32>,
    /// Window the receiver advertises, bytes.
    pub window: Option<u64>,
    /// Send small segments at once (no Nagle).
    pub no_delay: bool,
}

/// What is done to UDP packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UdpOptions {
    /// Send with checksum zero, so that packets with flipped bits reach the receiver and
    /// can be compared (IPv4).
    pub checksum_zero: bool,
    /// Fill payloads with a pseudo-random bit sequence and count differing bits.
    pub compare_payload: bool,
    /// Packets the kernel may split from one buffer (UDP GSO); above 1 there is no timing
    /// per packet.
    pub batch: u16,
}

/// What holds for a sender to whom no receiver has agreed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OneEnded {
    /// Most it may send, payload bits per second on average; left out: [`ONE_ENDED_LIMIT`].
    pub limit: Option<BitRate>,
}

impl From<&tcp::Config> for TcpOptions {
    fn from(config: &tcp::Config) -> TcpOptions {
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

/// Most a one-ended sender sends where nobody said otherwise: nobody agreed to receive it.
pub const ONE_ENDED_LIMIT: BitRate = BitRate(10_000_000);
