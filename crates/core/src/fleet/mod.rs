//! Many agents under one controller: whose an agent is and how far its run
//! ([`Session`]), how long silence is borne ([`Lease`]), what an agent may be asked
//! ([`Policy`]), whom a controller asks next ([`Round`]), when its run begins ([`Kickoff`]) and how it
//! goes ([`Conduct`]), and which results are still with agents ([`Ledger`]).
//!
//! Runs have numbers that only grow, and an agent never takes one up to its last again:
//! whoever was told an older number, commands nobody any more. A result stays with its
//! agent until the controller says that it has it; asked for twice, it counts once.

mod conduct;
mod kickoff;
mod lease;
mod ledger;
mod policy;
mod round;
mod session;

pub use conduct::{Conduct, SETTLE, Standing};
pub use kickoff::{COMMITTED, Kickoff, Step, start_lead};
pub use lease::Lease;
pub use ledger::{Ledger, Receipt};
pub use policy::{FlowRequest, Means, Policy, Request, RouterRequest, ServiceRequest};
pub use round::Round;
pub use session::{Phase, Session};

use alloc::format;
use alloc::string::String;
use core::fmt;

/// Why an agent does not do what it was asked: said so that a program can act on it and a
/// person knows what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What sort of reason.
    pub kind: RefusalKind,
    /// What it concerns: `flow NAME` or `service NAME`; empty where it is the whole run.
    pub subject: String,
    /// The reason.
    pub reason: String,
    /// What would help; empty where nothing is known.
    pub remedy: String,
}

/// What sort of reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The assignment cannot be read or makes no sense.
    Assignment,
    /// An address or port is in use.
    InUse,
    /// A privilege or kernel feature is missing.
    Missing,
    /// Another controller has the agent.
    Busy,
    /// Not possible in this phase.
    Order,
    /// Anything else the system refused.
    System,
    /// The versions do not meet.
    Version,
    /// The agent does not do this for this controller.
    Policy,
    /// What it was asked for was to happen before it heard of it.
    Late,
}

impl Refusal {
    /// A refusal of the whole run, without remedy.
    pub fn new(kind: RefusalKind, reason: impl Into<String>) -> Refusal {
        Refusal { kind, subject: String::new(), reason: reason.into(), remedy: String::new() }
    }

    /// Of this alone.
    pub fn of(mut self, subject: impl Into<String>) -> Refusal {
        self.subject = subject.into();
        self
    }

    /// Of this flow.
    pub fn flow(self, name: impl fmt::Display) -> Refusal {
        self.of(format!("flow {name}"))
    }

    /// Of this service.
    pub fn service(self, name: impl fmt::Display) -> Refusal {
        self.of(format!("service {name}"))
    }

    /// With what would help.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Refusal {
        self.remedy = remedy.into();
        self
    }
}

impl fmt::Display for Refusal {
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

impl core::error::Error for Refusal {}
