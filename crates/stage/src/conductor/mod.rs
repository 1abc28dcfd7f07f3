//! The conductor of a run on real packets: what is the same whether its agents are in namespaces of this machine or on
//! other hosts.
//!
//! - [`so_far`]: what has been found while the run goes on; [`outcome`]: what was found at its end.

pub mod outcome;
pub mod so_far;

use crate::topology::differences::differences;
use netstage_agent::controller::{Agents, Collected, Loss};
use netstage_scenario::outcome::{Attendant, Outcome};
use outcome::Findings;
use so_far::SoFar;
use std::ops::ControlFlow;
use std::path::Path;

/// What a stage itself has to say of a run, beside what agents report.
#[derive(Default)]
pub struct Remarks {
    /// In what the network differs from the plan's.
    pub differences: Vec<String>,
    /// What ended before the run did.
    pub failures: Vec<String>,
    /// Why the measurement is void.
    pub void: Vec<String>,
    /// What a reader should know.
    pub warnings: Vec<String>,
}

/// Follows a run to its end, or until the attendant stops it. `links` adds what the links of the network did.
pub fn watch(
    agents: &mut Agents,
    so_far: &mut SoFar,
    attendant: &dyn Attendant,
    mut links: impl FnMut(&mut SoFar),
) {
    agents.watch(|overview| {
        so_far.add(&overview.ended);
        links(so_far);
        if so_far.has_news(overview.now) {
            attendant.bins_ended(&mut || so_far.outcome());
        }
        attendant.reached(overview.now);
        if attendant.stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
}

/// The outcome of a run under a seed, with all that is to be said of it. Logs of services that failed go to the folder `logs`;
/// `loss` names a lost agent.
pub fn conclude(
    found: &Findings,
    seed: u64,
    logs: &Path,
    collected: Collected,
    remarks: Remarks,
    loss: impl Fn(Loss) -> String,
) -> Outcome {
    let mut outcome = outcome::outcome(found);
    outcome.differences = differences(found.plan);
    outcome.differences.extend(remarks.differences);
    outcome.failures.extend(remarks.failures);
    outcome::keep_logs(found.services, seed, logs, &mut outcome);
    outcome.failures.extend(collected.lost.into_iter().map(loss));
    outcome.void.extend(remarks.void);
    outcome.warnings.extend(collected.warnings.into_iter().chain(collected.slow_start));
    outcome.warnings.extend(remarks.warnings);
    outcome
}
