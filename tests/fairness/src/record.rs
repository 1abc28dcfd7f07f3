//! Results as a file of JSON lines, one per case and one per run, so that an interrupted run continues and a later run
//! adds controls.

use crate::draw::Features;
use crate::judge::Measures;
use crate::owed::Owed;
use crate::runs::Control;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;

/// Results of a seed, by case.
#[derive(Debug, Default)]
pub struct Records {
    /// Cases by index.
    pub cases: BTreeMap<u64, CaseRecord>,
    file: Option<File>,
}

/// Case with its runs.
#[derive(Clone, Debug)]
pub struct CaseRecord {
    /// Properties of the case.
    pub features: Features,
    /// Rates owed.
    pub owed: Owed,
    /// Runs by name of the control.
    pub runs: BTreeMap<String, RunRecord>,
}

/// Run of a case with a control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Control.
    pub text: String,
    /// Packets sent by all hosts and PEs.
    pub packets: u64,
    /// Duration of the simulation in real time.
    pub seconds: f64,
    /// Measures.
    pub measures: Measures,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    Case { case: u64, features: Features, owed: Owed },
    Run { case: u64, control: String, run: RunRecord },
}

impl Records {
    /// Opens a file of results, or creates it. An incomplete last line, left by an interruption, is removed.
    pub fn open(path: &Path) -> Result<Records, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).map_err(failed)?;
        let mut records = Records::default();
        for (number, line) in text[..whole].lines().enumerate() {
            let line = serde_json::from_str(line)
                .map_err(|error| format!("{}:{}: {error}", path.display(), number + 1))?;
            records.insert(line)?;
        }
        records.file = Some(file);
        Ok(records)
    }

    fn insert(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Case { case, features, owed } => {
                self.cases.insert(case, CaseRecord { features, owed, runs: BTreeMap::new() });
            }
            Line::Run { case, control, run } => {
                let case = self.cases.get_mut(&case).ok_or_else(|| format!("case {case} is missing"))?;
                case.runs.insert(control, run);
            }
        }
        Ok(())
    }

    fn add(&mut self, line: Line) -> Result<(), String> {
        if let Some(file) = &mut self.file {
            let mut text = serde_json::to_string(&line).map_err(|error| error.to_string())?;
            text.push('\n');
            file.write_all(text.as_bytes()).map_err(|error| format!("cannot write a result: {error}"))?;
        }
        self.insert(line)
    }

    pub(crate) fn add_case(&mut self, case: u64, features: Features, owed: Owed) -> Result<(), String> {
        self.add(Line::Case { case, features, owed })
    }

    pub(crate) fn add_run(&mut self, case: u64, control: &str, run: RunRecord) -> Result<(), String> {
        self.add(Line::Run { case, control: control.to_owned(), run })
    }

    pub(crate) fn owed(&self, case: u64) -> Option<Owed> {
        self.cases.get(&case).map(|case| case.owed.clone())
    }

    /// Returns the controls that a case has not run with. A control of the same name must be the same.
    pub(crate) fn missing(
        &self,
        case: u64,
        controls: &[(String, Control)],
    ) -> Result<Vec<(String, Control)>, String> {
        let mut missing = Vec::new();
        for (name, control) in controls {
            match self.cases.get(&case).and_then(|case| case.runs.get(name)) {
                None => missing.push((name.clone(), control.clone())),
                Some(run) if run.text == control.text() => {}
                Some(run) => {
                    return Err(format!("the records have another control \"{name}\": {}", run.text));
                }
            }
        }
        Ok(missing)
    }
}
