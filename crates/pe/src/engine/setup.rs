//! From names to numbers: everything a packet needs is found once, when the engine is made.

use super::circuits::{Circuits, Occupied};
use super::config::{self, Config, Destination, Encapsulation, Error};
use super::counter::Counters;
use super::pool::Pool;
use super::references::References;
use super::{
    BATCH, Circuit, Exit, Flow, Header, Names, Next, Peer, Side, State, Traffic, Vpn, flows as vpn_flows,
};
use netstage_core::edge::{Labels, Prefix, Routes, Taken, Tape};
use netstage_core::fair::Egress;
use netstage_core::fair::wire::Querier;
use netstage_core::neighbour::Neighbours;
use netstage_core::queue::TrafficClass;
use netstage_core::time::Instant;
use netstage_wire::ethernet::{self, Mac, Tag, ethertype};
use netstage_wire::ip::{v4, v6};
use netstage_wire::loss_delay::Session;
use netstage_wire::{mpls, udp};
use std::collections::HashMap;
use std::net::IpAddr;

/// The least an IPv6 link carries; IPv4 asks for less.
const LEAST_MTU: usize = 1280;

pub(super) fn state(config: &Config) -> Result<State, Error> {
    let ports = Numbers::new("port", config.ports.iter().map(|port| &port.name))?;
    let peer_numbers = Numbers::new("peer", config.peers.iter().map(|peer| &peer.name))?;
    let vpn_numbers = Numbers::new("VPN", config.vpns.iter().map(|vpn| &vpn.name))?;
    let circuit_numbers = Numbers::new("circuit", config.circuits.iter().map(|circuit| &circuit.name))?;

    let peers =
        config.peers.iter().map(|peer| self::peer(config, &ports, peer)).collect::<Result<Vec<_>, _>>()?;
    let mut sides: Vec<Side> = config.ports.iter().map(side).collect();
    let mut circuits = Vec::with_capacity(config.circuits.len());
    for circuit in &config.circuits {
        let place = || format!("circuit {:?}", circuit.name);
        let vpn = vpn_numbers.of(&circuit.vpn, place)?;
        let port = ports.of(&circuit.port, place)?;
        attach(config, &mut sides[port as usize], circuit, circuits.len())?;
        circuits.push(Circuit {
            vpn,
            port,
            header: circuit_header(config, port, circuit),
            mtu: circuit.mtu,
            station: circuit.station,
            addresses: circuit.addresses.clone(),
            received: Traffic::default(),
            sent: Traffic::default(),
        });
    }

    let (mut labels, mut flows) = (Labels::default(), Vec::new());
    let mut exits = Vec::new();
    let mut class_tables: Vec<[u8; 64]> = Vec::new();
    let mut vpns = Vec::with_capacity(config.vpns.len());
    for (number, vpn) in config.vpns.iter().enumerate() {
        let place = || format!("VPN {:?}", vpn.name);
        // A VPN has few peers, so they are looked for one by one.
        let mut own: Vec<(u32, u32)> = Vec::with_capacity(vpn.flows.len());
        for flow in &vpn.flows {
            let peer = peer_numbers.of(&flow.peer, place)?;
            if own.iter().any(|(other, _)| *other == peer) {
                return Err(Error::Flows { vpn: vpn.name.clone(), peer: flow.peer.clone(), count: 2 });
            }
            let key = flows.len();
            if !flow.classes_are_right() {
                return Err(Error::Classes { vpn: vpn.name.clone(), peer: flow.peer.clone() });
            }
            let classes = match &flow.settings.classes[..] {
                [] => 0,
                classes => {
                    let table = TrafficClass::table(classes);
                    let known = class_tables.iter().position(|known| *known == table);
                    known.unwrap_or_else(|| {
                        class_tables.push(table);
                        class_tables.len() - 1
                    }) as u16
                        + 1
                }
            };
            let name = || format!("VPN {:?} with peer {:?}", vpn.name, flow.peer);
            if flow.send.is_reserved() {
                return Err(Error::LabelReserved { place: name(), label: flow.send });
            }
            labels.give(flow.receive, key).map_err(|taken| match taken {
                Taken::Reserved => Error::LabelReserved { place: name(), label: flow.receive },
                Taken::By(other) => Error::LabelTaken {
                    label: flow.receive,
                    first: described(config, &flows, other),
                    second: name(),
                },
            })?;
            own.push((peer, key as u32));
            // Labels carry no congestion marks.
            let asks_for_marks =
                matches!(peers[peer as usize].encapsulation, Encapsulation::MplsInUdp { .. });
            let session = Session::from_bits(config.session_seed.wrapping_add(key as u32));
            flows.push(Flow {
                vpn: number as u32,
                peer,
                send: flow.send,
                receive: flow.receive,
                classes,
                querier: Querier::new(session, config.epoch_unix_ns, asks_for_marks),
                egress: Egress::default(),
                counters: None,
                is_silent: false,
            });
        }
        let mut routes = Vec::with_capacity(vpn.routes.len());
        let mut exit = |name: &str, via| {
            let circuit = circuit_numbers.of(name, place)?;
            if circuits[circuit as usize].vpn != number as u32 {
                return Err(Error::ForeignCircuit { vpn: vpn.name.clone(), circuit: name.into() });
            }
            exits.push(Exit { circuit, via });
            Ok(Next::Exit(exits.len() as u32 - 1))
        };
        for (prefix, destination) in &vpn.routes {
            let next = match destination {
                Destination::Circuit(name) => exit(name, None)?,
                Destination::Router { circuit, via } => exit(circuit, Some(*via))?,
                Destination::Peer(name) => {
                    let peer = peer_numbers.of(name, place)?;
                    let found = own.iter().find(|(other, _)| *other == peer);
                    let Some((_, flow)) = found else {
                        return Err(Error::Flows { vpn: vpn.name.clone(), peer: name.clone(), count: 0 });
                    };
                    Next::Flow(*flow)
                }
            };
            routes.push((*prefix, next));
        }
        for (own, circuit) in circuits.iter().enumerate().filter(|(_, circuit)| circuit.vpn == number as u32)
        {
            let host = |address: &IpAddr| {
                let length = if address.is_ipv4() { 32 } else { 128 };
                Prefix::new(*address, length).expect("no bit is beyond the length")
            };
            let addresses = circuit.addresses.iter().map(|(address, _)| host(address));
            // A link of one address has that prefix itself.
            for address in addresses {
                routes.retain(|(prefix, next)| *prefix != address || !matches!(next, Next::Exit(_)));
                routes.push((address, Next::Local(own as u32)));
            }
        }
        vpns.push(Vpn {
            routes: Routes::new(&routes)
                .map_err(|prefix| Error::PrefixTwice { vpn: vpn.name.clone(), prefix })?,
            held: 0,
            next_icmp: Instant::ZERO,
            address_v4: vpn.address_v4,
            address_v6: vpn.address_v6,
        });
    }

    let references = References::new(config, |name, place| peer_numbers.of(name, || place.to_owned()))?;

    // Beside those in which packets wait: what one turn reads of each port, answers, and sends.
    let reserve = 2 * BATCH * config.ports.len();
    Ok(State {
        epoch: config.epoch,
        epoch_unix_ns: config.epoch_unix_ns,
        edge: Tape::new(vpn_flows::edge(&config.vpns, config.session_seed, config.tick)),
        pool: Pool::new(config.buffers, reserve, largest(config)),
        labels,
        flows,
        references,
        vpns,
        peers,
        circuits,
        exits,
        neighbours: Neighbours::new(),
        sides,
        class_tables,
        from_customers: Vec::with_capacity(BATCH),
        from_core: Vec::with_capacity(BATCH),
        totals: Counters::default(),
        departures: config.ports.iter().map(|_| Vec::new()).collect(),
        names: Names {
            vpns: config.vpns.iter().map(|vpn| vpn.name.clone()).collect(),
            peers: config.peers.iter().map(|peer| peer.name.clone()).collect(),
            circuits: config.circuits.iter().map(|circuit| circuit.name.clone()).collect(),
            ports: config.ports.iter().map(|port| port.name.clone()).collect(),
        },
    })
}

/// Bytes of the largest packet there may be.
pub(super) fn largest(config: &Config) -> usize {
    let circuits = config.circuits.iter().map(|circuit| circuit.mtu);
    let largest = circuits.chain(config.peers.iter().map(|peer| peer.mtu)).max().unwrap_or(0);
    usize::from(largest).max(LEAST_MTU)
}

/// Who has a label.
fn described(config: &Config, flows: &[Flow], flow: usize) -> String {
    let Flow { vpn, peer, .. } = flows[flow];
    let (vpn, peer) = (&config.vpns[vpn as usize].name, &config.peers[peer as usize].name);
    format!("VPN {vpn:?} with peer {peer:?}")
}

fn side(port: &config::Port) -> Side {
    match port.side {
        config::Side::Customer => Side::Customer { mac: port.mac, circuits: Circuits::new() },
        config::Side::Core => Side::Core { mac: port.mac },
    }
}

fn peer(config: &Config, ports: &Numbers<'_>, peer: &config::Peer) -> Result<Peer, Error> {
    let place = || format!("peer {:?}", peer.name);
    let port = ports.of(&peer.port, place)?;
    let Some(config::Port { mac, side: config::Side::Core, .. }) = config.ports.get(port as usize) else {
        return Err(Error::Side { place: place(), port: peer.port.clone(), wanted: config::Side::Core });
    };
    match peer.encapsulation {
        Encapsulation::Mpls { push, accept } => {
            if let Some(label) = [push, accept].into_iter().flatten().find(|label| label.is_reserved()) {
                return Err(Error::LabelReserved { place: place(), label });
            }
        }
        Encapsulation::MplsInUdp { local, remote, .. } => {
            if local.is_ipv4() != remote.is_ipv4() {
                return Err(Error::MixedVersions { peer: peer.name.clone() });
            }
        }
    }
    let left = left(&peer.encapsulation, peer.mtu);
    if left < LEAST_MTU {
        return Err(Error::Mtu { peer: peer.name.clone(), left });
    }
    Ok(Peer {
        port,
        header: core_header(&peer.encapsulation, peer.next_hop.unwrap_or_default(), *mac),
        is_reachable: peer.next_hop.is_some(),
        encapsulation: peer.encapsulation,
        mtu: left as u16,
        clamp_segment_size: peer.clamp_segment_size,
        keys: peer.keys.clone(),
    })
}

/// What the core leaves for customers' packets.
pub(super) fn left(encapsulation: &Encapsulation, mtu: u16) -> usize {
    let around = match encapsulation {
        Encapsulation::Mpls { push, .. } => mpls::ENTRY * usize::from(push.is_some()),
        Encapsulation::MplsInUdp { local: IpAddr::V4(_), .. } => v4::HEADER + udp::HEADER,
        Encapsulation::MplsInUdp { local: IpAddr::V6(_), .. } => v6::HEADER + udp::HEADER,
    };
    usize::from(mtu).saturating_sub(around + mpls::ENTRY)
}

/// The header of what leaves to the core.
pub(super) fn core_header(encapsulation: &Encapsulation, next_hop: Mac, own: Mac) -> Header {
    let kind = match encapsulation {
        Encapsulation::Mpls { .. } => ethertype::MPLS,
        Encapsulation::MplsInUdp { local: IpAddr::V4(_), .. } => ethertype::IPV4,
        Encapsulation::MplsInUdp { local: IpAddr::V6(_), .. } => ethertype::IPV6,
    };
    written(&ethernet::Header { destination: next_hop, source: own, tags: &[], kind })
}

fn attach(config: &Config, side: &mut Side, circuit: &config::Circuit, number: usize) -> Result<(), Error> {
    let Side::Customer { circuits, .. } = side else {
        let place = format!("circuit {:?}", circuit.name);
        return Err(Error::Side { place, port: circuit.port.clone(), wanted: config::Side::Customer });
    };
    let attached = circuits.attach(circuit.attachment()?, circuit.select.as_ref(), number as u32);
    attached.map_err(|occupied| match occupied {
        Occupied::By(other) => Error::Overlap {
            first: config.circuits[other as usize].name.clone(),
            second: circuit.name.clone(),
        },
        Occupied::Stacking => Error::Vlans { circuit: circuit.name.clone() },
    })
}

/// The header of what leaves by a circuit; its ethertype is IPv4's, and set for IPv6.
fn circuit_header(config: &Config, port: u32, circuit: &config::Circuit) -> Header {
    let kinds: &[u16] = match circuit.vlans.len() {
        2 => &[ethertype::SERVICE_VLAN, ethertype::VLAN],
        _ => &[ethertype::VLAN],
    };
    let tags: Vec<Tag> = circuit
        .vlans
        .iter()
        .zip(kinds)
        .map(|(vlan, kind)| Tag { kind: *kind, vlan: *vlan, ..Tag::default() })
        .collect();
    let source = config.ports[port as usize].mac;
    let destination = circuit.station.unwrap_or_default();
    written(&ethernet::Header { destination, source, tags: &tags, kind: ethertype::IPV4 })
}

fn written(header: &ethernet::Header<'_>) -> Header {
    let mut bytes = [0; ethernet::HEADER + 2 * ethernet::TAG];
    let length = header.write(&mut bytes).expect("there are at most two tags") as u8;
    Header { bytes, length }
}

/// Names of one kind of thing, each once.
struct Numbers<'a> {
    kind: &'static str,
    numbers: HashMap<&'a str, u32>,
}

impl<'a> Numbers<'a> {
    fn new(kind: &'static str, names: impl Iterator<Item = &'a String>) -> Result<Numbers<'a>, Error> {
        let mut numbers = HashMap::new();
        for (number, name) in names.enumerate() {
            if numbers.insert(name.as_str(), number as u32).is_some() {
                return Err(Error::Twice { kind, name: name.clone() });
            }
        }
        Ok(Numbers { kind, numbers })
    }

    fn of(&self, name: &str, place: impl Fn() -> String) -> Result<u32, Error> {
        self.numbers.get(name).copied().ok_or_else(|| Error::Unknown {
            place: place(),
            kind: self.kind,
            name: name.into(),
        })
    }
}
