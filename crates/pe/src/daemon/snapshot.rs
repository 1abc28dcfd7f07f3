//! How a router stands at one moment, for people and programs: what `show` prints, the
//! control socket hands out, metrics are made of, and the last state at the end.

use super::port::AnyPort;
use crate::engine::{Counter, Engine, ReferenceView, Severity, Source, Traffic};
use netstage_core::time::Instant;
use netstage_host::ports::Port as _;
use netstage_scenario::pe::Router;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;

/// Version of this description: fields are added without changing it.
pub const VERSION: u32 = 1;

/// A router at one moment. Times are nanoseconds, sizes bytes at the IP layer, counts since
/// the start or since the flow was configured; a reload keeps them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// [`VERSION`].
    pub version: u32,
    /// Version of the router's program.
    pub tool: String,
    /// Its process.
    pub process: u32,
    /// The file it was configured by.
    pub configuration: PathBuf,
    /// When, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// How long it has run.
    pub uptime_ns: u64,
    /// Configurations taken since the start, the first included.
    pub configurations: u64,
    /// Configurations refused since the start, and what was wrong with the last.
    pub refused_configurations: u64,
    /// Its text; empty if none was, or one was taken since.
    pub refusal: String,
    /// Buffers for packets that wait, free at the moment.
    pub free_buffers: u64,
    /// Interfaces.
    pub ports: Vec<PortState>,
    /// The other routers.
    pub peers: Vec<PeerState>,
    /// VPN flows.
    pub flows: Vec<FlowState>,
    /// Flows that weights are relative to.
    pub references: Vec<ReferenceState>,
    /// Circuits.
    pub circuits: Vec<CircuitState>,
    /// Stations of customers.
    pub neighbours: Vec<NeighbourState>,
    /// Everything refused or noticed, by name.
    pub counters: BTreeMap<String, u64>,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortState {
    /// Its name.
    pub interface: String,
    /// `af_packet` or `af_xdp`.
    pub kind: String,
    /// It leads to the core.
    pub is_core: bool,
    /// Frames nobody took in time, or longer than the MTU allows.
    pub missed: u64,
    /// Why it is of no use, if it is not.
    pub failure: Option<String>,
}

/// Another router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerState {
    /// Its name.
    pub name: String,
    /// `mpls-in-udp` or `mpls`.
    pub tunnel: String,
    /// Its address, or that of the next router for MPLS.
    pub address: Option<IpAddr>,
    /// Where packets go at present; none: nowhere.
    pub way: Option<WayState>,
    /// Why nowhere.
    pub unreachable: String,
}

/// Where packets go.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WayState {
    /// By this interface.
    pub interface: String,
    /// To this router.
    pub next_hop: IpAddr,
    /// That has this station.
    pub mac: String,
    /// Largest IP or MPLS packet.
    pub mtu: u16,
}

/// A VPN flow, and the one back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowState {
    /// Its VPN.
    pub vpn: String,
    /// Its peer.
    pub peer: String,
    /// Labels of what is sent and received.
    pub send_label: u32,
    /// See above.
    pub receive_label: u32,
    /// Its weight.
    pub weight: f64,
    /// `i2vfc`, `fixed-rate` or `none`.
    pub control: String,
    /// Sent to the peer.
    pub sent: TrafficState,
    /// Come from the peer.
    pub received: TrafficState,
    /// Of what came, how many bore a congestion mark of the core.
    pub marked: u64,
    /// Packets that wait.
    pub queue: u64,
    /// The window, where there is one.
    pub window: Option<WindowState>,
    /// The peer does not answer.
    pub is_silent: bool,
    /// The core that forwards it, from 0.
    pub core: u32,
    /// What was refused or noticed, by name.
    pub counters: BTreeMap<String, u64>,
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrafficState {
    /// Packets.
    pub packets: u64,
    /// Bytes at the IP layer.
    pub bytes: u64,
}

impl From<Traffic> for TrafficState {
    fn from(traffic: Traffic) -> TrafficState {
        TrafficState { packets: traffic.packets, bytes: traffic.bytes }
    }
}

/// A VPN flow's window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WindowState {
    /// Packets.
    pub packets: f64,
    /// Packets sent and not yet confirmed.
    pub in_flight: u64,
    /// Smoothed; zero before the first answer.
    pub round_trip_ns: u64,
    /// Loss by the configured measure, once known.
    pub loss: Option<f64>,
    /// Additive increase in force, packets per round trip.
    pub increase: f64,
    /// Multiplicative decrease in force.
    pub decrease: f64,
    /// The weight asks for more than the parameters can give.
    pub is_infeasible: bool,
    /// Packets the peer has confirmed.
    pub confirmed: u64,
    /// Packets lost in the core.
    pub lost: u64,
    /// Management packets sent.
    pub queries: u64,
    /// Times the peer was silent for too long for the window.
    pub silences: u64,
}

/// A flow that weights are relative to: a peer's, or one of this router's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReferenceState {
    /// Its name here.
    pub name: String,
    /// Its number between routers.
    pub number: u32,
    /// The peer that tells of it; none if it is a flow of this router.
    pub from: Option<String>,
    /// VPN and peer of that flow.
    pub flow: Option<[String; 2]>,
    /// The peers that are told of it.
    pub publish_to: Vec<String>,
    /// VPN flows here that follow it.
    pub followers: u32,
    /// Since what is known of it was measured here, or arrived; none before anything was.
    pub age_ns: Option<u64>,
    /// That is too long, or has been nothing for so long: the nominal flow is used.
    pub is_old: bool,
    /// What is known of it: its weight.
    pub weight: f64,
    /// Its round trip.
    pub round_trip_ns: u64,
    /// Its loss, and the loss events that rests on; none before the first.
    pub loss: Option<f64>,
    /// See above.
    pub loss_events: u64,
    /// Its multiplicative decrease.
    pub decrease: f64,
    /// Messages sent to peers about it.
    pub published: u64,
    /// Messages of its peer believed.
    pub received: u64,
    /// Messages about it refused.
    pub refused: u64,
}

/// A circuit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CircuitState {
    /// Its name.
    pub name: String,
    /// Its VPN.
    pub vpn: String,
    /// Its interface and VLANs: `eth1.100`.
    pub place: String,
    /// Taken from customers.
    pub received: TrafficState,
    /// Handed to customers.
    pub sent: TrafficState,
}

/// A station of a customer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NeighbourState {
    /// Its circuit.
    pub circuit: String,
    /// Its address.
    pub address: IpAddr,
    /// Its station; none while it is asked for.
    pub mac: Option<String>,
}

/// What the engine knows.
pub(super) fn of(engine: &mut Engine<AnyPort>, now: Instant) -> Snapshot {
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
    Snapshot {
        version: VERSION,
        tool: env!("CARGO_PKG_VERSION").into(),
        process: std::process::id(),
        uptime_ns: now.0,
        free_buffers: engine.free_buffers() as u64,
        ports: ports.collect(),
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
        neighbours: engine
            .neighbours()
            .map(|(circuit, address, mac)| NeighbourState {
                circuit: circuit.into(),
                address,
                mac: mac.map(spelled),
            })
            .collect(),
        counters: Counter::ALL
            .iter()
            .map(|counter| (counter.name().to_owned(), engine.counters().get(*counter)))
            .collect(),
        ..Snapshot::default()
    }
}

/// The parts of one router together: what each core says of its own, and the sums of what all of
/// them count. None of nothing.
pub(super) fn together(parts: Vec<Snapshot>) -> Option<Snapshot> {
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
        whole.flows.extend(part.flows);
        for (known, reference) in whole.references.iter_mut().zip(part.references) {
            known.add(reference);
        }
        whole.circuits.extend(part.circuits);
        whole.neighbours.extend(part.neighbours);
        for (name, count) in part.counters {
            *whole.counters.entry(name).or_default() += count;
        }
    }
    Some(whole)
}

impl Snapshot {
    /// Puts flows and circuits in the order of the configuration.
    pub(super) fn sort_as(&mut self, router: &Router) {
        let vpns: HashMap<&str, usize> =
            router.vpns.iter().enumerate().map(|(number, vpn)| (vpn.name.as_str(), number)).collect();
        // The parts have flows of one VPN in that order already.
        self.flows.sort_by_key(|flow| vpns.get(flow.vpn.as_str()).copied());
        let circuits: HashMap<&str, usize> =
            router.circuits.iter().enumerate().map(|(number, one)| (one.name.as_str(), number)).collect();
        self.circuits.sort_by_key(|circuit| circuits.get(circuit.name.as_str()).copied());
    }
}

impl ReferenceState {
    /// What another core knows of it.
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

fn flows(engine: &Engine<AnyPort>) -> Vec<FlowState> {
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
            is_silent: flow.silent_since().is_some(),
            counters: counted.filter(|(_, count)| *count > 0).collect(),
            ..FlowState::default()
        }
    };
    engine.flows().map(flow).collect()
}

fn reference(now: Instant, reference: ReferenceView<'_>) -> ReferenceState {
    let (from, flow, publish_to) = match reference.source {
        Source::Peer(peer) => (Some(peer.to_owned()), None, Vec::new()),
        Source::Flow { vpn, peer, publish_to } => {
            let told = publish_to.into_iter().map(str::to_owned).collect();
            (None, Some([vpn.to_owned(), peer.to_owned()]), told)
        }
        Source::Elsewhere => (None, None, Vec::new()),
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

/// A station's address as people write it.
pub(super) fn spelled(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// How much a counter of this name matters, and what it means.
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
        let part = |vpn: &str, ports: Vec<PortState>, reference: ReferenceState| Snapshot {
            free_buffers: 10,
            ports,
            flows: vec![FlowState { vpn: vpn.into(), ..FlowState::default() }],
            references: vec![reference],
            counters: [("no_route".to_owned(), 2)].into(),
            ..Snapshot::default()
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
        let whole = together(parts).unwrap();
        assert_eq!(whole.free_buffers, 20);
        assert_eq!(whole.ports, [port("core0", 6), port("red", 0), port("blue", 0)]);
        assert_eq!(
            whole.flows.iter().map(|flow| (flow.vpn.as_str(), flow.core)).collect::<Vec<_>>(),
            [("red", 0), ("blue", 1)]
        );
        assert_eq!(whole.references, [ReferenceState { followers: 4, ..measured }]);
        assert_eq!(whole.counters["no_route"], 4);
        assert_eq!(together(Vec::new()), None);
    }
}
