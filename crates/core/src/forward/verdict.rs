//! A packet that is decided about, and what is to happen with it.

use core::fmt;

/// What a packet is, without its link's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// A label stack.
    Mpls,
}

/// What is to happen with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It leaves by this hop; it begins there in the buffer now, and is of this kind.
    Send {
        /// The hop, by number.
        hop: u32,
        /// Where it begins.
        start: usize,
        /// What it is.
        kind: Kind,
    },
    /// It is for this router: what is left of it begins there.
    Local {
        /// Where it begins.
        start: usize,
        /// What it is.
        kind: Kind,
    },
    /// It does not fit the hop's link, and may be divided: what is to be divided begins there, each piece
    /// to be forwarded by itself.
    Divide {
        /// Bytes of the largest piece.
        mtu: u16,
        /// Where it begins.
        start: usize,
    },
    /// It goes no further, and its sender may be told. Nothing of it is changed.
    Refuse(Fault),
    /// It goes no further, and nobody is told.
    Drop(Reason),
}

/// Of what a sender is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No time to live is left.
    TtlExceeded,
    /// The link takes so many bytes of it, without its labels.
    TooBig(u16),
    /// No route holds its destination.
    NoRoute,
}

/// Why a packet goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It is no packet of its kind, or its checksum is wrong.
    Malformed,
    /// No such label was given out.
    UnknownLabel,
    /// The label was not given to who is behind that interface.
    Unexpected,
    /// A reserved label stands where it may not, or has no meaning here.
    Reserved,
    /// More labels than a stack may have.
    TooDeep,
    /// What it leads to has no hop.
    NoHop,
    /// It is to be dropped.
    Discarded,
    /// There is no room before it for its labels.
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

/// A packet in a buffer, with room before it.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The buffer, to the packet's end.
    pub bytes: &'a mut [u8],
    /// Where the packet begins.
    pub start: usize,
    /// What it is.
    pub kind: Kind,
}
