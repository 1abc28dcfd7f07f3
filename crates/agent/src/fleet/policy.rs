//! Admission control of an agent of a fleet. It enforces the agent's policy, allows sending only with the
//! receiver's consent, and logs every request and its outcome.

use super::consent::{self, Signer};
use super::metrics::{AgentCounts, count};
use crate::services;
use crate::{FIRST_PORT, Guard};
use netstage_agent_api::protocol::generated::Consent;
use netstage_agent_api::protocol::{Refusal, RefusalKind};
use netstage_agent_api::service::Role;
use netstage_agent_api::task::{Assignment, ClockTask, EdgeTask, FlowTask, MOST_ASKED, Side, Transport};
use netstage_agent_api::watch::{End, FlowSpec};
use netstage_core::fleet::{FlowRequest, Means, Policy, Request, RouterRequest, ServiceRequest};
use netstage_host::keyed::Peer;
use netstage_host::log::{Level, Log};
use netstage_host::netns::netlink::Netlink;
use netstage_scenario::pe::{self, Router, Tunnel};
use netstage_scenario::plan::Program;
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
        router: &Result<Option<Router>, Refusal>,
        consents: Option<&[Consent]>,
    ) -> Result<(), Refusal> {
        let here = interfaces();
        let interface_of =
            |own: IpAddr| here.iter().find(|(_, address)| *address == own).map(|(name, _)| name.as_str());
        let outgoing = Ways::here(&self.policy);
        let flows = assignment.flows.iter().map(|task| {
            let (own, other) = match (task.side, &task.transport) {
                (Side::Send, _) => (task.source.ip(), task.destination.ip()),
                (Side::Receive, Transport::Multicast { receiver: Some(receiver), .. }) => {
                    (*receiver, task.source.ip())
                }
                (Side::Receive, _) => (task.destination.ip(), task.source.ip()),
            };
            let answers = !matches!(task.transport, Transport::Udp(_) | Transport::Multicast { .. });
            let sends = answers || task.side == Side::Send || task.traffic.application().is_some();
            FlowRequest {
                name: &task.name,
                means: self.direction(task, run, consents.unwrap_or_default()),
                other,
                interface: interface_of(own),
                leaves_by: outgoing.interface(own, other).filter(|_| sends),
            }
        });
        let services = assignment.services.iter().map(|task| {
            let (own, other) = (task.own().ip(), task.other());
            let agrees = |consent: &Consent| consent::covers(consent, &self.authority, run, task.id, other);
            ServiceRequest {
                name: &task.name,
                kind: task.task.program().name(),
                serves: task.role == Role::Server,
                agreed: consents.is_none_or(|consents| consents.iter().any(agrees)),
                other: other.ip(),
                interface: interface_of(own),
                leaves_by: outgoing.interface(own, other.ip()),
            }
        });
        let router = router.as_ref().map_err(Clone::clone)?;
        if let Some(other) = assignment.watch.iter().find(|watched| !is_own_connection(watched, assignment)) {
            let reason = format!("{} is not a TCP flow that this agent sends in the run", other.subject);
            return Err(Refusal::new(RefusalKind::Assignment, reason));
        }
        if let Some(why) = assignment.clocks.as_ref().and_then(|clocks| clock_violation(clocks, assignment)) {
            return Err(Refusal::new(RefusalKind::Assignment, why));
        }
        let request = Request {
            controller: &self.controller,
            duration: assignment.duration,
            router: router.as_ref().map(router_request),
            tcp_events: !assignment.watch.is_empty(),
            flows: flows.collect(),
            services: services.collect(),
        };
        self.policy.check(&request).map_err(|(subject, refusal)| refusal.of(subject.unwrap_or_default()))
    }

    fn direction(&self, flow: &FlowTask, run: u64, consents: &[Consent]) -> Means {
        if flow.side == Side::Receive {
            return Means::Receive;
        }
        let one_ended = matches!(flow.transport, Transport::IcmpEcho(_) | Transport::UdpUnreachable(_));
        let covers =
            |consent: &Consent| consent::covers(consent, &self.authority, run, flow.id, flow.destination);
        Means::Send {
            rate: flow.traffic.pattern().and_then(|pattern| pattern.mean_rate()),
            agreed: !one_ended && consents.iter().any(covers),
            one_ended,
        }
    }

    /// Checks a request, and logs the outcome.
    fn check_and_log(
        &self,
        what: &str,
        run: u64,
        assignment: &Assignment,
        consents: Option<&[Consent]>,
    ) -> Result<(), Refusal> {
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
        router: Option<&Router>,
        refusal: Option<&Refusal>,
    ) {
        let (flows, duration) = (assignment.flows.len(), assignment.duration.as_secs_f64());
        let router = router.map_or(String::new(), |router| {
            format!(", router on {}", router_request(router).interfaces.join(", "))
        });
        let events = if !assignment.watch.is_empty() { ", TCP window watch" } else { "" };
        let services = assignment.services.iter().map(|task| {
            let what = if task.role == Role::Server { "server" } else { "client" };
            format!(", {} {what}", task.task.program().name())
        });
        let services: String = services.collect();
        let request = format!(
            "controller {} requests {what} run {run} as {}: {flows} flows{services}{router}{events}, {duration} s",
            self.controller, assignment.node
        );
        match refusal {
            None => {
                count(&self.counts.agreed);
                (self.log)(Level::Note, &format!("{request}; accepted"));
            }
            Some(refusal) => {
                count(&self.counts.refused);
                (self.log)(Level::Alarm, &format!("{request}; refused: {refusal}"));
            }
        }
    }
}

impl Guard for PolicyGuard {
    fn taken(&self, peer: Peer) {
        (self.log)(Level::Note, &format!("acquired by controller {} at {}", self.controller, peer.remote));
    }

    fn prepare(
        &self,
        run: u64,
        assignment: &mut Assignment,
        consents: &[Consent],
        _peer: Peer,
    ) -> Result<(), Refusal> {
        self.check_and_log("preparation of", run, assignment, Some(consents))
    }

    fn could_not_prepare(&self, run: u64, refusal: &Refusal) {
        (self.log)(Level::Alarm, &format!("cannot prepare run {run}: {refusal}"));
    }

    fn agree(&self, run: u64, assignment: &Assignment) -> Result<Vec<Consent>, Refusal> {
        let received = assignment.flows.iter().filter(|flow| flow.side == Side::Receive).cloned();
        let received = Assignment { flows: received.collect(), clocks: None, ..assignment.clone() };
        self.check_and_log("consent to", run, &received, None)?;
        let signer = self.signer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(signer.map(|signer| signer.consents(run, &received)).unwrap_or_default())
    }

    fn capabilities(&self) -> Vec<String> {
        let allowed = |program: &Program| self.policy.services.iter().any(|name| name == program.name());
        Program::ALL.into_iter().filter(allowed).map(services::capability).collect()
    }

    fn addresses(&self) -> Vec<IpAddr> {
        let allowed =
            |name: &String| self.policy.interfaces.as_ref().is_none_or(|names| names.contains(name));
        interfaces().into_iter().filter(|(name, _)| allowed(name)).map(|(_, address)| address).collect()
    }
}

/// Parses the configuration of the requested router. Features that a run does not need, but that affect this
/// host, are refused.
fn router(task: &EdgeTask) -> Result<Router, Refusal> {
    let refused = |reason: String| Refusal::new(RefusalKind::Assignment, reason);
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
        let (client, server) = (End::any(task.source), End::at(server));
        let ends = if task.role == Role::Client { (client, server) } else { (server, client) };
        (watched.source, watched.destination) == ends
    });
    let is_flow = assignment.flows.iter().any(|task| {
        let (client, server) = (End::any(task.source.ip()), End::at(task.destination));
        let ends = match task.side {
            Side::Send => (client, server),
            Side::Receive => (server, client),
        };
        matches!(task.transport, Transport::Tcp(_)) && (watched.source, watched.destination) == ends
    });
    is_flow || is_service
}

/// Returns an error if a clock comparison involves addresses without flows. Packets are sent only between
/// hosts that have consented to flows.
fn clock_violation(clocks: &ClockTask, assignment: &Assignment) -> Option<String> {
    let flows = |side: Side| assignment.flows.iter().filter(move |flow| flow.side == side);
    let is_received = |at: &&SocketAddr| flows(Side::Receive).any(|flow| flow.destination.ip() == at.ip());
    let is_sent = |(from, to): &&(SocketAddr, SocketAddr)| {
        flows(Side::Send).any(|flow| (flow.source.ip(), flow.destination.ip()) == (from.ip(), to.ip()))
    };
    let mut all = clocks.answers.iter().chain(clocks.asks.iter().map(|(_, to)| to));
    if let Some(at) = clocks.answers.iter().find(|at| !is_received(at)) {
        Some(format!("clock comparison at {at}, where this agent receives no flow"))
    } else if let Some((_, to)) = clocks.asks.iter().find(|ends| !is_sent(ends)) {
        Some(format!("clock comparison with {to}, to which this agent sends no flow"))
    } else if clocks.asks.len() > MOST_ASKED {
        Some(format!("{} clock comparisons exceed the limit of {MOST_ASKED}", clocks.asks.len()))
    } else {
        let reserved = all.find(|at| at.port() < FIRST_PORT);
        reserved.map(|at| format!("clock comparison at {at}, whose port is reserved for the system"))
    }
}

/// Returns the interfaces and peers of a router.
fn router_request(router: &Router) -> RouterRequest<'_> {
    let circuits = router.circuits.iter().map(|circuit| &circuit.interface);
    let peers = router.peers.iter().map(|peer| match peer.tunnel {
        Tunnel::MplsInUdp { to, .. } => to,
        Tunnel::Mpls { next_hop, .. } => next_hop,
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
struct Ways {
    routes: Option<RefCell<Netlink>>,
    /// Names of interfaces, by index.
    names: BTreeMap<u32, String>,
}

impl Ways {
    fn here(policy: &Policy) -> Ways {
        let routes = policy.interfaces.as_ref().and_then(|_| Netlink::open_here().ok()).map(RefCell::new);
        let all = if_nameindex();
        let names = all.iter().flat_map(|all| all.iter());
        let names = names.map(|one| (one.index(), one.name().to_string_lossy().into_owned())).collect();
        Ways { routes, names }
    }

    fn interface(&self, from: IpAddr, to: IpAddr) -> Option<&str> {
        let way = self.routes.as_ref()?.borrow_mut().way_to(to, Some(from)).ok()??;
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
            flow(Side::Send, "10.0.0.1:0", "10.0.0.2:5001"),
            flow(Side::Receive, "10.0.0.2:0", "10.0.0.1:5001"),
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
            (&[], &[own; MOST_ASKED + 1], "65 clock comparisons exceed"),
        ] {
            let reason = clock_violation(answers, asks).expect("the comparison is refused");
            assert!(reason.contains(why), "{reason}");
        }
    }
}
