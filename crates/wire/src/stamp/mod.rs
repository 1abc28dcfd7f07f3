//! Test packets of STAMP, the Simple Two-Way Active Measurement Protocol (RFC 8762), with the session
//! identifier and TLVs of RFC 8972.
//!
//! A packet is an unauthenticated or authenticated base of fixed length, followed by TLVs ([`tlv`]). Reading
//! and writing never panic, whatever the bytes. The caller computes the digests: HMAC-SHA-256 truncated to
//! 16 bytes, over [`AUTHENTICATED_PART`] bytes of the base.

pub mod tlv;

pub use crate::timestamp::{Timestamp, TimestampFormat};

use crate::bytes::{put, u16_at, u32_at, u64_at};
use crate::timestamp::NANOSECONDS;

/// UDP port of a session-reflector.
pub const PORT: u16 = 862;
/// Length of both unauthenticated bases, bytes.
pub const UNAUTHENTICATED: usize = 44;
/// Length of both authenticated bases, bytes.
pub const AUTHENTICATED: usize = 112;
/// Length of the part of an authenticated base that its digest covers, bytes (RFC 8762 section 4.4).
pub const AUTHENTICATED_PART: usize = 96;
/// Length of a digest, bytes.
pub const DIGEST: usize = 16;

/// Packet format of a session; configured at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Base without digest.
    Unauthenticated,
    /// Base with digest.
    Authenticated,
}

impl Mode {
    /// Returns the length of the base, which is the offset of the TLVs, bytes.
    pub const fn base(self) -> usize {
        match self {
            Mode::Unauthenticated => UNAUTHENTICATED,
            Mode::Authenticated => AUTHENTICATED,
        }
    }
}

/// Error for a buffer shorter than the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortStampBuffer;

/// Error estimate of a timestamp (RFC 4656 section 4.1.2, RFC 8186 section 2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorEstimate(pub u16);

impl ErrorEstimate {
    const SYNCHRONIZED: u16 = 1 << 15;
    const PTP: u16 = 1 << 14;

    /// Returns the smallest estimate of at least `nanoseconds`.
    pub const fn new(nanoseconds: u64, synchronized: bool, format: TimestampFormat) -> ErrorEstimate {
        let mut units = ((nanoseconds as u128) << 32).div_ceil(NANOSECONDS as u128);
        let mut scale = 0;
        while units > 255 {
            units = units.div_ceil(2);
            scale += 1;
        }
        // The multiplier must not be zero.
        let multiplier = if units == 0 { 1 } else { units as u16 };
        let synchronized = if synchronized { Self::SYNCHRONIZED } else { 0 };
        let ptp = if matches!(format, TimestampFormat::Ptp) { Self::PTP } else { 0 };
        ErrorEstimate(synchronized | ptp | scale << 8 | multiplier)
    }

    /// Returns `true` if the clock is synchronized to UTC by an external source.
    pub const fn is_synchronized(self) -> bool {
        self.0 & Self::SYNCHRONIZED != 0
    }

    /// Returns the format of the timestamp.
    pub const fn format(self) -> TimestampFormat {
        if self.0 & Self::PTP == 0 { TimestampFormat::Ntp } else { TimestampFormat::Ptp }
    }

    /// Returns the error in nanoseconds, rounded up: multiplier · 2^(scale − 32) seconds. Zero means that
    /// the field is invalid.
    pub const fn nanoseconds(self) -> u64 {
        let (multiplier, scale) = (self.0 & 0xff, self.0 >> 8 & 0x3f);
        let nanoseconds = (multiplier as u128 * NANOSECONDS as u128) << scale;
        let rounded = nanoseconds.div_ceil(1 << 32);
        if rounded > u64::MAX as u128 { u64::MAX } else { rounded as u64 }
    }
}

/// Base of a session-sender packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderPacket {
    /// Sequence number, from 0.
    pub sequence: u32,
    /// Send time.
    pub timestamp: Timestamp,
    /// Error estimate of the send time.
    pub error_estimate: ErrorEstimate,
    /// STAMP session identifier (SSID); 0 from senders without RFC 8972.
    pub session: u16,
}

/// Base of a session-reflector packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReflectorPacket {
    /// Sequence number. A stateful reflector counts the packets it sends in the session, from 0; a stateless
    /// one copies the sender's number.
    pub sequence: u32,
    /// Send time of the reflector.
    pub timestamp: Timestamp,
    /// Error estimate of the reflector's timestamps.
    pub error_estimate: ErrorEstimate,
    /// Session identifier copied from the sender.
    pub session: u16,
    /// Receive time of the sender's packet.
    pub received: Timestamp,
    /// Fields of the sender's packet as received.
    pub sender: SenderPacket,
    /// TTL or hop limit of the sender's packet on arrival.
    pub sender_ttl: u8,
}

/// Field offsets of a packet format.
struct StampLayout {
    timestamp: usize,
    received: usize,
    sender_sequence: usize,
    sender_timestamp: usize,
    sender_ttl: usize,
}

impl Mode {
    const fn layout(self) -> StampLayout {
        match self {
            Mode::Unauthenticated => StampLayout {
                timestamp: 4,
                received: 16,
                sender_sequence: 24,
                sender_timestamp: 28,
                sender_ttl: 40,
            },
            Mode::Authenticated => StampLayout {
                timestamp: 16,
                received: 32,
                sender_sequence: 48,
                sender_timestamp: 64,
                sender_ttl: 80,
            },
        }
    }
}

impl SenderPacket {
    /// Parses the base.
    pub fn read(bytes: &[u8], mode: Mode) -> Result<SenderPacket, ShortStampBuffer> {
        if bytes.len() < mode.base() {
            return Err(ShortStampBuffer);
        }
        let at = mode.layout().timestamp;
        Ok(SenderPacket {
            sequence: u32_at(bytes, 0),
            timestamp: Timestamp(u64_at(bytes, at)),
            error_estimate: ErrorEstimate(u16_at(bytes, at + 8)),
            session: u16_at(bytes, at + 10),
        })
    }

    /// Writes the base with zeros in reserved fields and in the digest.
    pub fn write(&self, bytes: &mut [u8], mode: Mode) -> Result<(), ShortStampBuffer> {
        let base = bytes.get_mut(..mode.base()).ok_or(ShortStampBuffer)?;
        base.fill(0);
        let at = mode.layout().timestamp;
        put(base, 0, &self.sequence.to_be_bytes());
        put(base, at, &self.timestamp.0.to_be_bytes());
        put(base, at + 8, &self.error_estimate.0.to_be_bytes());
        put(base, at + 10, &self.session.to_be_bytes());
        Ok(())
    }
}

impl ReflectorPacket {
    /// Parses the base.
    pub fn read(bytes: &[u8], mode: Mode) -> Result<ReflectorPacket, ShortStampBuffer> {
        let SenderPacket { sequence, timestamp, error_estimate, session } = SenderPacket::read(bytes, mode)?;
        let layout = mode.layout();
        Ok(ReflectorPacket {
            sequence,
            timestamp,
            error_estimate,
            session,
            received: Timestamp(u64_at(bytes, layout.received)),
            sender: SenderPacket {
                sequence: u32_at(bytes, layout.sender_sequence),
                timestamp: Timestamp(u64_at(bytes, layout.sender_timestamp)),
                error_estimate: ErrorEstimate(u16_at(bytes, layout.sender_timestamp + 8)),
                session,
            },
            sender_ttl: bytes[layout.sender_ttl],
        })
    }

    /// Writes the base with zeros in reserved fields and in the digest.
    pub fn write(&self, bytes: &mut [u8], mode: Mode) -> Result<(), ShortStampBuffer> {
        let ReflectorPacket { sequence, timestamp, error_estimate, session, .. } = *self;
        SenderPacket { sequence, timestamp, error_estimate, session }.write(bytes, mode)?;
        let layout = mode.layout();
        put(bytes, layout.received, &self.received.0.to_be_bytes());
        put(bytes, layout.sender_sequence, &self.sender.sequence.to_be_bytes());
        put(bytes, layout.sender_timestamp, &self.sender.timestamp.0.to_be_bytes());
        put(bytes, layout.sender_timestamp + 8, &self.sender.error_estimate.0.to_be_bytes());
        bytes[layout.sender_ttl] = self.sender_ttl;
        Ok(())
    }
}

/// Returns the part of an authenticated packet that the digest covers, and the digest.
pub fn authenticated(bytes: &[u8]) -> Result<(&[u8], [u8; DIGEST]), ShortStampBuffer> {
    let covered = bytes.get(..AUTHENTICATED_PART).ok_or(ShortStampBuffer)?;
    let digest = bytes.get(AUTHENTICATED_PART..AUTHENTICATED).ok_or(ShortStampBuffer)?;
    Ok((covered, digest.try_into().map_err(|_| ShortStampBuffer)?))
}

/// Writes the digest of an authenticated packet.
pub fn set_digest(bytes: &mut [u8], digest: [u8; DIGEST]) -> Result<(), ShortStampBuffer> {
    bytes.get_mut(AUTHENTICATED_PART..AUTHENTICATED).ok_or(ShortStampBuffer)?.copy_from_slice(&digest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFLECTED: ReflectorPacket = ReflectorPacket {
        sequence: 0x0102_0304,
        timestamp: Timestamp(0x1112_1314_1516_1718),
        error_estimate: ErrorEstimate(0x8001),
        session: 0x2122,
        received: Timestamp(0x3132_3334_3536_3738),
        sender: SenderPacket {
            sequence: 0x4142_4344,
            timestamp: Timestamp(0x5152_5354_5556_5758),
            error_estimate: ErrorEstimate(0x4002),
            session: 0x2122,
        },
        sender_ttl: 61,
    };

    #[test]
    fn fields_are_at_the_offsets_of_the_rfc() {
        // RFC 8762 figure 5 and RFC 8972 figure 2.
        let mut bytes = [0xff; UNAUTHENTICATED];
        REFLECTED.write(&mut bytes, Mode::Unauthenticated).unwrap();
        #[rustfmt::skip]
        let expected = [
            0x01, 0x02, 0x03, 0x04, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x80, 0x01, 0x21, 0x22,
            0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38, 0x41, 0x42, 0x43, 0x44, 0x51, 0x52, 0x53, 0x54,
            0x55, 0x56, 0x57, 0x58, 0x40, 0x02, 0, 0, 61, 0, 0, 0,
        ];
        assert_eq!(bytes, expected);
        // Figure 6: the same fields, each at the start of a block of 16 octets.
        let mut bytes = [0xff; AUTHENTICATED];
        REFLECTED.write(&mut bytes, Mode::Authenticated).unwrap();
        assert_eq!(bytes[..4], [1, 2, 3, 4]);
        assert_eq!(bytes[16..28], expected[4..16]);
        assert_eq!(bytes[32..40], expected[16..24]);
        assert_eq!((&bytes[48..52], &bytes[64..74]), (&expected[24..28], &expected[28..38]));
        assert_eq!((bytes[80], &bytes[81..]), (61, &[0; 31][..]));
    }

    #[test]
    fn packets_round_trip() {
        for mode in [Mode::Unauthenticated, Mode::Authenticated] {
            let mut bytes = [0; 200];
            REFLECTED.write(&mut bytes, mode).unwrap();
            assert_eq!(ReflectorPacket::read(&bytes, mode), Ok(REFLECTED));
            REFLECTED.sender.write(&mut bytes, mode).unwrap();
            assert_eq!(SenderPacket::read(&bytes, mode), Ok(REFLECTED.sender));
            let short = &mut bytes[..mode.base() - 1];
            assert_eq!(SenderPacket::read(short, mode), Err(ShortStampBuffer));
            assert_eq!(REFLECTED.write(short, mode), Err(ShortStampBuffer));
        }
    }

    #[test]
    fn error_estimates_are_rounded_up() {
        for error in [0, 1, 50, 999, 1_000_000, 3_600_000_000_000, u64::MAX / 2] {
            let estimate = ErrorEstimate::new(error, true, TimestampFormat::Ptp);
            assert!(estimate.nanoseconds() >= error, "{error}");
            assert!(estimate.nanoseconds() <= error + error / 100 + 1, "{error}");
            assert!(estimate.is_synchronized() && estimate.format() == TimestampFormat::Ptp);
        }
        // RFC 4656: multiplier 1, scale 32 is one second.
        assert_eq!(ErrorEstimate(32 << 8 | 1).nanoseconds(), 1_000_000_000);
        assert_eq!(ErrorEstimate(0x3fff).nanoseconds(), u64::MAX);
    }
}
