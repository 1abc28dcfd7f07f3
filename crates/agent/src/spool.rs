//! Spool: reports on the agent's own disk, so that the loss of a controller loses no results. A report is
//! written to a temporary file, synced and renamed, so that a file under its final name is complete.
//!
//! A persistent spool is used again by the next agent. It records the accepted runs, and
//! keeps a journal of completed bins. If the agent is killed, the journal becomes a report when the agent
//! returns.

use netstage_agent_api::results::{AgentReport, BinCounts, CompletedBin, FlowResult, TcpSample, Travel};
use netstage_agent_api::task::{Assignment, FlowSide};
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_core::time::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Folder that stores reports until a controller has them.
#[derive(Debug)]
pub struct Spool {
    folder: Option<PathBuf>,
    is_persistent: bool,
}

/// File name extension of a report, and of a journal of bins.
const REPORT: &str = "json";
const BINS: &str = "bins";
/// Name of the file that holds the accepted runs, one a line, oldest first.
const ACCEPTED: &str = "accepted-runs";

/// First line of a journal.
#[derive(Serialize, Deserialize)]
struct JournalHeader {
    node: String,
    bins: usize,
    #[serde(default)]
    interval: Duration,
    /// Number and name of each flow, and whether this is its sending side.
    flows: Vec<(u32, String, bool)>,
}

impl Spool {
    /// Opens the folder, and creates it if it is missing.
    pub fn open(folder: &Path) -> io::Result<Spool> {
        fs::create_dir_all(folder)?;
        Ok(Spool { folder: Some(folder.to_owned()), is_persistent: false })
    }

    /// Opens the persistent spool of an agent. The journal of a run during which the agent was killed becomes
    /// a report.
    pub fn open_persistent(folder: &Path) -> io::Result<Spool> {
        let spool = Spool { is_persistent: true, ..Spool::open(folder)? };
        for entry in fs::read_dir(folder)?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == BINS) {
                if let Some(report) = report_of_bins(&fs::read_to_string(&path)?)
                    && let Ok(report) = serde_json::to_vec(&report)
                {
                    write_whole(folder, &path.with_extension(REPORT), &report)?;
                }
                fs::remove_file(&path)?;
            }
        }
        Ok(spool)
    }

    /// Returns a spool that stores nothing: a report that no controller fetches is lost.
    pub fn disabled() -> Spool {
        Spool { folder: None, is_persistent: false }
    }

    /// Stores a report and returns its path, or `None` without a folder. The error names the file.
    pub fn store(&self, node: &str, run: u64, report: &[u8]) -> Result<Option<PathBuf>, String> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let path = folder.join(file_name(node, run, REPORT));
        write_whole(folder, &path, report)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        if self.is_persistent {
            // The report contains the whole journal.
            let _ = fs::remove_file(path.with_extension(BINS));
        }
        Ok(Some(path))
    }

    /// Records the accepted runs, oldest first. They will not be accepted again.
    pub fn record_accepted(&self, runs: &[u64]) -> Result<(), String> {
        let Some(folder) = self.folder.as_ref().filter(|_| self.is_persistent) else { return Ok(()) };
        let path = folder.join(ACCEPTED);
        let lines: String = runs.iter().map(|run| format!("{run}\n")).collect();
        let written = write_whole(folder, &path, lines.as_bytes());
        written.map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// Returns the accepted runs, oldest first.
    pub fn accepted(&self) -> Vec<u64> {
        let text = self.folder.as_ref().and_then(|folder| fs::read_to_string(folder.join(ACCEPTED)).ok());
        text.iter().flat_map(|text| text.lines()).filter_map(|line| line.parse().ok()).collect()
    }

    /// Opens the journal of a run, or returns `None` if this spool keeps none.
    pub fn journal(&self, run: u64, assignment: &Assignment) -> Option<Journal> {
        let folder = self.folder.as_ref().filter(|_| self.is_persistent)?;
        let flows = assignment.flows.iter();
        let head = JournalHeader {
            node: assignment.node.clone(),
            bins: assignment.duration.0.div_ceil(assignment.interval.0) as usize,
            interval: assignment.interval,
            flows: flows.map(|flow| (flow.id, flow.name.clone(), flow.side == FlowSide::Send)).collect(),
        };
        let path = folder.join(file_name(&assignment.node, run, BINS));
        let mut journal = Journal { file: File::create(&path).ok()?, path };
        journal.line(&head);
        Some(journal)
    }

    /// Returns the runs with stored reports, and the paths of the reports.
    pub fn stored_reports(&self) -> Vec<(u64, PathBuf)> {
        let Some(folder) = &self.folder else { return Vec::new() };
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let report = |entry: fs::DirEntry| {
            let path = entry.path();
            let name = path.file_name()?.to_str()?.strip_suffix(REPORT)?.strip_suffix('.')?;
            Some((name.rsplit_once('-')?.1.parse().ok()?, path))
        };
        let mut kept: Vec<(u64, PathBuf)> = entries.flatten().filter_map(report).collect();
        kept.sort_unstable();
        kept
    }
}

/// Journal of the completed bins of a run, one line per bin. It is not synced: it survives the agent, but not
/// a crash of the machine.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Appends a bin. A failure is ignored, since the report may still contain the bin.
    pub fn write(&mut self, ended: &CompletedBin) {
        self.line(ended);
    }

    fn line(&mut self, value: &impl Serialize) {
        if let Ok(mut line) = serde_json::to_vec(value) {
            line.push(b'\n');
            let _ = self.file.write_all(&line);
        }
    }

    /// Removes the journal of a run that did not begin.
    pub fn discard(self) {
        let _ = fs::remove_file(self.path);
    }
}

/// Restores the report of a killed agent from its journal. The last line may be incomplete.
fn report_of_bins(text: &str) -> Option<AgentReport> {
    let mut lines = text.lines();
    let head: JournalHeader = serde_json::from_str(lines.next()?).ok()?;
    let result = |(_, name, sends): &(u32, String, bool)| FlowResult {
        name: name.clone(),
        sends: *sends,
        bins: vec![BinCounts::default(); head.bins],
        ..FlowResult::default()
    };
    let mut flows: Vec<FlowResult> = head.flows.iter().map(result).collect();
    let mut ended_bins = 0;
    for ended in lines.filter_map(|line| serde_json::from_str::<CompletedBin>(line).ok()) {
        ended_bins = ended_bins.max(u64::from(ended.bin) + 1);
        let which = head.flows.iter().position(|(id, _, sends)| (*id, *sends) == (ended.flow, ended.sends));
        let Some(flow) = which.map(|which| &mut flows[which]) else { continue };
        let bin = ended.bin as usize;
        if let Some(counts) = flow.bins.get_mut(bin) {
            counts.add(&ended.counts);
        }
        if let Some(tcp) = ended.tcp.filter(|_| bin < head.bins) {
            flow.tcp.resize(bin.max(flow.tcp.len()), TcpSample::default());
            flow.tcp.push(tcp);
        }
        if let Some(travel) = ended.travel.filter(|_| bin < head.bins) {
            flow.travel.resize(bin.max(flow.travel.len()), Travel::default());
            flow.travel.push(travel);
        }
    }
    let fault = "was killed during the run; its counters end";
    let at = FaultTime::At(Instant::ZERO + head.interval * ended_bins);
    let void = vec![VoidReason::new(format!("agent {}", head.node), fault, at)];
    Some(AgentReport { node: head.node, flows, void, ..AgentReport::default() })
}

fn write_whole(folder: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("part");
    let written = write_synced(&temporary, bytes)
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| File::open(folder)?.sync_all());
    if written.is_err() {
        // An incomplete file only wastes disk space.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Returns a file name without special characters, whatever the name of the node is.
fn file_name(node: &str, run: u64, extension: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let node: String = node.chars().take(64).map(plain).collect();
    format!("{node}-{run}.{extension}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_agent_api::task::FlowTask;
    use netstage_core::quantity::BitRate;
    use netstage_core::time::Duration;
    use netstage_core::traffic::Pattern;
    use netstage_harness::TemporaryFolder;

    #[test]
    fn a_nodes_name_cannot_choose_the_folder() {
        assert_eq!(file_name("pe1", 3, REPORT), "pe1-3.json");
        assert_eq!(file_name("../../etc/x[2]", 1, REPORT), "______etc_x_2_-1.json");
        assert!(file_name(&"é".repeat(500), u64::MAX, BINS).len() < 100);
    }

    #[test]
    fn a_report_is_stored_without_temporary_files() {
        let folder = TemporaryFolder::new("spool");
        let spool = Spool::open(&folder).unwrap();
        let path = spool.store("a", 1, b"{}").unwrap().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"{}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
        let error = spool.store("a", 2, b"{}").unwrap_err();
        assert!(error.contains("a-2.json"), "{error}");
    }

    #[test]
    fn the_journal_of_a_killed_agent_becomes_a_report() {
        let folder = TemporaryFolder::new("journal");
        let spool = Spool::open_persistent(&folder).unwrap();
        assert!(spool.accepted().is_empty());
        spool.record_accepted(&[9, 4]).unwrap();
        let interval = Duration::from_millis(100);
        let flow = FlowTask {
            id: 9,
            ..FlowTask::udp(
                "f",
                FlowSide::Send,
                ["192.0.2.1:0", "192.0.2.2:1"].map(|end| end.parse().unwrap()),
                Pattern::Cbr { rate: BitRate(1), packet: 1 },
                Duration::from_secs(1),
            )
        };
        let assignment = Assignment::of_flows("a", Duration::from_secs(1), interval, vec![flow]);
        let mut journal = spool.journal(4, &assignment).unwrap();
        for (bin, sent) in [(0, 5), (1, 7)] {
            let counts = BinCounts { sent, ..BinCounts::default() };
            journal.write(&CompletedBin { flow: 9, sends: true, bin, counts, tcp: None, travel: None });
        }
        journal.file.write_all(b"{\"flow\":9,\"se").unwrap();
        drop((journal, spool));

        let spool = Spool::open_persistent(&folder).unwrap();
        assert_eq!(spool.accepted(), [9, 4]);
        let [(4, path)] = &spool.stored_reports()[..] else { panic!("{:?}", spool.stored_reports()) };
        let report: AgentReport = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let sent: Vec<u64> = report.flows[0].bins.iter().map(|bin| bin.sent).collect();
        assert_eq!(sent, [5, 7, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert!(report.void[0].contains("killed"));
        // A completed run keeps its report.
        let _journal = spool.journal(5, &assignment).unwrap();
        spool.store("a", 5, b"{}").unwrap();
        // A run that did not begin leaves no report.
        spool.journal(6, &assignment).unwrap().discard();
        assert_eq!(Spool::open_persistent(&folder).unwrap().stored_reports().len(), 2);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
    }
}
