//! Data of a figure, drawn by the SVG writer and by the interactive report.

use crate::format::rounded;
use serde::{Deserialize, Serialize};

/// Type of chart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FigureKind {
    /// Lines over numbers.
    #[default]
    Line,
    /// Bars over categories.
    Bar,
    /// Colored cells over two categories.
    Heatmap,
    /// Boxes over categories. The series are the percentiles 5, 25, 50, 75 and 95.
    Box,
}

/// Scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AxisScale {
    /// Linear.
    #[default]
    Linear,
    /// Logarithmic.
    Log,
    /// Nines: a share p is plotted at 1 / (1 − p) on a logarithmic scale and labeled as a percentage.
    Nines,
}

/// Axis of a figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Plotted quantity.
    pub label: String,
    /// Unit of the values.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Scale.
    #[serde(default)]
    pub scale: AxisScale,
    /// Lower bound; `None`: from the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Upper bound; `None`: from the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// Line, or the bars of one color.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FigureSeries {
    /// Name in the legend.
    pub name: String,
    /// Positions of the points, ascending; `None`: the figure's `shared_x`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<Vec<f64>>,
    /// Means over runs.
    pub y: Vec<Option<f64>>,
    /// Lower bounds of the 95 % intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<Vec<Option<f64>>>,
    /// Upper bounds of the 95 % intervals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<Vec<Option<f64>>>,
    /// Whether the line is dashed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dashed: bool,
    /// Whether the points are drawn as separate marks instead of a line.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub points: bool,
    /// Group of adjacent series in the legend; empty: none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
}

impl FigureSeries {
    /// Multiplies the positions by `x` and the values by `y`, to convert units.
    pub fn scale(&mut self, x: f64, y: f64) {
        self.x.iter_mut().flatten().for_each(|value| *value = rounded(*value * x));
        let columns = [Some(&mut self.y), self.low.as_mut(), self.high.as_mut()];
        let values = columns.into_iter().flatten().flatten().flatten();
        values.for_each(|value| *value = rounded(*value * y));
    }
}

/// Horizontal line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReferenceLine {
    /// Position on the vertical axis.
    pub value: f64,
    /// Label.
    pub label: String,
}

/// Chart with its texts and data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the figure and of its SVG file.
    pub name: String,
    /// Title.
    pub title: String,
    /// Caption.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caption: String,
    /// Claim that the figure verifies, such as a statement of a paper.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// Type of chart.
    pub kind: FigureKind,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Meaning of the intervals and marks; empty: 95 % confidence intervals of means over runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub intervals: String,
    /// Lines or bars.
    #[serde(default)]
    pub series: Vec<FigureSeries>,
    /// Positions of the points, if all lines share them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_x: Option<Vec<f64>>,
    /// Categories on the horizontal axis of bar charts and heat maps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Rows of a heat map.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub y_categories: Vec<String>,
    /// Values of a heat map by row, the bottom row first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<Vec<Option<f64>>>,
    /// Axis of a heat map's values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Axis>,
    /// Horizontal lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reference_lines: Vec<ReferenceLine>,
}

impl Figure {
    /// Returns the positions of a line's points.
    pub fn x_values<'a>(&'a self, series: &'a FigureSeries) -> &'a [f64] {
        series.x.as_deref().or(self.shared_x.as_deref()).unwrap_or(&[])
    }
}
