//! Coordination of many agents under one controller: ownership and run state of an agent
//! ([`AgentSession`]), timeouts by heartbeat ([`Lease`]), limits on what an agent does ([`Policy`]),
//! requests to many agents ([`RequestRound`]), paths through NATs ([`PathChecks`]), the common start of a run
//! ([`StartNegotiation`]), its progress ([`RunMonitor`]), and results not yet fetched from agents ([`ResultLedger`]).
//!
//! The identifier of a run has a random part, so that a controller that is restored from a backup opens no run
//! that its agents know. An agent never accepts a run again, so repeated orders have no effect. An agent keeps a
//! result until the controller confirms its receipt; a result that is fetched twice counts once.

mod day_budget;
mod lease;
mod ledger;
mod path;
mod policy;
mod round;
mod run_monitor;
mod session;
mod start_negotiation;

pub use day_budget::{CertainLoad, DayBudget};
pub use lease::Lease;
pub use ledger::{Receipt, ResultLedger, run_id, run_number};
pub use path::{PathCheck, PathChecks, PathRole};
pub use policy::{
    DEFAULT_LEASE, DEFAULT_MEMORY, FlowRequest, FlowRole, Policy, RouterRequest, RunRequest, ServiceRequest,
};
pub use round::RequestRound;
pub use run_monitor::{AgentRunState, COMPLETION_TIMEOUT, RunMonitor};
pub use session::{AgentSession, REMEMBERED_RUNS, RunPhase};
pub use start_negotiation::{COMMITTED, NegotiationStep, StartNegotiation, start_lead};

use alloc::format;
use alloc::string::String;
use core::fmt;

/// The refusal of an order by an agent, with a kind for programs and a reason and a remedy for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderRefusal {
    /// Kind of the reason.
    pub kind: OrderRefusalKind,
    /// Subject of the refusal: `flow NAME` or `service NAME`; empty if it concerns the whole run.
    pub subject: String,
    /// The reason.
    pub reason: String,
    /// Suggested remedy; empty if none is known.
    pub remedy: String,
}

/// Kind of the reason for a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderRefusalKind {
    /// The assignment is malformed or inconsistent.
    Assignment,
    /// An address or port is already in use.
    InUse,
    /// A privilege or kernel feature is missing.
    Missing,
    /// The agent is locked by another controller.
    Busy,
    /// The order is not possible in the current phase.
    Order,
    /// Another error of the operating system.
    System,
    /// The protocol versions are incompatible.
    Version,
    /// The agent's policy does not allow it.
    Policy,
    /// The order arrived after the time at which it had to be carried out.
    Late,
}

impl OrderRefusal {
    /// Creates a refusal of the whole run, without a remedy.
    pub fn new(kind: OrderRefusalKind, reason: impl Into<String>) -> OrderRefusal {
        OrderRefusal { kind, subject: String::new(), reason: reason.into(), remedy: String::new() }
    }

    /// Sets the subject.
    pub fn with_subject(mut self, subject: impl Into<String>) -> OrderRefusal {
        self.subject = subject.into();
        self
    }

    /// Sets a flow as the subject.
    pub fn flow(self, name: impl fmt::Display) -> OrderRefusal {
        self.with_subject(format!("flow {name}"))
    }

    /// Sets a service as the subject.
    pub fn service(self, name: impl fmt::Display) -> OrderRefusal {
        self.with_subject(format!("service {name}"))
    }

    /// Sets the remedy.
    pub fn remedy(mut self, remedy: impl Into<String>) -> OrderRefusal {
        self.remedy = remedy.into();
        self
    }
}

impl fmt::Display for OrderRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.subject.is_empty() {
            write!(f, "{}: ", self.subject)?;
        }
        f.write_str(&self.reason)?;
        if !self.remedy.is_empty() {
            write!(f, " ({})", self.remedy)?;
        }
        Ok(())
    }
}

impl core::error::Error for OrderRefusal {}
