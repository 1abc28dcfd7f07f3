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
use super::{Published, REFERENCE_AGE};
use crate::time::{Duration, Instant};
use netstage_wire::loss_delay::tlv::{self, Content, kind};
use netstage_wire::reference::{DoesNotFit, Impossible, LOSS, MESSAGE, Reference};

/// Interval at which the ingress PE of a reference publishes its measurements, changed or not. The
/// parameters of a follower lag by a few round trips of a long path, which is short compared to the time in
/// which a window adapts. With a loss rate of one half, twenty consecutive messages are lost, and the
/// reference becomes too old, once in six days. The cost per follower is four packets per second of 92
/// bytes each (in UDP).
pub const EVERY: Duration = Duration::from_millis(250);

/// Returns the length of a message in bytes.
pub const fn length(is_authenticated: bool) -> usize {
    MESSAGE + if is_authenticated { tlv::AUTHENTICATION } else { 0 }
}

/// Creates the message for reference `number`, sent at `sent_ns` (nanoseconds since 1970). Returns `None`
/// if a value is out of range.
pub fn message(number: u32, published: &Published, sent_ns: u64) -> Option<Reference> {
    let Basis { weight, round_trip, loss } = published.basis;
    // If the mean loss interval is shorter than a packet, the loss rate exceeds one.
    let (loss, loss_events) = loss.map_or((0.0, 0), |(loss, events)| (loss.min(*LOSS.end()), events));
    let message =
        Reference { number, sent_ns, weight, round_trip, loss, loss_events, decrease: published.decrease };
    message.check().is_ok().then_some(message)
}

/// Writes a message into `bytes` and returns its length.
pub fn write(
    message: &Reference,
    authentication: Option<Authentication<'_>>,
    bytes: &mut [u8],
) -> Result<usize, DoesNotFit> {
    let length = length(authentication.is_some());
    let bytes = bytes.get_mut(..length).ok_or(DoesNotFit)?;
    message.write(bytes)?;
    if let Some(authentication) = authentication {
        tlv::write_authentication(bytes, MESSAGE, authentication.key).map_err(|_| DoesNotFit)?;
        authentication.sign(bytes, MESSAGE);
    }
    Ok(length)
}

/// Reason for rejecting a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// A TLV is malformed, or a mandatory TLV is unknown.
    Tlv,
    /// The digest is wrong or missing, or its key is unknown.
    Digest,
    /// The message is not newer than the last one: replayed, duplicated or reordered.
    Earlier,
    /// A field has an impossible value.
    Impossible(Impossible),
}

/// The state a follower keeps about the messages of a reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Sending time of the newest accepted message, and its time of arrival.
    newest: Option<(u64, Instant)>,
}

impl Heard {
    /// Checks a message that [`Reference::read`] decoded from exactly these bytes.
    pub fn take(
        &mut self,
        now: Instant,
        message: &Reference,
        bytes: &[u8],
        authentication: Option<Authentication<'_>>,
    ) -> Result<Published, Refused> {
        let is_signed = authentication.is_some();
        if authentication.is_some_and(|authentication| authentication.verify(bytes, MESSAGE).is_none()) {
            return Err(Refused::Digest);
        }
        for found in tlv::behind(bytes, MESSAGE) {
            let found = found.map_err(|_| Refused::Tlv)?;
            match found.content().map_err(|_| Refused::Tlv)? {
                Content::Authentication { .. } if is_signed => {}
                Content::Authentication { .. } => return Err(Refused::Digest),
                Content::Padding => {}
                _ if kind::is_mandatory(found.kind) => return Err(Refused::Tlv),
                _ => {}
            }
        }
        if self.newest.is_some_and(|(sent_ns, at)| {
            message.sent_ns <= sent_ns && (is_signed || now.since(at) <= REFERENCE_AGE)
        }) {
            return Err(Refused::Earlier);
        }
        message.check().map_err(Refused::Impossible)?;
        self.newest = Some((message.sent_ns, now));
        let loss = (message.loss_events > 0).then_some((message.loss, message.loss_events));
        let basis = Basis { weight: message.weight, round_trip: message.round_trip, loss };
        Ok(Published { at: now, basis, decrease: message.decrease })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SENT: u64 = 1_795_255_703_000_000_000;
    const NOW: Instant = Instant(9_000_000_000);

    fn published() -> Published {
        let basis = Basis { weight: 2.0, round_trip: 0.012, loss: Some((0.003, 9)) };
        Published { at: Instant(1), basis, decrease: 0.1 }
    }

    fn digest(key: u8, message: &[u8]) -> Option<[u8; tlv::DIGEST]> {
        let sum = message.iter().fold(key, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte));
        (key < 3).then_some([sum; tlv::DIGEST])
    }

    const SIGNED: Option<Authentication<'static>> = Some(Authentication { key: 1, digest: &digest });

    fn written(
        published: &Published,
        sent_ns: u64,
        authentication: Option<Authentication<'_>>,
    ) -> ([u8; 128], usize) {
        let mut bytes = [0xff; 128];
        let message = message(7, published, sent_ns).unwrap();
        let length = write(&message, authentication, &mut bytes).unwrap();
        (bytes, length)
    }

    fn take(
        receiver: &mut Heard,
        now: Instant,
        bytes: &[u8],
        authentication: Option<Authentication<'_>>,
    ) -> Result<Published, Refused> {
        let (message, length) = Reference::read(bytes).unwrap();
        receiver.take(now, &message, &bytes[..length], authentication)
    }

    #[test]
    fn a_reference_arrives_as_it_was_sent() {
        for authentication in [None, SIGNED] {
            let (bytes, length) = written(&published(), SENT, authentication);
            assert_eq!(length, super::length(authentication.is_some()));
            let got = take(&mut Heard::default(), NOW, &bytes, authentication).unwrap();
            assert_eq!(got, Published { at: NOW, ..published() });
            assert_eq!(Reference::read(&bytes).unwrap().0.number, 7);
        }
        let lossless = Published { basis: Basis { loss: None, ..published().basis }, ..published() };
        let (bytes, _) = written(&lossless, SENT, None);
        assert_eq!(take(&mut Heard::default(), NOW, &bytes, None).unwrap().basis.loss, None);
        let saturated = Basis { loss: Some((1.25, 3)), ..published().basis };
        let (bytes, _) = written(&Published { basis: saturated, ..published() }, SENT, None);
        assert_eq!(take(&mut Heard::default(), NOW, &bytes, None).unwrap().basis.loss, Some((1.0, 3)));
        let unknown = Published { basis: Basis { round_trip: 0.0, ..published().basis }, ..published() };
        assert_eq!(message(7, &unknown, SENT), None);
        assert_eq!(write(&message(7, &published(), SENT).unwrap(), SIGNED, &mut [0; 77]), Err(DoesNotFit));
    }

    #[test]
    fn forged_and_impossible_messages_are_rejected() {
        let (bytes, length) = written(&published(), SENT, SIGNED);
        let mut receiver = Heard::default();
        for at in 4..length {
            let mut forged = bytes;
            forged[at] ^= 1;
            assert_eq!(take(&mut receiver, NOW, &forged, SIGNED), Err(Refused::Digest), "byte {at}");
        }
        assert_eq!(
            take(&mut receiver, NOW, &written(&published(), SENT, None).0, SIGNED),
            Err(Refused::Digest)
        );
        assert_eq!(take(&mut receiver, NOW, &bytes, None), Err(Refused::Digest), "no key is configured");
        assert_eq!(receiver, Heard::default(), "rejected messages do not change the state");
        for (at, value, field) in [
            (16, 0.0, Impossible::Weight),
            (24, f64::NAN, Impossible::RoundTrip),
            (32, 1.5, Impossible::Loss),
            (48, 1.0, Impossible::Decrease),
        ] {
            let (mut bytes, _) = written(&published(), SENT, None);
            bytes[at..at + 8].copy_from_slice(&f64::to_bits(value).to_be_bytes());
            assert_eq!(take(&mut receiver, NOW, &bytes, None), Err(Refused::Impossible(field)));
        }
        // TLVs after the fields: a length beyond the end, an unknown mandatory type and an unknown optional
        // type.
        for (tlv, expected) in
            [([128, 9], Err(Refused::Tlv)), ([9, 0], Err(Refused::Tlv)), ([200, 0], Ok(()))]
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
            let mut receiver = Heard::default();
            let mut at =
                |now, sent_ns| take(&mut receiver, now, &message(sent_ns), authentication).map(|_| ());
            assert_eq!(at(NOW, SENT), Ok(()));
            assert_eq!(at(NOW, SENT), Err(Refused::Earlier));
            assert_eq!(at(NOW, SENT + 2), Ok(()));
            assert_eq!(at(NOW, SENT + 1), Err(Refused::Earlier));
            // A publisher that restarted with its clock set back.
            assert_eq!(at(NOW + REFERENCE_AGE, 5), Err(Refused::Earlier));
            let late = NOW + REFERENCE_AGE + Duration(1);
            let expected = if authentication.is_some() { Err(Refused::Earlier) } else { Ok(()) };
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
            let (message, length) = Reference::read(&bytes).unwrap();
            if let Ok(published) = Heard::default().take(NOW, &message, &bytes[..length], None) {
                prop_assert_eq!(super::message(message.number, &published, message.sent_ns), Some(message));
            }
        }
    }
}
