//! Applications learned from captures.

use crate::error::{self, ArgumentError, CaptureError};
use netstage_traffic::learn as lessons;
use pyo3::prelude::*;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

/// The text of the model file, whom it was learned from, and what to know before trusting it.
#[pyfunction]
#[pyo3(signature = (capture, flow=None))]
pub fn learn(
    py: Python<'_>,
    capture: PathBuf,
    flow: Option<&str>,
) -> PyResult<(String, String, Vec<String>)> {
    let filter: Option<lessons::Filter> = flow
        .map(str::parse)
        .transpose()
        .map_err(|why: String| ArgumentError::new_err(format!("flow: {why}")))?;
    let file = BufReader::with_capacity(1 << 20, File::open(&capture).map_err(error::file(&capture))?);
    let name = capture.file_name().unwrap_or_default().to_string_lossy();
    let lesson = py
        .detach(|| lessons::learn(&name, file, filter.as_ref()))
        .map_err(|error| CaptureError::new_err(format!("{}: {error}", capture.display())))?;
    Ok((lesson.file.to_json(), lesson.subject, lesson.warnings))
}
