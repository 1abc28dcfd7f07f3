//! The label distribution protocol (RFC 5036): PDUs, messages and their TLVs.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |          Version 1            |  Length of what follows       |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                       Router of the sender                    |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |        Label space            |U|  Message type               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Length of what follows       |  Message ID …
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  … Message ID                 |U|F|  TLV type                 |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Length of the value          |  Value …
//! ```
//!
//! - [`Pdu`]: the frame, and where it ends in a stream; [`Raw`]: a message's TLVs.
//! - [`message`]: what each message says.
//! - [`write`]: the same written.
//!
//! What is wrong is a [`Status`], which is what the sender is told (RFC 5036 section 3.5.1).

pub mod message;
pub mod write;

use crate::bytes::{u16_at, u32_at};
use core::fmt;
use core::net::Ipv4Addr;

/// UDP port of discovery and TCP port of sessions.
pub const PORT: u16 = 646;
/// Group of discovery: all routers on this link.
pub const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// Bytes of a PDU up to its first message.
pub const HEADER: usize = 10;
/// Longest PDU before an initialization says otherwise (section 3.1).
pub const MOST_BYTES: usize = 4096;
/// Bytes of a message up to its first TLV, and of a TLV up to its value.
const MESSAGE: usize = 8;
const TLV: usize = 4;
/// Version and length do not count into a PDU's length, type and length not into a message's.
const BEFORE_LENGTH: usize = 4;

/// What a peer is told, and why a session ends (section 3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

#[allow(missing_docs)]
impl Status {
    pub const SUCCESS: Status = Status(0);
    pub const BAD_IDENTIFIER: Status = Status(0x8000_0001);
    pub const BAD_VERSION: Status = Status(0x8000_0002);
    pub const BAD_PDU_LENGTH: Status = Status(0x8000_0003);
    pub const UNKNOWN_MESSAGE: Status = Status(0x0000_0004);
    pub const BAD_MESSAGE_LENGTH: Status = Status(0x8000_0005);
    pub const UNKNOWN_TLV: Status = Status(0x0000_0006);
    pub const BAD_TLV_LENGTH: Status = Status(0x8000_0007);
    pub const MALFORMED_TLV: Status = Status(0x8000_0008);
    pub const HOLD_TIMER_EXPIRED: Status = Status(0x8000_0009);
    pub const SHUTDOWN: Status = Status(0x8000_000a);
    pub const LOOP_DETECTED: Status = Status(0x0000_000b);
    pub const UNKNOWN_FEC: Status = Status(0x0000_000c);
    pub const NO_ROUTE: Status = Status(0x0000_000d);
    pub const NO_HELLO: Status = Status(0x8000_0010);
    pub const KEEPALIVE_EXPIRED: Status = Status(0x8000_0014);
    pub const REQUEST_ABORTED: Status = Status(0x0000_0015);
    pub const MISSING_PARAMETERS: Status = Status(0x0000_0016);
    pub const UNSUPPORTED_FAMILY: Status = Status(0x0000_0017);
    pub const BAD_KEEPALIVE: Status = Status(0x8000_0018);
    pub const INTERNAL_ERROR: Status = Status(0x8000_0019);

    /// The session ends with it.
    pub const fn is_fatal(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl fmt::Display for Status {
    /// Its name (section 4.4).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Who sends it says whether the session ends with it.
        let name = match self.0 & 0x3fff_ffff {
            0x0 => "success",
            0x1 => "bad LDP identifier",
            0x2 => "bad protocol version",
            0x3 => "bad PDU length",
            0x4 => "unknown message type",
            0x5 => "bad message length",
            0x6 => "unknown TLV",
            0x7 => "bad TLV length",
            0x8 => "malformed TLV value",
            0x9 => "hold timer expired",
            0xa => "shutdown",
            0xb => "loop detected",
            0xc => "unknown FEC",
            0xd => "no route",
            0xe => "no label resources",
            0xf => "label resources available",
            0x10 => "session rejected: no hello",
            0x11 => "session rejected: advertisement mode",
            0x12 => "session rejected: maximum PDU length",
            0x13 => "session rejected: label range",
            0x14 => "keepalive timer expired",
            0x15 => "label request aborted",
            0x16 => "missing message parameters",
            0x17 => "unsupported address family",
            0x18 => "session rejected: bad keepalive time",
            0x19 => "internal error",
            _ => return write!(f, "status {:#010x}", self.0),
        };
        f.write_str(name)
    }
}

/// Who sends: a router, and one of its label spaces; zero is that of the whole router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identifier {
    /// The router.
    pub router: Ipv4Addr,
    /// Its label space.
    pub space: u16,
}

/// A PDU whose frame is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pdu<'a> {
    /// Its sender.
    pub sender: Identifier,
    messages: &'a [u8],
}

impl<'a> Pdu<'a> {
    /// How many bytes of a stream that begins so belong to its first PDU; none while too few have come to
    /// say. `most` is what both ends have agreed on.
    pub fn length(stream: &[u8], most: usize) -> Result<Option<usize>, Status> {
        let Some(head) = stream.first_chunk::<BEFORE_LENGTH>() else { return Ok(None) };
        if u16_at(head, 0) != 1 {
            return Err(Status::BAD_VERSION);
        }
        let length = BEFORE_LENGTH + usize::from(u16_at(head, 2));
        if length < HEADER + MESSAGE || length > most {
            return Err(Status::BAD_PDU_LENGTH);
        }
        Ok(Some(length))
    }

    /// The PDU these bytes are, as [`Pdu::length`] has cut them, or a datagram.
    pub fn new(bytes: &'a [u8], most: usize) -> Result<Pdu<'a>, Status> {
        let length = Pdu::length(bytes, most)?.ok_or(Status::BAD_PDU_LENGTH)?;
        let bytes = bytes.get(..length).ok_or(Status::BAD_PDU_LENGTH)?;
        let sender = Identifier { router: u32_at(bytes, 4).into(), space: u16_at(bytes, 8) };
        if sender.router.is_unspecified() {
            return Err(Status::BAD_IDENTIFIER);
        }
        Ok(Pdu { sender, messages: &bytes[HEADER..] })
    }

    /// Its messages; after one whose length is wrong there is no other.
    pub fn messages(&self) -> impl Iterator<Item = Result<Raw<'a>, Status>> + use<'a> {
        let mut rest = self.messages;
        core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let found = Raw::first(rest);
            rest = found.map_or(&[], |(_, rest)| rest);
            Some(found.map(|(message, _)| message))
        })
    }
}

/// A message, its TLVs not looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw<'a> {
    /// Its type, without the bit that says what to do if it is unknown.
    pub kind: u16,
    /// Who does not know it ignores it, and tells nobody.
    pub is_optional: bool,
    /// What its sender numbered it.
    pub id: u32,
    tlvs: &'a [u8],
}

impl<'a> Raw<'a> {
    fn first(bytes: &'a [u8]) -> Result<(Raw<'a>, &'a [u8]), Status> {
        let head = bytes.first_chunk::<MESSAGE>().ok_or(Status::BAD_MESSAGE_LENGTH)?;
        let length = BEFORE_LENGTH + usize::from(u16_at(head, 2));
        let (message, rest) = bytes.split_at_checked(length).ok_or(Status::BAD_MESSAGE_LENGTH)?;
        let tlvs = message.get(MESSAGE..).ok_or(Status::BAD_MESSAGE_LENGTH)?;
        let kind = u16_at(head, 0);
        let (is_optional, kind) = (kind & 0x8000 != 0, kind & 0x7fff);
        Ok((Raw { kind, is_optional, id: u32_at(head, 4), tlvs }, rest))
    }

    /// Its TLVs; after one whose length is wrong there is no other.
    pub fn tlvs(&self) -> impl Iterator<Item = Result<Tlv<'a>, Status>> + use<'a> {
        tlvs(self.tlvs)
    }
}

/// A parameter of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// Its type, without the bits that say what to do if it is unknown.
    pub kind: u16,
    /// Who does not know it ignores it, and tells nobody.
    pub is_optional: bool,
    /// Who does not know it passes it on with the message.
    pub is_forwarded: bool,
    /// Its value.
    pub value: &'a [u8],
}

fn tlvs<'a>(bytes: &'a [u8]) -> impl Iterator<Item = Result<Tlv<'a>, Status>> + use<'a> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let found = first_tlv(rest);
        rest = found.map_or(&[], |(_, rest)| rest);
        Some(found.map(|(tlv, _)| tlv))
    })
}

fn first_tlv(bytes: &[u8]) -> Result<(Tlv<'_>, &[u8]), Status> {
    let (head, rest) = bytes.split_first_chunk::<TLV>().ok_or(Status::BAD_TLV_LENGTH)?;
    let (value, rest) = rest.split_at_checked(usize::from(u16_at(head, 2))).ok_or(Status::BAD_TLV_LENGTH)?;
    let kind = u16_at(head, 0);
    let (is_optional, is_forwarded) = (kind & 0x8000 != 0, kind & 0x4000 != 0);
    Ok((Tlv { kind: kind & 0x3fff, is_optional, is_forwarded, value }, rest))
}

#[cfg(test)]
mod tests;
