//! `netstage schema`: prints the JSON Schema of scenario files, for editors.

use crate::exit::{self, Failure, OK};

/// Example command lines, for `--help`.
pub const EXAMPLES: &str = "Examples:
  netstage schema > scenario.schema.json";

/// Runs the command.
pub fn run() -> Result<u8, Failure> {
    exit::print(format!("{:#}\n", netstage_scenario::json_schema()).as_bytes())?;
    Ok(OK)
}
