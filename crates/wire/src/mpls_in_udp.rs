//! MPLS in UDP (RFC 7510): a label stack and what it labels as the payload of a datagram.
//!
//! Congestion marks go through the tunnel by [`crate::ip::tunnel`]; the time to live of what
//! is inside is the caller's.

use crate::checksum::Sum;
use crate::ip::{self, Ecn, Fragment, protocol, pseudo_header, v4, v6};
use crate::udp::{self, ZeroChecksum};
use core::net::IpAddr;

/// UDP port of the receiver.
pub const PORT: u16 = 6635;

/// The port a flow is sent from: 14 bits of its hash above 49152, so that routers in between
/// spread flows but keep each in order (section 3). The folded half makes every bit count.
#[inline]
pub const fn source_port(flow_hash: u32) -> u16 {
    let folded = flow_hash ^ flow_hash >> 14 ^ flow_hash >> 28;
    0xc000 | folded as u16 & 0x3fff
}

/// The header around a label stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    /// This end of the tunnel.
    pub source: IpAddr,
    /// The other end; of the same version.
    pub destination: IpAddr,
    /// Port it is sent from, of [`source_port`].
    pub source_port: u16,
    /// Differentiated services codepoint, 6 bits.
    pub dscp: u8,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Compute the UDP checksum. Recommended against over IPv4 unless the labels' integrity
    /// matters; over IPv6 a checksum is the default, and leaving it out needs one of the
    /// exceptions of section 3.1.
    pub has_checksum: bool,
}

/// Why no header was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// Source and destination are of different versions.
    MixedVersions,
    /// The buffer is shorter than the headers, or longer than a packet can be.
    DoesNotFit,
}

impl Outer {
    /// Bytes of the headers, which is where the label stack belongs.
    #[inline]
    pub const fn length(&self) -> usize {
        match self.source {
            IpAddr::V4(_) => v4::HEADER + udp::HEADER,
            IpAddr::V6(_) => v6::HEADER + udp::HEADER,
        }
    }

    /// Writes the headers of a packet that fills the buffer, with label stack and all that
    /// follows in place behind [`Outer::length`]. Routers may not divide it.
    #[inline]
    pub fn write(&self, packet: &mut [u8]) -> Result<(), Unwritable> {
        let header = self.length() - udp::HEADER;
        let length = packet.len().checked_sub(header).ok_or(Unwritable::DoesNotFit)?;
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
                // Some routers spread by this instead of the port (RFC 6438).
                flow_label: self.source_port as u32,
                next_header: protocol::UDP,
                hop_limit: self.ttl,
                source,
                destination,
            }
            .write(packet, length),
            _ => return Err(Unwritable::MixedVersions),
        }
        .map_err(|_| Unwritable::DoesNotFit)?;
        let sum = self
            .has_checksum
            .then(|| pseudo_header(self.source, self.destination, protocol::UDP, length as u32));
        udp::write(&mut packet[header..], self.source_port, PORT, sum).map_err(|_| Unwritable::DoesNotFit)
    }
}

/// What came out of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    /// The other end of the tunnel.
    pub source: IpAddr,
    /// This end.
    pub destination: IpAddr,
    /// Port it was sent from.
    pub source_port: u16,
    /// Differentiated services codepoint of the outer header.
    pub dscp: u8,
    /// ECN codepoint of the outer header.
    pub ecn: Ecn,
    /// Time to live, or hop limit, of the outer header.
    pub ttl: u8,
    /// Whether the UDP checksum was computed, and is right.
    pub has_checksum: bool,
    /// Label stack and what it labels.
    pub payload: &'a [u8],
}

/// Why a packet is not one of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The IP header is malformed.
    Ip(ip::Error),
    /// The checksum of the IPv4 header is wrong.
    HeaderChecksum,
    /// It is a fragment; a tunnel's packets are not divided.
    Fragment,
    /// It is not UDP, or for another port.
    Other,
    /// The UDP header is malformed.
    Udp(udp::Error),
    /// The UDP checksum is wrong, or zero over IPv6 where that is refused.
    Checksum,
}

impl<'a> View<'a> {
    /// Checks a packet. `zero_over_ipv6` is taken only by a receiver that has been told so and
    /// compares both addresses with those of a tunnel (RFC 7510 section 3.1 d, RFC 6936).
    #[inline]
    pub fn new(packet: &'a [u8], zero_over_ipv6: ZeroChecksum) -> Result<View<'a>, Error> {
        let ip = ip::View::new(packet).map_err(Error::Ip)?;
        let zero = match ip {
            ip::View::V4(view) if !view.checksum_is_right() => return Err(Error::HeaderChecksum),
            ip::View::V4(_) => ZeroChecksum::Taken,
            ip::View::V6(_) => zero_over_ipv6,
        };
        let transport = ip.transport().map_err(Error::Ip)?;
        if transport.protocol != protocol::UDP {
            return Err(Error::Other);
        }
        if transport.fragment != Fragment::Whole {
            return Err(Error::Fragment);
        }
        let datagram = udp::View::new(transport.payload).map_err(Error::Udp)?;
        if datagram.destination() != PORT {
            return Err(Error::Other);
        }
        let (source, destination) = (ip.source(), ip.destination());
        let sum: Sum = pseudo_header(source, destination, protocol::UDP, datagram.length().into());
        if !datagram.checksum_is_right(sum, zero) {
            return Err(Error::Checksum);
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

    fn outer(is_v6: bool, has_checksum: bool) -> Outer {
        let address = |last| match is_v6 {
            false => IpAddr::from([192, 0, 2, last]),
            true => IpAddr::from([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
        };
        Outer {
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
    fn ports_stay_in_their_range_and_use_all_of_it() {
        let ports: BTreeSet<u16> = (0..1 << 14).map(source_port).collect();
        assert_eq!((ports.first(), ports.last()), (Some(&49_152), Some(&65_535)));
        assert_eq!(ports.len(), 1 << 14);
        // Every bit of the hash counts.
        for bit in 0..32 {
            assert_ne!(source_port(1 << bit), source_port(0), "bit {bit}");
        }
    }

    #[test]
    fn checksums_are_left_out_over_ipv6_only_by_agreement() {
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
            assert_eq!(View::new(&packet, ZeroChecksum::Taken), Ok(expected));
            let refused = is_v6 && !has_checksum;
            let strict = View::new(&packet, ZeroChecksum::Refused);
            assert_eq!(strict, if refused { Err(Error::Checksum) } else { Ok(expected) });
            // A damaged label is seen where there is a checksum.
            let mut damaged = packet.clone();
            *damaged.last_mut().unwrap() ^= 1;
            assert_eq!(View::new(&damaged, ZeroChecksum::Taken).is_err(), has_checksum);
        }
    }

    #[test]
    fn what_is_no_tunnel_packet_is_refused() {
        let outer = outer(false, true);
        let mut packet = [0; 32];
        outer.write(&mut packet).unwrap();
        let found = |change: fn(&mut [u8; 32])| {
            let mut packet = packet;
            change(&mut packet);
            packet[10..12].fill(0);
            let sum = crate::checksum::checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
            View::new(&packet, ZeroChecksum::Refused).map(|view| view.ttl)
        };
        assert_eq!(found(|_| {}), Ok(63));
        assert_eq!(found(|packet| packet[23] ^= 1), Err(Error::Other));
        assert_eq!(found(|packet| packet[9] = 6), Err(Error::Other));
        assert_eq!(found(|packet| packet[6] = 0x20), Err(Error::Fragment));
        assert_eq!(found(|packet| packet[7] = 1), Err(Error::Fragment));
        assert_eq!(
            found(|packet| packet[25] = 7),
            Err(Error::Udp(udp::Error::Length { claimed: 7, present: 12 }))
        );
        assert_eq!(found(|packet| packet[15] ^= 1), Err(Error::Checksum));
        let mut wrong = packet;
        wrong[8] ^= 1;
        assert_eq!(View::new(&wrong, ZeroChecksum::Taken), Err(Error::HeaderChecksum));
        assert_eq!(View::new(&[], ZeroChecksum::Taken), Err(Error::Ip(ip::Error::Short)));
        assert_eq!(outer.write(&mut [0; 27]), Err(Unwritable::DoesNotFit));
        assert_eq!(outer.write(&mut [0; 65_536]), Err(Unwritable::DoesNotFit));
        let mixed = Outer { destination: IpAddr::from([0; 16]), ..outer };
        assert_eq!(mixed.write(&mut packet), Err(Unwritable::MixedVersions));
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(
            is_v6: bool, has_checksum: bool, hash: u32, payload in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let outer = Outer { source_port: source_port(hash), ..outer(is_v6, has_checksum) };
            let mut packet = [&std::vec![0; outer.length()][..], &payload].concat();
            outer.write(&mut packet).unwrap();
            let view = View::new(&packet, ZeroChecksum::Taken).unwrap();
            prop_assert_eq!(view.payload, &payload[..]);
            prop_assert_eq!((view.source_port, view.has_checksum), (outer.source_port, has_checksum));
        }

        #[test]
        fn damage_never_panics(is_v6: bool, at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            let outer = outer(is_v6, true);
            let mut packet = std::vec![0; outer.length() + 12];
            outer.write(&mut packet).unwrap();
            let at = at.index(packet.len());
            packet[at] = byte;
            let cut = cut.index(packet.len() + 1);
            if let Ok(view) = View::new(&packet[..cut], ZeroChecksum::Taken) {
                prop_assert!(view.payload.len() <= 12);
            }
        }
    }
}
