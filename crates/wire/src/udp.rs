//! UDP datagrams (RFC 768) and the handling of zero checksums (RFC 6935, RFC 6936).

use crate::bytes::{put, u16_at};
use crate::checksum::Sum;

/// Length of the header, bytes.
pub const HEADER: usize = 8;

/// Reasons why bytes are not a valid UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpError {
    /// Bytes end within the header.
    Short,
    /// Length field below eight, or above the bytes available.
    Length {
        /// Length in the header.
        claimed: usize,
        /// Bytes available.
        present: usize,
    },
}

/// Handling of datagrams with a checksum of zero (no checksum computed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroChecksum {
    /// Accepted: over IPv4, and over IPv6 for tunnels that meet RFC 6936.
    Accepted,
    /// Rejected: over IPv6 in all other cases (RFC 8200 section 8.1).
    Rejected,
}

/// UDP datagram with a valid length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    header: &'a [u8; HEADER],
    datagram: &'a [u8],
}

impl<'a> View<'a> {
    /// Parses the datagram at the start of `bytes`. Fails for a first fragment, since the length field
    /// exceeds the fragment.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Result<View<'a>, UdpError> {
        let header = bytes.first_chunk::<HEADER>().ok_or(UdpError::Short)?;
        let claimed = usize::from(u16_at(header, 4));
        let datagram = bytes
            .get(..claimed)
            .filter(|datagram| datagram.len() >= HEADER)
            .ok_or(UdpError::Length { claimed, present: bytes.len() })?;
        Ok(View { header, datagram })
    }

    /// Returns the source port.
    #[inline]
    pub fn source(&self) -> u16 {
        u16_at(self.header, 0)
    }

    /// Returns the destination port.
    #[inline]
    pub fn destination(&self) -> u16 {
        u16_at(self.header, 2)
    }

    /// Returns the length of header and payload, bytes.
    #[inline]
    pub fn length(&self) -> u16 {
        u16_at(self.header, 4)
    }

    /// Returns the checksum field.
    pub fn checksum(&self) -> u16 {
        u16_at(self.header, 6)
    }

    /// Returns `true` if the checksum is valid. `pseudo_header` must be the sum for this datagram's
    /// [`length`](UdpDatagram::length).
    #[inline]
    pub fn is_checksum_valid(&self, pseudo_header: Sum, zero: ZeroChecksum) -> bool {
        match self.checksum() {
            0 => zero == ZeroChecksum::Accepted,
            _ => pseudo_header.bytes(self.datagram).folded() == 0xffff,
        }
    }

    /// Returns the payload.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.datagram[HEADER..]
    }
}

/// Error for a buffer shorter than the header, or longer than a datagram can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpLengthError;

/// Writes the header of a datagram that fills the buffer, with the payload already in place. Without a
/// `pseudo_header` (for the buffer's length) the checksum is zero. A computed checksum of zero is written as
/// 0xffff (RFC 768).
#[inline]
pub fn write(
    datagram: &mut [u8],
    source: u16,
    destination: u16,
    pseudo_header: Option<Sum>,
) -> Result<(), UdpLengthError> {
    let length = u16::try_from(datagram.len()).map_err(|_| UdpLengthError)?;
    let header = datagram.first_chunk_mut::<HEADER>().ok_or(UdpLengthError)?;
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
    fn fields_are_at_the_offsets_of_the_rfc() {
        let mut bytes = [0xaa; 12];
        write(&mut bytes[..11], 0x0102, 0x0304, None).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4, 0, 11, 0, 0, 0xaa, 0xaa, 0xaa, 0xaa]);
        let view = View::new(&bytes).unwrap();
        assert_eq!((view.source(), view.destination(), view.length()), (0x0102, 0x0304, 11));
        assert_eq!(view.payload(), [0xaa; 3]);
        assert_eq!(View::new(&bytes[..7]), Err(UdpError::Short));
        assert_eq!(View::new(&bytes[..10]), Err(UdpError::Length { claimed: 11, present: 10 }));
        bytes[5] = 7;
        assert_eq!(View::new(&bytes), Err(UdpError::Length { claimed: 7, present: 12 }));
        assert_eq!(write(&mut bytes[..7], 1, 2, None), Err(UdpLengthError));
        assert_eq!(write(&mut [0; 65_536], 1, 2, None), Err(UdpLengthError));
    }

    #[test]
    fn zero_checksums_are_accepted_only_where_allowed_and_never_computed() {
        let mut bytes = [0; 10];
        write(&mut bytes, 1, 2, None).unwrap();
        let view = View::new(&bytes).unwrap();
        assert!(view.is_checksum_valid(sum(10), ZeroChecksum::Accepted));
        assert!(!view.is_checksum_valid(sum(10), ZeroChecksum::Rejected));
        // A payload chosen such that the sum is all ones and its complement zero.
        write(&mut bytes, 1, 2, Some(sum(10))).unwrap();
        let checksum = View::new(&bytes).unwrap().checksum();
        bytes[8..].copy_from_slice(&checksum.to_be_bytes());
        write(&mut bytes, 1, 2, Some(sum(10))).unwrap();
        let view = View::new(&bytes).unwrap();
        assert_eq!(view.checksum(), 0xffff);
        assert!(view.is_checksum_valid(sum(10), ZeroChecksum::Rejected));
    }

    proptest! {
        #[test]
        fn every_flipped_bit_is_detected(
            mut bytes in prop::collection::vec(any::<u8>(), HEADER..80), source: u16, destination: u16, bit: prop::sample::Index,
        ) {
            let sum = sum(bytes.len());
            write(&mut bytes, source, destination, Some(sum)).unwrap();
            let view = View::new(&bytes).unwrap();
            prop_assert!(view.is_checksum_valid(sum, ZeroChecksum::Rejected));
            prop_assert_eq!((view.source(), view.destination()), (source, destination));
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            if let Ok(view) = View::new(&bytes) {
                prop_assert!(!view.is_checksum_valid(sum, ZeroChecksum::Rejected));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(view) = View::new(&bytes) {
                prop_assert_eq!(view.payload().len() + HEADER, usize::from(view.length()));
                view.is_checksum_valid(Sum::ZERO, ZeroChecksum::Accepted);
            }
        }
    }
}
