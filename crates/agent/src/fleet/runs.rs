//! Runs of a fleet on the controller's disk: their numbers, the missing reports and the received ones. Each
//! run has a folder with `run.json` and a file per report. A report is written before the agent may delete
//! it.

use super::folder::{FleetFolder, file_error, is_full, now_s};
use super::private;
use netstage_agent_api::results::AgentReport;
use netstage_core::fleet::{Receipt, ResultLedger, run_number};
use netstage_host::startup_error::StartupError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Name of the folder of all runs.
pub(super) const RUNS: &str = "runs";
/// File with the greatest run number used so far, whose folder may have been removed.
const LAST: &str = "last";
const RUN: &str = "run.json";

/// Content of a run's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFile {
    /// Identifier of the run; zero in files of earlier versions, where it was the number.
    #[serde(default)]
    pub id: u64,
    /// Title of the scenario.
    pub title: String,
    /// Creation time of the run, seconds since 1970.
    pub opened_s: u64,
    /// Nodes represented by the agents, by agent name.
    pub agents: BTreeMap<String, String>,
    /// Set when no more reports are expected.
    #[serde(default)]
    pub closed: bool,
}

/// Runs of a fleet.
pub struct FleetRuns {
    folder: PathBuf,
    ledger: ResultLedger,
}

impl FleetRuns {
    /// Reads the runs of a fleet.
    pub fn read_all(fleet: &FleetFolder) -> Result<FleetRuns, StartupError> {
        let folder = fleet.folder().join(RUNS);
        let file = |error: io::Error| file_error(&folder, &error);
        let mut ledger = ResultLedger::default();
        let last = fs::read_to_string(folder.join(LAST)).unwrap_or_default();
        ledger.skip(last.trim().parse().unwrap_or(0));
        for entry in fs::read_dir(&folder).map_err(file)?.flatten() {
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            ledger.skip(number);
            let path = entry.path();
            // A folder without this file is being created by another process, or is incomplete.
            let Ok(opened) = private::read_json::<RunFile>(&path.join(RUN)) else { continue };
            let run = if opened.id == 0 { number.into() } else { opened.id };
            if opened.closed {
                ledger.close(run);
            } else {
                let is_stored = |agent: String| (path.join(report_file(&agent)).exists(), agent);
                let agents =
                    opened.agents.into_keys().map(is_stored).map(|(is_stored, agent)| (agent, is_stored));
                ledger.restore(run, agents);
            }
        }
        Ok(FleetRuns { folder, ledger })
    }

    /// Creates a run with a number that no other run in this folder has or gets, and returns its identifier.
    pub fn open(&mut self, title: &str, agents: BTreeMap<String, String>) -> Result<u64, StartupError> {
        loop {
            let random = RandomState::new().build_hasher().finish() as u32;
            let run = self.ledger.open(random, agents.keys().cloned());
            let path = self.path(run);
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.ledger.close(run),
                Err(error) => return Err(file_error(&path, &error)),
                Ok(()) => {
                    let (title, opened_s) = (title.into(), now_s());
                    let opened = RunFile { id: run, title, opened_s, agents, closed: false };
                    let written =
                        private::write(&self.folder.join(LAST), run_number(run).to_string().as_bytes())
                            .and_then(|()| private::write_json(&path.join(RUN), &opened));
                    return written.map(|()| run).map_err(|error| file_error(&path, &error));
                }
            }
        }
    }

    /// Stores a report, if it is expected. The agent may delete its copy afterwards. The error names the file.
    pub fn receive(&mut self, run: u64, agent: &str, report: &AgentReport) -> io::Result<Receipt> {
        let expected = self.ledger.missing(run).any(|missing| missing == agent);
        if expected {
            let path = self.path(run).join(report_file(agent));
            private::write_json(&path, report).map_err(|error| {
                let remedy = match is_full(&error) {
                    true => "; free space on this disk, then run `netstage fleet runs --fetch`",
                    false => "",
                };
                io::Error::new(error.kind(), format!("{error}, writing {}{remedy}", path.display()))
            })?;
        }
        Ok(self.ledger.receive(run, agent))
    }

    /// Returns the agents whose reports of this run are missing.
    pub fn missing(&self, run: u64) -> Vec<String> {
        self.ledger.missing(run).map(str::to_owned).collect()
    }

    /// Returns the open runs, oldest first.
    pub fn open_runs(&self) -> Vec<(u64, RunFile)> {
        let read = |run| Some((run, private::read_json(&self.path(run).join(RUN)).ok()?));
        self.ledger.open_runs().filter_map(read).collect()
    }

    /// Returns the nodes represented by the agents of a run, by agent name.
    pub fn agents(&self, run: u64) -> BTreeMap<String, String> {
        private::read_json::<RunFile>(&self.path(run).join(RUN))
            .map_or_else(|_| BTreeMap::new(), |run| run.agents)
    }

    /// Returns the stored reports of a run, in the order of its agents.
    pub fn reports(&self, run: u64) -> Vec<AgentReport> {
        let read = |agent: &String| private::read_json(&self.path(run).join(report_file(agent))).ok();
        self.agents(run).keys().filter_map(read).collect()
    }

    /// Closes a run, so that no more reports are expected. Its stored reports are kept.
    pub fn close(&mut self, run: u64) -> io::Result<()> {
        let path = self.path(run).join(RUN);
        let mut opened: RunFile = private::read_json(&path)?;
        opened.closed = true;
        private::write_json(&path, &opened)?;
        self.ledger.close(run);
        Ok(())
    }

    /// Closes a run and removes its stored reports, also if the disk is full.
    pub fn forget(&mut self, run: u64) -> io::Result<()> {
        let _ = self.close(run);
        self.ledger.close(run);
        fs::remove_dir_all(self.path(run))
    }

    /// Returns the folder of a run.
    pub fn path(&self, run: u64) -> PathBuf {
        self.folder.join(run_number(run).to_string())
    }

    /// Returns the identifier of the open run with this number.
    pub fn find(&self, number: u32) -> Option<u64> {
        self.ledger.open_runs().find(|run| run_number(*run) == number)
    }
}

fn report_file(agent: &str) -> impl AsRef<Path> {
    format!("{agent}.report.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_stored_once_and_run_numbers_continue_after_a_restart() {
        let folder = netstage_harness::TemporaryFolder::new("runs");
        let fleet = FleetFolder::create(&folder.join("fleet"), "lab").unwrap();
        let agents: BTreeMap<_, _> = [("a".into(), "n1".into()), ("b".into(), "n2".into())].into();
        let mut runs = FleetRuns::read_all(&fleet).unwrap();
        let first = runs.open("one", agents.clone()).unwrap();
        let report = AgentReport { node: "n1".into(), ..AgentReport::default() };
        assert_eq!((run_number(first), runs.receive(first, "a", &report).unwrap()), (1, Receipt::New));

        let mut other = FleetRuns::read_all(&fleet).unwrap();
        let (second, third) =
            (other.open("two", agents.clone()).unwrap(), runs.open("three", agents).unwrap());
        assert_eq!((run_number(second), run_number(third)), (2, 3));
        let mut runs = FleetRuns::read_all(&fleet).unwrap();
        assert_eq!(runs.find(1), Some(first));
        assert_eq!(runs.receive(first, "a", &report).unwrap(), Receipt::Duplicate);
        assert_eq!(runs.missing(first), ["b"]);
        assert_eq!(runs.reports(first), std::slice::from_ref(&report));
        runs.forget(third).unwrap();
        runs.close(first).unwrap();
        let mut runs = FleetRuns::read_all(&fleet).unwrap();
        assert_eq!(runs.open_runs().len(), 1);
        assert_eq!(runs.receive(first, "b", &report).unwrap(), Receipt::Late);
        assert_eq!(run_number(runs.open("four", BTreeMap::new()).unwrap()), 4);
    }
}
