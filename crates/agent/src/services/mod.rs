//! Services at an agent: other people's programs, started, watched and ended.
//!
//! - here: which programs there are, and which of them this host has;
//! - [`ftp`], [`iscsi`]: the arguments of their programs, and the meaning of their output;
//! - [`run`]: their processes; [`site`]: on whose host these are.

mod ftp;
mod iscsi;
pub mod run;
pub mod site;

use netstage_agent_api::service::{Role, Task};
use netstage_core::time::{Duration, Instant};
use netstage_scenario::plan::Program;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

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

/// The programs a service runs, each with its Debian package; the client's last.
pub fn programs(program: Program) -> &'static [(&'static str, &'static str)] {
    match program {
        Program::Ftp => &[(ftp::SERVER, "vsftpd"), (ftp::CLIENT, "curl")],
        Program::Iscsi => &[(iscsi::SERVER, "tgt"), (iscsi::TELLER, "tgt"), (iscsi::CLIENT, "libiscsi-bin")],
    }
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
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let also = ["/usr/sbin", "/sbin", "/usr/lib/ipsec"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(also);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}
