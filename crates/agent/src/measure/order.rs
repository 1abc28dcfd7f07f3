//! What to measure, and what each of the two agents has to do for it.

use netstage_agent_api::task::{Assignment, FlowTask, OneEnded, Side, TcpOptions, Transport, UdpOptions};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// How bytes are carried.
    pub method: Method,
    /// Which way they go.
    pub ways: Ways,
    /// Flows each way.
    pub parallel: u32,
    /// When each flow hands over how much.
    pub traffic: Pattern,
    /// Length, without what is omitted.
    pub time: Duration,
    /// What the beginning leaves out; a whole number of intervals.
    pub omit: Duration,
    /// Width of an interval.
    pub interval: Duration,
    /// Octet of DSCP and ECN.
    pub traffic_class: u8,
    /// First port at the receiver, one for each flow; or the receiver's system chooses.
    pub first_port: Option<u16>,
    /// Seed of the pattern.
    pub seed: u64,
}

/// How bytes are carried.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// TCP of the system's kernel.
    Tcp(TcpOptions),
    /// UDP.
    Udp(UdpOptions),
    /// QUIC, a stream per flow.
    Quic,
    /// ICMP echo, one-ended.
    IcmpEcho {
        /// Most payload bits per second.
        limit: Option<BitRate>,
    },
    /// UDP to a closed port, one-ended.
    UdpUnreachable {
        /// Most payload bits per second.
        limit: Option<BitRate>,
        /// The port.
        port: u16,
    },
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    /// From here to there.
    Forward,
    /// From there to here.
    Reverse,
    /// Both at once.
    Both,
}

impl Order {
    /// Whether nobody at the other end takes part.
    pub fn is_one_ended(&self) -> bool {
        matches!(self.method, Method::IcmpEcho { .. } | Method::UdpUnreachable { .. })
    }

    /// Length with what is omitted.
    pub fn duration(&self) -> Duration {
        self.omit + self.time
    }

    /// Number of a flow, and whether it comes from there: forward ones first.
    pub fn flows(&self) -> impl Iterator<Item = (u32, bool)> + use<> {
        let parallel = self.parallel;
        let ways: &[bool] = match self.ways {
            Ways::Forward => &[false],
            Ways::Reverse => &[true],
            Ways::Both => &[false, true],
        };
        ways.iter().flat_map(move |&reverse| {
            (1..=parallel).map(move |number| (if reverse { parallel + number } else { number }, reverse))
        })
    }

    /// Name of a flow.
    pub fn name(&self, id: u32) -> String {
        if id > self.parallel { format!("{}R", id - self.parallel) } else { id.to_string() }
    }

    /// The part of the agent there. It fills in the addresses itself: what it sees of us need
    /// not be what we see (NAT).
    pub fn there(&self, ports_here: &[(u32, u16)], target: IpAddr) -> Assignment {
        let open = match target {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let flows = self.flows().map(|(id, reverse)| {
            let port = if reverse { port_of(ports_here, id) } else { self.receiving_port(id, 1) };
            let (source, destination) = (SocketAddr::new(open, 0), SocketAddr::new(open, port));
            self.task(id, if reverse { Side::Send } else { Side::Receive }, source, destination)
        });
        self.assignment("there", flows.collect())
    }

    /// The part of the agent here.
    pub fn here(
        &self,
        own: SocketAddr,
        target: SocketAddr,
        ports_there: &[(u32, u16)],
        ports_here: &[(u32, u16)],
    ) -> Assignment {
        let at = |mut address: SocketAddr, port| {
            address.set_port(port);
            address
        };
        let flows = self.flows().map(|(id, reverse)| {
            let (side, source, destination) = match (reverse, &self.method) {
                (true, _) => (Side::Receive, at(target, 0), at(own, port_of(ports_here, id))),
                (false, Method::UdpUnreachable { port, .. }) => (Side::Send, at(own, 0), at(target, *port)),
                (false, _) => (Side::Send, at(own, 0), at(target, port_of(ports_there, id))),
            };
            self.task(id, side, source, destination)
        });
        self.assignment("here", flows.collect())
    }

    /// Where a flow is received: a fixed port, or zero. Flows the other way come after
    /// those of this one.
    pub fn receiving_port(&self, id: u32, first_id: u32) -> u16 {
        self.first_port.map_or(0, |first| first.wrapping_add((id - first_id) as u16))
    }

    fn task(&self, id: u32, side: Side, source: SocketAddr, destination: SocketAddr) -> FlowTask {
        FlowTask {
            name: self.name(id),
            id,
            side,
            transport: self.transport(),
            source,
            destination,
            traffic: self.traffic.clone().into(),
            start: Duration::ZERO,
            stop: self.duration(),
            detail: true,
            settled: self.omit,
            traffic_class: self.traffic_class,
        }
    }

    fn transport(&self) -> Transport {
        match &self.method {
            Method::Tcp(options) => Transport::Tcp(options.clone()),
            Method::Udp(options) => Transport::Udp(options.clone()),
            Method::Quic => Transport::Quic,
            Method::IcmpEcho { limit } => Transport::IcmpEcho(OneEnded { limit: *limit }),
            Method::UdpUnreachable { limit, .. } => Transport::UdpUnreachable(OneEnded { limit: *limit }),
        }
    }

    fn assignment(&self, node: &str, flows: Vec<FlowTask>) -> Assignment {
        let (duration, interval) = (self.duration(), self.interval);
        Assignment { seed: self.seed, ..Assignment::of_flows(node, duration, interval, flows) }
    }
}

/// The port of a flow; zero where it is not told.
pub fn port_of(ports: &[(u32, u16)], id: u32) -> u16 {
    ports.iter().find(|(flow, _)| *flow == id).map_or(0, |&(_, port)| port)
}
