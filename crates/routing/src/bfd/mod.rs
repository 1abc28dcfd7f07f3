//! BFD (RFC 5880) with neighbors on the links of a namespace (RFC 5881). One thread drives one
//! [`BfdSpeaker`](netstage_core::bfd::BfdSpeaker).
//!
//! ```text
//! owner ── BfdCommands ──▶ BfdDriver ◀──▶ UDP port 3784 on the interfaces of one namespace
//!       ◀── BfdReport ────
//! ```
//! The neighbors are those of the owner, or of FRR's bfdd, for which the driver then is the data plane ([`BfddClient`]).
//!
//! Failures are judged by the kernel's arrival times, so a late thread does not take its neighbors down. The thread runs
//! with real-time priority if permitted, so that it is not too late for the neighbors either.

mod bfdd;
mod driver;

pub use bfdd::{BfddClient, BfddReporter};
pub use driver::BfdDriver;
pub use netstage_core::bfd::{BfdCounters, BfdSessionConfig, BfdStatus};
pub use netstage_wire::bfd::{BfdState, Diagnostic};

use nix::sys::eventfd::EventFd;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// Neighbor on a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BfdNeighbor {
    /// Name of the interface to the link.
    pub interface: String,
    /// Address of the neighbor.
    pub address: IpAddr,
}

impl fmt::Display for BfdNeighbor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.address, self.interface)
    }
}

/// Report from the driver about a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdReport {
    /// Neighbor.
    pub neighbor: BfdNeighbor,
    /// Change of the session.
    pub change: BfdChange,
    /// State of the session; `None` if there is none.
    pub status: Option<BfdStatus>,
}

/// Change of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BfdChange {
    /// Packets pass in both directions.
    Up,
    /// The path to a neighbor that was up has failed.
    Failed(Diagnostic),
    /// One of the sides has disabled the session: says nothing about the path (RFC 5882 section 3.2).
    Disabled,
    /// The session cannot be added, or its packets cannot be sent, for this reason. Each fault is reported once.
    Fault(String),
}

/// State of the sessions, and counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BfdSnapshot {
    /// Sessions, in the order in which they were added.
    pub sessions: Vec<(BfdNeighbor, BfdStatus)>,
    /// Counters.
    pub counters: BfdCounters,
}

#[derive(Debug)]
enum BfdCommand {
    Set(BfdNeighbor, BfdSessionConfig),
    Remove(BfdNeighbor),
    Show(Sender<BfdSnapshot>),
    Stop,
}

/// Sender of commands to a driver.
#[derive(Clone, Debug)]
pub struct BfdCommands {
    commands: Sender<BfdCommand>,
    bell: Arc<EventFd>,
}

impl BfdCommands {
    /// Adds a session, or changes its settings. If it is up, that is reported again.
    pub fn set(&self, neighbor: BfdNeighbor, session: BfdSessionConfig) {
        self.give(BfdCommand::Set(neighbor, session));
    }

    /// Disables a session, and removes it soon after. A failed neighbor counts as failed for another 30 s, unless the
    /// session is added again and is up.
    pub fn remove(&self, neighbor: BfdNeighbor) {
        self.give(BfdCommand::Remove(neighbor));
    }

    /// Requests the state and waits for it. Returns `None` after the driver's end.
    pub fn snapshot(&self) -> Option<BfdSnapshot> {
        let (sender, receiver) = channel();
        self.give(BfdCommand::Show(sender));
        receiver.recv().ok()
    }

    /// Ends the driver. Its neighbors detect that as a failure, because nothing is forwarded afterwards.
    pub fn stop(&self) {
        self.give(BfdCommand::Stop);
    }

    fn give(&self, command: BfdCommand) {
        // A driver that has ended answers no more.
        if self.commands.send(command).is_ok() {
            let _ = self.bell.write(1);
        }
    }
}
