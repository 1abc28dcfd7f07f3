//! Traffic engine without an agent: reads an assignment as JSON, runs it at once and prints the report as JSON,
//! with one line on standard error when ready.
//!
//! `cargo run --release -p netstage-bench --bin flow < assignment.json`

use netstage_core::time::Duration;
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_traffic::TrafficEngine;
use std::error::Error;
use std::sync::atomic::AtomicBool;

fn main() -> Result<(), Box<dyn Error>> {
    let assignment = serde_json::from_reader(std::io::stdin())?;
    let engine = TrafficEngine::prepare(&assignment)?;
    eprintln!("ready");
    let epoch = Epoch(monotonic_ns()).delayed_by(Duration::from_millis(200));
    let report = engine.run(epoch, &AtomicBool::new(false), &mut |_| {});
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
