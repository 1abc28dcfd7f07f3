//! The stages a study can run on.

use crate::Stopped;
use netstage_scenario::outcome::{Attendant, Outcome};
use netstage_scenario::plan::Plan;
pub use netstage_stage::emulated::{Backend, Means};
use netstage_stage::hosts;
use netstage_stage::topology::layout::Layout;
use netstage_stage::topology::pe::{self, Emulated};
use netstage_stage::topology::{assignments, services};
use netstage_tester::bench::Bench;

/// What of a plan the simulator does not run; none where it runs all.
pub use netstage_sim::refusal as sim_refusal;

/// What of a plan cannot be run between namespaces of this machine, as far as that is known before; none where all can.
pub fn emu_refusal(plan: &Plan) -> Option<String> {
    if let Some(absent) = services::missing(plan) {
        return Some(format!(
            "{}: {} is not installed; install {}",
            absent.by, absent.program, absent.package
        ));
    }
    let layout = match Layout::new(plan) {
        Ok(layout) => layout,
        Err(error) => return Some(error.to_string()),
    };
    let ground = Emulated { plan, layout: &layout };
    let members = assignments::members(plan, &layout).err().map(|error| error.to_string());
    members.or_else(|| pe::routers(plan, &ground).err().map(|error| error.to_string()))
}

/// The simulator.
pub fn sim(plan: &Plan, seed: u64, attendant: &dyn Attendant) -> Result<Outcome, Stopped> {
    if let Some(refusal) = sim_refusal(plan) {
        return Err(Stopped::Unsupported(refusal));
    }
    netstage_sim::run(plan, seed, attendant).map_err(|_| Stopped::Interrupted)
}

/// Real packets between namespaces of this machine.
pub fn emu(means: Means) -> impl Fn(&Plan, u64, &dyn Attendant) -> Result<Outcome, Stopped> + Sync {
    move |plan, seed, attendant| netstage_stage::emulated::run(plan, seed, &means, attendant)
}

/// Real packets between hosts of a fleet.
pub fn live(means: hosts::Means) -> impl Fn(&Plan, u64, &dyn Attendant) -> Result<Outcome, Stopped> + Sync {
    move |plan, seed, attendant| hosts::run(plan, seed, &means, attendant)
}

/// A real router between interfaces of this machine.
pub fn router(bench: &Bench) -> impl Fn(&Plan, u64, &dyn Attendant) -> Result<Outcome, Stopped> + Sync {
    move |plan, _, attendant| bench.run(plan, &|| attendant.stop())
}
