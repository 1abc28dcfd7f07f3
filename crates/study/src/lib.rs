//! Studies: runs of all cells of a scenario under all seeds, and the analysis of their results.
//!
//! [`run`] takes a checked scenario and a closure that runs one plan under one seed. It writes a record: a folder
//! with `record.json`, `series.parquet`, `figures.json`, `environment.json` and, if distributions were measured,
//! `distributions.parquet`. Until the last run has finished, the folder holds `plan.json` and one file per finished
//! run; the same study resumes from these files. docs/record.md describes both layouts. Programs that perform runs
//! on other machines use [`Study`] and [`Performer`] directly.
//!
//! ```
//! assert_eq!(netstage_study::format::rate(1_500_000), "1.5 Mbit/s");
//! ```
//!
//! Invariant: a folder holds a complete record or none; the results of a run are written once.
#![forbid(unsafe_code)]

mod analysis;
mod correlate;
mod distribution;
mod environment;
mod error;
#[cfg(test)]
mod fixture;
mod folder;
mod journal;
mod judge;
mod overview;
mod pace;
mod perform;
mod record;
mod remarks;
mod run;
mod spread;
mod statistics;
mod study;
mod summary;
#[cfg(test)]
mod tests;
mod trials;

pub mod compare;
pub mod derive;
pub mod figure;
pub mod format;
pub mod observed;
pub mod page;
pub mod plot;
pub mod report;
pub mod select;
pub mod series;
pub mod stage;
pub mod svg;
pub mod table;
pub mod tuned;

pub use environment::Environment;
pub use error::{OpenError, StudyError};
pub use folder::folders;
pub use journal::kept_trials;
pub use netstage_scenario::outcome::RunFailure;
pub use perform::{Performer, PlanRunner, RunId};
pub use record::{RECORD_FILES, SERIES, StoredRecord};
pub use run::{Observer, StudyOptions, StudyProgress, run};
pub use study::{Study, identity};

use netstage_scenario::plan::Plan;
use std::hash::Hasher;
use std::io::Read;

/// Name and version of the tool, as stored in records.
pub const TOOL: &str = concat!("netstage ", env!("CARGO_PKG_VERSION"));

/// Aggregates that include a flow's subject.
#[derive(Clone, Debug)]
pub(crate) struct FlowAggregates {
    /// Flow group: `tv` for `tv[2]` and `tv[2]@kitchen`.
    pub group: String,
    /// Flow group at one of several receivers: `tv@kitchen`.
    pub receiver: Option<String>,
}

impl FlowAggregates {
    /// Returns the receiver's aggregate, or the group's if the flow has one receiver.
    pub fn narrowest(&self) -> &str {
        self.receiver.as_ref().unwrap_or(&self.group)
    }
}

/// Returns the subjects of all flows of a plan, each with its aggregates.
pub(crate) fn flow_aggregates(plan: &Plan) -> impl Iterator<Item = (String, FlowAggregates)> {
    let members = plan
        .flows
        .iter()
        .enumerate()
        .flat_map(|(index, group)| (0..group.count).map(move |member| (index, member)));
    members.flat_map(move |(index, member)| {
        let group = &plan.flows[index];
        let whole = FlowAggregates { group: group.name.clone(), receiver: None };
        let at_receiver = |(node, subject): (usize, String)| {
            let receiver = Some(format!("{}@{}", group.name, plan.nodes[node].name));
            (subject, FlowAggregates { receiver, ..whole.clone() })
        };
        let further = (!group.branches.is_empty()).then(|| plan.receivers(index, member));
        let further: Vec<_> = further.into_iter().flatten().map(at_receiver).collect();
        std::iter::once((plan.flow_name(index, member), whole.clone())).chain(further)
    })
}

/// Returns the XXH64 hash of `bytes`, as stored in records.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash64::oneshot(0, bytes)
}

/// Returns the XXH64 hash and the number of the bytes of a reader.
pub(crate) fn checksum_of(mut reader: impl Read) -> std::io::Result<(u64, u64)> {
    let mut hasher = twox_hash::XxHash64::with_seed(0);
    let mut buffer = vec![0; 1 << 18];
    let mut length = 0;
    loop {
        let n = reader.read(&mut buffer)?;
        if n == 0 {
            return Ok((hasher.finish(), length));
        }
        hasher.write(&buffer[..n]);
        length += n as u64;
    }
}
