//! Heat map.

use super::*;

/// Colors from low to high values. Lightness is monotonic, so that the order is visible without hue.
const RAMP: [RGBColor; 7] = [
    RGBColor(0xf4, 0xf1, 0xe6),
    RGBColor(0xcf, 0xe0, 0xd4),
    RGBColor(0x93, 0xc5, 0xc4),
    RGBColor(0x4f, 0x9f, 0xb5),
    RGBColor(0x2a, 0x73, 0x9f),
    RGBColor(0x1d, 0x4a, 0x83),
    RGBColor(0x17, 0x2a, 0x5c),
];
/// Draws a heat map with its color scale.
pub fn draw(figure: &Figure, area: &Area) -> DrawResult {
    let (columns, rows) = (figure.categories.len().max(1), figure.y_categories.len().max(1));
    let value = figure.value.clone().unwrap_or_default();
    let range = ends(&value, figure.cells.iter().flatten().flatten().copied(), false);
    let (left, top, right, bottom) = (110, 8, WIDTH as i32 - 110, PLOT_HEIGHT as i32 - 52);
    let x_at = |column: usize| left + (right - left) * column as i32 / columns as i32;
    let y_at = |row: usize| bottom - (bottom - top) * row as i32 / rows as i32;
    let center = Pos::new(HPos::Center, VPos::Center);
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
            area.draw(&Text::new(format::number(*number), middle, style(13.0, ink).pos(center)))?;
        }
    }
    for (row, name) in figure.y_categories.iter().enumerate() {
        let at = (left - 8, (y_at(row) + y_at(row + 1)) / 2);
        area.draw(&Text::new(
            clip(name, 14),
            at,
            style(12.0, MUTED).pos(Pos::new(HPos::Right, VPos::Center)),
        ))?;
    }
    for (column, name) in figure.categories.iter().enumerate() {
        let at = ((x_at(column) + x_at(column + 1)) / 2, bottom + 14);
        area.draw(&Text::new(name.clone(), at, style(12.0, MUTED).pos(center)))?;
    }
    area.draw(&Text::new(
        axis_title(&figure.x),
        ((left + right) / 2, bottom + 36),
        style(13.0, INK).pos(center),
    ))?;
    let rotated = (FONT, 13.0).into_font().transform(FontTransform::Rotate270).color(&INK).pos(center);
    area.draw(&Text::new(axis_title(&figure.y), (22, (top + bottom) / 2), rotated))?;
    color_scale(area, &value, &range, (right + 24, top + 22, bottom))
}

fn color_scale(
    area: &Area,
    value: &Axis,
    range: &Range<f64>,
    (x, top, bottom): (i32, i32, i32),
) -> DrawResult {
    const STEPS: i32 = 48;
    for step in 0..STEPS {
        let y = |step: i32| bottom - (bottom - top) * step / STEPS;
        let color = ramp(f64::from(step) / f64::from(STEPS - 1));
        area.draw(&Rectangle::new([(x, y(step + 1)), (x + 14, y(step))], color.filled()))?;
    }
    let label_style = style(11.0, MUTED).pos(Pos::new(HPos::Left, VPos::Center));
    for share in [0.0, 0.5, 1.0] {
        let number = range.start + (range.end - range.start) * share;
        let y = bottom - (f64::from(bottom - top) * share) as i32;
        area.draw(&Text::new(format::number(tidy(number)), (x + 19, y), label_style.clone()))?;
    }
    let unit = if value.unit.is_empty() { "value".into() } else { value.unit.clone() };
    area.draw(&Text::new(clip(&unit, 12), (x, top - 14), label_style))?;
    Ok(())
}

/// Returns the color at this fraction of the ramp.
fn ramp(share: f64) -> RGBColor {
    let position = share.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
    let (index, part) = ((position as usize).min(RAMP.len() - 2), position.fract());
    let part = if position as usize > index { 1.0 } else { part };
    let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * part).round() as u8;
    let (a, b) = (RAMP[index], RAMP[index + 1]);
    RGBColor(mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2))
}
