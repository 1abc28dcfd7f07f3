//! Scenario files from arbitrary bytes: read, or rejected with a position; a scenario that was read is written
//! back unchanged.

use netstage_scenario::{LoadOptions, parse};

pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let options = LoadOptions { seed: Some(3), ..LoadOptions::default() };
    match parse("fuzz.toml", &text, None, &options) {
        Ok(scenario) => {
            let again = parse("again.toml", &scenario.text, None, &LoadOptions::default());
            let again = again.unwrap_or_else(|errors| panic!("{errors}\n{}", scenario.text));
            assert_eq!(scenario.cells.len(), again.cells.len());
            for (one, other) in scenario.cells.iter().zip(&again.cells) {
                assert_eq!(one.plan, other.plan);
            }
        }
        Err(errors) => {
            assert!(!errors.problems.is_empty());
            let _ = errors.to_string();
        }
    }
}
