//! Services: what other people's programs at the two ends of a flow are asked to do, and what they did.

use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::Application;
use netstage_scenario::plan::{FlowGroup, Program};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

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
    /// What a flow asks of the programs of a service; `None` where it is no service.
    pub fn new(group: &FlowGroup) -> Option<Task> {
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
