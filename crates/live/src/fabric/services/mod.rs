//! Services: other people's programs in the nodes of a network.
//!
//! - here: what a plan asks for, and what came of it;
//! - [`ftp`], [`iscsi`]: how their programs are told what to do, and what their words mean;
//! - [`run`]: their processes; [`site`]: on whose host these are;
//! - [`gateways`]: the ends of tunnels, which are nodes;
//! - [`processes`]: programs that last as long as a run; [`reach`]: whether packets arrive;
//! - [`frr`]: routing daemons, which are there before the run and have no flow of their own.

pub mod frr;
mod ftp;
pub mod gateways;
mod iscsi;
mod processes;
mod reach;
pub(crate) mod run;
pub(crate) mod site;

use super::assignments::Member;
use crate::task::ServiceTask;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::Application;
use netstage_scenario::plan::{FlowGroup, Plan, Program};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// What capabilities of services begin with, and what goes before the packages.
const SERVICE: &str = "service.";
const LACKS: &str = " lacks ";

/// A service to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// Its name.
    pub name: String,
    /// Which programs, and what they do.
    pub task: Task,
    /// The client's address.
    pub source: IpAddr,
    /// Where the server listens.
    pub destination: SocketAddr,
    /// When the client begins.
    pub start: Instant,
    /// How long the run lasts.
    pub duration: Duration,
    /// Width of a bin.
    pub interval: Duration,
    /// A folder of its own, which is there and goes after the run.
    pub folder: PathBuf,
}

impl ServiceSpec {
    /// The port at the server of the connection that carries what is asked for.
    pub fn data_port(&self) -> u16 {
        self.task.data_port(self.destination)
    }
}

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

/// An end of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Its program listens, and sends what is asked for.
    Server,
    /// Its program connects, and asks.
    Client,
}

/// What the programs of a service do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// FTP: one file.
    Ftp {
        /// Bytes of the file.
        size: u64,
    },
    /// iSCSI: reads to the end of the run.
    Iscsi {
        /// Bytes of a read.
        block: u32,
        /// Reads under way at once.
        queue_depth: u32,
    },
}

impl Task {
    fn new(group: &FlowGroup) -> Option<Task> {
        match (group.program?, group.traffic.application()?) {
            (Program::Ftp, Application::Transfers(transfers)) => {
                Some(Task::Ftp { size: transfers.size.mean as u64 })
            }
            (Program::Iscsi, Application::BlockStorage(storage)) => {
                Some(Task::Iscsi { block: storage.block, queue_depth: storage.queue_depth })
            }
            _ => None,
        }
    }

    /// Whose programs do it.
    pub fn program(&self) -> Program {
        match self {
            Task::Ftp { .. } => Program::Ftp,
            Task::Iscsi { .. } => Program::Iscsi,
        }
    }

    /// The port at a server of the connection that carries what is asked for.
    pub fn data_port(&self, server: SocketAddr) -> u16 {
        // FTP's first connection is for commands alone.
        server.port().saturating_add(u16::from(matches!(self, Task::Ftp { .. })))
    }
}

/// The port at the server of the connection that carries what is asked for; of a flow that is a service.
pub fn data_port(group: &FlowGroup, server: SocketAddr) -> Option<u16> {
    Task::new(group).map(|task| task.data_port(server))
}

/// What came of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceResult {
    /// Its name.
    pub name: String,
    /// Bytes of the file that came to the client in each bin.
    pub received: Vec<u64>,
    /// Reads that were answered in each bin, and the time they took together; of iSCSI.
    pub reads: Vec<(u64, Duration)>,
    /// When the file was there, and how long it took since the client asked for it; none
    /// where it was not there by the end of the run.
    pub finished: Option<(Instant, Duration)>,
    /// Why it failed.
    pub error: Option<String>,
    /// What its programs said; empty where it did not fail.
    pub log: String,
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

/// The programs a service runs, each with its Debian package; the client's last.
fn programs(program: Program) -> &'static [(&'static str, &'static str)] {
    match program {
        Program::Ftp => &[(ftp::SERVER, "vsftpd"), (ftp::CLIENT, "curl")],
        Program::Iscsi => &[(iscsi::SERVER, "tgt"), (iscsi::TELLER, "tgt"), (iscsi::CLIENT, "libiscsi-bin")],
    }
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

/// The Debian packages a host lacks for the services of a kind, each once.
pub fn lacking(program: Program) -> Vec<&'static str> {
    let absent = programs(program).iter().filter(|(program, _)| find(program).is_none());
    let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

/// What an agent that may start the programs of a kind tells of that: `service.ftp`, and the packages it lacks,
/// `service.iscsi lacks tgt libiscsi-bin`.
pub fn capability(program: Program) -> String {
    let lacking = lacking(program);
    let lacks = if lacking.is_empty() { "" } else { LACKS };
    format!("{SERVICE}{}{lacks}{}", program.name(), lacking.join(" "))
}

/// The service a capability is of, and the packages that are lacking.
pub fn of_capability(capability: &str) -> Option<(&str, Option<&str>)> {
    let service = capability.strip_prefix(SERVICE)?;
    Some(service.split_once(LACKS).map_or((service, None), |(name, packages)| (name, Some(packages))))
}

/// The first program that one end of a service needs and a host lacks, with its Debian package.
pub fn missing_at(role: Role, program: Program) -> Option<(&'static str, &'static str)> {
    let all = programs(program);
    let (client, server) = all.split_last().expect("a service has a client");
    let mut needed = match role {
        Role::Server => server.iter(),
        Role::Client => std::slice::from_ref(client).iter(),
    };
    needed.find(|(program, _)| find(program).is_none()).copied()
}

/// Where a program is: in PATH, or where Debian keeps those of administrators and strongSwan's.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let also = ["/usr/sbin", "/sbin", "/usr/lib/ipsec"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(also);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
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
