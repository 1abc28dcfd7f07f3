//! A packet to forward, and the decision about it.

use core::fmt;

/// Protocol of a packet, without its link-layer header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// MPLS label stack.
    Mpls,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Send the packet to a hop.
    Send {
        /// Number of the hop.
        hop: u32,
        /// Offset of the packet in the buffer after its modification.
        start: usize,
        /// Protocol of the packet after its modification.
        kind: Kind,
    },
    /// Deliver the packet to this router.
    Local {
        /// Offset of the rest of the packet in the buffer.
        start: usize,
        /// Protocol of the rest.
        kind: Kind,
    },
    /// Fragment the packet and forward each fragment: it exceeds the MTU of the hop and fragmentation is
    /// allowed.
    Divide {
        /// Maximum size of a fragment in bytes.
        mtu: u16,
        /// Offset of the packet to fragment in the buffer.
        start: usize,
    },
    /// Discard the packet, and possibly send an ICMP error to its sender. The packet is unchanged.
    Refuse(Fault),
    /// Discard the packet silently.
    Drop(Reason),
}

/// Reason for discarding a packet that can be reported to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The time to live is exhausted.
    TtlExceeded,
    /// The packet exceeds the MTU of the link, which is this many bytes without labels.
    TooBig(u16),
    /// No route matches the destination.
    NoRoute,
}

/// Reason for discarding a packet silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The packet is malformed or its checksum is wrong.
    Malformed,
    /// The label is not assigned.
    UnknownLabel,
    /// The label was not advertised to the neighbors on the receiving interface.
    Unexpected,
    /// A reserved label is misplaced or not supported.
    Reserved,
    /// The label stack is too deep.
    TooDeep,
    /// The target has no hop.
    NoHop,
    /// A route discards the packet.
    Discarded,
    /// The buffer has no room for labels before the packet.
    NoRoom,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::Malformed => "malformed",
            Reason::UnknownLabel => "unknown label",
            Reason::Unexpected => "label not expected on this interface",
            Reason::Reserved => "reserved label",
            Reason::TooDeep => "label stack too deep",
            Reason::NoHop => "no next hop",
            Reason::Discarded => "discarded by a route",
            Reason::NoRoom => "no room for labels",
        })
    }
}

/// A packet in a buffer, with room for headers before it.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The buffer, up to the end of the packet.
    pub bytes: &'a mut [u8],
    /// Offset of the packet.
    pub start: usize,
    /// Protocol of the packet.
    pub kind: Kind,
}
