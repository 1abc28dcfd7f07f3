//! Services: other people's programs in the nodes of a network.
//!
//! - here: what a plan asks for, and what came of it;
//! - [`ftp`], [`iscsi`]: how their programs are told what to do, and what their words mean;
//! - [`run`]: their processes;
//! - [`gateways`]: the ends of tunnels, which are nodes;
//! - [`processes`]: programs that last as long as a run; [`reach`]: whether packets arrive;
//! - [`frr`]: routing daemons, which are there before the run and have no flow of their own.

pub mod frr;
mod ftp;
pub mod gateways;
mod iscsi;
mod processes;
mod reach;
pub(super) mod run;

use super::assignments::Member;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::Application;
use netstage_scenario::plan::{FlowGroup, Plan, Program};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// A service to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// Its name.
    pub name: String,
    /// Which programs, and what they do.
    pub task: Task,
    /// Index of the client's node.
    pub client: usize,
    /// Index of the server's node.
    pub server: usize,
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

/// The programs a service runs, each with its Debian package.
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

/// Where a program is: in PATH, or where Debian keeps those of administrators and strongSwan's.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let also = ["/usr/sbin", "/sbin", "/usr/lib/ipsec"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(also);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The services of a plan; each gets a folder under `folder`, which is not made here.
pub fn specs(plan: &Plan, members: &[Member], folder: &Path) -> Vec<ServiceSpec> {
    let spec = |member: &Member| {
        let group = &plan.flows[member.group];
        Some(ServiceSpec {
            name: group.name.clone(),
            task: Task::new(group)?,
            client: group.from,
            server: group.to,
            source: member.source,
            destination: member.destination,
            start: group.start,
            duration: plan.duration,
            interval: plan.measure.interval,
            folder: folder.join(format!("service-{}", member.group)),
        })
    };
    members.iter().filter_map(spec).collect()
}
