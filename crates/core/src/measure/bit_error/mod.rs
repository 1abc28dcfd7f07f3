//! Bit error ratio of a path, seen from its ends: from how loss grows with the size of
//! packets ([`fit_loss`]), and from comparing payloads ([`PayloadComparison`]) filled with a
//! pseudo-random sequence ([`Prbs`], [`PrbsChecker`]).
//!
//! The two see different errors: damaged packets that a checksum discards are lost, not
//! compared; those that reach the comparison passed every checksum on the way (UDP checksum
//! zero, or a raw receiver).

mod loss_fit;
mod prbs;

pub use loss_fit::{LossFit, LossFitError, LossOfSize, fit_loss};
pub use prbs::{Polynomial, Prbs, PrbsChecker};

use super::binomial::{Interval, clopper_pearson, upper_bound};
use serde::{Deserialize, Serialize};

/// Bits compared with what was sent. Intervals take errors as independent: where they come
/// in bursts (compare `errored_packets` with `errors`), the true interval is wider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayloadComparison {
    /// Bits compared.
    pub bits: u64,
    /// Of these, different.
    pub errors: u64,
    /// Packets compared.
    pub packets: u64,
    /// Of these, with any bit different.
    pub errored_packets: u64,
}

impl PayloadComparison {
    /// Compare a packet's payload with what was sent; the shorter one ends the comparison.
    /// Returns the number of different bits.
    pub fn compare(&mut self, sent: &[u8], received: &[u8]) -> u64 {
        let differ = |(one, other): (&u8, &u8)| u64::from((one ^ other).count_ones());
        let errors = sent.iter().zip(received).map(differ).sum();
        self.bits += 8 * sent.len().min(received.len()) as u64;
        self.packets += 1;
        self.errors += errors;
        self.errored_packets += u64::from(errors > 0);
        errors
    }

    /// Bit error ratio with its exact binomial interval; `None` before any comparison.
    pub fn ratio(&self, confidence: f64) -> Option<Interval> {
        (self.bits > 0).then(|| clopper_pearson(self.errors, self.bits, confidence))
    }

    /// The bit error ratio is below this, with the given confidence: what to say when no
    /// error was seen (−ln(1 − confidence) / bits). `None` before any comparison.
    pub fn ratio_below(&self, confidence: f64) -> Option<f64> {
        (self.bits > 0).then(|| upper_bound(self.errors, self.bits, confidence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_compared_bit_by_bit() {
        let mut comparison = PayloadComparison::default();
        assert_eq!(comparison.ratio(0.95), None);
        assert_eq!(comparison.compare(&[0xff, 0x00, 0x0f], &[0xff, 0x81, 0x0f]), 2);
        assert_eq!(comparison.compare(&[1, 2, 3, 4], &[1, 2]), 0);
        let expected = PayloadComparison { bits: 40, errors: 2, packets: 2, errored_packets: 1 };
        assert_eq!(comparison, expected);
        assert_eq!(comparison.ratio(0.95).unwrap().estimate, 0.05);
    }

    #[test]
    fn no_error_bounds_the_ratio() {
        let clean = PayloadComparison { bits: 3_000_000, ..PayloadComparison::default() };
        let below = clean.ratio_below(0.95).unwrap();
        assert!((below * 3e6 / 2.995_73 - 1.0).abs() < 1e-5, "{below}");
        assert_eq!(clean.ratio(0.95).unwrap().lower, 0.0);
    }
}
