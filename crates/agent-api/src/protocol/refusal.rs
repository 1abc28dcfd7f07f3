//! Conversion of refusals to and from protocol messages.

use super::displayable;
use super::generated as wire;
use netstage_core::fleet::{OrderRefusal, OrderRefusalKind};

impl From<OrderRefusal> for wire::Refusal {
    fn from(refusal: OrderRefusal) -> wire::Refusal {
        let kind = match refusal.kind {
            OrderRefusalKind::Assignment => wire::RefusalKind::RefusalAssignment,
            OrderRefusalKind::InUse => wire::RefusalKind::RefusalInUse,
            OrderRefusalKind::Missing => wire::RefusalKind::RefusalMissing,
            OrderRefusalKind::Busy => wire::RefusalKind::RefusalBusy,
            OrderRefusalKind::Order => wire::RefusalKind::RefusalOrder,
            OrderRefusalKind::System => wire::RefusalKind::RefusalSystem,
            OrderRefusalKind::Version => wire::RefusalKind::RefusalVersion,
            OrderRefusalKind::Policy => wire::RefusalKind::RefusalPolicy,
            OrderRefusalKind::Late => wire::RefusalKind::RefusalLate,
        };
        wire::Refusal {
            kind: kind.into(),
            subject: refusal.subject,
            reason: refusal.reason,
            remedy: refusal.remedy,
        }
    }
}

impl From<wire::Refusal> for OrderRefusal {
    fn from(refusal: wire::Refusal) -> OrderRefusal {
        let kind = match refusal.kind() {
            wire::RefusalKind::RefusalAssignment => OrderRefusalKind::Assignment,
            wire::RefusalKind::RefusalInUse => OrderRefusalKind::InUse,
            wire::RefusalKind::RefusalMissing => OrderRefusalKind::Missing,
            wire::RefusalKind::RefusalBusy => OrderRefusalKind::Busy,
            wire::RefusalKind::RefusalOrder => OrderRefusalKind::Order,
            wire::RefusalKind::RefusalVersion => OrderRefusalKind::Version,
            wire::RefusalKind::RefusalPolicy => OrderRefusalKind::Policy,
            wire::RefusalKind::RefusalLate => OrderRefusalKind::Late,
            // A kind unknown to this program is still a refusal.
            wire::RefusalKind::RefusalSystem | wire::RefusalKind::RefusalUnknown => OrderRefusalKind::System,
        };
        OrderRefusal {
            kind,
            subject: displayable(&refusal.subject),
            reason: displayable(&refusal.reason),
            remedy: displayable(&refusal.remedy),
        }
    }
}
