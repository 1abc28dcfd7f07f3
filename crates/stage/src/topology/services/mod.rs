//! Services of a plan: third-party programs in the nodes of a network. This module derives their ends from the plan.
//!
//! - [`run`]: a service between two namespaces;
//! - [`gateways`]: the nodes at the ends of tunnels;
//! - [`processes`]: processes that last for a whole run; [`reachability`]: reachability probes;
//! - [`frr`]: routing daemons, which start before the run and have no flow; [`route_server`]: a route server.

pub mod frr;
pub mod gateways;
mod processes;
mod reachability;
pub mod route_server;
pub(crate) mod run;

use super::assignments::PlacedFlow;
use netstage_agent::services::{ServiceSpec, find, programs};
use netstage_agent_api::service::{ServiceRole, ServiceWorkload};
use netstage_agent_api::task::ServiceTask;
use netstage_scenario::plan::{FlowGroup, Plan};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::Path;

/// Service between two nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacedService {
    /// Specification of the service.
    pub spec: ServiceSpec,
    /// Index of the client's node.
    pub client: usize,
    /// Index of the server's node.
    pub server: usize,
}

/// Returns the server port of the data connection of a service; `None` for other flows.
pub fn data_port(group: &FlowGroup, server: SocketAddr) -> Option<u16> {
    ServiceWorkload::new(group).map(|task| task.data_port(server))
}

/// Required program that is not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotInstalled {
    /// Service or node that requires it, such as `service.web` or `node.west`.
    pub required_by: String,
    /// Name of the program.
    pub program: &'static str,
    /// Debian package that contains it.
    pub package: &'static str,
}

/// Returns the first program of a plan's services that is not installed.
pub fn missing(plan: &Plan) -> Option<NotInstalled> {
    if let Some((service, program)) = frr::missing(plan) {
        return Some(NotInstalled { required_by: format!("service.{service}"), program, package: "frr" });
    }
    if let Some(absent) = gateways::missing(plan).or_else(|| route_server::missing(plan)) {
        return Some(absent);
    }
    plan.flows.iter().find_map(|group| {
        let mut programs = programs(group.program?).iter();
        let &(program, package) = programs.find(|(program, _)| find(program).is_none())?;
        Some(NotInstalled { required_by: format!("service.{}", group.name), program, package })
    })
}

/// Returns the services of a plan, each with a folder below `folder` that is not created here.
pub fn placed_services(plan: &Plan, members: &[PlacedFlow], folder: &Path) -> Vec<PlacedService> {
    let placed = |member: &PlacedFlow| {
        let group = &plan.flows[member.group];
        let spec = ServiceSpec {
            name: group.name.clone(),
            task: ServiceWorkload::new(group)?,
            source: member.source,
            destination: member.destination,
            start: group.start,
            duration: plan.duration,
            interval: plan.measure.interval,
            folder: folder.join(format!("service-{}", member.group)),
        };
        Some(PlacedService { spec, client: group.from, server: group.to })
    };
    members.iter().filter_map(placed).collect()
}

/// Returns the tasks of the ends of a plan's services, each with the index of its node.
pub fn tasks(plan: &Plan, members: &[PlacedFlow]) -> Vec<(usize, ServiceTask)> {
    let ends = |(id, member): (usize, &PlacedFlow)| {
        let group = &plan.flows[member.group];
        let task = ServiceWorkload::new(group)?;
        let end = |role| ServiceTask {
            name: group.name.clone(),
            id: id as u32,
            role,
            task,
            source: member.source,
            destination: member.destination,
            start: group.start,
        };
        Some([(group.to, end(ServiceRole::Server)), (group.from, end(ServiceRole::Client))])
    };
    members.iter().enumerate().filter_map(ends).flatten().collect()
}
