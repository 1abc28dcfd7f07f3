//! Reads the engine's [`HostProperties`] from the kernel and from key files.

use super::host::Host;
use super::session::Beginning;
use crate::engine::Keys;
use crate::engine::machine::{Interface, Machine, Peer};
use netstage_core::edge;
use netstage_host::keyed::Key;
use netstage_host::obstacle::Obstacle;
use netstage_scenario::pe::{self, Router, Tunnel};
use std::path::PathBuf;

/// Largest MTU used, bytes (jumbo frames).
const MAX_MTU: u32 = 9_216;

pub(super) fn machine(router: &Router, host: &mut Host, beginning: &Beginning) -> Result<Machine, Obstacle> {
    let Beginning { epoch, epoch_unix_ns, session_seed } = *beginning;
    let interfaces =
        router.interfaces().into_iter().map(|name| Ok((name.to_owned(), interface(host, name)?)));
    let interfaces = interfaces.collect::<Result<_, Obstacle>>()?;
    let peers = router.peers.iter().map(|peer| self::peer(router, host, peer));
    let peers = peers.collect::<Result<_, Obstacle>>()?;
    Ok(Machine { interfaces, peers, epoch, epoch_unix_ns, session_seed, tick: edge::TICK })
}

fn interface(host: &mut Host, name: &str) -> Result<Interface, Obstacle> {
    let link = host.link(name)?;
    let mac = link.mac.ok_or_else(|| {
        let remedy = "use an Ethernet, VLAN or veth interface";
        Obstacle::new(format!("{name} has no Ethernet address"), remedy)
    })?;
    Ok(Interface { mac, mtu: link.mtu.min(MAX_MTU) as u16 })
}

fn peer(router: &Router, host: &mut Host, peer: &pe::Peer) -> Result<Peer, Obstacle> {
    let source = match peer.tunnel {
        Tunnel::MplsInUdp { to, from: None, .. } => Some(host.source_to(router, to)?),
        _ => None,
    };
    Ok(Peer { source, keys: keys(peer)? })
}

/// Reads the keys shared with a peer from their files.
fn keys(peer: &pe::Peer) -> Result<Option<Keys>, Obstacle> {
    let read = |(number, path): &(u8, PathBuf)| {
        let key = Key::read(path).map_err(|error| {
            let message = format!("peer {}: key {number}, {}: {error}", peer.name, path.display());
            Obstacle::new(message, "create a key with: openssl rand -hex 16; both routers need the same key")
        })?;
        Ok((*number, key.bytes().to_vec()))
    };
    let keys: Vec<(u8, Vec<u8>)> = peer.keys.iter().map(read).collect::<Result<_, Obstacle>>()?;
    Ok(keys.first().and_then(|(first, _)| Keys::new(*first, &keys)))
}
