//! State of the VPN flows of a provider edge router under rate consensus, which the router publishes to the routers
//! whose flows share links of the core. The message belongs to the path between two routers, behind a channel header
//! ([`crate::gach`]). It has one entry for each link of the core that flows of the publisher cross, and one for each path
//! whose links are not known, so its length does not depend on the number of flows.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |Version|0 0 0 0|   Reserved    |        Message length         |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |        Number of links        |        Number of paths        |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                           Publisher                           |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |          Send time, nanoseconds since 1970, 64 bits           |
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                             Link                              |
//! |        Weight, settled weight, level, price, binary32         |
//! |   Greatest rate per weight, rate, bytes in flight, binary32   |
//! ~                     Entries of other links                    ~
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! |                             Path                              |
//! |                             Group                             |
//! |         Queueing delay, target delay, seconds, binary32       |
//! ~                     Entries of other paths                    ~
//! ~         TLV block as in RFC 6374 ([`tlv`])                    ~
//! +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//! ```
//!
//! The version is 0. Send times increase strictly. The publisher is a random number, by which a router recognizes its own
//! messages if they are sent back to it. Real numbers use the IEEE 754 binary32 format; the fields are described at
//! [`LinkEntry`] and [`PathEntry`].
//!
//! Reading and writing never panic, whatever the bytes.

pub use crate::loss_delay::{LossDelayError, LossDelayLengthError, tlv};

use crate::bytes::{put, u16_at, u32_at, u64_at};
use core::ops::RangeInclusive;

/// Length of the fields before the entries, bytes.
pub const HEADER: usize = 20;
/// Length of the entry of a link, bytes.
pub const ENTRY: usize = 32;
/// Length of the entry of a path, bytes.
pub const PATH_ENTRY: usize = 16;
/// Greatest length of the entries of a message, which fits the minimum MTU of IPv6 with all headers.
pub const MAX_ENTRIES: usize = 1024;

/// Valid sums of weights, and rates per weight.
pub const WEIGHT: RangeInclusive<f32> = 0.0..=1e15;
/// Valid levels.
pub const LEVEL: RangeInclusive<f32> = -64.0..=64.0;
/// Valid prices.
pub const PRICE: RangeInclusive<f32> = 0.0..=1e6;
/// Valid rates, bytes per second.
pub const RATE: RangeInclusive<f32> = 0.0..=1e15;
/// Valid delays, seconds.
pub const DELAY: RangeInclusive<f32> = 0.0..=1e3;
/// Longest mean round trip, seconds.
pub const ROUND_TRIP: f32 = 10.0;

/// Fields before the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewsMessage {
    /// Send time by the publisher's clock, nanoseconds since 1970.
    pub sent_ns: u64,
    /// Random number of the publisher.
    pub publisher: u32,
    /// Number of entries of links.
    pub links: u16,
    /// Number of entries of paths.
    pub paths: u16,
}

/// Sums over the flows of the publisher that a link limits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkEntry {
    /// Number of the link, the same on all routers.
    pub link: u32,
    /// Sum of the weights, each times its share of time with a backlog.
    pub weight: f32,
    /// Part of it that has found its rate.
    pub settled: f32,
    /// Mean level, weighted in the same way: the natural logarithm of the permitted rate per weight, in bytes per
    /// second.
    pub level: f32,
    /// Mean price of the link, weighted in the same way.
    pub price: f32,
    /// Greatest rate sent per unit of weight, bytes per second.
    pub greatest: f32,
    /// Sum of the rates sent, bytes per second.
    pub rate: f32,
    /// Sum of the rates times round trips, bytes.
    pub in_flight: f32,
}

/// Path to another router whose links are not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathEntry {
    /// Number of the path, unique among those of the publisher.
    pub path: u32,
    /// Number of the group of paths that limits its flows.
    pub group: u32,
    /// Mean queueing delay on the way there, seconds.
    pub delay: f32,
    /// Mean target of this delay, seconds.
    pub target: f32,
}

/// Entry with a value out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewsRangeError;

impl NewsMessage {
    /// Parses the header of the message at the start of `bytes` and returns it with the message's length including
    /// entries and TLVs. Later bytes are frame padding. Reserved bits are ignored.
    pub fn read(bytes: &[u8]) -> Result<(NewsMessage, usize), LossDelayError> {
        let fields = bytes.first_chunk::<HEADER>().ok_or(LossDelayError::Short)?;
        if fields[0] >> 4 != 0 {
            return Err(LossDelayError::Version(fields[0] >> 4));
        }
        let claimed = usize::from(u16_at(fields, 2));
        let message = NewsMessage {
            sent_ns: u64_at(fields, 12),
            publisher: u32_at(fields, 8),
            links: u16_at(fields, 4),
            paths: u16_at(fields, 6),
        };
        if !(message.fields()..=bytes.len()).contains(&claimed) {
            return Err(LossDelayError::Length { claimed, present: bytes.len() });
        }
        Ok((message, claimed))
    }

    /// Returns the length of header and entries, after which TLVs start.
    pub fn fields(&self) -> usize {
        self.first_path() + PATH_ENTRY * usize::from(self.paths)
    }

    /// Returns the length of header and entries of links, after which those of paths start.
    fn first_path(&self) -> usize {
        HEADER + ENTRY * usize::from(self.links)
    }

    /// Returns the entries of links of a message that [`read`](NewsMessage::read) accepted. The values are not checked: see
    /// [`LinkEntry::check`].
    pub fn links<'a>(&self, message: &'a [u8]) -> impl ExactSizeIterator<Item = LinkEntry> + use<'a> {
        let (entries, _) = message.get(HEADER..self.first_path()).unwrap_or_default().as_chunks::<ENTRY>();
        entries.iter().map(LinkEntry::from_bytes)
    }

    /// Returns the entries of paths, as [`links`](NewsMessage::links).
    pub fn paths<'a>(&self, message: &'a [u8]) -> impl ExactSizeIterator<Item = PathEntry> + use<'a> {
        let entries = message.get(self.first_path()..self.fields()).unwrap_or_default();
        let (entries, _) = entries.as_chunks::<PATH_ENTRY>();
        entries.iter().map(PathEntry::from_bytes)
    }

    /// Writes the header of a message that fills the buffer, entries and TLVs included. The caller writes the entries with
    /// [`write_link`](NewsMessage::write_link) and [`write_path`](NewsMessage::write_path), and then the TLVs.
    pub fn write(&self, message: &mut [u8]) -> Result<(), LossDelayLengthError> {
        let length = u16::try_from(message.len()).map_err(|_| LossDelayLengthError)?;
        if message.len() < self.fields() {
            return Err(LossDelayLengthError);
        }
        let header = message.first_chunk_mut::<HEADER>().ok_or(LossDelayLengthError)?;
        put(header, 0, &[0, 0]);
        put(header, 2, &length.to_be_bytes());
        put(header, 4, &self.links.to_be_bytes());
        put(header, 6, &self.paths.to_be_bytes());
        put(header, 8, &self.publisher.to_be_bytes());
        put(header, 12, &self.sent_ns.to_be_bytes());
        Ok(())
    }

    /// Writes the entry of the link with this index.
    pub fn write_link(
        &self,
        index: usize,
        entry: &LinkEntry,
        message: &mut [u8],
    ) -> Result<(), LossDelayLengthError> {
        let entries = message.get_mut(HEADER..self.first_path()).ok_or(LossDelayLengthError)?;
        let (entries, _) = entries.as_chunks_mut::<ENTRY>();
        *entries.get_mut(index).ok_or(LossDelayLengthError)? = entry.to_bytes();
        Ok(())
    }

    /// Writes the entry of the path with this index.
    pub fn write_path(
        &self,
        index: usize,
        entry: &PathEntry,
        message: &mut [u8],
    ) -> Result<(), LossDelayLengthError> {
        let entries = message.get_mut(self.first_path()..self.fields()).ok_or(LossDelayLengthError)?;
        let (entries, _) = entries.as_chunks_mut::<PATH_ENTRY>();
        *entries.get_mut(index).ok_or(LossDelayLengthError)? = entry.to_bytes();
        Ok(())
    }
}

impl PathEntry {
    fn from_bytes(bytes: &[u8; PATH_ENTRY]) -> PathEntry {
        let real = |at| f32::from_bits(u32_at(bytes, at));
        PathEntry { path: u32_at(bytes, 0), group: u32_at(bytes, 4), delay: real(8), target: real(12) }
    }

    fn to_bytes(self) -> [u8; PATH_ENTRY] {
        let PathEntry { path, group, delay, target } = self;
        let mut bytes = [0; PATH_ENTRY];
        let words = [path, group, delay.to_bits(), target.to_bits()];
        for (word, place) in words.iter().zip(bytes.chunks_exact_mut(4)) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        bytes
    }

    /// Checks that all values are in range.
    pub fn check(&self) -> Result<(), NewsRangeError> {
        match DELAY.contains(&self.delay) && DELAY.contains(&self.target) {
            true => Ok(()),
            false => Err(NewsRangeError),
        }
    }
}

impl LinkEntry {
    fn from_bytes(bytes: &[u8; ENTRY]) -> LinkEntry {
        let real = |at| f32::from_bits(u32_at(bytes, at));
        LinkEntry {
            link: u32_at(bytes, 0),
            weight: real(4),
            settled: real(8),
            level: real(12),
            price: real(16),
            greatest: real(20),
            rate: real(24),
            in_flight: real(28),
        }
    }

    fn to_bytes(self) -> [u8; ENTRY] {
        let LinkEntry { link, weight, settled, level, price, greatest, rate, in_flight } = self;
        let mut bytes = [0; ENTRY];
        put(&mut bytes, 0, &link.to_be_bytes());
        let reals = [weight, settled, level, price, greatest, rate, in_flight];
        for (real, place) in reals.iter().zip(bytes[4..].chunks_exact_mut(4)) {
            place.copy_from_slice(&real.to_bits().to_be_bytes());
        }
        bytes
    }

    /// Checks that all values are in range.
    pub fn check(&self) -> Result<(), NewsRangeError> {
        // NaN is in no range. Sums may differ in their last digits.
        let is_right = WEIGHT.contains(&self.weight)
            && (0.0..=self.weight * 1.001).contains(&self.settled)
            && LEVEL.contains(&self.level)
            && PRICE.contains(&self.price)
            && WEIGHT.contains(&self.greatest)
            && RATE.contains(&self.rate)
            && (0.0..=self.rate * ROUND_TRIP * 1.001).contains(&self.in_flight);
        if is_right { Ok(()) } else { Err(NewsRangeError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEWS: NewsMessage =
        NewsMessage { sent_ns: 0x1112_1314_1516_1718, publisher: 0x2122_2324, links: 2, paths: 1 };
    /// Length of its entries.
    const ENTRIES: usize = 2 * ENTRY + PATH_ENTRY;
    const PATH: PathEntry = PathEntry { path: 0x0102_0304, group: 0x0506_0708, delay: 0.5, target: 2.0 };
    const ONE: LinkEntry = LinkEntry {
        link: 0x0102_0304,
        weight: 2.0,
        settled: 0.5,
        level: -1.0,
        price: 0.25,
        greatest: 8.0,
        rate: 16.0,
        in_flight: 4.0,
    };

    #[test]
    fn fields_are_at_the_documented_offsets() {
        let mut bytes = [0xff; HEADER + ENTRIES + 4];
        NEWS.write(&mut bytes).unwrap();
        let other = LinkEntry { link: 9, ..LinkEntry::default() };
        NEWS.write_link(0, &ONE, &mut bytes).unwrap();
        NEWS.write_link(1, &other, &mut bytes).unwrap();
        NEWS.write_path(0, &PATH, &mut bytes).unwrap();
        let header = [
            0, 0, 0, 104, 0, 2, 0, 1, 0x21, 0x22, 0x23, 0x24, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        ];
        assert_eq!(bytes[..HEADER], header);
        let reals = [0x4000_u32, 0x3f00, 0xbf80, 0x3e80, 0x4100, 0x4180, 0x4080];
        assert_eq!(bytes[HEADER..HEADER + 4], [1, 2, 3, 4]);
        for (at, high) in (HEADER + 4..).step_by(4).zip(reals) {
            assert_eq!(bytes[at..at + 4], (high << 16).to_be_bytes(), "byte {at}");
        }
        let path = [1, 2, 3, 4, 5, 6, 7, 8, 0x3f, 0, 0, 0, 0x40, 0, 0, 0];
        assert_eq!(bytes[HEADER + 2 * ENTRY..HEADER + ENTRIES], path);
        assert_eq!(bytes[HEADER + ENTRIES..], [0xff; 4]);
        let (read, length) = NewsMessage::read(&bytes).unwrap();
        assert_eq!((read, length, read.fields()), (NEWS, bytes.len(), HEADER + ENTRIES));
        assert!(read.links(&bytes).eq([ONE, other]) && read.paths(&bytes).eq([PATH]));
    }

    #[test]
    fn malformed_messages_are_rejected() {
        let mut bytes = [0; HEADER + ENTRIES];
        NEWS.write(&mut bytes).unwrap();
        for length in 0..bytes.len() {
            let expected = match length {
                ..HEADER => LossDelayError::Short,
                _ => LossDelayError::Length { claimed: 100, present: length },
            };
            assert_eq!(NewsMessage::read(&bytes[..length]), Err(expected));
            assert_eq!(NEWS.write(&mut { bytes }[..length]), Err(LossDelayLengthError));
        }
        assert_eq!(NEWS.write_link(2, &ONE, &mut bytes), Err(LossDelayLengthError));
        assert_eq!(NEWS.write_path(1, &PATH, &mut bytes), Err(LossDelayLengthError));
        let changed = |at: usize, byte| {
            let mut bytes = bytes;
            bytes[at] = byte;
            NewsMessage::read(&bytes).map(|(_, length)| length)
        };
        assert_eq!(changed(0, 0x10), Err(LossDelayError::Version(1)));
        assert_eq!(changed(0, 0x0f), Ok(100), "reserved bits are ignored");
        assert_eq!(changed(5, 3), Err(LossDelayError::Length { claimed: 100, present: 100 }));
        assert_eq!(changed(4, 0xff), Err(LossDelayError::Length { claimed: 100, present: 100 }));
        assert_eq!(changed(7, 2), Err(LossDelayError::Length { claimed: 100, present: 100 }));
        assert_eq!(changed(3, 101), Err(LossDelayError::Length { claimed: 101, present: 100 }));
    }

    #[test]
    fn out_of_range_values_are_reported() {
        assert_eq!((ONE.check(), LinkEntry::default().check()), (Ok(()), Ok(())));
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -65.0, 1e16] {
            for entry in [
                LinkEntry { weight: wrong, ..ONE },
                LinkEntry { settled: wrong, ..ONE },
                LinkEntry { level: wrong, ..ONE },
                LinkEntry { price: wrong, ..ONE },
                LinkEntry { greatest: wrong, ..ONE },
                LinkEntry { rate: wrong, ..ONE },
                LinkEntry { in_flight: wrong, ..ONE },
            ] {
                assert_eq!(entry.check(), Err(NewsRangeError), "{entry:?}");
            }
        }
        for wrong in [f32::NAN, f32::INFINITY, -1.0, 1001.0] {
            assert_eq!(PathEntry { delay: wrong, ..PATH }.check(), Err(NewsRangeError));
            assert_eq!(PathEntry { target: wrong, ..PATH }.check(), Err(NewsRangeError));
        }
        assert_eq!(PATH.check(), Ok(()));
        assert_eq!(LinkEntry { settled: 2.1, ..ONE }.check(), Err(NewsRangeError), "more than the weight");
        assert_eq!(LinkEntry { in_flight: 170.0, ..ONE }.check(), Err(NewsRangeError), "11 s");
    }

    proptest! {
        #[test]
        fn messages_round_trip(bytes in prop::collection::vec(any::<u8>(), HEADER..400)) {
            let mut bytes = bytes;
            let length = bytes.len() as u16;
            bytes[..2].fill(0);
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            let links = bytes[5] % (1 + ((bytes.len() - HEADER) / ENTRY) as u8);
            let rest = bytes.len() - HEADER - usize::from(links) * ENTRY;
            let paths = bytes[7] % (1 + (rest / PATH_ENTRY) as u8);
            bytes[4..8].copy_from_slice(&[0, links, 0, paths]);
            let (read, found) = NewsMessage::read(&bytes).unwrap();
            let mut again = bytes.clone();
            again[..read.fields()].fill(0xaa);
            read.write(&mut again).unwrap();
            for (index, entry) in read.links(&bytes).enumerate() {
                read.write_link(index, &entry, &mut again).unwrap();
            }
            for (index, entry) in read.paths(&bytes).enumerate() {
                read.write_path(index, &entry, &mut again).unwrap();
            }
            prop_assert_eq!((again, found), (bytes, usize::from(length)));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Ok((news, length)) = NewsMessage::read(&bytes) {
                prop_assert!((news.fields()..=bytes.len()).contains(&length));
                prop_assert_eq!(news.links(&bytes).len(), usize::from(news.links));
                prop_assert_eq!(news.paths(&bytes).len(), usize::from(news.paths));
                news.links(&bytes).for_each(|entry| { let _ = entry.check(); });
                news.paths(&bytes).for_each(|entry| { let _ = entry.check(); });
                let _ = tlv::after_fields(&bytes[..length], news.fields()).count();
            }
        }
    }
}
