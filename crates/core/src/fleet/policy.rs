//! What an agent may be asked to do, whoever asks.

use super::{Refusal, RefusalKind};
use crate::edge::Prefix;
use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

/// What an agent does at most. What is left out, is not limited.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// Names of the controllers that may command.
    pub controllers: Option<Vec<String>>,
    /// Most payload bits per second it sends, all flows together.
    pub rate: Option<BitRate>,
    /// Longest run.
    pub longest: Option<Duration>,
    /// Where it sends to.
    pub destinations: Option<Vec<Prefix>>,
    /// Interfaces it sends and receives by.
    pub interfaces: Option<Vec<String>>,
    /// It sends to hosts that have not agreed, too: the one-ended transports.
    pub one_ended: bool,
    /// It is a router of a provider's edge, too.
    pub routers: bool,
    /// It tells what happens to the windows of TCP flows.
    pub tcp_events: bool,
    /// Kinds of services whose programs it starts, at either end: `ftp`.
    pub services: Vec<String>,
}

/// What is asked of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// The controller.
    pub controller: &'a str,
    /// Length of the run.
    pub duration: Duration,
    /// To be a router.
    pub router: Option<RouterRequest<'a>>,
    /// To tell what happens to the windows of the TCP flows it sends.
    pub tcp_events: bool,
    /// Flows.
    pub flows: Vec<FlowRequest<'a>>,
    /// Services.
    pub services: Vec<ServiceRequest<'a>>,
}

/// A router.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouterRequest<'a> {
    /// Interfaces it takes packets from, and sends them by.
    pub interfaces: Vec<&'a str>,
    /// Routers it sends to.
    pub peers: Vec<IpAddr>,
}

/// One end of a service: programs of others, which send as fast as they can.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceRequest<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its kind.
    pub kind: &'a str,
    /// It is the server, which sends what is asked for; else the client.
    pub serves: bool,
    /// Whether the other end has agreed.
    pub agreed: bool,
    /// The other end.
    pub other: IpAddr,
    /// The interface of its address at this end, where it is known.
    pub interface: Option<&'a str>,
    /// The interface that packets to the other end leave by, where routes name one.
    pub leaves_by: Option<&'a str>,
}

/// One side of a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowRequest<'a> {
    /// Its name.
    pub name: &'a str,
    /// What is done.
    pub means: Means,
    /// The other end.
    pub other: IpAddr,
    /// The interface of its address at this end, where it is known.
    pub interface: Option<&'a str>,
    /// The interface that packets to the other end leave by, where routes name one.
    pub leaves_by: Option<&'a str>,
}

/// What is done at one end of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Means {
    /// It receives.
    Receive,
    /// It sends at this mean rate, bits per second; without one, as fast as it can.
    Send {
        /// The rate.
        rate: Option<f64>,
        /// Whether the receiver has agreed.
        agreed: bool,
        /// Whether the transport has a receiver that could.
        one_ended: bool,
    },
}

impl Policy {
    /// Agrees, or says what is beyond the policy, and of what: `flow NAME`, `service NAME`, or the run.
    pub fn check(&self, request: &Request) -> Result<(), (Option<String>, Refusal)> {
        let beyond = |reason: String, remedy: &str| Err((None, refuse(reason, remedy)));
        if let Some(allowed) = &self.controllers
            && !allowed.iter().any(|name| name == request.controller)
        {
            let reason = format!("controller {} may not command this agent", request.controller);
            return beyond(reason, "name it under `controllers` of the agent's policy");
        }
        if let Some(longest) = self.longest.filter(|longest| request.duration > *longest) {
            let (asked, allowed) = (request.duration.as_secs_f64(), longest.as_secs_f64());
            let reason = format!("the run would take {asked} s, and this agent's policy allows {allowed} s");
            return beyond(reason, "a shorter `duration`, or a longer `longest` in the policy");
        }
        if let Some(router) = &request.router {
            self.router(router).map_err(|refusal| (None, refusal))?;
        }
        if request.tcp_events && !self.tcp_events {
            let reason = "this agent's policy does not let it watch the kernel's TCP";
            return beyond(
                reason.into(),
                "`tcp_events = true` in the policy, or take `tcp` out of [measure]",
            );
        }
        let mut sent = 0.0;
        for flow in &request.flows {
            sent += self.flow(flow).map_err(|refusal| (Some(format!("flow {}", flow.name)), refusal))?;
        }
        for service in &request.services {
            self.service(service).map_err(|refusal| (Some(format!("service {}", service.name)), refusal))?;
        }
        if let Some(rate) = self.rate.filter(|rate| sent > rate.as_f64()) {
            let reason = format!(
                "{} are asked for, and this agent's policy allows {rate} of payload, all flows together",
                BitRate(sent as u64)
            );
            return beyond(reason, "ask for less, or raise `rate` in the policy");
        }
        Ok(())
    }

    fn router(&self, router: &RouterRequest) -> Result<(), Refusal> {
        if !self.routers {
            let reason = "this agent's policy does not let it be a router";
            return Err(refuse(reason, "`routers = true` in the policy"));
        }
        router.interfaces.iter().try_for_each(|name| self.interface(Some(name)))?;
        router.peers.iter().try_for_each(|peer| self.destination(*peer))
    }

    fn service(&self, service: &ServiceRequest) -> Result<(), Refusal> {
        let kind = service.kind;
        if !self.services.iter().any(|allowed| allowed == kind) {
            let reason = format!("this agent's policy does not let it start the programs of {kind}");
            return Err(refuse(reason, &format!("name \"{kind}\" under `services` of the policy")));
        }
        self.interface(service.interface)?;
        self.leaves_by(service.leaves_by, service.other)?;
        self.destination(service.other)?;
        if !service.agreed {
            return Err(not_agreed(service.other));
        }
        if service.serves && self.rate.is_some() {
            let reason = "a server sends as fast as it can, and this agent's policy limits the rate";
            return Err(refuse(reason, "place the server elsewhere, or take `rate` out of the policy"));
        }
        Ok(())
    }

    fn interface(&self, interface: Option<&str>) -> Result<(), Refusal> {
        let Some(allowed) = &self.interfaces else { return Ok(()) };
        match interface {
            Some(name) if allowed.iter().any(|one| one == name) => Ok(()),
            Some(name) => {
                let reason = format!("this agent's policy does not allow interface {name}");
                Err(refuse(reason, "use another one, or name it under `interfaces`"))
            }
            None => {
                let reason = "its address here is of no interface of this host, and the policy names some";
                Err(refuse(reason, "give the node an address of this host in [place]"))
            }
        }
    }

    /// An address of one interface does not keep packets from leaving by another.
    fn leaves_by(&self, interface: Option<&str>, other: IpAddr) -> Result<(), Refusal> {
        match (&self.interfaces, interface) {
            (Some(allowed), Some(name)) if !allowed.iter().any(|one| one == name) => {
                let reason = format!(
                    "packets to {} would leave by interface {name}, which this agent's policy does not allow",
                    other.to_canonical()
                );
                Err(refuse(reason, "have them routed by another one, or name it under `interfaces`"))
            }
            _ => Ok(()),
        }
    }

    fn destination(&self, other: IpAddr) -> Result<(), Refusal> {
        let other = other.to_canonical();
        match &self.destinations {
            Some(allowed) if !allowed.iter().any(|prefix| prefix.holds(other)) => {
                let reason = format!("this agent's policy does not allow sending to {other}");
                Err(refuse(reason, "add a prefix that holds it to `destinations`"))
            }
            _ => Ok(()),
        }
    }

    /// Checks one flow; gives the rate it sends at, where it is known.
    fn flow(&self, flow: &FlowRequest) -> Result<f64, Refusal> {
        self.interface(flow.interface)?;
        self.leaves_by(flow.leaves_by, flow.other)?;
        let Means::Send { rate, agreed, one_ended } = flow.means else { return Ok(0.0) };
        self.destination(flow.other)?;
        if one_ended && !self.one_ended {
            let reason = "this agent's policy does not allow sending to a host that has not agreed";
            return Err(refuse(
                reason,
                "use a transport with a receiver, or `one_ended = true` in the policy",
            ));
        }
        if !one_ended && !agreed {
            return Err(not_agreed(flow.other));
        }
        if self.rate.is_some() && rate.is_none() {
            let reason = "it sends as fast as it can, and this agent's policy limits the rate";
            return Err(refuse(reason, "give it traffic with a rate, or take `rate` out of the policy"));
        }
        Ok(rate.unwrap_or(0.0))
    }
}

fn not_agreed(other: IpAddr) -> Refusal {
    let reason = format!("the receiver at {} has not agreed to be sent to", other.to_canonical());
    refuse(reason, "place an agent there")
}

fn refuse(reason: impl Into<String>, remedy: &str) -> Refusal {
    Refusal::new(RefusalKind::Policy, reason).remedy(remedy)
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
            longest: Some(Duration::from_secs(60)),
            destinations: Some(vec![Prefix::new("10.0.0.0".parse().unwrap(), 8).unwrap()]),
            interfaces: Some(vec!["eth1".into()]),
            one_ended: false,
            routers: false,
            tcp_events: false,
            services: vec!["ftp".into()],
        }
    }

    fn sends(other: &str) -> FlowRequest<'_> {
        let means = Means::Send { rate: Some(1e6), agreed: true, one_ended: false };
        FlowRequest {
            name: "f",
            means,
            other: other.parse().unwrap(),
            interface: Some("eth1"),
            leaves_by: None,
        }
    }

    fn request(flows: Vec<FlowRequest<'_>>) -> Request<'_> {
        Request {
            controller: "lab",
            duration: Duration::from_secs(60),
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
            serves: false,
            agreed: true,
            other,
            interface,
            leaves_by: interface,
        }
    }

    #[test]
    fn what_is_within_is_agreed_to() {
        assert_eq!(policy().check(&request(vec![sends("10.1.2.3"), sends("::ffff:10.1.2.3")])), Ok(()));
        let receives = FlowRequest { means: Means::Receive, ..sends("192.0.2.1") };
        assert_eq!(policy().check(&request(vec![receives])), Ok(()));
    }

    #[test]
    fn a_router_keeps_to_interfaces_and_destinations() {
        let policy = Policy { routers: true, ..policy() };
        let asked = |interfaces: Vec<&'static str>, peer: &str| {
            let peers = vec![peer.parse().unwrap()];
            policy.check(&Request { router: Some(RouterRequest { interfaces, peers }), ..request(vec![]) })
        };
        assert_eq!(asked(vec!["eth1"], "10.0.0.6"), Ok(()));
        for (result, told) in [
            (asked(vec!["eth1", "eth0"], "10.0.0.6"), "interface eth0"),
            (asked(vec!["eth1"], "192.0.2.6"), "destinations"),
        ] {
            let (_, refusal) = result.unwrap_err();
            assert!(refusal.to_string().contains(told), "{refusal}");
        }
    }

    #[test]
    fn services_are_those_it_names() {
        let asked = |service| policy().check(&Request { services: vec![service], ..request(vec![]) });
        assert_eq!(asked(gets("10.0.0.1")), Ok(()));
        let unlimited = Policy { rate: None, ..policy() };
        let serves = ServiceRequest { serves: true, ..gets("10.0.0.1") };
        let served = Request { services: vec![serves.clone()], ..request(vec![]) };
        assert_eq!(unlimited.check(&served), Ok(()));
        for (service, told) in [
            (ServiceRequest { kind: "iscsi", ..gets("10.0.0.1") }, "`services`"),
            (gets("192.0.2.1"), "destinations"),
            (ServiceRequest { interface: Some("eth0"), ..gets("10.0.0.1") }, "interfaces"),
            (ServiceRequest { leaves_by: Some("eth0"), ..gets("10.0.0.1") }, "leave by interface eth0"),
            (ServiceRequest { agreed: false, ..gets("10.0.0.1") }, "has not agreed"),
            (serves, "`rate`"),
        ] {
            let (name, refusal) = asked(service).unwrap_err();
            assert_eq!((name.as_deref(), refusal.kind), (Some("service s"), RefusalKind::Policy));
            assert!(refusal.to_string().contains(told), "{refusal}");
        }
        let (_, refusal) = Policy::default().check(&served).unwrap_err();
        assert!(refusal.to_string().contains("`services`"), "nothing by default: {refusal}");
    }

    #[test]
    fn each_limit_is_named_with_what_would_help() {
        let means = |rate, agreed, one_ended| Means::Send { rate, agreed, one_ended };
        let flow = sends("10.0.0.1");
        let with = |means| FlowRequest { means, ..flow.clone() };
        for (request, told) in [
            (Request { controller: "other", ..request(vec![]) }, "controllers"),
            (Request { duration: Duration::from_secs(61), ..request(vec![]) }, "longest"),
            (Request { router: Some(RouterRequest::default()), ..request(vec![]) }, "routers"),
            (Request { tcp_events: true, ..request(vec![]) }, "tcp_events"),
            (request(vec![flow.clone(), flow.clone(), flow.clone()]), "`rate`"),
            (request(vec![sends("192.0.2.1")]), "destinations"),
            (request(vec![FlowRequest { interface: Some("eth0"), ..flow.clone() }]), "interfaces"),
            (
                request(vec![FlowRequest { leaves_by: Some("eth0"), ..flow.clone() }]),
                "leave by interface eth0",
            ),
            (request(vec![FlowRequest { interface: None, ..flow.clone() }]), "[place]"),
            (request(vec![with(means(None, true, false))]), "`rate`"),
            (request(vec![with(means(Some(1.0), false, false))]), "has not agreed"),
            (request(vec![with(means(Some(1.0), false, true))]), "one_ended"),
        ] {
            let (_, refusal) = policy().check(&request).unwrap_err();
            assert_eq!(refusal.kind, RefusalKind::Policy);
            assert!(refusal.to_string().contains(told), "{refusal}");
        }
    }
}
