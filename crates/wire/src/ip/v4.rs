//! IPv4 headers (RFC 791).

use super::{Ecn, Error, Fragment, Transport};
use crate::bytes::{put, u16_at};
use crate::checksum::{Sum, checksum, updated};
use core::net::Ipv4Addr;

/// Bytes of a header without options.
pub const HEADER: usize = 20;

pub(super) const DONT_FRAGMENT: u16 = 1 << 14;
pub(super) const MORE_FRAGMENTS: u16 = 1 << 13;

/// A packet whose header is whole and whose lengths agree with the bytes there are. The
/// header's checksum is for the caller to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    fixed: &'a [u8; HEADER],
    packet: &'a [u8],
}

impl<'a> View<'a> {
    /// The packet these bytes begin with.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<View<'a>, Error> {
        let fixed = bytes.first_chunk::<HEADER>().ok_or(Error::Short)?;
        if fixed[0] >> 4 != 4 {
            return Err(Error::Version(fixed[0] >> 4));
        }
        let header = header_length(fixed);
        let claimed = usize::from(u16_at(fixed, 2));
        if header < HEADER || header > claimed {
            return Err(Error::HeaderLength(fixed[0] & 0xf));
        }
        let packet = bytes.get(..claimed).ok_or(Error::TotalLength { claimed, present: bytes.len() })?;
        Ok(View { fixed, packet })
    }

    /// The packet, without what may have followed it in the buffer.
    #[inline]
    pub fn packet(&self) -> &'a [u8] {
        self.packet
    }

    /// Bytes of the header, its options included.
    #[inline]
    pub fn header_length(&self) -> usize {
        header_length(self.fixed)
    }

    /// The options; empty in nearly every packet.
    pub fn options(&self) -> &'a [u8] {
        &self.packet[HEADER..self.header_length()]
    }

    /// Whether the header's checksum is right.
    #[inline(always)]
    pub fn checksum_is_right(&self) -> bool {
        // Nearly every header has no options: its sum is five additions.
        let sum = match self.header_length() {
            HEADER => Sum::ZERO.bytes(self.fixed),
            length => of_all(&self.packet[..length]),
        };
        sum.folded() == 0xffff
    }

    /// DSCP and ECN in one byte.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        self.fixed[1]
    }

    /// Number that fragments of one datagram share.
    pub fn identification(&self) -> u16 {
        u16_at(self.fixed, 4)
    }

    /// Routers may not divide it.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        u16_at(self.fixed, 6) & DONT_FRAGMENT != 0
    }

    /// Where in its datagram the payload belongs, bytes.
    pub fn fragment_offset(&self) -> usize {
        usize::from(u16_at(self.fixed, 6) & 0x1fff) * 8
    }

    /// How much of its datagram it holds.
    #[inline]
    pub fn fragment(&self) -> Fragment {
        match u16_at(self.fixed, 6) & (MORE_FRAGMENTS | 0x1fff) {
            0 => Fragment::Whole,
            MORE_FRAGMENTS => Fragment::First,
            _ => Fragment::Later,
        }
    }

    /// Time to live.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.fixed[8]
    }

    /// Protocol of the payload, of [`super::protocol`].
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.fixed[9]
    }

    /// Sender.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        address(self.fixed, 12)
    }

    /// Receiver.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        address(self.fixed, 16)
    }

    /// What it carries.
    #[inline]
    pub fn transport(&self) -> Transport<'a> {
        let offset = self.header_length();
        Transport {
            protocol: self.protocol(),
            fragment: self.fragment(),
            offset,
            payload: &self.packet[offset..],
        }
    }
}

/// Out of the way of the headers that have none.
#[cold]
#[inline(never)]
fn of_all(header: &[u8]) -> Sum {
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

/// The part of a header a router changes. A right checksum stays right, and a wrong one
/// stays wrong, so that no damage is covered up.
#[derive(Debug)]
pub struct HeaderMut<'a>(&'a mut [u8; HEADER]);

impl<'a> HeaderMut<'a> {
    /// The header these bytes begin with; lengths are not looked at.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Result<HeaderMut<'a>, Error> {
        let fixed = bytes.first_chunk_mut::<HEADER>().ok_or(Error::Short)?;
        if fixed[0] >> 4 != 4 {
            return Err(Error::Version(fixed[0] >> 4));
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

    /// Counts a hop and gives what is left; `None`, and no change, where this was the last.
    #[inline]
    pub fn decrement_ttl(&mut self) -> Option<u8> {
        let left = self.0[8].checked_sub(1).filter(|left| *left > 0)?;
        self.set_ttl(left);
        Some(left)
    }
}

/// A header without options to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Differentiated services codepoint, 6 bits.
    pub dscp: u8,
    /// ECN codepoint.
    pub ecn: Ecn,
    /// Zero will do where routers may not fragment (RFC 6864).
    pub identification: u16,
    /// Routers may not divide it.
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload, of [`super::protocol`].
    pub protocol: u8,
    /// Sender.
    pub source: Ipv4Addr,
    /// Receiver.
    pub destination: Ipv4Addr,
}

impl Default for Header {
    /// An atomic datagram of nobody.
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

/// The buffer is too short for the header, or the payload too long for its length field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoesNotFit;

impl Header {
    /// Writes it before a payload of so many bytes.
    #[inline]
    pub fn write(&self, bytes: &mut [u8], payload: usize) -> Result<(), DoesNotFit> {
        let fixed = bytes.first_chunk_mut::<HEADER>().ok_or(DoesNotFit)?;
        let total = u16::try_from(HEADER + payload).map_err(|_| DoesNotFit)?;
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

    /// A header often used as an example of the checksum: UDP from 192.168.0.1 to .199.
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
        assert!(view.checksum_is_right() && view.dont_fragment());
        assert_eq!((view.ttl(), view.protocol(), view.options()), (64, 17, &[][..]));
        assert_eq!((view.source(), view.destination()), (header.source, header.destination));
        assert_eq!(view.transport().payload, &[0xff; 0x73 - 20]);
        assert_eq!(header.write(&mut bytes[..19], 0), Err(DoesNotFit));
        assert_eq!(header.write(&mut bytes, 65_516), Err(DoesNotFit));
    }

    #[test]
    fn lengths_are_held_against_the_bytes() {
        let mut bytes = [0; 0x74];
        bytes[..20].copy_from_slice(&EXAMPLE);
        assert_eq!(View::new(&bytes).unwrap().packet().len(), 0x73);
        let wrong = Error::TotalLength { claimed: 0x73, present: 0x72 };
        assert_eq!(View::new(&bytes[..0x72]), Err(wrong));
        bytes[0] = 0x44;
        assert_eq!(View::new(&bytes), Err(Error::HeaderLength(4)));
        bytes[0] = 0x4f;
        assert_eq!(View::new(&bytes).unwrap().options().len(), 40);
        bytes[3] = 59;
        assert_eq!(View::new(&bytes), Err(Error::HeaderLength(15)));
        bytes[0] = 0x65;
        assert_eq!(View::new(&bytes), Err(Error::Version(6)));
        assert_eq!(HeaderMut::new(&mut bytes).unwrap_err(), Error::Version(6));
        assert_eq!(HeaderMut::new(&mut bytes[..19]).unwrap_err(), Error::Short);
    }

    #[test]
    fn fragments_are_told_apart() {
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
    fn the_last_hop_is_told() {
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
        fn changes_keep_the_checksum_right(mut header: [u8; 20], dscp in 0_u8..64, ecn in 0_u8..4) {
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
        fn damage_is_not_covered_up(mut header: [u8; 20]) {
            header[0] = 0x45;
            prop_assume!(Sum::ZERO.bytes(&header).folded() != 0xffff);
            HeaderMut::new(&mut header).unwrap().set_ecn(Ecn::CongestionExperienced);
            prop_assert_ne!(Sum::ZERO.bytes(&header).folded(), 0xffff);
        }
    }
}
