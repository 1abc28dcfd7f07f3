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

use alloc::string::String;
use core::fmt;

/// Why an agent does not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What sort of reason.
    pub kind: RefusalKind,
    /// The reason.
    pub reason: String,
    /// What would help; empty where nothing is known.
    pub remedy: String,
}

/// What sort of reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// Another controller has the agent.
    Busy,
    /// Not possible in this phase.
    Order,
    /// What it was asked for was to happen before it heard of it.
    Late,
    /// The agent does not do this for this controller.
    Policy,
}

impl Refusal {
    /// A refusal without remedy.
    pub fn new(kind: RefusalKind, reason: impl Into<String>) -> Refusal {
        Refusal { kind, reason: reason.into(), remedy: String::new() }
    }

    /// With what would help.
    pub fn remedy(mut self, remedy: impl Into<String>) -> Refusal {
        self.remedy = remedy.into();
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        if !self.remedy.is_empty() {
            write!(f, " ({})", self.remedy)?;
        }
        Ok(())
    }
}

impl core::error::Error for Refusal {}
