//! ICMP errors about dropped packets, with the label stack of the packet (RFC 4950), and their rate limit.

use netstage_core::forward::{PacketProtocol, ReportableError};
use netstage_core::time::{Duration, Instant};
use netstage_wire::icmp::{self, extension};
use netstage_wire::ip::View;
use netstage_wire::mpls::Stack;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Interval and burst of ICMP errors (RFC 1812 section 4.3.2.8).
const EVERY: Duration = Duration::from_millis(10);
const BURST: Duration = Duration::from_millis(200);

/// Rate limit of ICMP errors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    next: Instant,
}

impl Budget {
    /// Returns whether another error may be sent now, and counts it.
    pub fn allows(&mut self, now: Instant) -> bool {
        if self.next > now + BURST {
            return false;
        }
        self.next = self.next.max(now) + EVERY;
        true
    }
}

/// Returns the label stack of a received packet.
pub(super) fn labels(kind: PacketProtocol, received: &[u8]) -> &[u8] {
    match (kind, Stack::new(received)) {
        (PacketProtocol::Mpls, Ok(stack)) => &received[..stack.payload_offset()],
        _ => &[],
    }
}

/// Builds the ICMP error about a received packet, from the addresses of its incoming interface. Returns
/// `None` if the interface has no address of that version, or RFC rules forbid an error.
pub(super) fn answer(
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
    kind: PacketProtocol,
    fault: ReportableError,
    received: &[u8],
) -> Option<Vec<u8>> {
    let labels = labels(kind, received);
    let packet = View::new(&received[labels.len()..]).ok()?;
    let mut answer = vec![0; icmp::MAX_V6];
    let length = match packet {
        View::V4(view) => match fault {
            ReportableError::TtlExceeded => icmp::time_exceeded_v4(view.packet(), v4?, &mut answer),
            ReportableError::NoRoute => icmp::no_route_v4(view.packet(), v4?, &mut answer),
            ReportableError::TooBig(mtu) => icmp::fragmentation_needed(view.packet(), v4?, mtu, &mut answer),
        },
        View::V6(view) => match fault {
            ReportableError::TtlExceeded => icmp::time_exceeded_v6(view.packet(), v6?, &mut answer),
            ReportableError::NoRoute => icmp::no_route_v6(view.packet(), v6?, &mut answer),
            ReportableError::TooBig(mtu) => icmp::packet_too_big(view.packet(), v6?, mtu.into(), &mut answer),
        },
    };
    let mut length = length.ok()?;
    if !labels.is_empty() {
        // "Packet too big" has no room for the label stack and is sent without it.
        length = extension::append_label_stack(&mut answer, length, labels).unwrap_or(length);
    }
    answer.truncate(length);
    Some(answer)
}
