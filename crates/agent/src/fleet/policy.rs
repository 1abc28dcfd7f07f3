//! Admission control of an agent of a fleet. It enforces the agent's policy, allows sending only with the
//! receiver's consent, and logs every request and its outcome.

use super::consent::{self, Signer};
use super::metrics::{AgentCounts, count};
use crate::services;
use crate::{FIRST_PORT, RunGuard};
use netstage_agent_api::protocol::generated::Consent;
use netstage_agent_api::protocol::{OrderRefusal, OrderRefusalKind};
use netstage_agent_api::service::ServiceRole;
use netstage_agent_api::task::{
    Assignment, ClockTask, EdgeTask, FlowSide, FlowTask, MAX_CLOCK_PEERS, TaskTransport,
};
use netstage_agent_api::watch::{FlowSpec, WatchedEndpoint};
use netstage_core::fleet::{FlowRequest, FlowRole, Policy, RouterRequest, RunRequest, ServiceRequest};
use netstage_host::log::{Level, Log};
use netstage_host::netns::netlink::Netlink;
use netstage_host::shared_key::ConnectionAddresses;
use netstage_scenario::pe::{self, PeConfig, PeerTunnel};
use netstage_scenario::plan::ServiceProgram;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nameindex};
use rustls::pki_types::CertificateDer;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

/// Enforces the agent's policy on requests of the controller.
pub struct PolicyGuard {
    policy: Policy,
    controller: String,
    authority: CertificateDer<'static>,
    signer: Mutex<Option<Arc<Signer>>>,
    /// Counters of accepted and refused requests, and of connections.
    pub counts: AgentCounts,
    log: Log,
}

impl PolicyGuard {
    /// Returns the admission control for requests of this controller, in the fleet of this authority.
    pub fn new(
        policy: Policy,
        controller: &str,
        authority: CertificateDer<'static>,
        log: Log,
    ) -> PolicyGuard {
        PolicyGuard {
            policy,
            controller: controller.into(),
            authority,
            signer: Mutex::default(),
            counts: AgentCounts::default(),
            log,
        }
    }

    /// Sets the signer of consents.
    pub fn sign_with(&self, signer: Option<Signer>) {
        *self.signer.lock().unwrap_or_else(PoisonError::into_inner) = signer.map(Arc::new);
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
        let flows = assignment.flows.iter().map(|task| {
            let (own, other) = match (task.side, &task.transport) {
                (FlowSide::Send, _) => (task.source.ip(), task.destination.ip()),
                (FlowSide::Receive, TaskTransport::Multicast { receiver: Some(receiver), .. }) => {
                    (*receiver, task.source.ip())
                }
                (FlowSide::Receive, _) => (task.destination.ip(), task.source.ip()),
            };
            let answers = !matches!(task.transport, TaskTransport::Udp(_) | TaskTransport::Multicast { .. });
            let sends = answers || task.side == FlowSide::Send || task.traffic.application().is_some();
            FlowRequest {
                name: &task.name,
                role: self.direction(task, run, consents.unwrap_or_default()),
                peer: other,
                interface: interface_of(own),
                egress_interface: outgoing.interface(own, other).filter(|_| sends),
            }
        });
        let services = assignment.services.iter().map(|task| {
            let (own, other) = (task.local_endpoint().ip(), task.remote_endpoint());
            let agrees = |consent: &Consent| consent::covers(consent, &self.authority, run, task.id, other);
            ServiceRequest {
                name: &task.name,
                kind: task.task.program().name(),
                is_server: task.role == ServiceRole::Server,
                has_consent: consents.is_none_or(|consents| consents.iter().any(agrees)),
                peer: other.ip(),
                interface: interface_of(own),
                egress_interface: outgoing.interface(own, other.ip()),
            }
        });
        let router = router.as_ref().map_err(Clone::clone)?;
        if let Some(other) = assignment.watch.iter().find(|watched| !is_own_connection(watched, assignment)) {
            let reason = format!("{} is not a TCP flow that this agent sends in the run", other.subject);
            return Err(OrderRefusal::new(OrderRefusalKind::Assignment, reason));
        }
        if let Some(why) = assignment.clocks.as_ref().and_then(|clocks| clock_violation(clocks, assignment)) {
            return Err(OrderRefusal::new(OrderRefusalKind::Assignment, why));
        }
        let request = RunRequest {
            controller: &self.controller,
            duration: assignment.duration,
            router: router.as_ref().map(router_request),
            tcp_events: !assignment.watch.is_empty(),
            flows: flows.collect(),
            services: services.collect(),
        };
        self.policy
            .check(&request)
            .map_err(|(subject, refusal)| refusal.with_subject(subject.unwrap_or_default()))
    }

    fn direction(&self, flow: &FlowTask, run: u64, consents: &[Consent]) -> FlowRole {
        if flow.side == FlowSide::Receive {
            return FlowRole::Receive;
        }
        let one_ended =
            matches!(flow.transport, TaskTransport::IcmpEcho(_) | TaskTransport::UdpUnreachable(_));
        let covers =
            |consent: &Consent| consent::covers(consent, &self.authority, run, flow.id, flow.destination);
        FlowRole::Send {
            rate: flow.traffic.pattern().and_then(|pattern| pattern.mean_rate()),
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

    fn log_decision(
        &self,
        what: &str,
        run: u64,
        assignment: &Assignment,
        router: Option<&PeConfig>,
        refusal: Option<&OrderRefusal>,
    ) {
        let (flows, duration) = (assignment.flows.len(), assignment.duration.as_secs_f64());
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
            "controller {} requests {what} run {run} as {}: {flows} flows{services}{router}{events}, {duration} s",
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
    fn taken(&self, peer: ConnectionAddresses) {
        (self.log)(Level::Note, &format!("acquired by controller {} at {}", self.controller, peer.remote));
    }

    fn prepare(
        &self,
        run: u64,
        assignment: &mut Assignment,
        consents: &[Consent],
        _peer: ConnectionAddresses,
    ) -> Result<(), OrderRefusal> {
        self.check_and_log("preparation of", run, assignment, Some(consents))
    }

    fn could_not_prepare(&self, run: u64, refusal: &OrderRefusal) {
        (self.log)(Level::Alarm, &format!("cannot prepare run {run}: {refusal}"));
    }

    fn agree(&self, run: u64, assignment: &Assignment) -> Result<Vec<Consent>, OrderRefusal> {
        let received = assignment.flows.iter().filter(|flow| flow.side == FlowSide::Receive).cloned();
        let received = Assignment { flows: received.collect(), clocks: None, ..assignment.clone() };
        self.check_and_log("consent to", run, &received, None)?;
        let signer = self.signer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(signer.map(|signer| signer.consents(run, &received)).unwrap_or_default())
    }

    fn capabilities(&self) -> Vec<String> {
        let allowed =
            |program: &ServiceProgram| self.policy.services.iter().any(|name| name == program.name());
        ServiceProgram::ALL.into_iter().filter(allowed).map(services::capability).collect()
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let allowed =
            |name: &String| self.policy.interfaces.as_ref().is_none_or(|names| names.contains(name));
        interfaces().into_iter().filter(|(name, _)| allowed(name)).map(|(_, address)| address).collect()
    }
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

/// Returns the interfaces and peers of a router.
fn router_request(router: &PeConfig) -> RouterRequest<'_> {
    let circuits = router.circuits.iter().map(|circuit| &circuit.interface);
    let peers = router.peers.iter().map(|peer| match peer.tunnel {
        PeerTunnel::MplsInUdp { to, .. } => to,
        PeerTunnel::Mpls { next_hop, .. } => next_hop,
    });
    RouterRequest {
        interfaces: router.core.iter().chain(circuits).map(String::as_str).collect(),
        peers: peers.collect(),
    }
}

/// Returns the addresses of the interfaces that are up, without link-local ones; those of loopback last.
fn interfaces() -> Vec<(String, IpAddr)> {
    let Ok(all) = getifaddrs() else { return Vec::new() };
    let is_routable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    };
    let found = all.filter(|one| one.flags.contains(InterfaceFlags::IFF_UP)).filter_map(|one| {
        let storage = one.address?;
        let address = storage
            .as_sockaddr_in()
            .map(|v4| IpAddr::from(v4.ip()))
            .or_else(|| storage.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))?;
        is_routable(&address).then_some((one.interface_name, address))
    });
    let mut found: Vec<(String, IpAddr)> = found.collect();
    found.sort_by_key(|(_, address)| address.is_loopback());
    found
}

/// Outgoing interfaces according to the kernel's routes. Empty if the policy does not restrict interfaces.
struct OutgoingInterfaces {
    routes: Option<RefCell<Netlink>>,
    /// Names of interfaces, by index.
    names: BTreeMap<u32, String>,
}

impl OutgoingInterfaces {
    fn here(policy: &Policy) -> OutgoingInterfaces {
        let routes = policy
            .interfaces
            .as_ref()
            .and_then(|_| Netlink::open_in_current_namespace().ok())
            .map(RefCell::new);
        let all = if_nameindex();
        let names = all.iter().flat_map(|all| all.iter());
        let names = names.map(|one| (one.index(), one.name().to_string_lossy().into_owned())).collect();
        OutgoingInterfaces { routes, names }
    }

    fn interface(&self, from: IpAddr, to: IpAddr) -> Option<&str> {
        let way = self.routes.as_ref()?.borrow_mut().route_to(to, Some(from)).ok()??;
        self.names.get(&way.link).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::quantity::BitRate;
    use netstage_core::time::Duration;
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
            (&[], &[own; MAX_CLOCK_PEERS + 1], "65 clock comparisons exceed"),
        ] {
            let reason = clock_violation(answers, asks).expect("the comparison is refused");
            assert!(reason.contains(why), "{reason}");
        }
    }
}
