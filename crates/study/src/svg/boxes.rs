//! Chart of boxes with whiskers.

use super::bars::{CategoryChart, draw_categories};
use super::*;

/// Half the width of a box, of the interval of its median and of a whisker's end.
const HALF_WIDTHS: [f64; 3] = [0.3, 0.12, 0.08];

/// Draws a box per category. A part without values is left out.
pub fn draw(figure: &Figure, area: &Area) -> DrawResult {
    draw_categories(figure, area, draw_boxes)
}

fn draw_boxes(figure: &Figure, chart: &mut CategoryChart, y: &Range<f64>) -> DrawResult {
    let [low, lower, median, upper, high] = figure.series.as_slice() else { return Ok(()) };
    let color = COLORS[0];
    let [box_half, interval_half, end_half] = HALF_WIDTHS;
    for category in 0..figure.categories.len() {
        let x = category as f64;
        let at = |values: &[Option<f64>]| {
            values.get(category).copied().flatten().map(|value| value.clamp(y.start, y.end))
        };
        let level = |value: f64, half: f64| vec![(x - half, value), (x + half, value)];
        let area = |from: f64, to: f64, half: f64| [(x - half, from), (x + half, to)];
        let [low, lower, upper, high] = [low, lower, upper, high].map(|series| at(&series.y));
        for (end, edge) in [(low, lower), (high, upper)] {
            let (Some(end), Some(edge)) = (end, edge) else { continue };
            chart.draw_series([
                PathElement::new(vec![(x, edge), (x, end)], INK.stroke_width(1)),
                PathElement::new(level(end, end_half), INK.stroke_width(1)),
            ])?;
        }
        if let (Some(lower), Some(upper)) = (lower, upper) {
            let corners = area(lower, upper, box_half);
            chart.draw_series([
                Rectangle::new(corners, color.mix(0.25).filled()),
                Rectangle::new(corners, color.stroke_width(1)),
            ])?;
        }
        let interval = [&median.low, &median.high].map(|ends| ends.as_deref().and_then(at));
        if let [Some(from), Some(to)] = interval {
            chart.draw_series([Rectangle::new(area(from, to, interval_half), color.mix(0.45).filled())])?;
        }
        if let Some(median) = at(&median.y) {
            chart.draw_series([PathElement::new(level(median, box_half), color.stroke_width(2))])?;
        }
    }
    Ok(())
}
