//! Impairments of a link: loss, bit errors, jitter and duplication.

use super::{Jitter, JitterDistribution, LinkDirectionConfig};
use crate::rng::RandomStream;
use crate::time::Duration;

/// Random impairments of the packets of one link, drawn in the order in which they leave the line.
///
/// The draws of a packet are loss, bit errors, jitter and duplication, in this order. An impairment of zero
/// needs no draw, and a lost packet needs no further draws. Bit errors are independent: their number is
/// binomial over the bits of the packet's IP length. The distance to the next flipped bit is drawn from a
/// geometric distribution and continues across packets, so that at a low rate most packets need no draw.
#[derive(Clone, Debug)]
pub struct Impairment {
    rng: RandomStream,
    loss: f64,
    bit_error_rate: f64,
    /// Good bits before the next flipped one; valid while the rate is above zero.
    good_bits: u64,
    jitter: Jitter,
    duplicate: f64,
}

/// Impairments of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketImpairment {
    /// Loss of the packet; the other fields are zero then.
    pub lost: bool,
    /// Number of flipped bits.
    pub bit_errors: u32,
    /// Delay in addition to the link's delay.
    pub extra_delay: Duration,
    /// Duplication: the packet arrives twice.
    pub duplicate: bool,
}

impl Impairment {
    /// Creates the impairments of a link.
    pub fn new(config: &LinkDirectionConfig, rng: RandomStream) -> Impairment {
        let mut impairment = Impairment {
            rng,
            loss: config.loss,
            bit_error_rate: 0.0,
            good_bits: 0,
            jitter: config.jitter,
            duplicate: config.duplicate,
        };
        impairment.set_bit_error_rate(config.bit_error_rate);
        impairment
    }

    /// Draws the impairments of the next packet, of `size` bytes at the IP layer.
    #[inline]
    pub fn next(&mut self, size: u32) -> PacketImpairment {
        if self.rng.chance(self.loss) {
            return PacketImpairment { lost: true, ..PacketImpairment::default() };
        }
        PacketImpairment {
            lost: false,
            bit_errors: if self.bit_error_rate > 0.0 { self.flip(u64::from(size) * 8) } else { 0 },
            extra_delay: self.jitter(),
            duplicate: self.rng.chance(self.duplicate),
        }
    }

    /// Sets the loss probability of later packets.
    pub fn set_loss(&mut self, loss: f64) {
        self.loss = loss;
    }

    /// Sets the bit error rate of later packets. Draws once unless the rate is zero or unchanged.
    pub fn set_bit_error_rate(&mut self, rate: f64) {
        if rate > 0.0 && rate != self.bit_error_rate {
            self.good_bits = self.rng.geometric(rate);
        }
        self.bit_error_rate = rate;
    }

    #[inline]
    fn flip(&mut self, bits: u64) -> u32 {
        let mut errors = 0;
        while self.good_bits < bits {
            errors += 1;
            let gap = self.rng.geometric(self.bit_error_rate);
            self.good_bits = self.good_bits.saturating_add(gap).saturating_add(1);
        }
        self.good_bits -= bits;
        errors
    }

    #[inline]
    fn jitter(&mut self) -> Duration {
        if self.jitter.amount == Duration::ZERO {
            return Duration::ZERO;
        }
        let amount = self.jitter.amount.0 as f64;
        Duration(match self.jitter.distribution {
            JitterDistribution::Uniform => libm::round(amount * self.rng.uniform()) as u64,
            JitterDistribution::Exponential => libm::round(self.rng.exponential(amount)) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::{BitRate, Capacity};
    use alloc::vec::Vec;

    fn config() -> LinkDirectionConfig {
        LinkDirectionConfig::plain(BitRate(1_000_000), Duration::ZERO, Capacity::Packets(1))
    }

    #[test]
    fn a_link_without_impairments_draws_nothing() {
        let mut impairment = Impairment::new(&config(), RandomStream::new(1, "line"));
        for size in 0..1000 {
            assert_eq!(impairment.next(size), PacketImpairment::default());
        }
        assert_eq!(impairment.rng.next_u64(), RandomStream::new(1, "line").next_u64());
    }

    #[test]
    fn probability_one_affects_every_packet_and_bit() {
        let mut lossy =
            Impairment::new(&LinkDirectionConfig { loss: 1.0, ..config() }, RandomStream::new(1, "line"));
        assert!(lossy.next(1500).lost);
        let mut noisy = Impairment::new(
            &LinkDirectionConfig { bit_error_rate: 1.0, ..config() },
            RandomStream::new(1, "line"),
        );
        assert_eq!(noisy.next(100).bit_errors, 800);
    }

    #[test]
    fn impairments_match_recorded_values() {
        let jitter = Jitter {
            amount: Duration::from_millis(1),
            distribution: JitterDistribution::Exponential,
            reorder: true,
        };
        let config =
            LinkDirectionConfig { loss: 0.3, bit_error_rate: 1e-3, jitter, duplicate: 0.5, ..config() };
        let mut impairment = Impairment::new(&config, RandomStream::new(1, "line"));
        let fates: Vec<(bool, u32, u64, bool)> = (0..8)
            .map(|_| impairment.next(1000))
            .map(|fate| (fate.lost, fate.bit_errors, fate.extra_delay.0, fate.duplicate))
            .collect();
        let lost = (true, 0, 0, false);
        let expected = [
            (false, 7, 602_022, false),
            (false, 7, 69_273, false),
            (false, 8, 215_728, false),
            lost,
            lost,
            (false, 8, 480_525, false),
            lost,
            (false, 5, 2_362_855, false),
        ];
        assert_eq!(fates, expected);
    }
}
