//! How strongly one measure follows another: Spearman's rank correlation, which asks for no straight line, with a
//! confidence interval.

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A rank correlation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Correlation {
    /// Spearman's rho: 1 where one always rises with the other, -1 where it always falls.
    pub coefficient: f64,
    /// With 95 % confidence the true one is at least this, and at most `high`.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// Pairs of values.
    pub count: usize,
    /// As many independent pairs tell as much.
    pub independent: f64,
}

/// Fewest independent pairs that tell anything.
const LEAST: f64 = 4.0;

/// The rank correlation of independent pairs. Pairs with a NaN do not count; `None` where too few are left, or one
/// of the two never changes.
///
/// The interval is Fisher's, with the variance of Bonett and Wright (2000) for ranks.
pub fn correlation(pairs: &[(f64, f64)]) -> Option<Correlation> {
    of_ranks(pairs, |_, _| 0.0)
}

/// The rank correlation of pairs that follow each other in time, as [`correlation`]; as many of them count as are
/// independent by the first autocorrelation of both (Bartlett 1935).
pub fn correlation_in_time(pairs: &[(f64, f64)]) -> Option<Correlation> {
    of_ranks(pairs, |x, y| (lag_one(x) * lag_one(y)).clamp(0.0, 0.99))
}

/// `repeated` is what of a pair the one before has told.
fn of_ranks(pairs: &[(f64, f64)], repeated: impl Fn(&[f64], &[f64]) -> f64) -> Option<Correlation> {
    let known: Vec<(f64, f64)> = pairs.iter().copied().filter(|(x, y)| !x.is_nan() && !y.is_nan()).collect();
    let x = ranks(known.iter().map(|pair| pair.0).collect());
    let y = ranks(known.iter().map(|pair| pair.1).collect());
    let coefficient = pearson(&x, &y)?;
    let repeated = repeated(&x, &y);
    let independent = known.len() as f64 * (1.0 - repeated) / (1.0 + repeated);
    if independent < LEAST {
        return None;
    }
    let deviation = libm::sqrt((1.0 + coefficient * coefficient / 2.0) / (independent - 3.0));
    let z = libm::atanh(coefficient.clamp(-0.999_999, 0.999_999));
    let end = |sign: f64| libm::tanh(z + sign * 1.959_963_984_540_054 * deviation);
    Some(Correlation { coefficient, low: end(-1.0), high: end(1.0), count: known.len(), independent })
}

/// The rank of each value; equal ones share the mean of theirs.
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

/// Correlation of each value with the one before.
fn lag_one(values: &[f64]) -> f64 {
    match values {
        [] | [_] | [_, _] => 0.0,
        _ => pearson(&values[1..], &values[..values.len() - 1]).unwrap_or(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    #[test]
    fn ranks_by_hand() {
        assert_eq!(ranks([5.0, 1.0, 5.0, 9.0].into()), [1.5, 0.0, 1.5, 3.0]);
    }

    #[test]
    fn what_rises_together_is_one_whatever_its_shape() {
        let mut stream = Stream::new(1, "pairs");
        let pairs: Vec<(f64, f64)> =
            (0..50).map(|_| stream.uniform()).map(|x| (x, libm::exp(9.0 * x))).collect();
        let found = correlation(&pairs).unwrap();
        assert!((found.coefficient - 1.0).abs() < 1e-12 && found.low > 0.999, "{found:?}");
        let falls: Vec<(f64, f64)> = pairs.iter().map(|(x, y)| (*x, -y)).collect();
        assert!((correlation(&falls).unwrap().coefficient + 1.0).abs() < 1e-12);
    }

    #[test]
    fn intervals_of_unrelated_values_hold_zero_as_often_as_they_say() {
        let mut stream = Stream::new(2, "pairs");
        let mut draw = || (0..60).map(|_| (stream.uniform(), stream.uniform())).collect::<Vec<_>>();
        let held = (0..1_000).filter(|_| {
            let found = correlation(&draw()).unwrap();
            found.low <= 0.0 && 0.0 <= found.high
        });
        // 950 are expected; seven standard deviations of chance are 48.
        let held = held.count();
        assert!((902..=998).contains(&held), "{held}");
    }

    #[test]
    fn values_that_resemble_those_before_them_count_less() {
        let mut stream = Stream::new(3, "pairs");
        let drawn: Vec<(f64, f64)> = (0..50).map(|_| (stream.uniform(), stream.uniform())).collect();
        let held: Vec<(f64, f64)> = drawn.iter().flat_map(|pair| [*pair; 4]).collect();
        let found = correlation_in_time(&held).unwrap();
        // Each of both is three times in four what it was before.
        assert_eq!(found.count, 200);
        assert!((30.0..90.0).contains(&found.independent), "{found:?}");
        assert_eq!(correlation(&held).unwrap().independent, 200.0);
    }

    #[test]
    fn what_never_changes_tells_nothing() {
        assert_eq!(correlation(&[(1.0, 2.0), (1.0, 3.0), (1.0, 4.0), (1.0, 5.0), (1.0, 6.0)]), None);
        assert_eq!(correlation(&[(f64::NAN, 2.0); 9]), None);
        assert_eq!(correlation(&[]), None);
    }
}
