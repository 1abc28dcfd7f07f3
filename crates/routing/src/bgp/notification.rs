//! NOTIFICATION messages (RFC 4271 section 4.5).

use std::fmt;

/// Content of a NOTIFICATION message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Error code.
    pub code: u8,
    /// Error subcode; its meaning depends on the code.
    pub subcode: u8,
    /// Data about the error.
    pub data: Vec<u8>,
}

/// Error codes of RFC 4271 section 4.5.
pub mod code {
    /// Message header error.
    pub const HEADER: u8 = 1;
    /// OPEN message error.
    pub const OPEN: u8 = 2;
    /// UPDATE message error.
    pub const UPDATE: u8 = 3;
    /// Hold timer expired.
    pub const HOLD_TIMER: u8 = 4;
    /// Finite state machine error.
    pub const STATE_MACHINE: u8 = 5;
    /// Cease.
    pub const CEASE: u8 = 6;
    /// ROUTE-REFRESH message error (RFC 7313 section 5).
    pub const ROUTE_REFRESH: u8 = 7;
}

/// Error subcodes sent by netstage.
pub mod subcode {
    /// Message header: invalid marker.
    pub const NOT_SYNCHRONIZED: u8 = 1;
    /// Message header: length not valid for the message type.
    pub const BAD_LENGTH: u8 = 2;
    /// Message header: unknown type.
    pub const BAD_TYPE: u8 = 3;
    /// OPEN: version other than 4.
    pub const UNSUPPORTED_VERSION: u8 = 1;
    /// OPEN: unexpected AS number.
    pub const BAD_PEER_AS: u8 = 2;
    /// OPEN: invalid identifier, or the same as the local one.
    pub const BAD_IDENTIFIER: u8 = 3;
    /// OPEN: unknown optional parameter.
    pub const UNSUPPORTED_PARAMETER: u8 = 4;
    /// OPEN: hold time of one or two seconds.
    pub const UNACCEPTABLE_HOLD_TIME: u8 = 6;
    /// OPEN: no common address family (RFC 5492 section 5).
    pub const UNSUPPORTED_CAPABILITY: u8 = 7;
    /// UPDATE: attribute length mismatch, or duplicate of an attribute that must be unique.
    pub const MALFORMED_ATTRIBUTES: u8 = 1;
    /// UPDATE: unknown well-known attribute.
    pub const UNRECOGNIZED_WELL_KNOWN: u8 = 2;
    /// UPDATE: error in an optional attribute that cannot be handled as a withdrawal.
    pub const OPTIONAL_ATTRIBUTE: u8 = 9;
    /// UPDATE: malformed prefixes.
    pub const INVALID_NETWORK: u8 = 10;
    /// State machine: unexpected message in OpenSent (RFC 6608 section 3).
    pub const IN_OPEN_SENT: u8 = 1;
    /// State machine: unexpected message in OpenConfirm.
    pub const IN_OPEN_CONFIRM: u8 = 2;
    /// State machine: unexpected message in Established.
    pub const IN_ESTABLISHED: u8 = 3;
    /// Cease: administrative shutdown (RFC 4486 section 4).
    pub const ADMINISTRATIVE_SHUTDOWN: u8 = 2;
    /// Cease: connection collision resolution (RFC 4486 section 4).
    pub const CONNECTION_COLLISION: u8 = 7;
}

impl Notification {
    /// Creates a notification without data.
    pub fn new(code: u8, subcode: u8) -> Notification {
        Notification { code, subcode, data: Vec::new() }
    }

    /// Creates a notification with data.
    pub fn with(code: u8, subcode: u8, data: &[u8]) -> Notification {
        Notification { code, subcode, data: data.to_vec() }
    }

    /// Parses the body of a message; unknown codes are accepted. Returns `None` if the body is too short.
    pub fn read(body: &[u8]) -> Option<Notification> {
        let [code, subcode, data @ ..] = body else { return None };
        Some(Notification::with(*code, *subcode, data))
    }
}

impl fmt::Display for Notification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match (self.code, self.subcode) {
            (code::HEADER, subcode::NOT_SYNCHRONIZED) => "connection not synchronized",
            (code::HEADER, subcode::BAD_LENGTH) => "bad message length",
            (code::HEADER, subcode::BAD_TYPE) => "bad message type",
            (code::HEADER, _) => "message header error",
            (code::OPEN, subcode::UNSUPPORTED_VERSION) => "unsupported version",
            (code::OPEN, subcode::BAD_PEER_AS) => "bad peer AS",
            (code::OPEN, subcode::BAD_IDENTIFIER) => "bad BGP identifier",
            (code::OPEN, subcode::UNSUPPORTED_PARAMETER) => "unsupported optional parameter",
            (code::OPEN, subcode::UNACCEPTABLE_HOLD_TIME) => "unacceptable hold time",
            (code::OPEN, subcode::UNSUPPORTED_CAPABILITY) => "unsupported capability",
            (code::OPEN, _) => "OPEN message error",
            (code::UPDATE, subcode::MALFORMED_ATTRIBUTES) => "malformed attribute list",
            (code::UPDATE, subcode::UNRECOGNIZED_WELL_KNOWN) => "unrecognized well-known attribute",
            (code::UPDATE, subcode::OPTIONAL_ATTRIBUTE) => "optional attribute error",
            (code::UPDATE, subcode::INVALID_NETWORK) => "invalid network field",
            (code::UPDATE, _) => "UPDATE message error",
            (code::HOLD_TIMER, _) => "hold timer expired",
            (code::STATE_MACHINE, _) => "finite state machine error",
            (code::CEASE, subcode::ADMINISTRATIVE_SHUTDOWN) => "administrative shutdown",
            (code::CEASE, subcode::CONNECTION_COLLISION) => "connection collision",
            (code::CEASE, _) => "cease",
            (code::ROUTE_REFRESH, _) => "ROUTE-REFRESH message error",
            _ => "unknown error",
        };
        write!(f, "{name} ({}/{})", self.code, self.subcode)
    }
}
