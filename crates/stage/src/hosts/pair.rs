//! Runs between this host and one that serves measurements, without a fleet: the agents are one in this process and the
//! server. A run is not numbered, stored or continued: the server forgets it with the connection.

use super::clocks::ClockAccuracy;
use super::{NodeAddresses, RunContext, connect, outcome, parts, placement, refusal, watch};
use crate::attempt::{AttemptFailure, until_in_time};
use crate::topology::assignments;
use netstage_agent::controller::ControlledAgents;
use netstage_agent::measure::{LOCAL, REMOTE, connect_pair};
use netstage_host::shared_key::PresharedKey;
use netstage_scenario::outcome::{RunFailure, RunObserver, RunOutcome};
use netstage_scenario::plan::Plan;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Server of measurements at the other end of a path, and log folder of the runs of a record.
pub struct PairContext {
    server: SocketAddr,
    key: PresharedKey,
    logs: PathBuf,
}

impl PairContext {
    /// Prepares runs with the server at this address, which has this key. `record` is the folder of the record.
    pub fn new(server: SocketAddr, key: PresharedKey, record: &Path) -> PairContext {
        PairContext { server, key, logs: record.join("logs") }
    }
}

/// Runs a plan with a seed, whose nodes are placed at [`LOCAL`] and [`REMOTE`] with their addresses. Calls `attendant`
/// several times per second.
pub fn run(
    plan: &Plan,
    seed: u64,
    means: &PairContext,
    attendant: &dyn RunObserver,
) -> Result<RunOutcome, RunFailure> {
    if let Some(refusal) = refusal(plan) {
        return Err(RunFailure::Unsupported(refusal));
    }
    let placed = placement::named(plan, &[LOCAL, REMOTE]).map_err(RunFailure::Unsupported)?;
    let context = RunContext { plan, seed, placed: &placed, logs: &means.logs };
    until_in_time(|| {
        let (mut agents, here) = connect(|| connect_pair(means.server, Some(means.key.clone())))?;
        let result = conduct(&context, &mut agents, attendant);
        agents.finish();
        // The agent ends because the controller has finished it, or is gone.
        let _ = here.join();
        result
    })
}

fn conduct(
    context: &RunContext,
    agents: &mut ControlledAgents,
    attendant: &dyn RunObserver,
) -> Result<RunOutcome, AttemptFailure> {
    let &RunContext { plan, seed, placed, .. } = context;
    let addresses = NodeAddresses::new(plan, agents, placed, &BTreeSet::new())?;
    let members = assignments::members_at(plan, |group| addresses.flows[group]);
    let members = members.map_err(|error| RunFailure::Unsupported(error.to_string()))?;
    let parts = parts(plan, &members, seed, placed, &addresses)?;
    agents.new_run(attendant.wants_bins());
    agents.add_agents(parts.clone())?;
    agents.start_together()?;
    watch(context, &members, &parts, agents, attendant);
    let clocks = ClockAccuracy::measure_after_run(agents, &[]);
    let collected = agents.collect();
    if attendant.stop() {
        return Err(RunFailure::Interrupted.into());
    }
    Ok(outcome(context, &members, &parts, collected, Some(&clocks))?)
}
