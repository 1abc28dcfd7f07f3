//! Traffic engine without an agent: reads an assignment as JSON, runs it at once and prints the report as JSON,
//! with one line on standard error when ready. With `--limited`, the kernel applies an agent's limits to each packet:
//! a rate that is never reached, a destination prefix, and a budget (root).
//!
//! `cargo run --release -p netstage-bench --bin flow [-- --limited] < assignment.json`

use netstage_core::edge::IpPrefix;
use netstage_core::quantity::BitRate;
use netstage_core::time::Duration;
use netstage_host::clock::{Epoch, monotonic_ns};
use netstage_host::egress::{EgressGroup, EgressLimits};
use netstage_traffic::TrafficEngine;
use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;

fn main() -> Result<(), Box<dyn Error>> {
    let assignment = serde_json::from_reader(std::io::stdin())?;
    let is_limited = std::env::args().nth(1).is_some_and(|argument| argument == "--limited");
    let limits = is_limited.then(limit).transpose()?;
    let engine = TrafficEngine::prepare(&assignment)?;
    eprintln!("ready");
    let epoch = Epoch(monotonic_ns()).delayed_by(Duration::from_millis(200));
    let report = engine.run(epoch, &AtomicBool::new(false), &mut |_| {});
    if let Some(limits) = limits {
        eprintln!("{} bytes passed the limits, dropped: {:?}", limits.sent()?, limits.drops());
    }
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

/// Limits this thread and those that it starts.
fn limit() -> Result<EgressGroup, Box<dyn Error>> {
    let everywhere = IpPrefix::new(Ipv4Addr::UNSPECIFIED.into(), 0).expect("the length is valid");
    let limits = EgressLimits {
        rate: Some(BitRate(1_000_000_000_000)),
        destinations: Some(vec![everywhere]),
        interfaces: None,
        has_budget: true,
    };
    let group = EgressGroup::create(limits)?;
    group.allow(u64::MAX)?;
    group.enter()?;
    Ok(group)
}
