//! Why an agent does not do what it was asked: said so that a program can act on it and a
//! person knows what to change.

use super::generated as wire;
use super::plain;
use netstage_core::fleet;
use std::fmt;

/// Why not, and what would help.
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
    /// The start was over when the agent heard of it.
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

impl std::error::Error for Refusal {}

impl From<fleet::Refusal> for Refusal {
    fn from(refusal: fleet::Refusal) -> Refusal {
        let kind = match refusal.kind {
            fleet::RefusalKind::Busy => RefusalKind::Busy,
            fleet::RefusalKind::Order => RefusalKind::Order,
            fleet::RefusalKind::Policy => RefusalKind::Policy,
            fleet::RefusalKind::Late => RefusalKind::Late,
        };
        Refusal::new(kind, refusal.reason).remedy(refusal.remedy)
    }
}

impl From<Refusal> for wire::Refusal {
    fn from(refusal: Refusal) -> wire::Refusal {
        let kind = match refusal.kind {
            RefusalKind::Assignment => wire::RefusalKind::RefusalAssignment,
            RefusalKind::InUse => wire::RefusalKind::RefusalInUse,
            RefusalKind::Missing => wire::RefusalKind::RefusalMissing,
            RefusalKind::Busy => wire::RefusalKind::RefusalBusy,
            RefusalKind::Order => wire::RefusalKind::RefusalOrder,
            RefusalKind::System => wire::RefusalKind::RefusalSystem,
            RefusalKind::Version => wire::RefusalKind::RefusalVersion,
            RefusalKind::Policy => wire::RefusalKind::RefusalPolicy,
            RefusalKind::Late => wire::RefusalKind::RefusalLate,
        };
        wire::Refusal {
            kind: kind.into(),
            subject: refusal.subject,
            reason: refusal.reason,
            remedy: refusal.remedy,
        }
    }
}

impl From<wire::Refusal> for Refusal {
    fn from(refusal: wire::Refusal) -> Refusal {
        let kind = match refusal.kind() {
            wire::RefusalKind::RefusalAssignment => RefusalKind::Assignment,
            wire::RefusalKind::RefusalInUse => RefusalKind::InUse,
            wire::RefusalKind::RefusalMissing => RefusalKind::Missing,
            wire::RefusalKind::RefusalBusy => RefusalKind::Busy,
            wire::RefusalKind::RefusalOrder => RefusalKind::Order,
            wire::RefusalKind::RefusalVersion => RefusalKind::Version,
            wire::RefusalKind::RefusalPolicy => RefusalKind::Policy,
            wire::RefusalKind::RefusalLate => RefusalKind::Late,
            // A kind this program does not know yet is still a refusal.
            wire::RefusalKind::RefusalSystem | wire::RefusalKind::RefusalUnknown => RefusalKind::System,
        };
        Refusal {
            kind,
            subject: plain(&refusal.subject),
            reason: plain(&refusal.reason),
            remedy: plain(&refusal.remedy),
        }
    }
}
