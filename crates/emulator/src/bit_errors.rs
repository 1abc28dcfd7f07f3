//! Bit errors as they are: bits of the packet flipped, headers included. What becomes of it
//! is for the receivers' checksums to judge.

use netstage_core::rng::Stream;

/// Flips bits of packets.
#[derive(Clone, Debug)]
pub struct BitErrors {
    rng: Stream,
    /// Bits flipped in the last packet: a duplicate has the errors of its original.
    flipped: Vec<u8>,
}

impl BitErrors {
    /// Draws from `rng` which bits are flipped.
    pub fn new(rng: Stream) -> BitErrors {
        BitErrors { rng, flipped: Vec::new() }
    }

    /// Flips `count` different bits of `packet`, each set of that size equally likely.
    pub fn strike(&mut self, packet: &mut [u8], count: u32) {
        self.flipped.clear();
        self.flipped.resize(packet.len(), 0);
        // Floyd's sampling (Bentley and Floyd 1987, "A sample of brilliance").
        let bits = packet.len() as u64 * 8;
        for last in bits.saturating_sub(u64::from(count))..bits {
            let drawn = self.rng.below(last + 1);
            let bit = if self.is_flipped(drawn) { last } else { drawn };
            self.flipped[(bit / 8) as usize] |= 1 << (bit % 8);
        }
        self.repeat(packet);
    }

    /// Flips in `packet` the bits flipped in the packet before.
    pub fn repeat(&self, packet: &mut [u8]) {
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
    fn as_many_different_bits_as_asked() {
        let mut errors = BitErrors::new(Stream::new(1, "bits"));
        for count in [0, 1, 2, 7, 400, 799, 800, 2000] {
            let mut packet = [0; 100];
            errors.strike(&mut packet, count);
            let ones: u32 = packet.iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(ones, count.min(800));
            let mut copy = [0; 100];
            errors.repeat(&mut copy);
            assert_eq!(copy, packet);
        }
    }

    #[test]
    fn every_bit_is_struck_alike() {
        let mut errors = BitErrors::new(Stream::new(2, "bits"));
        let mut struck = [0_u32; 160];
        for _ in 0..16_000 {
            let mut packet = [0; 20];
            errors.strike(&mut packet, 3);
            for (bit, count) in struck.iter_mut().enumerate() {
                *count += u32::from(packet[bit / 8] >> (bit % 8) & 1);
            }
        }
        let chi_square: f64 = struck.iter().map(|&n| (f64::from(n) - 300.0).powi(2) / 300.0).sum();
        assert!(chi_square < 205.0, "99 % quantile of chi-square with 159 degrees: {chi_square}");
    }
}
