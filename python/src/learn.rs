//! Application models learned from captures.

use crate::error::{self, ArgumentError, CaptureError};
use netstage_traffic::learn as learning;
use pyo3::prelude::*;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

/// Learns a model and returns the text of its file, a description of its source, and warnings.
#[pyfunction]
#[pyo3(signature = (capture, flow=None))]
pub fn learn(
    py: Python<'_>,
    capture: PathBuf,
    flow: Option<&str>,
) -> PyResult<(String, String, Vec<String>)> {
    let filter: Option<learning::Filter> = flow
        .map(str::parse)
        .transpose()
        .map_err(|reason: String| ArgumentError::new_err(format!("flow: {reason}")))?;
    let file = BufReader::with_capacity(1 << 20, File::open(&capture).map_err(error::file(&capture))?);
    let name = capture.file_name().unwrap_or_default().to_string_lossy();
    let model = py
        .detach(|| learning::learn(&name, file, filter.as_ref()))
        .map_err(|error| CaptureError::new_err(format!("{}: {error}", capture.display())))?;
    Ok((model.file.to_json(), model.subject, model.warnings))
}
