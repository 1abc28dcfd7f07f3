//! Services: third-party programs at the two ends of a flow, their workload and their results.

use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::Application;
use netstage_scenario::plan::{FlowGroup, ServiceProgram};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// End of a service at which a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceRole {
    /// Listens, and sends the requested data.
    Server,
    /// Connects and requests data.
    Client,
}

/// Workload of a service's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceWorkload {
    /// FTP download of one file.
    Ftp {
        /// Size of the file, bytes.
        size: u64,
    },
    /// iSCSI reads until the end of the run.
    Iscsi {
        /// Size of a read, bytes.
        block: u32,
        /// Outstanding reads.
        queue_depth: u32,
    },
}

impl ServiceWorkload {
    /// Returns the workload of a flow group, or `None` when it has no third-party program.
    pub fn new(group: &FlowGroup) -> Option<ServiceWorkload> {
        match (group.program?, group.traffic.application()?) {
            (ServiceProgram::Ftp, Application::Transfers(transfers)) => {
                Some(ServiceWorkload::Ftp { size: transfers.size.mean as u64 })
            }
            (ServiceProgram::Iscsi, Application::BlockStorage(storage)) => {
                Some(ServiceWorkload::Iscsi { block: storage.block, queue_depth: storage.queue_depth })
            }
            _ => None,
        }
    }

    /// Returns the program that carries out this workload.
    pub fn program(&self) -> ServiceProgram {
        match self {
            ServiceWorkload::Ftp { .. } => ServiceProgram::Ftp,
            ServiceWorkload::Iscsi { .. } => ServiceProgram::Iscsi,
        }
    }

    /// Returns the server port of the data connection.
    pub fn data_port(&self, server: SocketAddr) -> u16 {
        // FTP uses its first connection for commands only.
        server.port().saturating_add(u16::from(matches!(self, ServiceWorkload::Ftp { .. })))
    }
}

/// Result of a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServiceResult {
    /// Name of the service.
    pub name: String,
    /// Payload bytes the client received in each bin.
    pub received: Vec<u64>,
    /// iSCSI reads completed in each bin, and the sum of their latencies.
    pub reads: Vec<(u64, Duration)>,
    /// Time at which the file was complete, and the time since the client's request; `None` where it was
    /// incomplete at the end of the run.
    pub finished: Option<(Instant, Duration)>,
    /// Reason of the failure, if any.
    pub error: Option<String>,
    /// Output of the programs; empty where the service did not fail.
    pub log: String,
}
