//! Python's values as TOML.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use pythonize::depythonize;

fn value(object: &Bound<'_, PyAny>) -> PyResult<toml::Value> {
    depythonize(object).map_err(|error| {
        let help = "a scenario holds texts, numbers, true and false, lists and tables";
        PyTypeError::new_err(format!("this cannot stand in a scenario: {error}; {help}"))
    })
}

/// A value on one line, as `--set` takes it.
pub fn argument(object: &Bound<'_, PyAny>) -> PyResult<String> {
    // One too large for TOML is refused like any other that is out of bounds, with its place.
    if object.is_exact_instance_of::<PyInt>() {
        return Ok(object.to_string());
    }
    Ok(value(object)?.to_string())
}

/// Nested tables as a document.
#[pyfunction]
pub fn document(tables: &Bound<'_, PyAny>) -> PyResult<String> {
    toml::to_string(&value(tables)?).map_err(|error| PyTypeError::new_err(error.to_string()))
}
