//! What senders are told of packets that go no further: ICMP errors, with the labels a packet had
//! (RFC 4950), and not too many of them.

use netstage_core::forward::{Fault, Kind};
use netstage_core::time::{Duration, Instant};
use netstage_wire::icmp::{self, extension};
use netstage_wire::ip::View;
use netstage_wire::mpls::Stack;
use std::net::{Ipv4Addr, Ipv6Addr};

/// One error in this time, and so many at once (RFC 1812 section 4.3.2.8).
const EVERY: Duration = Duration::from_millis(10);
const BURST: Duration = Duration::from_millis(200);

/// How many may still be told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    next: Instant,
}

impl Budget {
    /// Whether one more may be.
    pub fn allows(&mut self, now: Instant) -> bool {
        if self.next > now + BURST {
            return false;
        }
        self.next = self.next.max(now) + EVERY;
        true
    }
}

/// The labels a packet came with.
pub(super) fn labels(kind: Kind, came: &[u8]) -> &[u8] {
    match (kind, Stack::new(came)) {
        (Kind::Mpls, Ok(stack)) => &came[..stack.payload_offset()],
        _ => &[],
    }
}

/// The error for the sender of a packet that came so, from the addresses of the interface it came by. None where it
/// has none, or the packet may not be answered.
pub(super) fn answer(
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
    kind: Kind,
    fault: Fault,
    came: &[u8],
) -> Option<Vec<u8>> {
    let labels = labels(kind, came);
    let packet = View::new(&came[labels.len()..]).ok()?;
    let mut answer = vec![0; icmp::MAX_V6];
    let length = match packet {
        View::V4(view) => match fault {
            Fault::TtlExceeded => icmp::time_exceeded_v4(view.packet(), v4?, &mut answer),
            Fault::NoRoute => icmp::no_route_v4(view.packet(), v4?, &mut answer),
            Fault::TooBig(mtu) => icmp::fragmentation_needed(view.packet(), v4?, mtu, &mut answer),
        },
        View::V6(view) => match fault {
            Fault::TtlExceeded => icmp::time_exceeded_v6(view.packet(), v6?, &mut answer),
            Fault::NoRoute => icmp::no_route_v6(view.packet(), v6?, &mut answer),
            Fault::TooBig(mtu) => icmp::packet_too_big(view.packet(), v6?, mtu.into(), &mut answer),
        },
    };
    let mut length = length.ok()?;
    if !labels.is_empty() {
        // "Packet too big" has no place for them, and goes without.
        length = extension::append_label_stack(&mut answer, length, labels).unwrap_or(length);
    }
    answer.truncate(length);
    Some(answer)
}
