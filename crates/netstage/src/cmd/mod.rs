//! The commands.

#[cfg(feature = "full")]
pub mod agent;
pub mod check;
#[cfg(feature = "full")]
pub mod clean;
#[cfg(feature = "full")]
pub mod doctor;
#[cfg(feature = "full")]
pub mod fleet;
pub mod man;
#[cfg(feature = "full")]
pub mod measure;
#[cfg(feature = "full")]
pub mod pe;
pub mod report;
#[cfg(feature = "full")]
pub mod router;
pub mod run;
pub mod schema;
#[cfg(feature = "full")]
pub mod serve;
#[cfg(feature = "full")]
mod table;
#[cfg(feature = "full")]
pub mod tcp;
#[cfg(feature = "full")]
pub mod test;
#[cfg(feature = "full")]
pub mod traffic;

use crate::exit::Failure;
use netstage_scenario::{Cell, LoadOptions, Scenario};
use std::path::{Path, PathBuf};

/// Options that choose a scenario and override its values.
#[derive(clap::Args)]
pub struct ScenarioOptions {
    /// Scenario file
    pub scenario: PathBuf,
    /// First seed, overrides the file's
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Number of seeds per cell
    #[arg(long, value_name = "N")]
    pub repeat: Option<u32>,
    /// Override a value of the file, as vpn.a.weight=2 or link.*.rate="10 Mbit/s"
    #[arg(long, value_name = "PATH=VALUE", value_parser = assignment)]
    pub set: Vec<(String, String)>,
    /// Sweep a value of the file, as flow.bulk.count=2,10
    #[arg(long, value_name = "PATH=V1,V2,…", value_parser = assignment)]
    pub vary: Vec<(String, String)>,
}

impl ScenarioOptions {
    /// Loads and validates the scenario.
    pub fn load(&self) -> Result<Scenario, Failure> {
        self.load_with(|cell| cell)
    }

    /// Loads and validates the scenario, and keeps what `keep` returns of each cell.
    pub fn load_with<C>(&self, keep: impl FnMut(Cell) -> C) -> Result<Scenario<C>, Failure> {
        let vary = self.vary.iter().map(|(path, values)| (path.clone(), split(values)));
        let options = LoadOptions {
            sets: self.set.clone(),
            vary: vary.collect(),
            seed: self.seed,
            repeat: self.repeat,
        };
        Ok(netstage_scenario::load_with(&self.scenario, &options, keep)?)
    }

    /// Returns the file name without folder and extension.
    pub fn name(&self) -> &Path {
        self.scenario.file_stem().map_or(Path::new("scenario"), Path::new)
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((path, value)) if !path.trim().is_empty() => {
            Ok((path.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("expected PATH=VALUE".into()),
    }
}

/// Splits at commas outside of brackets and quotes.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut depth, mut quote) = (0, None);
    for c in text.chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (c, Some(q)) if c == q => quote = None,
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth -= 1,
            (',', None) if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("never empty").push(c);
    }
    parts.iter().map(|part| part.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_split_at_outer_commas() {
        assert_eq!(split("1, 2"), ["1", "2"]);
        assert_eq!(split("[1,2],{ a = 3, b = 4 }"), ["[1,2]", "{ a = 3, b = 4 }"]);
        assert_eq!(split("\"a,b\",'c,d'"), ["\"a,b\"", "'c,d'"]);
        assert_eq!(split(""), [""]);
    }

    #[test]
    fn an_assignment_has_a_path() {
        assert_eq!(assignment("a.b = x=y"), Ok(("a.b".into(), "x=y".into())));
        assert!(assignment("=1").is_err() && assignment("a").is_err());
    }
}
