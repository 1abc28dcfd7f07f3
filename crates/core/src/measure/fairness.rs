//! Fairness indices of a set of throughputs.

/// Weighted fairness index of throughputs xᵢ with weights rᵢ, equation (1) of the I2VFC
/// paper: F = (Σ xᵢ/rᵢ)² / (N · Σ (xᵢ/rᵢ)²).
///
/// 1 where every throughput is in proportion to its weight, 1/N where one has all. Any
/// common unit will do: F does not change when all throughputs are scaled alike.
/// Throughputs are not negative, weights above zero. NaN where there is nothing to share
/// (no throughputs, or all of them zero) and where a throughput is NaN.
///
/// Panics if there are not as many weights as throughputs.
pub fn weighted_fairness(throughputs: &[f64], weights: &[f64]) -> f64 {
    assert_eq!(throughputs.len(), weights.len(), "each throughput has its weight");
    index(throughputs.iter().zip(weights).map(|(throughput, weight)| throughput / weight))
}

/// Jain's fairness index (Jain, Chiu and Hawe, DEC-TR-301, 1984):
/// [`weighted_fairness`] with equal weights.
pub fn jain(throughputs: &[f64]) -> f64 {
    index(throughputs.iter().copied())
}

fn index(shares: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = shares.clone().fold(0.0, f64::max);
    // Shares are taken relative to the largest, so that no square leaves the range of f64.
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares {
        let relative = share / largest;
        count += 1.0;
        sum += relative;
        squares += relative * relative;
    }
    sum * sum / (count * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_in_proportion_to_weights_are_fair() {
        assert_eq!(weighted_fairness(&[1.0, 2.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 2.0, 3.0, 4.0]), 1.0);
        assert_eq!(jain(&[7.0; 4]), 1.0);
    }

    #[test]
    fn one_with_all_is_one_over_n() {
        assert_eq!(jain(&[0.0, 5.0, 0.0, 0.0]), 0.25);
    }

    #[test]
    fn hand_computed() {
        // Shares 3, 1: 16 / (2 · 10).
        assert!((weighted_fairness(&[3.0, 2.0], &[1.0, 2.0]) - 0.8).abs() < 1e-15);
    }

    #[test]
    fn nothing_to_share_is_not_a_number() {
        assert!(jain(&[]).is_nan());
        assert!(jain(&[0.0, 0.0]).is_nan());
        assert!(jain(&[1.0, f64::NAN]).is_nan());
    }
}
