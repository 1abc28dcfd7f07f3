//! Messages and their header, which is part of the message's bytes.
//!
//! Layout, big-endian: kind (1), zero (3), bytes (4), number (4), value (4), extent (8),
//! sent (8).

use crate::time::{Duration, Instant};
use core::fmt;
use serde::{Deserialize, Serialize};

/// Length of the header of a message, bytes.
pub const HEADER: u32 = 32;

/// A message: a number of bytes passed to the transport at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationMessage {
    /// Length, including the header.
    pub bytes: u32,
    /// Number assigned by the sender; a response has the number of its request.
    pub number: u32,
    /// Content.
    pub content: MessageContent,
    /// Time of sending.
    pub sent: Instant,
}

/// Content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageContent {
    /// Data, such as a response.
    Data,
    /// Request.
    Request {
        /// Size of the response, bytes; 0 for no response.
        answer: u32,
        /// Delay of the response at the server.
        after: Duration,
    },
    /// Request whose response is a [`Window`](MessageContent::Window).
    WindowRequest {
        /// Size of the response, bytes.
        answer: u32,
        /// Delay of the response at the server.
        after: Duration,
    },
    /// Response with the congestion window of its sender in bytes, which the driver sets when it writes the message.
    Window(u32),
    /// Part of a frame.
    Part {
        /// Number of the frame.
        frame: u32,
        /// Number of parts of the frame.
        parts: u32,
    },
}

/// Error of bytes that are not a valid message header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidMessageHeader;

impl fmt::Display for InvalidMessageHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid message header of an application model")
    }
}

impl core::error::Error for InvalidMessageHeader {}

const DATA: u8 = 0xa0;
const REQUEST: u8 = 0xa1;
const PART: u8 = 0xa2;
const WINDOW: u8 = 0xa3;
const WINDOW_REQUEST: u8 = 0xa4;

impl ApplicationMessage {
    /// Returns the encoded header.
    pub fn encode(&self) -> [u8; HEADER as usize] {
        let (kind, value, extent) = match self.content {
            MessageContent::Data => (DATA, 0, 0),
            MessageContent::Request { answer, after } => (REQUEST, answer, after.0),
            MessageContent::WindowRequest { answer, after } => (WINDOW_REQUEST, answer, after.0),
            MessageContent::Window(window) => (WINDOW, window, 0),
            MessageContent::Part { frame, parts } => (PART, frame, u64::from(parts)),
        };
        let mut header = [0; HEADER as usize];
        header[0] = kind;
        header[4..8].copy_from_slice(&self.bytes.to_be_bytes());
        header[8..12].copy_from_slice(&self.number.to_be_bytes());
        header[12..16].copy_from_slice(&value.to_be_bytes());
        header[16..24].copy_from_slice(&extent.to_be_bytes());
        header[24..32].copy_from_slice(&self.sent.0.to_be_bytes());
        header
    }

    /// Decodes a header. The length of the message must include the header.
    pub fn decode(header: &[u8; HEADER as usize]) -> Result<ApplicationMessage, InvalidMessageHeader> {
        let [kind, z1, z2, z3, b0, b1, b2, b3, n0, n1, n2, n3, v0, v1, v2, v3, rest @ ..] = *header;
        let word = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        let (extent, sent) = (word(&rest[..8]), Instant(word(&rest[8..])));
        let value = u32::from_be_bytes([v0, v1, v2, v3]);
        let content = match kind {
            DATA => MessageContent::Data,
            REQUEST => MessageContent::Request { answer: value, after: Duration(extent) },
            WINDOW_REQUEST => MessageContent::WindowRequest { answer: value, after: Duration(extent) },
            WINDOW => MessageContent::Window(value),
            PART => MessageContent::Part {
                frame: value,
                parts: u32::try_from(extent).map_err(|_| InvalidMessageHeader)?,
            },
            _ => return Err(InvalidMessageHeader),
        };
        let bytes = u32::from_be_bytes([b0, b1, b2, b3]);
        if [z1, z2, z3] != [0; 3] || bytes < HEADER {
            return Err(InvalidMessageHeader);
        }
        Ok(ApplicationMessage { bytes, number: u32::from_be_bytes([n0, n1, n2, n3]), content, sent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        let contents = [
            MessageContent::Data,
            MessageContent::Request { answer: 7, after: Duration(1 << 40) },
            MessageContent::WindowRequest { answer: 7, after: Duration(1 << 40) },
            MessageContent::Window(30_000),
            MessageContent::Part { frame: u32::MAX, parts: 12 },
        ];
        for content in contents {
            let message =
                ApplicationMessage { bytes: 1_000_000, number: 3, content, sent: Instant(u64::MAX - 1) };
            assert_eq!(ApplicationMessage::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn invalid_headers_are_rejected() {
        assert_eq!(ApplicationMessage::decode(&[0; 32]), Err(InvalidMessageHeader));
        let message =
            ApplicationMessage { bytes: 31, number: 0, content: MessageContent::Data, sent: Instant::ZERO };
        assert_eq!(ApplicationMessage::decode(&message.encode()), Err(InvalidMessageHeader));
    }
}
