//! Emulated stage: runs a plan with real packets between namespaces of this machine.
//!
//! The fabric process holds the network, and an agent in each host runs its flows. This module controls both and
//! derives the outcome of a run from their results.

mod backend;
mod folder;

use crate::attempt::{AttemptFailure, until_in_time};
use crate::conductor::outcome::Findings;
use crate::conductor::partial::PartialOutcome;
use crate::conductor::{self, StageRemarks};
use crate::to_stopped;
use crate::topology::assignments::{self, PlacedFlow};
use crate::topology::labels::labels;
use crate::topology::layout::AddressLayout;
use crate::topology::pe::{self, NamespaceAddressing};
use crate::topology::process::{AgentSpec, Build, Fabric, FabricResults};
use crate::topology::services;
use crate::topology::spec::Spec;
pub use backend::Backend;
use folder::RunFolder;
use netstage_agent::controller::{AgentClocks, ControlledAgents};
use netstage_agent_api::task::{Assignment, EdgeTask};
use netstage_agent_api::watch::WatchSpec;
use netstage_core::measure::ClockOffset;
use netstage_emulator as emulator;
use netstage_host::netns::user::{Privileges, privileges};
use netstage_host::startup_error::StartupError;
use netstage_scenario::outcome::{RunFailure, RunObserver, RunOutcome};
use netstage_scenario::plan::Plan;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

/// Polling interval for the end of a run without agents.
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);

/// Program, log folder and back-end of the runs.
#[derive(Clone, Debug)]
pub struct EmulationSettings {
    /// netstage executable, which also runs fabric and agents.
    pub program: PathBuf,
    /// Folder for the logs of failed services.
    pub logs: PathBuf,
    /// Back-end of the links.
    pub backend: Backend,
}

/// Runs a plan with a seed. Calls `attendant` several times per second.
pub fn run(
    plan: &Plan,
    seed: u64,
    means: &EmulationSettings,
    attendant: &dyn RunObserver,
) -> Result<RunOutcome, RunFailure> {
    until_in_time(|| attempt(plan, seed, means, attendant))
}

fn attempt(
    plan: &Plan,
    seed: u64,
    means: &EmulationSettings,
    attendant: &dyn RunObserver,
) -> Result<RunOutcome, AttemptFailure> {
    let stop = &|| attendant.stop();
    if let Some(missing) = missing(plan) {
        return Err(missing.into());
    }
    let folder = RunFolder::new()
        .map_err(|e| RunFailure::Failed(format!("cannot create a folder for sockets: {e}")))?;
    let PreparedEmulation { members, assignments, windows, mut build, differences } =
        prepare(plan, seed, means.backend, &folder)?;
    build.report_bins = attendant.wants_bins();
    let mut so_far =
        PartialOutcome::new(plan, &members, assignments.values(), windows, Some(&build.emulator));
    let sockets = build.agents.iter();
    let sockets = sockets.map(|agent| (plan.nodes[agent.node].name.clone(), agent.socket.clone())).collect();
    let services = !build.services.is_empty() || build.route_server.is_some();
    let mut fabric = Fabric::start(&means.program, build, stop).map_err(|e| interrupted_or(e, stop))?;
    let mut agents = ControlledAgents::connect(sockets)?;
    agents.new_run(attendant.wants_bins());
    agents.add_agents(assignments.into_values().map(|a| (a.node.clone(), a)).collect())?;
    let epoch = agents.earliest_start();
    fabric.run(epoch).map_err(to_stopped)?;
    agents.start(epoch)?;
    conductor::watch(&mut agents, &mut so_far, attendant, |so_far| {
        let (links, windows) = fabric.take_bins();
        so_far.add_links(&links);
        so_far.add_windows(&windows);
    });
    // Services continue if there are no agents or all have finished.
    while services && epoch.now().0 < plan.duration.0 && !stop() {
        attendant.progress(epoch.now());
        std::thread::sleep(POLL_INTERVAL);
    }
    let mut collected = agents.collect();
    let warnings = clock_warnings(agents.clocks());
    agents.finish();
    if stop() {
        return Err(RunFailure::Interrupted.into());
    }
    fabric.stop().map_err(to_stopped)?;
    let FabricResults { emulator, services, route_server, ended, watched } =
        fabric.finish().map_err(to_stopped)?;
    let reports = std::mem::take(&mut collected.reports);
    let found = Findings {
        plan,
        members: &members,
        reports: &reports,
        emulator: &emulator,
        is_real: false,
        clock_error: &|_, _| 0,
        services: &services,
        route_server: route_server.as_ref(),
        watched: &watched,
    };
    let remarks = StageRemarks { differences, failures: ended, warnings, ..StageRemarks::default() };
    Ok(conductor::conclude(&found, seed, &means.logs, collected, remarks, |loss| {
        let node = plan.nodes.iter().position(|node| node.name == loss.agent);
        let line = node.and_then(|node| folder.last_log_line(node));
        let log = line.map_or(String::new(), |line| format!("; last line of its log: {line}"));
        format!("node.{}: the agent was lost: {}{log}", loss.agent, loss.reason)
    })?)
}

/// Returns the first program or privilege that a plan needs and this machine lacks.
fn missing(plan: &Plan) -> Option<RunFailure> {
    if let Some(absent) = services::missing(plan) {
        return Some(RunFailure::Missing {
            message: format!("{}: {} is not installed", absent.required_by, absent.program),
            remedy: format!("sudo apt-get install {} (Debian)", absent.package),
        });
    }
    let tunnel = plan.tunnels.first().filter(|_| !matches!(privileges(), Privileges::Held))?;
    let name = &plan.nodes[tunnel.ends[0]].name;
    Some(RunFailure::Missing {
        message: format!("node.{name}: gateways create network devices, which is not permitted"),
        remedy: "run it as root".into(),
    })
}

/// Run that is prepared but not started.
struct PreparedEmulation {
    members: Vec<PlacedFlow>,
    /// Assignments of agents, by index of the node.
    assignments: BTreeMap<usize, Assignment>,
    /// Number of watched windows.
    windows: usize,
    build: Build,
    /// Differences from the plan due to the back-end of the links.
    differences: Vec<String>,
}

fn prepare(
    plan: &Plan,
    seed: u64,
    backend: Backend,
    folder: &RunFolder,
) -> Result<PreparedEmulation, RunFailure> {
    let unsupported = |error: &dyn Display| RunFailure::Unsupported(error.to_string());
    let layout = AddressLayout::new(plan).map_err(|error| unsupported(&error))?;
    let members = assignments::members(plan, &layout).map_err(|error| unsupported(&error))?;
    let ground = NamespaceAddressing { plan, layout: &layout };
    let routers = pe::routers(plan, &ground).map_err(|error| unsupported(&error))?;
    let mut assignments = assignments::assignments(plan, &members, seed);
    for (&node, router) in &routers {
        let configuration = pe::configuration(plan, &ground, node, router, &folder.control(node));
        let assignment = assignments.entry(node).or_insert_with(|| Assignment::new(plan, node, seed));
        assignment.edge = Some(EdgeTask { configuration });
    }
    // One watcher observes the windows of all nodes.
    let (senders, watched): (Vec<usize>, Vec<_>) =
        assignments::watched_flows(plan, &members).into_iter().unzip();
    let windows = watched.len();
    let watch = WatchSpec::new(watched, plan.duration, plan.measure.interval);
    let mut spec = Spec::new(plan, &layout, &routers);
    let differences = backend::assign(backend, plan, &mut spec)?;
    let agent = |&node: &usize| AgentSpec {
        node,
        socket: folder.socket(node),
        spool: folder.spool(node),
        log: folder.log(node),
    };
    let build = Build {
        spec,
        emulator: emulator_config(plan, &layout, &members, seed),
        agents: assignments.keys().map(agent).collect(),
        services: services::placed_services(plan, &members, folder.path()),
        routing: services::frr::spec(plan, &layout, &members, folder.path()),
        gateways: services::gateways::spec(plan, &layout, &members, folder.path()),
        route_server: services::route_server::spec(plan, folder.path()),
        watch: watch.map(|watch| (watch, senders)),
        report_bins: false,
    };
    Ok(PreparedEmulation { members, assignments, windows, build, differences })
}

/// Returns the configuration of the used links, with the labels of their packets.
fn emulator_config(
    plan: &Plan,
    layout: &AddressLayout,
    members: &[PlacedFlow],
    seed: u64,
) -> emulator::EmulatorConfig {
    let mut config = emulator::EmulatorConfig::from_plan(plan, seed);
    let mut used = layout.used.iter();
    config.links.retain(|_| *used.next().expect("each link has a flag"));
    config.labels = labels(plan, layout, members);
    config
}

fn interrupted_or(failed: StartupError, stop: &dyn Fn() -> bool) -> RunFailure {
    if stop() { RunFailure::Interrupted } else { to_stopped(failed) }
}

/// Returns a warning for each node whose clock offset has an error.
fn clock_warnings(clocks: &AgentClocks) -> Vec<String> {
    let compared = clocks.iter().filter(|(_, clock)| clock.error_ns > 0);
    let warning = |(node, clock): (&str, ClockOffset)| {
        format!(
            "node.{node}: the clock offset is known to ± {} µs; one-way delays to and from it have that error",
            clock.error_ns.div_ceil(1000)
        )
    };
    compared.map(warning).collect()
}
