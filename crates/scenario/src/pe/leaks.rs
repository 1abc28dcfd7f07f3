//! Checks for configurations with which packets would reach another VPN or another router than meant.

use super::file::{self, PeFile};
use super::{PeConfig, PeerConfig, PeerTunnel};
use crate::error::Problems;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Destination of packets with a label: tunnel address, or next hop and label of the path.
type LabelSpace = (IpAddr, Option<u32>);

fn label_space(tunnel: &PeerTunnel) -> LabelSpace {
    match tunnel {
        PeerTunnel::MplsInUdp { to, .. } => (*to, None),
        PeerTunnel::Mpls { next_hop, push, .. } => (*next_hop, Some(push.map_or(0, |label| label.number()))),
    }
}

/// Checks the addresses of peers, their encryption, and the labels of sent packets.
pub(super) fn check(file: &PeFile, peers: &[PeerConfig], problems: &mut Problems) {
    let tables = file.peer.0.iter().filter_map(|member| member.value.as_ref());
    let mut encrypted: BTreeMap<(IpAddr, Option<IpAddr>), &str> = BTreeMap::new();
    for (peer, table) in peers.iter().zip(tables) {
        check_address(peer, table, problems);
        let PeerTunnel::MplsInUdp { to, from, .. } = peer.tunnel else { continue };
        let Some(encryption) = &table.encryption else { continue };
        if let Some(other) = encrypted.insert((to, from), &peer.name) {
            let message = format!("peers `{other}` and `{}` have the address {to}", peer.name);
            let help = "the source address identifies the key of an encrypted packet: change one, or merge the peers";
            problems.push_help(table.tunnel.place, message, help);
        }
        if file.pe.private_key.is_none() {
            let message = format!("peer `{}` is encrypted, but this router has no private key", peer.name);
            problems.push_help(
                encryption.place,
                message,
                "set private_key = \"FILE\" in [pe]; create it with: netstage pe key FILE",
            );
        }
        if file.pe.cores.0 > 1 {
            let message = "packets of an encrypted peer cannot be divided among `cores`";
            problems.push_help(encryption.place, message, "set [pe] `cores = 1`");
        }
    }
    let port = &file.pe.encryption_port;
    if port.value.0 == u64::from(netstage_wire::mpls_in_udp::PORT) {
        problems.push_help(port.place, "port 6635 is that of unencrypted MPLS-in-UDP", "choose another port");
    }
    check_labels(file, peers, problems);
}

fn check_address(peer: &PeerConfig, table: &file::PeerTable, problems: &mut Problems) {
    let (address, own) = match peer.tunnel {
        PeerTunnel::MplsInUdp { to, from, .. } => (to, from),
        PeerTunnel::Mpls { next_hop, .. } => (next_hop, None),
    };
    if address.is_loopback() || own == Some(address) {
        let message = format!("{address} is an address of this router, not of peer `{}`", peer.name);
        problems.push_help(table.tunnel.place, message, "give the address of the peer");
    }
}

/// Reports a label that is sent to one router in two VPNs: the router would deliver the packets of both to one.
fn check_labels(file: &PeFile, peers: &[PeerConfig], problems: &mut Problems) {
    let mut sent: BTreeMap<(LabelSpace, u64), String> = BTreeMap::new();
    for member in file.vpn.0.iter() {
        let Some(vpn) = &member.value else { continue };
        for flow in vpn.peer.0.iter() {
            let Some(peer) = peers.iter().find(|peer| peer.name == flow.name) else { continue };
            let Some(label) = flow.value.as_ref().map(|flow| &flow.send) else { continue };
            let owner = format!("VPN `{}` with peer `{}`", member.name, flow.name);
            if let Some(other) = sent.insert((label_space(&peer.tunnel), label.value.0), owner) {
                let message = format!("label {} is already sent to this router by {other}", label.value.0);
                let help =
                    "packets of both VPNs would reach one VPN there: use the label of the peer's `receive`";
                problems.push_help(label.place, message, help);
            }
        }
    }
}

/// Returns descriptions of settings that are valid, but probably mistakes.
pub(super) fn warnings(router: &PeConfig) -> Vec<String> {
    let mut known: BTreeMap<LabelSpace, &str> = BTreeMap::new();
    let mut warnings = Vec::new();
    for peer in &router.peers {
        if let Some(other) = known.insert(label_space(&peer.tunnel), &peer.name) {
            let address = label_space(&peer.tunnel).0;
            warnings.push(format!(
                "peers `{other}` and `{}` are one router, {address}: packets to one may be meant for another address",
                peer.name
            ));
        }
    }
    warnings
}
