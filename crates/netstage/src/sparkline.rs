//! A row of bars one line high: the latest values at a glance.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The last `most` values, the largest of them the highest bar; zero is the lowest.
pub fn sparkline(values: &[f64], most: usize) -> String {
    let shown = &values[values.len().saturating_sub(most)..];
    let top = shown.iter().copied().fold(0.0, f64::max);
    let level = |value: f64| if top > 0.0 { (value / top * 7.0).round().clamp(0.0, 7.0) as usize } else { 0 };
    shown.iter().map(|value| BARS[level(*value)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_proportion_to_the_largest_shown() {
        assert_eq!(sparkline(&[9e9, 0.0, 50.0, 100.0], 3), "▁▅█");
        assert_eq!(sparkline(&[0.0, 0.0], 40), "▁▁");
        assert_eq!(sparkline(&[f64::NAN, -1.0, 1.0], 40), "▁▁█");
        assert_eq!(sparkline(&[], 40), "");
    }
}
