//! BFD settings of a router.

use super::file::BfdSection;
use crate::error::Problems;
use netstage_core::time::Duration;
use std::net::IpAddr;

/// BFD settings of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdSettings {
    /// Addresses of the neighbors.
    pub neighbors: Vec<IpAddr>,
    /// Interval at which packets are sent and expected.
    pub interval: Duration,
    /// Number of intervals without a packet after which a neighbor is down.
    pub multiplier: u8,
}

pub(super) fn build(section: &BfdSection, problems: &mut Problems) -> BfdSettings {
    let mut neighbors = Vec::new();
    for neighbor in &section.neighbors.0 {
        let address = neighbor.value.0;
        if neighbors.contains(&address) {
            problems.push_help(neighbor.place, format!("{address} is listed twice"), "list a neighbor once");
        }
        if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
            let message = format!("{address} may be on any link");
            problems.push_help(neighbor.place, message, "list an address that is not link-local");
        }
        neighbors.push(address);
    }
    let interval = section.interval.value.0;
    if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&interval) {
        problems.push(section.interval.place, "expected an interval from 1 ms to 60 s");
    }
    BfdSettings { neighbors, interval, multiplier: section.multiplier.0 as u8 }
}
