//! What an emulator is asked to do.

use super::classify::Entry;
use netstage_core::link;
use netstage_core::time::Duration;
use netstage_scenario::plan::{Hop, Plan};
use serde::{Deserialize, Serialize};

/// Bytes of frames under way where nobody said otherwise: a second of 2 Gbit/s.
pub const POOL_BYTES: usize = 256 << 20;

/// Everything one emulator does in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Seed of the run.
    pub seed: u64,
    /// Length of the run: what comes later is still carried, but not counted.
    pub duration: Duration,
    /// Width of a bin, above zero.
    pub interval: Duration,
    /// The links.
    pub links: Vec<LinkConfig>,
    /// To whom packets belong.
    pub labels: Vec<Entry>,
    /// Class of packets that no entry matches.
    pub others: u16,
    /// Most bytes the frames under way may take.
    pub pool_bytes: usize,
    /// What voids a run.
    pub tolerance: Tolerance,
}

/// One link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Its name.
    pub name: String,
    /// From end 0 to end 1, then the other way.
    pub directions: [link::Config; 2],
    /// Classes of the VPNs whose last link each direction is.
    pub delivers: [Vec<u16>; 2],
}

/// The lateness a run may have: more than `share` of a direction's frames later than `late`
/// voids it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// Lateness beyond which a frame is not where the link would have it.
    pub late: Duration,
    /// Share of frames that may be.
    pub share: f64,
}

impl Default for Tolerance {
    /// A millisecond is a packet's time on a line of 12 Mbit/s; what one frame in a hundred
    /// does moves no figure by more than the seed does.
    fn default() -> Tolerance {
        Tolerance { late: Duration::from_millis(1), share: 0.01 }
    }
}

impl LinkConfig {
    /// Name of one of its directions: `core.forward`.
    pub fn direction_name(&self, direction: usize) -> String {
        format!("{}.{}", self.name, ["forward", "reverse"][direction])
    }
}

impl Config {
    /// The links of a plan, without labels.
    pub fn of_plan(plan: &Plan, seed: u64) -> Config {
        let delivers = |link: usize, direction: usize| {
            let vpns = plan.vpns.iter().enumerate();
            let last = vpns.filter(|(_, vpn)| vpn.path.last() == Some(&Hop { link, direction }));
            last.map(|(index, _)| index as u16).collect()
        };
        let links = plan.links.iter().enumerate().map(|(index, link)| LinkConfig {
            name: link.name.clone(),
            directions: link.directions.clone(),
            delivers: [delivers(index, 0), delivers(index, 1)],
        });
        Config {
            seed,
            duration: plan.duration,
            interval: plan.measure.interval,
            links: links.collect(),
            labels: Vec::new(),
            others: plan.vpns.len() as u16,
            pool_bytes: POOL_BYTES,
            tolerance: Tolerance::default(),
        }
    }
}
