//! Bit errors: flips bits of a packet, including its headers. The receivers detect most damage by their checksums.

use netstage_core::rng::RandomStream;

/// Generator of bit errors.
#[derive(Clone, Debug)]
pub struct BitErrors {
    rng: RandomStream,
    /// Bits flipped in the previous packet. A duplicate has the errors of its original.
    flipped: Vec<u8>,
}

impl BitErrors {
    /// Creates a generator that draws the bits from `rng`.
    pub fn new(rng: RandomStream) -> BitErrors {
        BitErrors { rng, flipped: Vec::new() }
    }

    /// Flips `count` different bits of `packet`. All sets of `count` bits are equally likely.
    pub fn flip(&mut self, packet: &mut [u8], count: u32) {
        self.flipped.clear();
        self.flipped.resize(packet.len(), 0);
        // Floyd's sampling (Bentley and Floyd 1987, "A sample of brilliance").
        let bits = packet.len() as u64 * 8;
        for last in bits.saturating_sub(u64::from(count))..bits {
            let drawn = self.rng.below(last + 1);
            let bit = if self.is_flipped(drawn) { last } else { drawn };
            self.flipped[(bit / 8) as usize] |= 1 << (bit % 8);
        }
        self.flip_again(packet);
    }

    /// Flips the same bits as in the previous packet.
    pub fn flip_again(&self, packet: &mut [u8]) {
        packet.iter_mut().zip(&self.flipped).for_each(|(byte, mask)| *byte ^= mask);
    }

    fn is_flipped(&self, bit: u64) -> bool {
        self.flipped[(bit / 8) as usize] & (1 << (bit % 8)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requested_number_of_different_bits_is_flipped() {
        let mut errors = BitErrors::new(RandomStream::new(1, "bits"));
        for count in [0, 1, 2, 7, 400, 799, 800, 2000] {
            let mut packet = [0; 100];
            errors.flip(&mut packet, count);
            let ones: u32 = packet.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(ones, count.min(800));
            let mut copy = [0; 100];
            errors.flip_again(&mut copy);
            assert_eq!(copy, packet);
        }
    }

    #[test]
    fn all_bits_are_equally_likely() {
        let mut errors = BitErrors::new(RandomStream::new(2, "bits"));
        let mut flips = [0_u32; 160];
        for _ in 0..16_000 {
            let mut packet = [0; 20];
            errors.flip(&mut packet, 3);
            for (bit, count) in flips.iter_mut().enumerate() {
                *count += u32::from(packet[bit / 8] >> (bit % 8) & 1);
            }
        }
        let chi_square: f64 = flips.iter().map(|&n| (f64::from(n) - 300.0).powi(2) / 300.0).sum();
        assert!(chi_square < 205.0, "99 % quantile of chi-square with 159 degrees: {chi_square}");
    }
}
