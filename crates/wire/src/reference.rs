//! Message in which the PE of a reference flow publishes its measurements to the other PEs. It is a message
//! of netstage's own behind a channel header ([`crate::gach`]) and belongs to the path between two PEs, not
//! to a VPN.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |Version|0 0 0 0|   Reserved    |        Message length         |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                        Reference number                       |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |          Send time, nanoseconds since 1970, 64 bits           |
//! |              Weight, binary64                                 |
//! |              Round-trip time, seconds, binary64               |
//! |              Loss, binary64                                   |
//! |              Loss events, 64 bits                             |
//! |              Multiplicative decrease, binary64                |
//! ~         TLV block as in RFC 6374 ([`tlv`])                    ~
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! The version is 0. Real numbers use the IEEE 754 binary64 format, so that followers compute with exactly
//! the publisher's values. Before the first loss event, loss and loss events are both zero. Sent times
//! increase strictly; a follower compares them only with each other, so the clocks of the two PEs may
//! differ.
//!
//! Reading and writing never panic, whatever the bytes.

pub use crate::loss_delay::{LossDelayError, LossDelayLengthError, tlv};

use crate::bytes::{put, u16_at, u32_at, u64_at};
use core::ops::RangeInclusive;

/// Length of a message without TLVs, bytes.
pub const MESSAGE: usize = 56;

/// Valid weights.
pub const WEIGHT: RangeInclusive<f64> = 1e-9..=1e9;
/// Valid round-trip times, seconds.
pub const ROUND_TRIP: RangeInclusive<f64> = 1e-9..=1e4;
/// Valid loss probabilities after the first loss event.
pub const LOSS: RangeInclusive<f64> = 1e-18..=1.0;
/// Valid multiplicative decreases.
pub const DECREASE: RangeInclusive<f64> = 1e-9..=(1.0 - 1e-9);

/// Fields of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReferenceMessage {
    /// Number of the reference flow.
    pub number: u32,
    /// Send time by the publisher's clock, nanoseconds since 1970.
    pub sent_ns: u64,
    /// Weight of the flow.
    pub weight: f64,
    /// Round-trip time, seconds.
    pub round_trip: f64,
    /// Loss probability; zero before the first loss event.
    pub loss: f64,
    /// Number of loss events `loss` is based on.
    pub loss_events: u64,
    /// Multiplicative decrease b.
    pub decrease: f64,
}

/// Field with a value out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceRangeError {
    /// Weight outside [`WEIGHT`].
    Weight,
    /// Round-trip time outside [`ROUND_TRIP`].
    RoundTrip,
    /// Loss outside [`LOSS`], or nonzero without loss events.
    Loss,
    /// Multiplicative decrease outside [`DECREASE`].
    Decrease,
}

impl ReferenceMessage {
    /// Parses the fields of the message at the start of `bytes` and returns them with the message's length
    /// including TLVs. Later bytes are frame padding. Reserved bits are ignored. The values are not checked:
    /// see [`check`](ReferenceMessage::check).
    pub fn read(bytes: &[u8]) -> Result<(ReferenceMessage, usize), LossDelayError> {
        let fields = bytes.first_chunk::<MESSAGE>().ok_or(LossDelayError::Short)?;
        if fields[0] >> 4 != 0 {
            return Err(LossDelayError::Version(fields[0] >> 4));
        }
        let claimed = usize::from(u16_at(fields, 2));
        if !(MESSAGE..=bytes.len()).contains(&claimed) {
            return Err(LossDelayError::Length { claimed, present: bytes.len() });
        }
        let real = |at| f64::from_bits(u64_at(fields, at));
        let reference = ReferenceMessage {
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

    /// Checks that all values are in range.
    pub fn check(&self) -> Result<(), ReferenceRangeError> {
        let is_loss = if self.loss_events == 0 { self.loss == 0.0 } else { LOSS.contains(&self.loss) };
        for (is_right, field) in [
            (WEIGHT.contains(&self.weight), ReferenceRangeError::Weight),
            (ROUND_TRIP.contains(&self.round_trip), ReferenceRangeError::RoundTrip),
            (is_loss, ReferenceRangeError::Loss),
            (DECREASE.contains(&self.decrease), ReferenceRangeError::Decrease),
        ] {
            // NaN is in no range.
            if !is_right {
                return Err(field);
            }
        }
        Ok(())
    }

    /// Writes the fields of a message that fills the buffer, TLVs included. The caller writes the TLVs after
    /// [`MESSAGE`] bytes.
    pub fn write(&self, message: &mut [u8]) -> Result<(), LossDelayLengthError> {
        let length = u16::try_from(message.len()).map_err(|_| LossDelayLengthError)?;
        let fields = message.first_chunk_mut::<MESSAGE>().ok_or(LossDelayLengthError)?;
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

    const REFERENCE: ReferenceMessage = ReferenceMessage {
        number: 0x0102_0304,
        sent_ns: 0x1112_1314_1516_1718,
        weight: 2.0,
        round_trip: 0.5,
        loss: 0.25,
        loss_events: 7,
        decrease: 0.125,
    };

    #[test]
    fn fields_are_at_the_documented_offsets() {
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
        assert_eq!(ReferenceMessage::read(&bytes), Ok((REFERENCE, MESSAGE + 4)));
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let mut bytes = [0; MESSAGE];
        REFERENCE.write(&mut bytes).unwrap();
        for length in 0..MESSAGE {
            assert_eq!(ReferenceMessage::read(&bytes[..length]), Err(LossDelayError::Short));
            let mut copy = bytes;
            assert_eq!(REFERENCE.write(&mut copy[..length]), Err(LossDelayLengthError));
        }
        let changed = |at: usize, byte| {
            let mut bytes = bytes;
            bytes[at] = byte;
            ReferenceMessage::read(&bytes).map(|(_, length)| length)
        };
        assert_eq!(changed(0, 0x10), Err(LossDelayError::Version(1)));
        assert_eq!(changed(3, 55), Err(LossDelayError::Length { claimed: 55, present: 56 }));
        assert_eq!(changed(3, 57), Err(LossDelayError::Length { claimed: 57, present: 56 }));
        assert_eq!(changed(0, 0x0f), Ok(56), "reserved bits are ignored");
    }

    #[test]
    fn out_of_range_values_are_reported() {
        assert_eq!(REFERENCE.check(), Ok(()));
        assert_eq!(ReferenceMessage { loss: 0.0, loss_events: 0, ..REFERENCE }.check(), Ok(()));
        for wrong in [f64::NAN, f64::INFINITY, -1.0, -0.0, 0.0, 1e12] {
            assert_eq!(
                ReferenceMessage { weight: wrong, ..REFERENCE }.check(),
                Err(ReferenceRangeError::Weight)
            );
            assert_eq!(
                ReferenceMessage { round_trip: wrong, ..REFERENCE }.check(),
                Err(ReferenceRangeError::RoundTrip)
            );
            assert_eq!(ReferenceMessage { loss: wrong, ..REFERENCE }.check(), Err(ReferenceRangeError::Loss));
            assert_eq!(
                ReferenceMessage { decrease: wrong, ..REFERENCE }.check(),
                Err(ReferenceRangeError::Decrease)
            );
        }
        assert_eq!(ReferenceMessage { loss: 1.5, ..REFERENCE }.check(), Err(ReferenceRangeError::Loss));
        assert_eq!(ReferenceMessage { loss_events: 0, ..REFERENCE }.check(), Err(ReferenceRangeError::Loss));
        assert_eq!(
            ReferenceMessage { decrease: 1.0, ..REFERENCE }.check(),
            Err(ReferenceRangeError::Decrease)
        );
    }

    proptest! {
        #[test]
        fn messages_round_trip(bytes in prop::collection::vec(any::<u8>(), MESSAGE..200)) {
            let mut bytes = bytes;
            let length = bytes.len() as u16;
            bytes[..4].copy_from_slice(&[0, 0, (length >> 8) as u8, length as u8]);
            let (read, found) = ReferenceMessage::read(&bytes).unwrap();
            let mut again: Vec<u8> = bytes.clone();
            again[..MESSAGE].fill(0xaa);
            read.write(&mut again).unwrap();
            prop_assert_eq!((again, found), (bytes, usize::from(length)));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok((reference, length)) = ReferenceMessage::read(&bytes) {
                prop_assert!((MESSAGE..=bytes.len()).contains(&length));
                let _ = reference.check();
                let _ = tlv::after_fields(&bytes[..length], MESSAGE).count();
            }
        }
    }
}
