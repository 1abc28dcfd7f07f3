//! TCP segments (RFC 9293): the fields a router reads, and MSS clamping for tunnels.

use crate::bytes::{put, u16_at, u32_at};
use crate::checksum::updated;

/// Length of a header without options, bytes.
pub const HEADER: usize = 20;

/// Flag bits.
pub mod flag {
    /// End of the sender's data.
    pub const FIN: u8 = 0x01;
    /// Start of a connection.
    pub const SYN: u8 = 0x02;
    /// Reset of a connection.
    pub const RST: u8 = 0x04;
    /// Push: immediate delivery to the application.
    pub const PSH: u8 = 0x08;
    /// Valid acknowledgment number.
    pub const ACK: u8 = 0x10;
    /// Congestion window reduced (RFC 3168).
    pub const CWR: u8 = 0x80;
}

/// Option kinds.
pub mod option {
    /// End of options.
    pub const END: u8 = 0;
    /// No-operation, one byte of padding.
    pub const NO_OPERATION: u8 = 1;
    /// Maximum segment size, 4 bytes with kind and length.
    pub const MAXIMUM_SEGMENT_SIZE: u8 = 2;
}

/// Reasons why bytes are not a valid TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpHeaderError {
    /// Bytes end within the header.
    Short,
    /// Data offset below five words, or beyond the bytes available.
    DataOffset(u8),
}

/// TCP segment with a complete header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    fixed: &'a [u8; HEADER],
    segment: &'a [u8],
}

impl<'a> View<'a> {
    /// Parses a segment that fills `segment`.
    #[inline]
    pub fn new(segment: &'a [u8]) -> Result<View<'a>, TcpHeaderError> {
        let fixed = segment.first_chunk::<HEADER>().ok_or(TcpHeaderError::Short)?;
        let words = fixed[12] >> 4;
        if !(HEADER..=segment.len()).contains(&(usize::from(words) * 4)) {
            return Err(TcpHeaderError::DataOffset(words));
        }
        Ok(View { fixed, segment })
    }

    /// Returns the source port.
    #[inline]
    pub fn source(&self) -> u16 {
        u16_at(self.fixed, 0)
    }

    /// Returns the destination port.
    #[inline]
    pub fn destination(&self) -> u16 {
        u16_at(self.fixed, 2)
    }

    /// Returns the sequence number of the first byte.
    pub fn sequence(&self) -> u32 {
        u32_at(self.fixed, 4)
    }

    /// Returns the flags, bits of [`flag`].
    #[inline]
    pub fn flags(&self) -> u8 {
        self.fixed[13]
    }

    /// Returns the window field, not scaled.
    pub fn window(&self) -> u16 {
        u16_at(self.fixed, 14)
    }

    /// Returns the checksum field.
    pub fn checksum(&self) -> u16 {
        u16_at(self.fixed, 16)
    }

    /// Returns the header length with options, bytes.
    #[inline]
    pub fn header_length(&self) -> usize {
        usize::from(self.fixed[12] >> 4) * 4
    }

    /// Iterates over the options as pairs of kind and value; ends at the first malformed one.
    pub fn options(&self) -> impl Iterator<Item = (u8, &'a [u8])> + 'a {
        let (header, length) = (self.segment, self.header_length());
        option_ranges(header, length).map(|(kind, start, end)| (kind, &header[start..end]))
    }

    /// Returns the value of the maximum segment size option, or `None` if the segment is not a SYN or has no
    /// such option.
    pub fn maximum_segment_size(&self) -> Option<u16> {
        self.maximum_segment_size_at().map(|at| u16_at(self.segment, at))
    }

    fn maximum_segment_size_at(&self) -> Option<usize> {
        if self.flags() & flag::SYN == 0 {
            return None;
        }
        let mut ranges = option_ranges(self.segment, self.header_length());
        let (_, start, _) =
            ranges.find(|&(kind, start, end)| kind == option::MAXIMUM_SEGMENT_SIZE && end - start == 2)?;
        Some(start)
    }

    /// Returns the payload.
    pub fn payload(&self) -> &'a [u8] {
        &self.segment[self.header_length()..]
    }
}

/// Iterates over the options as triples of kind, start and end of the value.
fn option_ranges(segment: &[u8], length: usize) -> impl Iterator<Item = (u8, usize, usize)> + '_ {
    let options = segment.get(..length).unwrap_or_default();
    let mut at = HEADER;
    core::iter::from_fn(move || {
        while options.get(at) == Some(&option::NO_OPERATION) {
            at += 1;
        }
        let &[kind, size] = options.get(at..)?.first_chunk()?;
        let (start, end) = (at + 2, at + usize::from(size));
        if kind == option::END || end < start || end > options.len() {
            return None;
        }
        at = end;
        Some((kind, start, end))
    })
}

/// Lowers the maximum segment size option of a SYN to `limit` and returns the old value. Returns `None` and
/// changes nothing if the value is not above `limit`, the option is missing, or the segment is not a SYN. A
/// valid checksum stays valid.
pub fn clamp_maximum_segment_size(segment: &mut [u8], limit: u16) -> Option<u16> {
    let view = View::new(segment).ok()?;
    let at = view.maximum_segment_size_at()?;
    let before = u16_at(segment, at);
    if before <= limit {
        return None;
    }
    let mut change = (before, limit);
    if !at.is_multiple_of(2) {
        // The value straddles two words of the checksum. That is equivalent to a word with its bytes
        // swapped.
        change = (before.swap_bytes(), limit.swap_bytes());
    }
    let checksum = updated(view.checksum(), change.0, change.1);
    put(segment, at, &limit.to_be_bytes());
    put(segment, 16, &checksum.to_be_bytes());
    Some(before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Sum;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn segment(flags: u8, options: &[u8]) -> Vec<u8> {
        let mut bytes =
            [&[0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0, flags, 1, 0, 0, 0, 0, 0], options].concat();
        bytes.resize(bytes.len().next_multiple_of(4), option::END);
        bytes[12] = (bytes.len() as u8 / 4) << 4;
        bytes.extend(b"payload");
        let checksum = Sum::ZERO.bytes(&bytes).checksum();
        bytes[16..18].copy_from_slice(&checksum.to_be_bytes());
        bytes
    }

    #[test]
    fn fields_are_at_the_offsets_of_the_rfc() {
        let bytes = segment(flag::SYN | flag::ACK, &[2, 4, 0x05, 0xb4, 1, 3, 3, 7]);
        let view = View::new(&bytes).unwrap();
        assert_eq!((view.source(), view.destination()), (0x1234, 80));
        assert_eq!((view.sequence(), view.window()), (1, 256));
        assert_eq!((view.flags(), view.header_length(), view.payload()), (0x12, 28, &b"payload"[..]));
        assert!(view.options().eq([(2, &[0x05, 0xb4][..]), (3, &[7])]));
        assert_eq!(view.maximum_segment_size(), Some(1460));
        assert_eq!(View::new(&bytes[..27]), Err(TcpHeaderError::DataOffset(7)));
        assert_eq!(View::new(&bytes[..19]), Err(TcpHeaderError::Short));
        let mut low = bytes;
        low[12] = 0x40;
        assert_eq!(View::new(&low), Err(TcpHeaderError::DataOffset(4)));
    }

    #[test]
    fn mss_is_only_lowered_and_only_in_a_syn() {
        let mss = [2, 4, 0x05, 0xb4];
        let mut bytes = segment(flag::SYN, &mss);
        assert_eq!(clamp_maximum_segment_size(&mut bytes, 1400), Some(1460));
        assert_eq!(View::new(&bytes).unwrap().maximum_segment_size(), Some(1400));
        for limit in [1400, 1401, 9000] {
            let before = bytes.clone();
            assert_eq!(clamp_maximum_segment_size(&mut bytes, limit), None);
            assert_eq!(bytes, before);
        }
        for mut other in [
            segment(flag::ACK, &mss),
            segment(flag::SYN, &[]),
            segment(flag::SYN, &[2, 3, 0]),
            segment(flag::SYN, &[0, 2, 4, 0x05, 0xb4]),
            segment(flag::SYN, &[3, 0, 2, 4, 0x05, 0xb4]),
            segment(flag::SYN, &[2, 40, 0x05, 0xb4]),
        ] {
            let before = other.clone();
            assert_eq!(clamp_maximum_segment_size(&mut other, 1000), None);
            assert_eq!(other, before);
        }
    }

    proptest! {
        #[test]
        fn mss_clamping_keeps_the_checksum_valid(padding in 0_usize..8, offered: u16, limit: u16) {
            let [high, low] = offered.to_be_bytes();
            let options = [&[option::NO_OPERATION; 8][..padding], &[2, 4, high, low]].concat();
            let mut bytes = segment(flag::SYN, &options);
            let lowered = clamp_maximum_segment_size(&mut bytes, limit);
            prop_assert_eq!(lowered, (offered > limit).then_some(offered));
            prop_assert_eq!(View::new(&bytes).unwrap().maximum_segment_size(), Some(offered.min(limit)));
            prop_assert_eq!(Sum::ZERO.bytes(&bytes).folded(), 0xffff);
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), limit: u16) {
            if let Some(flags) = bytes.get_mut(13) {
                *flags |= flag::SYN;
            }
            if let Ok(view) = View::new(&bytes) {
                prop_assert!(view.options().count() <= 40);
            }
            let before = bytes.clone();
            if clamp_maximum_segment_size(&mut bytes, limit).is_none() {
                prop_assert_eq!(bytes, before);
            }
        }
    }
}
