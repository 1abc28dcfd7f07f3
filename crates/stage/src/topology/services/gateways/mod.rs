//! Gateways: the ends of a plan's tunnels, each with a process in its node. This module derives them from the plan.
//!
//! - [`strongswan`], [`wireguard`], [`openvpn`]: the configuration of each program, with keys generated for the run;
//! - [`run`]: the processes, and the routes through their interfaces.

mod openvpn;
pub(in crate::topology) mod run;
mod strongswan;
mod wireguard;

use super::reachability::{self, ReachabilityProbe};
use super::{NotInstalled, find};
use crate::topology::address;
use crate::topology::assignments::PlacedFlow;
use crate::topology::layout::{Address, AddressLayout};
use netstage_scenario::plan::{GatewaySoftware, IpVersion, Plan};
use netstage_wire::{Cipher, Protection};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Gateways of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatewaysSpec {
    /// Tunnels between gateways.
    pub tunnels: Vec<TunnelSpec>,
    /// Probes that must succeed before the run begins.
    pub probes: Vec<ReachabilityProbe>,
    /// Folder of the gateways, removed after the run.
    pub folder: PathBuf,
}

/// Tunnel between two gateways.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunnelSpec {
    /// Gateways; the first one initiates the tunnel.
    pub ends: [GatewaySpec; 2],
    /// Software of the gateways.
    pub software: GatewaySoftware,
    /// Cipher by its name in scenarios.
    pub cipher: String,
    /// Maximum packet size in bytes.
    pub mtu: u32,
}

/// Gateway at one end of a tunnel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatewaySpec {
    /// Index of the node.
    pub node: usize,
    /// Name of the node.
    pub name: String,
    /// Outer address.
    pub address: IpAddr,
    /// Addresses reached through the tunnel.
    pub behind: Vec<IpAddr>,
}

impl TunnelSpec {
    /// Returns the other end.
    fn peer(&self, end: usize) -> &GatewaySpec {
        &self.ends[1 - end]
    }
}

/// Returns the first program or plug-in that a plan's gateways need and is not installed.
pub(super) fn missing(plan: &Plan) -> Option<NotInstalled> {
    plan.tunnels.iter().find_map(|tunnel| {
        let (program, package) = match tunnel.software {
            GatewaySoftware::StrongSwan => strongswan::missing()?,
            GatewaySoftware::WireGuard => wireguard::missing()?,
            GatewaySoftware::OpenVpn => {
                find(openvpn::PROGRAM).is_none().then_some((openvpn::PROGRAM, "openvpn"))?
            }
        };
        Some(NotInstalled {
            required_by: format!("node.{}", plan.nodes[tunnel.ends[0]].name),
            program,
            package,
        })
    })
}

/// Returns the gateways of a plan, with a folder below `folder` that is not created here.
pub fn spec(
    plan: &Plan,
    layout: &AddressLayout,
    members: &[PlacedFlow],
    folder: &Path,
) -> Option<GatewaysSpec> {
    if plan.tunnels.is_empty() {
        return None;
    }
    let tunnels = plan.tunnels.iter().zip(&layout.gateways).enumerate().map(|(index, (tunnel, placed))| {
        let gateway = |end: usize| {
            let node = tunnel.ends[end];
            GatewaySpec {
                node,
                name: plan.nodes[node].name.clone(),
                address: address::node_address(IpVersion::V4, node, [placed.source, placed.destination][end]),
                behind: behind(layout, node, index),
            }
        };
        TunnelSpec {
            ends: [gateway(0), gateway(1)],
            software: tunnel.software,
            cipher: cipher(tunnel.protection).to_owned(),
            mtu: tunnel.mtu,
        }
    });
    Some(GatewaysSpec {
        tunnels: tunnels.collect(),
        probes: reachability::probes(plan, members),
        folder: folder.join("gateways"),
    })
}

/// Returns the addresses that one end of a tunnel reaches through it.
fn behind(layout: &AddressLayout, node: usize, tunnel: usize) -> Vec<IpAddr> {
    let through = |address: &Address| address.tunnels.get(&node) == Some(&tunnel);
    let owners = layout.addresses.iter().enumerate();
    let addresses = owners.flat_map(|(owner, addresses)| {
        let through = addresses.iter().enumerate().filter(|(_, address)| through(address));
        through.map(move |(number, _)| (owner, number))
    });
    addresses
        .flat_map(|(owner, number)| {
            address::FAMILIES.map(|family| address::node_address(family, owner, number))
        })
        .collect()
}

fn cipher(protection: Protection) -> &'static str {
    match protection {
        Protection::WireGuard => "chacha20-poly1305",
        Protection::Esp(cipher) | Protection::OpenVpn(cipher) => match cipher {
            Cipher::Aes128Gcm => "aes-128-gcm",
            Cipher::Aes256Gcm => "aes-256-gcm",
            Cipher::ChaCha20Poly1305 => "chacha20-poly1305",
            Cipher::TripleDesSha1 => "3des-sha1",
        },
    }
}
