//! Journal file of the pending runs of a study. If the process ends, the next one resumes them.

use netstage_agent::fleet::token::sha256;
use netstage_host::clock::{self, Epoch, monotonic_ns};
use netstage_scenario::plan::{IpVersion, Plan};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

/// Run that an earlier process left unfinished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingRun {
    /// Number of the run.
    pub run: u64,
    /// Digest of the plan and the seed.
    digest: String,
    /// Addresses of the sender and the receiver of each flow group.
    pub addresses: Vec<(IpAddr, IpAddr)>,
    /// Addresses of provider edge routers, by index of the node.
    #[serde(default)]
    pub routers: BTreeMap<usize, IpAddr>,
    /// Indices of the flow groups for which the agents determined IPv6.
    #[serde(default)]
    ipv6: BTreeSet<usize>,
    /// Number by which the agents recognize the controller of the run.
    #[serde(default)]
    pub controller: u64,
    /// Clock by which the run was started, and its start time.
    #[serde(default)]
    start: Option<(String, u64)>,
}

impl PendingRun {
    /// Creates the entry of a run before its start.
    pub fn new(
        plan: &Plan,
        seed: u64,
        (controller, run): (u64, u64),
        addresses: &[(IpAddr, IpAddr)],
        routers: &BTreeMap<usize, IpAddr>,
    ) -> PendingRun {
        let (addresses, routers) = (addresses.to_vec(), routers.clone());
        let groups = plan.flows.iter().enumerate();
        let determined = groups.filter(|(_, group)| group.any_version && group.family == IpVersion::V6);
        let ipv6 = determined.map(|(index, _)| index).collect();
        PendingRun { run, digest: digest(plan, seed), addresses, routers, ipv6, controller, start: None }
    }

    /// Returns the plan with the IP versions of the run.
    pub fn settled(&self, plan: &Plan) -> Plan {
        let mut settled = plan.clone();
        for (_, group) in settled.flows.iter_mut().enumerate().filter(|(index, _)| self.ipv6.contains(index))
        {
            group.family = IpVersion::V6;
        }
        settled
    }

    /// Returns the start of the run; the current time if it is unknown, as after a restart of the host.
    pub fn start(&self) -> Epoch {
        let start = self.start.as_ref().filter(|(clock, _)| clock::is_own_clock(clock));
        Epoch(start.map_or_else(monotonic_ns, |(_, start_ns)| *start_ns))
    }
}

/// Journal of pending runs.
pub struct Journal {
    path: PathBuf,
    left: Vec<PendingRun>,
    /// Runs of this process, which it does not resume.
    own: BTreeSet<u64>,
}

impl Journal {
    /// Opens the journal in a file, which need not exist.
    pub fn open(path: PathBuf) -> Journal {
        let left =
            fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Journal { path, left, own: BTreeSet::new() }
    }

    /// Returns the run of this plan and seed that an earlier process left unfinished.
    pub fn pending_run(&self, plan: &Plan, seed: u64) -> Option<PendingRun> {
        let digest = digest(plan, seed);
        let is_left = |left: &&PendingRun| left.digest == digest && !self.own.contains(&left.run);
        self.left.iter().rev().find(is_left).filter(|left| left.addresses.len() == plan.flows.len()).cloned()
    }

    /// Adds a run of this process.
    pub fn add_run(&mut self, run: PendingRun) {
        self.own.insert(run.run);
        self.left.push(run);
        self.write();
    }

    /// Sets the start of the run that was added last.
    pub fn set_start(&mut self, start: Epoch) {
        if let Some(run) = self.left.last_mut() {
            run.start = Some((clock::identity(), start.0));
        }
        self.write();
    }

    /// Writes the journal. Errors are ignored: without the file a run is repeated instead of resumed.
    fn write(&self) {
        if let (Some(folder), Ok(text)) = (self.path.parent(), serde_json::to_vec_pretty(&self.left)) {
            let _ = fs::create_dir_all(folder).and_then(|()| fs::write(&self.path, text));
        }
    }
}

/// Returns a digest of plan and seed. IP versions that the agents determined do not count.
fn digest(plan: &Plan, seed: u64) -> String {
    let mut plan = plan.clone();
    for group in plan.flows.iter_mut().filter(|group| group.any_version) {
        group.family = IpVersion::default();
    }
    sha256(format!("{seed} {plan:?}").as_bytes())
}
