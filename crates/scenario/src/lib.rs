//! Conversion of a scenario file to a checked plan, and the schema of a record.
//!
//! ```
//! use netstage_scenario::{LoadOptions, parse};
//!
//! let errors = parse("empty.toml", "[scenario]\ntitel = \"t\"", None, &LoadOptions::default()).unwrap_err();
//! assert!(errors.to_string().contains("did you mean"));
//! ```
//!
//! Invariant: a scenario that passes the checks can run, and each error gives its place and a remedy.
#![forbid(unsafe_code)]

mod address;
pub mod agent;
mod build;
mod error;
pub mod expect;
mod file;
mod judge;
mod key;
pub mod learned;
pub mod outcome;
pub mod pattern;
pub mod pe;
pub mod plan;
pub mod quality;
mod quantity;
mod read;
pub mod record;
mod reference;
pub mod regular_file;
pub mod router;
mod scalar;
mod schema;
mod set;
mod sweep;
mod table;
pub mod tester;
mod trace;
mod tree;
pub mod window;

pub use error::{Errors, FileProblem, SourceText, did_you_mean};
pub use read::{LoadOptions, load, load_with, parse, parse_with};
pub use reference::reference;
pub use schema::json_schema;

use expect::{Expectation, Plot};
use plan::Plan;
use std::path::PathBuf;

/// A checked scenario: its cells, or what [`load_with`] kept of them, its expectations and figures.
#[derive(Clone, Debug)]
pub struct Scenario<C = Cell> {
    /// Title in reports.
    pub title: String,
    /// Description in reports.
    pub description: String,
    /// Seed of the first run; each repeat uses the next seed.
    pub seed: u64,
    /// Runs per cell.
    pub repeat: u32,
    /// Cells: variants by name, each multiplied by the sweep. The last swept path changes fastest.
    pub cells: Vec<C>,
    /// Expectations of the results.
    pub expectations: Vec<Expectation>,
    /// Figures.
    pub plots: Vec<Plot>,
    /// Text of the file with the options of the command line applied.
    pub text: String,
    /// Warnings about valid but unwise values.
    pub warnings: Vec<String>,
    /// Trace and model files, relative to the scenario's folder.
    pub files: Vec<PathBuf>,
}

impl Scenario<()> {
    fn with_cells<C>(self, cells: Vec<C>) -> Scenario<C> {
        Scenario {
            title: self.title,
            description: self.description,
            seed: self.seed,
            repeat: self.repeat,
            cells,
            expectations: self.expectations,
            plots: self.plots,
            text: self.text,
            warnings: self.warnings,
            files: self.files,
        }
    }
}

/// A plan, and the variant and swept values that identify it.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Name of the variant; empty if the file has none.
    pub variant: String,
    /// Swept paths and their values as text, in the order of the file.
    pub settings: Vec<(String, String)>,
    /// Plan to run.
    pub plan: Plan,
}
