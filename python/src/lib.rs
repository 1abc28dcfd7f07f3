//! Rust part of netstage's Python package: checking of scenarios, execution of studies, reading of records.
//!
//! The public API with its documentation is in `package/netstage/`.
#![forbid(unsafe_code)]
// The macros of PyO3 generate items without documentation.
#![allow(missing_docs)]

mod error;
mod learn;
mod listen;
mod record;
mod run;
mod scenario;
mod toml_text;

use pyo3::prelude::*;

#[pymodule]
mod _netstage {
    #[pymodule_export]
    use super::learn::learn;
    #[pymodule_export]
    use super::record::{Recorded, compare};
    #[pymodule_export]
    use super::run::{Study, perform, run};
    #[pymodule_export]
    use super::scenario::{Checked, check, did_you_mean, schema};
    #[pymodule_export]
    use super::toml_text::document;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("TOOL", netstage_study::TOOL)
    }
}
