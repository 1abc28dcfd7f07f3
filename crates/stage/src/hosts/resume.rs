//! Completion of a run that an earlier process left unfinished: its agents may still carry it out, if it has a lease,
//! or store its reports.

use super::journal::PendingRun;
use super::{NodeAddresses, RunContext, collect, connect, outcome, parts, plausibility, watch};
use crate::to_stopped;
use crate::topology::assignments;
use netstage_agent::controller::{AgentAddress, CollectedReports, ControlledAgents};
use netstage_agent::fleet::AgentAvailability;
use netstage_agent::fleet::folder::FleetFolder;
use netstage_agent::fleet::runs::FleetRuns;
use netstage_agent_api::task::Assignment;
use netstage_core::fleet::{Receipt, run_number};
use netstage_scenario::outcome::{RunFailure, RunObserver, RunOutcome};
use netstage_scenario::plan::Plan;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time in addition to the lease of the run in which its agents have to connect to the controller.
const RETURN_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the agents of a run, by index of the node.
pub fn placed(plan: &Plan, agents: &BTreeMap<String, String>) -> BTreeMap<usize, String> {
    let index = |name: &String| plan.nodes.iter().position(|node| node.name == *name);
    agents.iter().filter_map(|(agent, node)| Some((index(node)?, agent.clone()))).collect()
}

/// Completes a run. Returns `None` if an agent has not finished it, so that the run must be repeated.
pub fn resume(
    context: &RunContext,
    fleet: &FleetFolder,
    runs: &mut FleetRuns,
    left: PendingRun,
    attendant: &dyn RunObserver,
) -> Result<Option<RunOutcome>, RunFailure> {
    let settled = left.settled(context.plan);
    let context = &RunContext { plan: &settled, ..*context };
    let &RunContext { plan, seed, placed, .. } = context;
    let run = left.run;
    let Ok(members) = assignments::members_at(plan, |group| left.addresses[group]) else { return Ok(None) };
    if plan
        .nodes
        .iter()
        .enumerate()
        .any(|(index, node)| node.placement.is_some() && !placed.contains_key(&index))
    {
        return Ok(None);
    }
    // The report does not depend on the interface on which a receiver joined its group.
    let addresses = NodeAddresses {
        flows: left.addresses.clone(),
        receivers: BTreeMap::new(),
        routers: left.routers.clone(),
    };
    let parts = parts(plan, &members, seed, placed, &addresses)?;
    let missing = missing_agents(plan, fleet, &runs.missing(run), attendant)?;
    let mut warnings = vec![format!(
        "run {} was in progress when its controller ended; its reports were fetched afterwards, and the clock error is \
         unknown",
        run_number(run)
    )];
    if !missing.is_empty() {
        let address = |(name, part): &(String, Assignment)| {
            (name.clone(), AgentAddress::Fleet(fleet.socket()), part.clone())
        };
        let wanted = || parts.iter().filter(|(name, _)| missing.contains(name)).map(address).collect();
        let mut agents = connect(|| ControlledAgents::reconnect(left.controller, run, wanted()))?;
        if agents.continue_run(run, left.start(), &parts) {
            watch(context, &members, &parts, &mut agents, attendant);
            warnings.extend(collect(&mut agents, runs, run, &parts).warnings);
        }
        agents.fetch_stored_reports(|agent, run, report| {
            runs.receive(run, agent, report).is_ok_and(|receipt| receipt != Receipt::Unexpected)
        });
        agents.finish();
    }
    let reports = runs.reports(run);
    let is_complete = |(agent, part): &(String, Assignment)| {
        let mut own = reports.iter().filter(|report| report.node == part.node);
        !runs.missing(run).contains(agent)
            && own.any(|report| {
                report.void.is_empty() && !report.stopped && plausibility::check(report, part).is_ok()
            })
    };
    let is_complete = parts.iter().all(is_complete);
    let _ = runs.close(run);
    if attendant.stop() {
        return Err(RunFailure::Interrupted);
    }
    if !is_complete {
        return Ok(None);
    }
    let collected = CollectedReports { reports, warnings, ..CollectedReports::default() };
    outcome(context, &members, &parts, collected, None).map(Some)
}

/// Returns the agents of missing reports that are connected. If the run has a lease, waits until all of them are.
fn missing_agents(
    plan: &Plan,
    fleet: &FleetFolder,
    missing: &[String],
    attendant: &dyn RunObserver,
) -> Result<Vec<String>, RunFailure> {
    let limit = plan.lease.map_or(Duration::ZERO, |lease| Duration::from_nanos(lease.0) + RETURN_TIMEOUT);
    let start = Instant::now();
    loop {
        let agents = fleet.agents().map_err(to_stopped)?.into_iter();
        let online = agents.filter(|agent| {
            let is_online = matches!(agent.state, AgentAvailability::Idle | AgentAvailability::Taken);
            is_online && missing.contains(&agent.name)
        });
        let online: Vec<String> = online.map(|agent| agent.name).collect();
        if online.len() == missing.len() || start.elapsed() > limit || attendant.stop() {
            return Ok(online);
        }
        std::thread::sleep(super::POLL_INTERVAL);
    }
}
