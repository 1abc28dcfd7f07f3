//! MPLS in UDP (RFC 7510): a label stack and its payload in a UDP datagram.
//!
//! Congestion marks pass through the tunnel as described in [`crate::ip::tunnel`]. The caller handles the
//! inner TTL.

use crate::checksum::Sum;
use crate::ip::{self, Ecn, Fragment, protocol, pseudo_header, v4, v6};
use crate::udp::{self, ZeroChecksum};
use core::net::IpAddr;

/// Destination UDP port.
pub const PORT: u16 = 6635;

/// Returns the source port of a flow: 14 bits of its hash, from 49152 on, so that routers on the path can
/// balance flows and still keep each flow in order (section 3). The hash is folded so that all of its bits
/// affect the port.
#[inline]
pub const fn source_port(flow_hash: u32) -> u16 {
    let folded = flow_hash ^ flow_hash >> 14 ^ flow_hash >> 28;
    0xc000 | folded as u16 & 0x3fff
}

/// Outer headers of a tunnel packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TunnelHeader {
    /// Source address: the local tunnel endpoint.
    pub source: IpAddr,
    /// Destination address: the remote tunnel endpoint, of the same IP version.
    pub destination: IpAddr,
    /// Source port, from [`source_port`].
    pub source_port: u16,
    /// Differentiated services codepoint, 6 bits.
    pub dscp: u8,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Computes the UDP checksum. Over IPv4 this is recommended only if the labels need integrity
    /// protection. Over IPv6 the checksum is the default; omitting it requires one of the exceptions in
    /// section 3.1.
    pub has_checksum: bool,
}

/// Reasons why the headers cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelHeaderError {
    /// Source and destination of different IP versions.
    MixedVersions,
    /// Buffer shorter than the headers, or longer than a packet can be.
    DoesNotFit,
}

impl TunnelHeader {
    /// Returns the length of the headers, which is the offset of the label stack, bytes.
    #[inline]
    pub const fn length(&self) -> usize {
        match self.source {
            IpAddr::V4(_) => v4::HEADER + udp::HEADER,
            IpAddr::V6(_) => v6::HEADER + udp::HEADER,
        }
    }

    /// Writes the headers of a packet that fills the buffer. Label stack and payload must already be in
    /// place at [`TunnelHeader::length`]. Over IPv4 the packet gets the Don't Fragment bit.
    #[inline]
    pub fn write(&self, packet: &mut [u8]) -> Result<(), TunnelHeaderError> {
        self.write_to_port(PORT, packet)
    }

    /// Writes the headers like [`TunnelHeader::write`], for another protocol with this destination port.
    #[inline]
    pub fn write_to_port(&self, port: u16, packet: &mut [u8]) -> Result<(), TunnelHeaderError> {
        let header = self.length() - udp::HEADER;
        let length = packet.len().checked_sub(header).ok_or(TunnelHeaderError::DoesNotFit)?;
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => v4::Header {
                dscp: self.dscp,
                ecn: self.ecn,
                identification: 0,
                dont_fragment: true,
                ttl: self.ttl,
                protocol: protocol::UDP,
                source,
                destination,
            }
            .write(packet, length),
            (IpAddr::V6(source), IpAddr::V6(destination)) => v6::Header {
                dscp: self.dscp,
                ecn: self.ecn,
                // Some routers balance flows by the flow label instead of the port (RFC 6438).
                flow_label: self.source_port as u32,
                next_header: protocol::UDP,
                hop_limit: self.ttl,
                source,
                destination,
            }
            .write(packet, length),
            _ => return Err(TunnelHeaderError::MixedVersions),
        }
        .map_err(|_| TunnelHeaderError::DoesNotFit)?;
        let sum = self
            .has_checksum
            .then(|| pseudo_header(self.source, self.destination, protocol::UDP, length as u32));
        udp::write(&mut packet[header..], self.source_port, port, sum)
            .map_err(|_| TunnelHeaderError::DoesNotFit)
    }
}

/// Packet received through a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    /// Source address: the remote tunnel endpoint.
    pub source: IpAddr,
    /// Destination address: the local tunnel endpoint.
    pub destination: IpAddr,
    /// Source port.
    pub source_port: u16,
    /// DSCP of the outer header, 6 bits.
    pub dscp: u8,
    /// ECN codepoint of the outer header.
    pub ecn: Ecn,
    /// TTL or hop limit of the outer header.
    pub ttl: u8,
    /// UDP checksum present (and verified).
    pub has_checksum: bool,
    /// Label stack and its payload.
    pub payload: &'a [u8],
}

/// Reasons why bytes are not a valid tunnel packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MplsInUdpError {
    /// Malformed IP header.
    Ip(ip::IpError),
    /// Invalid IPv4 header checksum.
    HeaderChecksum,
    /// Fragment; tunnel packets must not be fragmented.
    Fragment,
    /// Protocol other than UDP, or a different destination port.
    Other,
    /// Malformed UDP header.
    Udp(udp::UdpError),
    /// Invalid UDP checksum, or zero over IPv6 where that is rejected.
    Checksum,
}

impl<'a> View<'a> {
    /// Parses and checks a packet. Pass [`ZeroChecksum::Accepted`] for `zero_over_ipv6` only if the operator
    /// enabled it and both addresses are compared with those of a tunnel (RFC 7510 section 3.1 d, RFC 6936).
    #[inline]
    pub fn new(packet: &'a [u8], zero_over_ipv6: ZeroChecksum) -> Result<View<'a>, MplsInUdpError> {
        View::at_port(PORT, packet, zero_over_ipv6)
    }

    /// Parses and checks a packet like [`View::new`], for another protocol with this destination port.
    #[inline]
    pub fn at_port(
        port: u16,
        packet: &'a [u8],
        zero_over_ipv6: ZeroChecksum,
    ) -> Result<View<'a>, MplsInUdpError> {
        let ip = ip::View::new(packet).map_err(MplsInUdpError::Ip)?;
        let zero = match ip {
            ip::View::V4(view) if !view.is_checksum_valid() => return Err(MplsInUdpError::HeaderChecksum),
            ip::View::V4(_) => ZeroChecksum::Accepted,
            ip::View::V6(_) => zero_over_ipv6,
        };
        let transport = ip.transport().map_err(MplsInUdpError::Ip)?;
        if transport.protocol != protocol::UDP {
            return Err(MplsInUdpError::Other);
        }
        if transport.fragment != Fragment::Whole {
            return Err(MplsInUdpError::Fragment);
        }
        let datagram = udp::View::new(transport.payload).map_err(MplsInUdpError::Udp)?;
        if datagram.destination() != port {
            return Err(MplsInUdpError::Other);
        }
        let (source, destination) = (ip.source(), ip.destination());
        let sum: Sum = pseudo_header(source, destination, protocol::UDP, datagram.length().into());
        if !datagram.is_checksum_valid(sum, zero) {
            return Err(MplsInUdpError::Checksum);
        }
        Ok(View {
            source,
            destination,
            source_port: datagram.source(),
            dscp: ip.dscp(),
            ecn: ip.ecn(),
            ttl: ip.ttl(),
            has_checksum: datagram.checksum() != 0,
            payload: datagram.payload(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn outer(is_v6: bool, has_checksum: bool) -> TunnelHeader {
        let address = |last| match is_v6 {
            false => IpAddr::from([192, 0, 2, last]),
            true => IpAddr::from([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
        };
        TunnelHeader {
            source: address(1),
            destination: address(2),
            source_port: source_port(0x1234_5678),
            dscp: 46,
            ecn: Ecn::Capable1,
            ttl: 63,
            has_checksum,
        }
    }

    #[test]
    fn source_ports_cover_exactly_their_range() {
        let ports: BTreeSet<u16> = (0..1 << 14).map(source_port).collect();
        assert_eq!((ports.first(), ports.last()), (Some(&49_152), Some(&65_535)));
        assert_eq!(ports.len(), 1 << 14);
        // Every bit of the hash affects the port.
        for bit in 0..32 {
            assert_ne!(source_port(1 << bit), source_port(0), "bit {bit}");
        }
    }

    #[test]
    fn zero_checksums_over_ipv6_need_consent() {
        let label = [0, 1, 1, 64];
        for (is_v6, has_checksum) in [(false, false), (false, true), (true, false), (true, true)] {
            let outer = outer(is_v6, has_checksum);
            let mut packet = [&std::vec![0xff; outer.length()][..], &label].concat();
            outer.write(&mut packet).unwrap();
            let expected = View {
                source: outer.source,
                destination: outer.destination,
                source_port: outer.source_port,
                dscp: 46,
                ecn: Ecn::Capable1,
                ttl: 63,
                has_checksum,
                payload: &label,
            };
            assert_eq!(View::new(&packet, ZeroChecksum::Accepted), Ok(expected));
            let is_rejected = is_v6 && !has_checksum;
            let strict = View::new(&packet, ZeroChecksum::Rejected);
            assert_eq!(strict, if is_rejected { Err(MplsInUdpError::Checksum) } else { Ok(expected) });
            // A damaged label is detected only with a checksum.
            let mut damaged = packet.clone();
            *damaged.last_mut().unwrap() ^= 1;
            assert_eq!(View::new(&damaged, ZeroChecksum::Accepted).is_err(), has_checksum);
        }
    }

    #[test]
    fn other_packets_are_rejected() {
        let outer = outer(false, true);
        let mut packet = [0; 32];
        outer.write(&mut packet).unwrap();
        let found = |change: fn(&mut [u8; 32])| {
            let mut packet = packet;
            change(&mut packet);
            packet[10..12].fill(0);
            let sum = crate::checksum::checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            View::new(&packet, ZeroChecksum::Rejected).map(|view| view.ttl)
        };
        assert_eq!(found(|_| {}), Ok(63));
        assert_eq!(found(|packet| packet[23] ^= 1), Err(MplsInUdpError::Other));
        assert_eq!(found(|packet| packet[9] = 6), Err(MplsInUdpError::Other));
        assert_eq!(found(|packet| packet[6] = 0x20), Err(MplsInUdpError::Fragment));
        assert_eq!(found(|packet| packet[7] = 1), Err(MplsInUdpError::Fragment));
        assert_eq!(
            found(|packet| packet[25] = 7),
            Err(MplsInUdpError::Udp(udp::UdpError::Length { claimed: 7, present: 12 }))
        );
        assert_eq!(found(|packet| packet[15] ^= 1), Err(MplsInUdpError::Checksum));
        let mut wrong = packet;
        wrong[8] ^= 1;
        assert_eq!(View::new(&wrong, ZeroChecksum::Accepted), Err(MplsInUdpError::HeaderChecksum));
        assert_eq!(View::new(&[], ZeroChecksum::Accepted), Err(MplsInUdpError::Ip(ip::IpError::Short)));
        assert_eq!(outer.write(&mut [0; 27]), Err(TunnelHeaderError::DoesNotFit));
        assert_eq!(outer.write(&mut [0; 65_536]), Err(TunnelHeaderError::DoesNotFit));
        let mixed = TunnelHeader { destination: IpAddr::from([0; 16]), ..outer };
        assert_eq!(mixed.write(&mut packet), Err(TunnelHeaderError::MixedVersions));
    }

    proptest! {
        #[test]
        fn packets_round_trip(
            is_v6: bool, has_checksum: bool, hash: u32, payload in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let outer = TunnelHeader { source_port: source_port(hash), ..outer(is_v6, has_checksum) };
            let mut packet = [&std::vec![0; outer.length()][..], &payload].concat();
            outer.write(&mut packet).unwrap();
            let view = View::new(&packet, ZeroChecksum::Accepted).unwrap();
            prop_assert_eq!(view.payload, &payload[..]);
            prop_assert_eq!((view.source_port, view.has_checksum), (outer.source_port, has_checksum));
        }

        #[test]
        fn damaged_packets_never_panic(is_v6: bool, at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            let outer = outer(is_v6, true);
            let mut packet = std::vec![0; outer.length() + 12];
            outer.write(&mut packet).unwrap();
            let at = at.index(packet.len());
            packet[at] = byte;
            let cut = cut.index(packet.len() + 1);
            if let Ok(view) = View::new(&packet[..cut], ZeroChecksum::Accepted) {
                prop_assert!(view.payload.len() <= 12);
            }
        }
    }
}
