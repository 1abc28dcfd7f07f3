//! Resource reservation protocol with extensions for LSP tunnels (RSVP-TE): messages and their objects (RFC 2205,
//! 3209), refresh reduction (RFC 2961), authentication (RFC 2747, 3097), and fast reroute (RFC 4090).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! | Vers. | Flags |  Message type |  Checksum                     |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Send TTL     |  Reserved     |  Message length               |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Object length, a multiple of 4 bytes |  Class      |  C-Type  |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |  Object contents …
//! ```
//!
//! - [`RsvpPacket`]: framing of a message; [`object`]: its objects; [`route`]: hops of explicit and recorded routes.
//! - [`message`]: parsed and checked messages.
//! - [`write`]: messages to be written.

pub mod message;
pub mod object;
pub mod route;
pub mod write;

use crate::bytes::u16_at;
use crate::checksum::Sum;
use object::RawObject;

/// IP protocol number.
pub const PROTOCOL: u8 = 46;
/// Length of the message header, bytes.
pub const HEADER: usize = 8;
/// Length of the header of an object, bytes.
pub const OBJECT_HEADER: usize = 4;
/// Header flag of routers that reduce refreshes (RFC 2961 section 2).
pub const REFRESH_REDUCTION: u8 = 1;
const VERSION: u8 = 1;

/// Message types.
#[allow(missing_docs)]
pub mod kind {
    pub const PATH: u8 = 1;
    pub const RESV: u8 = 2;
    pub const PATH_ERROR: u8 = 3;
    pub const RESV_ERROR: u8 = 4;
    pub const PATH_TEAR: u8 = 5;
    pub const RESV_TEAR: u8 = 6;
    pub const RESV_CONFIRM: u8 = 7;
    pub const BUNDLE: u8 = 12;
    pub const ACK: u8 = 13;
    pub const SUMMARY_REFRESH: u8 = 15;
    pub const HELLO: u8 = 20;
    pub const INTEGRITY_CHALLENGE: u8 = 25;
    pub const INTEGRITY_RESPONSE: u8 = 26;
}

/// Error codes of ERROR_SPEC objects (RFC 2205 appendix B, RFC 3209 section 7.3).
#[allow(missing_docs)]
pub mod error_code {
    pub const CONFIRMATION: u8 = 0;
    pub const ADMISSION: u8 = 1;
    pub const NO_PATH: u8 = 3;
    pub const NO_SENDER: u8 = 4;
    pub const UNKNOWN_CLASS: u8 = 13;
    pub const UNKNOWN_TYPE: u8 = 14;
    pub const SYSTEM: u8 = 23;
    pub const ROUTING: u8 = 24;
    pub const NOTIFY: u8 = 25;
}

/// Values of the error code [`error_code::ROUTING`] (RFC 3209 section 7.3).
#[allow(missing_docs)]
pub mod routing_error {
    pub const BAD_EXPLICIT_ROUTE: u16 = 1;
    pub const BAD_STRICT_HOP: u16 = 2;
    pub const BAD_LOOSE_HOP: u16 = 3;
    pub const BAD_FIRST_HOP: u16 = 4;
    pub const NO_ROUTE: u16 = 5;
    pub const UNACCEPTABLE_LABEL: u16 = 6;
    pub const LOOP: u16 = 7;
    pub const NO_LABEL: u16 = 9;
    pub const UNSUPPORTED_PROTOCOL: u16 = 10;
}

/// Value of the error code [`error_code::NOTIFY`]: the LSP takes a bypass (RFC 3209 section 7.3, RFC 4090).
pub const LOCALLY_REPAIRED: u16 = 3;

/// Value of the error code [`error_code::ADMISSION`]: the requested bandwidth is not available.
pub const BANDWIDTH_UNAVAILABLE: u16 = 2;

/// Reason for rejecting a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RsvpError {
    /// Fewer bytes than the header, or than the message length.
    Short,
    /// Another protocol version.
    Version(u8),
    /// The message length is no multiple of four bytes or below the header's.
    Length,
    /// Wrong checksum.
    Checksum,
    /// Unknown message type.
    Kind(u8),
    /// The length of an object is no multiple of four bytes or reaches beyond the message.
    ObjectLength,
    /// Contents of an object of this class are invalid.
    Malformed(u8),
    /// Object of an unknown class, which forbids to ignore it (RFC 2205 section 3.10).
    UnknownClass(u8, u8),
    /// Object of a known class with an unsupported C-Type.
    UnknownType(u8, u8),
    /// An object of this class is missing.
    Missing(u8),
}

impl RsvpError {
    /// Returns the code and the value of an ERROR_SPEC that reports the error to the sender of a Path or Resv message;
    /// `None` if the error is not reported.
    pub const fn report(self) -> Option<(u8, u16)> {
        match self {
            RsvpError::UnknownClass(class, c_type) => {
                Some((error_code::UNKNOWN_CLASS, u16::from_be_bytes([class, c_type])))
            }
            RsvpError::UnknownType(class, c_type) => {
                Some((error_code::UNKNOWN_TYPE, u16::from_be_bytes([class, c_type])))
            }
            _ => None,
        }
    }
}

/// Message with a valid header and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RsvpPacket<'a> {
    /// Message type.
    pub kind: u8,
    /// Header flags.
    pub flags: u8,
    /// IP time to live with which the message was sent.
    pub ttl: u8,
    body: &'a [u8],
}

impl<'a> RsvpPacket<'a> {
    /// Parses the message at the start of `bytes`. A checksum of zero is not verified (RFC 2205 section 3.1.1).
    pub fn new(bytes: &'a [u8]) -> Result<RsvpPacket<'a>, RsvpError> {
        let head = bytes.first_chunk::<HEADER>().ok_or(RsvpError::Short)?;
        if head[0] >> 4 != VERSION {
            return Err(RsvpError::Version(head[0] >> 4));
        }
        let length = usize::from(u16_at(head, 6));
        if length < HEADER || !length.is_multiple_of(4) {
            return Err(RsvpError::Length);
        }
        let message = bytes.get(..length).ok_or(RsvpError::Short)?;
        if u16_at(head, 2) != 0 && Sum::ZERO.bytes(message).folded() != 0xffff {
            return Err(RsvpError::Checksum);
        }
        Ok(RsvpPacket { kind: head[1], flags: head[0] & 0xf, ttl: head[4], body: &message[HEADER..] })
    }

    /// Returns the length, bytes.
    pub const fn length(&self) -> usize {
        HEADER + self.body.len()
    }

    /// Iterates over the objects; ends after the first one with an invalid length.
    pub fn objects(&self) -> impl Iterator<Item = Result<RawObject<'a>, RsvpError>> + use<'a> {
        object::objects(self.body)
    }

    /// Iterates over the messages of a bundle (RFC 2961 section 3.3); ends after the first invalid one. Bundles within
    /// bundles are invalid. A message that is no bundle is its only message.
    pub fn messages(self) -> impl Iterator<Item = Result<RsvpPacket<'a>, RsvpError>> + use<'a> {
        let is_bundle = self.kind == kind::BUNDLE;
        let mut single = (!is_bundle).then_some(Ok(self));
        // INTEGRITY and acknowledgments may precede the messages. A message header begins with the version, an object
        // with the upper byte of its length, which is zero below 256 bytes.
        let mut rest = if is_bundle { self.body } else { &[] };
        core::iter::from_fn(move || {
            if let Some(single) = single.take() {
                return Some(single);
            }
            while let Some(first) = rest.first()
                && first >> 4 != VERSION
            {
                let Some(Ok(object)) = object::objects(rest).next() else {
                    rest = &[];
                    return Some(Err(RsvpError::ObjectLength));
                };
                rest = &rest[object.length()..];
            }
            if rest.is_empty() {
                return None;
            }
            let found = RsvpPacket::new(rest).and_then(|packet| match packet.kind {
                kind::BUNDLE => Err(RsvpError::Kind(kind::BUNDLE)),
                _ => Ok(packet),
            });
            rest = found.map_or(&[], |packet| &rest[packet.length()..]);
            Some(found)
        })
    }
}

#[cfg(test)]
mod tests;
