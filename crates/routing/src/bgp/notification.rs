//! NOTIFICATION messages (RFC 4271 section 4.5): why a session ends.

use std::fmt;

/// Error code, subcode and data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The error code.
    pub code: u8,
    /// What precisely, by code.
    pub subcode: u8,
    /// What it is about.
    pub data: Vec<u8>,
}

/// The error codes of RFC 4271 section 4.5.
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

/// Subcodes by which sessions here end.
pub mod subcode {
    /// Header: no marker.
    pub const NOT_SYNCHRONIZED: u8 = 1;
    /// Header: a length its type cannot have.
    pub const BAD_LENGTH: u8 = 2;
    /// Header: no such type.
    pub const BAD_TYPE: u8 = 3;
    /// OPEN: not version 4.
    pub const UNSUPPORTED_VERSION: u8 = 1;
    /// OPEN: another autonomous system than expected.
    pub const BAD_PEER_AS: u8 = 2;
    /// OPEN: no valid identifier, or our own.
    pub const BAD_IDENTIFIER: u8 = 3;
    /// OPEN: a parameter that is not known.
    pub const UNSUPPORTED_PARAMETER: u8 = 4;
    /// OPEN: one or two seconds.
    pub const UNACCEPTABLE_HOLD_TIME: u8 = 6;
    /// OPEN: no family in common (RFC 5492 section 5).
    pub const UNSUPPORTED_CAPABILITY: u8 = 7;
    /// UPDATE: the attributes do not fit their length, or one that may stand once stands twice.
    pub const MALFORMED_ATTRIBUTES: u8 = 1;
    /// UPDATE: a well-known attribute that is not known.
    pub const UNRECOGNIZED_WELL_KNOWN: u8 = 2;
    /// UPDATE: an optional attribute with an error no withdrawal mends.
    pub const OPTIONAL_ATTRIBUTE: u8 = 9;
    /// UPDATE: no prefixes.
    pub const INVALID_NETWORK: u8 = 10;
    /// State machine: unexpected in OpenSent (RFC 6608 section 3), and one more each in
    /// OpenConfirm and Established.
    pub const IN_OPEN_SENT: u8 = 1;
    /// State machine: unexpected in OpenConfirm.
    pub const IN_OPEN_CONFIRM: u8 = 2;
    /// State machine: unexpected in Established.
    pub const IN_ESTABLISHED: u8 = 3;
    /// Cease: by the administrator (RFC 4486 section 4).
    pub const ADMINISTRATIVE_SHUTDOWN: u8 = 2;
    /// Cease: one session of two (RFC 4486 section 4).
    pub const CONNECTION_COLLISION: u8 = 7;
}

impl Notification {
    /// Without data.
    pub fn new(code: u8, subcode: u8) -> Notification {
        Notification { code, subcode, data: Vec::new() }
    }

    /// With data.
    pub fn with(code: u8, subcode: u8, data: &[u8]) -> Notification {
        Notification { code, subcode, data: data.to_vec() }
    }

    /// What the body of a message says, codes that are not known included; none where it is
    /// too short.
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
