//! IPv4 headers (RFC 791).

use super::{Ecn, Fragment, IpError, TransportPayload};
use crate::bytes::{put, u16_at};
use crate::checksum::{Sum, checksum, updated};
use core::net::Ipv4Addr;

/// Length of a header without options, bytes.
pub const HEADER: usize = 20;

pub(super) const DONT_FRAGMENT: u16 = 1 << 14;
pub(super) const MORE_FRAGMENTS: u16 = 1 << 13;

/// IPv4 packet with a complete header and lengths within the buffer. The caller verifies the header
/// checksum.
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
        if fixed[0] >> 4 != 4 {
            return Err(IpError::Version(fixed[0] >> 4));
        }
        let header = header_length(fixed);
        let claimed = usize::from(u16_at(fixed, 2));
        if header < HEADER || header > claimed {
            return Err(IpError::HeaderLength(fixed[0] & 0xf));
        }
        let packet = bytes.get(..claimed).ok_or(IpError::TotalLength { claimed, present: bytes.len() })?;
        Ok(View { fixed, packet })
    }

    /// Returns the packet without any bytes after it in the buffer.
    #[inline]
    pub fn packet(&self) -> &'a [u8] {
        self.packet
    }

    /// Returns the header length with options, bytes.
    #[inline]
    pub fn header_length(&self) -> usize {
        header_length(self.fixed)
    }

    /// Returns the options; nearly always empty.
    pub fn options(&self) -> &'a [u8] {
        &self.packet[HEADER..self.header_length()]
    }

    /// Returns `true` if the header checksum is valid.
    #[inline(always)]
    pub fn is_checksum_valid(&self) -> bool {
        // Nearly every header is without options; its sum takes five additions.
        let sum = match self.header_length() {
            HEADER => Sum::ZERO.bytes(self.fixed),
            length => sum_with_options(&self.packet[..length]),
        };
        sum.folded() == 0xffff
    }

    /// Returns the traffic class: DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.fixed[1]
    }

    /// Returns the identification, shared by all fragments of a datagram.
    pub fn identification(&self) -> u16 {
        u16_at(self.fixed, 4)
    }

    /// Returns the Don't Fragment bit.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        u16_at(self.fixed, 6) & DONT_FRAGMENT != 0
    }

    /// Returns the offset of the payload within the datagram, bytes.
    pub fn fragment_offset(&self) -> usize {
        usize::from(u16_at(self.fixed, 6) & 0x1fff) * 8
    }

    /// Returns the part of the datagram that the packet carries.
    #[inline]
    pub fn fragment(&self) -> Fragment {
        match u16_at(self.fixed, 6) & (MORE_FRAGMENTS | 0x1fff) {
            0 => Fragment::Whole,
            MORE_FRAGMENTS => Fragment::First,
            _ => Fragment::Later,
        }
    }

    /// Returns the time to live.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.fixed[8]
    }

    /// Returns the protocol of the payload, one of [`super::protocol`].
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.fixed[9]
    }

    /// Returns the source address.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        address(self.fixed, 12)
    }

    /// Returns the destination address.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        address(self.fixed, 16)
    }

    /// Returns the transport payload.
    #[inline]
    pub fn transport(&self) -> TransportPayload<'a> {
        let offset = self.header_length();
        TransportPayload {
            protocol: self.protocol(),
            fragment: self.fragment(),
            offset,
            payload: &self.packet[offset..],
        }
    }
}

/// Sum over a header with options, out of line to keep the common case small.
#[cold]
#[inline(never)]
fn sum_with_options(header: &[u8]) -> Sum {
    Sum::ZERO.bytes(header)
}

#[inline]
fn header_length(fixed: &[u8; HEADER]) -> usize {
    usize::from(fixed[0] & 0xf) * 4
}

#[inline]
fn address(fixed: &[u8; HEADER], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3])
}

/// Mutable IPv4 header, for the fields a router changes. The checksum is updated incrementally: a valid one
/// stays valid and an invalid one invalid, so that corruption is not hidden.
#[derive(Debug)]
pub struct HeaderMut<'a>(&'a mut [u8; HEADER]);

impl<'a> HeaderMut<'a> {
    /// Checks the version in the header at the start of `bytes`. Lengths are not checked.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Result<HeaderMut<'a>, IpError> {
        let fixed = bytes.first_chunk_mut::<HEADER>().ok_or(IpError::Short)?;
        if fixed[0] >> 4 != 4 {
            return Err(IpError::Version(fixed[0] >> 4));
        }
        Ok(HeaderMut(fixed))
    }

    #[inline(always)]
    fn set_word(&mut self, at: usize, word: u16) {
        let checksum = updated(u16_at(self.0, 10), u16_at(self.0, at), word);
        put(self.0, at, &word.to_be_bytes());
        put(self.0, 10, &checksum.to_be_bytes());
    }

    /// Sets DSCP and ECN.
    #[inline]
    pub fn set_traffic_class(&mut self, class: u8) {
        self.set_word(0, u16::from_be_bytes([self.0[0], class]));
    }

    /// Sets the differentiated services codepoint, 6 bits.
    #[inline]
    pub fn set_dscp(&mut self, dscp: u8) {
        self.set_traffic_class(dscp << 2 | self.0[1] & 3);
    }

    /// Sets the ECN codepoint.
    #[inline]
    pub fn set_ecn(&mut self, ecn: Ecn) {
        self.set_traffic_class(self.0[1] & !3 | ecn as u8);
    }

    /// Sets the time to live.
    #[inline]
    pub fn set_ttl(&mut self, ttl: u8) {
        self.set_word(8, u16::from_be_bytes([ttl, self.0[9]]));
    }

    /// Decrements the TTL and returns the new value. Returns `None` and changes nothing if it would become
    /// zero.
    #[inline]
    pub fn decrement_ttl(&mut self) -> Option<u8> {
        let left = self.0[8].checked_sub(1).filter(|left| *left > 0)?;
        self.set_ttl(left);
        Some(left)
    }
}

/// IPv4 header without options, to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Differentiated services codepoint, 6 bits.
    pub dscp: u8,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// Identification; may be zero if the packet must not be fragmented (RFC 6864).
    pub identification: u16,
    /// Don't Fragment bit.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload, one of [`super::protocol`].
    pub protocol: u8,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
}

impl Default for Header {
    /// Header of an atomic datagram with unspecified addresses and a TTL of 64.
    fn default() -> Header {
        Header {
            dscp: 0,
            ecn: Ecn::NotCapable,
            identification: 0,
            dont_fragment: true,
            ttl: 64,
            protocol: 0,
            source: Ipv4Addr::UNSPECIFIED,
            destination: Ipv4Addr::UNSPECIFIED,
        }
    }
}

/// Error for a buffer shorter than the header, or a payload too long for the length field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpLengthError;

impl Header {
    /// Writes the header of a packet with `payload` bytes after the header.
    #[inline]
    pub fn write(&self, bytes: &mut [u8], payload: usize) -> Result<(), IpLengthError> {
        let fixed = bytes.first_chunk_mut::<HEADER>().ok_or(IpLengthError)?;
        let total = u16::try_from(HEADER + payload).map_err(|_| IpLengthError)?;
        fixed[0] = 0x45;
        fixed[1] = self.dscp << 2 | self.ecn as u8;
        put(fixed, 2, &total.to_be_bytes());
        put(fixed, 4, &self.identification.to_be_bytes());
        put(fixed, 6, &(if self.dont_fragment { DONT_FRAGMENT } else { 0 }).to_be_bytes());
        fixed[8] = self.ttl;
        fixed[9] = self.protocol;
        put(fixed, 10, &[0, 0]);
        put(fixed, 12, &self.source.octets());
        put(fixed, 16, &self.destination.octets());
        let checksum = checksum(fixed);
        put(fixed, 10, &checksum.to_be_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Common textbook example of the checksum: UDP from 192.168.0.1 to 192.168.0.199.
    const EXAMPLE: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01, 0xc0,
        0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn a_known_header_is_written_and_read() {
        let header = Header {
            protocol: 17,
            source: [192, 168, 0, 1].into(),
            destination: [192, 168, 0, 199].into(),
            ..Header::default()
        };
        let mut bytes = [0xff; 0x73];
        header.write(&mut bytes, 0x73 - 20).unwrap();
        assert_eq!(bytes[..20], EXAMPLE);
        let view = View::new(&bytes).unwrap();
        assert!(view.is_checksum_valid() && view.dont_fragment());
        assert_eq!((view.ttl(), view.protocol(), view.options()), (64, 17, &[][..]));
        assert_eq!((view.source(), view.destination()), (header.source, header.destination));
        assert_eq!(view.transport().payload, &[0xff; 0x73 - 20]);
        assert_eq!(header.write(&mut bytes[..19], 0), Err(IpLengthError));
        assert_eq!(header.write(&mut bytes, 65_516), Err(IpLengthError));
    }

    #[test]
    fn lengths_are_checked_against_the_buffer() {
        let mut bytes = [0; 0x74];
        bytes[..20].copy_from_slice(&EXAMPLE);
        assert_eq!(View::new(&bytes).unwrap().packet().len(), 0x73);
        let wrong = IpError::TotalLength { claimed: 0x73, present: 0x72 };
        assert_eq!(View::new(&bytes[..0x72]), Err(wrong));
        bytes[0] = 0x44;
        assert_eq!(View::new(&bytes), Err(IpError::HeaderLength(4)));
        bytes[0] = 0x4f;
        assert_eq!(View::new(&bytes).unwrap().options().len(), 40);
        bytes[3] = 59;
        assert_eq!(View::new(&bytes), Err(IpError::HeaderLength(15)));
        bytes[0] = 0x65;
        assert_eq!(View::new(&bytes), Err(IpError::Version(6)));
        assert_eq!(HeaderMut::new(&mut bytes).unwrap_err(), IpError::Version(6));
        assert_eq!(HeaderMut::new(&mut bytes[..19]).unwrap_err(), IpError::Short);
    }

    #[test]
    fn fragments_are_classified() {
        for (field, expected) in [
            (0_u16, Fragment::Whole),
            (0x4000, Fragment::Whole),
            (0x2000, Fragment::First),
            (0x2001, Fragment::Later),
            (0x00b9, Fragment::Later),
        ] {
            let mut bytes = [0; 0x73];
            bytes[..20].copy_from_slice(&EXAMPLE);
            bytes[6..8].copy_from_slice(&field.to_be_bytes());
            let view = View::new(&bytes).unwrap();
            assert_eq!(view.fragment(), expected, "{field:#06x}");
            assert_eq!(view.fragment_offset(), usize::from(field & 0x1fff) * 8);
            assert_eq!(view.transport().ports().is_some(), expected != Fragment::Later);
        }
    }

    #[test]
    fn ttl_does_not_reach_zero() {
        let mut bytes = EXAMPLE;
        let mut header = HeaderMut::new(&mut bytes).unwrap();
        header.set_ttl(2);
        assert_eq!(header.decrement_ttl(), Some(1));
        assert_eq!(header.decrement_ttl(), None);
        header.set_ttl(0);
        assert_eq!(header.decrement_ttl(), None);
        header.set_ttl(64);
        assert_eq!(bytes, EXAMPLE);
    }

    proptest! {
        #[test]
        fn changes_keep_the_checksum_valid(mut header: [u8; 20], dscp in 0_u8..64, ecn in 0_u8..4) {
            (header[0], header[10], header[11]) = (0x45, 0, 0);
            let right = checksum(&header);
            header[10..12].copy_from_slice(&right.to_be_bytes());
            let before = header;
            let mut change = HeaderMut::new(&mut header).unwrap();
            change.set_dscp(dscp);
            change.set_ecn(Ecn::from_bits(ecn));
            let left = change.decrement_ttl();
            prop_assert_eq!(Sum::ZERO.bytes(&header).folded(), 0xffff);
            prop_assert_eq!(header[1], dscp << 2 | ecn);
            prop_assert_eq!(header[8], left.unwrap_or(before[8]));
            prop_assert_eq!(left.is_none(), before[8] < 2);
            prop_assert_eq!((&header[2..8], header[9], &header[12..]), (&before[2..8], before[9], &before[12..]));
        }

        #[test]
        fn changes_do_not_hide_corruption(mut header: [u8; 20]) {
            header[0] = 0x45;
            prop_assume!(Sum::ZERO.bytes(&header).folded() != 0xffff);
            HeaderMut::new(&mut header).unwrap().set_ecn(Ecn::CongestionExperienced);
            prop_assert_ne!(Sum::ZERO.bytes(&header).folded(), 0xffff);
        }
    }
}
