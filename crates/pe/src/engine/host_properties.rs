//! Properties of the host that an engine needs in addition to its configuration, and the limits they set.

use super::keys::Keys;
use crate::private_key::PrivateKey;
use netstage_core::time::Duration;
use netstage_host::clock::Epoch;
use netstage_host::startup_error::StartupError;
use netstage_scenario::pe::{self, PeConfig};
use netstage_wire::ethernet::Mac;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Interfaces, peers and clock of the host.
#[derive(Clone, Debug)]
pub struct HostProperties {
    /// Interfaces of the router, by name.
    pub interfaces: BTreeMap<String, HostInterface>,
    /// Peers, in configuration order.
    pub peers: Vec<PeerProperties>,
    /// Zero of the engine's time.
    pub epoch: Epoch,
    /// The epoch in nanoseconds since 1970, for timestamps in management packets.
    pub epoch_unix_ns: u64,
    /// Differs after each start, so that late replies to an earlier run are ignored.
    pub session_seed: u32,
    /// Timer granularity of VPN flows; zero is exact.
    pub tick: Duration,
}

/// Interface of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostInterface {
    /// MAC address; frames to other addresses are ignored.
    pub mac: Mac,
    /// Size in bytes of the largest IP or MPLS packet.
    pub mtu: u16,
}

/// Properties of a peer that the configuration does not set.
#[derive(Clone, Debug, Default)]
pub struct PeerProperties {
    /// Local tunnel address, if the configuration leaves the choice to the kernel.
    pub source: Option<IpAddr>,
    /// Shared keys, if management packets are authenticated.
    pub keys: Option<Keys>,
    /// Private key of this router, if packets to and from the peer are encrypted.
    pub private_key: Option<PrivateKey>,
}

impl HostProperties {
    /// Returns the size in bytes of the largest IP or MPLS packet the core carries to a peer, until a route
    /// is known.
    pub(super) fn peer_mtu(&self, router: &PeConfig, peer: &pe::PeerConfig) -> u16 {
        peer.mtu.unwrap_or_else(|| self.interfaces[&router.core[0]].mtu)
    }

    /// Returns the size in bytes of the largest IP packet a circuit carries.
    pub(super) fn circuit_mtu(&self, circuit: &pe::CircuitConfig) -> Result<u16, StartupError> {
        let pe::CircuitConfig { name, interface, .. } = circuit;
        let limit = self.interfaces[interface].mtu;
        match circuit.mtu {
            Some(mtu) if mtu > limit => Err(StartupError::new(
                format!("circuit {name}: {interface} carries {limit} B, not {mtu}"),
                format!("leave `mtu` out, or: ip link set {interface} mtu {mtu}"),
            )),
            mtu => Ok(mtu.unwrap_or(limit)),
        }
    }
}
