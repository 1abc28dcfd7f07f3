//! Label distribution protocol (RFC 5036): PDUs, messages and their TLVs.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |          Version 1            |  PDU length                   |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                       LSR ID of the sender                    |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |        Label space            |U|  Message type               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Message length               |  Message ID …
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  … Message ID                 |U|F|  TLV type                 |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Value length                 |  Value …
//! ```
//!
//! - [`Pdu`]: framing of PDUs in a stream; [`RawMessage`]: TLVs of a message.
//! - [`message`]: parsed messages.
//! - [`write`]: messages to be written.
//!
//! Errors are [`LdpStatus`] codes to be sent to the peer (RFC 5036 section 3.5.1).

pub mod message;
pub mod write;

use crate::bytes::{u16_at, u32_at};
use core::fmt;
use core::net::Ipv4Addr;

/// UDP port for discovery and TCP port for sessions.
pub const PORT: u16 = 646;
/// Multicast group for discovery: all routers on the link.
pub const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// Length of the PDU header, bytes.
pub const HEADER: usize = 10;
/// Maximum PDU length until an initialization message changes it, bytes (section 3.1).
pub const MAX_PDU_LENGTH: usize = 4096;
/// Lengths of the message header and the TLV header, bytes.
const MESSAGE: usize = 8;
const TLV: usize = 4;
/// The length fields of PDUs and messages do not count these first bytes: version and length, type and
/// length.
const BEFORE_LENGTH: usize = 4;

/// U bit of message and TLV types: receivers that do not know the type ignore it silently.
const OPTIONAL: u16 = 0x8000;

/// Status code sent to a peer, and reason for the end of a session (section 3.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LdpStatus(pub u32);

#[allow(missing_docs)]
impl LdpStatus {
    pub const SUCCESS: LdpStatus = LdpStatus(0);
    pub const BAD_IDENTIFIER: LdpStatus = LdpStatus(0x8000_0001);
    pub const BAD_VERSION: LdpStatus = LdpStatus(0x8000_0002);
    pub const BAD_PDU_LENGTH: LdpStatus = LdpStatus(0x8000_0003);
    pub const UNKNOWN_MESSAGE: LdpStatus = LdpStatus(0x0000_0004);
    pub const BAD_MESSAGE_LENGTH: LdpStatus = LdpStatus(0x8000_0005);
    pub const UNKNOWN_TLV: LdpStatus = LdpStatus(0x0000_0006);
    pub const BAD_TLV_LENGTH: LdpStatus = LdpStatus(0x8000_0007);
    pub const MALFORMED_TLV: LdpStatus = LdpStatus(0x8000_0008);
    pub const HOLD_TIMER_EXPIRED: LdpStatus = LdpStatus(0x8000_0009);
    pub const SHUTDOWN: LdpStatus = LdpStatus(0x8000_000a);
    pub const LOOP_DETECTED: LdpStatus = LdpStatus(0x0000_000b);
    pub const UNKNOWN_FEC: LdpStatus = LdpStatus(0x0000_000c);
    pub const NO_ROUTE: LdpStatus = LdpStatus(0x0000_000d);
    pub const NO_HELLO: LdpStatus = LdpStatus(0x8000_0010);
    pub const KEEPALIVE_EXPIRED: LdpStatus = LdpStatus(0x8000_0014);
    pub const REQUEST_ABORTED: LdpStatus = LdpStatus(0x0000_0015);
    pub const MISSING_PARAMETERS: LdpStatus = LdpStatus(0x0000_0016);
    pub const UNSUPPORTED_FAMILY: LdpStatus = LdpStatus(0x0000_0017);
    pub const BAD_KEEPALIVE: LdpStatus = LdpStatus(0x8000_0018);
    pub const INTERNAL_ERROR: LdpStatus = LdpStatus(0x8000_0019);

    /// Returns `true` if the status ends the session.
    pub const fn is_fatal(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl fmt::Display for LdpStatus {
    /// Writes the name of the status (section 4.4).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The E (fatal) and F (forward) bits are not part of the name.
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

/// LDP identifier: a router and one of its label spaces; label space zero is platform-wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identifier {
    /// LSR ID of the router.
    pub router: Ipv4Addr,
    /// Label space.
    pub space: u16,
}

/// PDU with a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pdu<'a> {
    /// Identifier of the sender.
    pub sender: Identifier,
    messages: &'a [u8],
}

impl<'a> Pdu<'a> {
    /// Returns the length of the first PDU of a stream that starts with these bytes, or `None` if they are
    /// too few. `max_length` is the limit negotiated with the peer.
    pub fn length(stream: &[u8], max_length: usize) -> Result<Option<usize>, LdpStatus> {
        let Some(head) = stream.first_chunk::<BEFORE_LENGTH>() else { return Ok(None) };
        if u16_at(head, 0) != 1 {
            return Err(LdpStatus::BAD_VERSION);
        }
        let length = BEFORE_LENGTH + usize::from(u16_at(head, 2));
        if length < HEADER + MESSAGE || length > max_length {
            return Err(LdpStatus::BAD_PDU_LENGTH);
        }
        Ok(Some(length))
    }

    /// Parses a datagram or a PDU cut out of a stream by [`Pdu::length`].
    pub fn new(bytes: &'a [u8], max_length: usize) -> Result<Pdu<'a>, LdpStatus> {
        let length = Pdu::length(bytes, max_length)?.ok_or(LdpStatus::BAD_PDU_LENGTH)?;
        let bytes = bytes.get(..length).ok_or(LdpStatus::BAD_PDU_LENGTH)?;
        let sender = Identifier { router: u32_at(bytes, 4).into(), space: u16_at(bytes, 8) };
        if sender.router.is_unspecified() {
            return Err(LdpStatus::BAD_IDENTIFIER);
        }
        Ok(Pdu { sender, messages: &bytes[HEADER..] })
    }

    /// Iterates over the messages; ends after the first one with an invalid length.
    pub fn messages(&self) -> impl Iterator<Item = Result<RawMessage<'a>, LdpStatus>> + use<'a> {
        let mut rest = self.messages;
        core::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let found = RawMessage::first(rest);
            rest = found.map_or(&[], |(_, rest)| rest);
            Some(found.map(|(message, _)| message))
        })
    }
}

/// Message with unparsed TLVs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawMessage<'a> {
    /// Message type without the U bit.
    pub kind: u16,
    /// U bit: receivers that do not know the type ignore the message silently.
    pub is_optional: bool,
    /// Message ID.
    pub id: u32,
    tlvs: &'a [u8],
}

impl<'a> RawMessage<'a> {
    fn first(bytes: &'a [u8]) -> Result<(RawMessage<'a>, &'a [u8]), LdpStatus> {
        let head = bytes.first_chunk::<MESSAGE>().ok_or(LdpStatus::BAD_MESSAGE_LENGTH)?;
        let length = BEFORE_LENGTH + usize::from(u16_at(head, 2));
        let (message, rest) = bytes.split_at_checked(length).ok_or(LdpStatus::BAD_MESSAGE_LENGTH)?;
        let tlvs = message.get(MESSAGE..).ok_or(LdpStatus::BAD_MESSAGE_LENGTH)?;
        let kind = u16_at(head, 0);
        let (is_optional, kind) = (kind & OPTIONAL != 0, kind & 0x7fff);
        Ok((RawMessage { kind, is_optional, id: u32_at(head, 4), tlvs }, rest))
    }

    /// Iterates over the TLVs; ends after the first one with an invalid length.
    pub fn tlvs(&self) -> impl Iterator<Item = Result<Tlv<'a>, LdpStatus>> + use<'a> {
        tlvs(self.tlvs)
    }
}

/// Parameter of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// TLV type without the U and F bits.
    pub kind: u16,
    /// U bit: receivers that do not know the type ignore the TLV silently.
    pub is_optional: bool,
    /// F bit: receivers that do not know the type forward the TLV with the message.
    pub is_forwarded: bool,
    /// TLV value.
    pub value: &'a [u8],
}

fn tlvs<'a>(bytes: &'a [u8]) -> impl Iterator<Item = Result<Tlv<'a>, LdpStatus>> + use<'a> {
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

fn first_tlv(bytes: &[u8]) -> Result<(Tlv<'_>, &[u8]), LdpStatus> {
    let (head, rest) = bytes.split_first_chunk::<TLV>().ok_or(LdpStatus::BAD_TLV_LENGTH)?;
    let (value, rest) =
        rest.split_at_checked(usize::from(u16_at(head, 2))).ok_or(LdpStatus::BAD_TLV_LENGTH)?;
    let kind = u16_at(head, 0);
    let (is_optional, is_forwarded) = (kind & OPTIONAL != 0, kind & 0x4000 != 0);
    Ok((Tlv { kind: kind & 0x3fff, is_optional, is_forwarded, value }, rest))
}

#[cfg(test)]
mod tests;
