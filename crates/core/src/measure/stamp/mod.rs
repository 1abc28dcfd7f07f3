//! STAMP (RFC 8762, RFC 8972): a [`SessionSender`] that measures delay and loss in each direction, and the
//! [`SessionReflector`] that answers it. Sans-IO; packet layouts are those of `netstage_wire::stamp`.
//!
//! The driver computes digests and passes them as a [`DigestFunction`], so this module needs no cryptography.

mod clock_change;
mod reflector;
mod sender;

pub use clock_change::ClockChange;
pub use reflector::{ReceivedPacketInfo, ReflectorConfig, ReflectorCounts, SessionReflector};
pub use sender::{SenderConfig, SenderResult, SessionSender, StampSample};

use crate::secret::equal;
use crate::time::Instant;
use alloc::vec::Vec;
use core::fmt;
use netstage_wire::stamp::tlv::{self, HEADER, INTEGRITY_FAILED};
use netstage_wire::stamp::{self, DIGEST, Mode};

/// HMAC-SHA-256 of the concatenated parts under the session's key, truncated to 16 bytes.
pub type DigestFunction<'a> = &'a dyn Fn(&[&[u8]]) -> [u8; DIGEST];

/// One moment on both clocks of a host: the run's monotonic clock and the wall clock, which the other host
/// may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    /// Time of the run's clock.
    pub instant: Instant,
    /// Wall clock, nanoseconds since 1970.
    pub unix: u64,
}

/// Reason a packet was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// Packet too short for its layout.
    Short,
    /// Digest mismatch, or no key.
    Digest,
    /// Session identifier of another session.
    OtherSession,
    /// Reply to a packet that is not outstanding: a duplicate, too late, or never sent.
    NotOutstanding,
    /// Session limit of the reflector reached.
    TooManySessions,
    /// The reflector's timestamps state a negative time at the reflector, or one longer than the round trip.
    ReflectorClock,
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RejectReason::Short => "packet too short for a STAMP test packet in this mode",
            RejectReason::Digest => "digest mismatch; check that both ends use the same key",
            RejectReason::OtherSession => "packet belongs to another STAMP session",
            RejectReason::NotOutstanding => {
                "reply to a packet that is not outstanding: duplicate, late or never sent"
            }
            RejectReason::TooManySessions => "STAMP session limit reached",
            RejectReason::ReflectorClock => {
                "the reflector's clock stepped between the arrival of a packet and its reply; its delay is unknown"
            }
        })
    }
}

impl core::error::Error for RejectReason {}

/// Checks the digest of an authenticated packet; unauthenticated packets always pass.
fn verify(bytes: &[u8], mode: Mode, mac: Option<DigestFunction<'_>>) -> Result<(), RejectReason> {
    if mode == Mode::Unauthenticated {
        return Ok(());
    }
    let (covered, digest) = stamp::authenticated(bytes).map_err(|_| RejectReason::Short)?;
    let right = mac.is_some_and(|mac| equal(&mac(&[covered]), &digest));
    if right { Ok(()) } else { Err(RejectReason::Digest) }
}

/// Writes the digest of an authenticated packet.
///
/// Panics without a key in authenticated mode, which the driver chose.
fn sign(bytes: &mut [u8], mode: Mode, mac: Option<DigestFunction<'_>>) {
    if mode == Mode::Authenticated {
        let mac = mac.expect("authenticated mode has a key");
        let digest = mac(&[&bytes[..stamp::AUTHENTICATED_PART]]);
        stamp::set_digest(bytes, digest).expect("the base was written");
    }
}

/// Computes the digest over TLVs (RFC 8972 section 4.8), which covers the sequence number and all TLVs before
/// the HMAC TLV.
fn tlv_digest(bytes: &[u8], base: usize, end: usize, mac: DigestFunction<'_>) -> [u8; DIGEST] {
    mac(&[&bytes[..4], &bytes[base..end]])
}

/// Appends a TLV with a zero value; returns the range of the value.
fn append(bytes: &mut Vec<u8>, kind: u8, length: usize) -> core::ops::Range<usize> {
    let start = bytes.len();
    bytes.resize(start + HEADER + length, 0);
    let length = u16::try_from(length).expect("a TLV fits its length field");
    tlv::write_header(&mut bytes[start..], tlv::UNRECOGNIZED, kind, length).expect("the buffer was extended");
    start + HEADER..bytes.len()
}

/// Appends an HMAC TLV with the digest over the TLVs before it.
fn append_tlv_digest(bytes: &mut Vec<u8>, base: usize, mac: DigestFunction<'_>) {
    let digest = tlv_digest(bytes, base, bytes.len(), mac);
    let value = append(bytes, tlv::kind::HMAC, DIGEST);
    bytes[value].copy_from_slice(&digest);
}

/// Returns whether the TLVs are unmodified: their digest is correct, or none is present and none is required.
fn tlvs_are_intact(bytes: &[u8], mode: Mode, mac: Option<DigestFunction<'_>>) -> bool {
    let base = mode.base();
    for extent in tlv::tlvs(bytes, base).flatten() {
        if extent.kind != tlv::kind::HMAC {
            continue;
        }
        let Ok(digest) = <[u8; DIGEST]>::try_from(&bytes[extent.value()]) else { return false };
        return mac.is_some_and(|mac| equal(&tlv_digest(bytes, base, extent.start, mac), &digest));
    }
    mode == Mode::Unauthenticated || bytes.len() == base
}

/// Sets the integrity-failed flag of every TLV.
fn flag_all(bytes: &mut [u8], base: usize) {
    let mut start = base;
    while let Some(Ok(extent)) = tlv::at(bytes, start) {
        bytes[extent.start] |= INTEGRITY_FAILED;
        start = extent.end;
    }
}

#[cfg(test)]
mod tests;
