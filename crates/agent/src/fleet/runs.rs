//! The runs of a fleet, on the controller's disk: their numbers, whose results are expected,
//! and what came in. A folder per run: `run.json`, and a file per report, which is written
//! before the agent may forget it.

use super::folder::file_error;
use super::folder::{Fleet, now_s};
use super::private;
use netstage_agent_api::results::Report;
use netstage_core::fleet::{Ledger, Receipt};
use netstage_host::obstacle::Obstacle;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Name of the folder.
pub(super) const RUNS: &str = "runs";
/// The file of the largest number that was ever given and whose folder may be gone.
const LAST: &str = "last";
const RUN: &str = "run.json";

/// A run, as its file says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The scenario's title.
    pub title: String,
    /// When it was opened, seconds since 1970.
    pub opened_s: u64,
    /// Its agents, and the node each stands for.
    pub agents: BTreeMap<String, String>,
    /// Nothing more is expected of it.
    #[serde(default)]
    pub closed: bool,
}

/// The runs.
pub struct Runs {
    folder: PathBuf,
    ledger: Ledger,
}

impl Runs {
    /// Those of a fleet.
    pub fn of(fleet: &Fleet) -> Result<Runs, Obstacle> {
        let folder = fleet.folder().join(RUNS);
        let file = |error: io::Error| file_error(&folder, &error);
        let mut ledger = Ledger::default();
        let last = fs::read_to_string(folder.join(LAST)).unwrap_or_default();
        ledger.skip(last.trim().parse().unwrap_or(0));
        for entry in fs::read_dir(&folder).map_err(file)?.flatten() {
            let Some(run) = entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok()) else {
                continue;
            };
            ledger.skip(run);
            let path = entry.path();
            // Without its file it is being opened by another process, or was never opened.
            let Ok(opened) = private::read_json::<Opened>(&path.join(RUN)) else { continue };
            if !opened.closed {
                let had = |agent: String| (path.join(report_file(&agent)).exists(), agent);
                let agents = opened.agents.into_keys().map(had).map(|(had, agent)| (agent, had));
                ledger.restore(run, agents);
            }
        }
        Ok(Runs { folder, ledger })
    }

    /// Opens a run under a number nobody had, and nobody else gets.
    pub fn open(&mut self, title: &str, agents: BTreeMap<String, String>) -> Result<u64, Obstacle> {
        loop {
            let run = self.ledger.open(agents.keys().cloned());
            let path = self.path(run);
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.ledger.close(run),
                Err(error) => return Err(file_error(&path, &error)),
                Ok(()) => {
                    let opened = Opened { title: title.into(), opened_s: now_s(), agents, closed: false };
                    let written = private::write(&self.folder.join(LAST), run.to_string().as_bytes())
                        .and_then(|()| private::write_json(&path.join(RUN), &opened));
                    return written.map(|()| run).map_err(|error| file_error(&path, &error));
                }
            }
        }
    }

    /// Keeps a report. Once this is done, its agent may forget it, unless it was not expected.
    pub fn receive(&mut self, run: u64, agent: &str, report: &Report) -> io::Result<Receipt> {
        let expected = self.ledger.missing(run).any(|missing| missing == agent);
        if expected {
            private::write_json(&self.path(run).join(report_file(agent)), report)?;
        }
        Ok(self.ledger.receive(run, agent))
    }

    /// Agents whose reports of this run are not here.
    pub fn missing(&self, run: u64) -> Vec<String> {
        self.ledger.missing(run).map(str::to_owned).collect()
    }

    /// Open runs, oldest first.
    pub fn open_runs(&self) -> Vec<(u64, Opened)> {
        let read = |run| Some((run, private::read_json(&self.path(run).join(RUN)).ok()?));
        self.ledger.open_runs().filter_map(read).collect()
    }

    /// Reports that are here, in the order of their agents.
    pub fn reports(&self, run: u64) -> Vec<Report> {
        let Ok(opened) = private::read_json::<Opened>(&self.path(run).join(RUN)) else { return Vec::new() };
        let read = |agent: &String| private::read_json(&self.path(run).join(report_file(agent))).ok();
        opened.agents.keys().filter_map(read).collect()
    }

    /// Expects nothing more of a run. Its reports stay.
    pub fn close(&mut self, run: u64) -> io::Result<()> {
        let path = self.path(run).join(RUN);
        let mut opened: Opened = private::read_json(&path)?;
        opened.closed = true;
        private::write_json(&path, &opened)?;
        self.ledger.close(run);
        Ok(())
    }

    /// Closes a run and removes what is here of it.
    pub fn forget(&mut self, run: u64) -> io::Result<()> {
        self.close(run)?;
        fs::remove_dir_all(self.path(run))
    }

    /// The folder of a run.
    pub fn path(&self, run: u64) -> PathBuf {
        self.folder.join(run.to_string())
    }
}

fn report_file(agent: &str) -> impl AsRef<Path> {
    format!("{agent}.report.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_kept_once_and_numbers_go_on_after_a_restart() {
        let folder = netstage_harness::Folder::new("runs");
        let fleet = Fleet::create(&folder.join("fleet"), "lab").unwrap();
        let agents: BTreeMap<_, _> = [("a".into(), "n1".into()), ("b".into(), "n2".into())].into();
        let mut runs = Runs::of(&fleet).unwrap();
        assert_eq!(runs.open("one", agents.clone()).unwrap(), 1);
        let report = Report { node: "n1".into(), ..Report::default() };
        assert_eq!(runs.receive(1, "a", &report).unwrap(), Receipt::New);

        let mut other = Runs::of(&fleet).unwrap();
        assert_eq!((other.open("two", agents.clone()).unwrap(), runs.open("three", agents).unwrap()), (2, 3));
        let mut runs = Runs::of(&fleet).unwrap();
        assert_eq!(runs.receive(1, "a", &report).unwrap(), Receipt::Again);
        assert_eq!(runs.missing(1), ["b"]);
        assert_eq!(runs.reports(1), std::slice::from_ref(&report));
        runs.forget(3).unwrap();
        runs.close(1).unwrap();
        let mut runs = Runs::of(&fleet).unwrap();
        assert_eq!(runs.open_runs().len(), 1);
        assert_eq!(runs.receive(1, "b", &report).unwrap(), Receipt::Late);
        assert_eq!(runs.open("four", BTreeMap::new()).unwrap(), 4);
    }
}
