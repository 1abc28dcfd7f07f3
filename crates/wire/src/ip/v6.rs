//! IPv6 headers (RFC 8200) and the parsing of extension headers.

use super::{Ecn, Fragment, IpError, TransportPayload, protocol};
use crate::bytes::{put, u16_at, u32_at};
use core::net::Ipv6Addr;

/// Length of the fixed header, bytes.
pub const HEADER: usize = 40;
/// Limit on extension headers in a packet. RFC 8200 section 4.1 allows seven: each kind once, and
/// destination options twice.
pub const MAX_EXTENSIONS: usize = 8;

/// IPv6 packet with a complete fixed header and a payload length within the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    fixed: &'a [u8; HEADER],
    packet: &'a [u8],
}

impl<'a> View<'a> {
    /// Parses the packet at the start of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<View<'a>, IpError> {
        let fixed = bytes.first_chunk::<HEADER>().ok_or(IpError::Short)?;
        if fixed[0] >> 4 != 6 {
            return Err(IpError::Version(fixed[0] >> 4));
        }
        let claimed = HEADER + usize::from(u16_at(fixed, 4));
        let packet = bytes.get(..claimed).ok_or(IpError::TotalLength { claimed, present: bytes.len() })?;
        Ok(View { fixed, packet })
    }

    /// Returns the packet without any bytes after it in the buffer.
    #[inline]
    pub fn packet(&self) -> &'a [u8] {
        self.packet
    }

    /// Returns the traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.fixed[0] << 4 | self.fixed[1] >> 4
    }

    /// Returns the flow label, 20 bits (RFC 6437).
    #[inline]
    pub fn flow_label(&self) -> u32 {
        u32_at(self.fixed, 0) & 0xf_ffff
    }

    /// Returns the next-header field of the fixed header, one of [`protocol`].
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.fixed[6]
    }

    /// Returns the hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.fixed[7]
    }

    /// Returns the source address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        address(self.fixed, 8)
    }

    /// Returns the destination address.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        address(self.fixed, 24)
    }

    /// Returns the transport payload after the extension headers.
    #[inline]
    pub fn transport(&self) -> Result<TransportPayload<'a>, IpError> {
        let mut kind = self.next_header();
        let mut offset = HEADER;
        let mut fragment = Fragment::Whole;
        for _ in 0..=MAX_EXTENSIONS {
            let units = match kind {
                protocol::HOP_BY_HOP
                | protocol::ROUTING
                | protocol::DESTINATION_OPTIONS
                | protocol::MOBILITY => 8,
                protocol::AUTHENTICATION => 4,
                protocol::FRAGMENT => 0,
                _ => {
                    return Ok(TransportPayload {
                        protocol: kind,
                        fragment,
                        offset,
                        payload: &self.packet[offset..],
                    });
                }
            };
            let &[next, length, high, low] =
                self.packet[offset..].first_chunk::<4>().ok_or(IpError::Short)?;
            // Length unit: 8 bytes beyond the first 8 (RFC 8200 section 4), 4 bytes in the authentication
            // header (RFC 4302).
            offset += 8 + usize::from(length) * units;
            if units == 0 {
                fragment = match u16::from_be_bytes([high, low]) & 0xfff9 {
                    // Atomic fragment (RFC 6946).
                    0 => fragment,
                    1 => Fragment::First,
                    _ => Fragment::Later,
                };
            }
            if offset > self.packet.len() {
                return Err(IpError::Short);
            }
            kind = next;
            if fragment == Fragment::Later {
                // The rest is data from the middle of the datagram, not another header.
                return Ok(TransportPayload {
                    protocol: kind,
                    fragment,
                    offset,
                    payload: &self.packet[offset..],
                });
            }
        }
        Err(IpError::TooManyExtensions)
    }
}

#[inline]
fn address(fixed: &[u8; HEADER], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&fixed[at..at + 16]);
    octets.into()
}

/// Mutable fixed header, for the fields a router changes.
#[derive(Debug)]
pub struct HeaderMut<'a>(&'a mut [u8; HEADER]);

impl<'a> HeaderMut<'a> {
    /// Checks the version in the header at the start of `bytes`. The payload length is not checked.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Result<HeaderMut<'a>, IpError> {
        let fixed = bytes.first_chunk_mut::<HEADER>().ok_or(IpError::Short)?;
        if fixed[0] >> 4 != 6 {
            return Err(IpError::Version(fixed[0] >> 4));
        }
        Ok(HeaderMut(fixed))
    }

    /// Returns the traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.0[0] << 4 | self.0[1] >> 4
    }

    /// Sets DSCP and ECN.
    #[inline]
    pub fn set_traffic_class(&mut self, class: u8) {
        self.0[0] = 0x60 | class >> 4;
        self.0[1] = class << 4 | self.0[1] & 0xf;
    }

    /// Sets the differentiated services codepoint, 6 bits.
    #[inline]
    pub fn set_dscp(&mut self, dscp: u8) {
        self.set_traffic_class(dscp << 2 | self.0[1] >> 4 & 3);
    }

    /// Sets the ECN codepoint.
    #[inline]
    pub fn set_ecn(&mut self, ecn: Ecn) {
        self.0[1] = self.0[1] & !0x30 | (ecn as u8) << 4;
    }

    /// Sets the hop limit.
    #[inline]
    pub fn set_hop_limit(&mut self, hop_limit: u8) {
        self.0[7] = hop_limit;
    }

    /// Decrements the hop limit and returns the new value. Returns `None` and changes nothing if it would
    /// become zero.
    #[inline]
    pub fn decrement_hop_limit(&mut self) -> Option<u8> {
        let left = self.0[7].checked_sub(1).filter(|left| *left > 0)?;
        self.set_hop_limit(left);
        Some(left)
    }
}

/// IPv6 fixed header to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Differentiated services codepoint, 6 bits.
    pub dscp: u8,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Next-header field, one of [`protocol`].
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
}

impl Default for Header {
    /// Header with unspecified addresses, no payload protocol and a hop limit of 64.
    fn default() -> Header {
        Header {
            dscp: 0,
            ecn: Ecn::NotCapable,
            flow_label: 0,
            next_header: protocol::NO_NEXT_HEADER,
            hop_limit: 64,
            source: Ipv6Addr::UNSPECIFIED,
            destination: Ipv6Addr::UNSPECIFIED,
        }
    }
}

pub use super::v4::IpLengthError;

impl Header {
    /// Writes the header of a packet with `payload` bytes after the fixed header.
    #[inline]
    pub fn write(&self, bytes: &mut [u8], payload: usize) -> Result<(), IpLengthError> {
        let fixed = bytes.first_chunk_mut::<HEADER>().ok_or(IpLengthError)?;
        let payload = u16::try_from(payload).map_err(|_| IpLengthError)?;
        let class = u32::from(self.dscp << 2 | self.ecn as u8);
        put(fixed, 0, &(6 << 28 | class << 20 | self.flow_label & 0xf_ffff).to_be_bytes());
        put(fixed, 4, &payload.to_be_bytes());
        put(fixed, 6, &[self.next_header, self.hop_limit]);
        put(fixed, 8, &self.source.octets());
        put(fixed, 24, &self.destination.octets());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn packet(next_header: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = std::vec![0; HEADER];
        Header { next_header, ..Header::default() }.write(&mut bytes, payload.len()).unwrap();
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn fields_are_at_the_offsets_of_the_rfc() {
        let header = Header {
            dscp: 0b10_1110,
            ecn: Ecn::Capable1,
            flow_label: 0x12345,
            next_header: 17,
            hop_limit: 9,
            source: Ipv6Addr::from([1; 16]),
            destination: Ipv6Addr::from([2; 16]),
        };
        let mut bytes = [0xff; 50];
        header.write(&mut bytes, 10).unwrap();
        let expected = [0x6b, 0x91, 0x23, 0x45, 0, 10, 17, 9];
        assert_eq!((&bytes[..8], &bytes[8..24], &bytes[24..40]), (&expected[..], &[1; 16][..], &[2; 16][..]));
        let view = View::new(&bytes).unwrap();
        assert_eq!((view.traffic_class(), view.flow_label()), (0b1011_1001, 0x12345));
        assert_eq!((view.next_header(), view.hop_limit()), (17, 9));
        assert_eq!((view.source(), view.destination()), (header.source, header.destination));
        assert_eq!(View::new(&bytes[..49]), Err(IpError::TotalLength { claimed: 50, present: 49 }));
        assert_eq!(header.write(&mut bytes[..39], 0), Err(IpLengthError));
        assert_eq!(header.write(&mut bytes, 65_536), Err(IpLengthError));
    }

    #[test]
    fn extension_headers_are_skipped() {
        let options = [protocol::ROUTING, 0, 0, 0, 0, 0, 0, 0];
        let routing = [protocol::AUTHENTICATION, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        // RFC 4302: a length of 4 is six 4-byte words.
        let authentication: Vec<u8> = [&[protocol::UDP, 4][..], &[0; 22]].concat();
        let datagram = [0, 1, 0, 2, 0, 8, 0, 0];
        let chain = [&options[..], &routing, &authentication, &datagram].concat();
        let bytes = packet(protocol::HOP_BY_HOP, &chain);
        let transport = View::new(&bytes).unwrap().transport().unwrap();
        assert_eq!((transport.protocol, transport.offset), (protocol::UDP, 40 + 8 + 16 + 24));
        assert_eq!((transport.ports(), transport.fragment), (Some((1, 2)), Fragment::Whole));
        for length in [0, 7, 8, 23, 24, 47] {
            let bytes = packet(protocol::HOP_BY_HOP, &chain[..length]);
            assert_eq!(View::new(&bytes).unwrap().transport(), Err(IpError::Short), "{length}");
        }
        let endless = [protocol::DESTINATION_OPTIONS, 0, 0, 0, 0, 0, 0, 0].repeat(20);
        let bytes = packet(protocol::DESTINATION_OPTIONS, &endless);
        assert_eq!(View::new(&bytes).unwrap().transport(), Err(IpError::TooManyExtensions));
        // Exactly the limit.
        let mut longest = [protocol::DESTINATION_OPTIONS, 0, 0, 0, 0, 0, 0, 0].repeat(MAX_EXTENSIONS);
        longest[8 * (MAX_EXTENSIONS - 1)] = protocol::TCP;
        let bytes = packet(protocol::DESTINATION_OPTIONS, &longest);
        assert_eq!(View::new(&bytes).unwrap().transport().unwrap().protocol, protocol::TCP);
    }

    #[test]
    fn fragments_are_classified() {
        for (field, expected) in
            [(0_u16, Fragment::Whole), (1, Fragment::First), (9, Fragment::Later), (8, Fragment::Later)]
        {
            let [high, low] = field.to_be_bytes();
            let bytes = packet(protocol::FRAGMENT, &[protocol::UDP, 0, high, low, 0, 0, 0, 1, 0, 5, 0, 6]);
            let transport = View::new(&bytes).unwrap().transport().unwrap();
            assert_eq!((transport.protocol, transport.fragment), (protocol::UDP, expected));
            let ports = (expected != Fragment::Later).then_some((5, 6));
            assert_eq!((transport.ports(), transport.payload), (ports, &[0, 5, 0, 6][..]));
        }
    }

    proptest! {
        #[test]
        fn changes_touch_nothing_else(mut header: [u8; 40], class: u8, dscp in 0_u8..64, ecn in 0_u8..4) {
            header[0] = 0x60 | header[0] & 0xf;
            header[4..6].fill(0);
            let before = header;
            let view = View::new(&before).unwrap();
            let mut change = HeaderMut::new(&mut header).unwrap();
            change.set_dscp(dscp);
            change.set_ecn(Ecn::from_bits(ecn));
            let left = change.decrement_hop_limit();
            let after = View::new(&header).unwrap();
            prop_assert_eq!(after.traffic_class(), dscp << 2 | ecn);
            prop_assert_eq!(after.flow_label(), view.flow_label());
            prop_assert_eq!(after.hop_limit(), left.unwrap_or(view.hop_limit()));
            prop_assert_eq!(left.is_none(), view.hop_limit() < 2);
            HeaderMut::new(&mut header).unwrap().set_traffic_class(class);
            prop_assert_eq!(View::new(&header).unwrap().traffic_class(), class);
            prop_assert_eq!((&header[2..7], &header[8..]), (&before[2..7], &before[8..]));
        }
    }
}
