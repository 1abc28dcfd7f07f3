//! Chart over categories: bars, or the marks of another chart.

use super::*;
use plotters::coord::types::RangedCoordf64;

/// Chart with a category at each whole number.
pub type CategoryChart<'a, 'b> =
    ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Draws a bar chart with whiskers.
pub fn draw(figure: &Figure, area: &Area) -> DrawResult {
    draw_categories(figure, area, draw_bars)
}

/// Draws axes and categories, the marks, and the reference lines.
pub fn draw_categories(
    figure: &Figure,
    area: &Area,
    draw_marks: fn(&Figure, &mut CategoryChart, &Range<f64>) -> DrawResult,
) -> DrawResult {
    let y = y_ends(figure);
    let categories = &figure.categories;
    let n = categories.len().max(1);
    let mut builder = ChartBuilder::on(area);
    builder.margin(8).margin_right(24).x_label_area_size(46).y_label_area_size(70);
    let mut chart = builder.build_cartesian_2d(-0.5..n as f64 - 0.5, y.clone())?;
    let (x_title, y_title) = (axis_title(&figure.x), axis_title(&figure.y));
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .x_desc(&x_title)
        .y_desc(&y_title)
        .axis_desc_style(style(13.0, INK))
        .label_style(style(12.0, MUTED))
        .y_label_formatter(&|v| format::number(tidy(*v)))
        .light_line_style(TRANSPARENT)
        .bold_line_style(RULE)
        .axis_style(MUTED)
        .draw()?;
    draw_marks(figure, &mut chart, &y)?;
    for line in &figure.reference_lines {
        let ends = vec![(-0.5, line.value), (n as f64 - 0.5, line.value)];
        chart.draw_series(DashedLineSeries::new(ends, 3, 4, MUTED.stroke_width(1)))?;
        let style = style(11.0, MUTED).pos(Pos::new(HPos::Right, VPos::Bottom));
        let label = Text::new(line.label.clone(), (0, -3), style);
        chart.draw_series([EmptyElement::at((n as f64 - 0.5, line.value)) + label])?;
    }
    let positions: Vec<(i32, i32)> = (0..n).map(|i| chart.backend_coord(&(i as f64, y.start))).collect();
    drop(chart);
    label_categories(area, categories, &positions, (WIDTH as usize - 110) / n)
}

fn draw_bars(figure: &Figure, chart: &mut CategoryChart, y: &Range<f64>) -> DrawResult {
    let each = 0.8 / figure.series.len().max(1) as f64;
    for (index, series) in figure.series.iter().enumerate() {
        let color = COLORS[index % COLORS.len()];
        let left = |category: usize| category as f64 - 0.4 + each * index as f64;
        let base = y.start.max(0.0_f64.min(y.end));
        let bar = |(category, value): (usize, &Option<f64>)| {
            let top = (*value)?.clamp(y.start, y.end);
            let corners = [(left(category) + each * 0.04, base), (left(category) + each * 0.96, top)];
            Some(Rectangle::new(corners, color.mix(0.85).filled()))
        };
        chart.draw_series(series.y.iter().enumerate().filter_map(bar))?;
        if let (Some(low), Some(high)) = (&series.low, &series.high) {
            let whisker = |(category, (low, high)): (usize, (&Option<f64>, &Option<f64>))| {
                let middle = left(category) + each / 2.0;
                let ends = [(*low)?, (*high)?].map(|v| (middle, v.clamp(y.start, y.end)));
                Some(PathElement::new(ends.to_vec(), INK.stroke_width(1)))
            };
            chart.draw_series(low.iter().zip(high).enumerate().filter_map(whisker))?;
        }
    }
    Ok(())
}

/// Writes category names below the axis.
fn label_categories(area: &Area, categories: &[String], positions: &[(i32, i32)], room: usize) -> DrawResult {
    let (_, top) = area.get_base_pixel();
    let style = style(12.0, MUTED).pos(Pos::new(HPos::Center, VPos::Top));
    for (name, &(x, y)) in categories.iter().zip(positions) {
        let text = clip(name, (room / 7).max(2));
        area.draw(&Text::new(text, (x, y - top + 6), style.clone()))?;
    }
    Ok(())
}
