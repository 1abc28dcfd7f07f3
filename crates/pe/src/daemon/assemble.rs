//! From the file and the machine to what the engine is told.

use super::host::Host;
use super::session::Beginning;
use crate::engine::Keys;
use crate::engine::config::{
    Circuit, Config, Destination, Encapsulation, Flow, Origin, Peer, Port, Reference, Selector, Side, Vpn,
};
use netstage_core::edge;
use netstage_host::keyed::Key;
use netstage_host::obstacle::Obstacle;
use netstage_scenario::pe::{self, ReferenceSource, Router, Tunnel};
use netstage_wire::ethernet::Mac;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

/// Interfaces of customers, each once, in order of name.
pub(super) fn customer_interfaces(router: &Router) -> BTreeSet<&str> {
    router.circuits.iter().map(|circuit| circuit.interface.as_str()).collect()
}

/// The engine's configuration; the core's ports come first, in the order of the file.
pub(super) fn config(router: &Router, host: &mut Host, beginning: &Beginning) -> Result<Config, Obstacle> {
    let mut ports = Vec::new();
    let sides = router.core.iter().map(|name| (name.as_str(), Side::Core));
    let customers = customer_interfaces(router).into_iter().map(|name| (name, Side::Customer));
    for (name, side) in sides.chain(customers) {
        let mac = mac(host, name)?;
        ports.push(Port { name: name.into(), mac, side });
    }
    let peers = router.peers.iter().map(|peer| self::peer(router, host, peer));
    let peers = peers.collect::<Result<Vec<Peer>, Obstacle>>()?;
    let mut circuits = Vec::with_capacity(router.circuits.len());
    for circuit in &router.circuits {
        circuits.push(self::circuit(router, host, circuit)?);
    }
    Ok(Config {
        ports,
        peers,
        vpns: vpns(router),
        references: router.references.iter().map(|one| reference(router, one)).collect(),
        circuits,
        buffers: router.buffers as usize,
        epoch: beginning.epoch,
        epoch_unix_ns: beginning.epoch_unix_ns,
        session_seed: beginning.session_seed,
        tick: edge::TICK,
    })
}

fn mac(host: &mut Host, name: &str) -> Result<Mac, Obstacle> {
    host.link(name)?.mac.ok_or_else(|| {
        let remedy = "take an Ethernet interface, or a VLAN or veth";
        Obstacle::new(format!("{name} has no Ethernet address"), remedy)
    })
}

fn peer(router: &Router, host: &mut Host, peer: &pe::Peer) -> Result<Peer, Obstacle> {
    let encapsulation = match peer.tunnel {
        Tunnel::MplsInUdp { to, from, checksum } => Encapsulation::MplsInUdp {
            local: match from {
                Some(from) => from,
                None => host.source_to(router, to)?,
            },
            remote: to,
            has_checksum: checksum,
        },
        Tunnel::Mpls { push, accept, .. } => Encapsulation::Mpls { push, accept },
    };
    let first = &router.core[0];
    let mtu = match peer.mtu {
        Some(mtu) => mtu,
        None => host.link(first)?.mtu.min(9_216) as u16,
    };
    Ok(Peer {
        name: peer.name.clone(),
        port: first.clone(),
        next_hop: None,
        encapsulation,
        mtu,
        clamp_segment_size: peer.clamp_segment_size,
        keys: keys(peer)?,
    })
}

/// The keys shared with a peer, from their files.
fn keys(peer: &pe::Peer) -> Result<Option<Keys>, Obstacle> {
    let read = |(number, path): &(u8, PathBuf)| {
        let key = Key::read(path).map_err(|error| {
            let message = format!("peer {}: key {number}, {}: {error}", peer.name, path.display());
            Obstacle::new(message, "openssl rand -hex 16 makes a key; both routers need the same")
        })?;
        Ok((*number, key.bytes().to_vec()))
    };
    let keys: Vec<(u8, Vec<u8>)> = peer.keys.iter().map(read).collect::<Result<_, Obstacle>>()?;
    Ok(keys.first().and_then(|(first, _)| Keys::new(*first, &keys)))
}

fn circuit(router: &Router, host: &mut Host, circuit: &pe::Circuit) -> Result<Circuit, Obstacle> {
    let of_interface = host.link(&circuit.interface)?.mtu;
    let mtu = match circuit.mtu {
        Some(mtu) if u32::from(mtu) > of_interface => {
            return Err(Obstacle::new(
                format!(
                    "circuit {}: {} carries {of_interface} B, not {mtu}",
                    circuit.name, circuit.interface
                ),
                format!("leave `mtu` out, or: ip link set {} mtu {mtu}", circuit.interface),
            ));
        }
        Some(mtu) => mtu,
        None => of_interface.min(9_216) as u16,
    };
    Ok(Circuit {
        name: circuit.name.clone(),
        vpn: router.vpns[circuit.vpn].name.clone(),
        port: circuit.interface.clone(),
        vlans: circuit.vlans.clone(),
        select: circuit.select.as_ref().map(|select| Selector {
            source: select.source,
            destination: select.destination,
            protocol: select.protocol,
            source_ports: select.source_ports.clone(),
            destination_ports: select.destination_ports.clone(),
        }),
        station: circuit.station,
        addresses: circuit.addresses.clone(),
        mtu,
    })
}

/// The VPNs, of which the machine need not be asked.
pub(crate) fn vpns(router: &Router) -> Vec<Vpn> {
    router.vpns.iter().enumerate().map(|(number, vpn)| self::vpn(router, number, vpn)).collect()
}

fn vpn(router: &Router, number: usize, vpn: &pe::Vpn) -> Vpn {
    let mut routes = Vec::new();
    let own = router.circuits.iter().filter(|circuit| circuit.vpn == number);
    for circuit in own.clone() {
        routes.extend(circuit.links().map(|link| (link, Destination::Circuit(circuit.name.clone()))));
        routes.extend(circuit.routes.iter().map(|(prefix, via)| {
            (*prefix, Destination::Router { circuit: circuit.name.clone(), via: *via })
        }));
    }
    for flow in &vpn.flows {
        let peer = &router.peers[flow.peer].name;
        routes.extend(flow.routes.iter().map(|prefix| (*prefix, Destination::Peer(peer.clone()))));
    }
    let mut addresses = own.flat_map(|circuit| circuit.addresses.iter().map(|(address, _)| *address));
    let v4 = addresses.clone().find_map(|address| match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    let v6 = addresses.find_map(|address| match address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    });
    Vpn {
        name: vpn.name.clone(),
        routes,
        flows: vpn.flows.iter().map(|flow| self::flow(router, flow)).collect(),
        address_v4: v4,
        address_v6: v6,
    }
}

fn reference(router: &Router, reference: &pe::Reference) -> Reference {
    let peer = |index: &usize| router.peers[*index].name.clone();
    let origin = match &reference.source {
        ReferenceSource::Flow { vpn, peer: far, publish_to } => Origin::Flow {
            vpn: router.vpns[*vpn].name.clone(),
            peer: peer(far),
            publish_to: publish_to.iter().map(peer).collect(),
        },
        ReferenceSource::Peer(from) => Origin::Peer(peer(from)),
    };
    Reference { name: reference.name.clone(), number: reference.number, origin }
}

fn flow(router: &Router, flow: &pe::Flow) -> Flow {
    Flow {
        peer: router.peers[flow.peer].name.clone(),
        send: flow.send,
        receive: flow.receive,
        settings: flow.settings.clone(),
    }
}
