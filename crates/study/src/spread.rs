//! Figures of distributions: percentiles and histograms.

use crate::figure::{Axis, AxisScale, Figure, FigureKind, FigureSeries};
use crate::format::{self, rounded};
use netstage_core::measure::Histogram;

/// Points per decade of the axis of nines.
const POINTS_PER_DECADE: f64 = 24.0;
/// Columns of a histogram.
const COLUMNS: usize = 60;
/// Quantiles at the ends of a histogram's axis. Outliers beyond them would compress the rest.
const SHOWN_QUANTILES: (f64, f64) = (0.001, 0.999);

/// Distribution in nanoseconds, drawn as a line.
pub struct DistributionLine {
    /// Name in the legend.
    pub name: String,
    /// Group of adjacent lines in the legend; empty: none.
    pub group: String,
    /// Whether the line is dashed.
    pub dashed: bool,
    /// Histogram of the values.
    pub histogram: Histogram,
}

impl DistributionLine {
    fn series(&self) -> FigureSeries {
        let (name, group) = (self.name.clone(), self.group.clone());
        FigureSeries { name, group, dashed: self.dashed, ..FigureSeries::default() }
    }

    fn seconds(&self, share: f64) -> f64 {
        self.histogram.quantile(share).unwrap_or(0) as f64 / 1e9
    }
}

/// Returns a figure of values over percentiles. `frame` has the figure's texts and the metric on its y axis.
pub fn percentiles(mut frame: Figure, lines: &[DistributionLine]) -> Figure {
    let largest = lines.iter().map(|l| l.seconds(1.0)).fold(0.0, f64::max);
    let (factor, unit) = format::scale(largest, "s");
    frame.kind = FigureKind::Line;
    frame.x = Axis { label: "percentile".into(), scale: AxisScale::Nines, ..Axis::default() };
    scale_values(&mut frame, factor, |frame| &mut frame.y);
    frame.y.unit = unit;
    for line in lines {
        let mut series = line.series();
        // The last point is the largest value, one of all values.
        let end = line.histogram.count().max(2) as f64;
        let steps = (end.log10() * POINTS_PER_DECADE) as i32;
        let inner = (0..=steps).map(|k| 10f64.powf(f64::from(k) / POINTS_PER_DECADE)).filter(|x| *x < end);
        let x: Vec<f64> = inner.chain([end]).map(rounded).collect();
        series.y = x.iter().map(|x| Some(rounded(line.seconds(1.0 - 1.0 / x) / factor))).collect();
        series.x = Some(x);
        frame.series.push(series);
    }
    frame
}

/// Returns a figure of the shares of values, in columns of equal width.
pub fn histogram(mut frame: Figure, lines: &[DistributionLine]) -> Figure {
    let ends = |share| lines.iter().map(move |l| l.seconds(share));
    let (low, high) = SHOWN_QUANTILES;
    let (min, max) = (ends(low).fold(f64::INFINITY, f64::min), ends(high).fold(0.0, f64::max));
    // A single value is drawn with a margin on both sides.
    let (min, max) = if max > min * 1.001 { (min, max) } else { (min * 0.99, max * 1.01 + 1e-9) };
    let (factor, unit) = format::scale(max, "s");
    let width = (max - min) / COLUMNS as f64;
    frame.kind = FigureKind::Line;
    frame.x = std::mem::take(&mut frame.y);
    frame.x.unit = unit;
    scale_values(&mut frame, factor, |frame| &mut frame.x);
    frame.y = Axis { label: "share of values".into(), unit: "%".into(), ..Axis::default() };
    frame.reference_lines.clear();
    for line in lines {
        let mut series = line.series();
        let mut columns = [0u64; COLUMNS];
        for (value, count) in line.histogram.buckets() {
            let position = (value as f64 / 1e9 - min) / width;
            // The last column includes its upper end.
            let column = if position == COLUMNS as f64 { COLUMNS - 1 } else { position.floor() as usize };
            if value as f64 / 1e9 >= min && column < COLUMNS {
                columns[column] += count;
            }
        }
        let all = line.histogram.count().max(1) as f64;
        let mut x = Vec::new();
        for (k, count) in columns.iter().enumerate() {
            x.extend([k, k + 1].map(|edge| rounded((min + edge as f64 * width) / factor)));
            series.y.extend([Some(rounded(*count as f64 * 100.0 / all)); 2]);
        }
        series.x = Some(x);
        frame.series.push(series);
    }
    frame
}

/// Converts the bounds of the value axis and the reference lines to the displayed unit.
fn scale_values(frame: &mut Figure, factor: f64, axis: fn(&mut Figure) -> &mut Axis) {
    let axis = axis(frame);
    (axis.min, axis.max) = (axis.min.map(|v| v / factor), axis.max.map(|v| v / factor));
    frame.reference_lines.iter_mut().for_each(|line| line.value /= factor);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[(u64, u64)]) -> DistributionLine {
        let mut histogram = Histogram::default();
        histogram.add(values);
        DistributionLine { name: "voice".into(), group: String::new(), dashed: false, histogram }
    }

    #[test]
    fn percentiles_increase_up_to_the_largest_value() {
        let frame = Figure { y: Axis { label: "flow.delay".into(), ..Axis::default() }, ..Figure::default() };
        let figure = percentiles(frame, &[spread(&[(1_000_000, 900), (2_000_000, 99), (50_003_968, 1)])]);
        let (x, y) = (figure.series[0].x.as_deref().unwrap(), &figure.series[0].y);
        assert_eq!((x[0], x[x.len() - 1]), (1.0, 1000.0));
        assert!(y.windows(2).all(|pair| pair[0] <= pair[1]));
        // A tenth of the values is above 1 ms, so the line rises at 90 %: 1 / (1 − 0.9) = 10.
        let left = y.iter().position(|y| y.unwrap() > 1.5).unwrap();
        assert!((9.9..12.0).contains(&x[left]), "{}", x[left]);
        assert_eq!(figure.y.unit, "ms");
        // The middle of a bucket differs from its values by less than 0.05 %.
        assert!((y[0].unwrap() - 1.0).abs() < 5e-4);
    }

    #[test]
    fn columns_contain_all_values_except_outliers() {
        for values in
            [vec![(800_000, 1000)], (0..1000).map(|k| (700_000 + k * 200, 1)).collect(), vec![(0, 10)]]
        {
            let figure = histogram(Figure::default(), &[spread(&values)]);
            let shares: f64 = figure.series[0].y.iter().flatten().sum::<f64>() / 2.0;
            assert!((99.5..100.1).contains(&shares), "{shares}");
        }
    }
}
