//! Reader of pcap and pcapng files (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng).
//!
//! No library is used, because a malformed packet must be reported by its number, and must not prevent reading
//! the others.

use std::fmt;
use std::io::{self, Read};

/// Maximum plausible length of a packet, or of a block of a pcapng file.
const MAX_LENGTH: usize = 16 << 20;

/// Captured packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedPacket {
    /// Number in the capture, from 1.
    pub number: u64,
    /// Time of capture in nanoseconds since 1970.
    pub time_ns: u64,
    /// Link type (registry of draft-ietf-opsawg-pcaplinktype).
    pub link: u16,
    /// Captured bytes.
    pub data: Vec<u8>,
}

/// Error that ends the reading of a capture.
#[derive(Debug)]
pub enum CaptureError {
    /// The file cannot be read.
    Io(io::Error),
    /// The file has neither format.
    UnknownFormat,
    /// The file ends within the packet of this number.
    Truncated(u64),
    /// The packet of this number has an impossible length.
    InvalidLength(u64),
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CaptureError::Io(error) => write!(f, "{error}"),
            CaptureError::UnknownFormat => f.write_str("this is neither a pcap nor a pcapng file"),
            CaptureError::Truncated(number) => write!(f, "the file ends within packet {number}"),
            CaptureError::InvalidLength(number) => {
                write!(f, "packet {number} has an impossible length, so later packets cannot be read")
            }
        }
    }
}

impl std::error::Error for CaptureError {}

/// Reader of the packets of a capture.
pub struct Capture<R> {
    reader: R,
    format: Format,
    big_endian: bool,
    number: u64,
}

enum Format {
    /// Nanoseconds per unit of the fraction, and link type.
    Pcap { fraction: u64, link: u16 },
    /// Interfaces of the current section: link type, and timestamp units per second.
    PcapNg { interfaces: Vec<(u16, u64)> },
}

/// Block types of pcapng.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
/// Byte-order magic of a section.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Interface option with the resolution of timestamps.
const TIMESTAMP_RESOLUTION: u16 = 9;

impl<R: Read> Capture<R> {
    /// Opens a capture of either format.
    pub fn new(mut reader: R) -> Result<Capture<R>, CaptureError> {
        let mut magic = [0; 4];
        if read_up_to(&mut reader, &mut magic)? < 4 {
            return Err(CaptureError::UnknownFormat);
        }
        let magic = u32::from_le_bytes(magic);
        if magic == SECTION {
            let format = Format::PcapNg { interfaces: Vec::new() };
            let mut capture = Capture { reader, format, big_endian: false, number: 0 };
            capture.section().map_err(|_| CaptureError::UnknownFormat)?;
            return Ok(capture);
        }
        let (fraction, big_endian) = match magic {
            0xa1b2_c3d4 => (1_000, false),
            0xd4c3_b2a1 => (1_000, true),
            0xa1b2_3c4d => (1, false),
            0x4d3c_b2a1 => (1, true),
            _ => return Err(CaptureError::UnknownFormat),
        };
        let mut rest = [0; 20];
        if read_up_to(&mut reader, &mut rest)? < rest.len() {
            return Err(CaptureError::UnknownFormat);
        }
        let mut capture =
            Capture { reader, format: Format::Pcap { fraction, link: 0 }, big_endian, number: 0 };
        let link = capture.u32(&rest[16..]) as u16;
        capture.format = Format::Pcap { fraction, link };
        Ok(capture)
    }

    /// Returns the next packet, or `None` at the end. After an error, no more packets can be read.
    pub fn next_packet(&mut self) -> Result<Option<CapturedPacket>, CaptureError> {
        match self.format {
            Format::Pcap { fraction, link } => self.next_record(fraction, link),
            Format::PcapNg { .. } => self.next_packet_block(),
        }
    }

    fn next_record(&mut self, fraction: u64, link: u16) -> Result<Option<CapturedPacket>, CaptureError> {
        let mut header = [0; 16];
        match read_up_to(&mut self.reader, &mut header)? {
            0 => return Ok(None),
            16 => {}
            _ => return Err(CaptureError::Truncated(self.number + 1)),
        }
        let seconds = u64::from(self.u32(&header));
        let part = u64::from(self.u32(&header[4..]));
        let data = self.take(self.u32(&header[8..]) as usize)?;
        self.number += 1;
        let time_ns = seconds * 1_000_000_000 + part * fraction;
        Ok(Some(CapturedPacket { number: self.number, time_ns, link, data }))
    }

    fn next_packet_block(&mut self) -> Result<Option<CapturedPacket>, CaptureError> {
        loop {
            let mut header = [0; 4];
            match read_up_to(&mut self.reader, &mut header)? {
                0 => return Ok(None),
                4 => {}
                _ => return Err(CaptureError::Truncated(self.number + 1)),
            }
            let kind = self.u32(&header);
            if kind == SECTION {
                self.section()?;
                continue;
            }
            let length = self.take(4)?;
            let length = self.u32(&length) as usize;
            if length < 12 || !length.is_multiple_of(4) {
                return Err(CaptureError::InvalidLength(self.number + 1));
            }
            let body = self.take(length - 12)?;
            self.take(4)?;
            match kind {
                INTERFACE => self.interface(&body),
                ENHANCED_PACKET | SIMPLE_PACKET => {
                    self.number += 1;
                    return Ok(Some(self.packet(kind, body)));
                }
                _ => {}
            }
        }
    }

    /// Reads a section header after its block type.
    fn section(&mut self) -> Result<(), CaptureError> {
        let head = self.take(8)?;
        self.big_endian = match u32::from_le_bytes([head[4], head[5], head[6], head[7]]) {
            BYTE_ORDER => false,
            swapped if swapped == BYTE_ORDER.swap_bytes() => true,
            _ => return Err(CaptureError::InvalidLength(self.number + 1)),
        };
        let length = self.u32(&head) as usize;
        if length < 28 || !length.is_multiple_of(4) {
            return Err(CaptureError::InvalidLength(self.number + 1));
        }
        self.take(length - 12)?;
        self.format = Format::PcapNg { interfaces: Vec::new() };
        Ok(())
    }

    fn interface(&mut self, body: &[u8]) {
        let link = if body.len() >= 8 { self.u16(body) } else { 0 };
        let mut units = 1_000_000;
        let mut options = body.get(8..).unwrap_or(&[]);
        while options.len() >= 4 {
            let (code, length) = (self.u16(options), self.u16(&options[2..]) as usize);
            if code == TIMESTAMP_RESOLUTION
                && let Some(&resolution) = options.get(4)
            {
                let exponent = u32::from(resolution & 0x7f);
                let base: u64 = if resolution & 0x80 == 0 { 10 } else { 2 };
                units = base.checked_pow(exponent).unwrap_or(units);
            }
            options = options.get(4 + length.next_multiple_of(4)..).unwrap_or(&[]);
        }
        if let Format::PcapNg { interfaces } = &mut self.format {
            interfaces.push((link, units));
        }
    }

    /// Returns the packet of a block. A block shorter than its packet length gives the available bytes.
    fn packet(&self, kind: u32, body: Vec<u8>) -> CapturedPacket {
        let Format::PcapNg { interfaces } = &self.format else { unreachable!("only pcapng has blocks") };
        let number = self.number;
        let field = |at: usize| body.get(at..at + 4).map_or(0, |field| self.u32(field));
        let (interface, start, captured) = match kind {
            ENHANCED_PACKET => (field(0) as usize, 20_usize, field(12) as usize),
            _ => (0, 4, field(0) as usize),
        };
        // A packet of an undefined interface gets an unassigned link type.
        let (link, units) = interfaces.get(interface).copied().unwrap_or((u16::MAX, 1_000_000));
        let time = if kind == ENHANCED_PACKET { u64::from(field(4)) << 32 | u64::from(field(8)) } else { 0 };
        let time_ns = u128::from(time) * 1_000_000_000 / u128::from(units);
        let end = start.saturating_add(captured).min(body.len());
        let data = body.get(start..end).unwrap_or(&[]).to_vec();
        CapturedPacket { number, time_ns: u64::try_from(time_ns).unwrap_or(u64::MAX), link, data }
    }

    /// Reads this number of bytes.
    fn take(&mut self, length: usize) -> Result<Vec<u8>, CaptureError> {
        if length > MAX_LENGTH {
            return Err(CaptureError::InvalidLength(self.number + 1));
        }
        let mut bytes = vec![0; length];
        if read_up_to(&mut self.reader, &mut bytes)? < length {
            return Err(CaptureError::Truncated(self.number + 1));
        }
        Ok(bytes)
    }

    fn u32(&self, bytes: &[u8]) -> u32 {
        let word = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if self.big_endian { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) }
    }

    fn u16(&self, bytes: &[u8]) -> u16 {
        let word = [bytes[0], bytes[1]];
        if self.big_endian { u16::from_be_bytes(word) } else { u16::from_le_bytes(word) }
    }
}

/// Fills the buffer as far as possible, and returns the number of bytes read.
fn read_up_to(reader: &mut impl Read, buffer: &mut [u8]) -> Result<usize, CaptureError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(CaptureError::Io(error)),
        }
    }
    Ok(filled)
}
