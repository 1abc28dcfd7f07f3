//! A figure as an SVG picture, for papers and pages.

use crate::figure::{Axis, Figure, Kind, Scale, Series};
use crate::format;
use plotters::chart::SeriesAnno;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

/// Colours any two of which stay apart for colour-blind eyes; the pages use the same.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x18, 0x41, 0x95),
    RGBColor(0xaf, 0x39, 0x17),
    RGBColor(0x2a, 0xa3, 0x89),
    RGBColor(0x70, 0x2e, 0x4e),
    RGBColor(0xa6, 0x89, 0x01),
    RGBColor(0x0f, 0x77, 0xaa),
    RGBColor(0x89, 0x8a, 0xd7),
    RGBColor(0x66, 0x63, 0x67),
];
const INK: RGBColor = RGBColor(0x1b, 0x1f, 0x24);
const MUTED: RGBColor = RGBColor(0x5a, 0x62, 0x6c);
const RULE: RGBColor = RGBColor(0xe6, 0xe8, 0xeb);
/// From low to high; lightness runs one way, so the order survives without hue.
const RAMP: [RGBColor; 7] = [
    RGBColor(0xf4, 0xf1, 0xe6),
    RGBColor(0xcf, 0xe0, 0xd4),
    RGBColor(0x93, 0xc5, 0xc4),
    RGBColor(0x4f, 0x9f, 0xb5),
    RGBColor(0x2a, 0x73, 0x9f),
    RGBColor(0x1d, 0x4a, 0x83),
    RGBColor(0x17, 0x2a, 0x5c),
];
const FONT: &str = "Inter, Helvetica, Arial, sans-serif";
const WIDTH: u32 = 760;
const PLOT_HEIGHT: u32 = 400;
const LINE_HEIGHT: u32 = 17;
/// With more lines than this their confidence bands hide each other.
const MOST_BANDS: usize = 8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The SVG text of a figure.
///
/// A figure whose numbers cannot be drawn (none are finite) yields its frame and a note.
pub fn svg(figure: &Figure) -> String {
    let mut text = String::new();
    // Drawing into a string fails on impossible ranges only; `ranges` rules those out.
    let drawn = draw(figure, &mut text);
    debug_assert!(drawn.is_ok(), "{drawn:?}");
    text
}

fn draw(figure: &Figure, text: &mut String) -> Drawn {
    let legend = legend_rows(figure);
    let caption = caption_lines(figure);
    let head = 44;
    let height = head + PLOT_HEIGHT + (legend.len() + caption.len()) as u32 * LINE_HEIGHT + 14;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = style(17.0, INK).pos(Pos::new(HPos::Left, VPos::Center));
    root.draw(&Text::new(clip(&figure.title, 84), (20, 24), title))?;
    let (_, below) = root.split_vertically(head);
    let (plot, below) = below.split_vertically(PLOT_HEIGHT);
    match figure.kind {
        Kind::Line => lines(figure, &plot)?,
        Kind::Bar => bars(figure, &plot)?,
        Kind::Heatmap => heat_map(figure, &plot)?,
    }
    let mut y = 8;
    for row in &legend {
        legend_row(figure, row, &below, y)?;
        y += LINE_HEIGHT as i32;
    }
    for (line, colour) in &caption {
        let style = style(12.0, *colour).pos(Pos::new(HPos::Left, VPos::Center));
        below.draw(&Text::new(line.clone(), (20, y + 4), style))?;
        y += LINE_HEIGHT as i32;
    }
    root.present()?;
    Ok(())
}

fn style(size: f64, colour: RGBColor) -> TextStyle<'static> {
    (FONT, size).into_font().color(&colour)
}

fn clip(text: &str, most: usize) -> String {
    if text.chars().count() <= most { text.to_owned() } else { text.chars().take(most - 1).chain(['…']).collect() }
}

/// Text broken into lines of at most `most` characters.
fn wrap(text: &str, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= most => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn caption_lines(figure: &Figure) -> Vec<(String, RGBColor)> {
    let mut lines: Vec<(String, RGBColor)> = wrap(&figure.caption, 112).into_iter().map(|l| (l, MUTED)).collect();
    if !figure.claim.is_empty() {
        lines.extend(wrap(&format!("Claim: {}", figure.claim), 112).into_iter().map(|l| (l, INK)));
    }
    if figure.series.iter().any(|s| s.low.is_some()) {
        let drawn = match figure.kind {
            Kind::Line if figure.series.len() > MOST_BANDS => "Means over runs; too many lines to shade their intervals.",
            Kind::Line => "Shaded: 95 % confidence interval of the mean over runs.",
            _ => "Whiskers: 95 % confidence interval of the mean over runs.",
        };
        lines.push((drawn.into(), MUTED));
    }
    lines
}

/// Series names packed into rows: index and left edge of each.
fn legend_rows(figure: &Figure) -> Vec<Vec<(usize, i32)>> {
    let mut rows: Vec<Vec<(usize, i32)>> = Vec::new();
    if figure.series.len() < 2 && figure.kind != Kind::Line {
        return rows;
    }
    let mut x = i32::MAX;
    for (index, series) in figure.series.iter().enumerate() {
        let width = 44 + 13 * clip(&series.name, 60).chars().count() as i32 / 2;
        if x.saturating_add(width) > WIDTH as i32 - 10 {
            rows.push(Vec::new());
            x = 60;
        }
        if let Some(row) = rows.last_mut() {
            row.push((index, x));
        }
        x += width;
    }
    rows
}

fn legend_row(figure: &Figure, row: &[(usize, i32)], area: &Area, y: i32) -> Drawn {
    for &(index, x) in row {
        let series = &figure.series[index];
        let (colour, round) = look(figure, index);
        if figure.kind == Kind::Bar {
            area.draw(&Rectangle::new([(x, y - 5), (x + 11, y + 6)], colour.filled()))?;
        } else {
            for (from, to) in dashes(round, series.dashed, 24) {
                let points = vec![(x + from, y), (x + to, y)];
                area.draw(&PathElement::new(points, colour.stroke_width(2)))?;
            }
        }
        let left = if figure.kind == Kind::Bar { x + 16 } else { x + 29 };
        let style = style(12.0, INK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(clip(&series.name, 60), (left, y + 1), style))?;
    }
    Ok(())
}

/// Colour and dash pattern of a series. Where each of several groups has the same number of
/// series, a colour stands for a place in its group and a pattern for the group.
fn look(figure: &Figure, index: usize) -> (RGBColor, usize) {
    let group = &figure.series[index].group;
    let first = figure.series.iter().position(|s| s.group == *group).unwrap_or(0);
    let size = figure.series.iter().filter(|s| s.group == *group).count();
    let alike = !group.is_empty() && size <= COLOURS.len() && figure.series.len().is_multiple_of(size);
    let alike = alike && figure.series.chunks(size).all(|c| c.iter().all(|s| s.group == c[0].group));
    if alike && figure.series.len() > size {
        return (COLOURS[index - first], first / size);
    }
    (COLOURS[index % COLOURS.len()], index / COLOURS.len())
}

/// Dash and gap of a pattern.
fn pattern(round: usize, dashed: bool) -> Option<(i32, i32)> {
    match round {
        _ if dashed => Some((6, 4)),
        0 => None,
        1 => Some((10, 3)),
        2 => Some((2, 2)),
        3 => Some((5, 2)),
        _ => Some((14, 2)),
    }
}

fn dashes(round: usize, dashed: bool, length: i32) -> Vec<(i32, i32)> {
    let Some((dash, gap)) = pattern(round, dashed) else { return vec![(0, length)] };
    (0..length).step_by((dash + gap) as usize).map(|from| (from, (from + dash).min(length))).collect()
}

/// The ends of an axis over `values`: given ones first; zero belongs to what is not negative.
fn ends(axis: &Axis, values: impl Iterator<Item = f64>, from_zero: bool) -> Range<f64> {
    let finite = values.filter(|v| v.is_finite());
    let (mut least, mut most) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), v| (l.min(v), m.max(v)));
    if least > most {
        (least, most) = (0.0, 1.0);
    }
    if axis.scale == Scale::Log {
        let positive = least.max(f64::MIN_POSITIVE);
        return axis.min.unwrap_or(positive)..axis.max.unwrap_or(most.max(positive * 1.001));
    }
    let room = (most - least).abs() * if from_zero { 0.06 } else { 0.0 };
    let low = axis.min.unwrap_or(if from_zero && least >= 0.0 { 0.0 } else { least - room });
    let high = axis.max.unwrap_or(most + room);
    // A range must have a length.
    if high > low { low..high } else { low..low + low.abs().max(1.0) }
}

/// The value axis: all means, and of wide intervals as much as leaves the means readable.
fn y_ends(figure: &Figure) -> Range<f64> {
    let known = |values: &[Option<f64>]| -> Vec<f64> { values.iter().flatten().copied().collect() };
    let means: Vec<f64> = figure.series.iter().flat_map(|s| known(&s.y)).collect();
    let (least, most) = means.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), &v| (l.min(v), m.max(v)));
    let bound = |v: f64| if least >= 0.0 { v.clamp(0.0, (most * 1.5).max(0.0)) } else { v };
    let banded = figure.kind != Kind::Line || figure.series.len() <= MOST_BANDS;
    let intervals = figure.series.iter().filter(|_| banded).flat_map(|s| [&s.low, &s.high]).flatten();
    let intervals: Vec<f64> = intervals.flat_map(|v| known(v)).map(bound).collect();
    let lines = figure.reference_lines.iter().map(|l| l.value);
    ends(&figure.y, means.into_iter().chain(intervals).chain(lines), true)
}

fn axis_title(axis: &Axis) -> String {
    if axis.unit.is_empty() { axis.label.clone() } else { format!("{} ({})", axis.label, axis.unit) }
}

fn lines(figure: &Figure, area: &Area) -> Drawn {
    let x = ends(&figure.x, figure.series.iter().flat_map(|s| figure.x_of(s).iter().copied()), false);
    let y = y_ends(figure);
    let mut builder = ChartBuilder::on(area);
    builder.margin(8).margin_right(24).x_label_area_size(46).y_label_area_size(70);
    if figure.x.scale == Scale::Log {
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
) -> Drawn
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
        .x_label_formatter(&|v| format::number(tidy(*v)))
        .y_label_formatter(&|v| format::number(tidy(*v)))
        .light_line_style(TRANSPARENT)
        .bold_line_style(RULE)
        .axis_style(MUTED)
        .draw()?;
    for line in &figure.reference_lines {
        let ends = vec![(x.start, line.value), (x.end, line.value)];
        chart.draw_series(DashedLineSeries::new(ends, 3, 4, MUTED.stroke_width(1)))?;
        let place = style(11.0, MUTED).pos(Pos::new(HPos::Right, VPos::Bottom));
        let label = Text::new(line.label.clone(), (0, -3), place);
        chart.draw_series([EmptyElement::at((x.end, line.value)) + label])?;
    }
    for (index, series) in figure.series.iter().enumerate() {
        let (colour, round) = look(figure, index);
        let xs = figure.x_of(series);
        // What lies outside the axis is drawn at its edge.
        let inside = |points: Vec<(f64, f64)>| -> Vec<(f64, f64)> {
            points.into_iter().map(|(px, py)| (px, py.clamp(y.start, y.end))).collect()
        };
        let shaded = figure.series.len() <= MOST_BANDS;
        for band in bands(series, xs).into_iter().filter(|_| shaded).map(inside) {
            chart.draw_series([Polygon::new(band, colour.mix(0.14))])?;
        }
        for part in parts(xs, &series.y).into_iter().map(inside) {
            // A lone point between gaps would leave no trace as a line.
            if part.len() == 1 || xs.len() <= 12 {
                chart.draw_series(part.iter().map(|p| Circle::new(*p, 3, colour.filled())))?;
            }
            let _: &mut SeriesAnno<_> = match pattern(round, series.dashed) {
                Some((dash, gap)) => chart.draw_series(DashedLineSeries::new(part, dash, gap, colour.stroke_width(2)))?,
                None => chart.draw_series([PathElement::new(part, colour.stroke_width(2))])?,
            };
        }
    }
    Ok(())
}

/// Rounding errors of tick positions, removed.
fn tidy(value: f64) -> f64 {
    let rounded = (value * 1e9).round() / 1e9;
    if (value - rounded).abs() < 1e-10 { rounded } else { value }
}

/// A line's points, parted where there is no value.
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

/// Outlines of a confidence band, parted where there is none.
fn bands(series: &Series, x: &[f64]) -> Vec<Vec<(f64, f64)>> {
    let (Some(low), Some(high)) = (&series.low, &series.high) else { return Vec::new() };
    let known = |values: &[Option<f64>], other: &[Option<f64>]| -> Vec<Option<f64>> {
        values.iter().zip(other).map(|(v, o)| v.filter(|_| o.is_some())).collect()
    };
    let (lower, upper) = (parts(x, &known(low, high)), parts(x, &known(high, low)));
    let both = lower.into_iter().zip(upper);
    both.map(|(lower, upper)| lower.into_iter().chain(upper.into_iter().rev()).collect()).collect()
}

fn bars(figure: &Figure, area: &Area) -> Drawn {
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
    let each = 0.8 / figure.series.len().max(1) as f64;
    for (index, series) in figure.series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let left = |place: usize| place as f64 - 0.4 + each * index as f64;
        let base = y.start.max(0.0_f64.min(y.end));
        let bar = |(place, value): (usize, &Option<f64>)| {
            let top = (*value)?.clamp(y.start, y.end);
            let corners = [(left(place) + each * 0.04, base), (left(place) + each * 0.96, top)];
            Some(Rectangle::new(corners, colour.mix(0.85).filled()))
        };
        chart.draw_series(series.y.iter().enumerate().filter_map(bar))?;
        if let (Some(low), Some(high)) = (&series.low, &series.high) {
            let whisker = |(place, (low, high)): (usize, (&Option<f64>, &Option<f64>))| {
                let middle = left(place) + each / 2.0;
                let ends = [(*low)?, (*high)?].map(|v| (middle, v.clamp(y.start, y.end)));
                Some(PathElement::new(ends.to_vec(), INK.stroke_width(1)))
            };
            chart.draw_series(low.iter().zip(high).enumerate().filter_map(whisker))?;
        }
    }
    for line in &figure.reference_lines {
        let ends = vec![(-0.5, line.value), (n as f64 - 0.5, line.value)];
        chart.draw_series(DashedLineSeries::new(ends, 3, 4, MUTED.stroke_width(1)))?;
        let place = style(11.0, MUTED).pos(Pos::new(HPos::Right, VPos::Bottom));
        let label = Text::new(line.label.clone(), (0, -3), place);
        chart.draw_series([EmptyElement::at((n as f64 - 0.5, line.value)) + label])?;
    }
    let places: Vec<(i32, i32)> = (0..n).map(|i| chart.backend_coord(&(i as f64, y.start))).collect();
    drop(chart);
    label_categories(area, categories, &places, (WIDTH as usize - 110) / n)
}

/// Writes category names below the axis.
fn label_categories(area: &Area, categories: &[String], places: &[(i32, i32)], room: usize) -> Drawn {
    let (_, top) = area.get_base_pixel();
    let style = style(12.0, MUTED).pos(Pos::new(HPos::Center, VPos::Top));
    for (name, &(x, y)) in categories.iter().zip(places) {
        let text = clip(name, (room / 7).max(2));
        area.draw(&Text::new(text, (x, y - top + 6), style.clone()))?;
    }
    Ok(())
}

fn heat_map(figure: &Figure, area: &Area) -> Drawn {
    let (columns, rows) = (figure.categories.len().max(1), figure.y_categories.len().max(1));
    let value = figure.value.clone().unwrap_or_default();
    let range = ends(&value, figure.cells.iter().flatten().flatten().copied(), false);
    let (left, top, right, bottom) = (110, 8, WIDTH as i32 - 110, PLOT_HEIGHT as i32 - 52);
    let x_at = |column: usize| left + (right - left) * column as i32 / columns as i32;
    let y_at = |row: usize| bottom - (bottom - top) * row as i32 / rows as i32;
    let centre = Pos::new(HPos::Center, VPos::Center);
    for (row, cells) in figure.cells.iter().enumerate().take(rows) {
        for (column, cell) in cells.iter().enumerate().take(columns) {
            let corners = [(x_at(column) + 1, y_at(row + 1) + 1), (x_at(column + 1) - 1, y_at(row) - 1)];
            let Some(number) = cell else {
                area.draw(&Rectangle::new(corners, RULE.stroke_width(1)))?;
                continue;
            };
            let share = ((number - range.start) / (range.end - range.start)).clamp(0.0, 1.0);
            area.draw(&Rectangle::new(corners, ramp(share).filled()))?;
            let ink = if share > 0.55 { WHITE } else { INK };
            let middle = ((corners[0].0 + corners[1].0) / 2, (corners[0].1 + corners[1].1) / 2);
            area.draw(&Text::new(format::number(*number), middle, style(13.0, ink).pos(centre)))?;
        }
    }
    for (row, name) in figure.y_categories.iter().enumerate() {
        let at = (left - 8, (y_at(row) + y_at(row + 1)) / 2);
        area.draw(&Text::new(clip(name, 14), at, style(12.0, MUTED).pos(Pos::new(HPos::Right, VPos::Center))))?;
    }
    for (column, name) in figure.categories.iter().enumerate() {
        let at = ((x_at(column) + x_at(column + 1)) / 2, bottom + 14);
        area.draw(&Text::new(name.clone(), at, style(12.0, MUTED).pos(centre)))?;
    }
    area.draw(&Text::new(axis_title(&figure.x), ((left + right) / 2, bottom + 36), style(13.0, INK).pos(centre)))?;
    let turned = (FONT, 13.0).into_font().transform(FontTransform::Rotate270).color(&INK).pos(centre);
    area.draw(&Text::new(axis_title(&figure.y), (22, (top + bottom) / 2), turned))?;
    colour_scale(area, &value, &range, (right + 24, top + 22, bottom))
}

fn colour_scale(area: &Area, value: &Axis, range: &Range<f64>, (x, top, bottom): (i32, i32, i32)) -> Drawn {
    const STEPS: i32 = 48;
    for step in 0..STEPS {
        let y = |step: i32| bottom - (bottom - top) * step / STEPS;
        let colour = ramp(f64::from(step) / f64::from(STEPS - 1));
        area.draw(&Rectangle::new([(x, y(step + 1)), (x + 14, y(step))], colour.filled()))?;
    }
    let beside = style(11.0, MUTED).pos(Pos::new(HPos::Left, VPos::Center));
    for share in [0.0, 0.5, 1.0] {
        let number = range.start + (range.end - range.start) * share;
        let y = bottom - (f64::from(bottom - top) * share) as i32;
        area.draw(&Text::new(format::number(tidy(number)), (x + 19, y), beside.clone()))?;
    }
    let unit = if value.unit.is_empty() { "value".into() } else { value.unit.clone() };
    area.draw(&Text::new(clip(&unit, 12), (x, top - 14), beside))?;
    Ok(())
}

/// The colour at this share of the ramp.
fn ramp(share: f64) -> RGBColor {
    let place = share.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
    let (index, part) = ((place as usize).min(RAMP.len() - 2), place.fract());
    let part = if place as usize > index { 1.0 } else { part };
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * part).round() as u8;
    let (a, b) = (RAMP[index], RAMP[index + 1]);
    RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::ReferenceLine;

    fn drawn(figure: &Figure) -> String {
        let mut text = String::new();
        draw(figure, &mut text).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        text
    }

    fn figure(kind: Kind) -> Figure {
        let y = vec![Some(1.0), None, Some(3.0), Some(2.5)];
        let interval = |d: f64| Some(y.iter().map(|v| v.map(|v| v + d)).collect());
        let series = |name: &str| Series { name: name.into(), y: y.clone(), low: interval(-0.5), high: interval(0.5), ..Series::default() };
        Figure {
            title: "Title & <more>".into(),
            caption: "Caption.".into(),
            claim: "It rises.".into(),
            kind,
            x: Axis { label: "time".into(), unit: "s".into(), ..Axis::default() },
            y: Axis { label: "vpn.throughput".into(), unit: "Mbit/s".into(), ..Axis::default() },
            series: vec![series("a"), series("b")],
            shared_x: Some(vec![1.0, 2.0, 10.0, 100.0]),
            categories: ["p", "q", "r", "s"].map(str::to_owned).to_vec(),
            y_categories: vec!["low".into(), "high".into()],
            cells: vec![y.clone(), vec![None; 4]],
            reference_lines: vec![ReferenceLine { value: 2.0, label: "bound".into() }],
            ..Figure::default()
        }
    }

    #[test]
    fn every_kind_shows_its_texts() {
        for kind in [Kind::Line, Kind::Bar, Kind::Heatmap] {
            let text = drawn(&figure(kind));
            for part in ["Title &amp; &lt;more&gt;", "Caption.", "Claim: It rises.", "Mbit/s"] {
                assert!(text.contains(part), "{kind:?}: {part}");
            }
        }
        assert!(drawn(&figure(Kind::Line)).contains("bound"));
        let mut log = figure(Kind::Line);
        log.x.scale = Scale::Log;
        drawn(&log);
    }

    #[test]
    fn figures_without_numbers_or_with_odd_ones_are_drawn_too() {
        for kind in [Kind::Line, Kind::Bar, Kind::Heatmap] {
            drawn(&Figure { kind, ..Figure::default() });
            let mut odd = figure(kind);
            odd.y.min = Some(5.0);
            odd.y.max = Some(5.0);
            drawn(&odd);
            for value in [0.0, -7.0, 1e300, 1e-300] {
                odd.series[0].y = vec![Some(value); 4];
                odd.cells = vec![vec![Some(value); 4]];
                odd.y = Axis::default();
                drawn(&odd);
            }
        }
    }

    #[test]
    fn a_colour_stands_for_a_place_in_its_group() {
        let mut grouped = figure(Kind::Line);
        grouped.series = ["a", "a", "b", "b"].map(|group| Series { group: group.into(), ..Series::default() }).to_vec();
        assert_eq!(look(&grouped, 0).0, look(&grouped, 2).0);
        assert_ne!(look(&grouped, 0).1, look(&grouped, 2).1);
        assert_ne!(look(&grouped, 0).0, look(&grouped, 1).0);
    }
}
