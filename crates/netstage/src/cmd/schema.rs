//! `netstage schema`: the JSON Schema of scenario files, for editors.

use crate::exit::{self, Failure, OK};

/// Runs the command.
pub fn run() -> Result<u8, Failure> {
    exit::print(format!("{:#}\n", netstage_scenario::json_schema()).as_bytes())?;
    Ok(OK)
}
