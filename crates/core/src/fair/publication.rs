//! Encoding of a published reference as a message between provider edge routers
//! ([`netstage_wire::reference`]), without labels and channel header.
//!
//! The publisher sends only the result of [`Ingress::publish`](super::Ingress::publish). A follower accepts
//! a message if it is newer than the previous ones, has a valid digest (if keys are configured) and
//! contains plausible numbers. The follower sets [`PublishedReference::at`] to the time of arrival, because
//! only the time since the last message matters.
//!
//! The sending times of messages are strictly increasing and identify them. A publisher whose clock was set
//! back at a restart would therefore be ignored until its clock catches up. Without a key, the check does
//! not stop an attacker who can send packets anyway, so after [`REFERENCE_AGE`] without a message any
//! sending time is accepted. With a key, an old message could be replayed in that case, so an earlier
//! sending time is never accepted.

use super::parameters::Basis;
use super::wire::Authentication;
use super::{PublishedReference, REFERENCE_AGE};
use crate::time::{Duration, Instant};
use netstage_wire::loss_delay::tlv::{self, Content, kind};
use netstage_wire::reference::{LOSS, LossDelayLengthError, MESSAGE, ReferenceMessage, ReferenceRangeError};

/// Interval at which the ingress PE of a reference publishes its measurements, changed or not. The
/// parameters of a follower lag by a few round trips of a long path, which is short compared to the time in
/// which a window adapts. With a loss rate of one half, twenty consecutive messages are lost, and the
/// reference becomes too old, once in six days. The cost per follower is four packets per second of 92
/// bytes each (in UDP).
pub const PUBLICATION_INTERVAL: Duration = Duration::from_millis(250);

/// Returns the length of a message in bytes.
pub const fn length(is_authenticated: bool) -> usize {
    MESSAGE + if is_authenticated { tlv::AUTHENTICATION } else { 0 }
}

/// Creates the message for reference `number`, sent at `sent_ns` (nanoseconds since 1970). Returns `None`
/// if a value is out of range.
pub fn message(number: u32, published: &PublishedReference, sent_ns: u64) -> Option<ReferenceMessage> {
    let Basis { weight, round_trip, loss } = published.basis;
    // If the mean loss interval is shorter than a packet, the loss rate exceeds one.
    let (loss, loss_events) = loss.map_or((0.0, 0), |(loss, events)| (loss.min(*LOSS.end()), events));
    let message = ReferenceMessage {
        number,
        sent_ns,
        weight,
        round_trip,
        loss,
        loss_events,
        decrease: published.decrease,
    };
    message.check().is_ok().then_some(message)
}

/// Writes a message into `bytes` and returns its length.
pub fn write(
    message: &ReferenceMessage,
    authentication: Option<Authentication<'_>>,
    bytes: &mut [u8],
) -> Result<usize, LossDelayLengthError> {
    let length = length(authentication.is_some());
    let bytes = bytes.get_mut(..length).ok_or(LossDelayLengthError)?;
    message.write(bytes)?;
    if let Some(authentication) = authentication {
        tlv::write_authentication(bytes, MESSAGE, authentication.key).map_err(|_| LossDelayLengthError)?;
        authentication.sign(bytes, MESSAGE);
    }
    Ok(length)
}

/// Reason for rejecting a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublicationError {
    /// A TLV is malformed, or a mandatory TLV is unknown.
    Tlv,
    /// The digest is wrong or missing, or its key is unknown.
    Digest,
    /// The message is not newer than the last one: replayed, duplicated or reordered.
    NotNewer,
    /// A field has an impossible value.
    Impossible(ReferenceRangeError),
}

/// Checks the digest and the TLVs of a message whose fields take `fields` bytes.
pub(super) fn check_tlvs(
    bytes: &[u8],
    fields: usize,
    authentication: Option<Authentication<'_>>,
) -> Result<(), PublicationError> {
    let is_signed = authentication.is_some();
    if authentication.is_some_and(|authentication| authentication.verify(bytes, fields).is_none()) {
        return Err(PublicationError::Digest);
    }
    for found in tlv::after_fields(bytes, fields) {
        let found = found.map_err(|_| PublicationError::Tlv)?;
        match found.content().map_err(|_| PublicationError::Tlv)? {
            Content::Authentication { .. } if is_signed => {}
            Content::Authentication { .. } => return Err(PublicationError::Digest),
            Content::Padding => {}
            _ if kind::is_mandatory(found.kind) => return Err(PublicationError::Tlv),
            _ => {}
        }
    }
    Ok(())
}

/// Sending time of the newest accepted message of a publisher, and its time of arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NewestMessage(Option<(u64, Instant)>);

impl NewestMessage {
    /// Checks that a message that arrives now is newer. Without a digest, any sending time is accepted after
    /// `age` without a message.
    pub fn check(
        self,
        now: Instant,
        sent_ns: u64,
        age: Duration,
        is_signed: bool,
    ) -> Result<(), PublicationError> {
        match self.0 {
            Some((newest_ns, at)) if sent_ns <= newest_ns && (is_signed || now.since(at) <= age) => {
                Err(PublicationError::NotNewer)
            }
            _ => Ok(()),
        }
    }

    /// Accepts a message.
    pub fn set(&mut self, now: Instant, sent_ns: u64) {
        self.0 = Some((sent_ns, now));
    }
}

/// The state a follower keeps about the messages of a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublicationReceiver {
    newest: NewestMessage,
}

impl PublicationReceiver {
    /// Checks a message that [`ReferenceMessage::read`] decoded from exactly these bytes.
    pub fn accept(
        &mut self,
        now: Instant,
        message: &ReferenceMessage,
        bytes: &[u8],
        authentication: Option<Authentication<'_>>,
    ) -> Result<PublishedReference, PublicationError> {
        check_tlvs(bytes, MESSAGE, authentication)?;
        self.newest.check(now, message.sent_ns, REFERENCE_AGE, authentication.is_some())?;
        message.check().map_err(PublicationError::Impossible)?;
        self.newest.set(now, message.sent_ns);
        let loss = (message.loss_events > 0).then_some((message.loss, message.loss_events));
        let basis = Basis { weight: message.weight, round_trip: message.round_trip, loss };
        Ok(PublishedReference { at: now, basis, decrease: message.decrease })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SENT: u64 = 1_795_255_703_000_000_000;
    const NOW: Instant = Instant(9_000_000_000);

    fn published() -> PublishedReference {
        let basis = Basis { weight: 2.0, round_trip: 0.012, loss: Some((0.003, 9)) };
        PublishedReference { at: Instant(1), basis, decrease: 0.1 }
    }

    fn digest(key: u8, message: &[u8]) -> Option<[u8; tlv::DIGEST]> {
        let sum = message.iter().fold(key, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte));
        (key < 3).then_some([sum; tlv::DIGEST])
    }

    const SIGNED: Option<Authentication<'static>> = Some(Authentication { key: 1, digest: &digest });

    fn written(
        published: &PublishedReference,
        sent_ns: u64,
        authentication: Option<Authentication<'_>>,
    ) -> ([u8; 128], usize) {
        let mut bytes = [0xff; 128];
        let message = message(7, published, sent_ns).unwrap();
        let length = write(&message, authentication, &mut bytes).unwrap();
        (bytes, length)
    }

    fn take(
        receiver: &mut PublicationReceiver,
        now: Instant,
        bytes: &[u8],
        authentication: Option<Authentication<'_>>,
    ) -> Result<PublishedReference, PublicationError> {
        let (message, length) = ReferenceMessage::read(bytes).unwrap();
        receiver.accept(now, &message, &bytes[..length], authentication)
    }

    #[test]
    fn a_reference_arrives_as_it_was_sent() {
        for authentication in [None, SIGNED] {
            let (bytes, length) = written(&published(), SENT, authentication);
            assert_eq!(length, super::length(authentication.is_some()));
            let got = take(&mut PublicationReceiver::default(), NOW, &bytes, authentication).unwrap();
            assert_eq!(got, PublishedReference { at: NOW, ..published() });
            assert_eq!(ReferenceMessage::read(&bytes).unwrap().0.number, 7);
        }
        let lossless = PublishedReference { basis: Basis { loss: None, ..published().basis }, ..published() };
        let (bytes, _) = written(&lossless, SENT, None);
        assert_eq!(take(&mut PublicationReceiver::default(), NOW, &bytes, None).unwrap().basis.loss, None);
        let saturated = Basis { loss: Some((1.25, 3)), ..published().basis };
        let (bytes, _) = written(&PublishedReference { basis: saturated, ..published() }, SENT, None);
        assert_eq!(
            take(&mut PublicationReceiver::default(), NOW, &bytes, None).unwrap().basis.loss,
            Some((1.0, 3))
        );
        let unknown =
            PublishedReference { basis: Basis { round_trip: 0.0, ..published().basis }, ..published() };
        assert_eq!(message(7, &unknown, SENT), None);
        assert_eq!(
            write(&message(7, &published(), SENT).unwrap(), SIGNED, &mut [0; 77]),
            Err(LossDelayLengthError)
        );
    }

    #[test]
    fn forged_and_impossible_messages_are_rejected() {
        let (bytes, length) = written(&published(), SENT, SIGNED);
        let mut receiver = PublicationReceiver::default();
        for at in 4..length {
            let mut forged = bytes;
            forged[at] ^= 1;
            assert_eq!(take(&mut receiver, NOW, &forged, SIGNED), Err(PublicationError::Digest), "byte {at}");
        }
        assert_eq!(
            take(&mut receiver, NOW, &written(&published(), SENT, None).0, SIGNED),
            Err(PublicationError::Digest)
        );
        assert_eq!(
            take(&mut receiver, NOW, &bytes, None),
            Err(PublicationError::Digest),
            "no key is configured"
        );
        assert_eq!(receiver, PublicationReceiver::default(), "rejected messages do not change the state");
        for (at, value, field) in [
            (16, 0.0, ReferenceRangeError::Weight),
            (24, f64::NAN, ReferenceRangeError::RoundTrip),
            (32, 1.5, ReferenceRangeError::Loss),
            (48, 1.0, ReferenceRangeError::Decrease),
        ] {
            let (mut bytes, _) = written(&published(), SENT, None);
            bytes[at..at + 8].copy_from_slice(&f64::to_bits(value).to_be_bytes());
            assert_eq!(take(&mut receiver, NOW, &bytes, None), Err(PublicationError::Impossible(field)));
        }
        // TLVs after the fields: a length beyond the end, an unknown mandatory type and an unknown optional
        // type.
        for (tlv, expected) in
            [([128, 9], Err(PublicationError::Tlv)), ([9, 0], Err(PublicationError::Tlv)), ([200, 0], Ok(()))]
        {
            let mut bytes = [0; MESSAGE + 2];
            message(7, &published(), SENT).unwrap().write(&mut bytes).unwrap();
            bytes[MESSAGE..].copy_from_slice(&tlv);
            assert_eq!(take(&mut receiver, NOW, &bytes, None).map(|_| ()), expected, "{tlv:?}");
        }
    }

    #[test]
    fn replayed_messages_are_rejected() {
        for authentication in [None, SIGNED] {
            let message = |sent_ns| written(&published(), sent_ns, authentication).0;
            let mut receiver = PublicationReceiver::default();
            let mut at =
                |now, sent_ns| take(&mut receiver, now, &message(sent_ns), authentication).map(|_| ());
            assert_eq!(at(NOW, SENT), Ok(()));
            assert_eq!(at(NOW, SENT), Err(PublicationError::NotNewer));
            assert_eq!(at(NOW, SENT + 2), Ok(()));
            assert_eq!(at(NOW, SENT + 1), Err(PublicationError::NotNewer));
            // A publisher that restarted with its clock set back.
            assert_eq!(at(NOW + REFERENCE_AGE, 5), Err(PublicationError::NotNewer));
            let late = NOW + REFERENCE_AGE + Duration(1);
            let expected = if authentication.is_some() { Err(PublicationError::NotNewer) } else { Ok(()) };
            assert_eq!(at(late, 5), expected);
            assert_eq!(at(late, SENT + 3), Ok(()));
        }
    }

    proptest! {
        /// Every accepted message has values that can be computed with.
        #[test]
        fn accepted_messages_are_plausible(bytes in proptest::collection::vec(any::<u8>(), MESSAGE..90)) {
            let mut bytes = bytes;
            let length = bytes.len() as u8;
            bytes[..4].copy_from_slice(&[0, 0, 0, length]);
            let (message, length) = ReferenceMessage::read(&bytes).unwrap();
            if let Ok(published) = PublicationReceiver::default().accept(NOW, &message, &bytes[..length], None) {
                prop_assert_eq!(super::message(message.number, &published, message.sent_ns), Some(message));
            }
        }
    }
}
