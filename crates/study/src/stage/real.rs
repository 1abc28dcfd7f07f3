//! Stages with real packets.

use crate::RunFailure;
use netstage_scenario::outcome::{RunObserver, RunOutcome};
use netstage_scenario::plan::Plan;
pub use netstage_stage::emulated::{Backend, EmulationSettings};
use netstage_stage::hosts;
use netstage_stage::topology::layout::AddressLayout;
use netstage_stage::topology::pe::{self, NamespaceAddressing};
use netstage_stage::topology::{assignments, services};
use netstage_tester::bench::TestBench;

/// Returns the reason for which the emulator cannot run a plan, as far as it is known in advance; `None` if it can.
pub fn emu_refusal(plan: &Plan) -> Option<String> {
    if let Some(absent) = services::missing(plan) {
        return Some(format!(
            "{}: {} is not installed; install {}",
            absent.required_by, absent.program, absent.package
        ));
    }
    let layout = match AddressLayout::new(plan) {
        Ok(layout) => layout,
        Err(error) => return Some(error.to_string()),
    };
    let ground = NamespaceAddressing { plan, layout: &layout };
    let members = assignments::members(plan, &layout).err().map(|error| error.to_string());
    members.or_else(|| pe::routers(plan, &ground).err().map(|error| error.to_string()))
}

/// Returns a runner that sends real packets between network namespaces of this host.
pub fn emu(
    means: EmulationSettings,
) -> impl Fn(&Plan, u64, &dyn RunObserver) -> Result<RunOutcome, RunFailure> + Sync {
    move |plan, seed, attendant| netstage_stage::emulated::run(plan, seed, &means, attendant)
}

/// Returns a runner that sends real packets between the hosts of a fleet.
pub fn live(
    means: hosts::FleetContext,
) -> impl Fn(&Plan, u64, &dyn RunObserver) -> Result<RunOutcome, RunFailure> + Sync {
    move |plan, seed, attendant| hosts::run(plan, seed, &means, attendant)
}

/// Returns a runner that sends real packets between this host and a server of measurements.
pub fn pair(
    means: hosts::pair::PairContext,
) -> impl Fn(&Plan, u64, &dyn RunObserver) -> Result<RunOutcome, RunFailure> + Sync {
    move |plan, seed, attendant| hosts::pair::run(plan, seed, &means, attendant)
}

/// Returns a runner that tests a real router between interfaces of this host.
pub fn router(
    bench: &TestBench,
) -> impl Fn(&Plan, u64, &dyn RunObserver) -> Result<RunOutcome, RunFailure> + Sync {
    move |plan, _, attendant| bench.run(plan, &|| attendant.stop())
}
