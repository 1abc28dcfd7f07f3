//! Configuration of an emulator.

use super::classify::ClassifierEntry;
use netstage_core::link;
use netstage_core::measure::lateness::{MAX_DELAY_ERROR, MAX_SHARE};
use netstage_core::time::Duration;
use netstage_scenario::plan::{Hop, Plan};
use serde::{Deserialize, Serialize};

/// Default limit for buffered frames in bytes: one second at 2 Gbit/s.
pub const POOL_BYTES: usize = 256 << 20;

/// Configuration of one emulator for one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmulatorConfig {
    /// Seed of the run.
    pub seed: u64,
    /// Length of the run. Later frames are forwarded but not counted.
    pub duration: Duration,
    /// Width of a bin; must not be zero.
    pub interval: Duration,
    /// The links.
    pub links: Vec<LinkConfig>,
    /// Classifier entries, which assign labels to packets.
    pub labels: Vec<ClassifierEntry>,
    /// Class of packets without a matching entry.
    pub default_class: u16,
    /// Maximum size of the frame buffers in bytes.
    pub pool_bytes: usize,
    /// Lateness limit; a run beyond it is void.
    pub tolerance: Tolerance,
}

/// Configuration of one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConfig {
    /// Name of the link.
    pub name: String,
    /// Directions: from end 0 to end 1, then from end 1 to end 0.
    pub directions: [link::LinkDirectionConfig; 2],
    /// Per direction, the classes of the VPNs whose path ends with it.
    pub delivers: [Vec<u16>; 2],
}

/// Lateness limit of a run. The run is void if more than `share` of a direction's frames are later than `late`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tolerance {
    /// Maximum lateness of a frame that counts as on time.
    pub late: Duration,
    /// Maximum share of late frames.
    pub share: f64,
}

impl Default for Tolerance {
    /// Returns 1 ms, the transmission time of a packet at 12 Mbit/s, and 1 %: one frame in a hundred changes no result
    /// by more than the seed does.
    fn default() -> Tolerance {
        Tolerance { late: MAX_DELAY_ERROR, share: MAX_SHARE }
    }
}

impl LinkConfig {
    /// Returns the name of a direction, such as `core.forward`.
    pub fn direction_name(&self, direction: usize) -> String {
        format!("{}.{}", self.name, ["forward", "reverse"][direction])
    }
}

impl EmulatorConfig {
    /// Returns the configuration for the links of a plan, without labels.
    pub fn from_plan(plan: &Plan, seed: u64) -> EmulatorConfig {
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
        EmulatorConfig {
            seed,
            duration: plan.duration,
            interval: plan.measure.interval,
            links: links.collect(),
            labels: Vec::new(),
            default_class: plan.vpns.len() as u16,
            pool_bytes: POOL_BYTES,
            tolerance: Tolerance::default(),
        }
    }
}
