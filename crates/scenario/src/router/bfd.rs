//! BFD settings of a router.

use super::file::BfdSection;
use crate::error::Problems;
use crate::table::Located;
use netstage_core::time::Duration;
use std::net::IpAddr;
use std::path::PathBuf;

/// BFD settings of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdSettings {
    /// Addresses of the neighbors.
    pub neighbors: Vec<IpAddr>,
    /// Socket of FRR's bfdd, which has the neighbors instead.
    pub bfdd: Option<PathBuf>,
    /// Interval at which packets are sent and expected.
    pub interval: Duration,
    /// Number of intervals without a packet after which a neighbor is down.
    pub multiplier: u8,
}

pub(super) fn build(section: &Located<BfdSection>, problems: &mut Problems) -> BfdSettings {
    let Located { value: section, place, .. } = section;
    match (&section.bfdd, section.neighbors.0.is_empty()) {
        (None, true) => {
            let help = "list `neighbors`, or name the socket of `bfdd`";
            problems.push_help(*place, "BFD has no neighbors", help);
        }
        (Some(bfdd), false) => {
            let help = "remove `bfdd` or `neighbors`";
            problems.push_help(bfdd.place, "the neighbors are those of bfdd", help);
        }
        _ => {}
    }
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
    let bfdd = section.bfdd.as_ref().map(|path| path.value.0.clone().into());
    BfdSettings { neighbors, bfdd, interval, multiplier: section.multiplier.0 as u8 }
}
