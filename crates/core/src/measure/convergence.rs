//! Convergence time of a series.

/// Range that a converged series must stay in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Greater than or equal to this value.
    AtLeast(f64),
    /// Less than or equal to this value.
    AtMost(f64),
    /// At most `tolerance` away from `value`, both in the unit of the series.
    Within {
        /// Center of the range.
        value: f64,
        /// Maximum distance from the center.
        tolerance: f64,
    },
}

impl Bound {
    /// Returns whether a value is within the bound; `false` for NaN.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(min) => value >= min,
            Bound::AtMost(max) => value <= max,
            Bound::Within { value: middle, tolerance } => (value - middle).abs() <= tolerance,
        }
    }
}

/// Returns the first bin from which the series stays within the bound until its end. Returns `None` if the
/// last value is outside or the series is empty. Bin k starts k bin widths after the start of the series, so
/// the result times the bin width is the convergence time.
pub fn converged_from(series: &[f64], bound: Bound) -> Option<usize> {
    let kept = series.iter().rev().take_while(|&&value| bound.holds(value)).count();
    (kept > 0).then(|| series.len() - kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn convergence_starts_after_the_last_value_outside_the_bound() {
        let series = [0.2, 0.95, 0.5, 0.9, 0.97];
        assert_eq!(converged_from(&series, Bound::AtLeast(0.9)), Some(3));
        assert_eq!(converged_from(&series, Bound::AtLeast(0.1)), Some(0));
        assert_eq!(converged_from(&series, Bound::AtMost(0.9)), None);
        assert_eq!(converged_from(&series, Bound::Within { value: 0.9, tolerance: 0.08 }), Some(3));
    }

    #[test]
    fn a_missing_value_is_outside_the_bound() {
        assert_eq!(converged_from(&[1.0, f64::NAN, 1.0], Bound::AtLeast(0.5)), Some(2));
        assert_eq!(converged_from(&[1.0, f64::NAN], Bound::AtMost(2.0)), None);
        assert_eq!(converged_from(&[], Bound::AtLeast(0.0)), None);
    }
}
