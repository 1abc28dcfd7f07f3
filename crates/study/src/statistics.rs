//! Estimates over runs.

use netstage_core::measure::Summary;
use netstage_scenario::record::Estimate;

/// Converts a value of a distribution to the unit of its metric.
pub fn in_unit(billionths: u64) -> f64 {
    billionths as f64 / 1e9
}

/// Returns the mean of the values other than NaN, with its 95 % interval. There is no mean if a value is infinite
/// (a run without convergence).
pub fn estimate(values: &[f64]) -> Estimate {
    let present: Vec<f64> = values.iter().copied().filter(|v| !v.is_nan()).collect();
    let mut summary = Summary::from_samples(&present);
    // Rounding errors would move the mean of equal values.
    if present.len() > 1 && present.iter().all(|value| *value == present[0]) {
        (summary.mean, summary.half_width) = (present[0], 0.0);
    }
    let finite = |value: f64| value.is_finite().then_some(value);
    Estimate {
        mean: finite(summary.mean),
        low: finite(summary.mean - summary.half_width),
        high: finite(summary.mean + summary.half_width),
        runs: summary.count as u32,
    }
}
