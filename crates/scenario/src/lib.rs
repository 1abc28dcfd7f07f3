//! From a scenario file to a checked plan, and the schema of what a run records.
//!
//! ```
//! use netstage_scenario::{Options, parse};
//!
//! let errors = parse("empty.toml", "[scenario]\ntitel = \"t\"", None, &Options::default()).unwrap_err();
//! assert!(errors.to_string().contains("did you mean"));
//! ```
//!
//! Invariant: what has passed the checks can run, and each error names its place and what helps.
#![forbid(unsafe_code)]

mod address;
pub mod agent;
mod build;
mod error;
pub mod expect;
mod file;
mod judge;
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
pub mod regular;
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

pub use error::{Errors, Problem, Source, did_you_mean};
pub use read::{Options, load, parse};
pub use reference::reference;
pub use schema::json_schema;

use expect::{Expectation, Plot};
use plan::Plan;
use std::path::PathBuf;

/// A checked scenario: the cells of its sweep, and what is asked of them.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What it is called.
    pub title: String,
    /// A few sentences for the report.
    pub description: String,
    /// First seed; repeats use the following ones.
    pub seed: u64,
    /// Runs per cell.
    pub repeat: u32,
    /// Every cell: variants in order of name, each times its sweep, last key fastest.
    pub cells: Vec<Cell>,
    /// What must hold.
    pub expectations: Vec<Expectation>,
    /// What is drawn.
    pub plots: Vec<Plot>,
    /// The file as run, after every `--set`.
    pub text: String,
    /// What is legal but unwise.
    pub warnings: Vec<String>,
    /// Trace and model files it was read with, below its folder.
    pub files: Vec<PathBuf>,
}

/// One cell: a plan, and what sets it apart from the others.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Name of its variant; empty where the file has none.
    pub variant: String,
    /// Swept path and value, as text, in the file's order.
    pub settings: Vec<(String, String)>,
    /// The plan.
    pub plan: Plan,
}
