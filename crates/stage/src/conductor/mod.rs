//! Conductor of a run with real packets, for agents in namespaces of this machine and on other hosts.
//!
//! - [`partial`]: partial results during the run; [`outcome`]: results at its end;
//!   `policy_drops`: packets that agents were not permitted to send.

#[cfg(test)]
mod chaos_tests;
pub mod outcome;
pub mod partial;
mod policy_drops;

use crate::topology::differences::differences;
use netstage_agent::controller::{AgentDisconnect, CollectedReports, ControlledAgents};
use netstage_core::measure::VoidReason;
use netstage_scenario::outcome::{RunFailure, RunObserver, RunOutcome};
use outcome::Findings;
use partial::PartialOutcome;
use std::ops::ControlFlow;
use std::path::Path;

/// Remarks of a stage about a run, in addition to the reports of agents.
#[derive(Default)]
pub struct StageRemarks {
    /// Differences between the network and the plan.
    pub differences: Vec<String>,
    /// Failures, such as a process that exited before the end of the run.
    pub failures: Vec<String>,
    /// Reasons why the measurement is void.
    pub void: Vec<VoidReason>,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// Follows a run until it ends or the attendant stops it. `links` adds the bins of the emulated links.
pub fn watch(
    agents: &mut ControlledAgents,
    so_far: &mut PartialOutcome,
    attendant: &dyn RunObserver,
    mut links: impl FnMut(&mut PartialOutcome),
) {
    agents.watch(|overview| {
        so_far.add(&overview.ended);
        links(so_far);
        if so_far.has_new_bins(overview.now) {
            attendant.bins_ended(&mut || so_far.outcome());
        }
        attendant.progress(overview.now);
        if attendant.stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
}

/// Returns the outcome of a run, with all remarks. Writes the logs of failed services to the folder `logs`. `loss`
/// formats the failure of a lost agent. A run that lost all of its agents has no outcome.
pub fn conclude(
    found: &Findings,
    seed: u64,
    logs: &Path,
    collected: CollectedReports,
    remarks: StageRemarks,
    loss: impl Fn(AgentDisconnect) -> String,
) -> Result<RunOutcome, RunFailure> {
    if found.reports.is_empty() && !collected.lost.is_empty() {
        let losses: Vec<String> = collected.lost.into_iter().map(loss).collect();
        return Err(RunFailure::Failed(losses.join("\n")));
    }
    let mut outcome = outcome::outcome(found);
    policy_drops::add(found, &mut outcome);
    outcome.differences = differences(found.plan);
    outcome.differences.extend(remarks.differences);
    outcome.failures.extend(remarks.failures);
    outcome::write_logs(found.services, seed, logs, &mut outcome);
    outcome.failures.extend(collected.lost.into_iter().map(loss));
    outcome.void.extend(remarks.void.into_iter().map(String::from));
    outcome.warnings.extend(collected.warnings.into_iter().chain(collected.slow_start));
    outcome.warnings.extend(remarks.warnings);
    Ok(outcome)
}
