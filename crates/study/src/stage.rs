//! The stages a study can run on.

use crate::Stopped;
use netstage_scenario::outcome::Outcome;
use netstage_scenario::plan::Plan;

/// The simulator.
pub fn sim(plan: &Plan, seed: u64, stop: &dyn Fn() -> bool) -> Result<Outcome, Stopped> {
    netstage_sim::run(plan, seed, stop).map_err(|_| Stopped::Interrupted)
}
