//! Tables of the configuration file.

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
    /// Configuration of a provider edge router.
    pub(crate) struct File "the file" {
        /// Settings of the router.
        pe: Head,
        /// Other provider edge routers, by name.
        peer: Named<Peer>,
        /// VPNs, by name.
        vpn: Named<Vpn>,
        /// Flows that weights are relative to, by name.
        reference: Named<Reference>,
        /// Attachment circuits of customers, by name.
        circuit: Named<Circuit>,
    }
}

table! {
    /// Settings of the router.
    pub(crate) struct Head "[pe]" {
        /// Interfaces to the core. The kernel keeps their addresses and routes; the router receives only MPLS and UDP port 6635 on them.
        core: List<At<InterfaceName>, 1, 64>,
        /// Control socket, for `netstage pe show`, `top` and `reload`.
        control: FilePath = "/run/netstage-pe.sock",
        /// Listening address and port of the Prometheus exporter. Default: no exporter.
        metrics: Option<Listen>,
        /// Maximum number of queued packets of all VPNs together.
        buffers: Packets = "16384 packets",
        /// Packet interface of the ports.
        ports: PortKind = "auto",
        /// Minimum interval between polls of frames and timers, as with interrupt moderation. A longer interval takes less CPU time, but delays packets by up to that interval.
        moderation: Moderation = "250 us",
        /// Number of CPU cores that forward. VPNs are distributed over them; VPNs with circuits on the same interface (with AF_PACKET, on the same VLAN) share a core.
        cores: Count<1, 64> = 1,
    }
}

table! {
    /// Another provider edge router, and the tunnel to it.
    pub(crate) struct Peer "a peer" {
        /// Encapsulation of packets to the peer.
        tunnel: At<Tunnel>,
        /// Maximum size of IP or MPLS packets in the core. Default: the MTU of the interface.
        mtu: Option<Bytes<1_344, 9_216>>,
        /// Clamp the maximum segment size of TCP connections to the MTU.
        clamp_segment_size: bool = true,
        /// Keys shared with the peer, which authenticate management packets. The first one signs; all are accepted. Default: no authentication.
        keys: List<At<SharedKey>>,
    }
}

table! {
    /// Key shared by two provider edge routers.
    pub(crate) struct SharedKey "a key" {
        /// Key number, the same on both routers.
        number: Count<0, 255>,
        /// Key file, relative to this file, with at least 32 hexadecimal digits, as printed by `openssl rand -hex 16`.
        file: FilePath,
    }
}

tagged! {
    /// Encapsulation of packets to a peer.
    pub(crate) enum Tunnel "tunnel" by "kind" {
        /// MPLS in UDP (RFC 7510), routed by the kernel.
        MplsInUdp(MplsInUdp) = "mpls-in-udp",
        /// MPLS on Ethernet, with a label for the path to the peer.
        Mpls(Mpls) = "mpls",
    }
}

table! {
    /// MPLS-in-UDP tunnel.
    pub(crate) struct MplsInUdp "tunnel \"mpls-in-udp\"" {
        /// Address of the peer.
        to: Address,
        /// Address of this router. Default: the source address chosen by the kernel.
        from: Option<Address>,
        /// Compute UDP checksums, and require them over IPv6.
        checksum: bool = false,
    }
}

table! {
    /// Label switched path.
    pub(crate) struct Mpls "tunnel \"mpls\"" {
        /// Next router on the path, adjacent to this host.
        next_hop: Address,
        /// Label of the path to the peer. Omit it if the peer is the next router.
        push: Option<LabelNumber>,
        /// Label of the path from the peer, if the last router does not pop it.
        accept: Option<LabelNumber>,
    }
}

table! {
    /// A VPN, with its own address space.
    pub(crate) struct Vpn "a VPN" {
        /// VPN flows, by peer.
        peer: Named<Flow>,
    }
}

table! {
    /// VPN flow to a peer, and the one from it.
    pub(crate) struct Flow "a VPN flow" {
        /// Label of sent packets, assigned by the peer: its `receive`.
        send: LabelNumber,
        /// Label of received packets, assigned by this router. Each flow needs a different one.
        receive: At<LabelNumber>,
        /// Prefixes of the VPN reached through the peer.
        routes: List<At<PrefixText>>,
        /// Weight of the flow in the core, relative to other flows.
        weight: Positive = 1,
        ..treatment: Treatment
    }
}

table! {
    /// Flow that weights are relative to: a VPN flow of this router, or one published by a peer.
    pub(crate) struct Reference "a reference" {
        /// Number that identifies the reference, the same on all routers that use it.
        number: At<Count<1, 4_294_967_295>>,
        /// VPN flow of this router to use, with control `i2vfc` and a fixed decrease.
        flow: Option<At<FlowName>>,
        /// Peers that receive the measurements of that flow.
        publish_to: List<At<PeerName>>,
        /// Peer that publishes the reference, instead of `flow`.
        from: Option<At<PeerName>>,
    }
}

table! {
    /// VPN flow, identified by its VPN and peer.
    pub(crate) struct FlowName "the name of a VPN flow" {
        /// VPN of the flow.
        vpn: At<VpnName>,
        /// Peer of the flow.
        peer: At<PeerName>,
    }
}

table! {
    /// Attachment circuit of a customer.
    pub(crate) struct Circuit "a circuit" {
        /// VPN of the customer.
        vpn: At<VpnName>,
        /// Customer-facing interface. The router owns it: the kernel must have no address on it.
        interface: At<InterfaceName>,
        /// VLAN, or outer and inner VLAN. Default: untagged.
        vlan: Option<At<OneOrMore<Count<1, 4_094>>>>,
        /// Packets of this circuit, if it shares interface and VLAN with other circuits.
        select: Option<Select>,
        /// Addresses of this router on the circuit, with the prefix length of the link: "10.0.1.1/24".
        address: OneOrMore<At<LinkAddress>>,
        /// MAC address that receives all packets, instead of address resolution.
        station: Option<StationText>,
        /// Routes through routers on the circuit.
        routes: List<Route>,
        /// Maximum size of IP packets. Default: the MTU of the interface.
        mtu: Option<Bytes<1_280, 9_216>>,
    }
}

table! {
    /// Route through a router on a circuit.
    pub(crate) struct Route "a route" {
        /// Destination prefix.
        to: At<PrefixText>,
        /// Address of the router, on the circuit.
        via: At<Address>,
    }
}

table! {
    /// Packet filter by addresses and ports. A field that is not set matches all packets.
    pub(crate) struct Select "a selection" {
        /// Source prefix.
        source: Option<PrefixText>,
        /// Destination prefix.
        destination: Option<PrefixText>,
        /// IP protocol number, such as 6 for TCP or 17 for UDP.
        protocol: Option<Count<0, 255>>,
        /// Source port, or first and last port of a range.
        source_ports: Option<Ports>,
        /// Destination port, or first and last port of a range.
        destination_ports: Option<Ports>,
    }
}

choice!(PortKind {
    /// AF_XDP on customer interfaces that support it, AF_PACKET on all others.
    "auto" => PortKind::Auto,
    /// AF_PACKET on all interfaces.
    "af-packet" => PortKind::AfPacket,
    /// AF_XDP on customer interfaces, with an error if one does not support it; AF_PACKET on core interfaces.
    "af-xdp" => PortKind::AfXdp,
});

/// Interval between polls, at most 1 ms: greater lateness is not caught up on.
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
    /// Name of a peer.
    PeerName = "the name of a peer";
}

/// Port range, both ends included.
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
                problems.push(node.place, "expected a port, or the first and last port of a range");
                None
            }
        }
    }
}
