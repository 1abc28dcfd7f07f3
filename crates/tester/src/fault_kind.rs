//! Kinds of faults of packets that come back from the router.

/// Kind of fault of a packet, in the order of `enum fault` of bpf/trial.bpf.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// MAC addresses.
    Mac,
    /// Number of labels.
    Depth,
    /// Label.
    Label,
    /// Traffic class of a label.
    LabelClass,
    /// TTL of a label.
    LabelTtl,
    /// Type of service or traffic class of the IP header.
    Class,
    /// Length in the IP or UDP header.
    Length,
    /// Identification of IPv4, or flow label of IPv6.
    Identification,
    /// Fragmentation fields.
    Fragment,
    /// TTL or hop limit.
    Ttl,
    /// Checksum of the IPv4 header.
    Checksum,
    /// Source address.
    Source,
    /// Destination address.
    Destination,
    /// UDP ports.
    Ports,
    /// UDP checksum.
    UdpChecksum,
    /// Bytes missing at the end.
    Truncated,
    /// Bytes after the end.
    Appended,
    /// Payload.
    Payload,
    /// Arrival at a port that is not the next hop's.
    Stray,
    /// Arrival at the port that sent the packet.
    Returned,
    /// Second arrival.
    Duplicate,
    /// Arrival after a packet sent later.
    Reordered,
    /// Arrival after the drain time.
    Late,
}

impl FaultKind {
    /// All kinds, in order.
    pub const ALL: [FaultKind; 23] = [
        FaultKind::Mac,
        FaultKind::Depth,
        FaultKind::Label,
        FaultKind::LabelClass,
        FaultKind::LabelTtl,
        FaultKind::Class,
        FaultKind::Length,
        FaultKind::Identification,
        FaultKind::Fragment,
        FaultKind::Ttl,
        FaultKind::Checksum,
        FaultKind::Source,
        FaultKind::Destination,
        FaultKind::Ports,
        FaultKind::UdpChecksum,
        FaultKind::Truncated,
        FaultKind::Appended,
        FaultKind::Payload,
        FaultKind::Stray,
        FaultKind::Returned,
        FaultKind::Duplicate,
        FaultKind::Reordered,
        FaultKind::Late,
    ];

    /// Returns the name in records and reports.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Mac => "wrong MAC address",
            FaultKind::Depth => "wrong number of labels",
            FaultKind::Label => "wrong label",
            FaultKind::LabelClass => "wrong EXP",
            FaultKind::LabelTtl => "wrong label TTL",
            FaultKind::Class => "wrong DSCP",
            FaultKind::Length => "wrong length field",
            FaultKind::Identification => "changed IP identification",
            FaultKind::Fragment => "changed fragment field",
            FaultKind::Ttl => "wrong TTL",
            FaultKind::Checksum => "wrong IP checksum",
            FaultKind::Source => "wrong source",
            FaultKind::Destination => "wrong destination",
            FaultKind::Ports => "changed UDP ports",
            FaultKind::UdpChecksum => "wrong UDP checksum",
            FaultKind::Truncated => "truncated",
            FaultKind::Appended => "bytes appended",
            FaultKind::Payload => "changed payload",
            FaultKind::Stray => "wrong port",
            FaultKind::Returned => "sent back",
            FaultKind::Duplicate => "duplicate",
            FaultKind::Reordered => "reordered",
            FaultKind::Late => "late",
        }
    }

    /// Returns whether the packet's bytes are wrong.
    pub fn is_of_contents(self) -> bool {
        self < FaultKind::Stray
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_the_order_of_the_program() {
        for (number, kind) in FaultKind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number, "{kind:?}");
        }
    }
}
