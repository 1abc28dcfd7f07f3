//! A packet to forward, and the decision about it.

use core::fmt;

/// Protocol of a packet, without its link-layer header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketProtocol {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// MPLS label stack.
    Mpls,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardingVerdict {
    /// Send the packet to a hop.
    Send {
        /// Number of the hop.
        hop: u32,
        /// Offset of the packet in the buffer after its modification.
        start: usize,
        /// Protocol of the packet after its modification.
        kind: PacketProtocol,
    },
    /// Deliver the packet to this router.
    Local {
        /// Offset of the rest of the packet in the buffer.
        start: usize,
        /// Protocol of the rest.
        kind: PacketProtocol,
    },
    /// Fragment the packet and forward each fragment: it exceeds the MTU of the hop and fragmentation is
    /// allowed.
    Fragment {
        /// Maximum size of a fragment in bytes.
        mtu: u16,
        /// Offset of the packet to fragment in the buffer.
        start: usize,
    },
    /// Discard the packet, and possibly send an ICMP error to its sender. The packet is unchanged.
    Reject(ReportableError),
    /// Discard the packet silently.
    Drop(DropReason),
}

/// Reason for discarding a packet that can be reported to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportableError {
    /// The time to live is exhausted.
    TtlExceeded,
    /// The packet exceeds the MTU of the link, which is this many bytes without labels.
    TooBig(u16),
    /// No route matches the destination.
    NoRoute,
}

/// Reason for discarding a packet silently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The packet is malformed or its checksum is wrong.
    Malformed,
    /// The label is not assigned.
    UnknownLabel,
    /// The label was not advertised to the neighbors on the receiving interface.
    Unexpected,
    /// Source or destination that must not be forwarded: loopback, link-local, multicast, reserved or unspecified (RFC 1812,
    /// RFC 6890).
    Martian,
    /// No route leads back to the source (RFC 3704).
    Spoofed,
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

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DropReason::Malformed => "malformed",
            DropReason::UnknownLabel => "unknown label",
            DropReason::Unexpected => "label not expected on this interface",
            DropReason::Martian => "source or destination that must not be forwarded",
            DropReason::Spoofed => "no route back to the source",
            DropReason::Reserved => "reserved label",
            DropReason::TooDeep => "label stack too deep",
            DropReason::NoHop => "no next hop",
            DropReason::Discarded => "discarded by a route",
            DropReason::NoRoom => "no room for labels",
        })
    }
}

/// A packet in a buffer, with room for headers before it.
#[derive(Debug)]
pub struct BufferedPacket<'a> {
    /// The buffer, up to the end of the packet.
    pub bytes: &'a mut [u8],
    /// Offset of the packet.
    pub start: usize,
    /// Protocol of the packet.
    pub kind: PacketProtocol,
}
