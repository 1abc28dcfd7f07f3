//! IP packets: checked views of IPv4 ([`v4`]) and IPv6 ([`v6`]) packets, their common interface, and headers
//! to be written. Jumbograms (RFC 2675) are rejected.

pub mod fragment;
pub mod tunnel;
pub mod v4;
pub mod v6;

use crate::checksum::Sum;
use core::net::IpAddr;

/// IP protocol numbers and types of IPv6 extension headers.
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMPv4.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Encapsulating security payload; the headers after it are encrypted.
    pub const ESP: u8 = 50;
    /// Authentication header (RFC 4302).
    pub const AUTHENTICATION: u8 = 51;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// No next header.
    pub const NO_NEXT_HEADER: u8 = 59;
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: u8 = 60;
    /// Mobility header (RFC 6275).
    pub const MOBILITY: u8 = 135;
}

/// Explicit congestion notification codepoint (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Transport without ECN support (Not-ECT).
    #[default]
    NotCapable = 0,
    /// ECN-capable transport, ECT(1); L4S where deployed (RFC 9331).
    Capable1 = 1,
    /// ECN-capable transport, ECT(0).
    Capable0 = 2,
    /// Congestion experienced by a queue on the path (CE).
    CongestionExperienced = 3,
}

impl Ecn {
    /// All codepoints, in numeric order.
    pub const ALL: [Ecn; 4] = [Ecn::NotCapable, Ecn::Capable1, Ecn::Capable0, Ecn::CongestionExperienced];

    /// Returns the codepoint in the low two bits of a traffic class.
    #[inline]
    pub const fn from_bits(bits: u8) -> Ecn {
        Ecn::ALL[(bits & 3) as usize]
    }
}

/// Reasons why bytes are not a valid IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpError {
    /// Bytes end within the header.
    Short,
    /// Unexpected IP version.
    Version(u8),
    /// IPv4 header length below 20 bytes or above the packet length, in words of 4 bytes.
    HeaderLength(u8),
    /// Packet length above the bytes available.
    TotalLength {
        /// Length in the header.
        claimed: usize,
        /// Bytes available.
        present: usize,
    },
    /// More IPv6 extension headers than [`v6::MAX_EXTENSIONS`].
    TooManyExtensions,
}

/// Part of its datagram that a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// Whole datagram.
    Whole,
    /// First fragment.
    First,
    /// Later fragment, without the transport header.
    Later,
}

/// Payload of an IP packet behind all IP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportPayload<'a> {
    /// Transport protocol, one of [`protocol`].
    pub protocol: u8,
    /// Part of the datagram in this packet.
    pub fragment: Fragment,
    /// Offset of the payload in the packet, bytes.
    pub offset: usize,
    /// Payload bytes; in a later fragment they start within the datagram.
    pub payload: &'a [u8],
}

impl TransportPayload<'_> {
    /// Returns the source and destination ports of TCP, UDP, and protocols with ports in the same place.
    /// Returns `None` for later fragments and other protocols.
    #[inline]
    pub fn ports(&self) -> Option<(u16, u16)> {
        // DCCP (33), SCTP (132) and UDP-Lite (136) begin with their ports too.
        if self.fragment == Fragment::Later
            || !matches!(self.protocol, protocol::TCP | protocol::UDP | 33 | 132 | 136)
        {
            return None;
        }
        let &[a, b, c, d] = self.payload.first_chunk()?;
        Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }
}

/// IP packet of either version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View<'a> {
    /// IPv4.
    V4(v4::View<'a>),
    /// IPv6.
    V6(v6::View<'a>),
}

impl<'a> View<'a> {
    /// Parses a packet and checks its header. The version comes from the first byte, since a PE finds no
    /// EtherType below a label.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<View<'a>, IpError> {
        match bytes.first().ok_or(IpError::Short)? >> 4 {
            4 => v4::View::new(bytes).map(View::V4),
            6 => v6::View::new(bytes).map(View::V6),
            other => Err(IpError::Version(other)),
        }
    }

    /// Returns the source address.
    pub fn source(&self) -> IpAddr {
        match self {
            View::V4(view) => view.source().into(),
            View::V6(view) => view.source().into(),
        }
    }

    /// Returns the destination address.
    pub fn destination(&self) -> IpAddr {
        match self {
            View::V4(view) => view.destination().into(),
            View::V6(view) => view.destination().into(),
        }
    }

    /// Returns the traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        match self {
            View::V4(view) => view.traffic_class(),
            View::V6(view) => view.traffic_class(),
        }
    }

    /// Returns the differentiated services codepoint, 6 bits (RFC 2474).
    #[inline]
    pub fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// Returns the ECN codepoint.
    #[inline]
    pub fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.traffic_class())
    }

    /// Returns the TTL or hop limit.
    #[inline]
    pub fn ttl(&self) -> u8 {
        match self {
            View::V4(view) => view.ttl(),
            View::V6(view) => view.hop_limit(),
        }
    }

    /// Returns the packet without any bytes after it in the buffer.
    #[inline]
    pub fn packet(&self) -> &'a [u8] {
        match self {
            View::V4(view) => view.packet(),
            View::V6(view) => view.packet(),
        }
    }

    /// Returns the transport payload.
    #[inline]
    pub fn transport(&self) -> Result<TransportPayload<'a>, IpError> {
        match self {
            View::V4(view) => Ok(view.transport()),
            View::V6(view) => view.transport(),
        }
    }

    /// Returns a hash over addresses, protocol and ports, equal for all packets of a flow. Ports are left
    /// out for fragments, so that all fragments of a datagram have the same hash. A different `seed` in each
    /// router keeps consecutive routers from making the same choice.
    #[inline]
    pub fn flow_hash(&self, seed: u64) -> u32 {
        let mut hash = match self {
            View::V4(view) => {
                let (source, destination) = (u32::from(view.source()), u32::from(view.destination()));
                mixed(seed, u64::from(source) << 32 | u64::from(destination))
            }
            View::V6(view) => [view.source(), view.destination()].into_iter().fold(seed, |hash, address| {
                let bits = u128::from(address);
                mixed(mixed(hash, (bits >> 64) as u64), bits as u64)
            }),
        };
        if let Ok(transport) = self.transport() {
            hash = mixed(hash, u64::from(transport.protocol));
            let ports = transport.ports().filter(|_| transport.fragment == Fragment::Whole);
            if let Some((source, destination)) = ports {
                hash = mixed(hash, u64::from(source) << 16 | u64::from(destination));
            }
        }
        (hash >> 32) as u32
    }
}

/// Mixes `word` into `state` with the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
#[inline]
const fn mixed(state: u64, word: u64) -> u64 {
    let z = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the sum over the pseudo-header of TCP and UDP (RFC 9293 section 3.1, RFC 8200 section 8.1). Both
/// addresses must be of the same version; the sum is meaningless otherwise.
#[inline]
pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: u32) -> Sum {
    let address = |sum: Sum, address: IpAddr| match address {
        IpAddr::V4(address) => sum.bytes(&address.octets()),
        IpAddr::V6(address) => sum.bytes(&address.octets()),
    };
    let sum = address(address(Sum::ZERO, source), destination);
    sum.word(u16::from(protocol)).word((length >> 16) as u16).word(length as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn the_first_byte_selects_the_version() {
        assert_eq!(View::new(&[]), Err(IpError::Short));
        assert_eq!(View::new(&[0x50; 60]), Err(IpError::Version(5)));
        assert_eq!(View::new(&[0x45; 19]), Err(IpError::Short));
        assert_eq!(View::new(&[0x60; 39]), Err(IpError::Short));
    }

    fn packet(source_port: u16, fragment: u16) -> Vec<u8> {
        let mut packet = std::vec![0; 40];
        let header = v4::Header {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            protocol: protocol::UDP,
            ..v4::Header::default()
        };
        header.write(&mut packet, 20).unwrap();
        packet[20..22].copy_from_slice(&source_port.to_be_bytes());
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet
    }

    #[test]
    fn packets_of_a_flow_and_fragments_of_a_datagram_share_a_hash() {
        let hash = |packet: &[u8]| View::new(packet).unwrap().flow_hash(7);
        assert_eq!(hash(&packet(1, 0)), hash(&packet(1, 0)));
        assert_ne!(hash(&packet(1, 0)), hash(&packet(2, 0)));
        // Packets with "more fragments" set and with fragment offset 8.
        assert_eq!(hash(&packet(1, 0x2000)), hash(&packet(2, 1)));
        assert_ne!(hash(&packet(1, 0)), View::new(&packet(1, 0)).unwrap().flow_hash(8));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            first in prop::sample::select(std::vec![0x45_u8, 0x46, 0x4f, 0x60, 0x6f]),
            mut bytes in prop::collection::vec(any::<u8>(), 1..200),
        ) {
            bytes[0] = first;
            // A random length rarely matches the buffer, so that every third case sets a valid one.
            let length = bytes.len();
            if length > 6 && length.is_multiple_of(3) {
                let (at, length) = if first < 0x60 { (2, length) } else { (4, length.saturating_sub(40)) };
                bytes[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
            }
            if let Ok(view) = View::new(&bytes) {
                prop_assert!(view.packet().len() <= bytes.len());
                view.flow_hash(1);
                if let Ok(transport) = view.transport() {
                    prop_assert_eq!(transport.offset + transport.payload.len(), view.packet().len());
                }
            }
        }
    }
}
