//! Checked scenarios.

use crate::{error, toml_text};
use netstage_scenario::{LoadOptions, Scenario, parse};
use netstage_study::TOOL;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Swept paths and their values.
type SweptSettings = Vec<(String, String)>;

/// Checked scenario.
#[pyclass(frozen, module = "netstage._netstage")]
pub struct Checked(pub Arc<Scenario>);

/// Applies `sets` and `vary` to a text and checks it. Paths in the text are relative to `base`.
#[pyfunction]
#[pyo3(signature = (name, text, base=None, sets=vec![], vary=vec![]))]
pub fn check(
    py: Python<'_>,
    name: &str,
    text: &str,
    base: Option<PathBuf>,
    sets: Vec<(String, Bound<'_, PyAny>)>,
    vary: Vec<(String, Vec<Bound<'_, PyAny>>)>,
) -> PyResult<Checked> {
    let set = |(path, value): (String, Bound<'_, PyAny>)| Ok((path, toml_text::argument(&value)?));
    let swept = |(path, values): (String, Vec<Bound<'_, PyAny>>)| {
        Ok((path, values.iter().map(toml_text::argument).collect::<PyResult<_>>()?))
    };
    let options = LoadOptions {
        sets: sets.into_iter().map(set).collect::<PyResult<_>>()?,
        vary: vary.into_iter().map(swept).collect::<PyResult<_>>()?,
        ..LoadOptions::default()
    };
    let parsed = py.detach(|| parse(name, text, base.as_deref(), &options));
    parsed.map(|scenario| Checked(Arc::new(scenario))).map_err(|errors| error::scenario(&errors))
}

/// Returns the JSON Schema of scenario files.
#[pyfunction]
pub fn schema() -> String {
    format!("{:#}", netstage_scenario::json_schema())
}

/// Returns a suggestion for an unknown word: the nearest candidate, or all candidates if they are few.
#[pyfunction]
pub fn did_you_mean(written: &str, candidates: Vec<String>) -> Option<String> {
    netstage_scenario::did_you_mean(written, candidates.iter().map(String::as_str))
}

#[pymethods]
impl Checked {
    #[getter]
    fn title(&self) -> &str {
        &self.0.title
    }

    #[getter]
    fn description(&self) -> &str {
        &self.0.description
    }

    #[getter]
    fn seed(&self) -> u64 {
        self.0.seed
    }

    #[getter]
    fn repeat(&self) -> u32 {
        self.0.repeat
    }

    #[getter]
    fn text(&self) -> &str {
        &self.0.text
    }

    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.0.warnings.clone()
    }

    #[getter]
    fn files(&self) -> Vec<&Path> {
        self.0.files.iter().map(PathBuf::as_path).collect()
    }

    /// Variant, settings and duration in seconds of each cell.
    #[getter]
    fn cells(&self) -> Vec<(String, SweptSettings, f64)> {
        let cell = |cell: &netstage_scenario::Cell| {
            (cell.variant.clone(), cell.settings.clone(), cell.plan.duration.as_secs_f64())
        };
        self.0.cells.iter().map(cell).collect()
    }

    #[getter]
    fn expectations(&self) -> Vec<&str> {
        self.0.expectations.iter().map(|e| e.name.as_str()).collect()
    }

    #[getter]
    fn plots(&self) -> Vec<&str> {
        self.0.plots.iter().map(|p| p.name.as_str()).collect()
    }

    /// Returns an identity that is equal for the same scenario, seeds, stage and tool.
    fn identity(&self, stage: &str) -> String {
        netstage_study::identity(&self.0, stage, TOOL)
    }
}
