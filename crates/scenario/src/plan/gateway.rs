//! Gateways, and the tunnels between two of them that carry what comes their way.

use super::{Hop, NodeKind, Plan};
use netstage_core::quantity::BitRate;
use netstage_wire::{Cipher, Protection};
use serde::{Deserialize, Serialize};

/// Whose program a gateway is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Software {
    /// strongSwan: IKEv2 and ESP in user space.
    StrongSwan,
    /// WireGuard, in the kernel or by wireguard-go.
    WireGuard,
    /// OpenVPN.
    OpenVpn,
}

impl Software {
    /// The kind of node, by its name in scenarios.
    pub fn kind(self) -> &'static str {
        match self {
            Software::StrongSwan => "ipsec",
            Software::WireGuard => "wireguard",
            Software::OpenVpn => "openvpn",
        }
    }

    /// How it protects packets by a cipher; none where it has not got it.
    pub fn protection(self, cipher: Option<Cipher>) -> Option<Protection> {
        match (self, cipher) {
            (Software::StrongSwan, cipher) => Some(Protection::Esp(cipher.unwrap_or(Cipher::Aes128Gcm))),
            (Software::WireGuard, None | Some(Cipher::ChaCha20Poly1305)) => Some(Protection::WireGuard),
            (Software::WireGuard, _) | (Software::OpenVpn, Some(Cipher::TripleDesSha1)) => None,
            (Software::OpenVpn, cipher) => Some(Protection::OpenVpn(cipher.unwrap_or(Cipher::Aes128Gcm))),
        }
    }

    /// Largest packet its tunnels take, where it does not let that be set.
    pub fn largest_packet(self) -> Option<u32> {
        // TUN_DEFAULT_MTU of strongSwan's kernel-libipsec.
        (self == Software::StrongSwan).then_some(1400)
    }
}

/// A tunnel: between its two gateways packets are protected.
#[derive(Clone, Debug, PartialEq)]
pub struct Tunnel {
    /// Node indices of its gateways, the smaller one first.
    pub ends: [usize; 2],
    /// Whose program its gateways are.
    pub software: Software,
    /// What protects its packets.
    pub protection: Protection,
    /// The largest packet it takes, bytes at the IP layer.
    pub mtu: u32,
    /// How fast each of its gateways protects packets, and as fast those of the other direction.
    pub service_rates: [BitRate; 2],
    /// From `ends[0]` to `ends[1]`.
    pub path: Vec<Hop>,
    /// From `ends[1]` to `ends[0]`.
    pub reverse: Vec<Hop>,
}

impl Tunnel {
    /// Bytes around each packet. Padding is that of the largest one, since most are as large or bare.
    pub fn overhead(&self) -> u32 {
        self.protection.overhead(self.mtu)
    }
}

/// Where a path goes through a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// Index of the tunnel.
    pub tunnel: usize,
    /// Which of its ends is entered: 0 or 1.
    pub entry: usize,
    /// Of the path, the first hop inside.
    pub first: usize,
    /// Of the path, the first hop behind it.
    pub behind: usize,
}

impl Plan {
    /// The tunnels a path goes through, in order.
    pub fn crossings(&self, path: &[Hop]) -> Vec<Crossing> {
        let gateway = |&(_, node): &(usize, usize)| matches!(self.nodes[node].kind, NodeKind::Gateway(_));
        let left = path.iter().map(|hop| self.ends(*hop)[0]).enumerate();
        let passed: Vec<(usize, usize)> = left.filter(gateway).collect();
        let crossing = |pair: &[(usize, usize)]| {
            let [(first, entered), (behind, left)] = *pair else { return None };
            let ends = [entered.min(left), entered.max(left)];
            let tunnel = self.tunnels.iter().position(|tunnel| tunnel.ends == ends)?;
            Some(Crossing { tunnel, entry: usize::from(entered == ends[1]), first, behind })
        };
        passed.chunks(2).filter_map(crossing).collect()
    }
}
