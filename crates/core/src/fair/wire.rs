//! Management packets as RFC 6374 messages: a query and its reply are one combined direct loss
//! and delay measurement ([`netstage_wire::loss_delay`]), without the labels and the channel
//! header around it.
//!
//! | here | in the message |
//! |---|---|
//! | [`Query::packets_sent`] | counter 1 of the query, counter 3 of the response |
//! | [`Query::sent_at`] | timestamp 1 of the query, timestamp 3 of the response, PTP format |
//! | [`Reply::packets_received`] | counter 4 of the response |
//! | [`Reply::held`] | timestamp 1 minus timestamp 4 of the response, in the responder's format |
//! | [`Reply::packets_marked`] | a TLV of ours, where the query asked for it; else zero |
//! | [`Query::sequence`] | not there: the querier keeps it under timestamp 1 |
//!
//! The message has no sequence number. A session's timestamps 1 grow strictly, and a responder
//! must return them unchanged, so they are the key under which the querier remembers what it
//! asked. Why not a TLV: many responders, those in hardware above all, answer with the fields
//! alone, and 88 bytes stay 88 bytes. What follows from it:
//!
//! - Nothing a response says of its query is believed: sequence, time and count are those kept. A
//!   response to a query never sent, answered before, older than one answered, or of an
//!   earlier life of this PE (another session, other times) is refused.
//! - Counters have 64 bits. Where a responder has 32 (the X flag is off), the value is the one
//!   of those 32 bits that is nearest to the packets sent.
//! - A responder that restarts counts anew; [`Ingress`](super::Ingress) sees that in the counts.
//!
//! With a key, both ways carry a digest. Then a message without one, or with a wrong one, is
//! refused before anything else in it counts, an error code too: whoever can forge an error
//! could end a session.

use super::management::{Egress, Query, Reply};
use crate::time::Duration;
use alloc::collections::VecDeque;
use netstage_wire::loss_delay::tlv::{self, Content, kind};
use netstage_wire::loss_delay::{
    self, DoesNotFit, Format, MESSAGE, Message, Session, Timestamp, TimestampFormat, query_code,
    response_code,
};

/// Queries remembered at most; the oldest is forgotten first, and its response refused.
const PENDING: usize = 4096;
/// A query is forgotten when another goes out this much later, so that flows whose peers are
/// silent do not come to remember thousands.
const FORGOTTEN_AFTER_NS: u64 = 60_000_000_000;

/// HMAC-SHA-256 of a message's bytes, cut, by the key of a number; none where there is no such
/// key. Both ends may put in front what ties a message to its channel.
pub type Digest<'a> = &'a dyn Fn(u8, &[u8]) -> Option<[u8; tlv::DIGEST]>;

/// How messages are authenticated.
#[derive(Clone, Copy)]
pub struct Authentication<'a> {
    /// Number of the key for what is sent.
    pub key: u8,
    /// The digest by each key.
    pub digest: Digest<'a>,
}

impl Authentication<'_> {
    /// The key that signed a message, whose fields are so long, if one did.
    pub(super) fn verify(&self, message: &[u8], fields: usize) -> Option<u8> {
        let (covered, place) = tlv::authenticated(message, fields)?;
        // The key's number stands right before the digest.
        let key = message[place.start - 1];
        let expected = (self.digest)(key, &message[covered])?;
        // Every byte is compared, so that the time taken tells nothing.
        let difference = expected.iter().zip(&message[place]).fold(0, |sum, (a, b)| sum | (a ^ b));
        (difference == 0).then_some(key)
    }

    pub(super) fn sign(&self, message: &mut [u8], fields: usize) {
        let Some((covered, place)) = tlv::authenticated(message, fields) else { return };
        let key = message[place.start - 1];
        if let Some(digest) = (self.digest)(key, &message[covered]) {
            message[place].copy_from_slice(&digest);
        }
    }
}

/// Why a response gives no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no message.
    Malformed(loss_delay::Error),
    /// Its TLVs are malformed.
    Tlv,
    /// It is a query.
    NotAResponse,
    /// It belongs to another session, or to an earlier life of this PE.
    OtherSession,
    /// The digest is wrong or missing.
    Digest,
    /// The responder did not succeed, for the reason of this code; after an error, 0x10 and
    /// above (RFC 6374 section 3.1), the session must end.
    Code(u8),
    /// Its counters are of bytes or of one traffic class, which was not asked for.
    DataFormat,
    /// No query waits for it: replayed, late, or invented.
    Unasked,
    /// The responder did not return the count it was sent.
    Altered,
}

/// Why a query is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// It is no message.
    Malformed(loss_delay::Error),
    /// It is a response.
    NotAQuery,
    /// The digest is wrong or missing.
    Digest,
    /// It wants no answer.
    NotAsked,
}

/// The ingress PE's side of a VPN flow: writes queries and reads the responses.
#[derive(Clone, Debug)]
pub struct Querier {
    session: Session,
    epoch_unix_ns: u64,
    asks_for_marks: bool,
    /// Nanoseconds since 1970 that the newest query carries.
    newest: u64,
    /// Oldest first.
    pending: VecDeque<(u64, Query)>,
}

impl Querier {
    /// A querier that has asked nothing yet. `session` should differ after each restart;
    /// `epoch_unix_ns` is what
    /// [`Instant::ZERO`](crate::time::Instant::ZERO) is in nanoseconds since 1970.
    pub fn new(session: Session, epoch_unix_ns: u64, asks_for_marks: bool) -> Querier {
        Querier { session, epoch_unix_ns, asks_for_marks, newest: 0, pending: VecDeque::new() }
    }

    /// Whether its queries ask for the number of congestion marks.
    pub fn asks_for_marks(&self) -> bool {
        self.asks_for_marks
    }

    /// Bytes of a query.
    pub fn query_length(&self, is_authenticated: bool) -> usize {
        let marks = if self.asks_for_marks { tlv::MARKS } else { 0 };
        MESSAGE + marks + if is_authenticated { tlv::AUTHENTICATION } else { 0 }
    }

    /// Writes a query, remembers it, and gives its length.
    pub fn write(
        &mut self,
        query: Query,
        authentication: Option<Authentication<'_>>,
        bytes: &mut [u8],
    ) -> Result<usize, DoesNotFit> {
        let length = self.query_length(authentication.is_some());
        let bytes = bytes.get_mut(..length).ok_or(DoesNotFit)?;
        // Two queries of one nanosecond, or a clock set back, must not share a key.
        let sent_ns = (self.epoch_unix_ns + query.sent_at.0).max(self.newest + 1);
        let timestamp = Timestamp::from_unix(sent_ns, TimestampFormat::Ptp);
        Message::query(self.session, Format::PTP, timestamp, query.packets_sent).write(bytes)?;
        if self.asks_for_marks {
            tlv::write_marks(bytes, MESSAGE, 0).map_err(|_| DoesNotFit)?;
        }
        if let Some(authentication) = authentication {
            tlv::write_authentication(bytes, length - tlv::AUTHENTICATION, authentication.key)
                .map_err(|_| DoesNotFit)?;
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
        Ok(length)
    }

    /// Reads a response; it and what is older can then not be read again.
    pub fn read(
        &mut self,
        bytes: &[u8],
        authentication: Option<Authentication<'_>>,
    ) -> Result<Reply, Refused> {
        let (message, length) = Message::read(bytes).map_err(Refused::Malformed)?;
        let bytes = &bytes[..length];
        if !message.is_response {
            return Err(Refused::NotAResponse);
        }
        if message.session != self.session {
            return Err(Refused::OtherSession);
        }
        if authentication.is_some_and(|authentication| authentication.verify(bytes, MESSAGE).is_none()) {
            return Err(Refused::Digest);
        }
        if message.code != response_code::SUCCESS {
            return Err(Refused::Code(message.code));
        }
        if message.counts_bytes || message.of_traffic_class {
            return Err(Refused::DataFormat);
        }
        let key = |sent_ns| Timestamp::from_unix(sent_ns, TimestampFormat::Ptp).0;
        let found = self.pending.binary_search_by_key(&message.timestamps[2].0, |&(sent_ns, _)| key(sent_ns));
        let index = found.map_err(|_| Refused::Unasked)?;
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
            return Err(Refused::Altered);
        }
        let packets_marked = marks(bytes)?.unwrap_or(0);
        self.pending.drain(..=index);
        Ok(Reply { query, packets_received, packets_marked, held: held(&message) })
    }
}

/// What a response says of marks; an error where its TLVs are malformed.
fn marks(message: &[u8]) -> Result<Option<u64>, Refused> {
    let mut marks = None;
    for found in tlv::of_message(message) {
        if let Content::Marks { packets } =
            found.map_err(|_| Refused::Tlv)?.content().map_err(|_| Refused::Tlv)?
        {
            marks = Some(packets);
        }
    }
    Ok(marks)
}

/// How long the responder held a query; zero where its times mean nothing, or its clock was set
/// back.
fn held(response: &Message) -> Duration {
    let [departed, _, _, arrived] = response.timestamps;
    let held = response.responder_format.time().map_or(0, |format| departed.since(arrived, format));
    Duration(u64::try_from(held).unwrap_or(0))
}

/// When a query came and its response goes, nanoseconds since 1970 by the responder's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When the query came.
    pub arrived_ns: u64,
    /// When the response goes.
    pub departs_ns: u64,
}

/// Turns a query into its response in place, and gives the response's length, which is no
/// greater. `sent_back` is how many data packets this PE has sent the other way. What the query asks
/// that cannot be given is answered by the code for it.
pub fn answer(
    bytes: &mut [u8],
    egress: &Egress,
    sent_back: u64,
    times: Times,
    authentication: Option<Authentication<'_>>,
) -> Result<usize, Unanswered> {
    let (query, length) = Message::read(bytes).map_err(Unanswered::Malformed)?;
    let bytes = &mut bytes[..length];
    if query.is_response {
        return Err(Unanswered::NotAQuery);
    }
    let key = match authentication {
        Some(authentication) => Some(authentication.verify(bytes, MESSAGE).ok_or(Unanswered::Digest)?),
        None => None,
    };
    if query.code == query_code::NO_RESPONSE {
        return Err(Unanswered::NotAsked);
    }
    let code = if query.code != query_code::IN_BAND {
        response_code::UNSUPPORTED_CONTROL_CODE
    } else if query.counts_bytes || query.of_traffic_class {
        // An egress PE counts packets, of all classes together.
        response_code::UNSUPPORTED_DATA_FORMAT
    } else {
        code_of_tlvs(bytes, key.is_some())
    };
    let format = query.querier_format.time().unwrap_or(TimestampFormat::Ptp);
    let stamp = |ns| Timestamp::from_unix(ns, format);
    let response = query.response(
        code,
        if format == TimestampFormat::Ntp { Format::NTP } else { Format::PTP },
        (stamp(times.arrived_ns), egress.packets),
        (stamp(times.departs_ns), sent_back),
    );
    let length = answer_tlvs(bytes, egress, key);
    let bytes = &mut bytes[..length];
    // It held a message before, which is enough for one now.
    let written = Message { preferred_format: Format::PTP, ..response }.write(bytes);
    debug_assert!(written.is_ok());
    if let Some(authentication) = authentication {
        authentication.sign(bytes, MESSAGE);
    }
    Ok(length)
}

/// Whether a query's TLVs can be done justice.
fn code_of_tlvs(message: &[u8], may_be_signed: bool) -> u8 {
    for found in tlv::of_message(message) {
        let Ok(found) = found else { return response_code::INVALID_MESSAGE };
        match found.content() {
            Err(_) => return response_code::INVALID_MESSAGE,
            Ok(Content::Padding | Content::SessionQueryInterval { .. }) => {}
            Ok(Content::Authentication { .. }) if may_be_signed => {}
            // Responses go back by the channel, and never to another address.
            Ok(_) if kind::is_mandatory(found.kind) => return response_code::UNSUPPORTED_MANDATORY_TLV,
            Ok(_) => {}
        }
    }
    response_code::SUCCESS
}

/// Puts the TLVs of the response in the place of the query's, and gives the message's length.
/// Each is as long as what it answers, so none is overwritten before it is read.
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
            // There is no least interval: zero, as it may have come, says so.
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
    const SESSION: Session = Session::from_bits(0x2aa_aaaa);
    const EGRESS: Egress = Egress { packets: 90, bytes: 90_000, marked: 7 };
    const TIMES: Times = Times { arrived_ns: EPOCH + 5_000_000, departs_ns: EPOCH + 5_030_000 };
    const QUERY: Query = Query { sequence: 3, sent_at: Instant(1_234_567_891), packets_sent: 100 };

    /// No digest, but one that every byte and the key change.
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
        let length = answer(&mut bytes, &EGRESS, 55, TIMES, authentication).unwrap();
        bytes.truncate(length);
        bytes
    }

    fn code(bytes: Vec<u8>) -> u8 {
        Message::read(&response(bytes, None)).unwrap().0.code
    }

    #[test]
    fn a_reply_tells_what_the_egress_pe_would() {
        for asks_for_marks in [false, true] {
            for authentication in [None, key(9)] {
                let mut querier = Querier::new(SESSION, EPOCH, asks_for_marks);
                let sent = query(&mut querier, QUERY, authentication);
                let plain = authentication.is_none() && !asks_for_marks;
                assert_eq!(sent.len() == netstage_wire::LOSS_DELAY_MESSAGE as usize, plain);
                let answered = response(sent.clone(), authentication);
                assert_eq!(answered.len(), sent.len());
                let (message, _) = Message::read(&answered).unwrap();
                assert_eq!((message.counters, message.session), ([55, 0, 100, 90], SESSION));
                let expected = Reply {
                    held: Duration(30_000),
                    packets_marked: if asks_for_marks { 7 } else { 0 },
                    ..EGRESS.handle_query(QUERY)
                };
                assert_eq!(querier.read(&answered, authentication), Ok(expected));
                assert_eq!(querier.read(&answered, authentication), Err(Refused::Unasked));
            }
        }
    }

    #[test]
    fn queries_of_one_moment_are_told_apart_and_older_ones_forgotten() {
        let mut querier = Querier::new(SESSION, EPOCH, false);
        let queries = [0, 1, 2].map(|sequence| Query { sequence, ..QUERY });
        let sent = queries.map(|asked| query(&mut querier, asked, None));
        let [first, second, third] = sent.map(|sent| response(sent, None));
        assert_eq!(querier.read(&second, None).unwrap().query, queries[1]);
        assert_eq!(querier.read(&first, None), Err(Refused::Unasked));
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
    fn an_earlier_life_is_not_heard() {
        let mut earlier = Querier::new(SESSION, EPOCH, false);
        let late = response(query(&mut earlier, QUERY, None), None);
        let mut querier = Querier::new(Session::from_bits(1), EPOCH, false);
        query(&mut querier, QUERY, None);
        assert_eq!(querier.read(&late, None), Err(Refused::OtherSession));
        // Even of the same session number, the time is another.
        let mut querier = Querier::new(SESSION, EPOCH + 60_000_000_000, false);
        query(&mut querier, QUERY, None);
        assert_eq!(querier.read(&late, None), Err(Refused::Unasked));
    }

    #[test]
    fn responders_with_32_bits_ntp_or_no_clock_are_understood() {
        let packets_sent = (5 << 32) + 10;
        let asked = Query { packets_sent, ..QUERY };
        let read = |change: &dyn Fn(&mut Message)| {
            let mut querier = Querier::new(SESSION, EPOCH, false);
            let (sent, _) = Message::read(&query(&mut querier, asked, None)).unwrap();
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
            held: Duration(30_000),
        };
        let near = read(&|_| {}).unwrap();
        assert!(near.held.0.abs_diff(30_000) <= 1);
        assert_eq!(Reply { held: expected.held, ..near }, expected);
        let narrow = read(&|message| {
            message.has_wide_counters = false;
            message.counters = message.counters.map(|counter| counter & 0xffff_ffff);
            message.responder_format = Format::NULL;
        });
        assert_eq!(narrow, Ok(Reply { held: Duration::ZERO, ..expected }));
        let set_back = read(&|message| message.timestamps.swap(0, 3)).unwrap();
        assert_eq!(set_back.held, Duration::ZERO);
        assert_eq!(read(&|message| message.counters[2] ^= 1), Err(Refused::Altered));
        assert_eq!(read(&|message| message.counts_bytes = true), Err(Refused::DataFormat));
        assert_eq!(read(&|message| message.is_response = false), Err(Refused::NotAResponse));
        let reset = response_code::DATA_RESET;
        assert_eq!(read(&|message| message.code = reset), Err(Refused::Code(reset)));
    }

    #[test]
    fn a_wrong_digest_is_refused_whatever_else_is_right() {
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
            assert!(answer(&mut damaged(&sent), &EGRESS, 0, TIMES, key(9)).is_err(), "bit {bit}");
            assert!(querier.read(&damaged(&answered), key(9)).is_err(), "bit {bit}");
        }
        for mut wrong in [bare.clone(), unknown] {
            assert_eq!(answer(&mut wrong, &EGRESS, 0, TIMES, key(9)), Err(Unanswered::Digest));
        }
        // The key is the query's, not the responder's own.
        assert_eq!(answered[answered.len() - 17], 9);
        assert_eq!(querier.read(&response(bare, None), key(9)), Err(Refused::Digest));
        assert!(querier.read(&answered, key(9)).is_ok());
        // A responder without keys cannot do what is asked.
        assert_eq!(code(sent), response_code::UNSUPPORTED_MANDATORY_TLV);
    }

    #[test]
    fn what_a_foreign_querier_asks_is_answered_by_its_code() {
        let asked = |change: &dyn Fn(&mut Message), tlvs: &[u8]| {
            let mut message = Message::query(SESSION, Format::PTP, Timestamp(5 << 32), 1);
            change(&mut message);
            let mut bytes = vec![0; MESSAGE];
            bytes.extend(tlvs);
            message.write(&mut bytes).unwrap();
            bytes
        };
        let plain = |_: &mut Message| {};
        assert_eq!(code(asked(&|message| message.code = 1, &[])), response_code::UNSUPPORTED_CONTROL_CODE);
        assert_eq!(
            code(asked(&|message| message.counts_bytes = true, &[])),
            response_code::UNSUPPORTED_DATA_FORMAT
        );
        for tlvs in [&[1, 6, 0, 1, 10, 0, 0, 1][..], &[3, 0], &[90, 0], &[127, 1, 0]] {
            assert_eq!(code(asked(&plain, tlvs)), response_code::UNSUPPORTED_MANDATORY_TLV);
        }
        for tlvs in [&[0, 9][..], &[3, 1, 0], &[7]] {
            assert_eq!(code(asked(&plain, tlvs)), response_code::INVALID_MESSAGE);
        }
        let known = asked(&plain, &[128, 2, 9, 9, 0, 1, 7, 200, 1, 5, 2, 4, 0, 0, 0, 9, 130, 2, 0, 1]);
        let answered = response(known, None);
        let (message, length) = Message::read(&answered).unwrap();
        assert_eq!((message.code, length), (response_code::SUCCESS, answered.len()));
        assert_eq!(answered[MESSAGE..], [0, 1, 7, 2, 4, 0, 0, 0, 0]);
        let sequence = response(asked(&|message| message.querier_format = Format::SEQUENCE, &[]), None);
        let (message, _) = Message::read(&sequence).unwrap();
        assert_eq!((message.querier_format, message.responder_format), (Format::SEQUENCE, Format::PTP));
        let unanswered = |mut bytes: Vec<u8>| answer(&mut bytes, &EGRESS, 0, TIMES, None).unwrap_err();
        assert_eq!(unanswered(asked(&|message| message.code = 2, &[])), Unanswered::NotAsked);
        assert_eq!(unanswered(asked(&|message| message.is_response = true, &[])), Unanswered::NotAQuery);
        assert_eq!(unanswered(vec![0; 3]), Unanswered::Malformed(loss_delay::Error::Short));
    }

    proptest! {
        #[test]
        fn every_query_and_count_survives(
            sequence: u32, sent_at in 0..u64::MAX / 8, packets_sent: u64, packets: u64, marked: u64, held in 0..1_u64 << 40,
        ) {
            let asked = Query { sequence, sent_at: Instant(sent_at), packets_sent };
            let mut querier = Querier::new(SESSION, EPOCH, true);
            let mut bytes = query(&mut querier, asked, key(1));
            let egress = Egress { packets, bytes: 0, marked };
            let times = Times { arrived_ns: EPOCH, departs_ns: EPOCH + held };
            answer(&mut bytes, &egress, 0, times, key(1)).unwrap();
            let expected = Reply { query: asked, packets_received: packets, packets_marked: marked, held: Duration(held) };
            prop_assert_eq!(querier.read(&bytes, key(1)), Ok(expected));
        }

        #[test]
        fn foreign_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), MESSAGE..200), signed: bool) {
            bytes[0] = 0;
            bytes[1] &= 3;
            let length = bytes.len() as u16;
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            let authentication = key(1).filter(|_| signed);
            let mut querier = Querier::new(SESSION, EPOCH, true);
            if let Ok(length) = answer(&mut bytes, &EGRESS, 0, TIMES, authentication) {
                prop_assert_eq!(Message::read(&bytes[..length]).unwrap().1, length);
                prop_assert!(querier.read(&bytes, authentication).is_err());
            }
        }
    }
}
