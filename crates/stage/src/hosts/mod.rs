//! Live stage: the hosts and provider edge routers of a plan are agents of a fleet, in a real network.
//!
//! The controller creates the number and the folder of a run before it contacts any agent, and stores each report
//! before the agent may delete it. If this process ends in between, the journal lets the next process continue the run,
//! if it has a lease, or fetch its reports, instead of repeating it.

mod addressing;
mod clocks;
mod ip_versions;
mod journal;
mod nat;
pub mod pair;
mod placement;
mod plausibility;
mod resume;

use crate::attempt::{AttemptFailure, until_in_time};
use crate::conductor::outcome::Findings;
use crate::conductor::partial::PartialOutcome;
use crate::conductor::{self, StageRemarks};
use crate::to_stopped;
use crate::topology::assignments::{self, PlacedFlow};
use crate::topology::{distribution, pe, services};
use addressing::HostAddressing;
use clocks::ClockAccuracy;
use ip_versions::NodeAddressLists;
use journal::{Journal, PendingRun};
use nat::{KnownNats, PlacedAgents};
use netstage_agent::controller::{
    AgentAddress, ClockComparison, CollectedReports, ControlledAgents, ControllerError,
};
use netstage_agent::fleet::folder::FleetFolder;
use netstage_agent::fleet::runs::FleetRuns;
use netstage_agent::fleet::{AgentStatus, StartupError};
use netstage_agent_api::results::{AgentReport, WatchedWindows};
use netstage_agent_api::service::ServiceResult;
use netstage_agent_api::task::{Assignment, EdgeTask, FlowSide, TaskTransport};
use netstage_core::fleet::Receipt;
use netstage_core::measure::{FaultTime, VoidReason};
use netstage_core::quantity::BitRate;
use netstage_emulator as emulator;
use netstage_scenario::outcome::{RunFailure, RunObserver, RunOutcome};
use netstage_scenario::plan::{FlowGroup, IpVersion, NodeKind, Plan};
use placement::PlacementCause;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time until the controller notices that an agent was released, and the polling interval.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Name of the journal in the folder of a record, with the runs whose results may still be at agents.
pub const JOURNAL_FILE: &str = "under-way.json";

/// Fleet, journal and log folder of the runs of a record.
pub struct FleetContext {
    fleet: FleetFolder,
    journal: Mutex<Journal>,
    /// Folder for the logs of failed services.
    logs: PathBuf,
}

impl FleetContext {
    /// Prepares runs on agents of this fleet, with the journal in the folder of the record.
    pub fn new(fleet: FleetFolder, record: &Path) -> FleetContext {
        let journal = Mutex::new(Journal::open(record.join(JOURNAL_FILE)));
        FleetContext { fleet, journal, logs: record.join("logs") }
    }
}

/// Runs a plan with a seed. Calls `attendant` several times per second.
pub fn run(
    plan: &Plan,
    seed: u64,
    means: &FleetContext,
    attendant: &dyn RunObserver,
) -> Result<RunOutcome, RunFailure> {
    if let Some(refusal) = refusal(plan) {
        return Err(RunFailure::Unsupported(refusal));
    }
    let fleet = &means.fleet;
    fleet.require_service().map_err(to_stopped)?;
    let mut runs = FleetRuns::read_all(fleet).map_err(to_stopped)?;
    let mut journal = means.journal.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(left) = journal.pending_run(plan, seed) {
        let placed = resume::placed(plan, &runs.agents(left.run));
        let context = RunContext { plan, seed, placed: &placed, logs: &means.logs };
        if let Some(outcome) = resume::resume(&context, fleet, &mut runs, left, attendant)? {
            return Ok(outcome);
        }
    }
    let placed = placed(plan, fleet, &|| attendant.stop())?;
    let names: Vec<String> = placed.values().cloned().collect();
    let context = RunContext { plan, seed, placed: &placed, logs: &means.logs };
    let address = |name: &String| (name.clone(), AgentAddress::Fleet(fleet.socket()));
    until_in_time(|| {
        let mut agents = connect(|| ControlledAgents::connect(names.iter().map(address).collect()))?;
        let result = conduct(&context, &mut agents, &mut runs, &mut journal, attendant);
        agents.finish();
        result
    })
    .and_then(|outcome| {
        let sender_limits = sender_limits(plan, &fleet.agents().map_err(to_stopped)?, &placed);
        Ok(RunOutcome { sender_limits, ..outcome })
    })
}

/// Returns the flows whose sender's policy limits the rate, each with the limit.
fn sender_limits(
    plan: &Plan,
    statuses: &[AgentStatus],
    placed: &BTreeMap<usize, String>,
) -> Vec<(String, BitRate)> {
    let limit = |group: &FlowGroup| {
        let agent = placed.get(&group.from)?;
        let status = statuses.iter().find(|status| status.name == *agent)?;
        let (_, value) = status.policy().find(|(rule, _)| *rule == "rate")?;
        Some((group.name.clone(), value.parse().ok()?))
    };
    plan.flows.iter().filter_map(limit).collect()
}

/// Assigns agents to the nodes. Waits for agents that the previous run is releasing.
fn placed(
    plan: &Plan,
    fleet: &FleetFolder,
    stop: &dyn Fn() -> bool,
) -> Result<BTreeMap<usize, String>, RunFailure> {
    let start = Instant::now();
    loop {
        match placement::agents(plan, &fleet.agents().map_err(to_stopped)?) {
            Ok(placed) => return Ok(placed),
            Err(unplaced) if unplaced.cause == PlacementCause::Scenario => {
                return Err(RunFailure::Unsupported(unplaced.message));
            }
            Err(unplaced) if unplaced.cause == PlacementCause::Absent || start.elapsed() > RELEASE_LIMIT => {
                return Err(RunFailure::Failed(unplaced.message));
            }
            Err(_) if stop() => return Err(RunFailure::Interrupted),
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Connects to agents by `attempt`. Waits for agents that the previous run is releasing.
fn connect<T>(attempt: impl Fn() -> Result<T, ControllerError>) -> Result<T, ControllerError> {
    let (start, mut wait) = (Instant::now(), POLL_INTERVAL);
    loop {
        match attempt() {
            Err(error) if error.is_busy() && start.elapsed() < RELEASE_LIMIT => std::thread::sleep(wait),
            result => return result,
        }
        // Each attempt locks and releases the free agents, so attempts become rarer.
        wait *= 2;
    }
}

/// Returns the reason why this stage cannot run a plan, regardless of the agents.
pub fn refusal(plan: &Plan) -> Option<String> {
    let node = |index: usize| &plan.nodes[index].name;
    if let Some(tunnel) = plan.tunnels.first() {
        return Some(format!(
            "node.{}: gateways do not run on hosts of a fleet; use --on emu, or make the node a router and set up \
             the tunnel between the hosts yourself",
            node(tunnel.ends[0])
        ));
    }
    let routing = plan.routing.as_ref().map(|routing| (&routing.name, "routing daemons"));
    let server = plan.route_server.as_ref().map(|server| (&server.name, "route servers"));
    routing.or(server).map(|(name, daemons)| {
        format!(
            "service.{name}: {daemons} do not run on hosts of a fleet; remove the service, or use --on emu"
        )
    })
}

/// Returns the reasons why the agents of a fleet cannot run a plan, as far as they are known before a run.
pub fn refusals(plan: &Plan, fleet: &FleetFolder) -> Result<Vec<String>, StartupError> {
    if let Some(refusal) = refusal(plan) {
        return Ok(vec![refusal]);
    }
    // Without a controller, the last known status counts.
    fleet.require_service().or_else(|problem| if problem.is_missing { Ok(()) } else { Err(problem) })?;
    let statuses = fleet.agents()?;
    let placed = match placement::agents(plan, &statuses) {
        Ok(placed) => placed,
        Err(unplaced) => return Ok(vec![unplaced.message]),
    };
    let mappings = statuses.iter().map(|status| (status.name.as_str(), &*status.mappings)).collect();
    let reported = statuses.iter().map(|status| (status.name.as_str(), &*status.addresses)).collect();
    let lists = NodeAddressLists { plan, placed: &placed, reported };
    let mut refusals = lists.refusals();
    let nats = KnownNats { plan, placed: &placed, mappings };
    let translated = nats.translated_groups();
    refusals.extend(nats.refusals(&translated));
    refusals.extend(nats.unreachable(&translated, &lists));
    Ok(refusals)
}

/// Addresses of the nodes of a run.
struct NodeAddresses {
    /// Addresses of the sender and the receiver of each flow group; for multicast, the group address as the receiver.
    flows: Vec<(IpAddr, IpAddr)>,
    /// Addresses of multicast receivers, by name of the node.
    receivers: BTreeMap<String, IpAddr>,
    /// Addresses of provider edge routers, by index of the node.
    routers: BTreeMap<usize, IpAddr>,
}

impl NodeAddresses {
    /// Collects the addresses from the plan, or from the agents if the plan has none.
    fn new(
        plan: &Plan,
        agents: &ControlledAgents,
        placed: &BTreeMap<usize, String>,
        translated: &BTreeSet<usize>,
    ) -> Result<NodeAddresses, RunFailure> {
        let lists = NodeAddressLists::of_agents(plan, placed, agents);
        let address = |node: usize, family: IpVersion| lists.address(node, family);
        let behind_nat = PlacedAgents { nats: KnownNats::of_agents(plan, placed, agents), agents };
        let groups = distribution::groups(plan);
        let mut flows = Vec::new();
        let mut receivers = BTreeMap::new();
        for (index, (group, multicast)) in plan.flows.iter().zip(groups).enumerate() {
            if translated.contains(&index) {
                flows.push((behind_nat.any_address(group.from)?, behind_nat.any_address(group.to)?));
                continue;
            }
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
        let routers = routers.map(|&node| Ok((node, address(node, IpVersion::V4)?)));
        Ok(NodeAddresses { flows, receivers, routers: routers.collect::<Result<_, RunFailure>>()? })
    }
}

/// Returns the assignment of each agent.
fn parts(
    plan: &Plan,
    members: &[PlacedFlow],
    seed: u64,
    placed: &BTreeMap<usize, String>,
    addresses: &NodeAddresses,
) -> Result<Vec<(String, Assignment)>, RunFailure> {
    let mut assignments = assignments::assignments(plan, members, seed);
    for assignment in assignments.values_mut() {
        let own = addresses.receivers.get(&assignment.node).copied();
        for flow in assignment.flows.iter_mut().filter(|flow| flow.side == FlowSide::Receive) {
            if let TaskTransport::Multicast { receiver, .. } = &mut flow.transport {
                *receiver = own;
            }
        }
    }
    for (node, watched) in assignments::watched_flows(plan, members) {
        let assignment = assignments.entry(node).or_insert_with(|| Assignment::new(plan, node, seed));
        assignment.watch.push(watched);
    }
    for (node, service) in services::tasks(plan, members) {
        let assignment = assignments.entry(node).or_insert_with(|| Assignment::new(plan, node, seed));
        assignment.services.push(service);
    }
    if !addresses.routers.is_empty() {
        let ground = HostAddressing { plan, flows: &addresses.flows, routers: &addresses.routers };
        let routers =
            pe::routers(plan, &ground).map_err(|error| RunFailure::Unsupported(error.to_string()))?;
        let errors = ground.placement_errors(&routers);
        if !errors.is_empty() {
            return Err(RunFailure::Unsupported(errors.join("\n")));
        }
        for (&node, router) in &routers {
            // The router of an agent has no control socket.
            let configuration = pe::configuration(plan, &ground, node, router, Path::new("none"));
            let assignment = assignments.entry(node).or_insert_with(|| Assignment::new(plan, node, seed));
            assignment.edge = Some(EdgeTask { configuration });
        }
    }
    let with_lease = |assignment| Assignment { lease: plan.lease, ..assignment };
    Ok(assignments.into_iter().map(|(node, part)| (placed[&node].clone(), with_lease(part))).collect())
}

/// Plan, seed and placement of a run.
#[derive(Clone, Copy)]
struct RunContext<'a> {
    plan: &'a Plan,
    seed: u64,
    /// Agents, by index of the node.
    placed: &'a BTreeMap<usize, String>,
    /// Folder for the logs of failed services.
    logs: &'a Path,
}

/// Finds the paths through NATs, collects the consents, and has all agents prepare the run. Returns the clock comparisons
/// that follow.
fn prepare(
    context: &RunContext,
    agents: &mut ControlledAgents,
    translated: &BTreeSet<usize>,
    members: &[PlacedFlow],
    parts: &mut [(String, Assignment)],
) -> Result<Vec<ClockComparison>, RunFailure> {
    let &RunContext { plan, placed, .. } = context;
    let nats = KnownNats::of_agents(plan, placed, agents);
    PlacedAgents { nats, agents }.add_paths(translated, members, parts)?;
    let comparisons = clocks::compare(parts, agents.clocks());
    let comparisons = comparisons.map_err(|error| RunFailure::Failed(error.to_string()))?;
    agents.collect_consents(parts)?;
    agents.add_agents(parts.to_vec())?;
    Ok(comparisons)
}

fn conduct(
    context: &RunContext,
    agents: &mut ControlledAgents,
    runs: &mut FleetRuns,
    journal: &mut Journal,
    attendant: &dyn RunObserver,
) -> Result<RunOutcome, AttemptFailure> {
    let settled = NodeAddressLists::of_agents(context.plan, context.placed, agents).settle();
    let settled = settled.map_err(|problems| RunFailure::Unsupported(problems.join("\n")))?;
    let context = &RunContext { plan: &settled, ..*context };
    let &RunContext { plan, seed, placed, .. } = context;
    let nats = KnownNats::of_agents(plan, placed, agents);
    let translated = nats.translated_groups();
    let refusals = nats.refusals(&translated);
    if !refusals.is_empty() {
        return Err(RunFailure::Unsupported(refusals.join("\n")).into());
    }
    let addresses = NodeAddresses::new(plan, agents, placed, &translated)?;
    let members = assignments::members_at(plan, |group| addresses.flows[group]);
    let members = members.map_err(|error| RunFailure::Unsupported(error.to_string()))?;
    let mut parts = parts(plan, &members, seed, placed, &addresses)?;
    let nodes = parts.iter().map(|(agent, part)| (agent.clone(), part.node.clone())).collect();
    let run = runs.open(&plan.title, nodes).map_err(to_stopped)?;
    let numbers = (agents.controller(), run);
    journal.add_run(PendingRun::new(plan, seed, numbers, &addresses.flows, &addresses.routers));
    agents.new_run_numbered(run, attendant.wants_bins());
    let prepared = prepare(context, agents, &translated, &members, &mut parts);
    // If it failed, no agent has started, so no report will arrive.
    let comparisons = prepared.inspect_err(|_| _ = runs.forget(run))?;
    agents.compare_clocks(&comparisons);
    // If this fails, some agents may have started; the run stays open for their reports, unless it is repeated.
    let start = agents.start_together().inspect_err(|error| {
        if error.is_late_start() {
            let _ = runs.close(run);
        }
    });
    journal.set_start(start?);
    watch(context, &members, &parts, agents, attendant);
    // The reflectors answer only until the reports are collected.
    let clocks = ClockAccuracy::measure_after_run(agents, &comparisons);
    let collected = collect(agents, runs, run, &parts);
    if runs.missing(run).is_empty() {
        let _ = runs.close(run);
    }
    if attendant.stop() {
        return Err(RunFailure::Interrupted.into());
    }
    Ok(outcome(context, &members, &parts, collected, Some(&clocks))?)
}

/// Follows a run until it ends or the attendant stops it.
fn watch(
    context: &RunContext,
    members: &[PlacedFlow],
    parts: &[(String, Assignment)],
    agents: &mut ControlledAgents,
    attendant: &dyn RunObserver,
) {
    let windows = parts.iter().map(|(_, part)| part.watch.len()).sum();
    let assignments = parts.iter().map(|(_, part)| part);
    let mut so_far = PartialOutcome::new(context.plan, members, assignments, windows, None);
    conductor::watch(agents, &mut so_far, attendant, |_| ());
}

/// Collects the reports of a run, and stores those that are possible.
fn collect(
    agents: &mut ControlledAgents,
    runs: &mut FleetRuns,
    run: u64,
    parts: &[(String, Assignment)],
) -> CollectedReports {
    agents.collect_and_store(|agent, report| {
        let part = parts.iter().find(|(name, _)| name == agent).map(|(_, part)| part);
        plausibility::check(report, part.ok_or("the agent has no assignment in this run")?)?;
        match runs.receive(run, agent, report) {
            Ok(Receipt::Unexpected) => Err("no report is expected from this agent".into()),
            Ok(Receipt::New | Receipt::Duplicate | Receipt::Late) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    })
}

/// Returns the outcome of a run from the reports of its agents.
fn outcome(
    context: &RunContext,
    members: &[PlacedFlow],
    parts: &[(String, Assignment)],
    collected: CollectedReports,
    clocks: Option<&ClockAccuracy>,
) -> Result<RunOutcome, RunFailure> {
    let &RunContext { plan, seed, placed, logs } = context;
    let mut void: Vec<VoidReason> = Vec::new();
    let is_ingress_of = |report: &AgentReport, name: &str| {
        plan.vpns.iter().any(|vpn| vpn.name == name && plan.nodes[vpn.ingress].name == report.node)
    };
    let is_valid = |report: &&AgentReport| {
        let part = parts.iter().find(|(_, part)| part.node == report.node);
        let checked = match part {
            Some((agent, part)) => plausibility::check(report, part)
                .map_err(|error| (format!("agent {agent}:"), format!("invalid report: {error},"))),
            None => Err((format!("node.{}:", report.node), "no agent had this node".into())),
        };
        let within = FaultTime::Within(plan.duration);
        checked.map_err(|(party, fault)| void.push(VoidReason::new(party, fault, within))).is_ok()
    };
    let mut reports: Vec<AgentReport> = collected.reports.iter().filter(is_valid).cloned().collect();
    for report in &mut reports {
        let mut vpns = std::mem::take(&mut report.vpns);
        vpns.retain(|vpn| is_ingress_of(report, &vpn.vpn));
        report.vpns = vpns;
    }
    let services: Vec<ServiceResult> =
        reports.iter().flat_map(|report| &report.services).map(without_control_characters).collect();
    let watched = watched(&reports);
    void.extend(plausibility::contradictions(&reports, plan.duration));
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
        emulator: &emulator::EmulatorReport::default(),
        is_real: true,
        clock_error: &error_between,
        services: &services,
        route_server: None,
        watched: &watched,
    };
    let timestamped = plan.flows.iter().filter(|flows| assignments::has_timestamps(&flows.transport));
    let pairs = timestamped
        .filter_map(|flows| Some((placed.get(&flows.from)?.clone(), placed.get(&flows.to)?.clone())));
    let warnings = clocks.map(|clocks| clocks.remarks(pairs)).unwrap_or_default();
    let mut differences = differences_of_hosts(context, !services.is_empty());
    differences.extend(ip_versions::remarks(plan, placed));
    differences.extend(nat::remarks(parts));
    let remarks = StageRemarks { differences, void, warnings, ..StageRemarks::default() };
    conductor::conclude(&found, seed, logs, collected, remarks, |loss| {
        format!("agent {} was lost: {}", loss.agent, loss.reason)
    })
}

/// Returns the differences between the network of the hosts and the plan.
fn differences_of_hosts(context: &RunContext, has_services: bool) -> Vec<String> {
    let is_router = |node: &usize| context.plan.nodes[*node].kind == NodeKind::Pe;
    let lacks_router = pe::are_needed(context.plan) && !context.placed.keys().any(is_router);
    let remarks = [
        (
            true,
            "links, routers and queues are those of the network between the hosts; those of the scenario are ignored",
        ),
        (
            !context.plan.vpns.is_empty(),
            "the throughput of a VPN is computed from the bytes received by its flows, with the headers of full TCP segments",
        ),
        (
            has_services,
            "services use the TCP settings of their hosts; window, segment size and algorithm of the scenario are ignored",
        ),
        (lacks_router, "no provider edge router is placed, so the VPN control of the scenario has no effect"),
    ];
    remarks.into_iter().filter(|(applies, _)| *applies).map(|(_, remark)| remark.into()).collect()
}

/// Removes control characters from the log of a service.
fn without_control_characters(service: &ServiceResult) -> ServiceResult {
    let log = service.log.chars().filter(|c| !plausibility::is_terminal_control(*c)).collect();
    ServiceResult { log, ..service.clone() }
}

/// Merges the window samples of all agents.
fn watched(reports: &[AgentReport]) -> WatchedWindows {
    let mut all = WatchedWindows::default();
    for report in reports {
        let WatchedWindows { flows, lost, missing } = &report.watched;
        all.flows.extend(flows.iter().cloned());
        all.lost = all.lost.saturating_add(*lost);
        all.missing.extend(missing.iter().map(|reason| format!("at node.{}: {reason}", report.node)));
    }
    all
}
