//! The Kolmogorov–Smirnov test: whether samples come from a distribution. Used to prove that
//! a Poisson process is one, and that a learned model fits.

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Outcome of a test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KolmogorovSmirnov {
    /// The largest distance between the empirical and the expected distribution function.
    pub statistic: f64,
    /// How likely a distance as large is if the samples do come from the distribution. Valid
    /// for a distribution fixed beforehand; fitted to these samples it is too lenient.
    pub p_value: f64,
    /// Number of samples.
    pub samples: usize,
}

/// Test samples against a distribution function. NaN samples are not allowed.
///
/// Panics without samples.
pub fn kolmogorov_smirnov(samples: &[f64], distribution: impl Fn(f64) -> f64) -> KolmogorovSmirnov {
    assert!(!samples.is_empty(), "no samples say nothing of a distribution");
    let mut sorted: Vec<f64> = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let distances = sorted.iter().enumerate().map(|(below, &sample)| {
        let (expected, below) = (distribution(sample), below as f64);
        (expected - below / n).max((below + 1.0) / n - expected)
    });
    let statistic = distances.fold(0.0, f64::max);
    KolmogorovSmirnov { statistic, p_value: p_value(statistic, n), samples: samples.len() }
}

/// Test gaps between packets against an exponential distribution of this mean: whether the
/// packets form a Poisson process of that rate.
pub fn poisson_gaps(gaps: &[f64], mean: f64) -> KolmogorovSmirnov {
    kolmogorov_smirnov(gaps, |gap| -libm::expm1(-gap.max(0.0) / mean))
}

/// Kolmogorov's limit with Stephens' correction for finite n (1970), good from n = 5.
fn p_value(statistic: f64, n: f64) -> f64 {
    let root = libm::sqrt(n);
    let x = (root + 0.12 + 0.11 / root) * statistic;
    if x < 0.2 {
        // The alternating series no longer converges, and every digit says 1.
        return 1.0;
    }
    let term = |k: i32| libm::exp(-2.0 * f64::from(k * k) * x * x);
    let sum: f64 = (1..=100).map(|k| if k % 2 == 1 { term(k) } else { -term(k) }).sum();
    (2.0 * sum).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    #[test]
    fn by_hand() {
        // Against the uniform: at 0.1, 0.4, 0.7 the distances are 0.233, 0.267 and 0.3.
        let found = kolmogorov_smirnov(&[0.7, 0.1, 0.4], |x| x);
        assert!((found.statistic - 0.3).abs() < 1e-15, "{found:?}");
    }

    #[test]
    fn critical_values_are_those_of_the_tables() {
        // Large samples: 1.3581 / √n at 5 %, 1.6276 / √n at 1 %; n = 20: 0.29408 and 0.35241.
        for (statistic, n, p) in
            [(0.013_581, 1e4, 0.05), (0.016_276, 1e4, 0.01), (0.294_08, 20.0, 0.05), (0.352_41, 20.0, 0.01)]
        {
            assert!(
                (p_value(statistic, n) / p - 1.0).abs() < 0.03,
                "{statistic} {n} {}",
                p_value(statistic, n)
            );
        }
        assert_eq!((p_value(0.0, 50.0), p_value(1.0, 1e4)), (1.0, 0.0));
    }

    #[test]
    fn p_values_of_true_samples_are_uniform() {
        let mut stream = Stream::new(11, "poisson");
        let tests = 2000;
        let rejected = (0..tests)
            .filter(|_| {
                let gaps: [f64; 50] = core::array::from_fn(|_| stream.exponential(3.0));
                poisson_gaps(&gaps, 3.0).p_value < 0.1
            })
            .count();
        // Four standard deviations of a binomial count around 10 %.
        assert!((rejected as f64 - 200.0).abs() < 4.0 * libm::sqrt(180.0), "{rejected}");
    }

    #[test]
    fn regular_gaps_are_not_poisson() {
        let mut stream = Stream::new(12, "regular");
        let gaps: Vec<f64> = (0..500).map(|_| 1.0 + 0.2 * stream.normal()).collect();
        assert!(poisson_gaps(&gaps, 1.0).p_value < 1e-9);
    }
}
