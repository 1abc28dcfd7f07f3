//! Studies: every cell of a scenario under every seed, and what they come to.
//!
//! [`run`] takes a checked scenario and a closure that runs one plan under one seed, and
//! leaves a record: a folder with `record.json`, `series.parquet`, `figures.json`,
//! `environment.json` and, where any were taken, `distributions.parquet`. Until the last run is done the folder holds `plan.json` and a file
//! per finished run instead, and the same study takes it up where it stopped. docs/record.md
//! describes both. Who performs runs elsewhere than on threads of this process drives a [`Study`]
//! and a [`Performer`] by itself.
//!
//! ```
//! assert_eq!(netstage_study::format::rate(1_500_000), "1.5 Mbit/s");
//! ```
//!
//! Invariant: a record is complete or it is none; what a run measured is written once.
#![forbid(unsafe_code)]

mod analyse;
mod correlate;
mod distribution;
mod environment;
mod error;
#[cfg(test)]
mod fixture;
mod folder;
mod judge;
mod open;
mod overview;
mod pace;
mod perform;
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
pub use error::{Error, OpenError};
pub use netstage_scenario::outcome::Stopped;
pub use open::{RECORD_FILES, Record, SERIES};
pub use perform::{Performer, Run, Runner};
pub use run::{Observer, Options, Progress, run};
pub use study::{Study, identity};

use netstage_scenario::plan::Plan;
use std::hash::Hasher;
use std::io::Read;

/// Name and version, as records tell them.
pub const TOOL: &str = concat!("netstage ", env!("CARGO_PKG_VERSION"));

/// What a flow's subject is a part of.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The flow group: `tv` of `tv[2]` and of `tv[2]@kitchen`.
    pub group: String,
    /// The group at this one receiver, where the flow has several: `tv@kitchen`.
    pub receiver: Option<String>,
}

impl Part {
    /// The smaller of the two.
    pub fn narrow(&self) -> &str {
        self.receiver.as_ref().unwrap_or(&self.group)
    }
}

/// Every subject of a plan's flows with what it is a part of.
pub(crate) fn flow_parts(plan: &Plan) -> impl Iterator<Item = (String, Part)> {
    let members = plan
        .flows
        .iter()
        .enumerate()
        .flat_map(|(index, group)| (0..group.count).map(move |member| (index, member)));
    members.flat_map(move |(index, member)| {
        let group = &plan.flows[index];
        let whole = Part { group: group.name.clone(), receiver: None };
        let at_receiver = |(node, subject): (usize, String)| {
            let receiver = Some(format!("{}@{}", group.name, plan.nodes[node].name));
            (subject, Part { receiver, ..whole.clone() })
        };
        let further = (!group.branches.is_empty()).then(|| plan.receivers(index, member));
        let further: Vec<_> = further.into_iter().flatten().map(at_receiver).collect();
        std::iter::once((plan.flow_name(index, member), whole.clone())).chain(further)
    })
}

/// XXH64 of bytes, as records state it.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash64::oneshot(0, bytes)
}

/// XXH64 and length of all that a reader yields.
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
