//! Checks for configurations with which packets would reach another VPN or another router than meant.

use super::file::{self, PeFile};
use super::{PeerConfig, PeerTunnel};
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

/// Checks the addresses of peers and the labels of sent packets.
pub(super) fn check(file: &PeFile, peers: &[PeerConfig], problems: &mut Problems) {
    let tables = file.peer.0.iter().filter_map(|member| member.value.as_ref());
    peers.iter().zip(tables).for_each(|(peer, table)| check_address(peer, table, problems));
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
            let Some(peer) = file.peer.index(&flow.name).and_then(|index| peers.get(index)) else { continue };
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
