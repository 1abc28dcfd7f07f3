//! Studies: every cell of a scenario under every seed, and what they come to.
//!
//! [`run`] takes a checked scenario and a closure that runs one plan under one seed, and
//! leaves a record: a folder with `record.json`, `series.parquet`, `figures.json`,
//! `environment.json` and, where any were taken, `distributions.parquet`. Until the last run is done the folder holds `plan.json` and a file
//! per finished run instead, and the same study takes it up where it stopped. docs/record.md
//! describes both.
#![forbid(unsafe_code)]

mod analyse;
mod distribution;
mod environment;
mod error;
#[cfg(test)]
mod fixture;
mod folder;
mod judge;
mod open;
mod overview;
mod remarks;
mod run;
mod spread;
mod statistics;
mod summary;
#[cfg(test)]
mod tests;
mod trials;

pub mod compare;
pub mod derive;
pub mod figure;
pub mod format;
pub mod plot;
pub mod report;
pub mod select;
pub mod series;
pub mod stage;
pub mod svg;

pub use environment::Environment;
pub use error::{Error, OpenError};
pub use netstage_scenario::outcome::Stopped;
pub use open::Record;
pub use run::{Observer, Options, Progress, Runner, run};

use netstage_scenario::plan::Plan;
use std::hash::Hasher;
use std::io::Read;

/// Each flow of a plan with the group it is a member of.
pub(crate) fn flow_groups(plan: &Plan) -> impl Iterator<Item = (String, &str)> {
    plan.flows.iter().enumerate().flat_map(move |(index, group)| {
        (0..group.count).map(move |member| (plan.flow_name(index, member), group.name.as_str()))
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
