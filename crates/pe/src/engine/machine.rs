//! The properties of a machine that an engine depends on beside its configuration, and the limits
//! they set.

use super::keys::Keys;
use netstage_core::time::Duration;
use netstage_host::clock::Epoch;
use netstage_host::obstacle::Obstacle;
use netstage_scenario::pe::{self, Router};
use netstage_wire::ethernet::Mac;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A router's interfaces, peers and clock on this machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The router's interfaces, by name.
    pub interfaces: BTreeMap<String, Interface>,
    /// The peers, in the order of the configuration.
    pub peers: Vec<Peer>,
    /// Time counts from here.
    pub epoch: Epoch,
    /// The same moment in nanoseconds since 1970, for the timestamps of management packets.
    pub epoch_unix_ns: u64,
    /// Different after each start, so that late answers to an earlier run are ignored.
    pub session_seed: u32,
    /// Timers of VPN flows are due in steps of this; zero is exact.
    pub tick: Duration,
}

/// An interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its MAC address; frames to others are ignored.
    pub mac: Mac,
    /// Bytes of the largest IP or MPLS packet it carries.
    pub mtu: u16,
}

/// A peer's properties that the configuration leaves to the machine.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// This router's end of the tunnel, where the configuration leaves it to the kernel.
    pub source: Option<IpAddr>,
    /// Keys shared with it, if management packets are authenticated.
    pub keys: Option<Keys>,
}

impl Machine {
    /// Bytes of the largest IP or MPLS packet the core carries to a peer, until a route is known.
    pub(super) fn peer_mtu(&self, router: &Router, peer: &pe::Peer) -> u16 {
        peer.mtu.unwrap_or_else(|| self.interfaces[&router.core[0]].mtu)
    }

    /// Bytes of the largest IP packet a circuit carries.
    pub(super) fn circuit_mtu(&self, circuit: &pe::Circuit) -> Result<u16, Obstacle> {
        let pe::Circuit { name, interface, .. } = circuit;
        let limit = self.interfaces[interface].mtu;
        match circuit.mtu {
            Some(mtu) if mtu > limit => Err(Obstacle::new(
                format!("circuit {name}: {interface} carries {limit} B, not {mtu}"),
                format!("leave `mtu` out, or: ip link set {interface} mtu {mtu}"),
            )),
            mtu => Ok(mtu.unwrap_or(limit)),
        }
    }
}
