//! Formatting of numbers, quantities and estimates.

use netstage_core::time::Instant;
use netstage_scenario::record::Estimate;

/// Formats a number with at most four significant digits, without trailing zeros.
pub fn number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".into() } else { "–".into() };
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-4..9).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    let decimals = (3 - magnitude).max(0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Rounds to six significant digits. More are not visible in a figure and would double the size of a page.
pub fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Returns the divisor for values up to `largest`, and `unit` with the matching prefix.
pub fn scale(largest: f64, unit: &str) -> (f64, String) {
    let large: &[(f64, &str)] = &[(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let small: &[(f64, &str)] = &[(1e-3, "m"), (1e-6, "µ"), (1e-9, "n")];
    let largest = largest.abs();
    let found = match unit {
        "bit/s" => large.iter().find(|(factor, _)| largest >= *factor),
        "s" if largest > 0.0 && largest < 1.0 => {
            Some(small.iter().find(|(factor, _)| largest >= *factor).unwrap_or(&small[2]))
        }
        _ => None,
    };
    found.map_or((1.0, unit.to_owned()), |(factor, prefix)| (*factor, format!("{prefix}{unit}")))
}

/// Returns the factor that converts unit `from` to unit `to`, or `None` if they differ by more than the prefix.
pub fn ratio(from: &str, to: &str) -> Option<f64> {
    if from == to {
        return Some(1.0);
    }
    let prefixes = [("", 1.0), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)];
    let factor = |unit: &str, base: &str| {
        prefixes.iter().find(|(prefix, _)| format!("{prefix}{base}") == unit).map(|(_, factor)| *factor)
    };
    // A layer may follow the unit: `Mbit/s, ip`.
    ["s", "bit/s", "bit/s, payload", "bit/s, ip", "bit/s, link"]
        .iter()
        .find_map(|base| Some(factor(from, base)? / factor(to, base)?))
}

/// Formats a value with its unit: `12.5 Mbit/s`.
pub fn quantity(value: f64, unit: &str) -> String {
    let (factor, unit) = scale(value, unit);
    format!("{} {unit}", number(value / factor)).trim_end().to_owned()
}

/// Maximum decimals of a mean and its interval.
const MAX_DECIMALS: i32 = 4;
/// Smallest interval that is not rounded to zero at these decimals.
const MIN_ROUNDED_INTERVAL: f64 = 0.5e-4;

/// Formats a mean with half of its interval, `12.5 ± 0.3 Mbit/s`, or a dash if there is no mean.
pub fn estimate(value: &Estimate, unit: &str) -> String {
    let Some(mean) = value.mean else { return "–".into() };
    let (factor, unit) = scale(mean, unit);
    let mean_text = number(mean / factor);
    let text = match value.high {
        Some(high) if high > mean => {
            let half = (high - mean) / factor;
            if half < MIN_ROUNDED_INTERVAL {
                format!("{mean_text} ± {half:.1e}")
            } else {
                // The interval has two significant digits; the mean has the same number of decimals.
                let decimals = (1 - half.log10().floor() as i32).clamp(0, MAX_DECIMALS) as usize;
                format!("{:.decimals$} ± {half:.decimals$}", mean / factor)
            }
        }
        _ => mean_text,
    };
    format!("{text} {unit}").trim_end().to_owned()
}

/// Formats a time span: `10–50 s`.
pub fn span(over: (Instant, Instant)) -> String {
    format!("{}–{} s", number(over.0.as_secs_f64()), number(over.1.as_secs_f64()))
}

/// Formats a rate as in a scenario: `50 Mbit/s`.
pub fn rate(bps: u64) -> String {
    quantity(bps as f64, "bit/s")
}

/// Formats a duration in nanoseconds as in a scenario: `25 ms`.
pub fn duration(ns: u64) -> String {
    quantity(ns as f64 / 1e9, "s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.95312, "0.9531"),
            (50.0, "50"),
            (1234.56, "1235"),
            (123456.0, "123456"),
            (0.000_012, "1.200e-5"),
            (-3.5, "-3.5"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn quantities_have_a_suitable_prefix() {
        assert_eq!(quantity(12_500_000.0, "bit/s"), "12.5 Mbit/s");
        assert_eq!(quantity(0.025, "s"), "25 ms");
        assert_eq!(quantity(4.0, "s"), "4 s");
        assert_eq!(quantity(0.5, ""), "0.5");
        assert_eq!(duration(0), "0 s");
    }

    #[test]
    fn estimates_show_their_interval() {
        let value = |mean, half| Estimate {
            mean: Some(mean),
            low: Some(mean - half),
            high: Some(mean + half),
            runs: 3,
        };
        assert_eq!(estimate(&value(0.95312, 0.0123), ""), "0.953 ± 0.012");
        assert_eq!(estimate(&value(12_345_678.0, 250_000.0), "bit/s"), "12.35 ± 0.25 Mbit/s");
        assert_eq!(estimate(&Estimate { mean: Some(2.0), ..Estimate::default() }, "s"), "2 s");
        assert_eq!(estimate(&Estimate::default(), "s"), "–");
        assert_eq!(estimate(&value(1.0, 0.0), ""), "1");
        assert_eq!(estimate(&value(0.95312, 0.00006), ""), "0.9531 ± 0.0001");
        assert_eq!(estimate(&value(2e-5, 1e-5), ""), "2.000e-5 ± 1.0e-5");
        let equal = crate::statistics::estimate(&[0.1; 3]);
        assert_eq!((estimate(&equal, ""), equal.low, equal.high), ("0.1".into(), Some(0.1), Some(0.1)));
    }
}
