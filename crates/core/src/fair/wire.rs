//! Encoding of management packets as RFC 6374 messages. A query and its reply are one combined direct loss
//! and delay measurement ([`netstage_wire::loss_delay`]), without labels and channel header.
//!
//! | Field | Place in the message |
//! |---|---|
//! | [`Query::packets_sent`] | counter 1 of the query, counter 3 of the response |
//! | [`Query::sent_at`] | timestamp 1 of the query, timestamp 3 of the response, in PTP format |
//! | [`Reply::packets_received`] | counter 4 of the response |
//! | [`Reply::residence_time`] | timestamp 1 minus timestamp 4 of the response, in the responder's format |
//! | [`Reply::packets_marked`] | a private TLV if the query requested it, otherwise zero |
//! | [`Query::sequence`] | not encoded: the querier stores it under timestamp 1 |
//!
//! The message has no sequence number. Within a session, timestamp 1 is strictly increasing and a responder
//! must return it unchanged, so the querier uses it as the key of its pending queries. A TLV with a
//! sequence number would not work with the many responders, hardware above all, that return only the fixed
//! fields; it would also increase the size of 88 bytes. The consequences are:
//!
//! - The querier trusts nothing in a response about its query; sequence number, time and count are the
//!   stored ones. It rejects a response to a query that was never sent or is already answered, that is
//!   older than an answered one, or that was sent before a restart of this PE (with another session or
//!   other times).
//! - Counters have 64 bits. If a responder has 32-bit counters (X flag clear), the value is the one with
//!   these low 32 bits that is nearest to the packets sent.
//! - A responder that restarts counts from zero; [`Ingress`](super::Ingress) detects this from the counts.
//!
//! With a key, messages in both directions carry a digest. A message with a missing or wrong digest is then
//! rejected before any other field is used. This includes error codes: an attacker who can forge an error
//! could otherwise end a session.

use super::management::{Egress, Query, Reply};
use crate::time::Duration;
use alloc::collections::VecDeque;
use netstage_wire::loss_delay::tlv::{self, Content, kind};
use netstage_wire::loss_delay::{
    self, Format, LossDelayLengthError, LossDelayMessage, LossDelaySession, MESSAGE, Timestamp,
    TimestampFormat, query_code, response_code,
};

/// Maximum number of pending queries. The oldest is dropped first, and its response is rejected.
const PENDING: usize = 4096;
/// Time after which a newer query expires a pending one, so that flows with silent peers do not accumulate
/// thousands of queries.
const FORGOTTEN_AFTER_NS: u64 = 60_000_000_000;

/// Function that returns the truncated HMAC-SHA-256 of a message for a key number, or `None` if the key is
/// unknown. Both ends may prepend data that binds a message to its channel.
pub type Digest<'a> = &'a dyn Fn(u8, &[u8]) -> Option<[u8; tlv::DIGEST]>;

/// Authentication of messages.
#[derive(Clone, Copy)]
pub struct Authentication<'a> {
    /// Number of the key for sent messages.
    pub key: u8,
    /// Function that computes the digest for a key.
    pub digest: Digest<'a>,
}

impl Authentication<'_> {
    /// Returns the number of the key that signed a message whose fields take `fields` bytes, if the digest
    /// is valid.
    pub(super) fn verify(&self, message: &[u8], fields: usize) -> Option<u8> {
        let (covered, digest_field) = tlv::authenticated(message, fields)?;
        // The key number is the byte before the digest.
        let key = message[digest_field.start - 1];
        let expected = (self.digest)(key, &message[covered])?;
        // All bytes are compared, so that the time of the comparison reveals nothing.
        let difference = expected.iter().zip(&message[digest_field]).fold(0, |sum, (a, b)| sum | (a ^ b));
        (difference == 0).then_some(key)
    }

    pub(super) fn sign(&self, message: &mut [u8], fields: usize) {
        let Some((covered, digest_field)) = tlv::authenticated(message, fields) else { return };
        let key = message[digest_field.start - 1];
        if let Some(digest) = (self.digest)(key, &message[covered]) {
            message[digest_field].copy_from_slice(&digest);
        }
    }
}

/// Reason for rejecting a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// The bytes are not a valid message.
    Malformed(loss_delay::LossDelayError),
    /// A TLV is malformed.
    Tlv,
    /// The message is a query.
    NotAResponse,
    /// The message belongs to another session, for example to one before a restart of this PE.
    OtherSession,
    /// The digest is wrong or missing.
    Digest,
    /// The responder returned this code instead of success. After an error, 0x10 and above (RFC 6374
    /// section 3.1), the session must end.
    Code(u8),
    /// The counters count bytes or a single traffic class, which was not requested.
    DataFormat,
    /// No pending query matches: the response is replayed, late or forged.
    Unsolicited,
    /// The responder returned a packet count other than the one sent.
    WrongPacketCount,
}

/// Reason for not answering a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryError {
    /// The bytes are not a valid message.
    Malformed(loss_delay::LossDelayError),
    /// The message is a response.
    NotAQuery,
    /// The digest is wrong or missing.
    Digest,
    /// The query requests no response.
    NoResponseRequested,
}

/// The ingress PE's side of a VPN flow: writes queries and reads responses.
#[derive(Clone, Debug)]
pub struct Querier {
    session: LossDelaySession,
    epoch_unix_ns: u64,
    asks_for_marks: bool,
    /// Timestamp of the newest query, in nanoseconds since 1970.
    newest: u64,
    /// Pending queries by timestamp, oldest first.
    pending: VecDeque<(u64, Query)>,
}

impl Querier {
    /// Creates a querier without pending queries. `session` should change with each restart;
    /// `epoch_unix_ns` is the time of [`Instant::ZERO`](crate::time::Instant::ZERO) in nanoseconds since
    /// 1970.
    pub fn new(session: LossDelaySession, epoch_unix_ns: u64, asks_for_marks: bool) -> Querier {
        Querier { session, epoch_unix_ns, asks_for_marks, newest: 0, pending: VecDeque::new() }
    }

    /// Returns whether queries request the number of congestion marks.
    pub fn requests_marks(&self) -> bool {
        self.asks_for_marks
    }

    /// Returns the length of a query in bytes.
    pub fn query_length(&self, is_authenticated: bool) -> usize {
        let marks = if self.asks_for_marks { tlv::MARKS } else { 0 };
        MESSAGE + marks + if is_authenticated { tlv::AUTHENTICATION } else { 0 }
    }

    /// Writes a query into `bytes`, adds it to the pending ones and returns its length.
    pub fn write(
        &mut self,
        query: Query,
        authentication: Option<Authentication<'_>>,
        bytes: &mut [u8],
    ) -> Result<usize, LossDelayLengthError> {
        let length = self.query_length(authentication.is_some());
        self.write_padded(query, authentication, bytes.get_mut(..length).ok_or(LossDelayLengthError)?)?;
        Ok(length)
    }

    /// Writes a query that fills `bytes`, which must not be shorter than [`query_length`](Querier::query_length), and
    /// adds it to the pending ones.
    pub fn write_padded(
        &mut self,
        query: Query,
        authentication: Option<Authentication<'_>>,
        bytes: &mut [u8],
    ) -> Result<(), LossDelayLengthError> {
        let length = bytes.len();
        let fields = self.query_length(false);
        let digest = if authentication.is_some() { tlv::AUTHENTICATION } else { 0 };
        let padded = length.saturating_sub(digest);
        // Two queries in the same nanosecond, or a clock that was set back, must not give equal keys.
        let sent_ns = (self.epoch_unix_ns + query.sent_at.0).max(self.newest + 1);
        let timestamp = Timestamp::from_unix(sent_ns, TimestampFormat::Ptp);
        LossDelayMessage::query(self.session, Format::PTP, timestamp, query.packets_sent).write(bytes)?;
        if self.asks_for_marks {
            tlv::write_marks(bytes, MESSAGE, 0).map_err(|_| LossDelayLengthError)?;
        }
        tlv::write_padding(bytes, fields, padded).map_err(|_| LossDelayLengthError)?;
        if let Some(authentication) = authentication {
            tlv::write_authentication(bytes, padded, authentication.key).map_err(|_| LossDelayLengthError)?;
            authentication.sign(bytes, MESSAGE);
        }
        self.newest = sent_ns;
        while self.pending.front().is_some_and(|(before_ns, _)| before_ns + FORGOTTEN_AFTER_NS < sent_ns) {
            self.pending.pop_front();
        }
        if self.pending.len() == PENDING {
            self.pending.pop_front();
        }
        self.pending.push_back((sent_ns, query));
        Ok(())
    }

    /// Reads a response. Afterwards this response and all older ones are rejected.
    pub fn read(
        &mut self,
        bytes: &[u8],
        authentication: Option<Authentication<'_>>,
    ) -> Result<Reply, ResponseError> {
        let (message, length) = LossDelayMessage::read(bytes).map_err(ResponseError::Malformed)?;
        let bytes = &bytes[..length];
        if !message.is_response {
            return Err(ResponseError::NotAResponse);
        }
        if message.session != self.session {
            return Err(ResponseError::OtherSession);
        }
        if authentication.is_some_and(|authentication| authentication.verify(bytes, MESSAGE).is_none()) {
            return Err(ResponseError::Digest);
        }
        if message.code != response_code::SUCCESS {
            return Err(ResponseError::Code(message.code));
        }
        if message.counts_bytes || message.of_traffic_class {
            return Err(ResponseError::DataFormat);
        }
        let key = |sent_ns| Timestamp::from_unix(sent_ns, TimestampFormat::Ptp).0;
        let found = self.pending.binary_search_by_key(&message.timestamps[2].0, |&(sent_ns, _)| key(sent_ns));
        let index = found.map_err(|_| ResponseError::Unsolicited)?;
        let query = self.pending[index].1;
        let [_, _, returned, received] = message.counters;
        let packets_received = if message.has_wide_counters {
            received
        } else {
            let behind = (query.packets_sent as u32).wrapping_sub(received as u32) as i32;
            query.packets_sent.wrapping_sub(i64::from(behind) as u64)
        };
        let mask = if message.has_wide_counters { u64::MAX } else { u32::MAX.into() };
        if (returned ^ query.packets_sent) & mask != 0 {
            return Err(ResponseError::WrongPacketCount);
        }
        let packets_marked = marks(bytes)?.unwrap_or(0);
        self.pending.drain(..=index);
        Ok(Reply {
            query,
            packets_received,
            packets_marked,
            residence_time: held(&message),
            transit: transit(&message),
        })
    }
}

/// Returns the number of marks in a response, or an error if its TLVs are malformed.
fn marks(message: &[u8]) -> Result<Option<u64>, ResponseError> {
    let mut marks = None;
    for found in tlv::of_message(message) {
        if let Content::Marks { packets } =
            found.map_err(|_| ResponseError::Tlv)?.content().map_err(|_| ResponseError::Tlv)?
        {
            marks = Some(packets);
        }
    }
    Ok(marks)
}

/// Returns the time for which the responder held a query; zero if its timestamps are unusable or its clock
/// was set back.
fn held(response: &LossDelayMessage) -> Duration {
    let [departed, _, _, arrived] = response.timestamps;
    let held = response.responder_format.time().map_or(0, |format| departed.since(arrived, format));
    Duration(u64::try_from(held).unwrap_or(0))
}

/// Returns the arrival of a query by the responder's clock minus its departure by that of the querier, in
/// nanoseconds; zero if the timestamps are unusable.
fn transit(response: &LossDelayMessage) -> i64 {
    let [_, _, sent, arrived] = response.timestamps;
    match response.responder_format.time() {
        Some(TimestampFormat::Ptp) => arrived.since(sent, TimestampFormat::Ptp),
        _ => 0,
    }
}

/// Times at the responder, in nanoseconds since 1970 by its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponderTimes {
    /// Arrival of the query.
    pub arrived_ns: u64,
    /// Departure of the response.
    pub departs_ns: u64,
}

/// Turns a query into its response in place and returns the length of the response, which is never greater.
/// `sent_back` are the numbers of data packets and of their bytes that this PE has sent in the other direction. A query
/// for counts of bytes is answered with those at the IP layer. An unsupported request is answered with the corresponding
/// response code.
pub fn answer(
    bytes: &mut [u8],
    egress: &Egress,
    sent_back: (u64, u64),
    times: ResponderTimes,
    authentication: Option<Authentication<'_>>,
) -> Result<usize, QueryError> {
    let (query, length) = LossDelayMessage::read(bytes).map_err(QueryError::Malformed)?;
    let bytes = &mut bytes[..length];
    if query.is_response {
        return Err(QueryError::NotAQuery);
    }
    let key = match authentication {
        Some(authentication) => Some(authentication.verify(bytes, MESSAGE).ok_or(QueryError::Digest)?),
        None => None,
    };
    if query.code == query_code::NO_RESPONSE {
        return Err(QueryError::NoResponseRequested);
    }
    let code = if query.code != query_code::IN_BAND {
        response_code::UNSUPPORTED_CONTROL_CODE
    } else if query.of_traffic_class {
        // An egress PE counts all traffic classes together.
        response_code::UNSUPPORTED_DATA_FORMAT
    } else {
        code_of_tlvs(bytes, key.is_some())
    };
    let format = query.querier_format.time().unwrap_or(TimestampFormat::Ptp);
    let stamp = |ns| Timestamp::from_unix(ns, format);
    let (received, sent) = match query.counts_bytes {
        true => (egress.bytes, sent_back.1),
        false => (egress.packets, sent_back.0),
    };
    let response = query.response(
        code,
        if format == TimestampFormat::Ntp { Format::NTP } else { Format::PTP },
        (stamp(times.arrived_ns), received),
        (stamp(times.departs_ns), sent),
    );
    let length = answer_tlvs(bytes, egress, key);
    let bytes = &mut bytes[..length];
    // The buffer held a message before, so it is long enough.
    let written = LossDelayMessage { preferred_format: Format::PTP, ..response }.write(bytes);
    debug_assert!(written.is_ok());
    if let Some(authentication) = authentication {
        authentication.sign(bytes, MESSAGE);
    }
    Ok(length)
}

/// Returns the response code for the TLVs of a query.
fn code_of_tlvs(message: &[u8], may_be_signed: bool) -> u8 {
    for found in tlv::of_message(message) {
        let Ok(found) = found else { return response_code::INVALID_MESSAGE };
        match found.content() {
            Err(_) => return response_code::INVALID_MESSAGE,
            Ok(Content::Padding | Content::SessionQueryInterval { .. }) => {}
            Ok(Content::Authentication { .. }) if may_be_signed => {}
            // Responses always return through the channel, never to another address.
            Ok(_) if kind::is_mandatory(found.kind) => return response_code::UNSUPPORTED_MANDATORY_TLV,
            Ok(_) => {}
        }
    }
    response_code::SUCCESS
}

/// Replaces the TLVs of the query by those of the response and returns the length of the message. Each
/// response TLV is as long as the query TLV it answers, so no TLV is overwritten before it is read.
fn answer_tlvs(bytes: &mut [u8], egress: &Egress, key: Option<u8>) -> usize {
    let (mut next, mut end) = (MESSAGE, MESSAGE);
    while let Some(Ok(found)) = tlv::at(bytes, next) {
        let (start, kind, content) = (found.start, found.kind, found.content());
        next = found.end();
        let length = next - start;
        let written = match content {
            Ok(Content::Padding) if kind == kind::PADDING_COPIED => {
                bytes.copy_within(start..next, end);
                true
            }
            // There is no minimum interval, which is reported as zero.
            Ok(Content::SessionQueryInterval { .. }) => {
                bytes.copy_within(start..next, end);
                bytes[end + tlv::HEADER..end + length].fill(0);
                true
            }
            Ok(Content::Marks { .. }) => tlv::write_marks(bytes, end, egress.marked).is_ok(),
            Ok(Content::Authentication { .. }) => {
                key.is_some_and(|key| tlv::write_authentication(bytes, end, key).is_ok())
            }
            _ => false,
        };
        if written {
            end += length;
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const EPOCH: u64 = 1_795_255_703_000_000_000;
    const SESSION: LossDelaySession = LossDelaySession::from_bits(0x2aa_aaaa);
    const EGRESS: Egress = Egress { packets: 90, bytes: 90_000, marked: 7 };
    const TIMES: ResponderTimes =
        ResponderTimes { arrived_ns: EPOCH + 5_000_000, departs_ns: EPOCH + 5_030_000 };
    const QUERY: Query = Query { sequence: 3, sent_at: Instant(1_234_567_891), packets_sent: 100 };

    /// A stand-in for a digest that depends on every byte and on the key.
    fn digest(key: u8, bytes: &[u8]) -> Option<[u8; 16]> {
        let sum = bytes
            .iter()
            .fold(u128::from(key), |sum, byte| (sum + u128::from(*byte)).wrapping_mul(0x1_0000_0193));
        (key < 100).then(|| sum.to_be_bytes())
    }

    fn key(key: u8) -> Option<Authentication<'static>> {
        Some(Authentication { key, digest: &digest })
    }

    fn query(querier: &mut Querier, query: Query, authentication: Option<Authentication<'_>>) -> Vec<u8> {
        let mut bytes = vec![0xff; 200];
        let length = querier.write(query, authentication, &mut bytes).unwrap();
        bytes.truncate(length);
        bytes
    }

    fn response(mut bytes: Vec<u8>, authentication: Option<Authentication<'_>>) -> Vec<u8> {
        let length = answer(&mut bytes, &EGRESS, (55, 55_000), TIMES, authentication).unwrap();
        bytes.truncate(length);
        bytes
    }

    fn code(bytes: Vec<u8>) -> u8 {
        LossDelayMessage::read(&response(bytes, None)).unwrap().0.code
    }

    #[test]
    fn a_query_is_padded_to_any_length_and_its_response_is_short() {
        for authentication in [None, key(9)] {
            let mut querier = Querier::new(SESSION, EPOCH, true);
            let shortest = querier.query_length(authentication.is_some());
            for length in (shortest + tlv::HEADER..shortest + 2_000).chain([9_000]) {
                let mut bytes = vec![0xff; length];
                querier.write_padded(QUERY, authentication, &mut bytes).unwrap();
                let answered = response(bytes, authentication);
                assert_eq!(answered.len(), shortest);
                assert_eq!(querier.read(&answered, authentication).map(|reply| reply.query), Ok(QUERY));
            }
            let mut bytes = vec![0; shortest + 1];
            assert!(querier.write_padded(QUERY, authentication, &mut bytes).is_err());
        }
    }

    #[test]
    fn an_encoded_reply_equals_that_of_the_egress_pe() {
        for asks_for_marks in [false, true] {
            for authentication in [None, key(9)] {
                let mut querier = Querier::new(SESSION, EPOCH, asks_for_marks);
                let sent = query(&mut querier, QUERY, authentication);
                let plain = authentication.is_none() && !asks_for_marks;
                assert_eq!(sent.len() == netstage_wire::LOSS_DELAY_MESSAGE as usize, plain);
                let answered = response(sent.clone(), authentication);
                assert_eq!(answered.len(), sent.len());
                let (message, _) = LossDelayMessage::read(&answered).unwrap();
                assert_eq!((message.counters, message.session), ([55, 0, 100, 90], SESSION));
                let expected = Reply {
                    residence_time: Duration(30_000),
                    packets_marked: if asks_for_marks { 7 } else { 0 },
                    ..EGRESS.handle_query(QUERY, Instant(TIMES.arrived_ns - EPOCH))
                };
                assert_eq!(querier.read(&answered, authentication), Ok(expected));
                assert_eq!(querier.read(&answered, authentication), Err(ResponseError::Unsolicited));
            }
        }
    }

    #[test]
    fn queries_of_the_same_time_are_distinguished_and_old_ones_expire() {
        let mut querier = Querier::new(SESSION, EPOCH, false);
        let queries = [0, 1, 2].map(|sequence| Query { sequence, ..QUERY });
        let sent = queries.map(|asked| query(&mut querier, asked, None));
        let [first, second, third] = sent.map(|sent| response(sent, None));
        assert_eq!(querier.read(&second, None).unwrap().query, queries[1]);
        assert_eq!(querier.read(&first, None), Err(ResponseError::Unsolicited));
        assert_eq!(querier.read(&third, None).unwrap().query, queries[2]);
        for number in 0..=PENDING as u64 {
            query(&mut querier, Query { sent_at: Instant(number), ..QUERY }, None);
        }
        assert_eq!(querier.pending.len(), PENDING);
        let later = Query { sent_at: Instant(70_000_000_000), ..QUERY };
        query(&mut querier, later, None);
        assert_eq!(querier.pending.len(), 1);
    }

    #[test]
    fn responses_from_before_a_restart_are_rejected() {
        let mut earlier = Querier::new(SESSION, EPOCH, false);
        let late = response(query(&mut earlier, QUERY, None), None);
        let mut querier = Querier::new(LossDelaySession::from_bits(1), EPOCH, false);
        query(&mut querier, QUERY, None);
        assert_eq!(querier.read(&late, None), Err(ResponseError::OtherSession));
        // With the same session number, the timestamp still differs.
        let mut querier = Querier::new(SESSION, EPOCH + 60_000_000_000, false);
        query(&mut querier, QUERY, None);
        assert_eq!(querier.read(&late, None), Err(ResponseError::Unsolicited));
    }

    #[test]
    fn responders_with_32_bit_counters_ntp_or_no_clock_are_supported() {
        let packets_sent = (5 << 32) + 10;
        let asked = Query { packets_sent, ..QUERY };
        let read = |change: &dyn Fn(&mut LossDelayMessage)| {
            let mut querier = Querier::new(SESSION, EPOCH, false);
            let (sent, _) = LossDelayMessage::read(&query(&mut querier, asked, None)).unwrap();
            let times = [0, 30_000].map(|ns| Timestamp::from_unix(EPOCH + ns, TimestampFormat::Ntp));
            let mut message = sent.response(
                response_code::SUCCESS,
                Format::NTP,
                (times[0], packets_sent - 20),
                (times[1], 0),
            );
            change(&mut message);
            let mut bytes = [0; MESSAGE];
            message.write(&mut bytes).unwrap();
            querier.read(&bytes, None)
        };
        let expected = Reply {
            query: asked,
            packets_received: packets_sent - 20,
            packets_marked: 0,
            residence_time: Duration(30_000),
            transit: (TIMES.arrived_ns - EPOCH) as i64 - asked.sent_at.0 as i64,
        };
        let near = read(&|_| {}).unwrap();
        assert!(near.residence_time.0.abs_diff(30_000) <= 1);
        let exact = Reply { residence_time: expected.residence_time, transit: expected.transit, ..near };
        assert_eq!(exact, expected);
        let narrow = read(&|message| {
            message.has_wide_counters = false;
            message.counters = message.counters.map(|counter| counter & 0xffff_ffff);
            message.responder_format = Format::NULL;
        });
        assert_eq!(narrow, Ok(Reply { residence_time: Duration::ZERO, transit: 0, ..expected }));
        let set_back = read(&|message| message.timestamps.swap(0, 3)).unwrap();
        assert_eq!(set_back.residence_time, Duration::ZERO);
        assert_eq!(read(&|message| message.counters[2] ^= 1), Err(ResponseError::WrongPacketCount));
        assert_eq!(read(&|message| message.counts_bytes = true), Err(ResponseError::DataFormat));
        assert_eq!(read(&|message| message.is_response = false), Err(ResponseError::NotAResponse));
        let reset = response_code::DATA_RESET;
        assert_eq!(read(&|message| message.code = reset), Err(ResponseError::Code(reset)));
    }

    #[test]
    fn messages_with_a_wrong_digest_are_rejected() {
        let mut querier = Querier::new(SESSION, EPOCH, true);
        let sent = query(&mut querier, QUERY, key(9));
        let bare = query(&mut querier, QUERY, None);
        let unknown = query(&mut querier, QUERY, key(200));
        let answered = response(sent.clone(), key(50));
        for bit in 0..sent.len() * 8 {
            let damaged = |bytes: &[u8]| {
                let mut bytes = bytes.to_vec();
                bytes[bit / 8] ^= 1 << (bit % 8);
                bytes
            };
            assert!(answer(&mut damaged(&sent), &EGRESS, (0, 0), TIMES, key(9)).is_err(), "bit {bit}");
            assert!(querier.read(&damaged(&answered), key(9)).is_err(), "bit {bit}");
        }
        for mut wrong in [bare.clone(), unknown] {
            assert_eq!(answer(&mut wrong, &EGRESS, (0, 0), TIMES, key(9)), Err(QueryError::Digest));
        }
        // The response uses the key of the query, not a key of the responder's choice.
        assert_eq!(answered[answered.len() - 17], 9);
        assert_eq!(querier.read(&response(bare, None), key(9)), Err(ResponseError::Digest));
        assert!(querier.read(&answered, key(9)).is_ok());
        // A responder without keys cannot verify the query.
        assert_eq!(code(sent), response_code::UNSUPPORTED_MANDATORY_TLV);
    }

    #[test]
    fn unsupported_requests_are_answered_with_the_matching_code() {
        let asked = |change: &dyn Fn(&mut LossDelayMessage), tlvs: &[u8]| {
            let mut message = LossDelayMessage::query(SESSION, Format::PTP, Timestamp(5 << 32), 1);
            change(&mut message);
            let mut bytes = vec![0; MESSAGE];
            bytes.extend(tlvs);
            message.write(&mut bytes).unwrap();
            bytes
        };
        let plain = |_: &mut LossDelayMessage| {};
        assert_eq!(code(asked(&|message| message.code = 1, &[])), response_code::UNSUPPORTED_CONTROL_CODE);
        assert_eq!(
            code(asked(&|message| message.of_traffic_class = true, &[])),
            response_code::UNSUPPORTED_DATA_FORMAT
        );
        let bytes = response(asked(&|message| message.counts_bytes = true, &[]), None);
        let (message, _) = LossDelayMessage::read(&bytes).unwrap();
        assert_eq!((message.code, message.counts_bytes), (response_code::SUCCESS, true));
        assert_eq!(message.counters, [55_000, 0, 1, EGRESS.bytes], "bytes at the IP layer");
        for tlvs in [&[1, 6, 0, 1, 10, 0, 0, 1][..], &[3, 0], &[90, 0], &[127, 1, 0]] {
            assert_eq!(code(asked(&plain, tlvs)), response_code::UNSUPPORTED_MANDATORY_TLV);
        }
        for tlvs in [&[0, 9][..], &[3, 1, 0], &[7]] {
            assert_eq!(code(asked(&plain, tlvs)), response_code::INVALID_MESSAGE);
        }
        let known = asked(&plain, &[128, 2, 9, 9, 0, 1, 7, 200, 1, 5, 2, 4, 0, 0, 0, 9, 130, 2, 0, 1]);
        let answered = response(known, None);
        let (message, length) = LossDelayMessage::read(&answered).unwrap();
        assert_eq!((message.code, length), (response_code::SUCCESS, answered.len()));
        assert_eq!(answered[MESSAGE..], [0, 1, 7, 2, 4, 0, 0, 0, 0]);
        let sequence = response(asked(&|message| message.querier_format = Format::SEQUENCE, &[]), None);
        let (message, _) = LossDelayMessage::read(&sequence).unwrap();
        assert_eq!((message.querier_format, message.responder_format), (Format::SEQUENCE, Format::PTP));
        let unanswered = |mut bytes: Vec<u8>| answer(&mut bytes, &EGRESS, (0, 0), TIMES, None).unwrap_err();
        assert_eq!(unanswered(asked(&|message| message.code = 2, &[])), QueryError::NoResponseRequested);
        assert_eq!(unanswered(asked(&|message| message.is_response = true, &[])), QueryError::NotAQuery);
        assert_eq!(unanswered(vec![0; 3]), QueryError::Malformed(loss_delay::LossDelayError::Short));
    }

    proptest! {
        #[test]
        fn every_query_and_count_round_trips(
            sequence: u32, sent_at in 0..u64::MAX / 8, packets_sent: u64, packets: u64, marked: u64, held in 0..1_u64 << 40,
        ) {
            let asked = Query { sequence, sent_at: Instant(sent_at), packets_sent };
            let mut querier = Querier::new(SESSION, EPOCH, true);
            let mut bytes = query(&mut querier, asked, key(1));
            let egress = Egress { packets, bytes: 0, marked };
            let arrived_ns = EPOCH + sent_at;
            let times = ResponderTimes { arrived_ns, departs_ns: arrived_ns + held };
            answer(&mut bytes, &egress, (0, 0), times, key(1)).unwrap();
            let expected = Reply {
                query: asked,
                packets_received: packets,
                packets_marked: marked,
                residence_time: Duration(held),
                transit: 0,
            };
            prop_assert_eq!(querier.read(&bytes, key(1)), Ok(expected));
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), MESSAGE..200), signed: bool) {
            bytes[0] = 0;
            bytes[1] &= 3;
            let length = bytes.len() as u16;
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            let authentication = key(1).filter(|_| signed);
            let mut querier = Querier::new(SESSION, EPOCH, true);
            if let Ok(length) = answer(&mut bytes, &EGRESS, (0, 0), TIMES, authentication) {
                prop_assert_eq!(LossDelayMessage::read(&bytes[..length]).unwrap().1, length);
                prop_assert!(querier.read(&bytes, authentication).is_err());
            }
        }
    }
}
