//! Conversion of refusals to and from protocol messages.

use super::generated as wire;
use super::plain;
use netstage_core::fleet::{Refusal, RefusalKind};

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
            // A kind unknown to this program is still a refusal.
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
