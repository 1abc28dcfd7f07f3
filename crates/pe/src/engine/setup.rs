//! Builds the engine state from a checked configuration and the host properties. All lookups a packet would
//! need are done here, once.

use super::alarms::Alarms;
use super::circuits::Circuits;
use super::counter::Counters;
use super::encapsulation::Encapsulation;
use super::host_properties::{self, HostProperties};
use super::news::NewsExchange;
use super::path_mtu::PathProber;
use super::pool::Pool;
use super::references::References;
use super::secure::{self, SecureTunnel, SecureTunnels};
use super::{
    BATCH, CircuitNextHop, DisplayNames, EngineCircuit, EngineFlow, EnginePeer, EngineState, EngineVpn,
    EthernetTemplate, PacketTotals, PortSide, RouteTarget, flows as vpn_flows,
};
use netstage_core::edge::{EdgeRecorder, IpPrefix, LabelTable, VpnRoutes};
use netstage_core::fair::Egress;
use netstage_core::fair::wire::Querier;
use netstage_core::neighbor::NeighborCache;
use netstage_core::queue::TrafficClass;
use netstage_core::time::Instant;
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::{self, PeConfig, PeerProtection, PeerTunnel};
use netstage_wire::ethernet::{self, Mac, Tag, ethertype};
use netstage_wire::ip::{v4, v6};
use netstage_wire::loss_delay::LossDelaySession;
use netstage_wire::{mpls, udp};
use std::collections::HashMap;
use std::net::IpAddr;

/// Minimum MTU of an IPv6 link (RFC 8200 section 5); that of IPv4 is smaller.
pub(super) const MIN_MTU: usize = 1280;

/// Builds the initial state with `buffers` buffers for waiting packets.
pub(super) fn state(
    router: &PeConfig,
    machine: &HostProperties,
    buffers: usize,
) -> Result<EngineState, StartupError> {
    let ports = router.interfaces();
    let peers = router.peers.iter().zip(&machine.peers).enumerate();
    let peers = peers.map(|(number, (peer, known))| self::peer(router, machine, number, peer, known));
    let mut peers = peers.collect::<Result<Vec<EnginePeer>, StartupError>>()?;
    let tunnels = secure_tunnels(router, machine, &peers)?;
    let (circuits, sides) = circuits(router, machine, &ports)?;
    let (flows, labels, class_tables) = flows(router, machine, &peers);
    for (key, flow) in (0..).zip(&flows) {
        peers[flow.peer as usize].path.flow.get_or_insert(key);
    }
    let (vpns, exits) = vpns(router);
    let names = |names: &mut dyn Iterator<Item = &String>| names.cloned().collect();
    Ok(EngineState {
        epoch: machine.epoch,
        epoch_unix_ns: machine.epoch_unix_ns,
        edge: EdgeRecorder::new(vpn_flows::edge(router, machine.session_seed, machine.tick)),
        pool: Pool::new(buffers, reserve(ports.len()), max_packet_size(router, machine, &circuits)),
        labels,
        flows,
        references: References::new(router),
        news: NewsExchange::new(router, machine.session_seed),
        vpns,
        peers,
        paths_due: Instant::ZERO,
        secure: SecureTunnels::new(router.encryption_port, tunnels),
        circuits,
        exits,
        neighbors: NeighborCache::new(),
        sides,
        class_tables,
        from_customers: Vec::with_capacity(BATCH),
        from_core: Vec::with_capacity(BATCH),
        totals: Counters::default(),
        alarms: Alarms::default(),
        departures: ports.iter().map(|_| Vec::new()).collect(),
        names: DisplayNames {
            vpns: names(&mut router.vpns.iter().map(|vpn| &vpn.name)),
            peers: names(&mut router.peers.iter().map(|peer| &peer.name)),
            circuits: names(&mut router.circuits.iter().map(|circuit| &circuit.name)),
            ports: ports.iter().map(|port| (*port).to_owned()).collect(),
        },
    })
}

/// Returns the number of buffers in addition to those for waiting packets: those for packets read, answered
/// and sent in one turn.
pub(super) fn reserve(ports: usize) -> usize {
    2 * BATCH * ports
}

/// Returns the size of the largest possible packet, bytes.
fn max_packet_size(router: &PeConfig, machine: &HostProperties, circuits: &[EngineCircuit]) -> usize {
    let peers = router.peers.iter().map(|peer| machine.peer_mtu(router, peer));
    let largest = circuits.iter().map(|circuit| circuit.mtu).chain(peers).max();
    usize::from(largest.unwrap_or(0)).max(MIN_MTU)
}

/// Builds a peer whose next hop is still unknown.
fn peer(
    router: &PeConfig,
    machine: &HostProperties,
    number: usize,
    peer: &pe::PeerConfig,
    known: &host_properties::PeerProperties,
) -> Result<EnginePeer, StartupError> {
    let encapsulation = match peer.tunnel {
        PeerTunnel::Mpls { push, accept, .. } => Encapsulation::Mpls { push, accept },
        PeerTunnel::MplsInUdp { to: remote, from, checksum: has_checksum } => {
            let local = from.or(known.source).expect("the host supplies an address the file leaves out");
            if local.is_ipv4() != remote.is_ipv4() {
                let message = format!(
                    "peer {}: source address {local} and tunnel destination {remote} differ in IP version",
                    peer.name
                );
                return Err(StartupError::new(
                    message,
                    "set `from` of the tunnel to an address of the same version",
                ));
            }
            Encapsulation::MplsInUdp { local, remote, has_checksum }
        }
    };
    let mtu = machine.peer_mtu(router, peer);
    let left = left(&encapsulation, peer.is_encrypted(), mtu);
    if left < MIN_MTU {
        let message = format!(
            "peer {}: a core MTU of {mtu} B leaves {left} B for customer packets; {MIN_MTU} B are needed",
            peer.name
        );
        return Err(StartupError::new(message, format!("raise the MTU of {}", router.core[0])));
    }
    // The sessions of VPN flows follow the seed.
    let session = LossDelaySession::from_bits(machine.session_seed.wrapping_sub(1 + number as u32));
    let querier = Querier::new(session, machine.epoch_unix_ns, false);
    Ok(EnginePeer {
        port: 0,
        header: core_header(&encapsulation, Mac::default(), machine.interfaces[&router.core[0]].mac),
        is_reachable: false,
        encapsulation,
        mtu: left as u16,
        path: PathProber::new(querier, None, left as u16),
        clamp_segment_size: peer.clamp_segment_size,
        keys: known.keys.clone(),
    })
}

/// Builds the encrypted tunnels, by index of the peer.
fn secure_tunnels(
    router: &PeConfig,
    machine: &HostProperties,
    peers: &[EnginePeer],
) -> Result<Vec<Option<SecureTunnel>>, StartupError> {
    let tunnel = |(number, peer): (usize, &pe::PeerConfig)| {
        let PeerProtection::Encrypted { public_key, port } = peer.protection else { return Ok(None) };
        let Encapsulation::MplsInUdp { local, remote, .. } = peers[number].encapsulation else {
            unreachable!("a label switched path cannot be encrypted")
        };
        let own = machine.peers[number].private_key.as_ref().expect("the host supplies the key of the file");
        if own.public() == public_key {
            let message = format!("peer {}: the public key is that of this router", peer.name);
            return Err(StartupError::new(
                message,
                "set the key that `netstage pe key FILE` prints on the peer",
            ));
        }
        Ok(Some(SecureTunnel::new(own, public_key, [local, remote], port, number as u32)))
    };
    router.peers.iter().enumerate().map(tunnel).collect()
}

/// Returns the part of a core MTU available to customer packets, bytes.
pub(super) fn left(encapsulation: &Encapsulation, is_encrypted: bool, mtu: u16) -> usize {
    let around = match encapsulation {
        Encapsulation::Mpls { push, .. } => mpls::ENTRY * usize::from(push.is_some()),
        Encapsulation::MplsInUdp { local: IpAddr::V4(_), .. } => v4::HEADER + udp::HEADER,
        Encapsulation::MplsInUdp { local: IpAddr::V6(_), .. } => v6::HEADER + udp::HEADER,
    };
    // The whole MPLS-in-UDP packet is inside the encrypted one, whose outer headers are of the same size.
    let encryption = if is_encrypted { around + secure::OVERHEAD } else { 0 };
    usize::from(mtu).saturating_sub(around + encryption + mpls::ENTRY)
}

/// Builds the Ethernet header of frames to the core.
pub(super) fn core_header(encapsulation: &Encapsulation, next_hop: Mac, own: Mac) -> EthernetTemplate {
    let kind = match encapsulation {
        Encapsulation::Mpls { .. } => ethertype::MPLS,
        Encapsulation::MplsInUdp { local: IpAddr::V4(_), .. } => ethertype::IPV4,
        Encapsulation::MplsInUdp { local: IpAddr::V6(_), .. } => ethertype::IPV6,
    };
    build_header(&ethernet::Header { destination: next_hop, source: own, tags: &[], kind })
}

/// Builds the circuits, and the sides of the ports they are attached to.
fn circuits(
    router: &PeConfig,
    machine: &HostProperties,
    ports: &[&str],
) -> Result<(Vec<EngineCircuit>, Vec<PortSide>), StartupError> {
    let side = |(number, port): (usize, &&str)| {
        let mac = machine.interfaces[*port].mac;
        match number < router.core.len() {
            true => PortSide::Core { mac },
            false => PortSide::Customer { mac, circuits: Circuits::new() },
        }
    };
    let mut sides: Vec<PortSide> = ports.iter().enumerate().map(side).collect();
    let numbers: HashMap<&str, usize> = ports.iter().copied().zip(0..).collect();
    let mut circuits = Vec::with_capacity(router.circuits.len());
    for (number, circuit) in (0..).zip(&router.circuits) {
        let port = numbers[circuit.interface.as_str()];
        let PortSide::Customer { mac, circuits: attached } = &mut sides[port] else {
            unreachable!("no circuit is on an interface of the core")
        };
        attached.attach(&circuit.vlans, circuit.select.as_ref(), number);
        circuits.push(EngineCircuit {
            vpn: circuit.vpn as u32,
            port: port as u32,
            header: circuit_header(circuit, *mac),
            mtu: machine.circuit_mtu(circuit)?,
            mac: circuit.mac,
            rpf: circuit.rpf,
            addresses: circuit.addresses.clone(),
            received: PacketTotals::default(),
            sent: PacketTotals::default(),
        });
    }
    Ok((circuits, sides))
}

/// Builds the Ethernet header of frames to a circuit. Its EtherType is IPv4, changed per packet for IPv6.
fn circuit_header(circuit: &pe::CircuitConfig, source: Mac) -> EthernetTemplate {
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
    let destination = circuit.mac.unwrap_or_default();
    build_header(&ethernet::Header { destination, source, tags: &tags, kind: ethertype::IPV4 })
}

fn build_header(header: &ethernet::Header<'_>) -> EthernetTemplate {
    let mut bytes = [0; ethernet::HEADER + 2 * ethernet::TAG];
    let length = header.write(&mut bytes).expect("there are at most two tags") as u8;
    EthernetTemplate { bytes, length }
}

/// Builds the VPN flows, their labels, and the tables that map DSCPs to classes.
fn flows(
    router: &PeConfig,
    machine: &HostProperties,
    peers: &[EnginePeer],
) -> (Vec<EngineFlow>, LabelTable, Vec<[u8; 64]>) {
    let (mut flows, mut labels, mut tables) = (Vec::new(), LabelTable::default(), Vec::new());
    for (key, (vpn, flow)) in vpn_flows::all(router).enumerate() {
        labels.assign(flow.receive, key).expect("labels are unique");
        // Labels carry no congestion marks.
        let asks_for_marks = matches!(peers[flow.peer].encapsulation, Encapsulation::MplsInUdp { .. });
        let session = LossDelaySession::from_bits(machine.session_seed.wrapping_add(key as u32));
        flows.push(EngineFlow {
            vpn: vpn as u32,
            peer: flow.peer as u32,
            send: flow.send,
            receive: flow.receive,
            classes: class_table(&flow.settings.classes, &mut tables),
            querier: Querier::new(session, machine.epoch_unix_ns, asks_for_marks),
            egress: Egress::default(),
            counters: None,
            balance: None,
            is_silent: false,
        });
    }
    (flows, labels, tables)
}

/// Returns the number of the table for these classes, counted from one, or zero without classes.
fn class_table(classes: &[TrafficClass], tables: &mut Vec<[u8; 64]>) -> u16 {
    if classes.is_empty() {
        return 0;
    }
    let table = TrafficClass::table(classes);
    let known = tables.iter().position(|known| *known == table);
    let number = known.unwrap_or_else(|| {
        tables.push(table);
        tables.len() - 1
    });
    number as u16 + 1
}

/// Builds the VPNs with their routes, and the next hops of the routes.
fn vpns(router: &PeConfig) -> (Vec<EngineVpn>, Vec<CircuitNextHop>) {
    let mut exits = Vec::new();
    let mut routes: Vec<Vec<(IpPrefix, RouteTarget)>> = vec![Vec::new(); router.vpns.len()];
    for (key, (vpn, flow)) in vpn_flows::all(router).enumerate() {
        routes[vpn].extend(flow.routes.iter().map(|prefix| (*prefix, RouteTarget::Flow(key as u32))));
    }
    for (number, circuit) in (0..).zip(&router.circuits) {
        let mut exit = |via| {
            exits.push(CircuitNextHop { circuit: number, via });
            RouteTarget::Exit(exits.len() as u32 - 1)
        };
        let routes = &mut routes[circuit.vpn];
        for ((address, _), link) in circuit.addresses.iter().zip(circuit.links()) {
            let host = IpPrefix::host(*address);
            // A link of one address has no other hosts.
            if link != host {
                routes.push((link, exit(None)));
            }
            routes.push((host, RouteTarget::Local(number)));
        }
        routes.extend(circuit.routes.iter().map(|(prefix, via)| (*prefix, exit(Some(*via)))));
    }
    let vpn = |routes: &Vec<(IpPrefix, RouteTarget)>| EngineVpn {
        routes: VpnRoutes::new(routes).expect("prefixes are unique"),
        held: 0,
        next_icmp: Instant::ZERO,
        address_v4: None,
        address_v6: None,
    };
    let mut vpns: Vec<EngineVpn> = routes.iter().map(vpn).collect();
    for circuit in &router.circuits {
        let vpn = &mut vpns[circuit.vpn];
        for (address, _) in &circuit.addresses {
            match *address {
                IpAddr::V4(address) => vpn.address_v4 = vpn.address_v4.or(Some(address)),
                IpAddr::V6(address) => vpn.address_v6 = vpn.address_v6.or(Some(address)),
            }
        }
    }
    (vpns, exits)
}
