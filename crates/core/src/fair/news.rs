//! Encoding of the news of a provider edge router as a message to other routers ([`netstage_wire::news`]), without
//! labels and channel header.
//!
//! A router accepts a message if it is newer than the previous ones of its sender, has a valid digest (if keys are
//! configured) and contains plausible numbers. The sending times follow the rules of references
//! ([`super::publication`]).

use super::crowd::{LinkNews, NEWS_AGE, PeNews, Peers};
use super::paths::PathNews;
use super::publication::{NewestMessage, PublicationError, check_tlvs};
use super::wire::Authentication;
use crate::time::Instant;
use alloc::vec::Vec;
use netstage_wire::news::{
    DELAY, ENTRY, HEADER, LEVEL, LinkEntry, LossDelayError, LossDelayLengthError, MAX_ENTRIES, NewsMessage,
    PATH_ENTRY, PRICE, PathEntry, RATE, ROUND_TRIP, WEIGHT, tlv,
};

/// Greatest length in bytes of a message.
pub const GREATEST_LENGTH: usize = HEADER + MAX_ENTRIES + tlv::AUTHENTICATION;

/// Returns the length in bytes of a message with this news.
pub fn length(news: &PeNews, is_authenticated: bool) -> usize {
    let entries = ENTRY * news.links.len() + PATH_ENTRY * news.paths.len();
    HEADER + entries + if is_authenticated { tlv::AUTHENTICATION } else { 0 }
}

/// Writes the news of a router, sent at `sent_ns` (nanoseconds since 1970), into `bytes`, and returns the length of the
/// message. `publisher` is the random number of the router. The caller divides long news ([`messages`]).
pub fn write(
    (publisher, sent_ns): (u32, u64),
    news: &PeNews,
    authentication: Option<Authentication<'_>>,
    bytes: &mut [u8],
) -> Result<usize, LossDelayLengthError> {
    let length = length(news, authentication.is_some());
    let bytes = bytes.get_mut(..length).ok_or(LossDelayLengthError)?;
    let number = |length: usize| u16::try_from(length).map_err(|_| LossDelayLengthError);
    let (links, paths) = (number(news.links.len())?, number(news.paths.len())?);
    let message = NewsMessage { sent_ns, publisher, links, paths };
    message.write(bytes)?;
    for (index, news) in news.links.iter().enumerate() {
        message.write_link(index, &link_entry(news), bytes)?;
    }
    for (index, news) in news.paths.iter().enumerate() {
        message.write_path(index, &path_entry(news), bytes)?;
    }
    if let Some(authentication) = authentication {
        let fields = message.fields();
        tlv::write_authentication(bytes, fields, authentication.key).map_err(|_| LossDelayLengthError)?;
        authentication.sign(bytes, fields);
    }
    Ok(length)
}

/// Divides news into the contents of messages.
pub fn messages(news: &PeNews) -> impl Iterator<Item = PeNews> {
    let links = news.links.chunks(MAX_ENTRIES / ENTRY);
    let mut messages: Vec<PeNews> =
        links.map(|links| PeNews { links: links.to_vec(), paths: Vec::new() }).collect();
    // Paths fill the last message of links, and further ones.
    let room = messages.last().map_or(0, |last| MAX_ENTRIES - ENTRY * last.links.len()) / PATH_ENTRY;
    let (first, others) = news.paths.split_at(room.min(news.paths.len()));
    messages.last_mut().into_iter().for_each(|last| last.paths = first.to_vec());
    let others = others.chunks(MAX_ENTRIES / PATH_ENTRY);
    messages.extend(others.map(|paths| PeNews { links: Vec::new(), paths: paths.to_vec() }));
    messages.into_iter()
}

/// Returns the value of the range that is nearest to a value.
fn within(value: f64, range: core::ops::RangeInclusive<f32>) -> f32 {
    (value as f32).clamp(*range.start(), *range.end())
}

/// Returns the entry for the flows of a link. Values out of range are replaced by the nearest ones.
fn link_entry(news: &LinkNews) -> LinkEntry {
    let Peers { weight, settled, level, price, greatest, rate, in_flight } = news.flows;
    let (weight, rate) = (within(weight, WEIGHT), within(rate, RATE));
    LinkEntry {
        link: news.link,
        weight,
        settled: within(settled, 0.0..=weight),
        level: within(level, LEVEL),
        price: within(price, PRICE),
        greatest: within(greatest, WEIGHT),
        rate,
        in_flight: within(in_flight, 0.0..=rate * ROUND_TRIP),
    }
}

/// Returns the entry for a path, as [`link_entry`].
fn path_entry(news: &PathNews) -> PathEntry {
    let PathNews { path, group, delay, target } = *news;
    PathEntry { path, group, delay: within(delay, DELAY), target: within(target, DELAY) }
}

/// Returns the news in the entry of a link.
fn link_news(entry: LinkEntry) -> LinkNews {
    let LinkEntry { link, weight, settled, level, price, greatest, rate, in_flight } = entry;
    let flows = Peers {
        weight: weight.into(),
        settled: settled.into(),
        level: level.into(),
        price: price.into(),
        greatest: greatest.into(),
        rate: rate.into(),
        in_flight: in_flight.into(),
    };
    LinkNews { link, flows }
}

/// Returns the news in the entry of a path.
fn path_news(entry: PathEntry) -> PathNews {
    let PathEntry { path, group, delay, target } = entry;
    PathNews { path, group, delay: delay.into(), target: target.into() }
}

/// Reason for rejecting a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewsError {
    /// The message or a TLV is malformed, or a mandatory TLV is unknown.
    Malformed,
    /// An entry has an impossible value.
    Impossible,
    /// The digest is wrong or missing, or its key is unknown.
    Digest,
    /// The message is not newer than the last one: replayed, duplicated or reordered.
    NotNewer,
    /// The message is one of this router, sent back to it.
    Reflected,
}

impl From<LossDelayError> for NewsError {
    fn from(_: LossDelayError) -> NewsError {
        NewsError::Malformed
    }
}

impl From<PublicationError> for NewsError {
    fn from(error: PublicationError) -> NewsError {
        match error {
            PublicationError::Tlv => NewsError::Malformed,
            PublicationError::Impossible(_) => NewsError::Impossible,
            PublicationError::Digest => NewsError::Digest,
            PublicationError::NotNewer => NewsError::NotNewer,
        }
    }
}

/// The state a router keeps about the messages of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewsReceiver {
    /// Random number of the router itself.
    own: u32,
    newest: NewestMessage,
}

impl NewsReceiver {
    /// Creates the state of a router that publishes with this random number.
    pub fn new(own: u32) -> NewsReceiver {
        NewsReceiver { own, newest: NewestMessage::default() }
    }

    /// Checks a message that [`NewsMessage::read`] decoded from exactly these bytes, and returns its news.
    pub fn accept(
        &mut self,
        now: Instant,
        message: &NewsMessage,
        bytes: &[u8],
        authentication: Option<Authentication<'_>>,
    ) -> Result<PeNews, NewsError> {
        check_tlvs(bytes, message.fields(), authentication)?;
        if message.publisher == self.own {
            return Err(NewsError::Reflected);
        }
        self.newest.check(now, message.sent_ns, NEWS_AGE, authentication.is_some())?;
        let is_possible = message.fields() <= HEADER + MAX_ENTRIES
            && message.links(bytes).all(|entry| entry.check().is_ok())
            && message.paths(bytes).all(|entry| entry.check().is_ok());
        if !is_possible {
            return Err(NewsError::Impossible);
        }
        self.newest.set(now, message.sent_ns);
        let (links, paths) = (message.links(bytes).map(link_news), message.paths(bytes).map(path_news));
        Ok(PeNews { links: links.collect(), paths: paths.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;
    use alloc::vec;
    use proptest::prelude::*;

    const SENT: u64 = 1_795_255_703_000_000_000;
    const NOW: Instant = Instant(9_000_000_000);
    const OWN: u32 = 7;
    const PUBLISHER: u32 = 8;

    fn of_link(link: u32) -> LinkNews {
        let flows = Peers {
            weight: 3.0,
            settled: 2.0,
            level: 12.5,
            price: 0.75,
            greatest: 1e6,
            rate: 2e6,
            in_flight: 1e5,
        };
        LinkNews { link, flows }
    }

    fn of_path(path: u32) -> PathNews {
        PathNews { path, group: 7, delay: 0.25, target: 0.5 }
    }

    fn of(links: impl IntoIterator<Item = u32>, paths: impl IntoIterator<Item = u32>) -> PeNews {
        PeNews {
            links: links.into_iter().map(of_link).collect(),
            paths: paths.into_iter().map(of_path).collect(),
        }
    }

    fn digest(key: u8, message: &[u8]) -> Option<[u8; tlv::DIGEST]> {
        let sum = message.iter().fold(key, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte));
        (key < 3).then_some([sum; tlv::DIGEST])
    }

    const SIGNED: Option<Authentication<'static>> = Some(Authentication { key: 1, digest: &digest });

    fn written(news: &PeNews, sent_ns: u64, authentication: Option<Authentication<'_>>) -> Vec<u8> {
        let mut bytes = [0xff; 2048];
        let length = write((PUBLISHER, sent_ns), news, authentication, &mut bytes).unwrap();
        assert_eq!(length, super::length(news, authentication.is_some()));
        bytes[..length].to_vec()
    }

    fn take(
        receiver: &mut NewsReceiver,
        now: Instant,
        bytes: &[u8],
        authentication: Option<Authentication<'_>>,
    ) -> Result<PeNews, NewsError> {
        let (message, length) = NewsMessage::read(bytes)?;
        receiver.accept(now, &message, &bytes[..length], authentication)
    }

    #[test]
    fn news_arrives_as_it_was_sent() {
        for authentication in [None, SIGNED] {
            let sent = of(0..30, 0..4);
            assert_eq!(length(&sent, true), GREATEST_LENGTH);
            let bytes = written(&sent, SENT, authentication);
            // With the headers of an IPv4 tunnel, it fits the minimum MTU of IPv6.
            assert!(bytes.len() + 4 + 4 + 28 <= 1280, "{}", bytes.len());
            assert_eq!(take(&mut NewsReceiver::new(OWN), NOW, &bytes, authentication), Ok(sent));
        }
        let sizes = |links, paths| {
            let many = of(0..links, 0..paths);
            let all = messages(&many).fold(PeNews::default(), |mut all, news| {
                all.links.extend(news.links);
                all.paths.extend(news.paths);
                all
            });
            assert_eq!(all, many);
            messages(&many).map(|news| (news.links.len(), news.paths.len())).collect::<Vec<_>>()
        };
        assert_eq!(sizes(70, 60), [(32, 0), (32, 0), (6, 52), (0, 8)]);
        assert_eq!((sizes(32, 1), sizes(0, 65)), (vec![(32, 0), (0, 1)], vec![(0, 64), (0, 1)]));
        assert_eq!((sizes(0, 0), sizes(1, 0)), (vec![], vec![(1, 0)]));
        assert_eq!(
            write((PUBLISHER, SENT), &of(0..2, 0..1), None, &mut [0; HEADER + 2 * ENTRY + PATH_ENTRY - 1]),
            Err(LossDelayLengthError)
        );
    }

    #[test]
    fn forged_impossible_and_replayed_messages_are_rejected() {
        let bytes = written(&of([1], [2]), SENT, SIGNED);
        let mut receiver = NewsReceiver::new(OWN);
        for bit in 0..8 * bytes.len() {
            let mut forged = bytes.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(take(&mut receiver, NOW, &forged, SIGNED).is_err(), "bit {bit}");
        }
        let plain = written(&of([1], [2]), SENT, None);
        assert_eq!(take(&mut receiver, NOW, &plain, SIGNED), Err(NewsError::Digest));
        assert_eq!(take(&mut receiver, NOW, &bytes, None), Err(NewsError::Digest), "no key is configured");
        let mut impossible = plain.clone();
        impossible[HEADER + 12..HEADER + 16].copy_from_slice(&f32::NAN.to_bits().to_be_bytes());
        assert_eq!(take(&mut receiver, NOW, &impossible, None), Err(NewsError::Impossible));
        let mut reflected = NewsReceiver::new(PUBLISHER);
        assert_eq!(take(&mut reflected, NOW, &bytes, SIGNED), Err(NewsError::Reflected));
        let mut cut = plain.clone();
        cut.extend([128, 9]);
        cut[3] += 2;
        assert_eq!(take(&mut receiver, NOW, &cut, None), Err(NewsError::Malformed));
        assert_eq!(receiver, NewsReceiver::new(OWN), "rejected messages do not change the state");
        for authentication in [None, SIGNED] {
            let mut receiver = NewsReceiver::new(OWN);
            let mut at = |now, sent_ns| {
                let bytes = written(&of([1], [2]), sent_ns, authentication);
                take(&mut receiver, now, &bytes, authentication).map(|_| ())
            };
            assert_eq!(at(NOW, SENT), Ok(()));
            assert_eq!(at(NOW, SENT), Err(NewsError::NotNewer));
            assert_eq!(at(NOW, SENT + 2), Ok(()));
            assert_eq!(at(NOW, SENT + 1), Err(NewsError::NotNewer));
            // A publisher that restarted with its clock set back.
            let expected = if authentication.is_some() { Err(NewsError::NotNewer) } else { Ok(()) };
            assert_eq!(at(NOW + NEWS_AGE + Duration(1), 5), expected);
        }
    }

    proptest! {
        /// Any state is published within the ranges that receivers accept.
        #[test]
        fn any_state_is_accepted(link: u32, values: [f64; 9]) {
            let [weight, settled, level, price, greatest, rate, in_flight, delay, target] =
                values.map(|value| if value.is_nan() { 0.0 } else { value });
            let flows = Peers { weight, settled, level, price, greatest, rate, in_flight };
            let paths = vec![PathNews { path: link, group: link, delay, target }];
            let bytes = written(&PeNews { links: vec![LinkNews { link, flows }], paths }, SENT, None);
            let got = take(&mut NewsReceiver::new(OWN), NOW, &bytes, None).unwrap();
            prop_assert_eq!((got.links[0].link, got.paths[0].path), (link, link));
            // Accepted news is published unchanged.
            prop_assert_eq!(written(&got, SENT, None), bytes);
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), HEADER..200), signed: bool) {
            let length = bytes.len() as u16;
            bytes[0] = 0;
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            bytes[4] = 0;
            bytes[5] %= 6;
            bytes[6] = 0;
            bytes[7] %= 6;
            if let Ok(news) = take(&mut NewsReceiver::new(OWN), NOW, &bytes, SIGNED.filter(|_| signed)) {
                prop_assert!(news.links.iter().all(|news| news.flows.level.is_finite()));
                prop_assert!(news.paths.iter().all(|news| news.delay.is_finite()));
            }
        }
    }
}
