//! Classification of received sequence numbers: new, late, duplicate or missing (RFC 4737, RFC 5560). Counts
//! depend on the sequence numbers alone; timing is up to the driver.

use alloc::vec;
use alloc::vec::Vec;

/// Distance behind the newest number up to which late packets and duplicates can be distinguished. A packet
/// further behind stays lost; at 0.5 million packets per second it is half a second late.
pub const REORDER_WINDOW: u64 = 1 << 18;

/// Classification of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceArrival {
    /// Newest number so far.
    Newest {
        /// Numbers skipped since the previous newest one.
        missing: u64,
    },
    /// Number that was missing: reordered in the sense of RFC 4737 section 3.3.
    Late,
    /// Number received before (RFC 5560).
    Duplicate,
    /// Number more than [`REORDER_WINDOW`] behind the newest, and so either late or a duplicate.
    TooOld,
}

/// Tracks the sequence numbers of one flow, which start at zero.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// Number after the newest.
    next: u64,
    /// One bit per number of the window, set if the packet was received; grows up to the window's size.
    seen: Vec<u64>,
    received: u64,
    late: u64,
    duplicates: u64,
    ancient: u64,
}

impl Sequence {
    /// Creates a tracker without packets.
    pub fn new() -> Sequence {
        Sequence::default()
    }

    /// Records the number of a received packet and classifies it.
    pub fn handle_packet(&mut self, number: u64) -> SequenceArrival {
        if number >= self.next {
            let missing = number - self.next;
            self.forget(self.next, number);
            self.next = number + 1;
            self.set(number);
            self.received += 1;
            return SequenceArrival::Newest { missing };
        }
        if self.next - number > REORDER_WINDOW {
            self.ancient += 1;
            return SequenceArrival::TooOld;
        }
        if self.set(number) {
            self.received += 1;
            self.late += 1;
            SequenceArrival::Late
        } else {
            self.duplicates += 1;
            SequenceArrival::Duplicate
        }
    }

    /// Returns the number after the newest, a lower bound of the number of packets sent.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of packets received, without duplicates.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Returns how many numbers below the newest have not been received.
    pub fn missing(&self) -> u64 {
        self.next - self.received
    }

    /// Returns the number of packets received after one with a higher number.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Returns the number of duplicates.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Returns the number of packets too far behind the newest to classify.
    pub fn too_old(&self) -> u64 {
        self.ancient
    }

    /// Clears the bits of numbers that enter the window, and grows the window if needed.
    fn forget(&mut self, from: u64, newest: u64) {
        let needed = (newest + 1).next_power_of_two().clamp(64, REORDER_WINDOW) / 64;
        if self.seen.len() < needed as usize {
            // Until the window has its full size, the bit index of every number is the number itself.
            self.seen.resize(needed as usize, 0);
        }
        if newest - from >= REORDER_WINDOW {
            self.seen = vec![0; self.seen.len()];
            return;
        }
        for number in from..=newest {
            let (word, bit) = self.position(number);
            self.seen[word] &= !bit;
        }
    }

    /// Sets the bit of a number; returns whether it was clear before.
    fn set(&mut self, number: u64) -> bool {
        let (word, bit) = self.position(number);
        let new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        new
    }

    fn position(&self, number: u64) -> (usize, u64) {
        let index = number & (REORDER_WINDOW - 1);
        ((index / 64) as usize, 1 << (index % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    #[test]
    fn packets_in_order_leave_nothing_missing() {
        let mut sequence = Sequence::new();
        for number in 0..1000 {
            assert_eq!(sequence.handle_packet(number), SequenceArrival::Newest { missing: 0 });
        }
        assert_eq!((sequence.received(), sequence.missing(), sequence.late()), (1000, 0, 0));
    }

    // Example of RFC 4737 section 3.4, with packets numbered from 1: of 1 2 3 5 4 6 only packet 4 is
    // reordered, and none is lost.
    #[test]
    fn swapped_packet_is_counted_late_once() {
        let mut sequence = Sequence::new();
        let arrivals: Vec<SequenceArrival> =
            [0, 1, 2, 4, 3, 5].iter().map(|&number| sequence.handle_packet(number)).collect();
        assert_eq!(arrivals[3], SequenceArrival::Newest { missing: 1 });
        assert_eq!(arrivals[4], SequenceArrival::Late);
        assert_eq!(arrivals[5], SequenceArrival::Newest { missing: 0 });
        assert_eq!((sequence.missing(), sequence.late()), (0, 1));
    }

    #[test]
    fn jump_beyond_the_window_clears_it() {
        let mut sequence = Sequence::new();
        for number in 0..100 {
            sequence.handle_packet(number);
        }
        assert_eq!(
            sequence.handle_packet(10 * REORDER_WINDOW),
            SequenceArrival::Newest { missing: 10 * REORDER_WINDOW - 100 }
        );
        assert_eq!(sequence.handle_packet(5), SequenceArrival::TooOld);
        assert_eq!(sequence.handle_packet(10 * REORDER_WINDOW - 7), SequenceArrival::Late);
        assert_eq!(sequence.handle_packet(10 * REORDER_WINDOW - 7), SequenceArrival::Duplicate);
        assert_eq!(sequence.missing(), 10 * REORDER_WINDOW + 1 - 102);
    }

    proptest! {
        // Compares the tracker with a set of all numbers over moves that cross several windows.
        #[test]
        fn counts_match_a_set_of_all_numbers(
            moves in proptest::collection::vec(
                (0_u64..5, prop_oneof![Just(0_u64), 0_u64..2000, 0..REORDER_WINDOW * 2]),
                1..300,
            )
        ) {
            let mut sequence = Sequence::new();
            let mut seen = BTreeSet::new();
            let mut newest: u64 = 0;
            for (kind, distance) in moves {
                let number = match kind {
                    0..=2 => newest + distance,
                    _ => newest.saturating_sub(distance),
                };
                let next = seen.last().map_or(0, |last| last + 1);
                let expected = if number >= next {
                    SequenceArrival::Newest { missing: number - next }
                } else if next - number > REORDER_WINDOW {
                    SequenceArrival::TooOld
                } else if seen.contains(&number) {
                    SequenceArrival::Duplicate
                } else {
                    SequenceArrival::Late
                };
                prop_assert_eq!(sequence.handle_packet(number), expected);
                if expected != SequenceArrival::TooOld {
                    seen.insert(number);
                }
                newest = newest.max(number);
                prop_assert_eq!(sequence.received(), seen.len() as u64);
                prop_assert_eq!(sequence.missing(), sequence.next() - seen.len() as u64);
            }
        }
    }
}
