//! Messages between FRR's bfdd and a data plane that runs its sessions (distributed BFD), versions 1 and 2.
//!
//! ```text
//! header:   version (8 bits), zero (8), type (16), identification (16), length (16)
//! session:  flags (32), source (128), destination (128), discriminator (32), desired and required interval (32 each),
//!           echo intervals (32 each), hold time (32), TTL (8), multiplier (8), zero (16), interface index (32),
//!           interface name (64 bytes)
//! state:    discriminator, remote discriminator, remote flags, desired, required and echo interval (32 each),
//!           state (8), diagnostic (8), multiplier (8), zero (8)
//! counters: discriminator (32), bytes and packets received and sent, the same of echo packets (64 each)
//! echo:     time of the data plane (64), time of bfdd (64)
//! ```
//! Integers are big-endian, intervals in microseconds. Version 2 appends fields to the session, which concern other
//! kinds of sessions. Reading and writing never panic, whatever the bytes.

use crate::bfd::{BfdState, Diagnostic};
use crate::bytes::{put, u16_at, u32_at, u64_at};
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of the header, bytes.
pub const HEADER: usize = 8;
/// Maximum length of a message, bytes; those known are shorter.
pub const MAX_MESSAGE: usize = 1_024;

/// Maximum length of a report, bytes.
pub const MAX_REPORT: usize = COUNTERS;

const VERSIONS: core::ops::RangeInclusive<u8> = 1..=2;
const SESSION: usize = HEADER + 132;
const INTERFACE_NAME: core::ops::Range<usize> = HEADER + 68..SESSION;
const STATE: usize = HEADER + 28;
const COUNTERS: usize = HEADER + 68;
const ECHO: usize = HEADER + 16;

const MULTIHOP: u32 = 1;
const IPV6: u32 = 1 << 4;
const SHUTDOWN: u32 = 1 << 6;

/// Message types.
mod kind {
    pub const ECHO_REQUEST: u16 = 0;
    pub const ECHO_REPLY: u16 = 1;
    pub const ADD_SESSION: u16 = 2;
    pub const DELETE_SESSION: u16 = 3;
    pub const STATE_CHANGE: u16 = 4;
    pub const REQUEST_COUNTERS: u16 = 5;
    pub const COUNTERS: u16 = 6;
}

/// Header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneHeader {
    /// Version, which answers repeat.
    pub version: u8,
    /// Length of the message with its header, bytes.
    pub length: usize,
    kind: u16,
    identification: u16,
}

/// Session that the data plane is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneSession<'a> {
    /// Discriminator of bfdd, which names the session in all messages.
    pub discriminator: u32,
    /// Address of the neighbor.
    pub neighbor: IpAddr,
    /// Name of the interface; empty if bfdd knows none.
    pub interface: &'a str,
    /// The neighbor is not on a link of this system (RFC 5883).
    pub is_multihop: bool,
    /// The operator has disabled the session.
    pub is_disabled: bool,
    /// Minimum transmit interval, microseconds.
    pub desired_min_tx: u32,
    /// Minimum interval of received packets, microseconds.
    pub required_min_rx: u32,
    /// Detect multiplier.
    pub detect_multiplier: u8,
}

/// Message of bfdd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneRequest<'a> {
    /// Add a session, or change it.
    Set(PlaneSession<'a>),
    /// Delete a session.
    Delete(PlaneSession<'a>),
    /// Send counters of a session.
    Counters {
        /// Identification of the answer.
        identification: u16,
        /// Session.
        discriminator: u32,
    },
    /// Answer at once.
    Echo {
        /// Identification of the answer.
        identification: u16,
        /// Times to be returned.
        times: [u64; 2],
    },
    /// A message of another type, which a data plane ignores.
    Other(u16),
}

/// Message to bfdd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneReport {
    /// State of a session.
    State(PlaneState),
    /// Counters of a session.
    Counters {
        /// Identification of the request.
        identification: u16,
        /// Session.
        discriminator: u32,
        /// Received packets and their bytes.
        received: [u64; 2],
        /// Sent packets and their bytes.
        sent: [u64; 2],
    },
    /// Answer to [`PlaneRequest::Echo`].
    Echo {
        /// Identification of the request.
        identification: u16,
        /// Times of the request.
        times: [u64; 2],
    },
}

/// State of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneState {
    /// Session.
    pub discriminator: u32,
    /// State of this system.
    pub state: BfdState,
    /// Discriminator of the neighbor.
    pub remote_discriminator: u32,
    /// Minimum transmit interval of the neighbor, microseconds.
    pub remote_desired_min_tx: u32,
    /// Minimum interval of packets that the neighbor receives, microseconds.
    pub remote_required_min_rx: u32,
    /// Diagnostic of the neighbor.
    pub remote_diagnostic: Diagnostic,
    /// Detect multiplier of the neighbor.
    pub remote_detect_multiplier: u8,
}

/// Reasons why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneError {
    /// The bytes end too early.
    Short,
    /// Unknown version.
    Version(u8),
    /// The length is below that of the header, or above [`MAX_MESSAGE`].
    Length(usize),
    /// The interface name is not text.
    InterfaceName,
}

impl fmt::Display for PlaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlaneError::Short => f.write_str("message too short"),
            PlaneError::Version(version) => write!(f, "unknown version {version}"),
            PlaneError::Length(length) => write!(f, "message of {length} B"),
            PlaneError::InterfaceName => f.write_str("interface name is not text"),
        }
    }
}

impl core::error::Error for PlaneError {}

impl PlaneHeader {
    /// Reads a header.
    pub fn read(bytes: &[u8; HEADER]) -> Result<PlaneHeader, PlaneError> {
        let (version, length) = (bytes[0], usize::from(u16_at(bytes, 6)));
        if !VERSIONS.contains(&version) {
            return Err(PlaneError::Version(version));
        }
        if !(HEADER..=MAX_MESSAGE).contains(&length) {
            return Err(PlaneError::Length(length));
        }
        Ok(PlaneHeader { version, length, kind: u16_at(bytes, 2), identification: u16_at(bytes, 4) })
    }
}

impl<'a> PlaneRequest<'a> {
    /// Reads a message, header included. Bytes after the known fields are ignored.
    pub fn read(bytes: &'a [u8]) -> Result<(PlaneHeader, PlaneRequest<'a>), PlaneError> {
        let header = PlaneHeader::read(bytes.first_chunk().ok_or(PlaneError::Short)?)?;
        let message = bytes.get(..header.length).ok_or(PlaneError::Short)?;
        let identification = header.identification;
        let needs = |length: usize| if message.len() < length { Err(PlaneError::Short) } else { Ok(()) };
        let request = match header.kind {
            kind::ADD_SESSION => PlaneRequest::Set(PlaneSession::read(message)?),
            kind::DELETE_SESSION => PlaneRequest::Delete(PlaneSession::read(message)?),
            kind::REQUEST_COUNTERS => {
                needs(HEADER + 4)?;
                PlaneRequest::Counters { identification, discriminator: u32_at(message, HEADER) }
            }
            kind::ECHO_REQUEST => {
                needs(ECHO)?;
                let times = [u64_at(message, HEADER), u64_at(message, HEADER + 8)];
                PlaneRequest::Echo { identification, times }
            }
            other => PlaneRequest::Other(other),
        };
        Ok((header, request))
    }
}

impl<'a> PlaneSession<'a> {
    fn read(message: &'a [u8]) -> Result<PlaneSession<'a>, PlaneError> {
        if message.len() < SESSION {
            return Err(PlaneError::Short);
        }
        let at = |field: usize| u32_at(message, HEADER + field);
        let flags = at(0);
        let destination: [u8; 16] = core::array::from_fn(|byte| message[HEADER + 20 + byte]);
        let neighbor = match destination {
            _ if flags & IPV6 != 0 => Ipv6Addr::from(destination).into(),
            [a, b, c, d, ..] => Ipv4Addr::new(a, b, c, d).into(),
        };
        let name = message[INTERFACE_NAME].split(|byte| *byte == 0).next().unwrap_or_default();
        let interface = str::from_utf8(name).map_err(|_| PlaneError::InterfaceName)?;
        Ok(PlaneSession {
            discriminator: at(36),
            neighbor,
            interface,
            is_multihop: flags & MULTIHOP != 0,
            is_disabled: flags & SHUTDOWN != 0,
            desired_min_tx: at(40),
            required_min_rx: at(44),
            detect_multiplier: message[HEADER + 61],
        })
    }
}

impl PlaneReport {
    /// Writes the message; returns its length.
    pub fn write(&self, version: u8, bytes: &mut [u8; MAX_REPORT]) -> usize {
        match *self {
            PlaneReport::State(state) => {
                let length = begin(bytes, version, kind::STATE_CHANGE, 0, STATE);
                let fields = [
                    state.discriminator,
                    state.remote_discriminator,
                    0,
                    state.remote_desired_min_tx,
                    state.remote_required_min_rx,
                ];
                for (number, field) in fields.into_iter().enumerate() {
                    put(bytes, HEADER + 4 * number, &field.to_be_bytes());
                }
                let last =
                    [state.state.code(), state.remote_diagnostic.code(), state.remote_detect_multiplier];
                put(bytes, HEADER + 24, &last);
                length
            }
            PlaneReport::Counters { identification, discriminator, received, sent } => {
                let length = begin(bytes, version, kind::COUNTERS, identification, COUNTERS);
                put(bytes, HEADER, &discriminator.to_be_bytes());
                let [[packets_in, bytes_in], [packets_out, bytes_out]] = [received, sent];
                let counts = [bytes_in, packets_in, bytes_out, packets_out];
                for (number, count) in counts.into_iter().enumerate() {
                    put(bytes, HEADER + 4 + 8 * number, &count.to_be_bytes());
                }
                length
            }
            PlaneReport::Echo { identification, times } => {
                let length = begin(bytes, version, kind::ECHO_REPLY, identification, ECHO);
                put(bytes, HEADER, &times[0].to_be_bytes());
                put(bytes, HEADER + 8, &times[1].to_be_bytes());
                length
            }
        }
    }
}

/// Writes a header before fields of zero; returns the length of the message.
fn begin(bytes: &mut [u8], version: u8, kind: u16, identification: u16, length: usize) -> usize {
    bytes.fill(0);
    bytes[0] = version;
    put(bytes, 2, &kind.to_be_bytes());
    put(bytes, 4, &identification.to_be_bytes());
    put(bytes, 6, &(length as u16).to_be_bytes());
    length
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    fn message(version: u8, kind: u16, identification: u16, length: usize) -> Vec<u8> {
        let mut message = vec![0; length];
        begin(&mut message, version, kind, identification, length);
        message
    }

    fn written(report: PlaneReport, version: u8) -> Vec<u8> {
        let mut bytes = [0xff; MAX_REPORT];
        let length = report.write(version, &mut bytes);
        bytes[..length].to_vec()
    }

    /// A session of bfdd 8.4.4 with a neighbor on `core0`.
    fn session() -> Vec<u8> {
        let mut bytes = message(1, kind::ADD_SESSION, 0, SESSION);
        put(&mut bytes, HEADER + 20, &[192, 0, 2, 2]);
        put(&mut bytes, HEADER + 36, &7_u32.to_be_bytes());
        put(&mut bytes, HEADER + 40, &10_000_u32.to_be_bytes());
        put(&mut bytes, HEADER + 44, &20_000_u32.to_be_bytes());
        put(&mut bytes, HEADER + 60, &[255, 3]);
        put(&mut bytes, HEADER + 68, b"core0");
        bytes
    }

    #[test]
    fn sessions_are_read() {
        let mut bytes = session();
        let expected = PlaneSession {
            discriminator: 7,
            neighbor: "192.0.2.2".parse().unwrap(),
            interface: "core0",
            is_multihop: false,
            is_disabled: false,
            desired_min_tx: 10_000,
            required_min_rx: 20_000,
            detect_multiplier: 3,
        };
        let (header, request) = PlaneRequest::read(&bytes).unwrap();
        assert_eq!((header.version, header.length), (1, 140));
        assert_eq!(request, PlaneRequest::Set(expected));

        // Version 2 is longer.
        bytes.extend([0; 216]);
        (bytes[0], bytes[3]) = (2, kind::DELETE_SESSION as u8);
        let length = bytes.len() as u16;
        put(&mut bytes, 6, &length.to_be_bytes());
        put(&mut bytes, HEADER, &(IPV6 | SHUTDOWN | MULTIHOP).to_be_bytes());
        put(&mut bytes, HEADER + 20, &"2001:db8::2".parse::<Ipv6Addr>().unwrap().octets());
        let neighbor = "2001:db8::2".parse().unwrap();
        let expected = PlaneSession { neighbor, is_multihop: true, is_disabled: true, ..expected };
        assert_eq!(PlaneRequest::read(&bytes).unwrap().1, PlaneRequest::Delete(expected));
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let read = |bytes: &[u8]| PlaneRequest::read(bytes).unwrap_err();
        let mut bytes = session();
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), PlaneError::Short);
        }
        bytes[HEADER + 68] = 0xff;
        assert_eq!(read(&bytes), PlaneError::InterfaceName);
        bytes[7] = 139;
        assert_eq!(read(&bytes), PlaneError::Short, "a length below that of a session");
        bytes[7] = 7;
        assert_eq!(read(&bytes), PlaneError::Length(7));
        bytes[0] = 3;
        assert_eq!(read(&bytes), PlaneError::Version(3));
        for (kind, length) in [(kind::REQUEST_COUNTERS, HEADER + 4), (kind::ECHO_REQUEST, ECHO)] {
            assert_eq!(read(&message(1, kind, 0, length - 1)), PlaneError::Short);
            assert!(PlaneRequest::read(&message(1, kind, 0, length)).is_ok());
        }
    }

    #[test]
    fn reports_have_the_layout_of_bfdd() {
        let state = PlaneReport::State(PlaneState {
            discriminator: 7,
            state: BfdState::Up,
            remote_discriminator: 8,
            remote_desired_min_tx: 1,
            remote_required_min_rx: 2,
            remote_diagnostic: Diagnostic::CONTROL_DETECTION_TIME_EXPIRED,
            remote_detect_multiplier: 5,
        });
        let expected = [
            [1, 0, 0, 4, 0, 0, 0, 36],
            [0, 0, 0, 7, 0, 0, 0, 8],
            [0, 0, 0, 0, 0, 0, 0, 1],
            [0, 0, 0, 2, 0, 0, 0, 0],
        ];
        assert_eq!(written(state, 1), [expected.as_flattened(), &[3, 1, 5, 0]].concat());
        let counters =
            PlaneReport::Counters { identification: 9, discriminator: 7, received: [1, 24], sent: [2, 48] };
        let bytes = written(counters, 2);
        assert_eq!((bytes.len(), &bytes[..12]), (76, &[2, 0, 0, 6, 0, 9, 0, 76, 0, 0, 0, 7][..]));
        assert_eq!([12, 20, 28, 36].map(|at| u64_at(&bytes, at)), [24, 1, 48, 2]);
        let echo = written(PlaneReport::Echo { identification: 3, times: [4, 5] }, 1);
        assert_eq!((echo.len(), echo[3], echo[5], echo[15], echo[23]), (24, 1, 3, 4, 5));
    }
}
