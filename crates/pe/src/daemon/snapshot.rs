//! State of a router at one moment. It is what `show` prints, the control socket returns, metrics are built
//! from, and the end of a run reports.

use super::port::AnyPort;
use crate::engine::{Counter, MeasurementSource, PacketTotals, PeEngine, ReferenceView, Severity};
use netstage_core::fair::PacedFlow;
use netstage_core::packet::QueuePacket;
use netstage_core::time::Instant;
use netstage_host::ports::FramePort as _;
use netstage_scenario::pe::PeConfig;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;

/// Version of this format. Adding fields does not change it.
pub const VERSION: u32 = 1;

/// State of a router. Times are in nanoseconds, sizes in IP-layer bytes. Counters start with the router or
/// with the configuration of the flow and survive a reload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeSnapshot {
    /// [`VERSION`].
    pub version: u32,
    /// Version of the router program.
    pub tool: String,
    /// Process ID of the router.
    pub process: u32,
    /// Path of the configuration file.
    pub configuration: PathBuf,
    /// Time of the snapshot, nanoseconds since 1970.
    pub unix_ns: u64,
    /// Time since the start.
    pub uptime_ns: u64,
    /// Number of configurations applied since the start, including the first.
    pub configurations: u64,
    /// Number of configurations rejected since the start.
    pub refused_configurations: u64,
    /// Error of the last rejected configuration; empty after a successful one.
    pub refusal: String,
    /// Number of free packet buffers.
    pub free_buffers: u64,
    /// Interfaces of the router.
    pub ports: Vec<PortState>,
    /// Peer routers.
    pub peers: Vec<PeerState>,
    /// VPN flows, in configuration order.
    pub flows: Vec<FlowState>,
    /// Reference flows of relative weights.
    pub references: Vec<ReferenceState>,
    /// Circuits, in configuration order.
    pub circuits: Vec<CircuitState>,
    /// Neighbors on circuits.
    pub neighbors: Vec<NeighbourState>,
    /// Counters of dropped and noticed packets, by name.
    pub counters: BTreeMap<String, u64>,
    /// Raised alarms about packets of attackers.
    pub alarms: Vec<AlarmState>,
}

/// Raised alarm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AlarmState {
    /// Name of the alarm: that of its counter.
    pub name: String,
    /// Description of the packets.
    pub description: String,
    /// Time since it was raised.
    pub age_ns: u64,
}

/// State of an interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortState {
    /// Name of the interface.
    pub interface: String,
    /// `af_packet` or `af_xdp`.
    pub kind: String,
    /// The interface leads to the core.
    pub is_core: bool,
    /// Frames lost because they were not read in time or exceeded the MTU.
    pub missed: u64,
    /// Error, if the interface does not work.
    pub failure: Option<String>,
}

/// State of a peer router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerState {
    /// Name of the peer.
    pub name: String,
    /// `mpls-in-udp` or `mpls`.
    pub tunnel: String,
    /// Tunnel address of the peer, or next hop for MPLS.
    pub address: Option<IpAddr>,
    /// Present route to the peer; `None` if it is unreachable.
    pub route: Option<PeerRouteState>,
    /// Reason why the peer is unreachable, or empty.
    pub unreachable: String,
    /// Packets to and from the peer are encrypted.
    pub is_encrypted: bool,
    /// Age of the present session of encryption; `None` without one.
    pub session_age_ns: Option<u64>,
    /// Largest customer packet that the path to the peer carries, bytes.
    pub customer_mtu: u16,
    /// Largest customer packet that the first link carries, bytes.
    pub largest_customer_mtu: u16,
}

/// Route to a peer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerRouteState {
    /// Outgoing interface.
    pub interface: String,
    /// Address of the next hop.
    pub next_hop: IpAddr,
    /// MAC address of the next hop.
    pub mac: String,
    /// MTU of the route's first link in bytes of an IP or MPLS packet.
    pub mtu: u16,
    /// MTU of the whole path, found by probes.
    #[serde(default)]
    pub path_mtu: u16,
}

/// State of a VPN flow, both directions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowState {
    /// VPN of the flow.
    pub vpn: String,
    /// Peer of the flow.
    pub peer: String,
    /// Label of sent packets.
    pub send_label: u32,
    /// Label of received packets.
    pub receive_label: u32,
    /// Configured weight.
    pub weight: f64,
    /// `i2vfc`, `rate-consensus`, `fixed-rate` or `none`.
    pub control: String,
    /// Data sent to the peer.
    pub sent: TrafficState,
    /// Data received from the peer.
    pub received: TrafficState,
    /// Received packets that were marked in the core.
    pub marked: u64,
    /// Number of queued packets.
    pub queue: u64,
    /// State of the window, if the flow has one.
    pub window: Option<WindowState>,
    /// State under rate consensus, if the flow is.
    pub rate: Option<RateState>,
    /// The peer does not answer.
    pub is_silent: bool,
    /// Core that forwards the flow, from 0.
    pub core: u32,
    /// Nonzero counters of dropped and noticed packets, by name.
    pub counters: BTreeMap<String, u64>,
}

impl FlowState {
    /// Returns the number of packets dropped by the ingress queue, with or without classes.
    pub fn queue_drops(&self) -> u64 {
        [Counter::QueueFull, Counter::QueueDropped]
            .iter()
            .filter_map(|counter| self.counters.get(counter.name()))
            .sum()
    }
}

/// Number of packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficState {
    /// Number of packets.
    pub packets: u64,
    /// Number of IP-layer bytes.
    pub bytes: u64,
}

impl From<PacketTotals> for TrafficState {
    fn from(traffic: PacketTotals) -> TrafficState {
        TrafficState { packets: traffic.packets, bytes: traffic.bytes }
    }
}

/// State of the window of a VPN flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowState {
    /// Window size, packets.
    pub packets: f64,
    /// Packets sent and not yet acknowledged.
    pub in_flight: u64,
    /// Smoothed round-trip time; zero before the first reply.
    pub round_trip_ns: u64,
    /// Loss by the configured estimator, once known.
    pub loss: Option<f64>,
    /// Effective additive increase, packets per round trip.
    pub increase: f64,
    /// Effective multiplicative decrease.
    pub decrease: f64,
    /// The weight exceeds the range the parameters allow.
    pub is_infeasible: bool,
    /// Packets acknowledged by the peer.
    pub confirmed: u64,
    /// Packets lost in the core.
    pub lost: u64,
    /// Management packets sent.
    pub queries: u64,
    /// Number of times the window timed out because the peer was silent.
    pub silences: u64,
    /// Responses ignored because they repeated another or reported an impossible count.
    pub bad_replies: u64,
}

/// State of a VPN flow under rate consensus.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateState {
    /// Permitted rate at the IP layer, bit/s.
    pub permitted_bps: f64,
    /// Rate sent, bit/s.
    pub sent_bps: f64,
    /// Share of time with a backlog, 0 to 1.
    pub used: f64,
    /// Natural logarithm of the permitted rate per weight, in bytes per second.
    pub level: f64,
    /// Price of the link that limits the flow: 1 at the target of its queue.
    pub price: f64,
    /// Number of that link; `None` if no shared link does.
    pub link: Option<u32>,
    /// Share of the flow in the rates that all known flows of the link send.
    pub share: Option<f64>,
    /// Share of the flow in the weights of the flows with a backlog.
    pub owed_share: Option<f64>,
    /// Sum of the weights of the other flows of the link, each times its share of time with a backlog.
    pub others_weight: f64,
    /// Packets sent and not yet acknowledged.
    pub in_flight: u64,
    /// Smoothed round-trip time; zero before the first reply.
    pub round_trip_ns: u64,
    /// Smoothed loss.
    pub loss: f64,
    /// Packets acknowledged by the peer.
    pub confirmed: u64,
    /// Packets lost in the core.
    pub lost: u64,
    /// Management packets sent.
    pub queries: u64,
    /// Number of times packets were given up because the peer was silent.
    pub silences: u64,
}

impl FlowState {
    /// Returns the number of packets lost in the core, if the control counts them.
    pub fn lost(&self) -> Option<u64> {
        self.window.as_ref().map(|window| window.lost).or_else(|| Some(self.rate.as_ref()?.lost))
    }

    /// Returns the smoothed round-trip time in nanoseconds, if the control measures it.
    pub fn round_trip_ns(&self) -> Option<u64> {
        let rate = || Some(self.rate.as_ref()?.round_trip_ns);
        self.window.as_ref().map(|window| window.round_trip_ns).or_else(rate)
    }
}

/// State of a reference flow, measured by a peer or by this router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReferenceState {
    /// Name on this router.
    pub name: String,
    /// Number in messages between routers.
    pub number: u32,
    /// Peer that publishes it; `None` for a flow of this router.
    pub from: Option<String>,
    /// VPN and peer of the measured flow, if it belongs to this router.
    pub flow: Option<[String; 2]>,
    /// Peers it is published to.
    pub publish_to: Vec<String>,
    /// Number of VPN flows on this router that follow it.
    pub followers: u32,
    /// Time since the values were measured here or arrived; `None` before the first values.
    pub age_ns: Option<u64>,
    /// The values are too old, or missing for too long. Followers use the nominal flow instead.
    pub is_old: bool,
    /// Weight of the reference flow.
    pub weight: f64,
    /// Round-trip time of the reference flow.
    pub round_trip_ns: u64,
    /// Loss of the reference flow; `None` before the first loss event.
    pub loss: Option<f64>,
    /// Number of loss events the loss is computed from.
    pub loss_events: u64,
    /// Multiplicative decrease of the reference flow.
    pub decrease: f64,
    /// Messages sent to peers.
    pub published: u64,
    /// Messages accepted from the peer.
    pub received: u64,
    /// Messages rejected.
    pub refused: u64,
}

/// State of a circuit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CircuitState {
    /// Name of the circuit.
    pub name: String,
    /// VPN of the circuit.
    pub vpn: String,
    /// Interface and VLANs, as in `eth1.100`.
    pub place: String,
    /// Packets received from customers.
    pub received: TrafficState,
    /// Packets sent to customers.
    pub sent: TrafficState,
}

/// Neighbor on a circuit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NeighbourState {
    /// Name of the circuit.
    pub circuit: String,
    /// IP address of the neighbor.
    pub address: IpAddr,
    /// MAC address; `None` while it is being resolved.
    pub mac: Option<String>,
}

/// Returns the state known to an engine.
pub(super) fn of(engine: &mut PeEngine<AnyPort>, now: Instant) -> PeSnapshot {
    let names = engine.port_names().to_vec();
    let missed: Vec<u64> = (0..names.len()).map(|port| engine.port_mut(port).missed()).collect();
    let ports = names.into_iter().zip(engine.ports()).zip(missed).enumerate();
    let ports = ports.map(|(number, ((interface, port), missed))| PortState {
        interface,
        kind: port.kind().into(),
        is_core: engine.is_core(number),
        missed,
        failure: engine.failure(number).map(ToString::to_string),
    });
    PeSnapshot {
        version: VERSION,
        tool: env!("CARGO_PKG_VERSION").into(),
        process: std::process::id(),
        uptime_ns: now.0,
        free_buffers: engine.free_buffers() as u64,
        ports: ports.collect(),
        peers: peers(engine, now),
        alarms: engine
            .alarms()
            .map(|alarm| AlarmState {
                name: alarm.name.into(),
                description: alarm.description.into(),
                age_ns: now.since(alarm.since).0,
            })
            .collect(),
        flows: flows(engine),
        references: engine.references().map(|reference| self::reference(now, reference)).collect(),
        circuits: engine
            .circuits()
            .map(|circuit| CircuitState {
                name: circuit.name.into(),
                vpn: circuit.vpn.into(),
                place: String::new(),
                received: circuit.received.into(),
                sent: circuit.sent.into(),
            })
            .collect(),
        neighbors: engine
            .neighbors()
            .map(|(circuit, address, mac)| NeighbourState {
                circuit: circuit.into(),
                address,
                mac: mac.map(format_mac),
            })
            .collect(),
        counters: Counter::ALL
            .iter()
            .map(|counter| (counter.name().to_owned(), engine.counters().get(*counter)))
            .collect(),
        ..PeSnapshot::default()
    }
}

fn peers(engine: &PeEngine<AnyPort>, now: Instant) -> Vec<PeerState> {
    let mut peers: Vec<PeerState> = engine
        .path_mtus()
        .map(|(name, path)| PeerState {
            name: name.into(),
            customer_mtu: path.mtu,
            largest_customer_mtu: path.largest,
            ..PeerState::default()
        })
        .collect();
    for (name, since) in engine.tunnels(now) {
        if let Some(peer) = peers.iter_mut().find(|peer| peer.name == name) {
            (peer.is_encrypted, peer.session_age_ns) = (true, since.map(|since| now.since(since).0));
        }
    }
    peers
}

/// Merges the states of the cores of one router: lists are joined and counters added. Returns `None` for an
/// empty list.
pub(super) fn merge(parts: Vec<PeSnapshot>) -> Option<PeSnapshot> {
    let mut parts = parts.into_iter().enumerate().map(|(core, mut part)| {
        part.flows.iter_mut().for_each(|flow| flow.core = core as u32);
        part
    });
    let mut whole = parts.next()?;
    for part in parts {
        whole.uptime_ns = whole.uptime_ns.max(part.uptime_ns);
        whole.free_buffers += part.free_buffers;
        for port in part.ports {
            match whole.ports.iter_mut().find(|known| known.interface == port.interface) {
                Some(known) => {
                    known.missed += port.missed;
                    known.failure = known.failure.take().or(port.failure);
                }
                None => whole.ports.push(port),
            }
        }
        for (known, peer) in whole.peers.iter_mut().zip(part.peers) {
            known.customer_mtu = known.customer_mtu.min(peer.customer_mtu);
        }
        whole.flows.extend(part.flows);
        for (known, reference) in whole.references.iter_mut().zip(part.references) {
            known.add(reference);
        }
        whole.circuits.extend(part.circuits);
        whole.neighbors.extend(part.neighbors);
        for alarm in part.alarms {
            match whole.alarms.iter_mut().find(|known| known.name == alarm.name) {
                Some(known) => known.age_ns = known.age_ns.max(alarm.age_ns),
                None => whole.alarms.push(alarm),
            }
        }
        for (name, count) in part.counters {
            *whole.counters.entry(name).or_default() += count;
        }
    }
    Some(whole)
}

impl PeSnapshot {
    /// Sorts flows and circuits into configuration order.
    pub(super) fn sort_like(&mut self, router: &PeConfig) {
        let vpns: HashMap<&str, usize> =
            router.vpns.iter().enumerate().map(|(number, vpn)| (vpn.name.as_str(), number)).collect();
        // Flows of one VPN are in configuration order already.
        self.flows.sort_by_key(|flow| vpns.get(flow.vpn.as_str()).copied());
        let circuits: HashMap<&str, usize> =
            router.circuits.iter().enumerate().map(|(number, one)| (one.name.as_str(), number)).collect();
        self.circuits.sort_by_key(|circuit| circuits.get(circuit.name.as_str()).copied());
    }
}

impl ReferenceState {
    /// Merges the state of the same reference on another core.
    fn add(&mut self, other: ReferenceState) {
        let followers = self.followers + other.followers;
        let counts =
            [self.published + other.published, self.received + other.received, self.refused + other.refused];
        let is_theirs = other.flow.is_some();
        let is_newer = other.age_ns.is_some_and(|age| self.age_ns.is_none_or(|known| age < known));
        if is_theirs || (is_newer && self.flow.is_none()) {
            *self = other;
        }
        self.followers = followers;
        [self.published, self.received, self.refused] = counts;
    }
}

fn flows(engine: &PeEngine<AnyPort>) -> Vec<FlowState> {
    let flow = |flow: crate::engine::FlowView<'_>| {
        let [send, receive] = flow.labels();
        let (packets, bytes) = flow.sent();
        let received = flow.received();
        let window = flow.window().map(|window| {
            let (parameters, counters) = (window.parameters(), window.counters());
            WindowState {
                packets: window.window(),
                in_flight: window.in_flight(),
                round_trip_ns: (window.round_trip() * 1e9) as u64,
                loss: window.loss(),
                increase: parameters.increase,
                decrease: parameters.decrease,
                is_infeasible: parameters.infeasible,
                confirmed: counters.received,
                lost: counters.lost,
                queries: counters.queries,
                silences: counters.silences,
                bad_replies: counters.bad_replies,
            }
        });
        let counted = Counter::ALL.iter().map(|counter| (counter.name().to_owned(), flow.count(*counter)));
        FlowState {
            vpn: flow.vpn().into(),
            peer: flow.peer().into(),
            send_label: send.number(),
            receive_label: receive.number(),
            sent: TrafficState { packets, bytes },
            received: TrafficState { packets: received.packets, bytes: received.bytes },
            marked: received.marked,
            queue: flow.queue_len() as u64,
            window,
            rate: flow.paced().map(rate),
            is_silent: flow.silent_since().is_some(),
            counters: counted.filter(|(_, count)| *count > 0).collect(),
            ..FlowState::default()
        }
    };
    engine.flows().map(flow).collect()
}

fn rate<P: QueuePacket>(flow: &PacedFlow<P>) -> RateState {
    let ((sent, used), (loss, round_trip)) = (flow.use_of_rate(), flow.path());
    let (peers, counters) = (flow.peers(), flow.counters());
    let share = |own: f64, others: f64| (own > 0.0).then(|| own / (own + others));
    RateState {
        permitted_bps: 8.0 * flow.permitted(),
        sent_bps: 8.0 * sent,
        used,
        level: flow.level(),
        price: flow.price(),
        link: flow.link(),
        share: share(sent, peers.rate),
        owed_share: share(flow.weight() * used, peers.weight),
        others_weight: peers.weight,
        in_flight: flow.in_flight(),
        round_trip_ns: (round_trip * 1e9) as u64,
        loss,
        confirmed: counters.received,
        lost: counters.lost,
        queries: counters.queries,
        silences: counters.silences,
    }
}

fn reference(now: Instant, reference: ReferenceView<'_>) -> ReferenceState {
    let (from, flow, publish_to) = match reference.source {
        MeasurementSource::Peer(peer) => (Some(peer.to_owned()), None, Vec::new()),
        MeasurementSource::Flow { vpn, peer, publish_to } => {
            let peers = publish_to.into_iter().map(str::to_owned).collect();
            (None, Some([vpn.to_owned(), peer.to_owned()]), peers)
        }
        MeasurementSource::Elsewhere => (None, None, Vec::new()),
    };
    let known = reference.published.map(|published| published.basis);
    let loss = known.and_then(|known| known.loss);
    ReferenceState {
        name: reference.name.into(),
        number: reference.number,
        from,
        flow,
        publish_to,
        followers: reference.followers,
        age_ns: reference.published.map(|published| now.since(published.at).0),
        is_old: reference.is_old,
        weight: known.map_or(0.0, |known| known.weight),
        round_trip_ns: known.map_or(0, |known| (known.round_trip * 1e9) as u64),
        loss: loss.map(|(loss, _)| loss),
        loss_events: loss.map_or(0, |(_, events)| events),
        decrease: reference.published.map_or(0.0, |published| published.decrease),
        published: reference.counts.published,
        received: reference.counts.received,
        refused: reference.counts.refused,
    }
}

/// Formats a MAC address.
pub(super) fn format_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns severity and meaning of the counter of this name.
pub fn meaning(name: &str) -> Option<(Severity, &'static str)> {
    let counter = Counter::ALL.iter().find(|counter| counter.name() == name)?;
    Some((counter.severity(), counter.meaning()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_router_add_up() {
        let port = |name: &str, missed| PortState { interface: name.into(), missed, ..PortState::default() };
        let part = |vpn: &str, ports: Vec<PortState>, reference: ReferenceState| PeSnapshot {
            free_buffers: 10,
            ports,
            flows: vec![FlowState { vpn: vpn.into(), ..FlowState::default() }],
            references: vec![reference],
            counters: [("no_route".to_owned(), 2)].into(),
            ..PeSnapshot::default()
        };
        let follower = ReferenceState { followers: 3, age_ns: Some(9), ..ReferenceState::default() };
        let measured = ReferenceState {
            flow: Some(["blue".into(), "east".into()]),
            followers: 1,
            age_ns: Some(7),
            published: 4,
            ..ReferenceState::default()
        };
        let parts = vec![
            part("red", vec![port("core0", 1), port("red", 0)], follower),
            part("blue", vec![port("core0", 5), port("blue", 0)], measured.clone()),
        ];
        let whole = merge(parts).unwrap();
        assert_eq!(whole.free_buffers, 20);
        assert_eq!(whole.ports, [port("core0", 6), port("red", 0), port("blue", 0)]);
        assert_eq!(
            whole.flows.iter().map(|flow| (flow.vpn.as_str(), flow.core)).collect::<Vec<_>>(),
            [("red", 0), ("blue", 1)]
        );
        assert_eq!(whole.references, [ReferenceState { followers: 4, ..measured }]);
        assert_eq!(whole.counters["no_route"], 4);
        assert_eq!(merge(Vec::new()), None);
    }
}
