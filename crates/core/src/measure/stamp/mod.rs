//! STAMP (RFC 8762, RFC 8972): a [`Sender`] that measures delay and loss in each direction,
//! and the [`Reflector`] that answers it. Sans-IO; layouts are those of `netstage_wire::stamp`.
//!
//! Digests come from the driver as a [`Mac`], so that no cryptography is needed here.

mod reflector;
mod sender;

pub use reflector::{Arrival, Reflector, ReflectorConfig, ReflectorCounts};
pub use sender::{Sample, Sender, SenderConfig, SenderResult};

use crate::time::Instant;
use alloc::vec::Vec;
use core::fmt;
use netstage_wire::stamp::tlv::{self, HEADER, INTEGRITY_FAILED};
use netstage_wire::stamp::{self, DIGEST, Mode};

/// HMAC-SHA-256 of the concatenated parts, cut to 16 bytes, under the session's key.
pub type Mac<'a> = &'a dyn Fn(&[&[u8]]) -> [u8; DIGEST];

/// A moment on both clocks of a host: the run's own, which never jumps, and the wall's, in
/// nanoseconds since 1970, which the other end may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// On the run's clock.
    pub instant: Instant,
    /// Nanoseconds since 1970.
    pub unix: u64,
}

/// Why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// Too short for its layout.
    Short,
    /// The digest is wrong, or there is no key for it.
    Digest,
    /// The session identifier is another's.
    OtherSession,
    /// No packet of this number is waited for: a duplicate, too late, or never sent.
    NotOutstanding,
    /// The reflector has as many sessions as it may.
    TooManySessions,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rejected::Short => "packet too short for a STAMP test packet of this mode",
            Rejected::Digest => "digest wrong: do both ends have the same key?",
            Rejected::OtherSession => "packet of another STAMP session",
            Rejected::NotOutstanding => "reply to no packet that is waited for",
            Rejected::TooManySessions => "no room for another STAMP session",
        })
    }
}

impl core::error::Error for Rejected {}

/// Whether an authenticated packet's digest is right; unauthenticated ones always are.
fn verify(bytes: &[u8], mode: Mode, mac: Option<Mac<'_>>) -> Result<(), Rejected> {
    if mode == Mode::Unauthenticated {
        return Ok(());
    }
    let (covered, digest) = stamp::authenticated(bytes).map_err(|_| Rejected::Short)?;
    let right = mac.is_some_and(|mac| equal(mac(&[covered]), digest));
    if right { Ok(()) } else { Err(Rejected::Digest) }
}

/// Write the digest of an authenticated packet.
///
/// Panics without a key: the driver chose the mode.
fn sign(bytes: &mut [u8], mode: Mode, mac: Option<Mac<'_>>) {
    if mode == Mode::Authenticated {
        let mac = mac.expect("authenticated mode has a key");
        let digest = mac(&[&bytes[..stamp::AUTHENTICATED_PART]]);
        stamp::set_digest(bytes, digest).expect("the base was written");
    }
}

/// Compare without telling by the time taken where the difference lies.
fn equal(one: [u8; DIGEST], other: [u8; DIGEST]) -> bool {
    one.iter().zip(other).fold(0, |difference, (one, other)| difference | (one ^ other)) == 0
}

/// The digest over TLVs (RFC 8972 section 4.8): the sequence number and all TLVs before it.
fn tlv_digest(bytes: &[u8], base: usize, end: usize, mac: Mac<'_>) -> [u8; DIGEST] {
    mac(&[&bytes[..4], &bytes[base..end]])
}

/// Append a TLV with its value zero; returns where the value stands.
fn append(bytes: &mut Vec<u8>, kind: u8, length: usize) -> core::ops::Range<usize> {
    let start = bytes.len();
    bytes.resize(start + HEADER + length, 0);
    let length = u16::try_from(length).expect("a TLV fits its length field");
    tlv::write_header(&mut bytes[start..], tlv::UNRECOGNIZED, kind, length).expect("there is room");
    start + HEADER..bytes.len()
}

/// Append the digest over the TLVs before it.
fn append_tlv_digest(bytes: &mut Vec<u8>, base: usize, mac: Mac<'_>) {
    let digest = tlv_digest(bytes, base, bytes.len(), mac);
    let value = append(bytes, tlv::kind::HMAC, DIGEST);
    bytes[value].copy_from_slice(&digest);
}

/// Whether the TLVs are what their sender wrote: their digest is right, or there is none and
/// none is due.
fn tlvs_are_intact(bytes: &[u8], mode: Mode, mac: Option<Mac<'_>>) -> bool {
    let base = mode.base();
    for place in tlv::places(bytes, base).flatten() {
        if place.kind != tlv::kind::HMAC {
            continue;
        }
        let Ok(digest) = <[u8; DIGEST]>::try_from(&bytes[place.value()]) else { return false };
        return mac.is_some_and(|mac| equal(tlv_digest(bytes, base, place.start, mac), digest));
    }
    mode == Mode::Unauthenticated || bytes.len() == base
}

/// Flag every TLV as failed.
fn flag_all(bytes: &mut [u8], base: usize) {
    let mut start = base;
    while let Some(Ok(place)) = tlv::at(bytes, start) {
        bytes[place.start] |= INTEGRITY_FAILED;
        start = place.end;
    }
}

#[cfg(test)]
mod tests;
