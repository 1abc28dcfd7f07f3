//! Line chart.

use super::*;
use plotters::chart::SeriesAnno;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};

/// Draws a line chart with confidence bands.
pub fn draw(figure: &Figure, area: &Area) -> DrawResult {
    let x = ends(&figure.x, figure.series.iter().flat_map(|s| figure.x_values(s).iter().copied()), false);
    let y = y_ends(figure);
    let mut builder = ChartBuilder::on(area);
    builder.margin(8).margin_right(24).x_label_area_size(46).y_label_area_size(70);
    if figure.x.scale != AxisScale::Linear {
        let chart = builder.build_cartesian_2d(x.clone().log_scale(), y.clone())?;
        plot_lines(figure, chart, x, y)
    } else {
        let chart = builder.build_cartesian_2d(x.clone(), y.clone())?;
        plot_lines(figure, chart, x, y)
    }
}

fn plot_lines<'a, X>(
    figure: &Figure,
    mut chart: ChartContext<'a, SVGBackend<'_>, Cartesian2d<X, plotters::coord::types::RangedCoordf64>>,
    x: Range<f64>,
    y: Range<f64>,
) -> DrawResult
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let (x_title, y_title) = (axis_title(&figure.x), axis_title(&figure.y));
    chart
        .configure_mesh()
        .x_desc(&x_title)
        .y_desc(&y_title)
        .axis_desc_style(style(13.0, INK))
        .label_style(style(12.0, MUTED))
        .x_label_formatter(&|v| position_label(&figure.x, *v))
        .y_label_formatter(&|v| format::number(tidy(*v)))
        .light_line_style(TRANSPARENT)
        .bold_line_style(RULE)
        .axis_style(MUTED)
        .draw()?;
    for line in &figure.reference_lines {
        let ends = vec![(x.start, line.value), (x.end, line.value)];
        chart.draw_series(DashedLineSeries::new(ends, 3, 4, MUTED.stroke_width(1)))?;
        // At the left and below the line: curves start later, and most bounds are lower bounds.
        let style = style(11.0, MUTED).pos(Pos::new(HPos::Left, VPos::Top));
        let label = Text::new(line.label.clone(), (4, 4), style);
        chart.draw_series([EmptyElement::at((x.start, line.value)) + label])?;
    }
    for (index, series) in figure.series.iter().enumerate() {
        let (color, round) = look(figure, index);
        let xs = figure.x_values(series);
        // Values outside the axis are drawn at its edge.
        let inside = |points: Vec<(f64, f64)>| -> Vec<(f64, f64)> {
            points.into_iter().map(|(px, py)| (px, py.clamp(y.start, y.end))).collect()
        };
        let shaded = figure.series.len() <= MAX_BANDS;
        for band in bands(series, xs).into_iter().filter(|_| shaded).map(inside) {
            chart.draw_series([Polygon::new(band, color.mix(0.14))])?;
        }
        for part in parts(xs, &series.y).into_iter().map(inside) {
            // A single point between gaps is not visible as a line.
            if part.len() == 1 || xs.len() <= 12 || series.points {
                chart.draw_series(part.iter().map(|p| Circle::new(*p, 3, color.filled())))?;
            }
            if series.points {
                continue;
            }
            let _: &mut SeriesAnno<_> = match pattern(round, series.dashed) {
                Some((dash, gap)) => {
                    chart.draw_series(DashedLineSeries::new(part, dash, gap, color.stroke_width(2)))?
                }
                None => chart.draw_series([PathElement::new(part, color.stroke_width(2))])?,
            };
        }
    }
    Ok(())
}

fn position_label(axis: &Axis, value: f64) -> String {
    match axis.scale {
        // 99.999 % has more digits than `format::number` shows.
        AxisScale::Nines => format!("{} %", (1e9 - (1e9 / value).round()) / 1e7),
        AxisScale::Linear | AxisScale::Log => format::number(tidy(value)),
    }
}

/// Splits the points of a line at missing values.
fn parts(x: &[f64], y: &[Option<f64>]) -> Vec<Vec<(f64, f64)>> {
    let mut parts = vec![Vec::new()];
    for (x, y) in x.iter().zip(y) {
        match y {
            Some(y) => parts.last_mut().expect("never empty").push((*x, *y)),
            None => parts.push(Vec::new()),
        }
    }
    parts.retain(|p: &Vec<(f64, f64)>| !p.is_empty());
    parts
}

/// Returns the outlines of a confidence band, split at missing values.
fn bands(series: &FigureSeries, x: &[f64]) -> Vec<Vec<(f64, f64)>> {
    let (Some(low), Some(high)) = (&series.low, &series.high) else { return Vec::new() };
    let known = |values: &[Option<f64>], other: &[Option<f64>]| -> Vec<Option<f64>> {
        values.iter().zip(other).map(|(v, o)| v.filter(|_| o.is_some())).collect()
    };
    let (lower, upper) = (parts(x, &known(low, high)), parts(x, &known(high, low)));
    let both = lower.into_iter().zip(upper);
    both.map(|(lower, upper)| lower.into_iter().chain(upper.into_iter().rev()).collect()).collect()
}
