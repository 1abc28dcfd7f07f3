//! Services of a plan: other people's programs in the nodes of a network.
//!
//! - here: which services a plan has, and where their ends are;
//! - [`run`]: a service between two namespaces;
//! - [`gateways`]: the ends of tunnels, which are nodes;
//! - [`processes`]: programs that last as long as a run; [`reach`]: whether packets arrive;
//! - [`frr`]: routing daemons, which are there before the run and have no flow of their own.

pub mod frr;
pub mod gateways;
mod processes;
mod reach;
pub(crate) mod run;

use super::assignments::Member;
use netstage_agent::services::{ServiceSpec, find, programs};
use netstage_agent_api::service::{Role, Task};
use netstage_agent_api::task::ServiceTask;
use netstage_scenario::plan::{FlowGroup, Plan};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::Path;

/// A service between two nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Placed {
    /// The service.
    pub spec: ServiceSpec,
    /// Index of the client's node.
    pub client: usize,
    /// Index of the server's node.
    pub server: usize,
}

/// The port at the server of the connection that carries what is asked for; of a flow that is a service.
pub fn data_port(group: &FlowGroup, server: SocketAddr) -> Option<u16> {
    Task::new(group).map(|task| task.data_port(server))
}

/// A program that is not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotInstalled {
    /// Who needs it: `service.web`, `node.west`.
    pub by: String,
    /// The program.
    pub program: &'static str,
    /// The Debian package that has it.
    pub package: &'static str,
}

/// The first program of a plan's services that is not installed.
pub fn missing(plan: &Plan) -> Option<NotInstalled> {
    if let Some((service, program)) = frr::missing(plan) {
        return Some(NotInstalled { by: format!("service.{service}"), program, package: "frr" });
    }
    if let Some(absent) = gateways::missing(plan) {
        return Some(absent);
    }
    plan.flows.iter().find_map(|group| {
        let mut programs = programs(group.program?).iter();
        let &(program, package) = programs.find(|(program, _)| find(program).is_none())?;
        Some(NotInstalled { by: format!("service.{}", group.name), program, package })
    })
}

/// The services of a plan; each gets a folder under `folder`, which is not made here.
pub fn placed(plan: &Plan, members: &[Member], folder: &Path) -> Vec<Placed> {
    let placed = |member: &Member| {
        let group = &plan.flows[member.group];
        let spec = ServiceSpec {
            name: group.name.clone(),
            task: Task::new(group)?,
            source: member.source,
            destination: member.destination,
            start: group.start,
            duration: plan.duration,
            interval: plan.measure.interval,
            folder: folder.join(format!("service-{}", member.group)),
        };
        Some(Placed { spec, client: group.from, server: group.to })
    };
    members.iter().filter_map(placed).collect()
}

/// The ends of a plan's services, each with the index of its node.
pub fn tasks(plan: &Plan, members: &[Member]) -> Vec<(usize, ServiceTask)> {
    let ends = |(id, member): (usize, &Member)| {
        let group = &plan.flows[member.group];
        let task = Task::new(group)?;
        let end = |role| ServiceTask {
            name: group.name.clone(),
            id: id as u32,
            role,
            task,
            source: member.source,
            destination: member.destination,
            start: group.start,
        };
        Some([(group.to, end(Role::Server)), (group.from, end(Role::Client))])
    };
    members.iter().enumerate().filter_map(ends).flatten().collect()
}
