//! A plan on the live stage: its hosts and provider edge routers placed on agents of a fleet, the
//! network between them the real one.
//!
//! A run has a number and a folder at the controller before any agent is asked, and each
//! report is there before its agent may forget it. Where this process ends in between, the
//! run is taken up by its journal: what agents had finished is fetched, not run again.

mod bounds;
mod clocks;
mod ground;
mod journal;
mod place;

use crate::conductor::outcome::Findings;
use crate::conductor::so_far::SoFar;
use crate::conductor::{self, Remarks};
use crate::stopped;
use crate::topology::assignments::{self, Member};
use crate::topology::{distribution, pe, services};
use clocks::Certainty;
use ground::OnHosts;
use journal::Journal;
use netstage_agent::controller::{Agents, Collected, Error, Place};
use netstage_agent::fleet::State;
use netstage_agent::fleet::folder::Fleet;
use netstage_agent::fleet::runs::Runs;
use netstage_agent_api::results::{Report, Watched};
use netstage_agent_api::service::ServiceResult;
use netstage_agent_api::task::{Assignment, EdgeTask, Side, Transport};
use netstage_core::fleet::Receipt;
use netstage_emulator as emulator;
use netstage_scenario::outcome::{Attendant, Outcome, Stopped};
use netstage_scenario::plan::{Family, NodeKind, Plan};
use place::Cause;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the controller may take to see that an agent was let go, and how often that is looked for.
const LET_GO: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(200);

/// Name of the file in a record's folder with the runs that agents may still have results of.
pub const UNDER_WAY: &str = "under-way.json";

/// What a run needs beside its plan.
pub struct Means {
    fleet: Fleet,
    journal: Mutex<Journal>,
    /// Where the logs of services that failed are kept.
    logs: PathBuf,
}

impl Means {
    /// Runs on agents of this fleet; what is under way is noted in the record's folder.
    pub fn new(fleet: Fleet, record: &Path) -> Means {
        let journal = Mutex::new(Journal::open(record.join(UNDER_WAY)));
        Means { fleet, journal, logs: record.join("logs") }
    }
}

/// Runs a plan under a seed. `attendant` is asked several times a second.
pub fn run(plan: &Plan, seed: u64, means: &Means, attendant: &dyn Attendant) -> Result<Outcome, Stopped> {
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
    let placed = placed(plan, fleet, &|| attendant.stop())?;
    let names: Vec<String> = placed.values().cloned().collect();
    let mut runs = Runs::of(fleet).map_err(stopped)?;
    let mut journal = means.journal.lock().unwrap_or_else(PoisonError::into_inner);
    let part = Part { plan, seed, placed: &placed, logs: &means.logs };
    if let Some(left) = journal.left(plan, seed)
        && let Some(outcome) = taken_up(&part, fleet, &mut runs, left)?
    {
        return Ok(outcome);
    }

    let mut agents = taken(&names, fleet)?;
    let result = conduct(&part, &mut agents, &mut runs, &mut journal, attendant);
    agents.finish();
    result
}

/// The agents of the hosts. The run before may have let its agents go a moment ago.
fn placed(plan: &Plan, fleet: &Fleet, stop: &dyn Fn() -> bool) -> Result<BTreeMap<usize, String>, Stopped> {
    let since = Instant::now();
    loop {
        match place::agents(plan, &fleet.agents().map_err(stopped)?) {
            Ok(placed) => return Ok(placed),
            Err(unplaced) if unplaced.cause == Cause::Scenario => {
                return Err(Stopped::Unsupported(unplaced.why));
            }
            Err(unplaced) if unplaced.cause == Cause::Absent || since.elapsed() > LET_GO => {
                return Err(Stopped::Failed(unplaced.why));
            }
            Err(_) if stop() => return Err(Stopped::Interrupted),
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// The agents, which the run before may just be leaving.
fn taken(names: &[String], fleet: &Fleet) -> Result<Agents, Error> {
    let (since, mut wait) = (Instant::now(), LOOK);
    loop {
        let places = names.iter().map(|name| (name.clone(), Place::Fleet(fleet.socket()))).collect();
        match Agents::connect(places) {
            Err(error) if error.is_busy() && since.elapsed() < LET_GO => std::thread::sleep(wait),
            other => return other,
        }
        // Those that are free are taken and let go each time.
        wait *= 2;
    }
}

/// What this stage cannot be asked for, whoever its agents are.
pub fn refusal(plan: &Plan) -> Option<String> {
    let node = |index: usize| &plan.nodes[index].name;
    if let Some(tunnel) = plan.tunnels.first() {
        return Some(format!(
            "node.{}: gateways are not made on hosts of a fleet; run it with --on emu, or make a router of it and set \
             the tunnel up between the hosts yourself",
            node(tunnel.ends[0])
        ));
    }
    plan.routing.as_ref().map(|routing| {
        format!(
            "service.{}: daemons are not run on hosts of a fleet, whose routers are their own; take it out, or run it \
             with --on emu",
            routing.name
        )
    })
}

/// Where a run's nodes are: each is known before any agent is asked.
struct Places {
    /// Of each flow group, the addresses of sender and receiver; a multicast group's stands for receivers.
    flows: Vec<(IpAddr, IpAddr)>,
    /// Of receivers of multicast, by name of the node.
    receivers: BTreeMap<String, IpAddr>,
    /// Of provider edge routers, by index of the node.
    routers: BTreeMap<usize, IpAddr>,
}

impl Places {
    /// Those of the agents, or of the plan where it names them.
    fn new(plan: &Plan, agents: &Agents, placed: &BTreeMap<usize, String>) -> Result<Places, Stopped> {
        let address = |node: usize, family: Family| address(plan, agents, placed, node, family);
        let groups = distribution::groups(plan);
        let mut flows = Vec::new();
        let mut receivers = BTreeMap::new();
        for (group, multicast) in plan.flows.iter().zip(groups) {
            let to = [group.to].into_iter().chain(group.branches.iter().map(|branch| branch.to));
            let destination = match multicast {
                None => address(group.to, group.family)?,
                Some(multicast) => {
                    for node in to {
                        receivers.insert(plan.nodes[node].name.clone(), address(node, group.family)?);
                    }
                    multicast
                }
            };
            flows.push((address(group.from, group.family)?, destination));
        }
        let is_router = |node: &&usize| plan.nodes[**node].kind == NodeKind::Pe;
        let routers = placed.keys().filter(is_router);
        let routers = routers.map(|&node| Ok((node, address(node, Family::V4)?)));
        Ok(Places { flows, receivers, routers: routers.collect::<Result<_, Stopped>>()? })
    }
}

/// What each agent is asked to do, as a list of agents and their parts.
fn parts(
    plan: &Plan,
    members: &[Member],
    seed: u64,
    placed: &BTreeMap<usize, String>,
    places: &Places,
) -> Result<Vec<(String, Assignment)>, Stopped> {
    let mut assignments = assignments::assignments(plan, members, seed);
    for assignment in assignments.values_mut() {
        let own = places.receivers.get(&assignment.node).copied();
        for flow in assignment.flows.iter_mut().filter(|flow| flow.side == Side::Receive) {
            if let Transport::Multicast { receiver, .. } = &mut flow.transport {
                *receiver = own;
            }
        }
    }
    for (node, watched) in assignments::watched(plan, members) {
        let assignment = assignments.entry(node).or_insert_with(|| Assignment::new(plan, node, seed));
        assignment.watch.push(watched);
    }
    for (node, service) in services::tasks(plan, members) {
        let assignment = assignments.entry(node).or_insert_with(|| Assignment::new(plan, node, seed));
        assignment.services.push(service);
    }
    if !places.routers.is_empty() {
        let ground = OnHosts { plan, flows: &places.flows, routers: &places.routers };
        let routers = pe::routers(plan, &ground).map_err(|error| Stopped::Unsupported(error.to_string()))?;
        let lacks = ground.lacks(&routers);
        if !lacks.is_empty() {
            return Err(Stopped::Unsupported(lacks.join("\n")));
        }
        for (&node, router) in &routers {
            // The agent offers no control socket.
            let configuration = pe::configuration(plan, &ground, node, router, Path::new("none"));
            let assignment = assignments.entry(node).or_insert_with(|| Assignment::new(plan, node, seed));
            assignment.edge = Some(EdgeTask { configuration });
        }
    }
    Ok(assignments.into_iter().map(|(node, assignment)| (placed[&node].clone(), assignment)).collect())
}

/// What is run, and on whom.
struct Part<'a> {
    plan: &'a Plan,
    seed: u64,
    /// Agents of nodes, by index of the node.
    placed: &'a BTreeMap<usize, String>,
    /// Where logs of services are kept.
    logs: &'a Path,
}

fn conduct(
    part: &Part,
    agents: &mut Agents,
    runs: &mut Runs,
    journal: &mut Journal,
    attendant: &dyn Attendant,
) -> Result<Outcome, Stopped> {
    let &Part { plan, seed, placed, .. } = part;
    let places = Places::new(plan, agents, placed)?;
    let members = assignments::members_at(plan, |group| places.flows[group]);
    let members = members.map_err(|error| Stopped::Unsupported(error.to_string()))?;
    let mut parts = parts(plan, &members, seed, placed, &places)?;
    let comparisons = clocks::compare(&mut parts, agents.clocks());
    let comparisons = comparisons.map_err(|error| Stopped::Failed(error.to_string()))?;
    let nodes = parts.iter().map(|(agent, part)| (agent.clone(), part.node.clone())).collect();
    let run = runs.open(&plan.title, nodes).map_err(stopped)?;
    journal.begun(plan, seed, run, &places.flows, &places.routers);
    agents.new_run_numbered(run, attendant.listens());
    if let Err(error) = agents.agree(&parts).and_then(|()| agents.add(parts.clone())) {
        // Nothing was sent, so nothing is to come.
        let _ = runs.forget(run);
        return Err(error.into());
    }
    agents.compare_clocks(&comparisons);
    // Where it fails, some may have begun: what they found is still to come.
    agents.start_together()?;
    let windows = parts.iter().map(|(_, part)| part.watch.len()).sum();
    let mut so_far = SoFar::new(plan, &members, parts.iter().map(|(_, part)| part), windows, None);
    conductor::watch(agents, &mut so_far, attendant, |_| ());
    // While receivers still answer.
    let clocks = Certainty::after(agents, &comparisons);
    let collected = agents.collect_keeping(|agent, report| {
        let part = parts.iter().find(|(name, _)| name == agent).map(|(_, part)| part);
        bounds::check(report, part.ok_or("it had no part in this run")?)?;
        match runs.receive(run, agent, report) {
            Ok(Receipt::Unexpected) => Err("nobody expects it".into()),
            Ok(Receipt::New | Receipt::Again | Receipt::Late) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    });
    if runs.missing(run).is_empty() {
        let _ = runs.close(run);
    }
    if attendant.stop() {
        return Err(Stopped::Interrupted);
    }
    Ok(made(part, &members, &parts, collected, Some(&clocks)))
}

/// The outcome of a run that this process did not see the end of, where every agent has
/// finished it. None: it is to be run again.
fn taken_up(
    part: &Part,
    fleet: &Fleet,
    runs: &mut Runs,
    left: journal::Left,
) -> Result<Option<Outcome>, Stopped> {
    let &Part { plan, seed, placed, .. } = part;
    let run = left.run;
    let there = fleet.agents().map_err(stopped)?.into_iter().filter(|agent| agent.state != State::Offline);
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
    // Which interface a receiver joined on is all the same to its report.
    let places = Places { flows: left.addresses, receivers: BTreeMap::new(), routers: left.routers };
    let parts = parts(plan, &members, seed, placed, &places)?;
    let whole = |(agent, part): &(String, Assignment)| {
        let mut own = reports.iter().filter(|report| report.node == part.node);
        !runs.missing(run).contains(agent)
            && own.any(|report| {
                report.void.is_empty() && !report.stopped && bounds::check(report, part).is_ok()
            })
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
    Ok(Some(made(part, &members, &parts, collected, None)))
}

/// The outcome from what came back.
fn made(
    part: &Part,
    members: &[Member],
    parts: &[(String, Assignment)],
    collected: Collected,
    clocks: Option<&Certainty>,
) -> Outcome {
    let &Part { plan, seed, placed, logs } = part;
    let mut void = Vec::new();
    let enters_there = |report: &Report, name: &str| {
        plan.vpns.iter().any(|vpn| vpn.name == name && plan.nodes[vpn.ingress].name == report.node)
    };
    let within = |report: &&Report| {
        let part = parts.iter().find(|(_, part)| part.node == report.node);
        let checked =
            part.ok_or_else(|| "it had no part in this run".to_owned()).and_then(|(agent, part)| {
                bounds::check(report, part)
                    .map_err(|why| format!("agent {agent}: its report cannot be true: {why}"))
            });
        checked.map_err(|why| void.push(why)).is_ok()
    };
    let mut reports: Vec<Report> = collected.reports.iter().filter(within).cloned().collect();
    for report in &mut reports {
        let mut vpns = std::mem::take(&mut report.vpns);
        vpns.retain(|vpn| enters_there(report, &vpn.vpn));
        report.vpns = vpns;
    }
    let services: Vec<ServiceResult> =
        reports.iter().flat_map(|report| &report.services).map(shown).collect();
    let watched = watched(&reports);
    void.extend(bounds::contradictions(&reports));
    let error_between = |from: usize, to: usize| {
        clocks
            .zip(placed.get(&from))
            .zip(placed.get(&to))
            .map_or(0, |((clocks, from), to)| clocks.error_ns(from, to))
    };
    let found = Findings {
        plan,
        members,
        reports: &reports,
        emulator: &emulator::Report::default(),
        is_real: true,
        clock_error: &error_between,
        services: &services,
        watched: &watched,
    };
    let dated = plan.flows.iter().filter(|flows| assignments::is_dated(&flows.transport));
    let pairs =
        dated.filter_map(|flows| Some((placed.get(&flows.from)?.clone(), placed.get(&flows.to)?.clone())));
    let warnings = clocks.map(|clocks| clocks.remarks(pairs)).unwrap_or_default();
    let differences = differences_of_hosts(part, !services.is_empty());
    let remarks = Remarks { differences, void, warnings, ..Remarks::default() };
    conductor::conclude(&found, seed, logs, collected, remarks, |loss| {
        format!("agent {}: it was lost: {}", loss.agent, loss.reason)
    })
}

/// In what a network between hosts differs from the plan's.
fn differences_of_hosts(part: &Part, has_services: bool) -> Vec<String> {
    let is_router = |node: &usize| part.plan.nodes[*node].kind == NodeKind::Pe;
    let without_router = pe::are_needed(part.plan) && !part.placed.keys().any(is_router);
    let remarks = [
        (
            true,
            "links, routers and their queues are those of the network between the hosts, whatever the scenario says of them",
        ),
        (
            !part.plan.vpns.is_empty(),
            "a VPN's throughput is what the receivers of its flows got, streams counted with the headers of full segments",
        ),
        (
            has_services,
            "TCP of services is as their hosts have it: window, segment size and algorithm of the scenario do not reach it",
        ),
        (
            without_router,
            "no provider edge router is placed: whoever forwards between the hosts, controls no VPN of the scenario's",
        ),
    ];
    remarks.into_iter().filter(|(applies, _)| *applies).map(|(_, remark)| remark.into()).collect()
}

/// A service's result, its log without what a terminal would obey.
fn shown(service: &ServiceResult) -> ServiceResult {
    let log = service.log.chars().filter(|c| !bounds::is_obeyed(*c)).collect();
    ServiceResult { log, ..service.clone() }
}

/// What the agents saw of the windows of all flows.
fn watched(reports: &[Report]) -> Watched {
    let mut all = Watched::default();
    for report in reports {
        let Watched { flows, lost, missing } = &report.watched;
        all.flows.extend(flows.iter().cloned());
        all.lost = all.lost.saturating_add(*lost);
        all.missing.extend(missing.iter().map(|what| format!("at node.{}: {what}", report.node)));
    }
    all
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
    let version = if family == Family::V4 { "IPv4" } else { "IPv6" };
    match plan.nodes[node].place.as_ref().and_then(|place| place.address) {
        Some(given) if is_of(&given) => Ok(given),
        Some(given) => Err(Stopped::Unsupported(format!(
            "node.{name}: its address in [place] is {given}, and its flows are {version}; give it an {version} address, \
             or its flows the other `family`"
        ))),
        None => agents.addresses(agent).iter().copied().find(is_of).ok_or_else(|| {
            Stopped::Failed(format!(
                "node.{name}: agent {agent} tells of no {version} address; name one: {name} = {{ agent = \"{agent}\", address = \"…\" }} \
                 in [place]"
            ))
        }),
    }
}
