//! A plan on the live stage: its hosts placed on agents of a fleet, the network between them
//! the real one.
//!
//! A run has a number and a folder at the controller before any agent is asked, and each
//! report is there before its agent may forget it. Where this process ends in between, the
//! run is taken up by its journal: what agents had finished is fetched, not run again.

mod bounds;
mod journal;
mod place;

use crate::controller::{Agents, Collected, Error, Place};
use crate::emulation::outcome::{self, Findings};
use crate::emulator;
use crate::fabric::assignments::{self, Member};
use crate::fabric::differences::differences;
use crate::fabric::watch::Watched;
use crate::fleet::folder::Fleet;
use crate::fleet::runs::Runs;
use crate::fleet::{FleetError, State};
use crate::results::Report;
use crate::task::Assignment;
use journal::Journal;
use netstage_core::fleet::Receipt;
use netstage_core::measure::ClockOffset;
use netstage_scenario::outcome::{Outcome, Stopped};
use netstage_scenario::plan::{Family, Plan, Transport};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the controller may take to see that an agent was let go, and how often that is looked for.
const LET_GO: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(200);

/// What a run needs beside its plan.
pub struct Means {
    fleet: Fleet,
    journal: Mutex<Journal>,
}

impl Means {
    /// Runs on agents of this fleet; what is under way is noted in this file.
    pub fn new(fleet: Fleet, journal: PathBuf) -> Means {
        Means { fleet, journal: Mutex::new(Journal::open(journal)) }
    }
}

impl From<FleetError> for Stopped {
    fn from(error: FleetError) -> Stopped {
        Stopped::Failed(error.to_string())
    }
}

/// Runs a plan under a seed. `stop` is asked several times a second.
pub fn run(plan: &Plan, seed: u64, means: &Means, stop: &dyn Fn() -> bool) -> Result<Outcome, Stopped> {
    if let Some(refusal) = refusal(plan) {
        return Err(Stopped::Unsupported(refusal));
    }
    let fleet = &means.fleet;
    if !fleet.is_served() {
        return Err(Stopped::Missing {
            message: format!("nobody serves the fleet in {}", fleet.folder().display()),
            remedy: "netstage fleet serve --listen ADDRESS:PORT".into(),
        });
    }
    let placed = placed(plan, fleet, stop)?;
    let names: Vec<String> = placed.values().cloned().collect();
    let mut runs = Runs::of(fleet)?;
    let mut journal = means.journal.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(left) = journal.left(plan, seed)
        && let Some(outcome) = taken_up(plan, seed, fleet, &mut runs, left, &placed)?
    {
        return Ok(outcome);
    }

    let mut agents = taken(&names, fleet)?;
    let result = conduct(plan, seed, &mut agents, &mut runs, &mut journal, &placed, stop);
    agents.finish();
    result
}

/// The agents of the hosts. The run before may have let its agents go a moment ago.
fn placed(plan: &Plan, fleet: &Fleet, stop: &dyn Fn() -> bool) -> Result<BTreeMap<usize, String>, Stopped> {
    let since = Instant::now();
    loop {
        match place::agents(plan, &fleet.agents()?) {
            Ok(placed) => return Ok(placed),
            Err(unplaced) if !unplaced.may_pass || since.elapsed() > LET_GO => {
                return Err(Stopped::Failed(unplaced.why));
            }
            Err(_) if stop() => return Err(Stopped::Interrupted),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// The agents, which the run before may just be leaving.
fn taken(names: &[String], fleet: &Fleet) -> Result<Agents, Error> {
    let since = Instant::now();
    loop {
        let places = names.iter().map(|name| (name.clone(), Place::Fleet(fleet.socket()))).collect();
        match Agents::connect(places) {
            Err(error) if error.is_busy() && since.elapsed() < LET_GO => std::thread::sleep(LOOK),
            other => return other,
        }
    }
}

/// What this stage cannot be asked for.
fn refusal(plan: &Plan) -> Option<String> {
    if let Some(group) = plan.flows.iter().find(|group| group.program.is_some()) {
        return Some(format!("service.{}: other programs are not run on hosts of a fleet", group.name));
    }
    let multicast = |transport: &Transport| matches!(transport, Transport::Multicast(_));
    if let Some(group) = plan.flows.iter().find(|group| multicast(&group.transport)) {
        return Some(format!(
            "flow.{}: multicast is not sent between hosts of a fleet, whose routers would have to take part; run it \
             with --on emu",
            group.name
        ));
    }
    if plan.measure.tcp_events {
        return Some(
            "[measure] tcp_events: hosts of a fleet are not watched; run it with --on emu, or take it out"
                .into(),
        );
    }
    let node = |index: usize| &plan.nodes[index].name;
    if let Some(tunnel) = plan.tunnels.first() {
        return Some(format!("node.{}: gateways are not made on hosts of a fleet", node(tunnel.ends[0])));
    }
    plan.routing
        .as_ref()
        .map(|routing| format!("service.{}: daemons are not run on hosts of a fleet", routing.name))
}

/// What each agent is asked to do, as a list of agents and their parts.
fn parts(
    plan: &Plan,
    members: &[Member],
    seed: u64,
    placed: &BTreeMap<usize, String>,
) -> Vec<(String, Assignment)> {
    let assignments = assignments::assignments(plan, members, seed);
    assignments.into_iter().map(|(node, assignment)| (placed[&node].clone(), assignment)).collect()
}

fn conduct(
    plan: &Plan,
    seed: u64,
    agents: &mut Agents,
    runs: &mut Runs,
    journal: &mut Journal,
    placed: &BTreeMap<usize, String>,
    stop: &dyn Fn() -> bool,
) -> Result<Outcome, Stopped> {
    let address = |node: usize, family: Family| address(plan, agents, placed, node, family);
    let mut addresses = Vec::new();
    for group in &plan.flows {
        addresses.push((address(group.from, group.family)?, address(group.to, group.family)?));
    }
    let members = assignments::members_at(plan, |group| addresses[group]);
    let members = members.map_err(|error| Stopped::Unsupported(error.to_string()))?;
    let parts = parts(plan, &members, seed, placed);
    let nodes = parts.iter().map(|(agent, part)| (agent.clone(), part.node.clone())).collect();
    let run = runs.open(&plan.title, nodes)?;
    journal.begun(plan, seed, run, &addresses);
    agents.new_run_numbered(run, false);
    if let Err(error) = agents.agree(&parts).and_then(|()| agents.add(parts.clone())) {
        // Nothing was sent, so nothing is to come.
        let _ = runs.forget(run);
        return Err(stopped(error));
    }
    // Where it fails, some may have begun: what they found is still to come.
    agents.start(agents.soonest_start()).map_err(stopped)?;
    agents.watch(|_| if stop() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) });
    let collected = agents.collect_keeping(|agent, report| {
        let part = parts.iter().find(|(name, _)| name == agent).map(|(_, part)| part);
        bounds::check(report, part.ok_or("it had no part in this run")?)?;
        match runs.receive(run, agent, report) {
            Ok(Receipt::Unexpected) => Err("nobody expects it".into()),
            Ok(Receipt::New | Receipt::Again | Receipt::Late) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    });
    if stop() {
        return Err(Stopped::Interrupted);
    }
    let again: BTreeMap<String, ClockOffset> = agents.read_clocks().into_iter().collect();
    let clocks = collected
        .clocks
        .iter()
        .map(|(agent, before)| (agent.clone(), before.error_with_drift(again.get(agent).copied())));
    let clocks: BTreeMap<String, u64> = clocks.collect();
    let outcome = made(plan, &members, &parts, placed, collected, &clocks);
    if runs.missing(run).is_empty() {
        let _ = runs.close(run);
    }
    Ok(outcome)
}

/// The outcome of a run that this process did not see the end of, where every agent has
/// finished it. None: it is to be run again.
fn taken_up(
    plan: &Plan,
    seed: u64,
    fleet: &Fleet,
    runs: &mut Runs,
    left: journal::Left,
    placed: &BTreeMap<usize, String>,
) -> Result<Option<Outcome>, Stopped> {
    let run = left.run;
    let there = fleet.agents()?.into_iter().filter(|agent| agent.state != State::Offline);
    let missing = runs.missing(run);
    let missing: Vec<String> =
        there.filter(|agent| missing.contains(&agent.name)).map(|agent| agent.name).collect();
    if !missing.is_empty() {
        let agents = taken(&missing, fleet)?;
        agents.fetch_kept(|agent, run, report| {
            runs.receive(run, agent, report).is_ok_and(|receipt| receipt != Receipt::Unexpected)
        });
        agents.finish();
    }
    let reports = runs.reports(run);
    let members = assignments::members_at(plan, |group| left.addresses[group]);
    let Ok(members) = members else { return Ok(None) };
    let parts = parts(plan, &members, seed, placed);
    let whole = |(agent, part): &(String, Assignment)| {
        let mut own = reports.iter().filter(|report| report.node == part.node);
        !runs.missing(run).contains(agent)
            && own.any(|report| report.void.is_empty() && bounds::check(report, part).is_ok())
    };
    let is_whole = parts.iter().all(whole);
    let _ = runs.close(run);
    if !is_whole {
        return Ok(None);
    }
    let collected = Collected {
        reports,
        warnings: vec![format!(
            "run {run} was under way when its controller ended: its reports were fetched afterwards, and the clocks' error is \
             not known"
        )],
        ..Collected::default()
    };
    Ok(Some(made(plan, &members, &parts, placed, collected, &BTreeMap::new())))
}

/// The outcome from what came back.
fn made(
    plan: &Plan,
    members: &[Member],
    parts: &[(String, Assignment)],
    placed: &BTreeMap<usize, String>,
    collected: Collected,
    clocks: &BTreeMap<String, u64>,
) -> Outcome {
    let mut void = Vec::new();
    let within = |report: &&Report| {
        let part = parts.iter().find(|(_, part)| part.node == report.node);
        let checked =
            part.ok_or_else(|| "it had no part in this run".to_owned()).and_then(|(agent, part)| {
                bounds::check(report, part)
                    .map_err(|why| format!("agent {agent}: its report cannot be true: {why}"))
            });
        checked.map_err(|why| void.push(why)).is_ok()
    };
    let reports: Vec<Report> = collected.reports.iter().filter(within).cloned().collect();
    void.extend(bounds::contradictions(&reports));
    let error_of = |node: usize| placed.get(&node).and_then(|agent| clocks.get(agent)).copied().unwrap_or(0);
    let found = Findings {
        plan,
        members,
        reports: &reports,
        emulator: &emulator::Report::default(),
        is_real: true,
        clock_error: &|from, to| error_of(from).saturating_add(error_of(to)),
        services: &[],
        watched: &Watched::default(),
    };
    let mut outcome = outcome::outcome(&found);
    outcome.differences = differences(plan);
    outcome.differences.push(
        "links, routers and their queues are those of the network between the hosts, whatever the scenario says of them".into(),
    );
    outcome.void.extend(void);
    for loss in collected.lost {
        outcome.failures.push(format!("agent {}: it was lost: {}", loss.agent, loss.reason));
    }
    outcome.warnings.extend(collected.warnings.into_iter().chain(collected.slow_start));
    for (agent, error_ns) in clocks.iter().filter(|(_, error_ns)| **error_ns > 0) {
        outcome.warnings.push(format!(
            "agent {agent}: its clock is known to ± {} µs; one-way delays to and from it carry that error",
            error_ns.div_ceil(1000)
        ));
    }
    outcome
}

/// The address of a node that flows use.
fn address(
    plan: &Plan,
    agents: &Agents,
    placed: &BTreeMap<usize, String>,
    node: usize,
    family: Family,
) -> Result<IpAddr, Stopped> {
    let (name, agent) = (&plan.nodes[node].name, &placed[&node]);
    let is_of = |address: &IpAddr| address.is_ipv4() == (family == Family::V4);
    let given = plan.nodes[node].place.as_ref().and_then(|place| place.address);
    let told = agents.addresses(agent);
    match given.filter(is_of).or_else(|| told.iter().copied().find(is_of)) {
        Some(address) => Ok(address),
        None => {
            let version = if family == Family::V4 { "IPv4" } else { "IPv6" };
            Err(Stopped::Failed(format!(
                "node.{name}: agent {agent} tells of no {version} address; name one: {name} = {{ agent = \"{agent}\", address = \"…\" }} \
                 in [place]"
            )))
        }
    }
}

fn stopped(error: Error) -> Stopped {
    match error.is_missing_feature() {
        true => {
            Stopped::Missing { message: error.to_string(), remedy: "see what each agent's host lacks".into() }
        }
        false => error.into(),
    }
}
