//! What a reference flow's provider edge router tells the others it measures: a message of our
//! own behind a channel header ([`crate::gach`]), of the path between two of them and of no VPN.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |Version|0 0 0 0|   Reserved    |        Message length         |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                     Number of the reference                   |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |              Sent, nanoseconds since 1970, 64 bits            |
//! |              Weight, binary64                                 |
//! |              Round trip, seconds, binary64                    |
//! |              Loss, binary64                                   |
//! |              Loss events, 64 bits                             |
//! |              Multiplicative decrease, binary64                |
//! ~         TLV block, as that of RFC 6374 ([`tlv`])              ~
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! The version is 0. Real numbers are those of IEEE 754, so that a follower computes with the
//! very numbers the publisher has. Without loss events there is no loss yet, and both fields are
//! zero. Times sent grow strictly; a follower compares them with each other only, so
//! clocks may differ.
//!
//! Reading and writing never panic, whatever the bytes.

pub use crate::loss_delay::{DoesNotFit, Error, tlv};

use crate::bytes::{put, u16_at, u32_at, u64_at};
use core::ops::RangeInclusive;

/// Bytes of a message without TLVs.
pub const MESSAGE: usize = 56;

/// What a weight may be.
pub const WEIGHT: RangeInclusive<f64> = 1e-9..=1e9;
/// What a round trip may be, seconds.
pub const ROUND_TRIP: RangeInclusive<f64> = 1e-9..=1e4;
/// What a loss may be where there were loss events.
pub const LOSS: RangeInclusive<f64> = 1e-18..=1.0;
/// What a multiplicative decrease may be.
pub const DECREASE: RangeInclusive<f64> = 1e-9..=(1.0 - 1e-9);

/// The fields of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reference {
    /// Which reference it is about.
    pub number: u32,
    /// When it was sent, nanoseconds since 1970 by the publisher's clock.
    pub sent_ns: u64,
    /// Its weight.
    pub weight: f64,
    /// Its round trip, seconds.
    pub round_trip: f64,
    /// Its loss; zero before the first loss event.
    pub loss: f64,
    /// The loss events that rests on.
    pub loss_events: u64,
    /// Its multiplicative decrease b.
    pub decrease: f64,
}

/// A field of a number that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impossible {
    /// Not in [`WEIGHT`].
    Weight,
    /// Not in [`ROUND_TRIP`].
    RoundTrip,
    /// Not in [`LOSS`], or not zero without loss events.
    Loss,
    /// Not in [`DECREASE`].
    Decrease,
}

impl Reference {
    /// Reads the fields of the message these bytes begin with, and gives its length with TLVs;
    /// what follows is padding of the frame. Reserved bits are ignored. The numbers may be
    /// any: see [`check`](Reference::check).
    pub fn read(bytes: &[u8]) -> Result<(Reference, usize), Error> {
        let fields = bytes.first_chunk::<MESSAGE>().ok_or(Error::Short)?;
        if fields[0] >> 4 != 0 {
            return Err(Error::Version(fields[0] >> 4));
        }
        let claimed = usize::from(u16_at(fields, 2));
        if !(MESSAGE..=bytes.len()).contains(&claimed) {
            return Err(Error::Length { claimed, present: bytes.len() });
        }
        let real = |at| f64::from_bits(u64_at(fields, at));
        let reference = Reference {
            number: u32_at(fields, 4),
            sent_ns: u64_at(fields, 8),
            weight: real(16),
            round_trip: real(24),
            loss: real(32),
            loss_events: u64_at(fields, 40),
            decrease: real(48),
        };
        Ok((reference, claimed))
    }

    /// Whether its numbers can be.
    pub fn check(&self) -> Result<(), Impossible> {
        let is_loss = if self.loss_events == 0 { self.loss == 0.0 } else { LOSS.contains(&self.loss) };
        for (is_right, field) in [
            (WEIGHT.contains(&self.weight), Impossible::Weight),
            (ROUND_TRIP.contains(&self.round_trip), Impossible::RoundTrip),
            (is_loss, Impossible::Loss),
            (DECREASE.contains(&self.decrease), Impossible::Decrease),
        ] {
            // Not a number is in no range.
            if !is_right {
                return Err(field);
            }
        }
        Ok(())
    }

    /// Writes the fields of a message that fills the buffer, TLVs included; those are for the
    /// caller to write behind [`MESSAGE`].
    pub fn write(&self, message: &mut [u8]) -> Result<(), DoesNotFit> {
        let length = u16::try_from(message.len()).map_err(|_| DoesNotFit)?;
        let fields = message.first_chunk_mut::<MESSAGE>().ok_or(DoesNotFit)?;
        put(fields, 0, &[0, 0]);
        put(fields, 2, &length.to_be_bytes());
        put(fields, 4, &self.number.to_be_bytes());
        put(fields, 8, &self.sent_ns.to_be_bytes());
        put(fields, 40, &self.loss_events.to_be_bytes());
        for (at, real) in [(16, self.weight), (24, self.round_trip), (32, self.loss), (48, self.decrease)] {
            put(fields, at, &real.to_bits().to_be_bytes());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const REFERENCE: Reference = Reference {
        number: 0x0102_0304,
        sent_ns: 0x1112_1314_1516_1718,
        weight: 2.0,
        round_trip: 0.5,
        loss: 0.25,
        loss_events: 7,
        decrease: 0.125,
    };

    #[test]
    fn fields_stand_where_they_are_drawn() {
        let mut bytes = [0xff; MESSAGE + 4];
        REFERENCE.write(&mut bytes).unwrap();
        let mut expected = [0; MESSAGE + 4];
        expected[..16]
            .copy_from_slice(&[0, 0, 0, 60, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        for (at, high) in [(16, [0x40, 0]), (24, [0x3f, 0xe0]), (32, [0x3f, 0xd0]), (48, [0x3f, 0xc0])] {
            expected[at..at + 2].copy_from_slice(&high);
        }
        expected[47] = 7;
        expected[MESSAGE..].fill(0xff);
        assert_eq!(bytes, expected);
        assert_eq!(Reference::read(&bytes), Ok((REFERENCE, MESSAGE + 4)));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let mut bytes = [0; MESSAGE];
        REFERENCE.write(&mut bytes).unwrap();
        for length in 0..MESSAGE {
            assert_eq!(Reference::read(&bytes[..length]), Err(Error::Short));
            let mut copy = bytes;
            assert_eq!(REFERENCE.write(&mut copy[..length]), Err(DoesNotFit));
        }
        let changed = |at: usize, byte| {
            let mut bytes = bytes;
            bytes[at] = byte;
            Reference::read(&bytes).map(|(_, length)| length)
        };
        assert_eq!(changed(0, 0x10), Err(Error::Version(1)));
        assert_eq!(changed(3, 55), Err(Error::Length { claimed: 55, present: 56 }));
        assert_eq!(changed(3, 57), Err(Error::Length { claimed: 57, present: 56 }));
        assert_eq!(changed(0, 0x0f), Ok(56), "reserved bits are ignored");
    }

    #[test]
    fn numbers_that_cannot_be_are_told() {
        assert_eq!(REFERENCE.check(), Ok(()));
        assert_eq!(Reference { loss: 0.0, loss_events: 0, ..REFERENCE }.check(), Ok(()));
        for wrong in [f64::NAN, f64::INFINITY, -1.0, -0.0, 0.0, 1e12] {
            assert_eq!(Reference { weight: wrong, ..REFERENCE }.check(), Err(Impossible::Weight));
            assert_eq!(Reference { round_trip: wrong, ..REFERENCE }.check(), Err(Impossible::RoundTrip));
            assert_eq!(Reference { loss: wrong, ..REFERENCE }.check(), Err(Impossible::Loss));
            assert_eq!(Reference { decrease: wrong, ..REFERENCE }.check(), Err(Impossible::Decrease));
        }
        assert_eq!(Reference { loss: 1.5, ..REFERENCE }.check(), Err(Impossible::Loss));
        assert_eq!(Reference { loss_events: 0, ..REFERENCE }.check(), Err(Impossible::Loss));
        assert_eq!(Reference { decrease: 1.0, ..REFERENCE }.check(), Err(Impossible::Decrease));
    }

    proptest! {
        #[test]
        fn every_message_survives(bytes in prop::collection::vec(any::<u8>(), MESSAGE..200)) {
            let mut bytes = bytes;
            let length = bytes.len() as u16;
            bytes[..4].copy_from_slice(&[0, 0, (length >> 8) as u8, length as u8]);
            let (read, found) = Reference::read(&bytes).unwrap();
            let mut again: Vec<u8> = bytes.clone();
            again[..MESSAGE].fill(0xaa);
            read.write(&mut again).unwrap();
            prop_assert_eq!((again, found), (bytes, usize::from(length)));
        }

        #[test]
        fn foreign_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok((reference, length)) = Reference::read(&bytes) {
                prop_assert!((MESSAGE..=bytes.len()).contains(&length));
                let _ = reference.check();
                let _ = tlv::behind(&bytes[..length], MESSAGE).count();
            }
        }
    }
}
