//! A figure as data: what the SVG writer and the interactive report both draw.

use crate::format::rounded;
use serde::{Deserialize, Serialize};

/// What a figure looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Lines over numbers.
    #[default]
    Line,
    /// Bars over categories.
    Bar,
    /// Coloured cells over two categories.
    Heatmap,
}

/// How an axis is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Evenly.
    #[default]
    Linear,
    /// By powers.
    Log,
    /// By nines: a share p of all stands at 1 / (1 − p), by powers, and is labelled as a
    /// percentage.
    Nines,
}

/// An axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// What it shows.
    pub label: String,
    /// Unit of its numbers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// How it is divided.
    #[serde(default)]
    pub scale: Scale,
    /// Lower end, where given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Upper end, where given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// A line, or the bars of one colour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Ascending; where absent, the figure's `shared_x` holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<Vec<f64>>,
    /// Means over runs.
    pub y: Vec<Option<f64>>,
    /// Lower ends of their 95 % intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<Vec<Option<f64>>>,
    /// Upper ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<Vec<Option<f64>>>,
    /// Drawn dashed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dashed: bool,
    /// Drawn as marks that no line joins: each stands for itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub points: bool,
    /// Series of one group stand together in the legend.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
}

impl Series {
    /// Multiplies its values, as for other units.
    pub fn scale(&mut self, x: f64, y: f64) {
        self.x.iter_mut().flatten().for_each(|value| *value = rounded(*value * x));
        let columns = [Some(&mut self.y), self.low.as_mut(), self.high.as_mut()];
        let values = columns.into_iter().flatten().flatten().flatten();
        values.for_each(|value| *value = rounded(*value * y));
    }
}

/// A horizontal line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReferenceLine {
    /// Where.
    pub value: f64,
    /// Its label.
    pub label: String,
}

/// A figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its name, also of its SVG file.
    pub name: String,
    /// Its title.
    pub title: String,
    /// What is plotted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caption: String,
    /// What the paper (or whoever) claims.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// What it looks like.
    pub kind: Kind,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines or bars.
    #[serde(default)]
    pub series: Vec<Series>,
    /// Where all lines have their points at the same places.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_x: Option<Vec<f64>>,
    /// Names of the x positions of bars and heat maps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Names of a heat map's rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub y_categories: Vec<String>,
    /// A heat map's values by row, the first row at the bottom.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<Vec<Option<f64>>>,
    /// What a heat map's cells hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Axis>,
    /// Horizontal lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reference_lines: Vec<ReferenceLine>,
}

impl Figure {
    /// The places of a line's points.
    pub fn x_of<'a>(&'a self, series: &'a Series) -> &'a [f64] {
        series.x.as_deref().or(self.shared_x.as_deref()).unwrap_or(&[])
    }
}
