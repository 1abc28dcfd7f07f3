//! What an engine is told: ports, peers, VPNs and circuits, by names as a file gives them. All
//! mistakes are found when the engine is made, and named.

use super::circuits::Attachment;
use super::keys::Keys;
use netstage_core::edge::{Prefix, Settings};
use netstage_core::fair::{self, Control};
use netstage_core::queue::TrafficClass;
use netstage_core::time::Duration;
use netstage_host::clock::Epoch;
use netstage_wire::ethernet::Mac;
use netstage_wire::mpls::Label;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

/// A provider edge router.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its ports, in the order in which they are given to the engine.
    pub ports: Vec<Port>,
    /// The other provider edge routers.
    pub peers: Vec<Peer>,
    /// The VPNs.
    pub vpns: Vec<Vpn>,
    /// Flows that weights are relative to: what [`fair::Reference::Vpn`] numbers.
    pub references: Vec<Reference>,
    /// Where customers are attached.
    pub circuits: Vec<Circuit>,
    /// Buffers for packets that wait, all VPNs together.
    pub buffers: usize,
    /// Time counts from here.
    pub epoch: Epoch,
    /// The same moment in nanoseconds since 1970, for the timestamps of management packets.
    pub epoch_unix_ns: u64,
    /// Different after each start, so that what was asked before is not heard.
    pub session_seed: u32,
    /// Timers of VPN flows are due in steps of this; zero is exact.
    pub tick: Duration,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its address; other stations' frames are ignored.
    pub mac: Mac,
    /// What is there.
    pub side: Side,
}

/// What a port leads to. No port leads to both: labels from a customer are never believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Circuits of customers.
    Customer,
    /// The provider's core.
    Core,
}

/// Another provider edge router, and the way there.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// The port on the side of the core.
    pub port: String,
    /// The next router's address on the link there; none where it is not known yet, see
    /// [`Engine::set_way`](super::Engine::set_way).
    pub next_hop: Option<Mac>,
    /// What is put around the VPN label.
    pub encapsulation: Encapsulation,
    /// What the core carries: bytes of the largest IP or MPLS packet.
    pub mtu: u16,
    /// Lower the segment size that TCP connections through here agree on to what fits.
    pub clamp_segment_size: bool,
    /// Keys shared with it, if management packets are authenticated.
    pub keys: Option<Keys>,
}

/// What is put around the VPN label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encapsulation {
    /// A label stack on Ethernet.
    Mpls {
        /// Label of the path to the peer; none where the peer is the next hop, or the next hop
        /// pops anyway.
        push: Option<Label>,
        /// Label above the VPN label in what the peer sends, where it arrives. Without it, and
        /// with an explicit null, packets are taken in any case.
        accept: Option<Label>,
    },
    /// MPLS in UDP (RFC 7510).
    MplsInUdp {
        /// This router's address.
        local: IpAddr,
        /// The peer's.
        remote: IpAddr,
        /// Compute the UDP checksum, and over IPv6 ask for it.
        has_checksum: bool,
    },
}

/// A VPN: addresses of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Vpn {
    /// Its name.
    pub name: String,
    /// Where its addresses are.
    pub routes: Vec<(Prefix, Destination)>,
    /// Its flows, one with each peer that has sites of it.
    pub flows: Vec<Flow>,
    /// This router's own address in it, from which it tells of errors.
    pub address_v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub address_v6: Option<Ipv6Addr>,
}

/// Where a prefix is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// On the link of a circuit of this router.
    Circuit(String),
    /// Behind another router on a circuit's link.
    Router {
        /// The circuit.
        circuit: String,
        /// The router's address there.
        via: IpAddr,
    },
    /// Behind a peer.
    Peer(String),
}

/// A VPN's flow to a peer, and the one back.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// The peer.
    pub peer: String,
    /// The label the peer has given to what this router sends.
    pub send: Label,
    /// The label this router has given to what the peer sends.
    pub receive: Label,
    /// How what is sent is treated.
    pub settings: Settings,
}

/// A flow that weights are relative to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its name here.
    pub name: String,
    /// Its number between routers.
    pub number: u32,
    /// Who measures it.
    pub origin: Origin,
}

/// Who measures a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A VPN flow of this router, under window control with a fixed decrease.
    Flow {
        /// Its VPN.
        vpn: String,
        /// The peer it leads to.
        peer: String,
        /// The peers that are told what it measures.
        publish_to: Vec<String>,
    },
    /// This peer, which tells us.
    Peer(String),
    /// Another engine of this router, see [`Config::share`].
    Elsewhere,
}

/// The number of the reference a flow follows, if it does.
pub(crate) fn followed(flow: &Flow) -> Option<usize> {
    match &flow.settings.control {
        Control::I2vfc(fair::Config { reference: fair::Reference::Vpn(number), .. }) => Some(*number),
        _ => None,
    }
}

/// Where a customer is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circuit {
    /// Its name.
    pub name: String,
    /// The VPN it belongs to.
    pub vpn: String,
    /// The port on the customers' side.
    pub port: String,
    /// VLAN, and the one inside where there are two; none is untagged.
    pub vlans: Vec<u16>,
    /// Which packets of that port and VLAN belong to it, where it is not alone there.
    pub select: Option<Selector>,
    /// The one station there, to which everything goes; without it stations are found by ARP
    /// and neighbour discovery.
    pub station: Option<Mac>,
    /// This router's addresses there, with the length of the link's prefix: questions for
    /// them are answered.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Bytes of the largest IP packet it carries.
    pub mtu: u16,
}

/// Packets by their addresses and ports; what is not given is not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
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

/// Why there is no engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Something is named that is not there.
    Unknown {
        /// Where.
        place: String,
        /// What kind of thing.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A name was given twice.
    Twice {
        /// What kind of thing.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// The port leads to the other side.
    Side {
        /// Where.
        place: String,
        /// The port.
        port: String,
        /// The side it should be on.
        wanted: Side,
    },
    /// A label was given twice.
    LabelTaken {
        /// The label.
        label: Label,
        /// To whom first.
        first: String,
        /// To whom then.
        second: String,
    },
    /// A label below 16 was given.
    LabelReserved {
        /// Where.
        place: String,
        /// The label.
        label: Label,
    },
    /// A VPN has a prefix twice.
    PrefixTwice {
        /// The VPN.
        vpn: String,
        /// The prefix.
        prefix: Prefix,
    },
    /// A route leads to another VPN's circuit.
    ForeignCircuit {
        /// The VPN.
        vpn: String,
        /// The circuit.
        circuit: String,
    },
    /// A VPN has two flows with one peer, or a route to a peer it has no flow with.
    Flows {
        /// The VPN.
        vpn: String,
        /// The peer.
        peer: String,
        /// How many there are.
        count: usize,
    },
    /// A reference is a flow without a window, or whose decrease follows from its weight.
    NotAReference {
        /// The reference.
        name: String,
    },
    /// Two circuits take the same packets.
    Overlap {
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// More than two VLANs, one beyond 4095, or VLANs inside one that has a circuit of its own.
    Vlans {
        /// The circuit.
        circuit: String,
    },
    /// The core carries less than what IP asks of every link, once labels are around it.
    Mtu {
        /// The peer.
        peer: String,
        /// What is left for customers' packets.
        left: usize,
    },
    /// A VPN flow has more than 64 classes, a weight that is not above zero, or a DSCP of
    /// more than 6 bits.
    Classes {
        /// The VPN.
        vpn: String,
        /// The peer.
        peer: String,
    },
    /// The two ends of a tunnel are of different versions.
    MixedVersions {
        /// The peer.
        peer: String,
    },
    /// Another number of ports was given than the configuration names.
    Ports {
        /// What it names.
        named: usize,
        /// What was given.
        given: usize,
    },
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unknown { place, kind, name } => write!(f, "{place}: there is no {kind} {name:?}"),
            Error::Twice { kind, name } => write!(f, "there are two of {kind} {name:?}: rename one"),
            Error::Side { place, port, wanted } => {
                let side = if *wanted == Side::Core { "core" } else { "customers" };
                write!(
                    f,
                    "{place}: port {port:?} is not on the side of the {side}; a port is on one side only"
                )
            }
            Error::LabelTaken { label, first, second } => write!(
                f,
                "{second}: label {} is {first}'s; each VPN flow needs a label of its own, so that the label alone \
                 tells VPN and sender",
                label.number()
            ),
            Error::LabelReserved { place, label } => {
                write!(f, "{place}: label {} is reserved; take one from 16 on", label.number())
            }
            Error::PrefixTwice { vpn, prefix } => {
                write!(f, "VPN {vpn:?}: two routes for {prefix}; leave one out")
            }
            Error::ForeignCircuit { vpn, circuit } => {
                write!(f, "VPN {vpn:?}: circuit {circuit:?} of its routes belongs to another VPN")
            }
            Error::Flows { vpn, peer, count: 0 } => {
                write!(
                    f,
                    "VPN {vpn:?}: a route leads to peer {peer:?}, with which it has no flow; give one with labels"
                )
            }
            Error::Flows { vpn, peer, .. } => {
                write!(f, "VPN {vpn:?}: more than one flow with peer {peer:?}; leave one")
            }
            Error::NotAReference { name } => write!(
                f,
                "reference {name:?}: its flow needs the control \"i2vfc\" with a fixed decrease, which others can follow"
            ),
            Error::Overlap { first, second } => write!(
                f,
                "circuits {first:?} and {second:?} take the same packets; give one another port, VLAN or selection"
            ),
            Error::Vlans { circuit } => write!(
                f,
                "circuit {circuit:?}: up to two VLANs from 1 to 4094, and none inside one that is a circuit itself"
            ),
            Error::Mtu { peer, left } => write!(
                f,
                "peer {peer:?}: its MTU leaves {left} bytes for customers' packets, who need 1280; raise it"
            ),
            Error::Classes { vpn, peer } => write!(
                f,
                "VPN {vpn:?} with peer {peer:?}: up to 64 classes, of weights above zero and DSCPs from 0 to 63"
            ),
            Error::MixedVersions { peer } => {
                write!(f, "peer {peer:?}: the ends of its tunnel are one IPv4 and one IPv6; make them alike")
            }
            Error::Ports { named, given } => write!(f, "{named} ports are configured, and {given} given"),
        }
    }
}

impl Flow {
    pub(super) fn classes_are_right(&self) -> bool {
        let is_right = |class: &TrafficClass| {
            class.weight > 0.0 && class.weight.is_finite() && class.codepoints.iter().all(|dscp| *dscp < 64)
        };
        self.settings.classes.len() <= 64 && self.settings.classes.iter().all(is_right)
    }
}

impl Circuit {
    pub(super) fn attachment(&self) -> Result<Attachment, Error> {
        let in_range = self.vlans.iter().all(|vlan| (1..4095).contains(vlan));
        match *self.vlans {
            [] => Ok(Attachment::Untagged),
            [vlan] if in_range => Ok(Attachment::Tagged(vlan)),
            [outer, inner] if in_range => Ok(Attachment::Stacked(outer, inner)),
            _ => Err(Error::Vlans { circuit: self.name.clone() }),
        }
    }
}
