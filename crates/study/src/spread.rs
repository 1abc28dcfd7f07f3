//! Distributions as lines of a figure: percentiles, and shares of values.

use crate::figure::{Axis, Figure, Kind, Scale, Series};
use crate::format::{self, rounded};
use netstage_core::measure::Histogram;

/// Points per factor of ten of the axis of nines.
const POINTS: f64 = 24.0;
/// Columns of a histogram.
const COLUMNS: usize = 60;
/// What lies beyond these shares would leave the rest of a histogram too little room.
const SHOWN: (f64, f64) = (0.001, 0.999);

/// A distribution in nanoseconds, to be drawn as a line of this name.
pub struct Spread {
    /// Its name in the legend.
    pub name: String,
    /// Lines of a group stand together.
    pub group: String,
    /// Drawn dashed.
    pub dashed: bool,
    /// How often each value occurred.
    pub histogram: Histogram,
}

impl Spread {
    fn series(&self) -> Series {
        let (name, group) = (self.name.clone(), self.group.clone());
        Series { name, group, dashed: self.dashed, ..Series::default() }
    }

    fn seconds(&self, share: f64) -> f64 {
        self.histogram.quantile(share).unwrap_or(0) as f64 / 1e9
    }
}

/// Values over percentiles. `frame` has the figure's texts, and on its y axis the metric.
pub fn percentiles(mut frame: Figure, lines: &[Spread]) -> Figure {
    let largest = lines.iter().map(|l| l.seconds(1.0)).fold(0.0, f64::max);
    let (factor, unit) = format::scale(largest, "s");
    frame.kind = Kind::Line;
    frame.x = Axis { label: "percentile".into(), scale: Scale::Nines, ..Axis::default() };
    scale_values(&mut frame, factor, |frame| &mut frame.y);
    frame.y.unit = unit;
    for line in lines {
        let mut series = line.series();
        // The last point stands for the largest value: one of all.
        let end = line.histogram.count().max(2) as f64;
        let steps = (end.log10() * POINTS) as i32;
        let inner = (0..=steps).map(|k| 10f64.powf(f64::from(k) / POINTS)).filter(|x| *x < end);
        let x: Vec<f64> = inner.chain([end]).map(rounded).collect();
        series.y = x.iter().map(|x| Some(rounded(line.seconds(1.0 - 1.0 / x) / factor))).collect();
        series.x = Some(x);
        frame.series.push(series);
    }
    frame
}

/// Shares of values, in columns of equal width.
pub fn histogram(mut frame: Figure, lines: &[Spread]) -> Figure {
    let ends = |share| lines.iter().map(move |l| l.seconds(share));
    let (least, most) = (ends(SHOWN.0).fold(f64::INFINITY, f64::min), ends(SHOWN.1).fold(0.0, f64::max));
    // A single value has a column of its own, with some room beside it.
    let (least, most) = if most > least * 1.001 { (least, most) } else { (least * 0.99, most * 1.01 + 1e-9) };
    let (factor, unit) = format::scale(most, "s");
    let width = (most - least) / COLUMNS as f64;
    frame.kind = Kind::Line;
    frame.x = std::mem::take(&mut frame.y);
    frame.x.unit = unit;
    scale_values(&mut frame, factor, |frame| &mut frame.x);
    frame.y = Axis { label: "share of values".into(), unit: "%".into(), ..Axis::default() };
    frame.reference_lines.clear();
    for line in lines {
        let mut series = line.series();
        let mut columns = [0u64; COLUMNS];
        for (value, count) in line.histogram.buckets() {
            let place = (value as f64 / 1e9 - least) / width;
            // The last column holds its upper end too.
            let place = if place == COLUMNS as f64 { COLUMNS - 1 } else { place.floor() as usize };
            if value as f64 / 1e9 >= least && place < COLUMNS {
                columns[place] += count;
            }
        }
        let all = line.histogram.count().max(1) as f64;
        let mut x = Vec::new();
        for (k, count) in columns.iter().enumerate() {
            x.extend([k, k + 1].map(|edge| rounded((least + edge as f64 * width) / factor)));
            series.y.extend([Some(rounded(*count as f64 * 100.0 / all)); 2]);
        }
        series.x = Some(x);
        frame.series.push(series);
    }
    frame
}

/// Tells the ends of the value axis and the reference lines in the unit shown.
fn scale_values(frame: &mut Figure, factor: f64, axis: fn(&mut Figure) -> &mut Axis) {
    let axis = axis(frame);
    (axis.min, axis.max) = (axis.min.map(|v| v / factor), axis.max.map(|v| v / factor));
    frame.reference_lines.iter_mut().for_each(|line| line.value /= factor);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[(u64, u64)]) -> Spread {
        let mut histogram = Histogram::default();
        histogram.add(values);
        Spread { name: "voice".into(), group: String::new(), dashed: false, histogram }
    }

    #[test]
    fn percentiles_rise_to_the_largest_value() {
        let frame = Figure { y: Axis { label: "flow.delay".into(), ..Axis::default() }, ..Figure::default() };
        let figure = percentiles(frame, &[spread(&[(1_000_000, 900), (2_000_000, 99), (50_003_968, 1)])]);
        let (x, y) = (figure.series[0].x.as_deref().unwrap(), &figure.series[0].y);
        assert_eq!((x[0], x[x.len() - 1]), (1.0, 1000.0));
        assert!(y.windows(2).all(|pair| pair[0] <= pair[1]));
        // A tenth lies above 1 ms, so the line leaves it at 90 %: 1 / (1 − 0.9) = 10.
        let left = y.iter().position(|y| y.unwrap() > 1.5).unwrap();
        assert!((9.9..12.0).contains(&x[left]), "{}", x[left]);
        assert_eq!(figure.y.unit, "ms");
        // A bucket's middle differs from what fell into it by less than 0.05 %.
        assert!((y[0].unwrap() - 1.0).abs() < 5e-4);
    }

    #[test]
    fn columns_hold_everything_but_the_farthest_values() {
        for values in
            [vec![(800_000, 1000)], (0..1000).map(|k| (700_000 + k * 200, 1)).collect(), vec![(0, 10)]]
        {
            let figure = histogram(Figure::default(), &[spread(&values)]);
            let shares: f64 = figure.series[0].y.iter().flatten().sum::<f64>() / 2.0;
            assert!((99.5..100.1).contains(&shares), "{shares}");
        }
    }
}
