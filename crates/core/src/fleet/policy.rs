//! Limits on what an agent does, regardless of the controller.

use super::{CertainLoad, DayBudget, OrderRefusal, OrderRefusalKind};
use crate::edge::IpPrefix;
use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

/// The limits of an agent. A missing limit means unlimited.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// Names of the controllers that may command the agent.
    pub controllers: Option<Vec<String>>,
    /// Maximum rate of everything it sends, in bits per second.
    pub rate: Option<BitRate>,
    /// Maximum number of bytes it sends per day.
    pub bytes_per_day: Option<u64>,
    /// Maximum memory of a run, bytes.
    pub memory: Option<u64>,
    /// Maximum duration of a run.
    pub max_duration: Option<Duration>,
    /// Maximum time for which a run may continue without its controller.
    pub max_lease: Option<Duration>,
    /// Prefixes it may send to.
    pub destinations: Option<Vec<IpPrefix>>,
    /// Interfaces it may send and receive on.
    pub interfaces: Option<Vec<String>>,
    /// Whether it may also send to hosts without their consent, as the one-ended transports do.
    pub one_ended: bool,
    /// Whether its senders may spin, each on a CPU of its own.
    pub spin: bool,
    /// Whether it may act as a provider edge router.
    pub routers: bool,
    /// Whether it may record TCP events of the kernel.
    pub tcp_events: bool,
    /// Kinds of services whose programs it may start, as client or server: `ftp`.
    pub services: Vec<String>,
}

/// Maximum memory of a run, bytes, unless a policy sets another.
pub const DEFAULT_MEMORY: u64 = 2 << 30;

/// Maximum time for which a run may continue without its controller, unless a policy sets another. A run
/// without a lease ends after this time, too.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(2);

/// Maximum share by which the rate of a request exceeds its intended rate. Gaps and payload rates are rounded.
const RATE_ERROR: f64 = 1e-4;

/// A request to an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRequest<'a> {
    /// Name of the controller.
    pub controller: &'a str,
    /// Duration of the run.
    pub duration: Duration,
    /// Time for which the run may continue without its controller, if it has a lease.
    pub lease: Option<Duration>,
    /// Upper bound of the memory that the run takes, bytes.
    pub memory: u64,
    /// Whether the kernel enforces rate, destinations and interfaces on every packet that the run sends.
    pub is_enforced: bool,
    /// Rest of `bytes_per_day`, if the policy limits it and the kernel counts the bytes.
    pub budget: Option<DayBudget>,
    /// The router the agent is to run, if any.
    pub router: Option<RouterRequest<'a>>,
    /// Whether the agent is to record TCP events of the flows it sends.
    pub tcp_events: bool,
    /// Flows that end at the agent.
    pub flows: Vec<FlowRequest<'a>>,
    /// Services that end at the agent.
    pub services: Vec<ServiceRequest<'a>>,
}

/// A router to be run by an agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouterRequest<'a> {
    /// Interfaces on which it receives and sends packets.
    pub interfaces: Vec<&'a str>,
    /// Addresses of the routers it sends to.
    pub peers: Vec<IpAddr>,
    /// Prefixes of the customers to which it forwards what other routers send.
    pub customers: Vec<IpPrefix>,
}

/// One end of a service, whose client and server are external programs that send as fast as they can.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceRequest<'a> {
    /// Name of the service.
    pub name: &'a str,
    /// Kind of the service.
    pub kind: &'a str,
    /// Whether the peer has given its consent.
    pub has_consent: bool,
    /// Address of the peer.
    pub peer: IpAddr,
    /// Interface that has this end's address, if known.
    pub interface: Option<&'a str>,
    /// Interface through which packets to the peer leave, if the routes determine one.
    pub egress_interface: Option<&'a str>,
}

/// One end of a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowRequest<'a> {
    /// Name of the flow.
    pub name: &'a str,
    /// Role of this end.
    pub role: FlowRole,
    /// This end sends to the peer: data, acknowledgments or answers.
    pub sends: bool,
    /// This end sends data at the request of the peer, as a server does.
    pub responds: bool,
    /// Lower bound of what this end sends, if it sends.
    pub load: CertainLoad,
    /// Address of the peer.
    pub peer: IpAddr,
    /// Interface that has this end's address, if known.
    pub interface: Option<&'a str>,
    /// Interface through which packets to the peer leave, if the routes determine one.
    pub egress_interface: Option<&'a str>,
}

/// Role of an agent in a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FlowRole {
    /// The agent receives.
    Receive,
    /// The agent sends.
    Send {
        /// Rate in bits per second, with the headers of IP and transport: the mean if the kernel enforces the limit,
        /// the peak otherwise; `None` to send as fast as possible.
        rate: Option<f64>,
        /// Whether the receiver has given its consent.
        has_consent: bool,
        /// Whether the transport has no receiver that could give its consent.
        one_ended: bool,
        /// Whether the sender spins on a CPU of its own.
        spins: bool,
    },
}

impl Policy {
    /// Checks a request. The error is the refusal and its subject: `flow NAME`, `service NAME`, or `None`
    /// for the whole run.
    pub fn check(&self, request: &RunRequest) -> Result<(), (Option<String>, OrderRefusal)> {
        let refuse_run = |reason: String, remedy: &str| Err((None, refuse(reason, remedy)));
        self.check_controller(request.controller).map_err(|refusal| (None, refusal))?;
        if self.bytes_per_day.is_some() && !request.is_enforced {
            return Err((None, not_enforced("any packet", "bytes_per_day")));
        }
        if let Some(longest) = self.max_duration.filter(|longest| request.duration > *longest) {
            let (asked, allowed) = (request.duration.as_secs_f64(), longest.as_secs_f64());
            let reason = format!("the run takes {asked} s; this agent's policy allows {allowed} s");
            return refuse_run(reason, "reduce `duration`, or raise `max_duration` in the policy");
        }
        if let Some(lease) = request.lease.filter(|lease| *lease > self.max_lease()) {
            let (asked, allowed) = (lease.as_secs_f64(), self.max_lease().as_secs_f64());
            let reason = format!(
                "the run may continue for {asked} s without its controller; this agent's policy allows {allowed} s"
            );
            return refuse_run(reason, "reduce `lease` in [scenario], or raise `max_lease` in the policy");
        }
        if request.memory > self.max_memory() {
            let reason = format!(
                "the run needs up to {} MB of memory; this agent's policy allows {} MB",
                request.memory.div_ceil(1_000_000),
                self.max_memory() / 1_000_000
            );
            return refuse_run(
                reason,
                "set a longer `interval` in [measure], use fewer flows, or raise `memory` in the policy",
            );
        }
        if let Some(router) = &request.router {
            self.router(router).map_err(|refusal| (None, refusal))?;
        }
        if request.tcp_events && !self.tcp_events {
            let reason = "this agent's policy does not allow recording TCP events";
            return refuse_run(
                reason.into(),
                "set `tcp_events = true` in the policy, or remove `tcp` from [measure]",
            );
        }
        let mut sent = 0.0;
        for flow in &request.flows {
            sent += self
                .flow(flow, request.is_enforced)
                .map_err(|refusal| (Some(format!("flow {}", flow.name)), refusal))?;
        }
        for service in &request.services {
            self.service(service, request.is_enforced)
                .map_err(|refusal| (Some(format!("service {}", service.name)), refusal))?;
        }
        if let Some(rate) = self.rate.filter(|rate| sent > rate.as_f64() * (1.0 + RATE_ERROR)) {
            let reason = format!(
                "the flows send {} in total with their IP and transport headers; this agent's policy allows {rate} with \
                 these headers",
                BitRate(sent as u64)
            );
            return refuse_run(reason, "reduce the rates, or raise `rate` in the policy");
        }
        self.day(request).map_err(|refusal| (None, refusal))
    }

    /// Checks the load of a run against what is left of the bytes of the day.
    fn day(&self, request: &RunRequest) -> Result<(), OrderRefusal> {
        let (Some(per_day), Some(budget)) = (self.bytes_per_day, request.budget) else { return Ok(()) };
        let flows = request.flows.iter().filter(|flow| flow.sends).map(|flow| flow.load);
        // The volume of a service is unknown.
        let services = request.services.iter().map(|_| CertainLoad::default());
        budget.check(per_day, request.duration, flows.chain(services))
    }

    /// Checks whether a controller may command the agent.
    pub fn check_controller(&self, controller: &str) -> Result<(), OrderRefusal> {
        match &self.controllers {
            Some(allowed) if !allowed.iter().any(|name| name == controller) => {
                let reason = format!("controller {controller} may not command this agent");
                Err(refuse(reason, "add it to `controllers` in the agent's policy"))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the agent may send to a host, through an interface if the routes determine one.
    pub fn permits(&self, destination: IpAddr, egress_interface: Option<&str>) -> bool {
        self.destination(destination).is_ok() && self.leaves_by(egress_interface, destination).is_ok()
    }

    /// Returns the maximum memory of a run, bytes.
    pub fn max_memory(&self) -> u64 {
        self.memory.unwrap_or(DEFAULT_MEMORY)
    }

    /// Returns the maximum time for which a run may continue without its controller.
    pub fn max_lease(&self) -> Duration {
        self.max_lease.unwrap_or(DEFAULT_LEASE)
    }

    fn router(&self, router: &RouterRequest) -> Result<(), OrderRefusal> {
        if !self.routers {
            let reason = "this agent's policy does not allow it to act as a router";
            return Err(refuse(reason, "set `routers = true` in the policy"));
        }
        let rate = self.rate.map(|rate| format!("`rate` to {rate}"));
        let bytes = self.bytes_per_day.map(|bytes| format!("`bytes_per_day` to {bytes} B"));
        if let Some(limit) = rate.or(bytes) {
            let reason =
                format!("a router forwards what its customers send; this agent's policy limits {limit}");
            return Err(refuse(
                reason,
                "place the router on another agent, or remove the limit from the policy",
            ));
        }
        router.interfaces.iter().try_for_each(|name| self.interface(Some(name)))?;
        router.peers.iter().try_for_each(|peer| self.destination(*peer))?;
        router.customers.iter().try_for_each(|prefix| self.customer(prefix))
    }

    fn customer(&self, prefix: &IpPrefix) -> Result<(), OrderRefusal> {
        let is_within =
            |allowed: &IpPrefix| allowed.length() <= prefix.length() && allowed.contains(prefix.address());
        match &self.destinations {
            Some(allowed) if !allowed.iter().any(is_within) => {
                let reason =
                    format!("this agent's policy does not allow forwarding to customers at {prefix}");
                Err(refuse(reason, "add a prefix that contains it to `destinations` in the policy"))
            }
            _ => Ok(()),
        }
    }

    fn service(&self, service: &ServiceRequest, is_enforced: bool) -> Result<(), OrderRefusal> {
        let kind = service.kind;
        if !self.services.iter().any(|allowed| allowed == kind) {
            let reason =
                format!("this agent's policy does not allow starting programs of service kind {kind}");
            return Err(refuse(reason, &format!("add \"{kind}\" to `services` in the policy")));
        }
        self.interface(service.interface)?;
        self.leaves_by(service.egress_interface, service.peer)?;
        self.destination(service.peer)?;
        if !service.has_consent {
            return Err(no_consent(service.peer));
        }
        let limits = [
            ("rate", self.rate.is_some()),
            ("destinations", self.destinations.is_some()),
            ("interfaces", self.interfaces.is_some()),
        ];
        match limits.iter().find(|(_, is_set)| *is_set) {
            Some((limit, _)) if !is_enforced => Err(not_enforced("the programs of a service", limit)),
            _ => Ok(()),
        }
    }

    fn interface(&self, interface: Option<&str>) -> Result<(), OrderRefusal> {
        let Some(allowed) = &self.interfaces else { return Ok(()) };
        match interface {
            Some(name) if allowed.iter().any(|one| one == name) => Ok(()),
            Some(name) => {
                let reason = format!("this agent's policy does not allow interface {name}");
                Err(refuse(reason, "use another interface, or add it to `interfaces` in the policy"))
            }
            None => {
                let reason = "the address of the node belongs to no interface of this host; the policy limits `interfaces`";
                Err(refuse(reason, "set an address of this host for the node in [place]"))
            }
        }
    }

    /// Checks the outgoing interface: binding to an address does not determine the interface packets leave by.
    fn leaves_by(&self, interface: Option<&str>, other: IpAddr) -> Result<(), OrderRefusal> {
        match (&self.interfaces, interface) {
            (Some(allowed), Some(name)) if !allowed.iter().any(|one| one == name) => {
                let reason = format!(
                    "packets to {} would leave through interface {name}, which this agent's policy does not allow",
                    other.to_canonical()
                );
                Err(refuse(
                    reason,
                    "route them through another interface, or add it to `interfaces` in the policy",
                ))
            }
            _ => Ok(()),
        }
    }

    fn destination(&self, other: IpAddr) -> Result<(), OrderRefusal> {
        let other = other.to_canonical();
        match &self.destinations {
            Some(allowed) if !allowed.iter().any(|prefix| prefix.contains(other)) => {
                let reason = format!("this agent's policy does not allow sending to {other}");
                Err(refuse(reason, "add a prefix that contains it to `destinations` in the policy"))
            }
            _ => Ok(()),
        }
    }

    /// Checks one flow and returns its sending rate in bits per second; zero if it is unknown or the agent
    /// receives.
    fn flow(&self, flow: &FlowRequest, is_enforced: bool) -> Result<f64, OrderRefusal> {
        self.interface(flow.interface)?;
        self.leaves_by(flow.egress_interface, flow.peer)?;
        if flow.sends {
            self.destination(flow.peer)?;
        }
        if flow.responds && self.rate.is_some() && !is_enforced {
            return Err(not_enforced("answers to requests", "rate"));
        }
        let FlowRole::Send { rate, has_consent: agreed, one_ended, spins } = flow.role else {
            return Ok(0.0);
        };
        if one_ended && !self.one_ended {
            let reason = "this agent's policy does not allow sending without the consent of the receiver";
            return Err(refuse(
                reason,
                "use a transport with a receiver, or set `one_ended = true` in the policy",
            ));
        }
        if !one_ended && !agreed {
            return Err(no_consent(flow.peer));
        }
        if spins && !self.spin {
            let reason = "this agent's policy does not allow senders to spin";
            return Err(refuse(reason, "use pacing = \"sleep\", or set `spin = true` in the policy"));
        }
        if let (Some(limit), None) = (self.rate, rate) {
            let reason =
                format!("the flow sends as fast as it can; this agent's policy limits the rate to {limit}");
            return Err(refuse(reason, "set a rate for its traffic, or remove `rate` from the policy"));
        }
        Ok(rate.unwrap_or(0.0))
    }
}

fn not_enforced(what: &str, limit: &str) -> OrderRefusal {
    let reason = format!(
        "this agent's policy limits `{limit}`, which the kernel of its host does not enforce on {what}"
    );
    refuse(reason, "run the agent as root on a host with cgroups of version 2, or remove the limit")
}

fn no_consent(other: IpAddr) -> OrderRefusal {
    let reason = format!("the receiver at {} has not given its consent", other.to_canonical());
    refuse(reason, "run an agent on that host")
}

fn refuse(reason: impl Into<String>, remedy: &str) -> OrderRefusal {
    OrderRefusal::new(OrderRefusalKind::Policy, reason).remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;
    use alloc::vec;

    fn policy() -> Policy {
        Policy {
            controllers: Some(vec!["lab".into()]),
            rate: Some(BitRate(2_000_000)),
            bytes_per_day: None,
            memory: Some(1_000_000),
            max_duration: Some(Duration::from_secs(60)),
            max_lease: None,
            destinations: Some(vec![IpPrefix::new("10.0.0.0".parse().unwrap(), 8).unwrap()]),
            interfaces: Some(vec!["eth1".into()]),
            one_ended: false,
            spin: false,
            routers: false,
            tcp_events: false,
            services: vec!["ftp".into()],
        }
    }

    fn sends(other: &str) -> FlowRequest<'_> {
        let means = FlowRole::Send { rate: Some(1e6), has_consent: true, one_ended: false, spins: false };
        FlowRequest {
            name: "f",
            role: means,
            sends: true,
            responds: false,
            load: CertainLoad { bytes: 1000, ..CertainLoad::default() },
            peer: other.parse().unwrap(),
            interface: Some("eth1"),
            egress_interface: None,
        }
    }

    fn request(flows: Vec<FlowRequest<'_>>) -> RunRequest<'_> {
        RunRequest {
            controller: "lab",
            duration: Duration::from_secs(60),
            lease: None,
            memory: 1_000_000,
            is_enforced: true,
            budget: None,
            router: None,
            tcp_events: false,
            flows,
            services: vec![],
        }
    }

    fn gets(other: &str) -> ServiceRequest<'_> {
        let other = other.parse().unwrap();
        let interface = Some("eth1");
        ServiceRequest {
            name: "s",
            kind: "ftp",
            has_consent: true,
            peer: other,
            interface,
            egress_interface: interface,
        }
    }

    #[test]
    fn requests_within_the_policy_are_accepted() {
        assert_eq!(policy().check(&request(vec![sends("10.1.2.3"), sends("::ffff:10.1.2.3")])), Ok(()));
        let receives = FlowRequest { role: FlowRole::Receive, sends: false, ..sends("192.0.2.1") };
        assert_eq!(policy().check(&request(vec![receives])), Ok(()));
    }

    #[test]
    fn a_router_is_limited_to_interfaces_and_destinations() {
        let limited = Policy { routers: true, ..policy() };
        let policy = Policy { rate: None, ..limited.clone() };
        let asked = |interfaces: Vec<&'static str>, peer: &str, customer: (&str, u8)| {
            let peers = vec![peer.parse().unwrap()];
            let customers = vec![IpPrefix::new(customer.0.parse().unwrap(), customer.1).unwrap()];
            let router = Some(RouterRequest { interfaces, peers, customers });
            policy.check(&RunRequest { router, ..request(vec![]) })
        };
        let customer = ("10.1.0.0", 16);
        assert_eq!(asked(vec!["eth1"], "10.0.0.6", customer), Ok(()));
        for (result, expected) in [
            (asked(vec!["eth1", "eth0"], "10.0.0.6", customer), "interface eth0"),
            (asked(vec!["eth1"], "192.0.2.6", customer), "destinations"),
            (asked(vec!["eth1"], "10.0.0.6", ("192.0.2.0", 24)), "destinations"),
            (asked(vec!["eth1"], "10.0.0.6", ("0.0.0.0", 0)), "destinations"),
        ] {
            let (_, refusal) = result.unwrap_err();
            assert!(refusal.to_string().contains(expected), "{refusal}");
        }
        let routes = RunRequest { router: Some(RouterRequest::default()), ..request(vec![]) };
        let (_, refusal) = limited.check(&routes).unwrap_err();
        assert!(refusal.to_string().contains("limits `rate` to 2 Mbit/s"), "{refusal}");
    }

    #[test]
    fn limits_that_the_kernel_does_not_enforce_exclude_what_cannot_be_checked_in_advance() {
        let receives = FlowRequest { role: FlowRole::Receive, ..sends("10.0.0.1") };
        let serves = FlowRequest { responds: true, ..receives.clone() };
        let run = |flow: &FlowRequest<'static>, is_enforced| {
            policy().check(&RunRequest { is_enforced, ..request(vec![flow.clone()]) })
        };
        assert_eq!((run(&serves, true), run(&receives, false)), (Ok(()), Ok(())));
        let (_, refusal) = run(&serves, false).unwrap_err();
        assert!(refusal.to_string().contains("limits `rate`"), "{refusal}");
        let serving = RunRequest { services: vec![gets("10.0.0.1")], ..request(vec![]) };
        let unlimited = Policy { rate: None, ..policy() };
        for (policy, limit) in [(policy(), "`rate`"), (unlimited, "`destinations`")] {
            assert_eq!(policy.check(&serving), Ok(()));
            let (_, refusal) =
                policy.check(&RunRequest { is_enforced: false, ..serving.clone() }).unwrap_err();
            assert!(refusal.to_string().contains(limit), "{refusal}");
        }
    }

    #[test]
    fn only_listed_service_kinds_are_allowed() {
        let asked = |service| policy().check(&RunRequest { services: vec![service], ..request(vec![]) });
        assert_eq!(asked(gets("10.0.0.1")), Ok(()));
        let served = RunRequest { services: vec![gets("10.0.0.1")], ..request(vec![]) };
        for (service, expected) in [
            (ServiceRequest { kind: "iscsi", ..gets("10.0.0.1") }, "`services`"),
            (gets("192.0.2.1"), "destinations"),
            (ServiceRequest { interface: Some("eth0"), ..gets("10.0.0.1") }, "interfaces"),
            (
                ServiceRequest { egress_interface: Some("eth0"), ..gets("10.0.0.1") },
                "leave through interface eth0",
            ),
            (ServiceRequest { has_consent: false, ..gets("10.0.0.1") }, "consent"),
        ] {
            let (name, refusal) = asked(service).unwrap_err();
            assert_eq!((name.as_deref(), refusal.kind), (Some("service s"), OrderRefusalKind::Policy));
            assert!(refusal.to_string().contains(expected), "{refusal}");
        }
        let (_, refusal) = Policy::default().check(&served).unwrap_err();
        assert!(refusal.to_string().contains("`services`"), "no service is allowed by default: {refusal}");
    }

    #[test]
    fn a_run_beyond_what_is_left_of_the_day_is_refused() {
        let limited = Policy { bytes_per_day: Some(1_000_000), ..policy() };
        let asked = |left, flows| {
            let budget = Some(DayBudget { left, ends_in: Duration::from_secs(3600) });
            limited
                .check(&RunRequest { budget, ..request(flows) })
                .map_err(|(_, refusal)| refusal.to_string())
        };
        let receives = FlowRequest { role: FlowRole::Receive, sends: false, ..sends("10.0.0.1") };
        assert_eq!(asked(2000, vec![sends("10.0.0.1"), sends("10.0.0.2")]), Ok(()));
        assert_eq!(asked(0, vec![receives]), Ok(()));
        let refusal = asked(1999, vec![sends("10.0.0.1"), sends("10.0.0.2")]).unwrap_err();
        assert!(refusal.contains("1999 B are left of `bytes_per_day` = 1000000 B"), "{refusal}");
        let serves = RunRequest { services: vec![gets("10.0.0.1")], ..request(vec![]) };
        let budget = Some(DayBudget { left: 0, ends_in: Duration::from_secs(3600) });
        assert!(limited.check(&RunRequest { budget, ..serves }).is_err());
    }

    #[test]
    fn each_refusal_contains_the_limit_and_a_remedy() {
        let means =
            |rate, agreed, one_ended| FlowRole::Send { rate, has_consent: agreed, one_ended, spins: false };
        let spinning = FlowRole::Send { rate: Some(1.0), has_consent: true, one_ended: false, spins: true };
        let flow = sends("10.0.0.1");
        let with = |means| FlowRequest { role: means, ..flow.clone() };
        for (request, expected) in [
            (RunRequest { controller: "other", ..request(vec![]) }, "controllers"),
            (RunRequest { duration: Duration::from_secs(61), ..request(vec![]) }, "max_duration"),
            (RunRequest { memory: 1_000_001, ..request(vec![]) }, "`memory`"),
            (RunRequest { lease: Some(Duration::from_secs(3)), ..request(vec![]) }, "`max_lease`"),
            (RunRequest { router: Some(RouterRequest::default()), ..request(vec![]) }, "routers"),
            (RunRequest { tcp_events: true, ..request(vec![]) }, "tcp_events"),
            (request(vec![flow.clone(), flow.clone(), flow.clone()]), "`rate`"),
            (request(vec![sends("192.0.2.1")]), "destinations"),
            (request(vec![FlowRequest { role: FlowRole::Receive, ..sends("192.0.2.1") }]), "destinations"),
            (request(vec![FlowRequest { interface: Some("eth0"), ..flow.clone() }]), "interfaces"),
            (
                request(vec![FlowRequest { egress_interface: Some("eth0"), ..flow.clone() }]),
                "leave through interface eth0",
            ),
            (request(vec![FlowRequest { interface: None, ..flow.clone() }]), "[place]"),
            (request(vec![with(means(None, true, false))]), "`rate`"),
            (request(vec![with(means(Some(1.0), false, false))]), "has not given its consent"),
            (request(vec![with(means(Some(1.0), false, true))]), "one_ended"),
            (request(vec![with(spinning)]), "`spin = true`"),
        ] {
            let (_, refusal) = policy().check(&request).unwrap_err();
            assert_eq!(refusal.kind, OrderRefusalKind::Policy);
            assert!(refusal.to_string().contains(expected), "{refusal}");
        }
    }
}
