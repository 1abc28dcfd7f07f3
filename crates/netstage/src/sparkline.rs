//! Sparkline: a one-line bar chart of the latest values.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the last `max` values as bars between zero and the largest of them.
pub fn sparkline(values: &[f64], max: usize) -> String {
    let shown = &values[values.len().saturating_sub(max)..];
    let top = shown.iter().copied().fold(0.0, f64::max);
    let level = |value: f64| if top > 0.0 { (value / top * 7.0).round().clamp(0.0, 7.0) as usize } else { 0 };
    shown.iter().map(|value| BARS[level(*value)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_scaled_to_the_largest_value_shown() {
        assert_eq!(sparkline(&[9e9, 0.0, 50.0, 100.0], 3), "▁▅█");
        assert_eq!(sparkline(&[0.0, 0.0], 40), "▁▁");
        assert_eq!(sparkline(&[f64::NAN, -1.0, 1.0], 40), "▁▁█");
        assert_eq!(sparkline(&[], 40), "");
    }
}
