//! Fairness indices of a set of throughputs.

/// Returns the weighted fairness index of throughputs xᵢ with weights rᵢ, equation (1) of the I2VFC paper: F
/// = (Σ xᵢ/rᵢ)² / (N · Σ (xᵢ/rᵢ)²).
///
/// The index is 1 if every throughput is proportional to its weight, and 1/N if one flow has everything. It
/// does not depend on the unit of the throughputs. Throughputs must not be negative; weights must be above
/// zero. The result is NaN if there are no throughputs, if all are zero, or if one is NaN.
///
/// Panics if the numbers of weights and throughputs differ.
pub fn weighted_fairness(throughputs: &[f64], weights: &[f64]) -> f64 {
    assert_eq!(throughputs.len(), weights.len(), "one weight per throughput");
    index(throughputs.iter().zip(weights).map(|(throughput, weight)| throughput / weight))
}

/// Returns Jain's fairness index (Jain, Chiu and Hawe, DEC-TR-301, 1984): [`weighted_fairness`] with equal
/// weights.
pub fn jain(throughputs: &[f64]) -> f64 {
    index(throughputs.iter().copied())
}

fn index(shares: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = shares.clone().fold(0.0, f64::max);
    // Relative to the largest share, so that no square leaves the range of f64.
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
    fn index_is_one_for_shares_proportional_to_weights() {
        assert_eq!(weighted_fairness(&[1.0, 2.0, 2.0, 3.0, 4.0], &[1.0, 2.0, 2.0, 3.0, 4.0]), 1.0);
        assert_eq!(jain(&[7.0; 4]), 1.0);
    }

    #[test]
    fn index_is_one_over_n_if_one_flow_has_everything() {
        assert_eq!(jain(&[0.0, 5.0, 0.0, 0.0]), 0.25);
    }

    #[test]
    fn index_matches_hand_calculation() {
        // Shares 3, 1: 16 / (2 · 10).
        assert!((weighted_fairness(&[3.0, 2.0], &[1.0, 2.0]) - 0.8).abs() < 1e-15);
    }

    #[test]
    fn index_without_throughput_is_nan() {
        assert!(jain(&[]).is_nan());
        assert!(jain(&[0.0, 0.0]).is_nan());
        assert!(jain(&[1.0, f64::NAN]).is_nan());
    }
}
