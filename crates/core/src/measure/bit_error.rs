//! Bit error ratio of a path, estimated from the growth of loss with packet size.
//!
//! Maximum likelihood fit of loss over packet size: a packet of n bits survives with probability (1 − base) ·
//! (1 − BER)ⁿ, with `base` being the loss independent of size (full queues, routing).
//!
//! With η = a + b·n, a = −ln(1 − base) and b = −ln(1 − BER), the log-likelihood Σ lost·ln(1 − e^−η) −
//! received·η is concave in (a, b), so bisection on its derivatives finds the maximum and the intervals for
//! any data.

use crate::measure::binomial::{Interval, chi_square_tail};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Loss of packets of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossAtSize {
    /// Bits in which one error loses the packet: the whole frame if it has a frame check sequence.
    pub bits: u64,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost.
    pub lost: u64,
}

/// Result of the fit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossFit {
    /// Bit error ratio, with its profile likelihood interval.
    pub bit_error_ratio: Interval,
    /// Loss independent of packet size, with its profile likelihood interval. With only one size sent, it is
    /// assumed to be zero and both ends of the interval are zero.
    pub base_loss: Interval,
    /// True if bit errors and base loss could be separated, which needs at least two sizes.
    pub separated: bool,
    /// Deviance of the fit: likelihood ratio against a model with a separate loss for every size.
    pub deviance: f64,
    /// Probability of a deviance at least this large if the model holds. A small value means that loss does
    /// not grow with size as independent bit errors would make it. `None` without degrees of freedom.
    pub goodness: Option<f64>,
}

/// Reason no fit is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossFitError {
    /// No packets sent, or packets of zero bits.
    NoData,
    /// More packets lost than sent.
    MoreLostThanSent(LossAtSize),
    /// All packets lost: the ratio has a lower bound only.
    AllLost,
}

impl fmt::Display for LossFitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossFitError::NoData => write!(f, "no packets sent; nothing to fit"),
            LossFitError::MoreLostThanSent(LossAtSize { bits, sent, lost }) => {
                write!(f, "{lost} of {sent} packets of {bits} bits lost: more than sent")
            }
            LossFitError::AllLost => write!(f, "every packet was lost; send smaller packets"),
        }
    }
}

impl core::error::Error for LossFitError {}

/// Fits loss over packet size. Intervals have 95 % confidence (log-likelihood ratio of 3.841, the chi-square
/// quantile).
pub fn fit_loss(points: &[LossAtSize]) -> Result<LossFit, LossFitError> {
    let used: Vec<LossAtSize> = points.iter().copied().filter(|point| point.sent > 0).collect();
    if let Some(&wrong) = used.iter().find(|point| point.lost > point.sent) {
        return Err(LossFitError::MoreLostThanSent(wrong));
    }
    if used.is_empty() || used.iter().any(|point| point.bits == 0) {
        return Err(LossFitError::NoData);
    }
    if used.iter().all(|point| point.lost == point.sent) {
        return Err(LossFitError::AllLost);
    }
    let separated = used.iter().any(|point| point.bits != used[0].bits);
    let model = LossModel { points: &used, separated };
    let [a, b] = model.maximum(Axis::Bits);
    let top = model.log_likelihood([a, b]);
    let ratio = |exponent: f64| -libm::expm1(-exponent);
    let interval = |axis: Axis, at: f64| {
        let [lower, upper] = model.profile_interval(axis, at, top);
        Interval { estimate: ratio(at), lower: ratio(lower), upper: ratio(upper) }
    };
    let bit_error_ratio = interval(Axis::Bits, b);
    let base_loss =
        if separated { interval(Axis::Base, a) } else { Interval { estimate: 0.0, lower: 0.0, upper: 0.0 } };
    let deviance = (2.0 * (model.saturated_log_likelihood() - top)).max(0.0);
    let degrees = used.len() as i64 - if separated { 2 } else { 1 };
    let goodness = (degrees > 0).then(|| chi_square_tail(deviance, degrees as f64));
    Ok(LossFit { bit_error_ratio, base_loss, separated, deviance, goodness })
}

/// One of the two parameters [a, b].
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Base,
    Bits,
}

struct LossModel<'a> {
    points: &'a [LossAtSize],
    separated: bool,
}

impl LossModel<'_> {
    fn log_likelihood(&self, [a, b]: [f64; 2]) -> f64 {
        let contribution = |point: &LossAtSize| {
            let exponent = a + b * point.bits as f64;
            let received = (point.sent - point.lost) as f64;
            let lost = match point.lost {
                0 => 0.0,
                lost => lost as f64 * libm::log(-libm::expm1(-exponent)),
            };
            lost - received * exponent
        };
        self.points.iter().map(contribution).sum()
    }

    /// Returns the log-likelihood of a model with the observed loss for every size.
    fn saturated_log_likelihood(&self) -> f64 {
        let term = |count: u64, of: u64| match count {
            0 => 0.0,
            _ => count as f64 * libm::log(count as f64 / of as f64),
        };
        self.points
            .iter()
            .map(|point| term(point.lost, point.sent) + term(point.sent - point.lost, point.sent))
            .sum()
    }

    /// Returns the derivative of the log-likelihood along an axis.
    fn slope(&self, axis: Axis, [a, b]: [f64; 2]) -> f64 {
        let contribution = |point: &LossAtSize| {
            let bits = point.bits as f64;
            let pull = match point.lost {
                0 => 0.0,
                lost => lost as f64 / libm::expm1(a + b * bits),
            };
            let along = if axis == Axis::Bits { bits } else { 1.0 };
            along * (pull - (point.sent - point.lost) as f64)
        };
        self.points.iter().map(contribution).sum()
    }

    /// Returns the point of maximum likelihood for a fixed value of the parameter of `axis`.
    fn best_other(&self, axis: Axis, value: f64) -> [f64; 2] {
        let point = |other: f64| if axis == Axis::Bits { [other, value] } else { [value, other] };
        if !self.separated {
            return point(0.0);
        }
        let other = if axis == Axis::Bits { Axis::Base } else { Axis::Bits };
        point(positive_root(|candidate| self.slope(other, point(candidate))))
    }

    fn maximum(&self, axis: Axis) -> [f64; 2] {
        // By the envelope theorem the profile's slope is the slope along the axis.
        let value = positive_root(|value| self.slope(axis, self.best_other(axis, value)));
        self.best_other(axis, value)
    }

    /// Returns the two points at which the profile likelihood has fallen by half the chi-square quantile.
    fn profile_interval(&self, axis: Axis, at: f64, top: f64) -> [f64; 2] {
        const HALF_QUANTILE: f64 = 3.841_458_820_694_124 / 2.0;
        let above = |value: f64| {
            let profile = self.log_likelihood(self.best_other(axis, value));
            // The profile is minus infinity at zero if any packet was lost.
            if profile.is_finite() { profile - (top - HALF_QUANTILE) } else { -1.0 }
        };
        let lower =
            if at == 0.0 || above(0.0) >= 0.0 { 0.0 } else { bisect(0.0, at, |value| above(value) < 0.0) };
        let mut far = if at > 0.0 { 2.0 * at } else { 1e-18 };
        while above(far) >= 0.0 {
            far *= 2.0;
        }
        [lower, bisect(at, far, |value| above(value) >= 0.0)]
    }
}

/// Returns the root of a falling function; 0 if the function is negative for all positive values.
fn positive_root(slope: impl Fn(f64) -> f64) -> f64 {
    const SMALLEST: f64 = 1e-18;
    // This form counts a NaN slope (0/0 at the origin) as positive.
    if slope(SMALLEST) < 0.0 {
        return 0.0;
    }
    let mut far = SMALLEST;
    while slope(far) > 0.0 && far < 1e3 {
        far *= 4.0;
    }
    bisect(far / 4.0, far, |value| slope(value) > 0.0)
}

/// Returns the end of the part of [low, high] in which `inside` holds; that part starts at `low`.
fn bisect(mut low: f64, mut high: f64, inside: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if inside(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;

    const SIZES: [u64; 4] = [800, 4_000, 8_000, 12_000];

    /// Returns the expected losses, rounded: the fit must recover the parameters.
    fn expected(sent: u64, base: f64, ber: f64) -> Vec<LossAtSize> {
        let loss_of_size = |bits: u64| {
            let loss = 1.0 - (1.0 - base) * libm::pow(1.0 - ber, bits as f64);
            LossAtSize { bits, sent, lost: libm::round(sent as f64 * loss) as u64 }
        };
        SIZES.iter().map(|&bits| loss_of_size(bits)).collect()
    }

    #[test]
    fn fit_recovers_the_parameters() {
        for (base, ber) in [(0.0, 1e-6), (0.01, 1e-6), (0.2, 1e-5), (0.003, 1e-7)] {
            let fit = fit_loss(&expected(1_000_000_000, base, ber)).unwrap();
            assert!((fit.bit_error_ratio.estimate / ber - 1.0).abs() < 2e-3, "{fit:?}");
            assert!((fit.base_loss.estimate - base).abs() < 1e-5, "{fit:?}");
            assert!(fit.bit_error_ratio.lower < ber && fit.bit_error_ratio.upper > ber);
            assert!(fit.goodness.unwrap() > 0.9 && fit.separated);
        }
    }

    #[test]
    fn loss_of_the_stage_paper_at_one_size() {
        // STAGE Table 1, 1 Mbit/s at BER 1e-6: a loss ratio of 0.00936 with packets of about 9,400 bits.
        let fit = fit_loss(&[LossAtSize { bits: 9_404, sent: 100_000, lost: 936 }]).unwrap();
        assert!((fit.bit_error_ratio.estimate / 1e-6 - 1.0).abs() < 1e-3, "{fit:?}");
        assert!(!fit.separated && fit.goodness.is_none());
        assert!((fit.bit_error_ratio.lower - 0.937e-6).abs() < 3e-9, "{fit:?}");
        assert!((fit.bit_error_ratio.upper - 1.066e-6).abs() < 3e-9, "{fit:?}");
    }

    #[test]
    fn intervals_have_the_stated_coverage() {
        let mut stream = RandomStream::new(21, "loss fit");
        let (runs, ber, base) = (200, 1e-6, 0.002);
        let covered = (0..runs)
            .filter(|_| {
                let points = SIZES.map(|bits| {
                    let loss = 1.0 - (1.0 - base) * libm::pow(1.0 - ber, bits as f64);
                    let lost = (0..20_000).filter(|_| stream.chance(loss)).count() as u64;
                    LossAtSize { bits, sent: 20_000, lost }
                });
                let found = fit_loss(&points).unwrap().bit_error_ratio;
                found.lower <= ber && ber <= found.upper
            })
            .count();
        // Tolerance: four standard deviations of a binomial count around 95 %.
        assert!((covered as f64 - 190.0).abs() < 4.0 * libm::sqrt(9.5), "{covered}");
    }

    #[test]
    fn zero_loss_gives_an_upper_bound() {
        let fit = fit_loss(&expected(1_000, 0.0, 0.0)).unwrap();
        assert_eq!((fit.bit_error_ratio.estimate, fit.bit_error_ratio.lower), (0.0, 0.0));
        // The bound is 3.841 / 2 divided by the number of bits sent.
        assert!((fit.bit_error_ratio.upper * 24_800_000.0 - 1.9207).abs() < 1e-3, "{fit:?}");
    }

    #[test]
    fn size_independent_loss_is_not_taken_for_bit_errors() {
        let fit = fit_loss(&SIZES.map(|bits| LossAtSize { bits, sent: 100_000, lost: 1_000 })).unwrap();
        assert!(
            fit.bit_error_ratio.estimate < 1e-12 && (fit.base_loss.estimate - 0.01).abs() < 1e-6,
            "{fit:?}"
        );
        // Higher loss of small packets cannot come from bit errors: the model is rejected.
        let lost = [3_000, 2_000, 1_000, 500];
        let points: Vec<LossAtSize> =
            SIZES.iter().zip(lost).map(|(&bits, lost)| LossAtSize { bits, sent: 100_000, lost }).collect();
        assert!(fit_loss(&points).unwrap().goodness.unwrap() < 1e-6);
    }

    #[test]
    fn invalid_data_is_rejected() {
        assert_eq!(fit_loss(&[]), Err(LossFitError::NoData));
        let all = LossAtSize { bits: 100, sent: 10, lost: 10 };
        assert_eq!(fit_loss(&[all]), Err(LossFitError::AllLost));
        let wrong = LossAtSize { lost: 11, ..all };
        assert_eq!(fit_loss(&[wrong]), Err(LossFitError::MoreLostThanSent(wrong)));
    }
}
