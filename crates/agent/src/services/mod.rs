//! Services at an agent: third-party programs that it starts, watches and stops.
//!
//! - this module: the programs of each service, and their presence on this host;
//! - [`ftp`], [`iscsi`]: arguments and output of the programs;
//! - [`run`]: processes; [`site`]: namespace or host in which they run.

mod ftp;
mod iscsi;
pub mod run;
pub mod site;

use netstage_agent_api::service::{ServiceRole, ServiceWorkload};
use netstage_core::time::{Duration, Instant};
use netstage_scenario::plan::ServiceProgram;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Prefix of a service capability, and separator in front of the missing packages.
const CAPABILITY_PREFIX: &str = "service.";
const MISSING_SEPARATOR: &str = " lacks ";

/// Service to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServiceSpec {
    /// Name of the service.
    pub name: String,
    /// Workload of its programs.
    pub task: ServiceWorkload,
    /// Address of the client.
    pub source: IpAddr,
    /// Address and port at which the server listens.
    pub destination: SocketAddr,
    /// Time at which the client starts.
    pub start: Instant,
    /// Length of the run.
    pub duration: Duration,
    /// Width of a bin.
    pub interval: Duration,
    /// Existing folder for the service alone, removed after the run.
    pub folder: PathBuf,
}

impl ServiceSpec {
    /// Returns the server port of the data connection.
    pub fn data_port(&self) -> u16 {
        self.task.data_port(self.destination)
    }
}

/// Returns the programs of a service, each with its Debian package. The client's program is the last one.
pub fn programs(program: ServiceProgram) -> &'static [(&'static str, &'static str)] {
    match program {
        ServiceProgram::Ftp => &[(ftp::SERVER, "vsftpd"), (ftp::CLIENT, "curl")],
        ServiceProgram::Iscsi => {
            &[(iscsi::SERVER, "tgt"), (iscsi::ADMINISTRATOR, "tgt"), (iscsi::CLIENT, "libiscsi-bin")]
        }
    }
}

/// Returns the Debian packages that this host lacks for a service, each once.
pub fn missing_packages(program: ServiceProgram) -> Vec<&'static str> {
    let absent = programs(program).iter().filter(|(program, _)| find(program).is_none());
    let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

/// Returns the capability by which an agent announces a service: `service.ftp`, or, if packages are missing,
/// `service.iscsi lacks tgt libiscsi-bin`.
pub fn capability(program: ServiceProgram) -> String {
    let lacking = missing_packages(program);
    let lacks = if lacking.is_empty() { "" } else { MISSING_SEPARATOR };
    format!("{CAPABILITY_PREFIX}{}{lacks}{}", program.name(), lacking.join(" "))
}

/// Parses a service capability. Returns the service, and the missing packages, if any.
pub fn of_capability(capability: &str) -> Option<(&str, Option<&str>)> {
    let service = capability.strip_prefix(CAPABILITY_PREFIX)?;
    Some(
        service
            .split_once(MISSING_SEPARATOR)
            .map_or((service, None), |(name, packages)| (name, Some(packages))),
    )
}

/// Returns the first program that one end of a service needs and this host lacks, with its Debian package.
pub fn missing_program(role: ServiceRole, program: ServiceProgram) -> Option<(&'static str, &'static str)> {
    let all = programs(program);
    let (client, server) = all.split_last().expect("a service has a client");
    let mut needed = match role {
        ServiceRole::Server => server.iter(),
        ServiceRole::Client => std::slice::from_ref(client).iter(),
    };
    needed.find(|(program, _)| find(program).is_none()).copied()
}

/// Finds a program in PATH, or in the folders where Debian installs administration programs and strongSwan.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let additional = ["/usr/sbin", "/sbin", "/usr/lib/ipsec"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(additional);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}
