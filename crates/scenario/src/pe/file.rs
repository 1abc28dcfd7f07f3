//! The tables of the configuration, as written.

use super::PortKind;
use crate::address::{Address, LabelNumber, LinkAddress, Listen, PrefixText, StationText};
use crate::error::Problems;
use crate::file::control::Treatment;
use crate::quantity::Dimension;
use crate::scalar::{Bytes, Count, FilePath, InterfaceName, Packets, Positive, VpnName, bounded, text};
use crate::table::{At, Decode, Kind, List, Named, OneOrMore, choice, mismatch, table, tagged};
use crate::tree::Node;
use netstage_core::time::Duration;
use std::ops::RangeInclusive;

table! {
    /// A provider edge router's configuration.
    pub(crate) struct File "the file" {
        /// The router itself.
        pe: Head,
        /// The other provider edge routers, by name.
        peer: Named<Peer>,
        /// The VPNs, by name.
        vpn: Named<Vpn>,
        /// Flows that weights are relative to, by name.
        reference: Named<Reference>,
        /// Where customers are attached, by name.
        circuit: Named<Circuit>,
    }
}

table! {
    /// The router itself.
    pub(crate) struct Head "[pe]" {
        /// Interfaces towards the core. The kernel keeps their addresses and routes; the router takes only MPLS and UDP port 6635.
        core: List<At<InterfaceName>, 1, 64>,
        /// The control socket, for `netstage pe show`, `top` and `reload`.
        control: FilePath = "/run/netstage-pe.sock",
        /// Address and port to serve Prometheus metrics on; left out, they are not served.
        metrics: Option<Listen>,
        /// Packets that may wait, all VPNs together.
        buffers: Packets = "16384 packets",
        /// How interfaces are opened.
        ports: PortKind = "auto",
        /// Frames and timers are looked at once in this time at most, as with interrupt moderation: more takes less processor time, and adds up to as much to the delay of a packet.
        moderation: Moderation = "250 us",
        /// Processor cores that forward, each some of the VPNs: those with circuits on one interface share a core, by AF_PACKET those on one VLAN of it.
        cores: Count<1, 64> = 1,
    }
}

table! {
    /// Another provider edge router, and the way there.
    pub(crate) struct Peer "a peer" {
        /// What packets to it are put into.
        tunnel: At<Tunnel>,
        /// Largest IP or MPLS packet the core carries; left out, that of the interface.
        mtu: Option<Bytes<1_344, 9_216>>,
        /// Lower the segment size TCP connections agree on to what fits.
        clamp_segment_size: bool = true,
        /// Keys shared with it, which authenticate management packets: the first signs, what any signed is taken. Left out: nothing is authenticated.
        keys: List<At<SharedKey>>,
    }
}

table! {
    /// A key two provider edge routers share.
    pub(crate) struct SharedKey "a key" {
        /// Its number, the same at both.
        number: Count<0, 255>,
        /// The file that holds it, relative to this one: 32 or more hexadecimal digits, as `openssl rand -hex 16` prints them.
        file: FilePath,
    }
}

tagged! {
    /// What packets to a peer are put into.
    pub(crate) enum Tunnel "tunnel" by "kind" {
        /// MPLS in UDP (RFC 7510), along the kernel's routes.
        MplsInUdp(MplsInUdp) = "mpls-in-udp",
        /// MPLS on Ethernet, with a label for the path there.
        Mpls(Mpls) = "mpls",
    }
}

table! {
    /// A tunnel of UDP.
    pub(crate) struct MplsInUdp "tunnel \"mpls-in-udp\"" {
        /// The peer's address.
        to: Address,
        /// This router's address; left out, the one the kernel would send from.
        from: Option<Address>,
        /// Compute UDP checksums, and over IPv6 ask for them.
        checksum: bool = false,
    }
}

table! {
    /// A path of labels.
    pub(crate) struct Mpls "tunnel \"mpls\"" {
        /// The next router there, a neighbour of this machine.
        next_hop: Address,
        /// Label of the path there; left out where the peer itself is the next router.
        push: Option<LabelNumber>,
        /// Label of the path back, where the last router leaves it on.
        accept: Option<LabelNumber>,
    }
}

table! {
    /// A VPN: addresses of its own.
    pub(crate) struct Vpn "a VPN" {
        /// Its flows, by the peer each leads to.
        peer: Named<Flow>,
    }
}

table! {
    /// A VPN's flow to a peer, and the one back.
    pub(crate) struct Flow "a VPN flow" {
        /// The label the peer has given to what this router sends: its `receive`.
        send: LabelNumber,
        /// The label this router has given to what the peer sends. No two flows have the same.
        receive: At<LabelNumber>,
        /// Prefixes of the VPN behind the peer.
        routes: List<At<PrefixText>>,
        /// Its share of the core, relative to other flows'.
        weight: Positive = 1,
        ..treatment: Treatment
    }
}

table! {
    /// A flow that weights are relative to: one of this router's VPN flows, or one a peer tells of.
    pub(crate) struct Reference "a reference" {
        /// Its number, by which routers tell references apart: the same wherever it is followed.
        number: At<Count<1, 4_294_967_295>>,
        /// The VPN flow of this router that it is, under `i2vfc` with a fixed decrease.
        flow: Option<At<FlowName>>,
        /// Peers that are told what that flow measures.
        publish_to: List<At<PeerName>>,
        /// Instead of `flow`: the peer that tells of it.
        from: Option<At<PeerName>>,
    }
}

table! {
    /// A VPN flow, by the names of its VPN and peer.
    pub(crate) struct FlowName "the name of a VPN flow" {
        /// Its VPN.
        vpn: At<VpnName>,
        /// The peer it leads to.
        peer: At<PeerName>,
    }
}

table! {
    /// Where a customer is attached.
    pub(crate) struct Circuit "a circuit" {
        /// Its VPN.
        vpn: At<VpnName>,
        /// Its interface. The router owns it: the kernel must have no address there.
        interface: At<InterfaceName>,
        /// VLAN, or two, the outer first; left out: untagged.
        vlan: Option<At<OneOrMore<Count<1, 4_094>>>>,
        /// Which packets there belong to it, where it shares interface and VLAN with other circuits.
        select: Option<Select>,
        /// This router's addresses there, with the length of the link's prefix: "10.0.1.1/24".
        address: OneOrMore<At<LinkAddress>>,
        /// The one station there, to which everything goes: nothing is resolved then.
        station: Option<StationText>,
        /// What is behind routers on the circuit.
        routes: List<Route>,
        /// Largest IP packet it carries; left out, that of the interface.
        mtu: Option<Bytes<1_280, 9_216>>,
    }
}

table! {
    /// A prefix behind a router on a circuit.
    pub(crate) struct Route "a route" {
        /// The prefix.
        to: At<PrefixText>,
        /// The router's address, on the circuit.
        via: At<Address>,
    }
}

table! {
    /// Packets by their addresses and ports; what is not given is not looked at.
    pub(crate) struct Select "a selection" {
        /// The sender's prefix.
        source: Option<PrefixText>,
        /// The receiver's prefix.
        destination: Option<PrefixText>,
        /// Protocol, as in the IP header: 6 is TCP, 17 is UDP.
        protocol: Option<Count<0, 255>>,
        /// The sender's port, or first and last.
        source_ports: Option<Ports>,
        /// The receiver's port, or first and last.
        destination_ports: Option<Ports>,
    }
}

choice!(PortKind {
    /// The customers' interfaces by AF_XDP where it works, the others by AF_PACKET.
    "auto" => PortKind::Auto,
    /// By AF_PACKET.
    "af-packet" => PortKind::AfPacket,
    /// The customers' by AF_XDP or not at all.
    "af-xdp" => PortKind::AfXdp,
});

/// Time between turns. What is due is made up for by no more than a millisecond.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Moderation(pub Duration);

impl Decode for Moderation {
    fn kind() -> Kind {
        Kind::Quantity(&[Dimension::Time])
    }
    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        bounded(node, &[Dimension::Time], 0..=1_000_000, "at most 1 ms", problems)
            .map(|v| Moderation(Duration(v.1)))
    }
}

text! {
    /// A peer, by name.
    PeerName = "the name of a peer";
}

/// Ports, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ports(pub RangeInclusive<u16>);

impl Decode for Ports {
    fn kind() -> Kind {
        OneOrMore::<Count<0, 65_535>>::kind()
    }
    fn decode(node: &Node, problems: &mut Problems) -> Option<Self> {
        let ports = OneOrMore::<Count<0, 65_535>>::decode(node, problems)?;
        match *ports.0 {
            [Count(only)] => Some(Ports(only as u16..=only as u16)),
            [Count(first), Count(last)] if first <= last => Some(Ports(first as u16..=last as u16)),
            _ => {
                problems.push(node.place, "expected a port, or the first and the last of several");
                None
            }
        }
    }
}
