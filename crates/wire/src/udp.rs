//! UDP (RFC 768), and when a checksum of zero is taken (RFC 6935, RFC 6936).

use crate::bytes::{put, u16_at};
use crate::checksum::Sum;

/// Bytes of the header.
pub const HEADER: usize = 8;

/// Why bytes are no datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// They end within the header.
    Short,
    /// The length is below eight, or beyond the bytes there are.
    Length {
        /// What it says.
        claimed: usize,
        /// What there is.
        present: usize,
    },
}

/// Whether a checksum of zero, which says that none was computed, is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroChecksum {
    /// As over IPv4, and on a tunnel's port over IPv6 where the tunnel meets RFC 6936.
    Taken,
    /// As over IPv6 otherwise (RFC 8200 section 8.1).
    Refused,
}

/// A datagram whose length agrees with the bytes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    header: &'a [u8; HEADER],
    datagram: &'a [u8],
}

impl<'a> View<'a> {
    /// The datagram these bytes begin with; a first fragment is none, since its length says more.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<View<'a>, Error> {
        let header = bytes.first_chunk::<HEADER>().ok_or(Error::Short)?;
        let claimed = usize::from(u16_at(header, 4));
        let datagram = bytes
            .get(..claimed)
            .filter(|datagram| datagram.len() >= HEADER)
            .ok_or(Error::Length { claimed, present: bytes.len() })?;
        Ok(View { header, datagram })
    }

    /// Port of the sender.
    #[inline]
    pub fn source(&self) -> u16 {
        u16_at(self.header, 0)
    }

    /// Port of the receiver.
    #[inline]
    pub fn destination(&self) -> u16 {
        u16_at(self.header, 2)
    }

    /// Header and payload, bytes.
    #[inline]
    pub fn length(&self) -> u16 {
        u16_at(self.header, 4)
    }

    /// The checksum as it stands.
    pub fn checksum(&self) -> u16 {
        u16_at(self.header, 6)
    }

    /// Whether the checksum is right; `pseudo_header` is of this datagram's [`View::length`].
    #[inline]
    pub fn checksum_is_right(&self, pseudo_header: Sum, zero: ZeroChecksum) -> bool {
        match self.checksum() {
            0 => zero == ZeroChecksum::Taken,
            _ => pseudo_header.bytes(self.datagram).folded() == 0xffff,
        }
    }

    /// The payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.datagram[HEADER..]
    }
}

/// The buffer is shorter than the header, or longer than a datagram can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoesNotFit;

/// Writes the header of a datagram that fills the buffer and whose payload is in place. Without
/// a `pseudo_header`, of the buffer's length, the checksum is zero; a computed zero is written
/// as ones (RFC 768).
#[inline]
pub fn write(
    datagram: &mut [u8],
    source: u16,
    destination: u16,
    pseudo_header: Option<Sum>,
) -> Result<(), DoesNotFit> {
    let length = u16::try_from(datagram.len()).map_err(|_| DoesNotFit)?;
    let header = datagram.first_chunk_mut::<HEADER>().ok_or(DoesNotFit)?;
    put(header, 0, &source.to_be_bytes());
    put(header, 2, &destination.to_be_bytes());
    put(header, 4, &length.to_be_bytes());
    put(header, 6, &[0, 0]);
    if let Some(sum) = pseudo_header {
        let checksum = match sum.bytes(datagram).checksum() {
            0 => 0xffff,
            checksum => checksum,
        };
        put(datagram, 6, &checksum.to_be_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::{protocol, pseudo_header};
    use core::net::IpAddr;
    use proptest::prelude::*;

    fn sum(length: usize) -> Sum {
        let address = |last| IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        pseudo_header(address(1), address(2), protocol::UDP, length as u32)
    }

    #[test]
    fn fields_stand_where_the_rfc_draws_them() {
        let mut bytes = [0xaa; 12];
        write(&mut bytes[..11], 0x0102, 0x0304, None).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 0, 11, 0, 0, 0xaa, 0xaa, 0xaa, 0xaa]);
        let view = View::new(&bytes).unwrap();
        assert_eq!((view.source(), view.destination(), view.length()), (0x0102, 0x0304, 11));
        assert_eq!(view.payload(), [0xaa; 3]);
        assert_eq!(View::new(&bytes[..7]), Err(Error::Short));
        assert_eq!(View::new(&bytes[..10]), Err(Error::Length { claimed: 11, present: 10 }));
        bytes[5] = 7;
        assert_eq!(View::new(&bytes), Err(Error::Length { claimed: 7, present: 12 }));
        assert_eq!(write(&mut bytes[..7], 1, 2, None), Err(DoesNotFit));
        assert_eq!(write(&mut [0; 65_536], 1, 2, None), Err(DoesNotFit));
    }

    #[test]
    fn zero_is_taken_only_where_allowed_and_never_computed() {
        let mut bytes = [0; 10];
        write(&mut bytes, 1, 2, None).unwrap();
        let view = View::new(&bytes).unwrap();
        assert!(view.checksum_is_right(sum(10), ZeroChecksum::Taken));
        assert!(!view.checksum_is_right(sum(10), ZeroChecksum::Refused));
        // A payload chosen so that the sum is all ones, and its complement zero.
        write(&mut bytes, 1, 2, Some(sum(10))).unwrap();
        let checksum = View::new(&bytes).unwrap().checksum();
        bytes[8..].copy_from_slice(&checksum.to_be_bytes());
        write(&mut bytes, 1, 2, Some(sum(10))).unwrap();
        let view = View::new(&bytes).unwrap();
        assert_eq!(view.checksum(), 0xffff);
        assert!(view.checksum_is_right(sum(10), ZeroChecksum::Refused));
    }

    proptest! {
        #[test]
        fn every_flipped_bit_is_seen(
            mut bytes in prop::collection::vec(any::<u8>(), HEADER..80), source: u16, destination: u16, bit: prop::sample::Index,
        ) {
            let sum = sum(bytes.len());
            write(&mut bytes, source, destination, Some(sum)).unwrap();
            let view = View::new(&bytes).unwrap();
            prop_assert!(view.checksum_is_right(sum, ZeroChecksum::Refused));
            prop_assert_eq!((view.source(), view.destination()), (source, destination));
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(view) = View::new(&bytes) {
                prop_assert!(!view.checksum_is_right(sum, ZeroChecksum::Refused));
            }
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(view) = View::new(&bytes) {
                prop_assert_eq!(view.payload().len() + HEADER, usize::from(view.length()));
                view.checksum_is_right(Sum::ZERO, ZeroChecksum::Taken);
            }
        }
    }
}
