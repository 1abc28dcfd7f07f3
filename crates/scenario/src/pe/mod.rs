//! Configuration of a provider edge router, read and checked like a scenario: same scalars, positions and help.
//!
//! [`file`] declares the tables; [`build`] and [`references`] check relations between them. The daemon checks what
//! depends on the host, such as interfaces and routes.

mod build;
pub(crate) mod file;
mod leaks;
mod references;

pub use crate::key::{format_key, parse_key};

use crate::error::Errors;
use crate::read::{configuration, read_text};
use crate::table::{Decode, ValueKind, word};
use netstage_core::edge::{IpPrefix, VpnFlowSettings};
use netstage_core::fair::{self, I2vfcConfig, LossMeasure, SilenceAction, VpnControl, WeightRule};
use netstage_core::time::Duration;
use netstage_wire::mpls::LabelValue;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Configuration of a provider edge router.
#[derive(Clone, Debug, PartialEq)]
pub struct PeConfig {
    /// Core interfaces, shared with the kernel.
    pub core: Vec<String>,
    /// Path of the control socket.
    pub control: PathBuf,
    /// Listening address of the Prometheus exporter, if enabled.
    pub metrics: Option<SocketAddr>,
    /// Maximum number of queued packets of all VPNs together.
    pub buffers: u32,
    /// Packet interface of the ports.
    pub ports: PortKind,
    /// Interval between polls.
    pub moderation: Duration,
    /// Number of CPU cores that forward.
    pub cores: usize,
    /// File with the private key for encrypted peers.
    pub private_key: Option<PathBuf>,
    /// UDP port for encrypted packets.
    pub encryption_port: u16,
    /// Other provider edge routers, by name.
    pub peers: Vec<PeerConfig>,
    /// VPNs, by name.
    pub vpns: Vec<PeVpnConfig>,
    /// References, by name. [`netstage_core::fair::ReferenceConfig::PeVpnConfig`] in a flow's control is an index of this list.
    pub references: Vec<ReferenceConfig>,
    /// Circuits, by name.
    pub circuits: Vec<CircuitConfig>,
}

impl PeConfig {
    /// Returns the customer interfaces, each once, ordered by name.
    pub fn customer_interfaces(&self) -> BTreeSet<&str> {
        self.circuits.iter().map(|circuit| circuit.interface.as_str()).collect()
    }

    /// Returns descriptions of settings that are valid, but probably mistakes.
    pub fn warnings(&self) -> Vec<String> {
        leaks::warnings(self)
    }

    /// Returns all interfaces: core interfaces in file order, then customer interfaces by name.
    pub fn interfaces(&self) -> Vec<&str> {
        self.core.iter().map(String::as_str).chain(self.customer_interfaces()).collect()
    }
}

/// Packet interface of the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// AF_XDP on customer interfaces that support it, AF_PACKET on all others.
    Auto,
    /// AF_PACKET on all interfaces.
    AfPacket,
    /// AF_XDP on customer interfaces, without fallback; AF_PACKET on core interfaces.
    AfXdp,
}

/// Another provider edge router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Name of the peer.
    pub name: String,
    /// Encapsulation of packets to the peer.
    pub tunnel: PeerTunnel,
    /// Maximum bytes of IP or MPLS packets in the core; `None` for the MTU of the interface.
    pub mtu: Option<u16>,
    /// Clamping of the maximum segment size of TCP connections to the MTU.
    pub clamp_segment_size: bool,
    /// News of VPN flows under rate consensus is exchanged with the peer.
    pub news: bool,
    /// Numbers and files of the keys shared with the peer; the first one signs.
    pub keys: Vec<(u8, PathBuf)>,
    /// Protection against other hosts in the core.
    pub protection: PeerProtection,
}

/// Protection of the packets to and from a peer against other hosts in the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerProtection {
    /// None: the operator trusts the core.
    Trusted,
    /// Encryption by the protocol of WireGuard.
    Encrypted {
        /// Public key of the peer.
        public_key: [u8; 32],
        /// UDP port of the peer.
        port: u16,
    },
}

impl PeerConfig {
    /// Returns whether packets to and from the peer are encrypted.
    pub fn is_encrypted(&self) -> bool {
        matches!(self.protection, PeerProtection::Encrypted { .. })
    }
}

/// Encapsulation of packets to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerTunnel {
    /// MPLS in UDP (RFC 7510), routed by the kernel.
    MplsInUdp {
        /// Address of the peer.
        to: IpAddr,
        /// Address of this router; `None` for the source address chosen by the kernel.
        from: Option<IpAddr>,
        /// UDP checksums are computed.
        checksum: bool,
    },
    /// MPLS on Ethernet.
    Mpls {
        /// Next router, adjacent to this host.
        next_hop: IpAddr,
        /// Label of the path to the peer.
        push: Option<LabelValue>,
        /// Label of the path from the peer, if the last router does not pop it.
        accept: Option<LabelValue>,
    },
}

/// A VPN.
#[derive(Clone, Debug, PartialEq)]
pub struct PeVpnConfig {
    /// Name of the VPN.
    pub name: String,
    /// VPN flows, by peer.
    pub flows: Vec<VpnFlowConfig>,
}

/// VPN flow to a peer, and the one from it.
#[derive(Clone, Debug, PartialEq)]
pub struct VpnFlowConfig {
    /// Index of the peer.
    pub peer: usize,
    /// Label of sent packets, assigned by the peer.
    pub send: LabelValue,
    /// Label of received packets, assigned by this router.
    pub receive: LabelValue,
    /// Prefixes reached through the peer.
    pub routes: Vec<IpPrefix>,
    /// Control and queueing of sent packets.
    pub settings: VpnFlowSettings,
}

impl VpnFlowConfig {
    /// Returns the index of the flow's reference; `None` for the nominal flow or a control without a window.
    pub fn reference(&self) -> Option<usize> {
        match &self.settings.control {
            VpnControl::I2vfc(I2vfcConfig { reference: fair::WeightReference::Vpn(index), .. }) => {
                Some(*index)
            }
            _ => None,
        }
    }
}

/// Flow that weights are relative to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceConfig {
    /// Name in this configuration.
    pub name: String,
    /// Number shared by all routers.
    pub number: u32,
    /// Source of its measurements.
    pub source: ReferenceSource,
}

/// Source of a reference's measurements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReferenceSource {
    /// A VPN flow of this router.
    Flow {
        /// Index of the VPN.
        vpn: usize,
        /// Index of the peer.
        peer: usize,
        /// Indices of the peers that receive the measurements.
        publish_to: Vec<usize>,
    },
    /// The peer with this index.
    Peer(usize),
}

/// Attachment circuit of a customer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitConfig {
    /// Name of the circuit.
    pub name: String,
    /// Index of the VPN.
    pub vpn: usize,
    /// Customer-facing interface.
    pub interface: String,
    /// Up to two VLANs, outer one first.
    pub vlans: Vec<u16>,
    /// Filter of the circuit's packets, if it shares interface and VLAN with others.
    pub select: Option<PacketFilter>,
    /// Addresses of this router on the circuit, with the prefix length of the link.
    pub addresses: Vec<(IpAddr, u8)>,
    /// MAC address that receives all packets, instead of address resolution.
    pub mac: Option<[u8; 6]>,
    /// Prefixes behind routers on the circuit, with the routers' addresses.
    pub routes: Vec<(IpPrefix, IpAddr)>,
    /// Maximum bytes of IP packets; `None` for the MTU of the interface.
    pub mtu: Option<u16>,
    /// Check of source addresses.
    pub rpf: ReversePathCheck,
}

/// Check of the source addresses of customers' packets: reverse path forwarding (RFC 3704).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReversePathCheck {
    /// All source addresses are accepted.
    #[default]
    Off,
    /// The VPN must have a route to the source address.
    Loose,
    /// The route to the source address must lead to the circuit.
    Strict,
}

impl CircuitConfig {
    /// Returns the prefixes of the circuit's link.
    pub fn links(&self) -> impl Iterator<Item = IpPrefix> + '_ {
        self.addresses.iter().map(|(address, length)| IpPrefix::containing(*address, *length))
    }
}

/// Packet filter by addresses and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PacketFilter {
    /// Source prefix.
    pub source: Option<IpPrefix>,
    /// Destination prefix.
    pub destination: Option<IpPrefix>,
    /// IP protocol number.
    pub protocol: Option<u8>,
    /// Source ports.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// Destination ports.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

/// Returns the configuration keyword of a rule.
pub fn rule_word(rule: WeightRule) -> &'static str {
    word(rule)
}

/// Returns the configuration keyword of a loss measure.
pub fn loss_measure_word(measure: LossMeasure) -> &'static str {
    word(measure)
}

/// Returns the configuration keyword of the behavior while a peer is silent.
pub fn when_silent_word(then: SilenceAction) -> &'static str {
    word(then)
}

/// Reads and checks a configuration file.
pub fn load(path: &Path) -> Result<PeConfig, Errors> {
    parse(&path.display().to_string(), &read(path)?)
}

/// Reads the text of a configuration file.
pub fn read(path: &Path) -> Result<String, Errors> {
    read_text(path, "configuration")
}

/// Reads and checks a configuration.
pub fn parse(name: &str, text: &str) -> Result<PeConfig, Errors> {
    let mut router = configuration(name, text, build::router)?;
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let keys = router.peers.iter_mut().flat_map(|peer| &mut peer.keys);
    keys.for_each(|(_, file)| *file = folder.join(&*file));
    router.private_key = router.private_key.map(|file| folder.join(file));
    Ok(router)
}

/// Returns the reference of the configuration's tables, in Markdown.
pub fn reference() -> String {
    crate::reference::tables(&root_kind())
}

fn root_kind() -> ValueKind {
    file::PeFile::kind()
}

#[cfg(test)]
mod tests;
