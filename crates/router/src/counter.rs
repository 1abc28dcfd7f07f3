//! Counters of the slow path, declared once with name, severity and meaning.

pub use netstage_host::counter::Severity;

/// Packets and their bytes, including the Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCount {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl PacketCount {
    pub(super) fn add(&mut self, bytes: usize) {
        self.packets += 1;
        self.bytes += bytes as u64;
    }
}

impl std::ops::Add for PacketCount {
    type Output = PacketCount;

    fn add(self, other: PacketCount) -> PacketCount {
        PacketCount { packets: self.packets + other.packets, bytes: self.bytes + other.bytes }
    }
}

netstage_host::counters! {
    /// Action on a packet, or a condition noticed about one.
    Forwarded "forwarded" Info "Packet forwarded."
    Delivered "delivered" Info "Packet to this router received in an LSP and passed to the kernel."
    Local "local" Info "Packet to this router; the kernel receives it from the interface."
    Divided "divided" Info "IPv4 packet larger than the next-hop MTU, forwarded in fragments."
    Answered "answered" Info "ICMP error sent."
    NotAnswered "not_answered" Info "ICMP error not sent: rate limit, not allowed for this packet, or no source address."
    TtlExceeded "ttl_exceeded" Info "TTL expired."
    TooBig "too_big" Info "Packet larger than the next-hop MTU that must not be fragmented."
    NoRoute "no_route" Warning "No route to the destination."
    Malformed "malformed" Error "IP header inconsistent in itself or with the frame length, or with a wrong checksum."
    Martian "martian" Warning "Source or destination address that must not be forwarded: loopback, link-local, multicast, reserved or unspecified."
    Spoofed "spoofed" Warning "No route leads back to the source (urpf_strict, urpf_loose)."
    UnknownLabel "unknown_label" Error "Unknown label."
    UnexpectedLabel "unexpected_label" Error "Label on an interface it was not assigned for."
    ReservedLabel "reserved_label" Error "Reserved label that is misplaced or not supported."
    TooDeep "too_deep" Error "Label stack too deep, or no room for more labels."
    NoHop "no_hop" Warning "No next hop at present for the route or label."
    Discarded "discarded" Info "Destination of a discard route."
    Unresolved "unresolved" Warning "MAC address of the next hop not resolved in time."
    QueueFull "queue_full" Warning "Queue of the traffic class full: this frame or a queued one was dropped."
    Refused "refused" Warning "Frame rejected by the interface."
}
