//! When a series has settled.

/// Where a series should stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// At or above this value.
    AtLeast(f64),
    /// At or below this value.
    AtMost(f64),
    /// No further than `tolerance` from `value`, both in the series' unit.
    Within {
        /// The middle.
        value: f64,
        /// The largest distance from it.
        tolerance: f64,
    },
}

impl Bound {
    /// Whether a value keeps to the bound; NaN does not.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
            Bound::Within { value: middle, tolerance } => (value - middle).abs() <= tolerance,
        }
    }
}

/// The first bin from which the series keeps to the bound until its end; `None` if its
/// last value does not, or there is none. Bin k begins k bin widths after the series does,
/// which is the time it took to converge.
pub fn converged_from(series: &[f64], bound: Bound) -> Option<usize> {
    let kept = series.iter().rev().take_while(|&&value| bound.holds(value)).count();
    (kept > 0).then(|| series.len() - kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_time_it_leaves_the_bound_counts() {
        let series = [0.2, 0.95, 0.5, 0.9, 0.97];
        assert_eq!(converged_from(&series, Bound::AtLeast(0.9)), Some(3));
        assert_eq!(converged_from(&series, Bound::AtLeast(0.1)), Some(0));
        assert_eq!(converged_from(&series, Bound::AtMost(0.9)), None);
        assert_eq!(converged_from(&series, Bound::Within { value: 0.9, tolerance: 0.08 }), Some(3));
    }

    #[test]
    fn a_gap_in_the_series_has_not_settled() {
        assert_eq!(converged_from(&[1.0, f64::NAN, 1.0], Bound::AtLeast(0.5)), Some(2));
        assert_eq!(converged_from(&[1.0, f64::NAN], Bound::AtMost(2.0)), None);
        assert_eq!(converged_from(&[], Bound::AtLeast(0.0)), None);
    }
}
