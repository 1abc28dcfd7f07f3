//! Parameters of a measurement, and the assignments of its two agents.

use netstage_agent_api::task::{
    Assignment, FlowSide, FlowTask, OneEnded, TaskTransport, TcpOptions, UdpOptions,
};
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_core::traffic::Pattern;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Parameters of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasurementParameters {
    /// Transport.
    pub method: Method,
    /// Direction of the flows.
    pub directions: MeasurementDirection,
    /// Number of flows in each direction.
    pub parallel: u32,
    /// Traffic pattern of each flow.
    pub traffic: Pattern,
    /// Length, without the omitted beginning.
    pub time: Duration,
    /// Length of the omitted beginning; a whole number of intervals.
    pub omit: Duration,
    /// Width of an interval.
    pub interval: Duration,
    /// DSCP and ECN octet.
    pub traffic_class: u8,
    /// First port at the receiver, with consecutive ports for further flows; chosen by the receiver's system
    /// where absent.
    pub first_port: Option<u16>,
    /// Seed of the pattern.
    pub seed: u64,
}

/// Transport of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// TCP of the host's kernel.
    Tcp(TcpOptions),
    /// UDP.
    Udp(UdpOptions),
    /// QUIC, with one stream per flow.
    Quic,
    /// One-ended ICMP echo.
    IcmpEcho {
        /// Maximum rate, payload bits per second.
        limit: Option<BitRate>,
    },
    /// One-ended UDP to a closed port.
    UdpUnreachable {
        /// Maximum rate, payload bits per second.
        limit: Option<BitRate>,
        /// Destination port.
        port: u16,
    },
}

/// Direction of the flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasurementDirection {
    /// From the local to the remote host.
    Forward,
    /// From the remote to the local host.
    Reverse,
    /// Both directions at once.
    Both,
}

impl MeasurementParameters {
    /// Reports whether there is no agent at the remote end.
    pub fn is_one_ended(&self) -> bool {
        matches!(self.method, Method::IcmpEcho { .. } | Method::UdpUnreachable { .. })
    }

    /// Returns the length including the omitted beginning.
    pub fn duration(&self) -> Duration {
        self.omit + self.time
    }

    /// Returns the number of each flow and whether it is a reverse flow, forward flows first.
    pub fn flows(&self) -> impl Iterator<Item = (u32, bool)> + use<> {
        let parallel = self.parallel;
        let ways: &[bool] = match self.directions {
            MeasurementDirection::Forward => &[false],
            MeasurementDirection::Reverse => &[true],
            MeasurementDirection::Both => &[false, true],
        };
        ways.iter().flat_map(move |&reverse| {
            (1..=parallel).map(move |number| (if reverse { parallel + number } else { number }, reverse))
        })
    }

    /// Returns the name of a flow.
    pub fn name(&self, id: u32) -> String {
        if id > self.parallel { format!("{}R", id - self.parallel) } else { id.to_string() }
    }

    /// Returns the assignment of the remote agent, which fills in the addresses itself: with NAT, the two
    /// hosts see different addresses.
    pub fn remote_assignment(&self, ports_here: &[(u32, u16)], target: IpAddr) -> Assignment {
        let open = match target {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let flows = self.flows().map(|(id, reverse)| {
            let port = if reverse { port_of(ports_here, id) } else { self.receiving_port(id, 1) };
            let (source, destination) = (SocketAddr::new(open, 0), SocketAddr::new(open, port));
            self.task(id, if reverse { FlowSide::Send } else { FlowSide::Receive }, source, destination)
        });
        self.assignment("there", flows.collect())
    }

    /// Returns the assignment of the local agent.
    pub fn local_assignment(
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
                (true, _) => (FlowSide::Receive, at(target, 0), at(own, port_of(ports_here, id))),
                (false, Method::UdpUnreachable { port, .. }) => {
                    (FlowSide::Send, at(own, 0), at(target, *port))
                }
                (false, _) => (FlowSide::Send, at(own, 0), at(target, port_of(ports_there, id))),
            };
            self.task(id, side, source, destination)
        });
        self.assignment("here", flows.collect())
    }

    /// Returns the fixed port at which a flow is received, or zero if the system chooses. Reverse flows use
    /// the ports after those of forward flows.
    pub fn receiving_port(&self, id: u32, first_id: u32) -> u16 {
        self.first_port.map_or(0, |first| first.wrapping_add((id - first_id) as u16))
    }

    fn task(&self, id: u32, side: FlowSide, source: SocketAddr, destination: SocketAddr) -> FlowTask {
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
            nat: None,
        }
    }

    fn transport(&self) -> TaskTransport {
        match &self.method {
            Method::Tcp(options) => TaskTransport::Tcp(options.clone()),
            Method::Udp(options) => TaskTransport::Udp(options.clone()),
            Method::Quic => TaskTransport::Quic,
            Method::IcmpEcho { limit } => {
                TaskTransport::IcmpEcho(OneEnded { limit: *limit, keep_rate: false })
            }
            Method::UdpUnreachable { limit, .. } => {
                TaskTransport::UdpUnreachable(OneEnded { limit: *limit, keep_rate: false })
            }
        }
    }

    fn assignment(&self, node: &str, flows: Vec<FlowTask>) -> Assignment {
        let (duration, interval) = (self.duration(), self.interval);
        Assignment { seed: self.seed, ..Assignment::of_flows(node, duration, interval, flows) }
    }
}

/// Returns the port of a flow, or zero if it is unknown.
pub fn port_of(ports: &[(u32, u16)], id: u32) -> u16 {
    ports.iter().find(|(flow, _)| *flow == id).map_or(0, |&(_, port)| port)
}
