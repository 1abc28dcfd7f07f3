//! Gateways, and the tunnels between pairs of them.

use super::{Hop, NodeKind, Plan};
use netstage_core::quantity::BitRate;
use netstage_wire::{Cipher, Protection};
use serde::{Deserialize, Serialize};

/// Software of a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatewaySoftware {
    /// strongSwan: IKEv2 and ESP in user space.
    StrongSwan,
    /// WireGuard, in the kernel or by wireguard-go.
    WireGuard,
    /// OpenVPN.
    OpenVpn,
}

impl GatewaySoftware {
    /// Returns the kind of node in scenarios.
    pub fn kind(self) -> &'static str {
        match self {
            GatewaySoftware::StrongSwan => "ipsec",
            GatewaySoftware::WireGuard => "wireguard",
            GatewaySoftware::OpenVpn => "openvpn",
        }
    }

    /// Returns the protection of packets with a cipher; `None` if the software does not support it.
    pub fn protection(self, cipher: Option<Cipher>) -> Option<Protection> {
        match (self, cipher) {
            (GatewaySoftware::StrongSwan, cipher) => {
                Some(Protection::Esp(cipher.unwrap_or(Cipher::Aes128Gcm)))
            }
            (GatewaySoftware::WireGuard, None | Some(Cipher::ChaCha20Poly1305)) => {
                Some(Protection::WireGuard)
            }
            (GatewaySoftware::WireGuard, _) | (GatewaySoftware::OpenVpn, Some(Cipher::TripleDesSha1)) => None,
            (GatewaySoftware::OpenVpn, cipher) => {
                Some(Protection::OpenVpn(cipher.unwrap_or(Cipher::Aes128Gcm)))
            }
        }
    }

    /// Returns the fixed MTU of its tunnels, or `None` if it is configurable.
    pub fn fixed_mtu(self) -> Option<u32> {
        // TUN_DEFAULT_MTU of strongSwan's kernel-libipsec.
        (self == GatewaySoftware::StrongSwan).then_some(1400)
    }
}

/// Tunnel that protects packets between two gateways.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayTunnel {
    /// Node indices of the gateways, in ascending order.
    pub ends: [usize; 2],
    /// Software of the gateways.
    pub software: GatewaySoftware,
    /// Protection of packets.
    pub protection: Protection,
    /// Maximum bytes of a packet at the IP layer.
    pub mtu: u32,
    /// Processing rate of each gateway, for each direction separately.
    pub service_rates: [BitRate; 2],
    /// Path from `ends[0]` to `ends[1]`.
    pub path: Vec<Hop>,
    /// Path from `ends[1]` to `ends[0]`.
    pub reverse: Vec<Hop>,
}

impl GatewayTunnel {
    /// Returns the overhead of a packet in bytes. The padding is that of the largest packet, because most packets are
    /// of full size or have no payload.
    pub fn overhead(&self) -> u32 {
        self.protection.overhead(self.mtu)
    }
}

/// Part of a path inside a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelCrossing {
    /// Index of the tunnel.
    pub tunnel: usize,
    /// Index of the end at which the path enters: 0 or 1.
    pub entry: usize,
    /// Position of the first hop inside the tunnel.
    pub first_inside: usize,
    /// Position of the first hop after the tunnel.
    pub first_after: usize,
}

impl Plan {
    /// Returns the tunnels on a path, in order.
    pub fn crossings(&self, path: &[Hop]) -> Vec<TunnelCrossing> {
        let is_gateway = |&(_, node): &(usize, usize)| matches!(self.nodes[node].kind, NodeKind::Gateway(_));
        let starts = path.iter().map(|hop| self.ends(*hop)[0]).enumerate();
        let passed: Vec<(usize, usize)> = starts.filter(is_gateway).collect();
        let crossing = |pair: &[(usize, usize)]| {
            let [(first, entered), (behind, exited)] = *pair else { return None };
            let ends = [entered.min(exited), entered.max(exited)];
            let tunnel = self.tunnels.iter().position(|tunnel| tunnel.ends == ends)?;
            Some(TunnelCrossing {
                tunnel,
                entry: usize::from(entered == ends[1]),
                first_inside: first,
                first_after: behind,
            })
        };
        passed.chunks(2).filter_map(crossing).collect()
    }
}
