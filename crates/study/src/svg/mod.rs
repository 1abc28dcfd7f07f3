//! Rendering of figures as SVG.

mod bars;
mod boxes;
mod heat_map;
mod lines;
#[cfg(test)]
mod tests;

use crate::figure::{Axis, AxisScale, Figure, FigureKind, FigureSeries};
use crate::format;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeSet;
use std::ops::Range;

/// Colors that are distinguishable with color blindness; the web pages use the same.
const COLORS: [RGBColor; 8] = [
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
const FONT: &str = "Inter, Helvetica, Arial, sans-serif";
const WIDTH: u32 = 760;
const PLOT_HEIGHT: u32 = 400;
const LINE_HEIGHT: u32 = 17;
/// Maximum number of lines with confidence bands; more bands would hide each other.
const MAX_BANDS: usize = 8;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult = Result<(), Box<dyn std::error::Error>>;

/// Returns a figure as SVG. A figure without finite values has only its frame.
pub fn svg(figure: &Figure) -> String {
    let mut text = String::new();
    // Drawing into a string fails only on empty ranges, which `ends` excludes.
    let drawn = draw(figure, &mut text);
    debug_assert!(drawn.is_ok(), "{drawn:?}");
    // XML does not allow these characters, not even escaped.
    text.replace(|c: char| c != '\n' && (c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}')), "\u{fffd}")
}

fn draw(figure: &Figure, text: &mut String) -> DrawResult {
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
        FigureKind::Line => lines::draw(figure, &plot)?,
        FigureKind::Bar => bars::draw(figure, &plot)?,
        FigureKind::Heatmap => heat_map::draw(figure, &plot)?,
        FigureKind::Box => boxes::draw(figure, &plot)?,
    }
    let mut y = 8;
    for row in &legend {
        legend_row(figure, row, &below, y)?;
        y += LINE_HEIGHT as i32;
    }
    for (line, color) in &caption {
        let style = style(12.0, *color).pos(Pos::new(HPos::Left, VPos::Center));
        below.draw(&Text::new(line.clone(), (20, y + 4), style))?;
        y += LINE_HEIGHT as i32;
    }
    root.present()?;
    Ok(())
}

fn style(size: f64, color: RGBColor) -> TextStyle<'static> {
    (FONT, size).into_font().color(&color)
}

fn clip(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        text.to_owned()
    } else {
        text.chars().take(max - 1).chain(['…']).collect()
    }
}

/// Wraps text into lines of at most `max` characters.
fn wrap(text: &str, max: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= max => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn caption_lines(figure: &Figure) -> Vec<(String, RGBColor)> {
    let mut lines: Vec<(String, RGBColor)> =
        wrap(&figure.caption, 112).into_iter().map(|l| (l, MUTED)).collect();
    if !figure.claim.is_empty() {
        lines.extend(wrap(&format!("Claim: {}", figure.claim), 112).into_iter().map(|l| (l, INK)));
    }
    if !figure.intervals.is_empty() {
        lines.extend(wrap(&figure.intervals, 112).into_iter().map(|l| (l, MUTED)));
    } else if figure.series.iter().any(|s| s.low.is_some()) {
        let drawn = match figure.kind {
            FigureKind::Line if figure.series.len() > MAX_BANDS => {
                "Means over runs; intervals are not shaded because of the number of lines."
            }
            FigureKind::Line => "Shaded: 95 % confidence interval of the mean over runs.",
            _ => "Whiskers: 95 % confidence interval of the mean over runs.",
        };
        lines.push((drawn.into(), MUTED));
    }
    lines
}

/// Returns the rows of the legend: index and left edge of each series.
fn legend_rows(figure: &Figure) -> Vec<Vec<(usize, i32)>> {
    let mut rows: Vec<Vec<(usize, i32)>> = Vec::new();
    if figure.kind == FigureKind::Box || figure.series.len() < 2 && figure.kind != FigureKind::Line {
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

fn legend_row(figure: &Figure, row: &[(usize, i32)], area: &Area, y: i32) -> DrawResult {
    for &(index, x) in row {
        let series = &figure.series[index];
        let (color, round) = look(figure, index);
        if figure.kind == FigureKind::Bar {
            area.draw(&Rectangle::new([(x, y - 5), (x + 11, y + 6)], color.filled()))?;
        } else if series.points {
            area.draw(&Circle::new((x + 12, y), 3, color.filled()))?;
        } else {
            for (from, to) in dashes(round, series.dashed, 24) {
                let points = vec![(x + from, y), (x + to, y)];
                area.draw(&PathElement::new(points, color.stroke_width(2)))?;
            }
        }
        let left = if figure.kind == FigureKind::Bar { x + 16 } else { x + 29 };
        let style = style(12.0, INK).pos(Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(clip(&series.name, 60), (left, y + 1), style))?;
    }
    Ok(())
}

/// Returns the color and dash pattern of a series. If series of a group differ by their dashes, they have one color.
/// Otherwise, if all groups have the same number of series, the color denotes the position in the group and the
/// pattern denotes the group.
fn look(figure: &Figure, index: usize) -> (RGBColor, usize) {
    let group = &figure.series[index].group;
    let dashes = figure.series.iter().any(|s| s.dashed);
    let styles: BTreeSet<_> = figure.series.iter().map(|s| (s.dashed, &s.group)).collect();
    if dashes && styles.len() == figure.series.len() && styles.iter().all(|(_, group)| !group.is_empty()) {
        let mut groups: Vec<&String> = figure.series.iter().map(|s| &s.group).collect();
        let mut seen = BTreeSet::new();
        groups.retain(|group| seen.insert(*group));
        let slot = groups.iter().position(|g| *g == group).unwrap_or(0);
        return (COLORS[slot % COLORS.len()], slot / COLORS.len());
    }
    let first = figure.series.iter().position(|s| s.group == *group).unwrap_or(0);
    let size = figure.series.iter().filter(|s| s.group == *group).count();
    let is_uniform =
        !group.is_empty() && size > 1 && size <= COLORS.len() && figure.series.len().is_multiple_of(size);
    let is_uniform =
        is_uniform && figure.series.chunks(size).all(|c| c.iter().all(|s| s.group == c[0].group));
    if is_uniform && figure.series.len() > size {
        return (COLORS[index - first], first / size);
    }
    (COLORS[index % COLORS.len()], index / COLORS.len())
}

/// Returns the dash and gap of a pattern; `None`: solid.
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

/// Returns the range of an axis over `values`, unless the axis defines it. With `from_zero`, the range of nonnegative
/// values starts at zero.
fn ends(axis: &Axis, values: impl Iterator<Item = f64>, from_zero: bool) -> Range<f64> {
    let finite = values.filter(|v| v.is_finite());
    let (mut min, mut max) =
        finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), v| (l.min(v), m.max(v)));
    if min > max {
        (min, max) = (0.0, 1.0);
    }
    if axis.scale != AxisScale::Linear {
        let positive = min.max(f64::MIN_POSITIVE);
        return axis.min.unwrap_or(positive)..axis.max.unwrap_or(max.max(positive * 1.001));
    }
    let margin = (max - min).abs() * if from_zero { 0.06 } else { 0.0 };
    let low = axis.min.unwrap_or(if from_zero && min >= 0.0 { 0.0 } else { min - margin });
    let high = axis.max.unwrap_or(max + margin);
    // A range must not be empty.
    if high > low { low..high } else { low..low + low.abs().max(1.0) }
}

/// Returns the range of the value axis. It contains all means, and intervals as far as the means remain readable.
fn y_ends(figure: &Figure) -> Range<f64> {
    let known = |values: &[Option<f64>]| -> Vec<f64> { values.iter().flatten().copied().collect() };
    let means: Vec<f64> = figure.series.iter().flat_map(|s| known(&s.y)).collect();
    let (min, max) = means.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), &v| (l.min(v), m.max(v)));
    let bound = |v: f64| if min >= 0.0 { v.clamp(0.0, (max * 1.5).max(0.0)) } else { v };
    let has_bands = figure.kind != FigureKind::Line || figure.series.len() <= MAX_BANDS;
    let intervals = figure.series.iter().filter(|_| has_bands).flat_map(|s| [&s.low, &s.high]).flatten();
    let intervals: Vec<f64> = intervals.flat_map(|v| known(v)).map(bound).collect();
    let lines = figure.reference_lines.iter().map(|l| l.value);
    ends(&figure.y, means.into_iter().chain(intervals).chain(lines), true)
}

fn axis_title(axis: &Axis) -> String {
    if axis.unit.is_empty() { axis.label.clone() } else { format!("{} ({})", axis.label, axis.unit) }
}

/// Removes rounding errors from a tick position.
fn tidy(value: f64) -> f64 {
    let rounded = (value * 1e9).round() / 1e9;
    if (value - rounded).abs() < 1e-10 { rounded } else { value }
}
