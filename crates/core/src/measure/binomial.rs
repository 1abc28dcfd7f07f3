//! Exact confidence intervals of a probability from counts (Clopper and Pearson 1934), and the tails of the
//! chi-square distribution used by the fits.

use serde::{Deserialize, Serialize};

/// An estimate and its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Most likely value.
    pub estimate: f64,
    /// Lower end of the interval.
    pub lower: f64,
    /// Upper end of the interval.
    pub upper: f64,
}

/// Returns the exact two-sided interval of a probability after `events` in `trials`; each tail holds (1 −
/// confidence) / 2. Without events, the upper end at 95 % is 3.69 / trials.
///
/// Panics unless `events` ≤ `trials`, `trials` > 0 and `confidence` is in (0, 1).
pub fn clopper_pearson(events: u64, trials: u64, confidence: f64) -> Interval {
    assert!(trials > 0 && events <= trials && confidence > 0.0 && confidence < 1.0);
    let (k, n) = (events as f64, trials as f64);
    let tail = (1.0 - confidence) / 2.0;
    let lower = if events == 0 { 0.0 } else { beta_quantile(k, n - k + 1.0, tail) };
    let upper = if events == trials { 1.0 } else { beta_quantile(k + 1.0, n - k, 1.0 - tail) };
    Interval { estimate: k / n, lower, upper }
}

/// Returns the regularized incomplete beta function Iₓ(a, b): the probability that a beta-distributed
/// variable is at most x. Continued fraction of Abramowitz and Stegun 26.5.8, evaluated by Lentz's method.
pub fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front = libm::exp(a * libm::log(x) + b * libm::log1p(-x) - ln_beta(a, b));
    // The fraction converges fast below the mean; above it, the fraction of the mirrored function does.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(a, b, x) / a
    } else {
        1.0 - front * beta_fraction(b, a, 1.0 - x) / b
    }
}

/// Returns ln B(a, b) without the cancellation that gamma functions of large arguments cause.
fn ln_beta(a: f64, b: f64) -> f64 {
    let (p, q) = (a.min(b), a.max(b));
    let share = p / (p + q);
    if q < 10.0 {
        return libm::lgamma(p) + libm::lgamma(q) - libm::lgamma(p + q);
    }
    let correction = stirling_remainder(q) - stirling_remainder(p + q);
    if p < 10.0 {
        return libm::lgamma(p) + correction + p - p * libm::log(p + q) + (q - 0.5) * libm::log1p(-share);
    }
    let half_ln_two_pi = 0.918_938_533_204_672_7;
    half_ln_two_pi - 0.5 * libm::log(q)
        + stirling_remainder(p)
        + correction
        + (p - 0.5) * libm::log(share)
        + q * libm::log1p(-share)
}

/// Returns ln Γ(x) − ((x − ½) ln x − x + ½ ln 2π) for x ≥ 10 (Abramowitz and Stegun 6.1.41).
fn stirling_remainder(x: f64) -> f64 {
    let inverse_square = 1.0 / (x * x);
    let terms = [1.0 / 12.0, -1.0 / 360.0, 1.0 / 1260.0, -1.0 / 1680.0, 1.0 / 1188.0, -691.0 / 360_360.0];
    terms.iter().rev().fold(0.0, |sum, term| sum * inverse_square + term) / x
}

fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let guard = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / guard(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for step in 1..200_000 {
        let m = f64::from(step);
        for term in [
            m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0)),
        ] {
            d = 1.0 / guard(1.0 + term * d);
            c = guard(1.0 + term / c);
            fraction *= c * d;
        }
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    fraction
}

/// Returns the x with Iₓ(a, b) = probability. Bisects the logarithm below 1/2: bit error ratios are small, so
/// relative precision matters.
fn beta_quantile(a: f64, b: f64, probability: f64) -> f64 {
    if incomplete_beta(a, b, 0.5) < probability {
        return 1.0 - beta_quantile_below(b, a, 1.0 - probability);
    }
    beta_quantile_below(a, b, probability)
}

fn beta_quantile_below(a: f64, b: f64, probability: f64) -> f64 {
    let (mut low, mut high) = (-690.0, libm::log(0.5));
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if incomplete_beta(a, b, libm::exp(middle)) < probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    libm::exp(f64::midpoint(low, high))
}

/// Returns the probability that a chi-square variable exceeds `value`, the p-value of a goodness-of-fit test.
/// Regularized incomplete gamma function Q(k/2, x/2), by series and continued fraction (Abramowitz and Stegun
/// 6.5.29 and 6.5.31).
pub fn chi_square_tail(value: f64, degrees_of_freedom: f64) -> f64 {
    let (a, x) = (degrees_of_freedom / 2.0, value / 2.0);
    if x <= 0.0 {
        return 1.0;
    }
    let front = libm::exp(a * libm::log(x) - x - libm::lgamma(a));
    if x < a + 1.0 {
        let (mut term, mut sum, mut n) = (1.0 / a, 1.0 / a, a);
        while term > sum * 1e-16 {
            n += 1.0;
            term *= x / n;
            sum += term;
        }
        return 1.0 - front * sum;
    }
    let mut b = x + 1.0 - a;
    let (mut c, mut d) = (1e300, 1.0 / b);
    let mut fraction = d;
    for step in 1..10_000 {
        let i = f64::from(step);
        let an = -i * (i - a);
        b += 2.0;
        d = 1.0 / (an * d + b);
        c = b + an / c;
        fraction *= c * d;
        if (c * d - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(one: f64, other: f64, relative: f64) {
        assert!((one - other).abs() <= relative * other.abs(), "{one} differs from {other}");
    }

    #[test]
    fn intervals_match_published_values() {
        // Values of R's binom.test and of the Geigy tables for 95 %.
        let known = [
            (0, 10, 0.0, 0.308_497_1),
            (1, 10, 0.002_528_579, 0.445_016_1),
            (5, 10, 0.187_086_0, 0.812_914_0),
            (10, 10, 0.691_502_9, 1.0),
            (3, 100, 0.006_229_972, 0.085_176_05),
        ];
        for (events, trials, lower, upper) in known {
            let found = clopper_pearson(events, trials, 0.95);
            close(found.lower, lower, 1e-6);
            close(found.upper, upper, 1e-6);
        }
    }

    #[test]
    fn rare_events_keep_their_precision() {
        // For p → 0 the ends are chi-square quantiles over 2n. Two-sided 95 % interval of 3 events: 1.237344
        // / 2 and 17.53455 / 2.
        let found = clopper_pearson(3, 1_000_000_000_000, 0.95);
        close(found.lower, 0.618_672e-12, 1e-5);
        close(found.upper, 8.767_273e-12, 1e-5);
        close(clopper_pearson(0, 1_000_000_000, 0.95).upper, 3.688_879e-9, 1e-6);
    }

    #[test]
    fn incomplete_beta_at_known_points() {
        close(incomplete_beta(2.0, 3.0, 0.5), 0.6875, 1e-13);
        close(incomplete_beta(0.5, 0.5, 0.25), 1.0 / 3.0, 1e-13);
        close(incomplete_beta(1.0, 7.0, 0.3), 1.0 - 0.7_f64.powi(7), 1e-13);
        // Symmetric cases on both sides of the argument at which `ln_beta` changes its formula.
        for a in [3.0, 9.9, 10.1, 1e4] {
            close(incomplete_beta(a, a, 0.5), 0.5, 1e-10);
        }
        close(incomplete_beta(12.0, 1e6, 12e-6), 0.538_4, 1e-3);
    }

    #[test]
    fn chi_square_tails_match_published_tables() {
        let known = [
            (3.841_459, 1.0, 0.05),
            (18.307_04, 10.0, 0.05),
            (16.811_894, 6.0, 0.01),
            (2.0, 2.0, 0.367_879_4),
        ];
        for (value, degrees, tail) in known {
            close(chi_square_tail(value, degrees), tail, 1e-6);
        }
    }
}
