//! Stages of a study: simulator, emulator, fleet and router test.

#[cfg(feature = "full")]
mod real;

use crate::Stopped;
use netstage_scenario::outcome::{Attendant, Outcome};
use netstage_scenario::plan::Plan;
#[cfg(feature = "full")]
pub use real::{Backend, Means, emu, emu_refusal, live, router};

/// Reason for which the simulator cannot run a plan; `None` if it can.
pub use netstage_sim::refusal as sim_refusal;

/// Runs a plan in the simulator.
pub fn sim(plan: &Plan, seed: u64, attendant: &dyn Attendant) -> Result<Outcome, Stopped> {
    if let Some(refusal) = sim_refusal(plan) {
        return Err(Stopped::Unsupported(refusal));
    }
    netstage_sim::run(plan, seed, attendant).map_err(|_| Stopped::Interrupted)
}
