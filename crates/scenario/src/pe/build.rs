//! Checks between the tables of a configuration: known names, unique labels and prefixes, addresses within the
//! prefix of their link. [`references`] checks the flows that weights are relative to.

use super::file::{self, PeFile};
use super::{
    CircuitConfig, PacketFilter, PeConfig, PeVpnConfig, PeerConfig, PeerProtection, PeerTunnel,
    VpnFlowConfig, leaks, references,
};
use crate::error::{Problems, SourceRange, did_you_mean};
use crate::file::control::ControlTable;
use crate::key::shared_keys;
use crate::scalar::BoundedCount;
use crate::table::{List, Located, NamedTables};
use netstage_core::edge::IpPrefix;
use netstage_core::fair::paths::{FIRST_PATH, path_number};
use netstage_core::fair::{CoreMembership, VpnControl};
use netstage_wire::mpls::LabelValue;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

pub(super) fn router(file: &PeFile, problems: &mut Problems) -> Option<PeConfig> {
    let core = core(file, problems);
    let peers: Option<Vec<PeerConfig>> = file.peer.0.iter().map(|peer| self::peer(peer, problems)).collect();
    let mut labels = BTreeMap::new();
    let mut prefixes = vec![BTreeMap::new(); file.vpn.0.len()];
    let circuits: Vec<Option<CircuitConfig>> = file
        .circuit
        .0
        .iter()
        .map(|member| circuit(file, &member.name, member.value.as_ref()?, &mut prefixes, problems))
        .collect();
    let mut vpns = Vec::with_capacity(file.vpn.0.len());
    for (member, prefixes) in file.vpn.0.iter().zip(&mut prefixes) {
        let Some(vpn) = &member.value else { continue };
        let flows = vpn.peer.0.iter().map(|flow| {
            let peer = reference(&file.peer, &flow.name, flow.place, "peer", problems);
            let owner = format!("VPN `{}` with peer `{}`", member.name, flow.name);
            let checked = self::flow(file, &owner, flow.value.as_ref()?, &mut labels, prefixes, problems);
            Some(VpnFlowConfig { peer: peer?, ..checked? })
        });
        let flows: Vec<Option<VpnFlowConfig>> = flows.collect();
        vpns.push(PeVpnConfig {
            name: member.name.clone(),
            flows: flows.into_iter().collect::<Option<_>>()?,
        });
    }
    let references = references::references(file, problems);
    let circuits: Vec<CircuitConfig> = circuits.into_iter().collect::<Option<_>>()?;
    check_sharing(file, &circuits, problems);
    let peers = peers?;
    leaks::check(file, &peers, problems);
    set_paths(&peers, &mut vpns);
    Some(PeConfig {
        core,
        control: file.pe.control.0.clone().into(),
        metrics: file.pe.metrics.as_ref().map(|listen| listen.0),
        buffers: file.pe.buffers.0,
        ports: file.pe.ports,
        moderation: file.pe.moderation.0,
        cores: file.pe.cores.0 as usize,
        private_key: file.pe.private_key.as_ref().map(|file| file.value.0.clone().into()),
        encryption_port: file.pe.encryption_port.value.0 as u16,
        peers,
        vpns,
        references: references?,
        circuits,
    })
}

fn core(file: &PeFile, problems: &mut Problems) -> Vec<String> {
    let names = &file.pe.core.0;
    for (number, name) in names.iter().enumerate() {
        if names[..number].iter().any(|other| other.value.0 == name.value.0) {
            let message = format!("interface `{}` is listed twice", name.value.0);
            problems.push_help(name.place, message, "remove one");
        }
    }
    names.iter().map(|name| name.value.0.clone()).collect()
}

/// Returns the index of a name, or reports it with the nearest known name.
pub(super) fn reference<T>(
    members: &NamedTables<T>,
    name: &str,
    place: SourceRange,
    what: &str,
    problems: &mut Problems,
) -> Option<usize> {
    let index = members.index(name);
    if index.is_none() {
        let message = format!("unknown {what} `{}`", name.escape_debug());
        let help = did_you_mean(name, members.names());
        let help = help.or_else(|| Some(format!("define it with [{what}.{name}]")));
        problems.push_with_help(place, message, help);
    }
    index
}

fn label(number: BoundedCount<16, 1_048_575>) -> LabelValue {
    LabelValue::new(number.0 as u32).expect("within 20 bits")
}

fn peer(member: &crate::table::NamedTable<file::PeerTable>, problems: &mut Problems) -> Option<PeerConfig> {
    let peer = member.value.as_ref()?;
    let tunnel = match &peer.tunnel.value {
        file::PeTunnelTable::MplsInUdp(udp) => {
            let (to, from) = (udp.to.0, udp.from.as_ref().map(|from| from.0));
            if from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
                let message = "the ends of this tunnel have different IP versions";
                problems.push_help(
                    peer.tunnel.place,
                    message,
                    "remove `from`, or use two IPv4 or two IPv6 addresses",
                );
                return None;
            }
            PeerTunnel::MplsInUdp { to, from, checksum: udp.checksum }
        }
        file::PeTunnelTable::Mpls(mpls) => PeerTunnel::Mpls {
            next_hop: mpls.next_hop.0,
            push: mpls.push.map(label),
            accept: mpls.accept.map(label),
        },
    };
    let protection = protection(member, peer, problems)?;
    Some(PeerConfig {
        name: member.name.clone(),
        tunnel,
        mtu: peer.mtu.map(|mtu| mtu.0 as u16),
        clamp_segment_size: peer.clamp_segment_size,
        news: peer.news,
        keys: shared_keys(&peer.keys.0, problems),
        protection,
    })
}

/// Returns the protection of a peer. None of the choices is a default, since a weak one would go unnoticed.
fn protection(
    member: &crate::table::NamedTable<file::PeerTable>,
    peer: &file::PeerTable,
    problems: &mut Problems,
) -> Option<PeerProtection> {
    match (&peer.encryption, peer.trusted) {
        (Some(encryption), false) => {
            if matches!(peer.tunnel.value, file::PeTunnelTable::Mpls(_)) {
                let help = "use tunnel kind \"mpls-in-udp\", or `trusted = true`";
                problems.push_help(encryption.place, "MPLS on Ethernet cannot be encrypted", help);
            }
            let file::EncryptionTable { public_key, port } = &encryption.value;
            Some(PeerProtection::Encrypted { public_key: public_key.0, port: port.0 as u16 })
        }
        (None, true) => Some(PeerProtection::Trusted),
        (Some(encryption), true) => {
            let message = format!("peer `{}` has both `encryption` and `trusted`", member.name);
            problems.push_help(encryption.place, message, "remove `trusted`, which means no encryption");
            None
        }
        (None, false) => {
            let message = format!("peer `{}` is neither encrypted nor trusted", member.name);
            let help = "set encryption = { public_key = \"…\" } with the key that `netstage pe key` prints on the \
                        peer, or trusted = true if no other host can send packets into the core";
            problems.push_help(member.place, message, help);
            None
        }
    }
}

/// Returns a flow, without the index of its peer.
fn flow(
    file: &PeFile,
    owner: &str,
    flow: &file::VpnFlowTable,
    labels: &mut BTreeMap<u64, String>,
    prefixes: &mut BTreeMap<IpPrefix, SourceRange>,
    problems: &mut Problems,
) -> Option<VpnFlowConfig> {
    if let Some(holder) = labels.insert(flow.receive.value.0, owner.to_owned()) {
        let message = format!("label {} is already used by {holder}", flow.receive.value.0);
        let help = "each flow needs its own label, which identifies VPN and sender";
        problems.push_help(flow.receive.place, message, help);
    }
    for prefix in &flow.routes.0 {
        add_prefix(prefixes, prefix.value.0, prefix.place, problems);
    }
    let window = match &flow.treatment.control.value {
        ControlTable::I2vfc(i2vfc) => Some(references::config(file, i2vfc, problems)?),
        _ => None,
    };
    let mut settings = flow.treatment.settings(flow.weight.0, false, |_| window, problems)?;
    match &mut settings.control {
        VpnControl::RateConsensus(membership) => {
            *membership = match &flow.links {
                Some(links) => CoreMembership::Links(numbers(links)),
                None => CoreMembership::Path(FIRST_PATH),
            };
        }
        _ => {
            if let Some(links) = &flow.links {
                let message = "`links` needs control \"rate-consensus\"";
                problems.push_help(links.place, message, "remove it, or set control = \"rate-consensus\"");
            }
        }
    }
    Some(VpnFlowConfig {
        peer: 0,
        send: label(flow.send.value),
        receive: label(flow.receive.value),
        routes: flow.routes.0.iter().map(|prefix| prefix.value.0).collect(),
        settings,
    })
}

/// Returns the numbers of a flow's links, each once.
fn numbers(links: &Located<List<BoundedCount<0, 2_147_483_647>, 1, 32>>) -> Vec<u32> {
    let numbers: BTreeSet<u32> = links.value.0.iter().map(|number| number.0 as u32).collect();
    numbers.into_iter().collect()
}

/// Numbers the paths of flows under rate consensus whose links are not known. The peer has assigned each of the labels to
/// one router only, so they distinguish the paths of all routers.
fn set_paths(peers: &[PeerConfig], vpns: &mut [PeVpnConfig]) {
    let mut labels: Vec<Option<LabelValue>> = vec![None; peers.len()];
    for flow in vpns.iter().flat_map(|vpn| &vpn.flows) {
        let least = &mut labels[flow.peer];
        *least = Some(least.map_or(flow.send, |least| least.min(flow.send)));
    }
    let paths: Vec<u32> = peers
        .iter()
        .zip(labels)
        .map(|(peer, label)| path_number(&format!("{:?} {label:?}", peer.tunnel)))
        .collect();
    for flow in vpns.iter_mut().flat_map(|vpn| &mut vpn.flows) {
        if let VpnControl::RateConsensus(CoreMembership::Path(path)) = &mut flow.settings.control {
            *path = paths[flow.peer];
        }
    }
}

/// Adds a prefix of a VPN, and reports a duplicate.
fn add_prefix(
    prefixes: &mut BTreeMap<IpPrefix, SourceRange>,
    prefix: IpPrefix,
    place: SourceRange,
    problems: &mut Problems,
) {
    if prefixes.insert(prefix, place).is_some() {
        let message = format!("prefix {prefix} is listed twice in this VPN");
        problems.push_help(place, message, "remove or change one of them");
    }
}

fn circuit(
    file: &PeFile,
    name: &str,
    circuit: &file::CircuitTable,
    prefixes: &mut [BTreeMap<IpPrefix, SourceRange>],
    problems: &mut Problems,
) -> Option<CircuitConfig> {
    let interface = &circuit.interface.value.0;
    if file.pe.core.0.iter().any(|core| core.value.0 == *interface) {
        let message = format!("`{interface}` is a core interface");
        let help = "customers and the core need separate interfaces, because they are trusted differently";
        problems.push_help(circuit.interface.place, message, help);
    }
    let vlans: Vec<u16> =
        circuit.vlan.iter().flat_map(|vlans| vlans.value.0.iter().map(|vlan| vlan.0 as u16)).collect();
    if let (Some(vlan), 3..) = (&circuit.vlan, vlans.len()) {
        problems.push(vlan.place, "expected at most two VLAN tags");
    }
    let vpn = reference(&file.vpn, &circuit.vpn.value.0, circuit.vpn.place, "vpn", problems)?;
    let addresses: Vec<(IpAddr, u8)> = circuit.address.0.iter().map(|address| address.value.0).collect();
    for address in circuit.address.0.iter() {
        let (own, length) = address.value.0;
        let (link, host) = (IpPrefix::containing(own, length), IpPrefix::host(own));
        add_prefix(&mut prefixes[vpn], link, address.place, problems);
        if link != host {
            add_prefix(&mut prefixes[vpn], host, address.place, problems);
        }
    }
    let mut routes = Vec::with_capacity(circuit.routes.0.len());
    for route in &circuit.routes.0 {
        let (to, via) = (route.to.value.0, route.via.value.0);
        add_prefix(&mut prefixes[vpn], to, route.to.place, problems);
        let is_on_link =
            addresses.iter().any(|(own, length)| IpPrefix::containing(*own, *length).contains(via));
        if !is_on_link || addresses.iter().any(|(own, _)| *own == via) {
            let message = format!("{via} is not on this circuit");
            let help = "`via` must be a router's address within the prefix of one of the circuit's addresses";
            problems.push_help(route.via.place, message, help);
        }
        routes.push((to, via));
    }
    Some(CircuitConfig {
        name: name.to_owned(),
        vpn,
        interface: interface.clone(),
        vlans,
        select: circuit.select.as_ref().map(select),
        addresses,
        mac: circuit.mac.as_ref().map(|mac| mac.0),
        routes,
        mtu: circuit.mtu.map(|mtu| mtu.0 as u16),
        rpf: circuit.rpf,
    })
}

fn select(select: &file::SelectionTable) -> PacketFilter {
    PacketFilter {
        source: select.source.as_ref().map(|prefix| prefix.0),
        destination: select.destination.as_ref().map(|prefix| prefix.0),
        protocol: select.protocol.map(|protocol| protocol.0 as u8),
        source_ports: select.source_ports.as_ref().map(|ports| ports.0.clone()),
        destination_ports: select.destination_ports.as_ref().map(|ports| ports.0.clone()),
    }
}

/// Checks circuits that share an interface and VLAN. They must differ in selection, and in addresses, which alone
/// determine the VPN of an ARP or neighbor solicitation. A VLAN is a circuit or contains circuits, not both.
fn check_sharing(file: &PeFile, circuits: &[CircuitConfig], problems: &mut Problems) {
    let members = file.circuit.0.iter().filter_map(|member| member.value.as_ref());
    let mut outer: BTreeMap<(&str, u16), [Option<usize>; 2]> = BTreeMap::new();
    let mut shared: BTreeMap<(&str, &[u16]), Vec<&CircuitConfig>> = BTreeMap::new();
    for (number, (circuit, member)) in circuits.iter().zip(members).enumerate() {
        let (interface, place) = (circuit.interface.as_str(), member.interface.place);
        if let [vlan, inner @ ..] = &circuit.vlans[..] {
            let depth = inner.len().min(1);
            let first = outer.entry((interface, *vlan)).or_default();
            first[depth].get_or_insert(number);
            if let Some(other) = first[1 - depth].map(|other| &circuits[other].name) {
                let message = match depth {
                    0 => format!("circuit `{other}` uses a VLAN inside this circuit's VLAN"),
                    _ => format!("this circuit uses a VLAN inside that of circuit `{other}`"),
                };
                problems.push_help(place, message, "a VLAN is a circuit or contains circuits, not both");
            }
        }
        let others = shared.entry((interface, &circuit.vlans)).or_default();
        for other in others.iter() {
            if other.select == circuit.select {
                let message = format!("circuit `{}` selects the same packets", other.name);
                let help = "change the interface, VLAN or selection of one";
                problems.push_help(place, message, help);
            }
            let mut own = circuit.addresses.iter().map(|(own, _)| own);
            if let Some(own) = own.find(|own| other.addresses.iter().any(|(address, _)| address == *own)) {
                let message =
                    format!("circuit `{}` has the address {own} on the same interface and VLAN", other.name);
                let help = "circuits of one interface and VLAN need different addresses, which identify the VPN of a request";
                problems.push_help(place, message, help);
            }
        }
        others.push(circuit);
    }
}
