//! The stages a study can run on.

use crate::Stopped;
pub use netstage_live::emulation::{Backend, Means};
use netstage_live::placed;
use netstage_live::tester::bench::Bench;
use netstage_scenario::outcome::{Attendant, Outcome};
use netstage_scenario::plan::Plan;

/// The simulator.
pub fn sim(plan: &Plan, seed: u64, attendant: &dyn Attendant) -> Result<Outcome, Stopped> {
    if let Some(refusal) = netstage_sim::refusal(plan) {
        return Err(Stopped::Unsupported(refusal));
    }
    netstage_sim::run(plan, seed, attendant).map_err(|_| Stopped::Interrupted)
}

/// Real packets between namespaces of this machine.
pub fn emu(means: Means) -> impl Fn(&Plan, u64, &dyn Attendant) -> Result<Outcome, Stopped> + Sync {
    move |plan, seed, attendant| netstage_live::emulation::run(plan, seed, &means, attendant)
}

/// Real packets between hosts of a fleet.
pub fn live(means: placed::Means) -> impl Fn(&Plan, u64, &dyn Attendant) -> Result<Outcome, Stopped> + Sync {
    move |plan, seed, attendant| placed::run(plan, seed, &means, attendant)
}

/// A real router between interfaces of this machine.
pub fn router(bench: &Bench) -> impl Fn(&Plan, u64, &dyn Attendant) -> Result<Outcome, Stopped> + Sync {
    move |plan, _, attendant| bench.run(plan, &|| attendant.stop())
}
