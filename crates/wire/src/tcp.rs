//! TCP segments (RFC 9293), as far as a router looks at them: ports, flags, and the maximum
//! segment size a tunnel lowers.

use crate::bytes::{put, u16_at, u32_at};
use crate::checksum::updated;

/// Bytes of a header without options.
pub const HEADER: usize = 20;

/// Bits of the flags.
pub mod flag {
    /// The sender is done.
    pub const FIN: u8 = 0x01;
    /// Opens a connection.
    pub const SYN: u8 = 0x02;
    /// Breaks a connection off.
    pub const RST: u8 = 0x04;
    /// To be handed on at once.
    pub const PSH: u8 = 0x08;
    /// The acknowledgement number counts.
    pub const ACK: u8 = 0x10;
    /// The congestion window was reduced (RFC 3168).
    pub const CWR: u8 = 0x80;
}

/// Kinds of options.
pub mod option {
    /// No more options.
    pub const END: u8 = 0;
    /// Padding of one byte.
    pub const NO_OPERATION: u8 = 1;
    /// Maximum segment size, 4 bytes with its head.
    pub const MAXIMUM_SEGMENT_SIZE: u8 = 2;
}

/// Why bytes are no segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// They end within the header.
    Short,
    /// The data offset is below five words, or beyond the bytes there are.
    DataOffset(u8),
}

/// A segment whose header is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View<'a> {
    fixed: &'a [u8; HEADER],
    segment: &'a [u8],
}

impl<'a> View<'a> {
    /// The segment these bytes are.
    #[inline]
    pub fn new(segment: &'a [u8]) -> Result<View<'a>, Error> {
        let fixed = segment.first_chunk::<HEADER>().ok_or(Error::Short)?;
        let words = fixed[12] >> 4;
        if !(HEADER..=segment.len()).contains(&(usize::from(words) * 4)) {
            return Err(Error::DataOffset(words));
        }
        Ok(View { fixed, segment })
    }

    /// Port of the sender.
    #[inline]
    pub fn source(&self) -> u16 {
        u16_at(self.fixed, 0)
    }

    /// Port of the receiver.
    #[inline]
    pub fn destination(&self) -> u16 {
        u16_at(self.fixed, 2)
    }

    /// Number of the first byte.
    pub fn sequence(&self) -> u32 {
        u32_at(self.fixed, 4)
    }

    /// Bits of [`flag`].
    #[inline]
    pub fn flags(&self) -> u8 {
        self.fixed[13]
    }

    /// Window as it stands, unscaled.
    pub fn window(&self) -> u16 {
        u16_at(self.fixed, 14)
    }

    /// The checksum as it stands.
    pub fn checksum(&self) -> u16 {
        u16_at(self.fixed, 16)
    }

    /// Bytes of the header, its options included.
    #[inline]
    pub fn header_length(&self) -> usize {
        usize::from(self.fixed[12] >> 4) * 4
    }

    /// The options: kind and value. Ends at the first that is malformed.
    pub fn options(&self) -> impl Iterator<Item = (u8, &'a [u8])> + 'a {
        let (header, length) = (self.segment, self.header_length());
        places(header, length).map(|(kind, start, end)| (kind, &header[start..end]))
    }

    /// The maximum segment size it offers; only SYN segments do.
    pub fn maximum_segment_size(&self) -> Option<u16> {
        self.maximum_segment_size_at().map(|at| u16_at(self.segment, at))
    }

    fn maximum_segment_size_at(&self) -> Option<usize> {
        if self.flags() & flag::SYN == 0 {
            return None;
        }
        let mut places = places(self.segment, self.header_length());
        let (_, start, _) =
            places.find(|&(kind, start, end)| kind == option::MAXIMUM_SEGMENT_SIZE && end - start == 2)?;
        Some(start)
    }

    /// The payload.
    pub fn payload(&self) -> &'a [u8] {
        &self.segment[self.header_length()..]
    }
}

/// Kind of each option, and where its value begins and ends.
fn places(segment: &[u8], length: usize) -> impl Iterator<Item = (u8, usize, usize)> + '_ {
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

/// Lowers the maximum segment size a SYN offers to `limit`, and gives what it was; `None`, and
/// no change, where it is no higher, is not offered, or this is no SYN. A right checksum stays
/// right.
pub fn clamp_maximum_segment_size(segment: &mut [u8], limit: u16) -> Option<u16> {
    let view = View::new(segment).ok()?;
    let at = view.maximum_segment_size_at()?;
    let before = u16_at(segment, at);
    if before <= limit {
        return None;
    }
    let mut change = (before, limit);
    if !at.is_multiple_of(2) {
        // The value lies across two words of the sum, which is the same as its bytes swapped.
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
    fn fields_stand_where_the_rfc_draws_them() {
        let bytes = segment(flag::SYN | flag::ACK, &[2, 4, 0x05, 0xb4, 1, 3, 3, 7]);
        let view = View::new(&bytes).unwrap();
        assert_eq!((view.source(), view.destination()), (0x1234, 80));
        assert_eq!((view.sequence(), view.window()), (1, 256));
        assert_eq!((view.flags(), view.header_length(), view.payload()), (0x12, 28, &b"payload"[..]));
        assert!(view.options().eq([(2, &[0x05, 0xb4][..]), (3, &[7])]));
        assert_eq!(view.maximum_segment_size(), Some(1460));
        assert_eq!(View::new(&bytes[..27]), Err(Error::DataOffset(7)));
        assert_eq!(View::new(&bytes[..19]), Err(Error::Short));
        let mut low = bytes;
        low[12] = 0x40;
        assert_eq!(View::new(&low), Err(Error::DataOffset(4)));
    }

    #[test]
    fn the_segment_size_is_only_lowered_and_only_in_a_syn() {
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
        fn a_clamp_keeps_the_checksum_right(padding in 0_usize..8, offered: u16, limit: u16) {
            let [high, low] = offered.to_be_bytes();
            let options = [&[option::NO_OPERATION; 8][..padding], &[2, 4, high, low]].concat();
            let mut bytes = segment(flag::SYN, &options);
            let lowered = clamp_maximum_segment_size(&mut bytes, limit);
            prop_assert_eq!(lowered, (offered > limit).then_some(offered));
            prop_assert_eq!(View::new(&bytes).unwrap().maximum_segment_size(), Some(offered.min(limit)));
            prop_assert_eq!(Sum::ZERO.bytes(&bytes).folded(), 0xffff);
        }

        #[test]
        fn foreign_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..80), limit: u16) {
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
