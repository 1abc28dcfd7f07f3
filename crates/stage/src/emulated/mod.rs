//! A plan on the emulated stage: real packets between namespaces of this machine.
//!
//! The fabric holds the network, an agent in each host its flows; this is the controller
//! of both, and what turns their findings into the outcome of a run.

mod backend;
mod folder;
pub(crate) mod outcome;
pub(crate) mod so_far;

use crate::stopped;
use crate::topology::assignments::{self, Member};
use crate::topology::differences::differences;
use crate::topology::edges::{self, Emulated};
use crate::topology::labels::labels;
use crate::topology::layout::Layout;
use crate::topology::process::{AgentSpec, Build, Fabric, Finished};
use crate::topology::services;
use crate::topology::spec::Spec;
pub use backend::Backend;
use folder::Folder;
use netstage_agent::controller::{Agents, Clocks, Collected};
use netstage_agent_api::task::{Assignment, EdgeTask};
use netstage_agent_api::watch::WatchSpec;
use netstage_emulator as emulator;
use netstage_host::netns::user::{Privileges, privileges};
use netstage_host::obstacle::Obstacle;
use netstage_scenario::outcome::{Attendant, Outcome, Stopped};
use netstage_scenario::plan::Plan;
use outcome::Findings;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// How often the end of a run without agents is looked for.
const LOOK: std::time::Duration = std::time::Duration::from_millis(50);

/// What a run needs beside its plan.
#[derive(Clone, Debug)]
pub struct Means {
    /// netstage itself: fabric and agents are processes of it.
    pub program: PathBuf,
    /// The folder for what other people's programs said where they failed.
    pub logs: PathBuf,
    /// Who works the links.
    pub backend: Backend,
}

/// Runs a plan under a seed. `attendant` is asked several times a second.
pub fn run(plan: &Plan, seed: u64, means: &Means, attendant: &dyn Attendant) -> Result<Outcome, Stopped> {
    let stop = &|| attendant.stop();
    if let Some(absent) = services::missing(plan) {
        return Err(Stopped::Missing {
            message: format!("{}: {} is not installed", absent.by, absent.program),
            remedy: format!("sudo apt-get install {} (Debian)", absent.package),
        });
    }
    if let Some(tunnel) = plan.tunnels.first()
        && !matches!(privileges(), Privileges::Held)
    {
        let name = &plan.nodes[tunnel.ends[0]].name;
        return Err(Stopped::Missing {
            message: format!("node.{name}: programs of gateways make network devices, which is forbidden"),
            remedy: "run it as root".into(),
        });
    }
    let layout = Layout::new(plan).map_err(|e| Stopped::Unsupported(e.to_string()))?;
    let members = assignments::members(plan, &layout).map_err(|e| Stopped::Unsupported(e.to_string()))?;
    let ground = Emulated { plan, layout: &layout };
    let routers = edges::routers(plan, &ground).map_err(|e| Stopped::Unsupported(e.to_string()))?;
    let folder =
        Folder::new().map_err(|e| Stopped::Failed(format!("cannot make a folder for sockets: {e}")))?;
    let mut assignments = assignments::assignments(plan, &members, seed);
    for (&node, router) in &routers {
        let configuration = edges::configuration(plan, &ground, node, router, &folder.control(node));
        let assignment = assignments.entry(node).or_insert_with(|| Assignment::new(plan, node, seed));
        assignment.edge = Some(EdgeTask { configuration });
    }
    // All windows of this machine are watched at once.
    let (senders, watched): (Vec<usize>, Vec<_>) = assignments::watched(plan, &members).into_iter().unzip();
    let subjects = watched.len();
    let watch = WatchSpec::new(watched, plan.duration, plan.measure.interval);
    let mut spec = Spec::new(plan, &layout, &routers);
    let told = backend::assign(means.backend, plan, &mut spec)?;
    let mut build = Build {
        spec,
        emulator: emulator_config(plan, &layout, &members, seed),
        agents: Vec::new(),
        services: services::placed(plan, &members, folder.path()),
        routing: services::frr::spec(plan, &layout, &members, folder.path()),
        gateways: services::gateways::spec(plan, &layout, &members, folder.path()),
        watch: watch.map(|watch| (watch, senders)),
        tell_bins: attendant.listens(),
    };
    let parts = assignments.values();
    let mut so_far = so_far::SoFar::new(plan, &members, parts, subjects, Some(&build.emulator));
    let mut sockets = Vec::new();
    for &node in assignments.keys() {
        let socket = folder.socket(node);
        sockets.push((plan.nodes[node].name.clone(), socket.clone()));
        let (spool, log) = (folder.spool(node), folder.log(node));
        build.agents.push(AgentSpec { node, socket, spool, log });
    }
    let services = !build.services.is_empty();
    let mut fabric = Fabric::start(&means.program, build, stop).map_err(|e| interrupted_or(e, stop))?;
    let mut agents = Agents::connect(sockets)?;
    agents.new_run(attendant.listens());
    agents.add(assignments.into_values().map(|a| (a.node.clone(), a)).collect())?;
    let epoch = agents.soonest_start();
    fabric.run(epoch).map_err(stopped)?;
    agents.start(epoch)?;
    agents.watch(|overview| {
        so_far.add(&overview.ended);
        let (links, windows) = fabric.take_ended();
        so_far.add_links(&links);
        so_far.add_windows(&windows);
        if so_far.has_news(overview.now) {
            attendant.bins_ended(&mut || so_far.outcome());
        }
        attendant.reached(overview.now);
        if stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    // Services go on where no agent takes part, or all are over.
    while services && epoch.now().0 < plan.duration.0 && !stop() {
        attendant.reached(epoch.now());
        std::thread::sleep(LOOK);
    }
    let collected = agents.collect();
    let clocks = agents.clocks().clone();
    agents.finish();
    if stop() {
        return Err(Stopped::Interrupted);
    }
    fabric.stop().map_err(stopped)?;
    let Finished { emulator, services, ended, watched } = fabric.finish().map_err(stopped)?;
    let found = Findings {
        plan,
        members: &members,
        reports: &collected.reports,
        emulator: &emulator,
        is_real: false,
        clock_error: &|_, _| 0,
        services: &services,
        watched: &watched,
    };
    let mut outcome = outcome::outcome(&found);
    outcome.differences = differences(plan).into_iter().chain(told).collect();
    outcome.failures.extend(ended);
    outcome::keep_logs(&services, seed, &means.logs, &mut outcome);
    add_remarks(&mut outcome, collected, &clocks, |name| {
        folder.last_words(plan.nodes.iter().position(|node| node.name == name)?)
    });
    Ok(outcome)
}

/// The links that are built, and how packets on them are told apart.
fn emulator_config(plan: &Plan, layout: &Layout, members: &[Member], seed: u64) -> emulator::Config {
    let mut config = emulator::Config::of_plan(plan, seed);
    let mut used = layout.used.iter();
    config.links.retain(|_| *used.next().expect("one for each link"));
    config.labels = labels(plan, layout, members);
    config
}

fn interrupted_or(failed: Obstacle, stop: &dyn Fn() -> bool) -> Stopped {
    if stop() { Stopped::Interrupted } else { stopped(failed) }
}

fn add_remarks(
    outcome: &mut Outcome,
    collected: Collected,
    clocks: &Clocks,
    last_words: impl Fn(&str) -> Option<String>,
) {
    for loss in collected.lost {
        let words = last_words(&loss.agent).map_or(String::new(), |words| format!("; it last said: {words}"));
        outcome.failures.push(format!("node.{}: its agent was lost: {}{words}", loss.agent, loss.reason));
    }
    outcome.warnings.extend(collected.warnings);
    for (node, clock) in clocks.iter().filter(|(_, clock)| clock.error_ns > 0) {
        outcome.warnings.push(format!(
            "node.{node}: its clock is known to ± {} µs; one-way delays to and from it carry that error",
            clock.error_ns.div_ceil(1000)
        ));
    }
}
