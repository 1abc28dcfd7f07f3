//! Reads the engine's [`HostProperties`] from the kernel and from key files.

use super::host::Host;
use super::session::RouterEpoch;
use crate::engine::Keys;
use crate::engine::host_properties::{HostInterface, HostProperties, PeerProperties};
use crate::private_key::PrivateKey;
use netstage_core::edge;
use netstage_host::shared_key;
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::{self, PeConfig, PeerTunnel};

/// Largest MTU used, bytes (jumbo frames).
const MAX_MTU: u32 = 9_216;

pub(super) fn machine(
    router: &PeConfig,
    host: &mut Host,
    beginning: &RouterEpoch,
) -> Result<HostProperties, StartupError> {
    let RouterEpoch { epoch, epoch_unix_ns, session_seed } = *beginning;
    let interfaces =
        router.interfaces().into_iter().map(|name| Ok((name.to_owned(), interface(host, name)?)));
    let interfaces = interfaces.collect::<Result<_, StartupError>>()?;
    let peers = router.peers.iter().map(|peer| self::peer(router, host, peer));
    let peers = peers.collect::<Result<_, StartupError>>()?;
    Ok(HostProperties { interfaces, peers, epoch, epoch_unix_ns, session_seed, tick: edge::TICK })
}

fn interface(host: &mut Host, name: &str) -> Result<HostInterface, StartupError> {
    let link = host.router_link(name)?;
    let mac = link.mac.ok_or_else(|| {
        let remedy = "use an Ethernet, VLAN or veth interface";
        StartupError::new(format!("{name} has no Ethernet address"), remedy)
    })?;
    Ok(HostInterface { mac, mtu: link.mtu.min(MAX_MTU) as u16 })
}

fn peer(router: &PeConfig, host: &mut Host, peer: &pe::PeerConfig) -> Result<PeerProperties, StartupError> {
    let source = match peer.tunnel {
        PeerTunnel::MplsInUdp { to, from: None, .. } => Some(host.source_address_to(router, to)?),
        _ => None,
    };
    let private_key = match peer.is_encrypted() {
        true => Some(private_key(router)?),
        false => None,
    };
    Ok(PeerProperties { source, keys: keys(peer)?, private_key })
}

/// Reads the private key of this router.
fn private_key(router: &PeConfig) -> Result<PrivateKey, StartupError> {
    let path = router.private_key.as_ref().expect("the configuration names it for encrypted peers");
    PrivateKey::read(path).map_err(|error| {
        let message = format!("[pe] private_key {}: {error}", path.display());
        StartupError::new(message, format!("create a key with: netstage pe key {}", path.display()))
    })
}

/// Reads the keys shared with a peer from their files.
fn keys(peer: &pe::PeerConfig) -> Result<Option<Keys>, StartupError> {
    let keys = shared_key::read_all(&format!("peer {}", peer.name), &peer.keys)?;
    Ok(keys.first().and_then(|(first, _)| Keys::new(*first, &keys)))
}
