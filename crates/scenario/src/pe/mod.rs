//! The configuration of a provider edge router: read and checked as a scenario is, with the
//! same quantities, names, positions and advice.
//!
//! [`file`] is what is written, [`build`] and [`references`] check what its parts say of each other. What only
//! the machine knows (whether an interface is there, where a route leads) is the daemon's.

mod build;
pub(crate) mod file;
mod references;

use crate::error::Errors;
use crate::read::{configuration, read_text};
use crate::table::{Decode, Kind, word};
use netstage_core::edge::{Prefix, Settings};
use netstage_core::fair::{self, Config, Control, LossMeasure, Rule, WhenSilent};
use netstage_core::time::Duration;
use netstage_wire::mpls::Label;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// A provider edge router, as configured.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    /// Interfaces on the core's side, shared with the kernel.
    pub core: Vec<String>,
    /// The control socket.
    pub control: PathBuf,
    /// Where metrics are served, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Packets that may wait, all VPNs together.
    pub buffers: u32,
    /// How interfaces are opened.
    pub ports: PortKind,
    /// Time between turns.
    pub moderation: Duration,
    /// Processor cores that forward.
    pub cores: usize,
    /// The other provider edge routers, by name.
    pub peers: Vec<Peer>,
    /// The VPNs, by name.
    pub vpns: Vec<Vpn>,
    /// The references, by name: what [`netstage_core::fair::Reference::Vpn`] numbers in a flow's control.
    pub references: Vec<Reference>,
    /// The circuits, by name.
    pub circuits: Vec<Circuit>,
}

impl Router {
    /// Interfaces of customers, each once, in order of name.
    pub fn customer_interfaces(&self) -> BTreeSet<&str> {
        self.circuits.iter().map(|circuit| circuit.interface.as_str()).collect()
    }

    /// All interfaces: the core's in the order of the file, then those of customers in order of name.
    pub fn interfaces(&self) -> Vec<&str> {
        self.core.iter().map(String::as_str).chain(self.customer_interfaces()).collect()
    }
}

/// How interfaces are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// The customers' by AF_XDP where it works, all others by AF_PACKET.
    Auto,
    /// All by AF_PACKET.
    AfPacket,
    /// The customers' by AF_XDP or not at all; the core's by AF_PACKET.
    AfXdp,
}

/// Another provider edge router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// What packets to it are put into.
    pub tunnel: Tunnel,
    /// Bytes of the largest IP or MPLS packet the core carries; that of the interface if none.
    pub mtu: Option<u16>,
    /// Lower the segment size TCP connections agree on to what fits.
    pub clamp_segment_size: bool,
    /// Numbers of keys shared with it, and the files that hold them; the first signs.
    pub keys: Vec<(u8, PathBuf)>,
}

/// What packets to a peer are put into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// MPLS in UDP (RFC 7510), along the kernel's routes.
    MplsInUdp {
        /// The peer's address.
        to: IpAddr,
        /// Ours; where left out the one the kernel would send from.
        from: Option<IpAddr>,
        /// Compute UDP checksums.
        checksum: bool,
    },
    /// A label stack on Ethernet.
    Mpls {
        /// The next router, a neighbour of this machine.
        next_hop: IpAddr,
        /// Label of the path there.
        push: Option<Label>,
        /// Label of the path back, where it arrives.
        accept: Option<Label>,
    },
}

/// A VPN.
#[derive(Clone, Debug, PartialEq)]
pub struct Vpn {
    /// Its name.
    pub name: String,
    /// Its flows, by peer.
    pub flows: Vec<Flow>,
}

/// A VPN's flow to a peer, and the one back.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The peer, an index.
    pub peer: usize,
    /// The label the peer has given to what we send.
    pub send: Label,
    /// The label we have given to what the peer sends.
    pub receive: Label,
    /// What is behind the peer.
    pub routes: Vec<Prefix>,
    /// How what is sent is treated.
    pub settings: Settings,
}

impl Flow {
    /// The reference it follows, an index; none where that is the nominal flow, or it has no window.
    pub fn reference(&self) -> Option<usize> {
        match &self.settings.control {
            Control::I2vfc(Config { reference: fair::Reference::Vpn(index), .. }) => Some(*index),
            _ => None,
        }
    }
}

/// A flow that weights are relative to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its name here.
    pub name: String,
    /// Its number between routers.
    pub number: u32,
    /// Who measures it.
    pub source: ReferenceSource,
}

/// Who measures a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReferenceSource {
    /// A VPN flow of this router.
    Flow {
        /// Its VPN, an index.
        vpn: usize,
        /// The peer it leads to, an index.
        peer: usize,
        /// The peers that are told, as indices.
        publish_to: Vec<usize>,
    },
    /// This peer, an index.
    Peer(usize),
}

/// Where a customer is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circuit {
    /// Its name.
    pub name: String,
    /// Its VPN, an index.
    pub vpn: usize,
    /// Its interface.
    pub interface: String,
    /// Its VLANs, outermost first, up to two.
    pub vlans: Vec<u16>,
    /// Which packets there are its, where it is not alone.
    pub select: Option<Select>,
    /// Our addresses there, each with the length of its link's prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The one station there, if nothing is to be resolved.
    pub station: Option<[u8; 6]>,
    /// What is behind routers there.
    pub routes: Vec<(Prefix, IpAddr)>,
    /// Bytes of the largest IP packet it carries; that of the interface if none.
    pub mtu: Option<u16>,
}

impl Circuit {
    /// The prefixes whose addresses are on its link.
    pub fn links(&self) -> impl Iterator<Item = Prefix> + '_ {
        self.addresses.iter().map(|(address, length)| Prefix::around(*address, *length))
    }
}

/// Packets by their addresses and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Select {
    /// The sender's prefix.
    pub source: Option<Prefix>,
    /// The receiver's prefix.
    pub destination: Option<Prefix>,
    /// Protocol, as in the IP header.
    pub protocol: Option<u8>,
    /// The sender's ports.
    pub source_ports: Option<RangeInclusive<u16>>,
    /// The receiver's ports.
    pub destination_ports: Option<RangeInclusive<u16>>,
}

/// The word of a configuration for a rule.
pub fn rule_word(rule: Rule) -> &'static str {
    word(rule)
}

/// The word of a configuration for a measure of loss.
pub fn loss_measure_word(measure: LossMeasure) -> &'static str {
    word(measure)
}

/// The word of a configuration for what to do while a peer is silent.
pub fn when_silent_word(then: WhenSilent) -> &'static str {
    word(then)
}

/// Reads and checks a configuration file.
pub fn load(path: &Path) -> Result<Router, Errors> {
    parse(&path.display().to_string(), &read(path)?)
}

/// The text of a configuration file.
pub fn read(path: &Path) -> Result<String, Errors> {
    read_text(path, "configuration")
}

/// Reads and checks a configuration.
pub fn parse(name: &str, text: &str) -> Result<Router, Errors> {
    let mut router = configuration(name, text, build::router)?;
    let folder = Path::new(name).parent().unwrap_or(Path::new(""));
    let keys = router.peers.iter_mut().flat_map(|peer| &mut peer.keys);
    keys.for_each(|(_, file)| *file = folder.join(&*file));
    Ok(router)
}

/// The tables of a configuration, in Markdown.
pub fn reference() -> String {
    crate::reference::tables(&root_kind())
}

fn root_kind() -> Kind {
    file::File::kind()
}

#[cfg(test)]
mod tests;
