//! TLV block of a message (RFC 6374 section 3.5): type and length of 8 bits each, then the value.
//!
//! A responder must reject a query with an unknown type below 128 and ignores unknown types from 128 on. Two
//! types are reserved for experiments. Their values in netstage begin with [`EXPERIMENT`] to distinguish
//! them from other experiments:
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |   127 or 255  |    Length     |         0x6e53 ("nS")         |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |    Purpose    |    Key        |  Digest, or number of marks …
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! - *Authentication* (type 127, so that a responder without support reports an error; purpose 1):
//!   HMAC-SHA-256 over the message from its first byte to the digest, truncated to 16 bytes. It is the last
//!   TLV. The key number allows key changes while messages are in flight. The caller computes the digests.
//! - *Marks* (type 255; purpose 2): number of received packets with a congestion mark. A query contains
//!   zero; a responder without support leaves the TLV out.

use crate::bytes::{u16_at, u32_at, u64_at};
use core::ops::Range;

/// Length of type and length, bytes.
pub const HEADER: usize = 2;
/// First two value bytes of netstage's experimental TLVs.
pub const EXPERIMENT: [u8; 2] = *b"nS";
/// Length of a digest, bytes.
pub const DIGEST: usize = 16;
/// Length of an authentication TLV, bytes.
pub const AUTHENTICATION: usize = HEADER + 4 + DIGEST;
/// Length of a marks TLV, bytes.
pub const MARKS: usize = HEADER + 4 + 8;

/// TLV types.
pub mod kind {
    /// Padding, to be copied into the response.
    pub const PADDING_COPIED: u8 = 0;
    /// Address to send the response to; only in queries.
    pub const RETURN_ADDRESS: u8 = 1;
    /// Current or requested interval between queries.
    pub const SESSION_QUERY_INTERVAL: u8 = 2;
    /// Request to return the query itself.
    pub const LOOPBACK: u8 = 3;
    /// Experimental type; unknown experiments are rejected.
    pub const EXPERIMENT_MANDATORY: u8 = 127;
    /// Padding, not to be copied into the response.
    pub const PADDING_DROPPED: u8 = 128;
    /// Address of the intended receiver.
    pub const DESTINATION_ADDRESS: u8 = 129;
    /// Address of the sender.
    pub const SOURCE_ADDRESS: u8 = 130;
    /// Experimental type; unknown experiments are ignored.
    pub const EXPERIMENT_OPTIONAL: u8 = 255;

    /// Returns `true` if a responder that does not know the type must reject the query.
    pub const fn is_mandatory(kind: u8) -> bool {
        kind < 128
    }
}

const PURPOSE_AUTHENTICATION: u8 = 1;
const PURPOSE_MARKS: u8 = 2;

/// TLV and its offset in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// Offset of the type field.
    pub start: usize,
    /// Type, one of [`kind`].
    pub kind: u8,
    /// Value.
    pub value: &'a [u8],
}

impl<'a> Tlv<'a> {
    /// Returns the offset after the value.
    pub const fn end(&self) -> usize {
        self.start + HEADER + self.value.len()
    }

    /// Parses the value. Fails if the length does not match the type.
    pub fn content(&self) -> Result<Content<'a>, WrongLength> {
        let value = self.value;
        Ok(match self.kind {
            kind::PADDING_COPIED | kind::PADDING_DROPPED => Content::Padding,
            kind::RETURN_ADDRESS | kind::DESTINATION_ADDRESS | kind::SOURCE_ADDRESS => {
                let address = value.get(2..).ok_or(WrongLength)?;
                Content::Address { family: u16_at(value, 0), address }
            }
            kind::SESSION_QUERY_INTERVAL if value.len() == 4 => {
                Content::SessionQueryInterval { milliseconds: u32_at(value, 0) }
            }
            kind::LOOPBACK if value.is_empty() => Content::Loopback,
            kind::SESSION_QUERY_INTERVAL | kind::LOOPBACK => return Err(WrongLength),
            kind::EXPERIMENT_MANDATORY if is_ours(value, PURPOSE_AUTHENTICATION) => {
                let digest = value.get(4..).and_then(|digest| digest.try_into().ok());
                Content::Authentication { key: value[3], digest: digest.ok_or(WrongLength)? }
            }
            kind::EXPERIMENT_OPTIONAL if is_ours(value, PURPOSE_MARKS) => {
                if value.len() != MARKS - HEADER {
                    return Err(WrongLength);
                }
                Content::Marks { packets: u64_at(value, 4) }
            }
            _ => Content::Unknown,
        })
    }
}

fn is_ours(value: &[u8], purpose: u8) -> bool {
    matches!(value, [first, second, found, _, ..] if [*first, *second] == EXPERIMENT && *found == purpose)
}

/// Parsed TLV value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// Padding.
    Padding,
    /// Return, destination or source address, depending on the TLV type.
    Address {
        /// Number of the IANA registry "Address Family Numbers": 1 is IPv4, 2 is IPv6.
        family: u16,
        /// Address.
        address: &'a [u8],
    },
    /// Current or requested interval between queries.
    SessionQueryInterval {
        /// Interval, milliseconds; zero requests the responder's value.
        milliseconds: u32,
    },
    /// Request to return the query itself.
    Loopback,
    /// Digest of the message.
    Authentication {
        /// Key number.
        key: u8,
        /// Truncated HMAC-SHA-256.
        digest: [u8; DIGEST],
    },
    /// Count of packets with a congestion mark.
    Marks {
        /// Number of packets.
        packets: u64,
    },
    /// Unknown type or experiment.
    Unknown,
}

/// Error for a value length that does not match the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongLength;

/// Error for a truncated TLV: its header or value reaches past the end of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruncatedLossDelayTlv {
    /// Offset of the truncated TLV.
    pub start: usize,
}

/// Returns the TLV at an offset, or `None` at the end of the bytes.
#[inline]
pub fn at(bytes: &[u8], start: usize) -> Option<Result<Tlv<'_>, TruncatedLossDelayTlv>> {
    let rest = bytes.get(start..).filter(|rest| !rest.is_empty())?;
    let Some((&[kind, length], value)) = rest.split_first_chunk() else {
        return Some(Err(TruncatedLossDelayTlv { start }));
    };
    let value = value.get(..usize::from(length)).ok_or(TruncatedLossDelayTlv { start });
    Some(value.map(|value| Tlv { start, kind, value }))
}

/// Iterates over the TLVs of a loss and delay message that fills `message`; ends after a truncated one.
pub fn of_message(message: &[u8]) -> impl Iterator<Item = Result<Tlv<'_>, TruncatedLossDelayTlv>> + '_ {
    after_fields(message, super::MESSAGE)
}

/// Iterates over the TLVs after `fields` bytes of any message; ends after a truncated one.
pub fn after_fields(
    message: &[u8],
    fields: usize,
) -> impl Iterator<Item = Result<Tlv<'_>, TruncatedLossDelayTlv>> + '_ {
    let mut next = Some(fields);
    core::iter::from_fn(move || {
        let found = at(message, next?)?;
        next = found.ok().map(|tlv| tlv.end());
        Some(found)
    })
}

/// Error for a buffer shorter than the TLV to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortTlvBuffer;

/// Writes an authentication TLV with a zero digest at an offset.
pub fn write_authentication(bytes: &mut [u8], start: usize, key: u8) -> Result<(), ShortTlvBuffer> {
    let [first, second] = EXPERIMENT;
    let place =
        bytes.get_mut(start..).and_then(<[u8]>::first_chunk_mut::<AUTHENTICATION>).ok_or(ShortTlvBuffer)?;
    let head = [
        kind::EXPERIMENT_MANDATORY,
        (AUTHENTICATION - HEADER) as u8,
        first,
        second,
        PURPOSE_AUTHENTICATION,
        key,
    ];
    place[..6].copy_from_slice(&head);
    place[6..].fill(0);
    Ok(())
}

/// Writes a marks TLV at an offset.
pub fn write_marks(bytes: &mut [u8], start: usize, packets: u64) -> Result<(), ShortTlvBuffer> {
    let [first, second] = EXPERIMENT;
    let place = bytes.get_mut(start..).and_then(<[u8]>::first_chunk_mut::<MARKS>).ok_or(ShortTlvBuffer)?;
    let head = [kind::EXPERIMENT_OPTIONAL, (MARKS - HEADER) as u8, first, second, PURPOSE_MARKS, 0];
    place[..6].copy_from_slice(&head);
    place[6..].copy_from_slice(&packets.to_be_bytes());
    Ok(())
}

/// Writes padding that is not copied into the response, from an offset to another. Less than a TLV's header cannot be
/// filled.
pub fn write_padding(bytes: &mut [u8], start: usize, end: usize) -> Result<(), ShortTlvBuffer> {
    const LARGEST: usize = HEADER + u8::MAX as usize;
    let mut rest = bytes.get_mut(start..end).ok_or(ShortTlvBuffer)?;
    while !rest.is_empty() {
        // What is left after this TLV must hold another one.
        let is_header_left = (LARGEST + 1..LARGEST + HEADER).contains(&rest.len());
        let length = rest.len().min(if is_header_left { LARGEST - HEADER } else { LARGEST });
        let (tlv, others) = rest.split_at_mut(length);
        let (header, value) = tlv.split_first_chunk_mut::<HEADER>().ok_or(ShortTlvBuffer)?;
        *header = [kind::PADDING_DROPPED, value.len() as u8];
        value.fill(0);
        rest = others;
    }
    Ok(())
}

/// Returns the byte ranges covered by the digest and of the digest itself, or `None` if the message does not
/// end with an authentication TLV. `fields` is the length of the message's fixed fields, bytes.
pub fn authenticated(message: &[u8], fields: usize) -> Option<(Range<usize>, Range<usize>)> {
    let digest = message.len().checked_sub(DIGEST)?;
    let last = after_fields(message, fields).last()?.ok()?;
    let is_digest = matches!(last.content(), Ok(Content::Authentication { .. }));
    (is_digest && last.end() == message.len()).then_some((0..digest, digest..message.len()))
}

#[cfg(test)]
mod tests {
    use super::super::MESSAGE;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn message(tlvs: &[u8]) -> Vec<u8> {
        [&[0; MESSAGE][..], tlvs].concat()
    }

    #[test]
    fn tlvs_are_found_in_order() {
        let bytes =
            message(&[0, 3, 7, 7, 7, 1, 6, 0, 1, 10, 0, 0, 1, 2, 4, 0, 0, 1, 0, 3, 0, 200, 1, 9, 128, 5, 0]);
        let found: Vec<_> = of_message(&bytes).collect();
        let contents: Vec<_> =
            found.iter().filter_map(|tlv| tlv.ok()).map(|tlv| tlv.content().unwrap()).collect();
        assert_eq!(
            contents,
            [
                Content::Padding,
                Content::Address { family: 1, address: &[10, 0, 0, 1] },
                Content::SessionQueryInterval { milliseconds: 256 },
                Content::Loopback,
                Content::Unknown,
            ]
        );
        assert_eq!(found.last(), Some(&Err(TruncatedLossDelayTlv { start: bytes.len() - 3 })));
        assert_eq!(found[1].unwrap().end(), MESSAGE + 13);
        assert_eq!(of_message(&bytes[..MESSAGE]).count(), 0);
        assert_eq!(
            of_message(&bytes[..MESSAGE + 1]).next(),
            Some(Err(TruncatedLossDelayTlv { start: MESSAGE }))
        );
        assert!(kind::is_mandatory(127) && !kind::is_mandatory(128));
    }

    #[test]
    fn lengths_are_checked_against_types() {
        for (kind, length) in [(1, 1), (2, 3), (2, 5), (3, 1), (129, 0)] {
            let tlv = Tlv { start: 0, kind, value: &[0; 8][..length] };
            assert_eq!(tlv.content(), Err(WrongLength), "type {kind}");
        }
        for length in [4, 19, 21] {
            let value = [&b"nS\x01\x00"[..], &[0; 20]].concat();
            let tlv = Tlv { start: 0, kind: kind::EXPERIMENT_MANDATORY, value: &value[..length] };
            assert_eq!(tlv.content(), Err(WrongLength));
        }
        // Experiment of another implementation.
        let tlv = Tlv { start: 0, kind: kind::EXPERIMENT_MANDATORY, value: b"XX\x01\x00" };
        assert_eq!(tlv.content(), Ok(Content::Unknown));
    }

    #[test]
    fn experimental_tlvs_have_the_documented_layout() {
        let mut bytes = message(&[0xff; MARKS + AUTHENTICATION]);
        write_marks(&mut bytes, MESSAGE, 0x0102).unwrap();
        write_authentication(&mut bytes, MESSAGE + MARKS, 9).unwrap();
        assert_eq!(bytes[MESSAGE..][..MARKS], [255, 12, 0x6e, 0x53, 2, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(bytes[MESSAGE + MARKS..][..7], [127, 20, 0x6e, 0x53, 1, 9, 0]);
        let contents: Vec<_> = of_message(&bytes).map(|tlv| tlv.unwrap().content().unwrap()).collect();
        let digest = Content::Authentication { key: 9, digest: [0; DIGEST] };
        assert_eq!(contents, [Content::Marks { packets: 0x0102 }, digest]);
        let end = bytes.len();
        assert_eq!(authenticated(&bytes, MESSAGE), Some((0..end - 16, end - 16..end)));
        assert_eq!(authenticated(&bytes[..end - 1], MESSAGE), None);
        assert_eq!(authenticated(&bytes[..MESSAGE + MARKS], MESSAGE), None);
        assert_eq!(authenticated(&[], MESSAGE), None);
        // The digest must cover everything before it, so that nothing may follow it.
        bytes.extend([128, 0]);
        assert_eq!(authenticated(&bytes, MESSAGE), None);
        assert_eq!(write_marks(&mut bytes, end, 0), Err(ShortTlvBuffer));
        assert_eq!(write_authentication(&mut bytes, usize::MAX, 0), Err(ShortTlvBuffer));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut end = MESSAGE;
            for tlv in of_message(&bytes).flatten() {
                prop_assert_eq!(tlv.start, end);
                end = tlv.end();
                prop_assert!(end <= bytes.len());
                let _ = tlv.content();
            }
            if let Some((covered, digest)) = authenticated(&bytes, MESSAGE) {
                prop_assert_eq!((covered.end, digest.end), (digest.start, bytes.len()));
            }
        }
    }
}
