//! Spearman's rank correlation, which does not assume a linear relation, with a confidence interval.

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A rank correlation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Correlation {
    /// Spearman's rho: 1 if one value always rises with the other, -1 if it always falls.
    pub coefficient: f64,
    /// Lower end of the 95 % confidence interval.
    pub low: f64,
    /// Upper end of the 95 % confidence interval.
    pub high: f64,
    /// Number of pairs.
    pub count: usize,
    /// Effective number of independent pairs.
    pub independent: f64,
}

/// Minimum number of independent pairs for a result.
const MIN_PAIRS: f64 = 4.0;

/// Returns the rank correlation of independent pairs. Pairs with a NaN are left out. Returns `None` if too
/// few are left or if one of the two quantities is constant.
///
/// The interval is Fisher's, with the variance for ranks of Bonett and Wright (2000).
pub fn correlation(pairs: &[(f64, f64)]) -> Option<Correlation> {
    rank_correlation(pairs, |_, _| 0.0)
}

/// Returns the rank correlation of a time series of pairs, as [`correlation`]. The number of independent
/// pairs is reduced by the lag-1 autocorrelations of both quantities (Bartlett 1935).
pub fn correlation_in_time(pairs: &[(f64, f64)]) -> Option<Correlation> {
    rank_correlation(pairs, |x, y| (lag_one(x) * lag_one(y)).clamp(0.0, 0.99))
}

/// Computes the correlation; `redundancy` returns the product of the lag-1 autocorrelations, 0 for
/// independent pairs.
fn rank_correlation(pairs: &[(f64, f64)], redundancy: impl Fn(&[f64], &[f64]) -> f64) -> Option<Correlation> {
    let known: Vec<(f64, f64)> = pairs.iter().copied().filter(|(x, y)| !x.is_nan() && !y.is_nan()).collect();
    let x = ranks(known.iter().map(|pair| pair.0).collect());
    let y = ranks(known.iter().map(|pair| pair.1).collect());
    let coefficient = pearson(&x, &y)?;
    let redundancy = redundancy(&x, &y);
    let independent = known.len() as f64 * (1.0 - redundancy) / (1.0 + redundancy);
    if independent < MIN_PAIRS {
        return None;
    }
    let deviation = libm::sqrt((1.0 + coefficient * coefficient / 2.0) / (independent - 3.0));
    let z = libm::atanh(coefficient.clamp(-0.999_999, 0.999_999));
    let end = |sign: f64| libm::tanh(z + sign * 1.959_963_984_540_054 * deviation);
    Some(Correlation { coefficient, low: end(-1.0), high: end(1.0), count: known.len(), independent })
}

/// Returns the rank of each value; equal values share their mean rank.
fn ranks(values: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = alloc::vec![0.0; values.len()];
    let mut first = 0;
    while first < order.len() {
        let same = order[first..].iter().take_while(|at| values[**at] == values[order[first]]).count();
        let shared = first as f64 + (same as f64 - 1.0) / 2.0;
        order[first..first + same].iter().for_each(|at| ranks[*at] = shared);
        first += same;
    }
    ranks
}

fn pearson(x: &[f64], y: &[f64]) -> Option<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mean_x, mean_y) = (mean(x), mean(y));
    let products = x.iter().zip(y).map(|(x, y)| (x - mean_x, y - mean_y));
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (dx, dy) in products {
        (xx, yy, xy) = (xx + dx * dx, yy + dy * dy, xy + dx * dy);
    }
    (xx > 0.0 && yy > 0.0).then(|| xy / libm::sqrt(xx * yy))
}

/// Returns the lag-1 autocorrelation.
fn lag_one(values: &[f64]) -> f64 {
    match values {
        [] | [_] | [_, _] => 0.0,
        _ => pearson(&values[1..], &values[..values.len() - 1]).unwrap_or(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;

    #[test]
    fn ranks_match_hand_calculation() {
        assert_eq!(ranks([5.0, 1.0, 5.0, 9.0].into()), [1.5, 0.0, 1.5, 3.0]);
    }

    #[test]
    fn monotonic_relation_of_any_shape_has_correlation_one() {
        let mut stream = RandomStream::new(1, "pairs");
        let pairs: Vec<(f64, f64)> =
            (0..50).map(|_| stream.uniform()).map(|x| (x, libm::exp(9.0 * x))).collect();
        let found = correlation(&pairs).unwrap();
        assert!((found.coefficient - 1.0).abs() < 1e-12 && found.low > 0.999, "{found:?}");
        let falls: Vec<(f64, f64)> = pairs.iter().map(|(x, y)| (*x, -y)).collect();
        assert!((correlation(&falls).unwrap().coefficient + 1.0).abs() < 1e-12);
    }

    #[test]
    fn intervals_of_unrelated_values_contain_zero_at_the_stated_rate() {
        let mut stream = RandomStream::new(2, "pairs");
        let mut draw = || (0..60).map(|_| (stream.uniform(), stream.uniform())).collect::<Vec<_>>();
        let held = (0..1_000).filter(|_| {
            let found = correlation(&draw()).unwrap();
            found.low <= 0.0 && 0.0 <= found.high
        });
        // The expected count is 950; the tolerance of 48 is seven standard deviations.
        let held = held.count();
        assert!((902..=998).contains(&held), "{held}");
    }

    #[test]
    fn autocorrelated_values_count_less() {
        let mut stream = RandomStream::new(3, "pairs");
        let drawn: Vec<(f64, f64)> = (0..50).map(|_| (stream.uniform(), stream.uniform())).collect();
        let held: Vec<(f64, f64)> = drawn.iter().flat_map(|pair| [*pair; 4]).collect();
        let found = correlation_in_time(&held).unwrap();
        // Three of four values repeat the previous one.
        assert_eq!(found.count, 200);
        assert!((30.0..90.0).contains(&found.independent), "{found:?}");
        assert_eq!(correlation(&held).unwrap().independent, 200.0);
    }

    #[test]
    fn constant_or_missing_values_have_no_correlation() {
        assert_eq!(correlation(&[(1.0, 2.0), (1.0, 3.0), (1.0, 4.0), (1.0, 5.0), (1.0, 6.0)]), None);
        assert_eq!(correlation(&[(f64::NAN, 2.0); 9]), None);
        assert_eq!(correlation(&[]), None);
    }
}
