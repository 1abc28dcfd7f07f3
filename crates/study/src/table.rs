//! Tables of texts, as reports show them.

use serde::Serialize;

/// A table of texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// How to read it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// A text per column.
    pub rows: Vec<Vec<String>>,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Unit of all its values, where they share one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// Numbers stand right.
    pub align: Align,
}

/// Where a column's texts stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Align {
    /// Left.
    Left,
    /// Right.
    Right,
}

impl Column {
    /// A column of texts.
    pub fn left(name: impl Into<String>) -> Column {
        Column { name: name.into(), unit: String::new(), align: Align::Left }
    }

    /// A column of numbers.
    pub fn right(name: impl Into<String>) -> Column {
        Column { name: name.into(), unit: String::new(), align: Align::Right }
    }
}
