//! Internet checksum (RFC 1071) and its incremental update (RFC 1624).

/// One's complement sum in progress.
///
/// Words are kept in native byte order, which changes only the order of the two bytes of the sum (RFC 1071
/// section 2 B). They are added 32 bits at a time; 2³² of them fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Sum of no bytes.
    pub const ZERO: Sum = Sum(0);

    /// Adds bytes that start on a 16-bit boundary of the data. An odd last byte is padded with zero.
    #[inline]
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Sum {
        let (chunks, rest) = bytes.as_chunks::<4>();
        let whole: u64 = chunks.iter().map(|chunk| u64::from(u32::from_ne_bytes(*chunk))).sum();
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        Sum(self.0 + whole + u32::from_ne_bytes(last) as u64)
    }

    /// Adds one 16-bit word.
    #[inline]
    #[must_use]
    pub const fn word(self, word: u16) -> Sum {
        Sum(self.0 + word.to_be() as u64)
    }

    /// Returns the sum folded to 16 bits: 0xffff over data with a valid checksum.
    #[inline]
    pub const fn folded(self) -> u16 {
        // The upper half of `sum + rotated sum` includes the carry out of the lower half.
        let sum = (self.0.wrapping_add(self.0.rotate_right(32)) >> 32) as u32;
        u16::from_be((sum.wrapping_add(sum.rotate_right(16)) >> 16) as u16)
    }

    /// Returns the checksum of data whose checksum field was summed as zero.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.folded()
    }
}

/// Returns the checksum of bytes whose checksum field is zero.
#[inline]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::ZERO.bytes(bytes).checksum()
}

/// Returns the checksum after one 16-bit word has changed (RFC 1624 equation 3).
#[inline]
pub const fn updated(checksum: u16, before: u16, after: u16) -> u16 {
    let sum = !checksum as u32 + !before as u32 + after as u32;
    !(sum.wrapping_add(sum.rotate_right(16)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Sum of the bytes word by word, as defined in RFC 1071 section 1.
    fn naive(bytes: &[u8]) -> u16 {
        let mut sum = 0_u32;
        for word in bytes.chunks(2) {
            sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn examples_of_the_rfcs() {
        // RFC 1071 section 3.
        let sum = Sum::ZERO.bytes(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.folded(), 0xddf2);
        // RFC 1624 section 4: the case that the equation of RFC 1141 gets wrong.
        assert_eq!(updated(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn a_full_datagram_of_ones_does_not_overflow() {
        let ones = [0xff; 65_535];
        assert_eq!(Sum::ZERO.bytes(&ones).folded(), naive(&ones));
    }

    proptest! {
        #[test]
        fn sums_match_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..200), word: u16) {
            prop_assert_eq!(Sum::ZERO.bytes(&bytes).folded(), naive(&bytes));
            let with: Vec<u8> = word.to_be_bytes().into_iter().chain(bytes.iter().copied()).collect();
            prop_assert_eq!(Sum::ZERO.word(word).bytes(&bytes).folded(), naive(&with));
        }

        #[test]
        fn incremental_updates_match_a_full_checksum(mut words in prop::collection::vec(1_u16.., 2..30), after: u16) {
            let bytes = |words: &[u16]| -> Vec<u8> { words.iter().flat_map(|word| word.to_be_bytes()).collect() };
            let before = checksum(&bytes(&words));
            let old = core::mem::replace(&mut words[0], after);
            prop_assert_eq!(updated(before, old, after), checksum(&bytes(&words)));
        }
    }
}
