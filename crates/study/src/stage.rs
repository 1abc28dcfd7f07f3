//! Stages of a study: simulator, emulator, fleet and router test.

#[cfg(feature = "full")]
mod real;

use crate::RunFailure;
use netstage_scenario::outcome::{RunObserver, RunOutcome};
use netstage_scenario::plan::Plan;
#[cfg(feature = "full")]
pub use real::{Backend, EmulationSettings, emu, emu_refusal, live, pair, router};

/// Reason for which the simulator cannot run a plan; `None` if it can.
pub use netstage_sim::unsupported_feature as sim_refusal;

/// Runs a plan in the simulator.
pub fn sim(plan: &Plan, seed: u64, attendant: &dyn RunObserver) -> Result<RunOutcome, RunFailure> {
    if let Some(refusal) = sim_refusal(plan) {
        return Err(RunFailure::Unsupported(refusal));
    }
    netstage_sim::run(plan, seed, attendant).map_err(|_| RunFailure::Interrupted)
}
