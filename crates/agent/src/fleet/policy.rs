//! Admission control of an agent of a fleet. It enforces the agent's policy, allows sending only with the
//! receiver's consent, and logs every request and its outcome.

use super::budget::{BudgetKeeper, DailyBudget};
use super::confirmation::{self, ConsentResponder};
use super::consent::{self, ConsentTerms, Signer};
use super::interfaces::{OutgoingInterfaces, all_addresses, interfaces};
use super::known_controller::KnownController;
use super::metrics::{AgentCounts, count};
use super::path::{PathSession, SearchPace};
use super::sending;
use super::stun::{self, ProbedAddress};
use crate::services;
use crate::{FIRST_PORT, RunGuard};
use netstage_agent_api::path::{FoundPath, NatMapping, PathAddresses, PathSearch};
use netstage_agent_api::protocol::generated::{self as wire, Consent};
use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_agent_api::results::PolicyDrops;
use netstage_agent_api::service::ServiceRole;
use netstage_agent_api::task::{
    Assignment, ClockTask, EdgeTask, FlowSide, FlowTask, MAX_CLOCK_PEERS, TaskTransport,
};
use netstage_agent_api::watch::{FlowSpec, WatchedEndpoint};
use netstage_core::fleet::{
    FlowRequest, FlowRole, Policy, RouterRequest, RunRequest, ServiceRequest, run_number,
};
use netstage_core::time::Duration;
use netstage_host::bpf_error::BpfError;
use netstage_host::capabilities::{self, Capability};
use netstage_host::egress::{EgressGroup, EgressLimits};
use netstage_host::log::{Level, Log};
use netstage_host::shared_key::ConnectionAddresses;
use netstage_scenario::pe::{self, CircuitConfig, PeConfig, PeerTunnel};
use netstage_scenario::plan::ServiceProgram;
use nix::unistd::geteuid;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// Enforces the agent's policy on requests of the controller.
pub struct PolicyGuard {
    policy: Policy,
    controller: String,
    known: Arc<KnownController>,
    signer: Mutex<Option<Arc<Signer>>>,
    /// Consents of the receivers in the run that was admitted last.
    consents: Mutex<Vec<Consent>>,
    /// Paths of the run that was announced last.
    paths: Mutex<Option<PathSession>>,
    search_pace: SearchPace,
    /// Addresses of this host as the controller saw them.
    mappings: Mutex<Vec<NatMapping>>,
    /// Confirms the consents that were given last.
    responder: Mutex<Option<ConsentResponder>>,
    /// The kernel enforces the limits of the policy; false if it has none.
    is_enforced: bool,
    /// Group of the threads of runs, until the end of the agent.
    egress: Mutex<Option<Arc<EgressGroup>>>,
    /// Drops that have been logged.
    logged_drops: Mutex<Vec<PolicyDrops>>,
    /// Grants the budget of the day to the kernel.
    budget: Mutex<Option<BudgetKeeper>>,
    /// Counters of accepted and refused requests, and of connections.
    pub counts: AgentCounts,
    log: Log,
}

impl PolicyGuard {
    /// Returns the admission control for requests of this controller, in the fleet of its authority. The folder has
    /// the account of the sent bytes; the error is that of its file.
    ///
    /// Gives up the capabilities that only enforcement needs. The calling thread must be the only one of the process.
    pub fn new(
        policy: Policy,
        controller: &str,
        known: Arc<KnownController>,
        folder: &Path,
        log: Log,
    ) -> io::Result<PolicyGuard> {
        let egress = enforce(&policy, &log).map(Arc::new);
        let keeps_capabilities = policy.routers || policy.tcp_events || geteuid().is_root();
        if !keeps_capabilities {
            capabilities::renounce(&[Capability::NetAdmin, Capability::Bpf])?;
        }
        // Older kernels deny the use of maps to processes without capabilities.
        let usable = |egress: &Arc<EgressGroup>| match egress.sent() {
            Ok(_) => true,
            Err(error) => {
                log_not_enforced(&log, &error);
                false
            }
        };
        let egress = egress.filter(usable);
        let budget = match (policy.bytes_per_day, &egress) {
            (Some(bytes), Some(egress)) => {
                let budget = DailyBudget::open(folder, bytes)?;
                Some(BudgetKeeper::start(budget, Arc::clone(egress), policy.rate, Arc::clone(&log))?)
            }
            _ => None,
        };
        Ok(PolicyGuard {
            policy,
            is_enforced: egress.is_some(),
            egress: Mutex::new(egress),
            logged_drops: Mutex::default(),
            budget: Mutex::new(budget),
            controller: controller.into(),
            known,
            signer: Mutex::default(),
            consents: Mutex::default(),
            paths: Mutex::default(),
            search_pace: SearchPace::default(),
            mappings: Mutex::default(),
            responder: Mutex::default(),
            counts: AgentCounts::default(),
            log,
        })
    }

    /// Sets the signer of consents.
    pub fn sign_with(&self, signer: Option<Signer>) {
        *lock(&self.signer) = signer.map(Arc::new);
    }

    /// Ends what outlasts runs, at the end of the agent.
    pub fn end(&self) {
        drop(lock(&self.responder).take());
        drop(lock(&self.paths).take());
        drop(lock(&self.budget).take());
        drop(lock(&self.egress).take());
    }

    /// Asks the controller at which addresses it sees those of this host. Blocks for a second if it does not answer.
    pub fn learn_mappings(&self, controller: IpAddr) {
        let locals: Vec<SocketAddr> = self
            .addresses()
            .into_iter()
            .filter(|ip| !ip.is_loopback())
            .map(|ip| SocketAddr::new(ip, 0))
            // An IPv6 address may not be usable yet.
            .filter(|at| UdpSocket::bind(at).is_ok())
            .collect();
        let probed = stun::probe(&locals, controller).unwrap_or_default();
        *lock(&self.mappings) = probed.iter().filter_map(ProbedAddress::mapping).collect();
    }

    /// Returns the addresses for flows: first those from which the controller is reached.
    fn preferred_addresses(&self) -> Vec<IpAddr> {
        let mut addresses = self.addresses();
        let mappings = lock(&self.mappings);
        addresses.sort_by_key(|address| mappings.iter().all(|mapping| mapping.address != *address));
        addresses
    }

    /// Checks an assignment against the policy. `consents` are those of the receivers it sends to; without
    /// them, the agent itself is request for its consents.
    fn check(
        &self,
        run: u64,
        assignment: &Assignment,
        router: &Result<Option<PeConfig>, OrderRefusal>,
        consents: Option<&[Consent]>,
    ) -> Result<(), OrderRefusal> {
        let here = interfaces();
        let interface_of =
            |own: IpAddr| here.iter().find(|(_, address)| *address == own).map(|(name, _)| name.as_str());
        let outgoing = OutgoingInterfaces::here(&self.policy);
        let duration = assignment.duration;
        let flows = assignment.flows.iter().map(|task| {
            let (own, other) = match (task.side, &task.transport) {
                (FlowSide::Receive, TaskTransport::Multicast { receiver: Some(receiver), .. }) => {
                    (*receiver, task.source.ip())
                }
                _ => {
                    let (local, remote) = task.local_and_remote();
                    (local.ip(), remote.ip())
                }
            };
            let is_dialogue = task.traffic.application().is_some();
            // A receiver confirms its consent, except to a group.
            let sends =
                task.side == FlowSide::Send || !matches!(task.transport, TaskTransport::Multicast { .. });
            let is_stamp = matches!(task.transport, TaskTransport::Stamp { .. });
            FlowRequest {
                sends,
                responds: task.side == FlowSide::Receive && (is_dialogue || is_stamp),
                load: sending::certain_load(task, duration),
                name: &task.name,
                role: self.direction(task, run, duration, consents.unwrap_or_default()),
                peer: other,
                interface: interface_of(own),
                egress_interface: outgoing.interface(own, other).filter(|_| sends),
            }
        });
        let trusted = self.known.trusted();
        let services = assignment.services.iter().map(|task| {
            let (own, other) = (task.local_endpoint().ip(), task.remote_endpoint());
            let terms = ConsentTerms::sent_by_service(run, task, duration);
            let agrees = |consent: &Consent| consent::covers(consent, &trusted, &terms);
            ServiceRequest {
                name: &task.name,
                kind: task.task.program().name(),
                has_consent: consents.is_none_or(|consents| consents.iter().any(agrees)),
                peer: other.ip(),
                interface: interface_of(own),
                egress_interface: outgoing.interface(own, other.ip()),
            }
        });
        let router = router.as_ref().map_err(Clone::clone)?;
        if consents.is_none() {
            ConsentTerms::received(run, assignment).try_for_each(|terms| owns(terms.destination.ip()))?;
        }
        if let Some(other) = assignment.watch.iter().find(|watched| !is_own_connection(watched, assignment)) {
            let reason = format!("{} is not a TCP flow that this agent sends in the run", other.subject);
            return Err(OrderRefusal::new(OrderRefusalKind::Assignment, reason));
        }
        self.check_found_paths(run, assignment)?;
        if let Some(why) = assignment.clocks.as_ref().and_then(|clocks| clock_violation(clocks, assignment)) {
            return Err(OrderRefusal::new(OrderRefusalKind::Assignment, why));
        }
        let request = RunRequest {
            controller: &self.controller,
            duration: assignment.duration,
            lease: assignment.lease,
            memory: assignment.memory_bytes(),
            is_enforced: self.is_enforced,
            budget: lock(&self.budget).as_ref().and_then(BudgetKeeper::left),
            router: router.as_ref().map(router_request),
            tcp_events: !assignment.watch.is_empty(),
            flows: flows.collect(),
            services: services.collect(),
        };
        self.policy
            .check(&request)
            .map_err(|(subject, refusal)| refusal.with_subject(subject.unwrap_or_default()))
    }

    /// Refuses flows on paths through NATs that this agent has not found itself.
    fn check_found_paths(&self, run: u64, assignment: &Assignment) -> Result<(), OrderRefusal> {
        let paths = lock(&self.paths);
        let is_found = |task: &FlowTask| paths.as_ref().is_some_and(|paths| paths.confirms(run, task));
        match assignment.flows.iter().find(|task| task.nat.is_some() && !is_found(task)) {
            Some(task) => {
                let reason =
                    "this agent has not found the path of the flow through NATs within the last minute";
                Err(OrderRefusal::new(OrderRefusalKind::Policy, reason).flow(&task.name))
            }
            None => Ok(()),
        }
    }

    fn direction(&self, flow: &FlowTask, run: u64, duration: Duration, consents: &[Consent]) -> FlowRole {
        if flow.side == FlowSide::Receive {
            return FlowRole::Receive;
        }
        let one_ended =
            matches!(flow.transport, TaskTransport::IcmpEcho(_) | TaskTransport::UdpUnreachable(_));
        let terms = ConsentTerms::of_flow(run, flow, duration);
        let trusted = self.known.trusted();
        let covers = |consent: &Consent| consent::covers(consent, &trusted, &terms);
        FlowRole::Send {
            rate: sending::rate(flow, self.is_enforced),
            has_consent: !one_ended && consents.iter().any(covers),
            one_ended,
            spins: flow.spins(),
        }
    }

    /// Checks a request, and logs the outcome.
    fn check_and_log(
        &self,
        what: &str,
        run: u64,
        assignment: &Assignment,
        consents: Option<&[Consent]>,
    ) -> Result<(), OrderRefusal> {
        let router = assignment.edge.as_ref().map(router).transpose();
        let result = self.check(run, assignment, &router, consents);
        self.log_decision(what, run, assignment, router.ok().flatten().as_ref(), result.as_ref().err());
        result
    }

    /// Logs the packets that the kernel has dropped since the last call.
    fn log_drops(&self) {
        let drops = self.drops();
        let before = std::mem::replace(&mut *lock(&self.logged_drops), drops.clone());
        let new = PolicyDrops::since(drops, &before);
        let count = |drops: &PolicyDrops| format!("{} by `{}`", drops.tcp + drops.other, drops.rule);
        let dropped = new.iter().filter(|drops| drops.tcp + drops.other > 0);
        let counts: Vec<String> = dropped.map(count).collect();
        if !counts.is_empty() {
            let counts = counts.join(", ");
            (self.log)(Level::Alarm, &format!("packets of earlier runs dropped by the policy: {counts}"));
        }
    }

    fn log_decision(
        &self,
        what: &str,
        run: u64,
        assignment: &Assignment,
        router: Option<&PeConfig>,
        refusal: Option<&OrderRefusal>,
    ) {
        let (flows, duration) = (assignment.flows.len(), assignment.duration.as_secs_f64());
        let number = run_number(run);
        let router = router.map_or(String::new(), |router| {
            format!(", router on {}", router_request(router).interfaces.join(", "))
        });
        let events = if !assignment.watch.is_empty() { ", TCP window watch" } else { "" };
        let services = assignment.services.iter().map(|task| {
            let what = if task.role == ServiceRole::Server { "server" } else { "client" };
            format!(", {} {what}", task.task.program().name())
        });
        let services: String = services.collect();
        let request = format!(
            "controller {} requests {what} run {number} as {}: {flows} flows{services}{router}{events}, {duration} s",
            self.controller, assignment.node
        );
        match refusal {
            None => {
                count(&self.counts.accepted);
                (self.log)(Level::Note, &format!("{request}; accepted"));
            }
            Some(refusal) => {
                count(&self.counts.refused);
                (self.log)(Level::Alarm, &format!("{request}; refused: {refusal}"));
            }
        }
    }
}

impl RunGuard for PolicyGuard {
    fn greeted(&self, starts: &[String], changes: &[u64], authority: &str) -> Result<(), String> {
        self.known.greeted(starts, changes, authority)
    }

    fn taken(&self, peer: ConnectionAddresses) {
        (self.log)(Level::Note, &format!("acquired by controller {} at {}", self.controller, peer.remote));
    }

    fn left_alone(&self, left: std::time::Duration) {
        let message = format!(
            "connection to controller {} lost; the run continues for {:.0} s without it",
            self.controller,
            left.as_secs_f64()
        );
        (self.log)(Level::Alarm, &message);
    }

    fn prepare(
        &self,
        run: u64,
        assignment: &mut Assignment,
        consents: &[Consent],
        _peer: ConnectionAddresses,
    ) -> Result<(), OrderRefusal> {
        self.check_and_log("preparation of", run, assignment, Some(consents))?;
        *lock(&self.consents) = consents.to_vec();
        if let Some(paths) = &mut *lock(&self.paths) {
            paths.end_checks();
        }
        Ok(())
    }

    fn confirm(&self, run: u64, assignment: &Assignment, stop: &AtomicBool) -> Result<(), OrderRefusal> {
        let consents = std::mem::take(&mut *lock(&self.consents));
        let sent: Vec<ConsentTerms> = ConsentTerms::sent(run, assignment).collect();
        let trusted = self.known.trusted();
        // Terms and consent of all flows between two addresses.
        let mut pairs = BTreeMap::<(IpAddr, IpAddr, &[u8]), (Vec<&ConsentTerms>, &Consent)>::new();
        for terms in sent.iter().filter(|terms| terms.needs_confirmation()) {
            // One-ended flows have no consent.
            let covers = |consent: &&Consent| consent::covers(consent, &trusted, terms);
            let Some(consent) = consents.iter().find(covers) else { continue };
            let pair = (terms.source, terms.destination.ip(), consent.certificate.as_slice());
            pairs.entry(pair).or_insert_with(|| (Vec::new(), consent)).0.push(terms);
        }
        let before = self.drops();
        for (terms, consent) in pairs.values() {
            confirmation::ask(terms, consent, stop).map_err(|reason| {
                let drops = PolicyDrops::since(self.drops(), &before);
                if let Some(rules) = PolicyDrops::refusing_rules(&drops) {
                    let reason = format!("{reason}: this agent's policy dropped the question by {rules}");
                    return OrderRefusal::new(OrderRefusalKind::Policy, reason).remedy(
                        "change the rule in the policy, or wait for the next day (UTC) if it limits a day",
                    );
                }
                let (first, last) = (confirmation::PORTS.start(), confirmation::PORTS.end());
                OrderRefusal::new(OrderRefusalKind::Policy, reason).remedy(format!(
                    "run an agent on that host, and open UDP ports {first} to {last} there for this one"
                ))
            })?;
        }
        Ok(())
    }

    fn confine(&self) -> Result<(), OrderRefusal> {
        if !self.is_enforced {
            return Ok(());
        }
        let Some(egress) = lock(&self.egress).clone() else {
            return Err(OrderRefusal::new(OrderRefusalKind::System, "the agent is about to end"));
        };
        self.log_drops();
        egress.enter().map_err(|error| {
            let reason = format!("the kernel cannot enforce the policy: {error}");
            OrderRefusal::new(OrderRefusalKind::System, reason)
        })
    }

    fn drops(&self) -> Vec<PolicyDrops> {
        let egress = lock(&self.egress).clone();
        egress.map(|egress| sending::drops(&self.policy, egress.drops())).unwrap_or_default()
    }

    fn could_not_prepare(&self, run: u64, refusal: &OrderRefusal) {
        (self.log)(Level::Alarm, &format!("cannot prepare run {}: {refusal}", run_number(run)));
    }

    fn agree(self: Arc<Self>, run: u64, assignment: &Assignment) -> Result<Vec<Consent>, OrderRefusal> {
        let received = assignment.flows.iter().filter(|flow| flow.side == FlowSide::Receive).cloned();
        let received = Assignment { flows: received.collect(), clocks: None, ..assignment.clone() };
        self.check_and_log("consent to", run, &received, None)?;
        let Some(signer) = lock(&self.signer).clone() else { return Ok(Vec::new()) };
        let terms: Vec<ConsentTerms> = ConsentTerms::received(run, &received).collect();
        let sign = |terms: &ConsentTerms| Some((terms.destination.ip(), signer.consent(terms)?));
        let signed: Vec<(IpAddr, Consent)> = terms.iter().filter_map(sign).collect();
        let guard = Arc::clone(&self);
        // Its ports are free again once it has ended.
        drop(lock(&self.responder).take());
        let responder = ConsentResponder::start(terms, &signer, move || guard.confine().is_ok());
        let responder = responder.map_err(|error| {
            OrderRefusal::new(OrderRefusalKind::System, format!("cannot confirm consents: {error}"))
        })?;
        let with_port = |(address, consent): (IpAddr, Consent)| {
            let confirmation_port = responder.port(address).unwrap_or(0).into();
            Consent { confirmation_port, ..consent }
        };
        let consents = signed.into_iter().map(with_port).collect();
        *lock(&self.responder) = Some(responder);
        Ok(consents)
    }

    fn open_paths(
        &self,
        run: u64,
        search: PathSearch,
        controller: IpAddr,
    ) -> Result<Vec<PathAddresses>, OrderRefusal> {
        let what = format!(
            "controller {} requests a search for the paths of {} flows of run {}",
            self.controller,
            search.flows.len(),
            run_number(run)
        );
        let opened = self.policy.check_controller(&self.controller).and_then(|()| {
            // Ports of the previous search are free again once it has ended.
            drop(lock(&self.paths).take());
            PathSession::open(run, search, &self.preferred_addresses(), controller)
        });
        let refusal = opened.as_ref().err();
        match refusal {
            None => (self.log)(Level::Note, &format!("{what}; accepted")),
            Some(refusal) => (self.log)(Level::Alarm, &format!("{what}; refused: {refusal}")),
        }
        let (session, addresses) = opened?;
        *lock(&self.paths) = Some(session);
        Ok(addresses)
    }

    fn check_paths(
        self: Arc<Self>,
        run: u64,
        peers: Vec<PathAddresses>,
    ) -> Result<Vec<FoundPath>, OrderRefusal> {
        let system = |error: io::Error| OrderRefusal::new(OrderRefusalKind::System, error.to_string());
        let guard = Arc::clone(&self);
        let enter = move || {
            guard.confine().ok()?;
            let outgoing = OutgoingInterfaces::here(&guard.policy);
            Some(move |from: IpAddr, to: IpAddr| guard.policy.permits(to, outgoing.interface(from, to)))
        };
        self.search_pace.wait();
        let found = match &mut *lock(&self.paths) {
            Some(paths) if paths.run() == run => paths.check(&peers, enter).map_err(system)?,
            _ => {
                let reason = format!("no search for the paths of run {} has begun", run_number(run));
                return Err(OrderRefusal::new(OrderRefusalKind::Order, reason));
            }
        };
        let found = found.recv().map_err(|_| {
            let reason = "the search for paths ended early: the kernel cannot enforce the policy, or another search began";
            OrderRefusal::new(OrderRefusalKind::System, reason)
        })?;
        if let Some(paths) = lock(&self.paths).as_mut().filter(|paths| paths.run() == run) {
            paths.set_found(found.clone());
        }
        Ok(found)
    }

    fn mappings(&self) -> Vec<wire::NatMapping> {
        let mappings = lock(&self.mappings);
        let message = |mapping: &NatMapping| wire::NatMapping {
            address: mapping.address.to_string(),
            mapped: mapping.mapped.to_string(),
            varies: mapping.varies,
        };
        mappings.iter().map(message).collect()
    }

    fn capabilities(&self) -> Vec<String> {
        let allowed =
            |program: &ServiceProgram| self.policy.services.iter().any(|name| name == program.name());
        let services = ServiceProgram::ALL.into_iter().filter(allowed).map(services::capability);
        services.chain(announced(&self.policy, self.is_enforced)).collect()
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let allowed =
            |name: &String| self.policy.interfaces.as_ref().is_none_or(|names| names.contains(name));
        interfaces().into_iter().filter(|(name, _)| allowed(name)).map(|(_, address)| address).collect()
    }
}

/// Prefix of a capability that announces a rule of the policy.
const RULE_PREFIX: &str = "policy.";
/// Maximum number of announced values of one rule.
const MAX_VALUES: usize = 16;

/// Returns the rules of a policy as capabilities, each with its value. Lists have an entry for each value.
fn announced(policy: &Policy, is_enforced: bool) -> Vec<String> {
    let mut rules = Vec::new();
    let mut add = |rule: &str, value: String| rules.push(format!("{RULE_PREFIX}{rule} {value}"));
    let list = |values: Option<Vec<String>>| match values {
        None => vec!["any".to_owned()],
        Some(values) if values.is_empty() => vec!["none".to_owned()],
        Some(mut values) => {
            let more = values.len().saturating_sub(MAX_VALUES);
            values.truncate(MAX_VALUES);
            values.extend((more > 0).then(|| format!("and {more} more")));
            values
        }
    };
    let prefixes = |all: &Vec<_>| all.iter().map(ToString::to_string).collect();
    // The first rules are announced however many there are. A controller requires this one for runs with a lease.
    add("max_lease", format!("{} s", policy.max_lease().as_secs_f64()));
    for (rule, values) in [
        ("controllers", list(policy.controllers.clone())),
        ("destinations", list(policy.destinations.as_ref().map(prefixes))),
        ("interfaces", list(policy.interfaces.clone())),
        ("services", list(Some(policy.services.clone()))),
    ] {
        values.into_iter().for_each(|value| add(rule, value));
    }
    let unlimited = || "unlimited".to_owned();
    add("rate", policy.rate.map_or_else(unlimited, |rate| rate.to_string()));
    add("bytes_per_day", policy.bytes_per_day.map_or_else(unlimited, |bytes| format!("{bytes} B")));
    add("memory", format!("{} B", policy.max_memory()));
    let longest = policy.max_duration.map(|longest| format!("{} s", longest.as_secs_f64()));
    add("max_duration", longest.unwrap_or_else(unlimited));
    for (rule, is_allowed) in [
        ("one_ended", policy.one_ended),
        ("spin", policy.spin),
        ("routers", policy.routers),
        ("tcp_events", policy.tcp_events),
    ] {
        add(rule, is_allowed.to_string());
    }
    add("enforced-by", if is_enforced { "kernel" } else { "agent" }.into());
    rules
}

/// Parses a capability that announces a rule. Returns the rule and its value.
pub fn rule_of_capability(capability: &str) -> Option<(&str, &str)> {
    capability.strip_prefix(RULE_PREFIX)?.split_once(' ')
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refuses a receiver's address that this host does not have.
fn owns(address: IpAddr) -> Result<(), OrderRefusal> {
    let is_here = || all_addresses().iter().any(|(_, own)| *own == address);
    if address.is_multicast() || address.is_loopback() || is_here() {
        return Ok(());
    }
    let reason = format!("{address} is no address of this host, which consents for its own addresses only");
    Err(OrderRefusal::new(OrderRefusalKind::Policy, reason)
        .remedy("set an address of this host for the node in [place]"))
}

/// Has the kernel enforce what the policy limits, if it can.
fn enforce(policy: &Policy, log: &Log) -> Option<EgressGroup> {
    let limits = EgressLimits {
        rate: policy.rate,
        destinations: policy.destinations.clone(),
        interfaces: policy.interfaces.clone(),
        has_budget: policy.bytes_per_day.is_some(),
    };
    if limits == EgressLimits::default() {
        return None;
    }
    EgressGroup::create(limits).inspect_err(|error| log_not_enforced(log, error)).ok()
}

fn log_not_enforced(log: &Log, error: &BpfError) {
    let refused = "traffic without a constant rate, and programs of services, are refused";
    log(Level::Alarm, &format!("{error}, so the kernel does not enforce the policy; {refused}"));
}

/// Parses the configuration of the requested router. Features that a run does not need, but that affect this
/// host, are refused.
fn router(task: &EdgeTask) -> Result<PeConfig, OrderRefusal> {
    let refused = |reason: String| OrderRefusal::new(OrderRefusalKind::Assignment, reason);
    let router = pe::parse("pe.toml", &task.configuration).map_err(|errors| refused(errors.to_string()))?;
    let reads_files = router.peers.iter().any(|peer| !peer.keys.is_empty());
    if reads_files || router.metrics.is_some() {
        return Err(refused("keys and metrics are not supported in the router of a run".into()));
    }
    Ok(router)
}

/// Reports whether the watched connection belongs to the assignment. Connections of other programs must not
/// be observed.
fn is_own_connection(watched: &FlowSpec, assignment: &Assignment) -> bool {
    let is_service = assignment.services.iter().any(|task| {
        let server = SocketAddr::new(task.destination.ip(), task.data_port());
        let (client, server) = (WatchedEndpoint::any(task.source), WatchedEndpoint::at(server));
        let ends = if task.role == ServiceRole::Client { (client, server) } else { (server, client) };
        (watched.source, watched.destination) == ends
    });
    let is_flow = assignment.flows.iter().any(|task| {
        let (client, server) =
            (WatchedEndpoint::any(task.source.ip()), WatchedEndpoint::at(task.destination));
        let ends = match task.side {
            FlowSide::Send => (client, server),
            FlowSide::Receive => (server, client),
        };
        matches!(task.transport, TaskTransport::Tcp(_)) && (watched.source, watched.destination) == ends
    });
    is_flow || is_service
}

/// Returns an error if a clock comparison involves addresses without flows. Packets are sent only between
/// hosts that have consented to flows.
fn clock_violation(clocks: &ClockTask, assignment: &Assignment) -> Option<String> {
    let flows = |side: FlowSide| assignment.flows.iter().filter(move |flow| flow.side == side);
    let is_received =
        |at: &&SocketAddr| flows(FlowSide::Receive).any(|flow| flow.destination.ip() == at.ip());
    let is_sent = |(from, to): &&(SocketAddr, SocketAddr)| {
        flows(FlowSide::Send).any(|flow| (flow.source.ip(), flow.destination.ip()) == (from.ip(), to.ip()))
    };
    let mut all = clocks.answers.iter().chain(clocks.asks.iter().map(|(_, to)| to));
    if let Some(group) = all.clone().find(|at| at.ip().is_multicast()) {
        return Some(format!("clock comparison at {group}, which is a group of hosts"));
    }
    if let Some(at) = clocks.answers.iter().find(|at| !is_received(at)) {
        Some(format!("clock comparison at {at}, where this agent receives no flow"))
    } else if let Some((_, to)) = clocks.asks.iter().find(|ends| !is_sent(ends)) {
        Some(format!("clock comparison with {to}, to which this agent sends no flow"))
    } else if clocks.asks.len() > MAX_CLOCK_PEERS {
        Some(format!("{} clock comparisons exceed the limit of {MAX_CLOCK_PEERS}", clocks.asks.len()))
    } else {
        let reserved = all.find(|at| at.port() < FIRST_PORT);
        reserved.map(|at| format!("clock comparison at {at}, whose port is reserved for the system"))
    }
}

/// Returns the interfaces, peers and customers of a router.
fn router_request(router: &PeConfig) -> RouterRequest<'_> {
    let circuits = router.circuits.iter().map(|circuit| &circuit.interface);
    let peers = router.peers.iter().map(|peer| match peer.tunnel {
        PeerTunnel::MplsInUdp { to, .. } => to,
        PeerTunnel::Mpls { next_hop, .. } => next_hop,
    });
    let links = router.circuits.iter().flat_map(CircuitConfig::links);
    let behind = router.circuits.iter().flat_map(|circuit| circuit.routes.iter().map(|(prefix, _)| *prefix));
    let customers = links.chain(behind);
    RouterRequest {
        interfaces: router.core.iter().chain(circuits).map(String::as_str).collect(),
        peers: peers.collect(),
        customers: customers.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::quantity::BitRate;
    use netstage_core::traffic::Pattern;

    /// Returns an assignment in which 10.0.0.1 sends to 10.0.0.2 and receives from it.
    fn assignment() -> Assignment {
        let flow = |side, source: &str, destination: &str| {
            FlowTask::udp(
                "voice",
                side,
                [source, destination].map(|end| end.parse().unwrap()),
                Pattern::Cbr { rate: BitRate(1_000_000), packet: 100 },
                Duration::from_secs(1),
            )
        };
        let flows = vec![
            flow(FlowSide::Send, "10.0.0.1:0", "10.0.0.2:5001"),
            flow(FlowSide::Receive, "10.0.0.2:0", "10.0.0.1:5001"),
        ];
        Assignment::of_flows("a", Duration::from_secs(1), Duration::from_millis(100), flows)
    }

    #[test]
    fn clocks_are_compared_only_between_hosts_with_flows() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let clock_violation = |answers: &[&str], asks: &[(&str, &str)]| {
            let answers = answers.iter().map(|address| at(address)).collect();
            let asks = asks.iter().map(|(from, to)| (at(from), at(to))).collect();
            super::clock_violation(&ClockTask { key: String::new(), answers, asks }, &assignment())
        };
        let own = ("10.0.0.1:0", "10.0.0.2:4704");
        assert_eq!(clock_violation(&["10.0.0.1:4704"], &[own]), None);
        for (answers, asks, why) in [
            (&["10.0.0.2:4704"][..], &[][..], "where this agent receives no flow"),
            (&[], &[("10.0.0.1:0", "10.0.0.9:4704")], "to which this agent sends no flow"),
            (&[], &[("10.0.0.7:0", "10.0.0.2:4704")], "to which this agent sends no flow"),
            (&[], &[("10.0.0.1:0", "10.0.0.2:53")], "reserved for the system"),
            (&["10.0.0.1:22"], &[], "reserved for the system"),
            (&[], &[("10.0.0.1:0", "239.192.0.5:4704")], "a group of hosts"),
            (&[], &[own; MAX_CLOCK_PEERS + 1], "65 clock comparisons exceed"),
        ] {
            let reason = clock_violation(answers, asks).expect("the comparison is refused");
            assert!(reason.contains(why), "{reason}");
        }
    }
}
