//! Route server of an exchange: BIRD at a node on a LAN, RPKI by stayrtr, and netstage's BGP speakers as members. This
//! module derives them from the plan.
//!
//! - [`configuration`]: the configuration of BIRD and stayrtr;
//! - [`held`]: routes that a member has received; [`record`]: what a member records during the run;
//! - [`members`]: the sessions of the members;
//! - [`run`]: the processes, and their use of resources.

mod configuration;
mod held;
mod members;
mod record;
pub(in crate::topology) mod run;

use super::{NotInstalled, find};
use crate::topology::lan;
use netstage_agent_api::results::{Buckets, Usage};
use netstage_core::time::Duration;
use netstage_scenario::plan::{IpVersion, Plan, RouteServer};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

/// Route server, daemon of BIRD.
const BIRD: &str = "bird";
/// Client of BIRD's control socket.
const CLIENT: &str = "birdc";
/// RTR server.
const RTR_SERVER: &str = "stayrtr";

/// Route server with its members.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RouteServerSpec {
    /// Route server of the plan.
    pub server: RouteServer,
    /// Address of the route server on the LAN.
    pub address: Ipv4Addr,
    /// Subjects of the convergence after the start and after each change.
    pub changes: Vec<String>,
    /// Names of the members' nodes and their addresses on the LAN.
    pub members: Vec<(String, Ipv4Addr)>,
    /// Duration of the run, and interval of the recording.
    pub duration: Duration,
    /// Length of a bin.
    pub interval: Duration,
    /// Folder of the service, removed after the run.
    pub folder: PathBuf,
}

/// Names of programs, each with samples of its resources.
type ProgramUsage = Vec<(String, Vec<Usage>)>;

/// Results of a run with a route server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteServerReport {
    /// Name of the service.
    pub name: String,
    /// Results of the members.
    pub members: Vec<MemberReport>,
    /// Convergence of all members after the start and after each change, each with the name of the change.
    pub convergence: Vec<(String, Buckets)>,
    /// Resources used by each program at the start and at the end of each bin.
    pub usage: ProgramUsage,
}

/// Results of a member, most of them per bin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Name of the node.
    pub node: String,
    /// Routes held at the end of the bin.
    pub routes: Vec<u32>,
    /// Routes held at the end of the bin whose next hop is not the member that holds the prefix.
    pub hijacked: Vec<u32>,
    /// Announced and withdrawn routes received.
    pub received: Vec<u64>,
    /// Nanoseconds with an established session.
    pub session_ns: Vec<u64>,
    /// Messages about ends of the session.
    pub session_ends: Vec<String>,
}

/// Returns the first program that a plan's route server needs and that is not installed.
pub(super) fn missing(plan: &Plan) -> Option<NotInstalled> {
    let server = plan.route_server.as_ref()?;
    let programs = [(BIRD, "bird2"), (CLIENT, "bird2"), (RTR_SERVER, "stayrtr")];
    let mut needed = programs.into_iter().filter(|(program, _)| server.rpki || *program != RTR_SERVER);
    let (program, package) = needed.find(|(program, _)| find(program).is_none())?;
    Some(NotInstalled { required_by: format!("service.{}", server.name), program, package })
}

/// Returns the route server of a plan, with a folder below `folder` that is not created here.
pub fn spec(plan: &Plan, folder: &Path) -> Option<RouteServerSpec> {
    let server = plan.route_server.as_ref()?;
    let address = |node: usize| {
        let link = lan::link_to(plan, server.lan, node).expect("the node is on the LAN");
        match lan::address(plan, IpVersion::V4, link) {
            Some((IpAddr::V4(address), _)) => address,
            _ => unreachable!("a node on a LAN has an IPv4 address"),
        }
    };
    let members = server.members.iter().map(|member| {
        let name = plan.nodes[member.node].name.clone();
        (name, address(member.node))
    });
    Some(RouteServerSpec {
        address: address(server.node),
        changes: server.change_names(|node| &plan.nodes[node].name),
        members: members.collect(),
        server: server.clone(),
        duration: plan.duration,
        interval: plan.measure.interval,
        folder: folder.join("route-server"),
    })
}
