//! Combined loss and delay measurement messages (RFC 6374 section 3.3), carried behind a channel header
//! ([`crate::gach`]).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |Version|R|T|0 0|  Control code |        Message length         |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |X|B|0 0|  QTF  |  RTF  | RPTF  |           Reserved            |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                     Session identifier            |    DS     |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                 Timestamps 1 to 4, 64 bits each               |
//! |                 Counters 1 to 4, 64 bits each                 |
//! ~                           TLV block ([`tlv`])                 ~
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! The fields have the same meanings as in the separate loss and delay messages. Counters are used as
//! described in section 3.1: "when a query is sent from A, Counter 1 is set to A_TxP and the other counter
//! fields are set to 0. When the query is received at B, Counter 2 is set to B_RxP. At this point, B copies
//! Counter 1 to Counter 3 and Counter 2 to Counter 4, and re-initializes Counter 1 and Counter 2 to 0. When
//! B transmits the response, Counter 1 is set to B_TxP." The timestamps T1 to T4 are used in the same way
//! (section 3.2).
//!
//! Two channel types carry the message. In *direct* measurement the counters count data packets, without
//! those of any associated channel (section 4.2.8); in *inferred* measurement they count test packets. A PE
//! counts its customers' packets, so its channel is
//! [`DIRECT_LOSS_DELAY`](crate::gach::channel::DIRECT_LOSS_DELAY).
//!
//! Reading and writing never panic, whatever the bytes.

pub mod tlv;

pub use crate::timestamp::{Timestamp, TimestampFormat};

use crate::bytes::{put, u16_at, u32_at, u64_at};

/// Length of a message without TLVs, bytes.
pub const MESSAGE: usize = 76;

/// Control codes of queries.
pub mod query_code {
    /// In-band response requested, on the reverse direction of the same channel.
    pub const IN_BAND: u8 = 0x00;
    /// No response requested.
    pub const NO_RESPONSE: u8 = 0x02;
}

/// Control codes of responses. Notifications (below 0x10) are informational; an error ends the session.
pub mod response_code {
    /// Success. The fields of the response are valid only with this code.
    pub const SUCCESS: u8 = 0x01;
    /// Notification: the responder's counters were reset.
    pub const DATA_RESET: u8 = 0x04;
    /// Unspecified error.
    pub const UNSPECIFIED: u8 = 0x10;
    /// Unsupported version.
    pub const UNSUPPORTED_VERSION: u8 = 0x11;
    /// Unsupported control code.
    pub const UNSUPPORTED_CONTROL_CODE: u8 = 0x12;
    /// Unsupported data format.
    pub const UNSUPPORTED_DATA_FORMAT: u8 = 0x13;
    /// Unsupported mandatory TLV (a type below 128).
    pub const UNSUPPORTED_MANDATORY_TLV: u8 = 0x17;
    /// Malformed query.
    pub const INVALID_MESSAGE: u8 = 0x1c;
}

/// Timestamp format code, 4 bits (section 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format(u8);

impl Format {
    /// Null format: no timestamp.
    pub const NULL: Format = Format(0);
    /// Sequence number.
    pub const SEQUENCE: Format = Format(1);
    /// NTP 64-bit format.
    pub const NTP: Format = Format(2);
    /// Truncated IEEE 1588 format: seconds and nanoseconds, mandatory for all implementations.
    pub const PTP: Format = Format(3);

    /// Returns the format in the low 4 bits.
    pub const fn from_bits(bits: u8) -> Format {
        Format(bits & 0xf)
    }

    /// Returns the format of time values, or `None` if the timestamps are not times.
    pub const fn time(self) -> Option<TimestampFormat> {
        match self {
            Format::NTP => Some(TimestampFormat::Ntp),
            Format::PTP => Some(TimestampFormat::Ptp),
            _ => None,
        }
    }
}

/// Session identifier, 26 bits, chosen by the querier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LossDelaySession(u32);

impl LossDelaySession {
    /// Largest session identifier.
    pub const MAX: LossDelaySession = LossDelaySession((1 << 26) - 1);

    /// Returns the session identifier in the low 26 bits.
    pub const fn from_bits(bits: u32) -> LossDelaySession {
        LossDelaySession(bits & LossDelaySession::MAX.0)
    }

    /// Returns the number of the session.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Reasons why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossDelayError {
    /// Bytes end within the fixed fields.
    Short,
    /// Version other than 0.
    Version(u8),
    /// Message length below the length of the fixed fields, or above the bytes available.
    Length {
        /// Length in the message.
        claimed: usize,
        /// Bytes available.
        present: usize,
    },
}

/// Fields of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossDelayMessage {
    /// R flag: response.
    pub is_response: bool,
    /// T flag: measurement restricted to the traffic class in `ds`.
    pub of_traffic_class: bool,
    /// Control code, one of [`query_code`] or [`response_code`].
    pub code: u8,
    /// X flag: all counters have 64 bits; otherwise only the low 32 bits are valid (section 4.2.6).
    pub has_wide_counters: bool,
    /// B flag: counters of bytes instead of packets.
    pub counts_bytes: bool,
    /// Querier's timestamp format (QTF).
    pub querier_format: Format,
    /// Responder's timestamp format (RTF); null in a query.
    pub responder_format: Format,
    /// Responder's preferred timestamp format (RPTF); null in a query.
    pub preferred_format: Format,
    /// Session identifier.
    pub session: LossDelaySession,
    /// DSCP of the traffic class, 6 bits; not used without the T flag.
    pub ds: u8,
    /// Timestamps T1 to T4.
    pub timestamps: [Timestamp; 4],
    /// Counters 1 to 4.
    pub counters: [u64; 4],
}

const RESPONSE: u8 = 0x08;
const TRAFFIC_CLASS: u8 = 0x04;
const WIDE: u8 = 0x80;
const BYTES: u8 = 0x40;

impl LossDelayMessage {
    /// Parses the fields of the message at the start of `bytes` and returns them with the message's length
    /// including TLVs. Later bytes are frame padding. Reserved bits are ignored.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<(LossDelayMessage, usize), LossDelayError> {
        let fields = bytes.first_chunk::<MESSAGE>().ok_or(LossDelayError::Short)?;
        if fields[0] >> 4 != 0 {
            return Err(LossDelayError::Version(fields[0] >> 4));
        }
        let claimed = usize::from(u16_at(fields, 2));
        if !(MESSAGE..=bytes.len()).contains(&claimed) {
            return Err(LossDelayError::Length { claimed, present: bytes.len() });
        }
        let session = u32_at(fields, 8);
        let (timestamp, counter) = (|at| Timestamp(u64_at(fields, at)), |at| u64_at(fields, at));
        let message = LossDelayMessage {
            is_response: fields[0] & RESPONSE != 0,
            of_traffic_class: fields[0] & TRAFFIC_CLASS != 0,
            code: fields[1],
            has_wide_counters: fields[4] & WIDE != 0,
            counts_bytes: fields[4] & BYTES != 0,
            querier_format: Format::from_bits(fields[4]),
            responder_format: Format::from_bits(fields[5] >> 4),
            preferred_format: Format::from_bits(fields[5]),
            session: LossDelaySession::from_bits(session >> 6),
            ds: session as u8 & 0x3f,
            timestamps: [timestamp(12), timestamp(20), timestamp(28), timestamp(36)],
            counters: [counter(44), counter(52), counter(60), counter(68)],
        };
        Ok((message, claimed))
    }

    /// Returns `true` if the R flag of a message is set. The rest of the message is not checked.
    #[inline]
    pub fn is_response(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|flags| flags & RESPONSE != 0)
    }

    /// Writes the fields of a message that fills the buffer, TLVs included. The caller writes the TLVs after
    /// [`MESSAGE`] bytes.
    #[inline]
    pub fn write(&self, message: &mut [u8]) -> Result<(), LossDelayLengthError> {
        let length = u16::try_from(message.len()).map_err(|_| LossDelayLengthError)?;
        let fields = message.first_chunk_mut::<MESSAGE>().ok_or(LossDelayLengthError)?;
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        put(fields, 2, &length.to_be_bytes());
        fields[0] = flag(self.is_response, RESPONSE) | flag(self.of_traffic_class, TRAFFIC_CLASS);
        fields[1] = self.code;
        fields[4] =
            flag(self.has_wide_counters, WIDE) | flag(self.counts_bytes, BYTES) | self.querier_format.0;
        fields[5] = self.responder_format.0 << 4 | self.preferred_format.0;
        put(fields, 6, &[0, 0]);
        put(fields, 8, &(self.session.0 << 6 | u32::from(self.ds & 0x3f)).to_be_bytes());
        for (at, timestamp) in (12..).step_by(8).zip(self.timestamps) {
            put(fields, at, &timestamp.0.to_be_bytes());
        }
        for (at, counter) in (44..).step_by(8).zip(self.counters) {
            put(fields, at, &counter.to_be_bytes());
        }
        Ok(())
    }

    /// Returns a query for an in-band response, with 64-bit packet counters over all traffic classes.
    pub const fn query(
        session: LossDelaySession,
        format: Format,
        sent_at: Timestamp,
        sent: u64,
    ) -> LossDelayMessage {
        LossDelayMessage {
            is_response: false,
            of_traffic_class: false,
            code: query_code::IN_BAND,
            has_wide_counters: true,
            counts_bytes: false,
            querier_format: format,
            responder_format: Format::NULL,
            preferred_format: Format::NULL,
            session,
            ds: 0,
            timestamps: [sent_at, Timestamp(0), Timestamp(0), Timestamp(0)],
            counters: [sent, 0, 0, 0],
        }
    }

    /// Returns the response to this query. `arrived` holds T2 and the units received until then, `departs`
    /// holds T3 and the units sent in the reverse direction until then; `format` applies to both times. The
    /// flags R (set), T, X, B, the session and DS follow section 4.2.4.
    pub const fn response(
        &self,
        code: u8,
        format: Format,
        arrived: (Timestamp, u64),
        departs: (Timestamp, u64),
    ) -> LossDelayMessage {
        LossDelayMessage {
            is_response: true,
            code,
            responder_format: format,
            preferred_format: format,
            timestamps: [departs.0, Timestamp(0), self.timestamps[0], arrived.0],
            counters: [departs.1, 0, self.counters[0], arrived.1],
            ..*self
        }
    }
}

/// Error for a buffer shorter than the fixed fields, or longer than the length field can express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossDelayLengthError;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUERY: LossDelayMessage = LossDelayMessage::query(
        LossDelaySession::from_bits(0x123_4567),
        Format::PTP,
        Timestamp(0x0102_0304_0506_0708),
        0x1112_1314_1516_1718,
    );

    #[test]
    fn fields_are_at_the_offsets_of_the_rfc() {
        let mut bytes = [0xff; MESSAGE + 4];
        let query = LossDelayMessage { of_traffic_class: true, ds: 0x2e, ..QUERY };
        query.write(&mut bytes).unwrap();
        let mut expected = [0; MESSAGE + 4];
        expected[..12].copy_from_slice(&[0x04, 0, 0, 80, 0x83, 0, 0, 0, 0x48, 0xd1, 0x59, 0xee]);
        expected[12..20].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        expected[44..52].copy_from_slice(&[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        expected[MESSAGE..].fill(0xff);
        assert_eq!(bytes, expected);
        assert_eq!(LossDelayMessage::read(&bytes), Ok((query, MESSAGE + 4)));
    }

    #[test]
    fn a_response_moves_the_fields_of_the_query() {
        let response =
            QUERY.response(response_code::SUCCESS, Format::NTP, (Timestamp(2), 22), (Timestamp(3), 33));
        assert_eq!(response.timestamps, [Timestamp(3), Timestamp(0), QUERY.timestamps[0], Timestamp(2)]);
        assert_eq!(response.counters, [33, 0, QUERY.counters[0], 22]);
        let mut bytes = [0; MESSAGE];
        response.write(&mut bytes).unwrap();
        assert_eq!(bytes[..6], [0x08, 0x01, 0, 76, 0x83, 0x22]);
        assert_eq!(LossDelayMessage::read(&bytes), Ok((response, MESSAGE)));
    }

    #[test]
    fn lengths_and_version_are_checked() {
        let mut bytes = [0; MESSAGE + 10];
        QUERY.write(&mut bytes[..MESSAGE]).unwrap();
        assert_eq!(LossDelayMessage::read(&bytes), Ok((QUERY, MESSAGE)));
        assert_eq!(LossDelayMessage::read(&bytes[..MESSAGE - 1]), Err(LossDelayError::Short));
        bytes[3] = 75;
        assert_eq!(LossDelayMessage::read(&bytes), Err(LossDelayError::Length { claimed: 75, present: 86 }));
        bytes[3] = 87;
        assert_eq!(LossDelayMessage::read(&bytes), Err(LossDelayError::Length { claimed: 87, present: 86 }));
        bytes[0] = 0x10;
        assert_eq!(LossDelayMessage::read(&bytes), Err(LossDelayError::Version(1)));
        assert_eq!(QUERY.write(&mut bytes[..MESSAGE - 1]), Err(LossDelayLengthError));
        assert_eq!(QUERY.write(&mut [0; 65_536]), Err(LossDelayLengthError));
    }

    proptest! {
        #[test]
        fn arbitrary_fields_round_trip(mut bytes: [u8; MESSAGE], tail in 0_usize..20) {
            // Clear the reserved bits and set a valid length; reserved bits are not preserved.
            bytes[0] &= 0x0c;
            bytes[2..4].copy_from_slice(&[0, MESSAGE as u8]);
            bytes[4] &= 0xcf;
            bytes[6..8].fill(0);
            let (message, length) = LossDelayMessage::read(&bytes).unwrap();
            prop_assert_eq!(length, MESSAGE);
            let mut again = [0xaa; MESSAGE];
            message.write(&mut again).unwrap();
            prop_assert_eq!(again, bytes);
            prop_assert!(LossDelayMessage::read(&bytes[tail..]).is_err() || tail == 0);
        }
    }
}
