//! Reading of records.

use crate::error;
use netstage_study::report::{ReportData, report};
use netstage_study::{StoredRecord, compare as comparison, page, svg};
use pyo3::prelude::*;
use pyo3::types::PyType;
use std::path::{Path, PathBuf};

/// Record of a finished study.
#[pyclass(frozen, module = "netstage._netstage")]
pub struct Recorded(StoredRecord);

#[pymethods]
impl Recorded {
    /// Reads a record's folder.
    #[new]
    fn new(py: Python<'_>, folder: PathBuf) -> PyResult<Recorded> {
        py.detach(|| StoredRecord::open(&folder)).map(Recorded).map_err(error::open)
    }

    #[getter]
    fn folder(&self) -> &Path {
        &self.0.folder
    }

    #[getter]
    fn name(&self) -> String {
        self.0.name()
    }

    #[getter]
    fn passes(&self) -> bool {
        self.0.data.passes()
    }

    /// Returns the text of `record.json`.
    fn data(&self) -> String {
        self.0.data.to_json()
    }

    /// Returns the text of `environment.json`.
    fn environment(&self) -> String {
        json(&self.0.environment)
    }

    /// Returns the data of the figures as JSON.
    fn figures(&self) -> String {
        json(&self.0.figures)
    }

    /// Returns a figure as SVG.
    fn svg(&self, py: Python<'_>, figure: usize) -> Option<String> {
        let figure = self.0.figures.get(figure)?;
        Some(py.detach(|| svg::svg(figure)))
    }

    /// Returns the report as JSON.
    fn report(&self, py: Python<'_>) -> String {
        py.detach(|| json(&report(&self.0)))
    }

    /// Writes the report as a self-contained HTML page.
    fn write_page(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| page::write(&path, &report(&self.0))).map_err(error::file(&path))
    }

    /// Returns the path of the measured values after verifying the file's checksum.
    fn series_file(&self, py: Python<'_>) -> PyResult<PathBuf> {
        py.detach(|| self.0.series_file()).map_err(error::open)
    }

    /// Returns the path of the distributions after verifying the file's checksum, or `None` if none were measured.
    fn distributions_file(&self, py: Python<'_>) -> PyResult<Option<PathBuf>> {
        py.detach(|| self.0.distributions_file()).map_err(error::open)
    }

    /// Returns the same object, which is immutable.
    fn __deepcopy__<'py>(slf: Bound<'py, Recorded>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Recorded> {
        slf
    }

    /// Pickles the absolute path of the folder, which the other process opens.
    fn __reduce__<'py>(slf: &Bound<'py, Recorded>) -> PyResult<(Bound<'py, PyType>, (PathBuf,))> {
        let folder = &slf.get().0.folder;
        let folder = std::path::absolute(folder).map_err(error::file(folder))?;
        Ok((slf.get_type(), (folder,)))
    }
}

/// Returns the comparison of records as JSON, and also writes it as a page if `path` is given.
#[pyfunction]
#[pyo3(signature = (records, path=None))]
pub fn compare(py: Python<'_>, records: Vec<PyRef<'_, Recorded>>, path: Option<PathBuf>) -> PyResult<String> {
    let records: Vec<StoredRecord> = records.iter().map(|record| record.0.clone()).collect();
    py.detach(|| {
        let data: ReportData = comparison::compare(&records);
        if let Some(path) = path {
            page::write(&path, &data).map_err(error::file(&path))?;
        }
        Ok(json(&data))
    })
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("only text and numbers")
}
