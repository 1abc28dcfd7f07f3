//! Figures of distributions: percentiles, histograms, cumulative distributions and boxes.

use crate::figure::{Axis, AxisScale, Figure, FigureKind, FigureSeries};
use crate::format::{self, rounded};
use crate::statistics::in_unit;
use netstage_core::measure::{Histogram, QuantileEstimate, values_needed};

/// Points per decade of the axis of nines.
const POINTS_PER_DECADE: f64 = 24.0;
/// Columns of a histogram.
const COLUMNS: usize = 60;
/// Quantiles at the ends of a histogram's axis. Outliers beyond them would compress the rest.
const SHOWN_QUANTILES: (f64, f64) = (0.001, 0.999);

/// Minimum rise of a cumulative distribution between two of its points.
const MIN_RISE: f64 = 1.0 / 400.0;
/// Percentiles of a box and its whiskers, with their names.
const BOX: [(f64, &str); 5] =
    [(0.05, "5 %"), (0.25, "25 %"), (0.5, "median"), (0.75, "75 %"), (0.95, "95 %")];

/// Distribution, drawn as a line.
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

    fn value(&self, share: f64) -> f64 {
        in_unit(self.histogram.quantile(share).unwrap_or(0))
    }

    /// Returns the highest position on the axis of nines whose percentile has enough values, or `None` if not even the
    /// median has.
    fn last_known(&self) -> Option<f64> {
        let is_known = |x: f64| values_needed(1.0 - 1.0 / x) <= self.histogram.count();
        let positions = (0..).map(|k| 2.0 * 10f64.powf(f64::from(k) / POINTS_PER_DECADE));
        positions.take_while(|x| is_known(*x)).last()
    }
}

/// Returns a figure of values over percentiles, or `None` if all lines have too few values. A line ends at the highest
/// percentile with enough values. `frame` has the figure's texts and the metric on its y axis; `unit` is that of the
/// metric.
pub fn percentiles(mut frame: Figure, lines: &[DistributionLine], unit: &str) -> Option<Figure> {
    let known: Vec<_> = lines.iter().filter_map(|line| Some((line, line.last_known()?))).collect();
    if known.is_empty() {
        return None;
    }
    note_few(&mut frame, lines.len() - known.len());
    let largest = known.iter().map(|(line, end)| line.value(1.0 - 1.0 / end)).fold(0.0, f64::max);
    let (factor, unit) = format::scale(largest, unit);
    frame.kind = FigureKind::Line;
    frame.x = Axis { label: "percentile".into(), scale: AxisScale::Nines, ..Axis::default() };
    scale_values(&mut frame, factor, |frame| &mut frame.y);
    frame.y.unit = unit;
    for (line, end) in known {
        let mut series = line.series();
        let steps = (end.log10() * POINTS_PER_DECADE) as i32;
        let inner = (0..=steps).map(|k| 10f64.powf(f64::from(k) / POINTS_PER_DECADE)).filter(|x| *x < end);
        let x: Vec<f64> = inner.chain([end]).map(rounded).collect();
        series.y = x.iter().map(|x| Some(rounded(line.value(1.0 - 1.0 / x) / factor))).collect();
        series.x = Some(x);
        frame.series.push(series);
    }
    Some(frame)
}

/// Returns a figure of the share of values up to each value, with a confidence band of the whole curve. `frame` and `unit`
/// as in [`percentiles`].
pub fn cumulative(mut frame: Figure, lines: &[DistributionLine], unit: &str) -> Figure {
    let largest = lines.iter().map(|line| line.value(1.0)).fold(0.0, f64::max);
    let (factor, unit) = format::scale(largest, unit);
    value_axis_below(&mut frame, factor, unit);
    let percent = |share: f64| Some(rounded(share.clamp(0.0, 1.0) * 100.0));
    frame.y = Axis {
        label: "values at or below".into(),
        unit: "%".into(),
        min: Some(0.0),
        max: Some(100.0),
        ..Axis::default()
    };
    frame.intervals =
        "Shaded: 95 % confidence band of the curve (Dvoretzky, Kiefer and Wolfowitz), for independent \
                       values."
            .into();
    for line in lines {
        let mut series = line.series();
        let all = line.histogram.count() as f64;
        let half_width = (40f64.ln() / (2.0 * all)).sqrt();
        let (mut x, mut shares) = (Vec::new(), Vec::new());
        let (mut below, mut drawn) = (0, 0.0);
        for (value, count) in line.histogram.buckets() {
            below += count;
            let share = below as f64 / all;
            if drawn == 0.0 || share - drawn >= MIN_RISE || below == line.histogram.count() {
                x.extend([rounded(in_unit(value) / factor); 2]);
                shares.extend([drawn, share]);
                drawn = share;
            }
        }
        series.y = shares.iter().map(|share| percent(*share)).collect();
        series.low = Some(shares.iter().map(|share| percent(share - half_width)).collect());
        series.high = Some(shares.iter().map(|share| percent(share + half_width)).collect());
        series.x = Some(x);
        frame.series.push(series);
    }
    frame
}

/// Returns a figure with a box per distribution. `frame` and `unit` as in [`percentiles`].
pub fn boxes(mut frame: Figure, lines: &[DistributionLine], unit: &str) -> Figure {
    let quantile = |line: &DistributionLine, share| line.histogram.estimate(share);
    let few = lines.iter().filter(|line| quantile(line, 0.5).is_none()).count();
    note_few(&mut frame, few);
    let largest = |line: &DistributionLine| {
        BOX.iter()
            .filter_map(|(share, _)| quantile(line, *share))
            .map(|q| in_unit(q.high))
            .fold(0.0, f64::max)
    };
    let (factor, unit) = format::scale(lines.iter().map(largest).fold(0.0, f64::max), unit);
    scale_values(&mut frame, factor, |frame| &mut frame.y);
    frame.kind = FigureKind::Box;
    frame.y.unit = unit;
    frame.categories = lines.iter().map(|line| line.name.clone()).collect();
    frame.intervals =
        "Box: 25 %, median, 75 %; whiskers: 5 % and 95 %; dark: 95 % confidence interval of the median, for \
                       independent values. A percentile with too few values is not drawn."
            .into();
    let shown = |value| rounded(in_unit(value) / factor);
    for (share, name) in BOX {
        let estimates: Vec<_> = lines.iter().map(|line| quantile(line, share)).collect();
        let column = |value: fn(&QuantileEstimate) -> u64| {
            estimates.iter().map(|estimate| estimate.as_ref().map(value).map(shown)).collect()
        };
        frame.series.push(FigureSeries {
            name: name.into(),
            y: column(|estimate| estimate.value),
            low: (share == 0.5).then(|| column(|estimate| estimate.low)),
            high: (share == 0.5).then(|| column(|estimate| estimate.high)),
            ..FigureSeries::default()
        });
    }
    frame
}

/// Adds to the caption how many distributions have too few values for a median.
fn note_few(frame: &mut Figure, few: usize) {
    if few > 0 {
        let needed = values_needed(0.5);
        let note = format!("{} ({few} not drawn: fewer than {needed} values.)", frame.caption);
        frame.caption = note.trim_start().into();
    }
}

/// Returns a figure of the shares of values, in columns of equal width.
pub fn histogram(mut frame: Figure, lines: &[DistributionLine], unit: &str) -> Figure {
    let ends = |share| lines.iter().map(move |l| l.value(share));
    let (low, high) = SHOWN_QUANTILES;
    let (min, max) = (ends(low).fold(f64::INFINITY, f64::min), ends(high).fold(0.0, f64::max));
    // A single value is drawn with a margin on both sides.
    let (min, max) = if max > min * 1.001 { (min, max) } else { (min * 0.99, max * 1.01 + 1e-9) };
    let (factor, unit) = format::scale(max, unit);
    let width = (max - min) / COLUMNS as f64;
    value_axis_below(&mut frame, factor, unit);
    frame.y = Axis { label: "share of values".into(), unit: "%".into(), ..Axis::default() };
    for line in lines {
        let mut series = line.series();
        let mut columns = [0u64; COLUMNS];
        for (value, count) in line.histogram.buckets() {
            let position = (in_unit(value) - min) / width;
            // The last column includes its upper end.
            let column = if position == COLUMNS as f64 { COLUMNS - 1 } else { position.floor() as usize };
            if in_unit(value) >= min && column < COLUMNS {
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

/// Moves the values to the horizontal axis of a line figure. Its reference lines would be vertical, so they are dropped.
fn value_axis_below(frame: &mut Figure, factor: f64, unit: String) {
    frame.kind = FigureKind::Line;
    frame.x = std::mem::take(&mut frame.y);
    frame.x.unit = unit;
    scale_values(frame, factor, |frame| &mut frame.x);
    frame.reference_lines.clear();
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
    use netstage_core::rng::RandomStream;

    fn spread(values: &[(u64, u64)]) -> DistributionLine {
        let mut histogram = Histogram::default();
        histogram.add(values);
        DistributionLine { name: "voice".into(), group: String::new(), dashed: false, histogram }
    }

    #[test]
    fn percentiles_increase_up_to_the_largest_value() {
        let frame = Figure { y: Axis { label: "flow.delay".into(), ..Axis::default() }, ..Figure::default() };
        let line = spread(&[(1_000_000, 9_000), (2_000_000, 990), (50_003_968, 10)]);
        let few = spread(&[(1_000_000, 5)]);
        assert_eq!(percentiles(frame.clone(), std::slice::from_ref(&few), "s"), None);
        let figure = percentiles(frame, &[line, few], "s").unwrap();
        assert_eq!(
            (figure.series.len(), figure.caption.as_str()),
            (1, "(1 not drawn: fewer than 6 values.)")
        );
        let (x, y) = (figure.series[0].x.as_deref().unwrap(), &figure.series[0].y);
        // 99.96 % needs 9,221 values, 99.97 % needs 12,295.
        assert_eq!(x[0], 1.0);
        assert!((2_500.0..3_333.0).contains(&x[x.len() - 1]), "{}", x[x.len() - 1]);
        assert!(y.windows(2).all(|pair| pair[0] <= pair[1]));
        // A tenth of the values is above 1 ms, so the line rises at 90 %: 1 / (1 − 0.9) = 10.
        let left = y.iter().position(|y| y.unwrap() > 1.5).unwrap();
        assert!((9.9..12.0).contains(&x[left]), "{}", x[left]);
        assert_eq!(figure.y.unit, "ms");
        // The middle of a bucket differs from its values by less than 0.05 %.
        assert!((y[0].unwrap() - 1.0).abs() < 5e-4);
    }

    /// Draws samples, and compares both figures with the sorted values.
    #[test]
    fn curves_and_boxes_match_the_sorted_values() {
        for seed in 0..100 {
            let mut stream = RandomStream::new(seed, "values");
            let count = 1 + stream.below(3_000) as usize;
            let mut values: Vec<u64> = (0..count).map(|_| stream.exponential(1e7) as u64).collect();
            values.sort_unstable();
            let mut line = spread(&[]);
            values.iter().for_each(|value| line.histogram.record(*value));
            let about = format!("seed {seed}, {count} values");
            // In milliseconds, with the error of a bucket and of the six digits shown.
            let is_near =
                |shown: f64, exact: u64| (shown * 1e6 - exact as f64).abs() <= 6e-4 * exact as f64 + 1.0;
            let axis = || Figure { y: Axis::default(), ..Figure::default() };

            let figure = cumulative(axis(), std::slice::from_ref(&line), "s");
            let scale =
                [("s", 1e3), ("ms", 1.0), ("µs", 1e-3)].into_iter().find(|(unit, _)| *unit == figure.x.unit);
            let scale = scale.unwrap().1;
            let (x, y) = (figure.series[0].x.as_deref().unwrap(), &figure.series[0].y);
            assert_eq!((y[0], y[y.len() - 1]), (Some(0.0), Some(100.0)), "{about}");
            for (x, y) in x.iter().zip(y).skip(1).step_by(2) {
                let rank = (y.unwrap() / 100.0 * count as f64).round() as usize;
                assert!(is_near(x * scale, values[rank - 1]), "{about}: {x} at {y:?}");
            }

            let figure = boxes(axis(), &[line], "s");
            let drawn = figure.series.iter().map(|series| series.y[0]);
            let scale = match figure.y.unit.as_str() {
                "s" => 1e3,
                "ms" => 1.0,
                _ => 1e-3,
            };
            for (needed, (value, (share, _))) in [72, 13, 6, 13, 72].into_iter().zip(drawn.zip(BOX)) {
                assert_eq!(value.is_some(), count >= needed, "{about}");
                let rank = ((share * count as f64).ceil() as usize).max(1);
                assert!(value.is_none_or(|value| is_near(value * scale, values[rank - 1])), "{about}");
            }
            let median = &figure.series[2];
            if let (Some(low), Some(high)) =
                (median.low.as_ref().unwrap()[0], median.high.as_ref().unwrap()[0])
            {
                assert!((low..=high).contains(&median.y[0].unwrap()), "{about}");
            }
        }
    }

    #[test]
    fn columns_contain_all_values_except_outliers() {
        for values in
            [vec![(800_000, 1000)], (0..1000).map(|k| (700_000 + k * 200, 1)).collect(), vec![(0, 10)]]
        {
            let figure = histogram(Figure::default(), &[spread(&values)], "s");
            let shares: f64 = figure.series[0].y.iter().flatten().sum::<f64>() / 2.0;
            assert!((99.5..100.1).contains(&shares), "{shares}");
        }
    }
}
