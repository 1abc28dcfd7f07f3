//! Which runs of a study are under way, on disk: where its process ends, the next one takes
//! them up.

use netstage_agent::fleet::token::sha256;
use netstage_scenario::plan::Plan;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

/// A run that was left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// Its number.
    pub run: u64,
    /// What it was of.
    of: String,
    /// Addresses of sender and receiver of each flow group.
    pub addresses: Vec<(IpAddr, IpAddr)>,
    /// Addresses of provider edge routers, by index of the node.
    #[serde(default)]
    pub routers: BTreeMap<usize, IpAddr>,
}

/// The journal.
pub struct Journal {
    path: PathBuf,
    left: Vec<Left>,
    /// Runs of this process: those it need not take up.
    own: BTreeSet<u64>,
}

impl Journal {
    /// That of a file, which may not be there yet.
    pub fn open(path: PathBuf) -> Journal {
        let left =
            fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Journal { path, left, own: BTreeSet::new() }
    }

    /// The run of this plan and seed that an earlier process left.
    pub fn left(&self, plan: &Plan, seed: u64) -> Option<Left> {
        let of = of(plan, seed);
        let is_left = |left: &&Left| left.of == of && !self.own.contains(&left.run);
        self.left.iter().rev().find(is_left).filter(|left| left.addresses.len() == plan.flows.len()).cloned()
    }

    /// A run is under way.
    pub fn begun(
        &mut self,
        plan: &Plan,
        seed: u64,
        run: u64,
        addresses: &[(IpAddr, IpAddr)],
        routers: &BTreeMap<usize, IpAddr>,
    ) {
        self.own.insert(run);
        let (addresses, routers) = (addresses.to_vec(), routers.clone());
        self.left.push(Left { run, of: of(plan, seed), addresses, routers });
        self.write();
    }

    /// Without it a run is not taken up, which costs its time and nothing else.
    fn write(&self) {
        if let (Some(folder), Ok(text)) = (self.path.parent(), serde_json::to_vec_pretty(&self.left)) {
            let _ = fs::create_dir_all(folder).and_then(|()| fs::write(&self.path, text));
        }
    }
}

fn of(plan: &Plan, seed: u64) -> String {
    sha256(format!("{seed} {plan:?}").as_bytes())
}
