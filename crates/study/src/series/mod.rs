//! Parquet files: `series.parquet` with the values of all runs, the file of a single run, and
//! `distributions.parquet`.
//!
//! Columns `cell`, `seed`, `time_ns`, `subject`, `metric`, `value`, with a row per value, sorted by cell, seed, metric,
//! the plan's subjects and time. Missing values have no row. Each run has its own row groups, so that runs are joined
//! without decoding.

mod distributions;
mod read;
mod write;

pub use distributions::write_distributions;
pub use read::{Block, SeriesReader, read_run};
pub use write::{Joiner, encode_run};

use netstage_core::measure::trial::LinkLateness;
use netstage_core::quantity::BitRate;
use netstage_scenario::outcome::finding::{PacketFault, TestOutcome};
use netstage_scenario::outcome::{AchievedLoad, Distribution, FlowArrivals, ThreadStall};
use parquet::basic::{IntType, LogicalType, Repetition, Type as Physical};
use parquet::schema::types::{PrimitiveTypeBuilder, Type, TypePtr};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Column names, in the file's order.
const COLUMNS: [&str; 6] = ["cell", "seed", "time_ns", "subject", "metric", "value"];

/// Metadata key of the [`RunMetadata`] in the file of a single run.
const NOTE_KEY: &str = "netstage.run";

/// Metadata in the file of a single run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RunMetadata {
    cell: u32,
    seed: u64,
    interval_ns: u64,
    bins: usize,
    totals: [u64; 8],
    distributions: Vec<Distribution>,
    loads: Vec<AchievedLoad>,
    tests: Vec<TestOutcome>,
    warnings: Vec<String>,
    void: Vec<String>,
    late_senders: Vec<(String, String)>,
    #[serde(default)]
    limited_by_policy: Vec<(String, String)>,
    #[serde(default)]
    sender_limits: Vec<(String, BitRate)>,
    held: Vec<(String, u64)>,
    #[serde(default)]
    stalls: Vec<ThreadStall>,
    #[serde(default)]
    late_links: Vec<(String, LinkLateness)>,
    arrivals: Vec<FlowArrivals>,
    #[serde(default)]
    packet_faults: Vec<PacketFault>,
    failures: Vec<String>,
    differences: Vec<String>,
}

fn column(name: &str, physical: Physical) -> PrimitiveTypeBuilder<'_> {
    Type::primitive_type_builder(name, physical).with_repetition(Repetition::REQUIRED)
}

fn unsigned(bit_width: i8) -> Option<LogicalType> {
    Some(LogicalType::Integer(IntType { bit_width, is_signed: false }))
}

fn schema() -> TypePtr {
    let text = |name| column(name, Physical::BYTE_ARRAY).with_logical_type(Some(LogicalType::String));
    let columns = [
        column(COLUMNS[0], Physical::INT32).with_logical_type(unsigned(32)),
        column(COLUMNS[1], Physical::INT64).with_logical_type(unsigned(64)),
        column(COLUMNS[2], Physical::INT64),
        text(COLUMNS[3]),
        text(COLUMNS[4]),
        column(COLUMNS[5], Physical::DOUBLE),
    ];
    let fields = columns.map(|c| Arc::new(c.build().expect("the columns are constant"))).to_vec();
    Arc::new(Type::group_type_builder("series").with_fields(fields).build().expect("the schema is constant"))
}

#[cfg(test)]
mod tests;
