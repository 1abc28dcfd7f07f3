//! What is counted, declared once with name, severity and meaning.

pub use netstage_host::counter::Severity;

/// Packets and their bytes from the Ethernet header on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Count {
    pub(super) fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

impl std::ops::Add for Count {
    type Output = Count;

    fn add(self, other: Count) -> Count {
        Count { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

netstage_host::counters! {
    /// What was done with a packet, or noticed about it.
    Forwarded "forwarded" Info "A packet sent on."
    Delivered "delivered" Info "A packet for this router that came in an LSP, handed to the system."
    Local "local" Info "A packet for this router, which the system has from the interface."
    Divided "divided" Info "An IPv4 packet larger than the next link takes, sent on in fragments."
    Answered "answered" Info "A sender was told what became of its packet."
    NotAnswered "not_answered" Info "A sender was to be told and was not: too many, none may be told, or no address to tell it from."
    TtlExceeded "ttl_exceeded" Info "The time to live ended here."
    TooBig "too_big" Info "Larger than the next link takes, and not to be divided."
    NoRoute "no_route" Warning "No route holds the destination."
    Malformed "malformed" Error "An IP header that contradicts itself or the frame's length, or whose checksum is wrong."
    UnknownLabel "unknown_label" Error "A label that was not given out."
    UnexpectedLabel "unexpected_label" Error "A label by an interface it was not given to."
    ReservedLabel "reserved_label" Error "A reserved label out of place, or without meaning here."
    TooDeep "too_deep" Error "More labels than a stack may have, or than there is room for."
    NoHop "no_hop" Warning "The route or label leads to no next hop at present."
    Discarded "discarded" Info "A route discards it."
    Unresolved "unresolved" Warning "The next hop's station was not found in time."
    QueueFull "queue_full" Warning "The frame, or one that waited before it, found no room in its class."
    Refused "refused" Warning "An interface did not take the frame."
}
