//! Tables of the configuration file.

use super::{PortKind, ReversePathCheck};
use crate::address::{Address, LabelNumber, LinkAddress, Listen, PrefixText, PublicKeyText, StationText};
use crate::error::Problems;
use crate::file::control::Treatment;
use crate::key::SharedKey;
use crate::quantity::Dimension;
use crate::scalar::{
    BoundedCount, BoundedSize, FilePath, InterfaceName, Positive, QueueLength, VpnName, bounded, text,
};
use crate::table::{
    Decode, List, Located, NamedTables, OneOrMore, ValueKind, choice, mismatch, table, tagged,
};
use crate::tree::TomlNode;
use netstage_core::time::Duration;
use std::ops::RangeInclusive;

table! {
    /// Configuration of a provider edge router.
    pub(crate) struct PeFile "the file" {
        /// Settings of the router.
        pe: PeSection,
        /// Other provider edge routers, by name.
        peer: NamedTables<PeerTable>,
        /// VPNs, by name.
        vpn: NamedTables<PeVpnTable>,
        /// Flows that weights are relative to, by name.
        reference: NamedTables<ReferenceTable>,
        /// Attachment circuits of customers, by name.
        circuit: NamedTables<CircuitTable>,
    }
}

table! {
    /// Settings of the router.
    pub(crate) struct PeSection "[pe]" {
        /// Interfaces to the core. The kernel keeps their addresses and routes; the router receives only MPLS and UDP port 6635 on them.
        core: List<Located<InterfaceName>, 1, 64>,
        /// Control socket, for `netstage pe show`, `top` and `reload`.
        control: FilePath = "/run/netstage-pe.sock",
        /// Listening address and port of the Prometheus exporter. Default: no exporter.
        metrics: Option<Listen>,
        /// Maximum number of queued packets of all VPNs together.
        buffers: QueueLength = "16384 packets",
        /// Packet interface of the ports.
        ports: PortKind = "auto",
        /// Minimum interval between polls of frames and timers, as with interrupt moderation. A longer interval takes less CPU time, but delays packets by up to that interval.
        moderation: Moderation = "250 us",
        /// Number of CPU cores that forward. VPNs are distributed over them; VPNs with circuits on the same interface (with AF_PACKET, on the same VLAN) share a core.
        cores: BoundedCount<1, 64> = 1,
        /// File with the private key of this router, relative to this file, for peers with `encryption`. `netstage pe key FILE` creates it.
        private_key: Option<Located<FilePath>>,
        /// UDP port of this router for encrypted packets.
        encryption_port: Located<BoundedCount<1, 65_535>> = 51820,
    }
}

table! {
    /// Another provider edge router, and the tunnel to it.
    pub(crate) struct PeerTable "a peer" {
        /// Encapsulation of packets to the peer.
        tunnel: Located<PeTunnelTable>,
        /// Maximum size of IP or MPLS packets in the core. The router finds smaller paths by itself. Default: the MTU of the
        /// interface.
        mtu: Option<BoundedSize<1_344, 9_216>>,
        /// Clamp the maximum segment size of TCP connections to the MTU.
        clamp_segment_size: bool = true,
        /// Encryption of all packets to and from the peer. Required unless the core is trusted.
        encryption: Option<Located<EncryptionTable>>,
        /// Trust the core, instead of encryption: nobody but the peer can send packets with its address or labels.
        trusted: bool = false,
        /// Exchange news of VPN flows under control `rate-consensus` with the peer. Of several tunnels to one router, only one may do so.
        news: bool = true,
        /// Keys shared with the peer, which authenticate management packets. The first one signs; all are accepted. Default: no authentication.
        keys: List<Located<SharedKey>>,
    }
}

table! {
    /// Encryption of packets to and from a peer by the protocol of WireGuard.
    pub(crate) struct EncryptionTable "encryption" {
        /// Public key of the peer, as printed there by `netstage pe key FILE`.
        public_key: PublicKeyText,
        /// UDP port of the peer for encrypted packets: its `encryption_port`.
        port: BoundedCount<1, 65_535> = 51820,
    }
}

tagged! {
    /// Encapsulation of packets to a peer.
    pub(crate) enum PeTunnelTable "tunnel" by "kind" {
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
    pub(crate) struct PeVpnTable "a VPN" {
        /// VPN flows, by peer.
        peer: NamedTables<VpnFlowTable>,
    }
}

table! {
    /// VPN flow to a peer, and the one from it.
    pub(crate) struct VpnFlowTable "a VPN flow" {
        /// Label of sent packets, assigned by the peer: its `receive`.
        send: Located<LabelNumber>,
        /// Label of received packets, assigned by this router. Each flow needs a different one.
        receive: Located<LabelNumber>,
        /// Prefixes of the VPN reached through the peer.
        routes: List<Located<PrefixText>>,
        /// Weight of the flow in the core, relative to other flows.
        weight: Positive = 1,
        /// Numbers of the links in the core that the flow crosses and may share with others, for control `rate-consensus`; the same number means the same link and direction on all routers. Default: the routers find out which flows share a bottleneck.
        links: Option<Located<List<BoundedCount<0, 2_147_483_647>, 1, 32>>>,
        ..treatment: Treatment
    }
}

table! {
    /// Flow that weights are relative to: a VPN flow of this router, or one published by a peer.
    pub(crate) struct ReferenceTable "a reference" {
        /// Number that identifies the reference, the same on all routers that use it.
        number: Located<BoundedCount<1, 4_294_967_295>>,
        /// VPN flow of this router to use, with control `i2vfc` and a fixed decrease.
        flow: Option<Located<FlowName>>,
        /// Peers that receive the measurements of that flow.
        publish_to: List<Located<PeerName>>,
        /// Peer that publishes the reference, instead of `flow`.
        from: Option<Located<PeerName>>,
    }
}

table! {
    /// VPN flow, identified by its VPN and peer.
    pub(crate) struct FlowName "the name of a VPN flow" {
        /// VPN of the flow.
        vpn: Located<VpnName>,
        /// Peer of the flow.
        peer: Located<PeerName>,
    }
}

table! {
    /// Attachment circuit of a customer.
    pub(crate) struct CircuitTable "a circuit" {
        /// VPN of the customer.
        vpn: Located<VpnName>,
        /// Customer-facing interface. The router owns it: the kernel must have no address on it.
        interface: Located<InterfaceName>,
        /// VLAN, or outer and inner VLAN. Default: untagged.
        vlan: Option<Located<OneOrMore<BoundedCount<1, 4_094>>>>,
        /// Packets of this circuit, if it shares interface and VLAN with other circuits.
        select: Option<SelectionTable>,
        /// Addresses of this router on the circuit, with the prefix length of the link: "10.0.1.1/24".
        address: OneOrMore<Located<LinkAddress>>,
        /// MAC address that receives all packets, instead of address resolution.
        mac: Option<StationText>,
        /// Routes through routers on the circuit.
        routes: List<CircuitRouteTable>,
        /// Maximum size of IP packets. Default: the MTU of the interface.
        mtu: Option<BoundedSize<1_280, 9_216>>,
        /// Check of the source addresses of the customer's packets (reverse path forwarding, RFC 3704).
        rpf: ReversePathCheck = "off",
    }
}

table! {
    /// Route through a router on a circuit.
    pub(crate) struct CircuitRouteTable "a route" {
        /// Destination prefix.
        to: Located<PrefixText>,
        /// Address of the router, on the circuit.
        via: Located<Address>,
    }
}

table! {
    /// Packet filter by addresses and ports. A field that is not set matches all packets.
    pub(crate) struct SelectionTable "a selection" {
        /// Source prefix.
        source: Option<PrefixText>,
        /// Destination prefix.
        destination: Option<PrefixText>,
        /// IP protocol number, such as 6 for TCP or 17 for UDP.
        protocol: Option<BoundedCount<0, 255>>,
        /// Source port, or first and last port of a range.
        source_ports: Option<Ports>,
        /// Destination port, or first and last port of a range.
        destination_ports: Option<Ports>,
    }
}

choice!(ReversePathCheck {
    /// All source addresses are accepted.
    "off" => ReversePathCheck::Off,
    /// Packets whose source address has no route in the VPN are dropped.
    "loose" => ReversePathCheck::Loose,
    /// Packets are dropped unless the route to their source address leads to the circuit.
    "strict" => ReversePathCheck::Strict,
});

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
    fn kind() -> ValueKind {
        ValueKind::Quantity(&[Dimension::Time])
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        bounded(node, &[Dimension::Time], 0..=1_000_000, format_args!("at most 1 ms"), problems)
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
    fn kind() -> ValueKind {
        OneOrMore::<BoundedCount<0, 65_535>>::kind()
    }
    fn decode(node: &TomlNode, problems: &mut Problems) -> Option<Self> {
        let ports = OneOrMore::<BoundedCount<0, 65_535>>::decode(node, problems)?;
        match *ports.0 {
            [BoundedCount(only)] => Some(Ports(only as u16..=only as u16)),
            [BoundedCount(first), BoundedCount(last)] if first <= last => {
                Some(Ports(first as u16..=last as u16))
            }
            _ => {
                problems.push(node.place, "expected a port, or the first and last port of a range");
                None
            }
        }
    }
}
