//! Tables of a report.

use serde::Serialize;

/// Table of texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReportTable {
    /// Title.
    pub title: String,
    /// Explanation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Columns.
    pub columns: Vec<TableColumn>,
    /// Rows, with one text per column.
    pub rows: Vec<Vec<String>>,
}

/// Column of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableColumn {
    /// Name.
    pub name: String,
    /// Common unit of all values, if any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Alignment; numbers are right-aligned.
    pub align: Align,
}

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Align {
    /// Left.
    Left,
    /// Right.
    Right,
}

impl TableColumn {
    /// Creates a left-aligned column, for texts.
    pub fn left(name: impl Into<String>) -> TableColumn {
        TableColumn { name: name.into(), unit: String::new(), align: Align::Left }
    }

    /// Creates a right-aligned column, for numbers.
    pub fn right(name: impl Into<String>) -> TableColumn {
        TableColumn { name: name.into(), unit: String::new(), align: Align::Right }
    }
}
