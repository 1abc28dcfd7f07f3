//! Conversion of Python values to TOML.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use pythonize::depythonize;

fn value(object: &Bound<'_, PyAny>) -> PyResult<toml::Value> {
    depythonize(object).map_err(|error| {
        let help = "use strings, numbers, booleans, lists and dictionaries";
        PyTypeError::new_err(format!("value not allowed in a scenario: {error}; {help}"))
    })
}

/// Returns a value as one line, in the syntax of `--set`.
pub fn argument(object: &Bound<'_, PyAny>) -> PyResult<String> {
    // An integer too large for TOML is rejected later, with its position, like other values out of bounds.
    if object.is_exact_instance_of::<PyInt>() {
        return Ok(object.to_string());
    }
    Ok(value(object)?.to_string())
}

/// Returns nested tables as a TOML document.
#[pyfunction]
pub fn document(tables: &Bound<'_, PyAny>) -> PyResult<String> {
    toml::to_string(&value(tables)?).map_err(|error| PyTypeError::new_err(error.to_string()))
}
