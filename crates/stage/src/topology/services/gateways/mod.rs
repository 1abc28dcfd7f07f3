//! Gateways: the ends of a plan's tunnels, each its own program's process in its node.
//!
//! - here: what a plan asks for;
//! - [`strongswan`], [`wireguard`], [`openvpn`]: what each program is told, and its keys, made for the run;
//! - [`run`]: their processes, and routes through what they make.

mod openvpn;
pub(in crate::topology) mod run;
mod strongswan;
mod wireguard;

use super::reach::{self, Probe};
use super::{NotInstalled, find};
use crate::topology::address;
use crate::topology::assignments::Member;
use crate::topology::layout::{Address, Layout};
use netstage_scenario::plan::{Family, Plan, Software};
use netstage_wire::{Cipher, Protection};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The gateways of a network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatewaysSpec {
    /// Each tunnel.
    pub tunnels: Vec<TunnelSpec>,
    /// Packets that have to arrive before the run begins.
    pub probes: Vec<Probe>,
    /// A folder of its own, which goes after the run.
    pub folder: PathBuf,
}

/// A tunnel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunnelSpec {
    /// Its gateways; the first one begins.
    pub ends: [GatewaySpec; 2],
    /// Whose programs they are.
    pub software: Software,
    /// What protects packets, by its name in scenarios.
    pub cipher: String,
    /// The largest packet it takes, bytes.
    pub mtu: u32,
}

/// A gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatewaySpec {
    /// Index of its node.
    pub node: usize,
    /// Name of its node.
    pub name: String,
    /// Its address outside.
    pub address: IpAddr,
    /// Addresses it reaches through the tunnel.
    pub behind: Vec<IpAddr>,
}

impl TunnelSpec {
    /// The other end.
    fn peer(&self, end: usize) -> &GatewaySpec {
        &self.ends[1 - end]
    }
}

/// The first program or part of one that a plan's gateways lack.
pub(super) fn missing(plan: &Plan) -> Option<NotInstalled> {
    plan.tunnels.iter().find_map(|tunnel| {
        let (program, package) = match tunnel.software {
            Software::StrongSwan => strongswan::missing()?,
            Software::WireGuard => wireguard::missing()?,
            Software::OpenVpn => find(openvpn::PROGRAM).is_none().then_some((openvpn::PROGRAM, "openvpn"))?,
        };
        Some(NotInstalled { by: format!("node.{}", plan.nodes[tunnel.ends[0]].name), program, package })
    })
}

/// The gateways of a plan; they get a folder under `folder`, which is not made here.
pub fn spec(plan: &Plan, layout: &Layout, members: &[Member], folder: &Path) -> Option<GatewaysSpec> {
    if plan.tunnels.is_empty() {
        return None;
    }
    let tunnels = plan.tunnels.iter().zip(&layout.gateways).enumerate().map(|(index, (tunnel, placed))| {
        let gateway = |end: usize| {
            let node = tunnel.ends[end];
            GatewaySpec {
                node,
                name: plan.nodes[node].name.clone(),
                address: address::of(Family::V4, node, [placed.source, placed.destination][end]),
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
        probes: reach::probes(plan, members),
        folder: folder.join("gateways"),
    })
}

/// The addresses to which packets go through a tunnel from one of its ends.
fn behind(layout: &Layout, node: usize, tunnel: usize) -> Vec<IpAddr> {
    let through = |address: &Address| address.tunnels.get(&node) == Some(&tunnel);
    let owners = layout.addresses.iter().enumerate();
    let addresses = owners.flat_map(|(owner, addresses)| {
        let through = addresses.iter().enumerate().filter(|(_, address)| through(address));
        through.map(move |(number, _)| (owner, number))
    });
    addresses
        .flat_map(|(owner, number)| address::FAMILIES.map(|family| address::of(family, owner, number)))
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
