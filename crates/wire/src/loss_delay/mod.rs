//! Combined loss and delay measurement messages (RFC 6374 section 3.3), behind a channel
//! header ([`crate::gach`]).
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
//! The fields have the same meanings as in the messages that measure only one of the two, so
//! the way of the counters is that of section 3.1: "when a query is sent from A, Counter 1 is
//! set to A_TxP and the other counter fields are set to 0. When the query is received at B,
//! Counter 2 is set to B_RxP. At this point, B copies Counter 1 to Counter 3 and Counter 2 to
//! Counter 4, and re-initializes Counter 1 and Counter 2 to 0. When B transmits the response,
//! Counter 1 is set to B_TxP." The timestamps T1 to T4 go the same way (section 3.2).
//!
//! Two channel types carry the message. In *direct* measurement the counters are of the data
//! packets themselves, without those of any associated channel (section 4.2.8); in *inferred*
//! measurement they are of test packets sent for the purpose. A PE counts its customers'
//! packets, so its channel is [`DIRECT_LOSS_DELAY`](crate::gach::channel::DIRECT_LOSS_DELAY).
//!
//! Reading and writing never panic, whatever the bytes.

pub mod tlv;

pub use crate::timestamp::{Timestamp, TimestampFormat};

use crate::bytes::{put, u16_at, u32_at, u64_at};

/// Length of a message without TLVs.
pub const MESSAGE: usize = 76;

/// What a query asks for.
pub mod query_code {
    /// A response on the way back of the same channel.
    pub const IN_BAND: u8 = 0x00;
    /// No response.
    pub const NO_RESPONSE: u8 = 0x02;
}

/// What became of a query. Notifications pass; after an error the session ends.
pub mod response_code {
    /// All is well, and nothing else says that the fields mean anything.
    pub const SUCCESS: u8 = 0x01;
    /// The responder's counters began anew.
    pub const DATA_RESET: u8 = 0x04;
    /// An error without a name.
    pub const UNSPECIFIED: u8 = 0x10;
    /// Another version.
    pub const UNSUPPORTED_VERSION: u8 = 0x11;
    /// A control code nobody knows.
    pub const UNSUPPORTED_CONTROL_CODE: u8 = 0x12;
    /// A data format nobody knows.
    pub const UNSUPPORTED_DATA_FORMAT: u8 = 0x13;
    /// A TLV of a type below 128 that is not known.
    pub const UNSUPPORTED_MANDATORY_TLV: u8 = 0x17;
    /// The query is malformed.
    pub const INVALID_MESSAGE: u8 = 0x1c;
}

/// Format of a timestamp, 4 bits (section 3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Format(u8);

impl Format {
    /// No meaning.
    pub const NULL: Format = Format(0);
    /// A number that grows.
    pub const SEQUENCE: Format = Format(1);
    /// NTP's 64 bits.
    pub const NTP: Format = Format(2);
    /// Seconds and nanoseconds of IEEE 1588, which everyone must support.
    pub const PTP: Format = Format(3);

    /// From its 4 bits; higher ones are cut off.
    pub const fn from_bits(bits: u8) -> Format {
        Format(bits & 0xf)
    }

    /// How its timestamps are read as times; not at all where they are none.
    pub const fn time(self) -> Option<TimestampFormat> {
        match self {
            Format::NTP => Some(TimestampFormat::Ntp),
            Format::PTP => Some(TimestampFormat::Ptp),
            _ => None,
        }
    }
}

/// Identifies a session at its querier: 26 bits, set as it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(u32);

impl Session {
    /// Largest session identifier.
    pub const MAX: Session = Session((1 << 26) - 1);

    /// The low 26 bits of a number.
    pub const fn from_bits(bits: u32) -> Session {
        Session(bits & Session::MAX.0)
    }

    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// They end within the fields.
    Short,
    /// The version is not 0.
    Version(u8),
    /// The message says it is shorter than its fields, or longer than its bytes.
    Length {
        /// What it says.
        claimed: usize,
        /// What there is.
        present: usize,
    },
}

/// The fields of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// R: this is a response.
    pub is_response: bool,
    /// T: the measurement is of the traffic class that `ds` names.
    pub of_traffic_class: bool,
    /// Of [`query_code`] or [`response_code`].
    pub code: u8,
    /// X: every counter so far has 64 bits; otherwise the low 32 count (section 4.2.6).
    pub has_wide_counters: bool,
    /// B: the counters are of bytes; otherwise of packets.
    pub counts_bytes: bool,
    /// Format of the querier's timestamps (QTF).
    pub querier_format: Format,
    /// Format of the responder's (RTF); null in a query.
    pub responder_format: Format,
    /// Format the responder likes best (RPTF); null in a query.
    pub preferred_format: Format,
    /// Session.
    pub session: Session,
    /// DSCP of the traffic class, 6 bits; without T it may be anything.
    pub ds: u8,
    /// Timestamps 1 to 4.
    pub timestamps: [Timestamp; 4],
    /// Counters 1 to 4.
    pub counters: [u64; 4],
}

const RESPONSE: u8 = 0x08;
const TRAFFIC_CLASS: u8 = 0x04;
const WIDE: u8 = 0x80;
const BYTES: u8 = 0x40;

impl Message {
    /// Reads the fields of the message these bytes begin with, and gives its length with TLVs;
    /// what follows is padding of the frame. Reserved bits are ignored.
    #[inline]
    pub fn read(bytes: &[u8]) -> Result<(Message, usize), Error> {
        let fields = bytes.first_chunk::<MESSAGE>().ok_or(Error::Short)?;
        if fields[0] >> 4 != 0 {
            return Err(Error::Version(fields[0] >> 4));
        }
        let claimed = usize::from(u16_at(fields, 2));
        if !(MESSAGE..=bytes.len()).contains(&claimed) {
            return Err(Error::Length { claimed, present: bytes.len() });
        }
        let session = u32_at(fields, 8);
        let (timestamp, counter) = (|at| Timestamp(u64_at(fields, at)), |at| u64_at(fields, at));
        let message = Message {
            is_response: fields[0] & RESPONSE != 0,
            of_traffic_class: fields[0] & TRAFFIC_CLASS != 0,
            code: fields[1],
            has_wide_counters: fields[4] & WIDE != 0,
            counts_bytes: fields[4] & BYTES != 0,
            querier_format: Format::from_bits(fields[4]),
            responder_format: Format::from_bits(fields[5] >> 4),
            preferred_format: Format::from_bits(fields[5]),
            session: Session::from_bits(session >> 6),
            ds: session as u8 & 0x3f,
            timestamps: [timestamp(12), timestamp(20), timestamp(28), timestamp(36)],
            counters: [counter(44), counter(52), counter(60), counter(68)],
        };
        Ok((message, claimed))
    }

    /// Whether these bytes, if they are a message, are a response; the others are queries.
    #[inline]
    pub fn is_response(bytes: &[u8]) -> bool {
        bytes.first().is_some_and(|flags| flags & RESPONSE != 0)
    }

    /// Writes the fields of a message that fills the buffer, TLVs included; those are for the
    /// caller to write behind [`MESSAGE`].
    #[inline]
    pub fn write(&self, message: &mut [u8]) -> Result<(), DoesNotFit> {
        let length = u16::try_from(message.len()).map_err(|_| DoesNotFit)?;
        let fields = message.first_chunk_mut::<MESSAGE>().ok_or(DoesNotFit)?;
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

    /// A query for an in-band response, with 64-bit counters of packets of every class.
    pub const fn query(session: Session, format: Format, sent_at: Timestamp, sent: u64) -> Message {
        Message {
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

    /// The response to this query, which came at T2 when `received` units had, and is answered
    /// at T3 when `sent` units had been sent the other way. `format` is that of both times; R, T,
    /// X, B, session and DS are the query's (section 4.2.4).
    pub const fn response(
        &self,
        code: u8,
        format: Format,
        arrived: (Timestamp, u64),
        departs: (Timestamp, u64),
    ) -> Message {
        Message {
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

/// The buffer is shorter than a message, or longer than one can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoesNotFit;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUERY: Message = Message::query(
        Session::from_bits(0x123_4567),
        Format::PTP,
        Timestamp(0x0102_0304_0506_0708),
        0x1112_1314_1516_1718,
    );

    #[test]
    fn fields_stand_where_the_rfc_draws_them() {
        let mut bytes = [0xff; MESSAGE + 4];
        let query = Message { of_traffic_class: true, ds: 0x2e, ..QUERY };
        query.write(&mut bytes).unwrap();
        let mut expected = [0; MESSAGE + 4];
        expected[..12].copy_from_slice(&[0x04, 0, 0, 80, 0x83, 0, 0, 0, 0x48, 0xd1, 0x59, 0xee]);
        expected[12..20].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        expected[44..52].copy_from_slice(&[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        expected[MESSAGE..].fill(0xff);
        assert_eq!(bytes, expected);
        assert_eq!(Message::read(&bytes), Ok((query, MESSAGE + 4)));
    }

    #[test]
    fn a_response_shifts_what_the_query_brought() {
        let response =
            QUERY.response(response_code::SUCCESS, Format::NTP, (Timestamp(2), 22), (Timestamp(3), 33));
        assert_eq!(response.timestamps, [Timestamp(3), Timestamp(0), QUERY.timestamps[0], Timestamp(2)]);
        assert_eq!(response.counters, [33, 0, QUERY.counters[0], 22]);
        let mut bytes = [0; MESSAGE];
        response.write(&mut bytes).unwrap();
        assert_eq!(bytes[..6], [0x08, 0x01, 0, 76, 0x83, 0x22]);
        assert_eq!(Message::read(&bytes), Ok((response, MESSAGE)));
    }

    #[test]
    fn lengths_and_version_are_checked() {
        let mut bytes = [0; MESSAGE + 10];
        QUERY.write(&mut bytes[..MESSAGE]).unwrap();
        assert_eq!(Message::read(&bytes), Ok((QUERY, MESSAGE)));
        assert_eq!(Message::read(&bytes[..MESSAGE - 1]), Err(Error::Short));
        bytes[3] = 75;
        assert_eq!(Message::read(&bytes), Err(Error::Length { claimed: 75, present: 86 }));
        bytes[3] = 87;
        assert_eq!(Message::read(&bytes), Err(Error::Length { claimed: 87, present: 86 }));
        bytes[0] = 0x10;
        assert_eq!(Message::read(&bytes), Err(Error::Version(1)));
        assert_eq!(QUERY.write(&mut bytes[..MESSAGE - 1]), Err(DoesNotFit));
        assert_eq!(QUERY.write(&mut [0; 65_536]), Err(DoesNotFit));
    }

    proptest! {
        #[test]
        fn foreign_bytes_are_read_and_written_alike(mut bytes: [u8; MESSAGE], tail in 0_usize..20) {
            // Reserved bits are not kept, and most lengths would be refused.
            bytes[0] &= 0x0c;
            bytes[2..4].copy_from_slice(&[0, MESSAGE as u8]);
            bytes[4] &= 0xcf;
            bytes[6..8].fill(0);
            let (message, length) = Message::read(&bytes).unwrap();
            prop_assert_eq!(length, MESSAGE);
            let mut again = [0xaa; MESSAGE];
            message.write(&mut again).unwrap();
            prop_assert_eq!(again, bytes);
            prop_assert!(Message::read(&bytes[tail..]).is_err() || tail == 0);
        }
    }
}
