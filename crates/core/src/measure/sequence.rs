//! What became of numbered packets: new, late, duplicated or missing (RFC 4737, RFC 5560).
//! Counts follow the sequence number alone; when a packet came is the driver's.

use alloc::vec;
use alloc::vec::Vec;

/// How far behind the newest a packet is still told from a duplicate. What comes later
/// than that stays lost: at 0.5 million packets per second it is half a second late.
pub const WINDOW: u64 = 1 << 18;

/// What one packet was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The newest so far, after `missing` that have not come yet.
    Newest {
        /// Numbers skipped between the newest before and this one.
        missing: u64,
    },
    /// One that was missing: reordered in the sense of RFC 4737 section 3.3.
    Late,
    /// One that was here before (RFC 5560).
    Duplicate,
    /// More than [`WINDOW`] behind the newest: nobody knows whether it was here before.
    Ancient,
}

/// Follows the sequence numbers of one flow, which count from zero.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// The number after the newest.
    next: u64,
    /// A bit per number of the window, set where the packet came; grows up to the window.
    seen: Vec<u64>,
    received: u64,
    late: u64,
    duplicates: u64,
    ancient: u64,
}

impl Sequence {
    /// Nothing has come yet.
    pub fn new() -> Sequence {
        Sequence::default()
    }

    /// Takes the number of a packet that came.
    pub fn handle_packet(&mut self, number: u64) -> Arrival {
        if number >= self.next {
            let missing = number - self.next;
            self.forget(self.next, number);
            self.next = number + 1;
            self.set(number);
            self.received += 1;
            return Arrival::Newest { missing };
        }
        if self.next - number > WINDOW {
            self.ancient += 1;
            return Arrival::Ancient;
        }
        if self.set(number) {
            self.received += 1;
            self.late += 1;
            Arrival::Late
        } else {
            self.duplicates += 1;
            Arrival::Duplicate
        }
    }

    /// The number after the newest: how many the sender has sent at least.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Packets that came, duplicates not counted.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Numbers below the newest that have not come.
    pub fn missing(&self) -> u64 {
        self.next - self.received
    }

    /// Packets that came after a later one.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Packets that came again.
    pub fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// Packets too late to be told apart.
    pub fn ancient(&self) -> u64 {
        self.ancient
    }

    /// Clears the bits of numbers that come into the window, and makes room for them.
    fn forget(&mut self, from: u64, newest: u64) {
        let needed = (newest + 1).next_power_of_two().clamp(64, WINDOW) / 64;
        if self.seen.len() < needed as usize {
            // Until the window has its full size, every number's place is the number itself.
            self.seen.resize(needed as usize, 0);
        }
        if newest - from >= WINDOW {
            self.seen = vec![0; self.seen.len()];
            return;
        }
        for number in from..=newest {
            let (word, bit) = self.place(number);
            self.seen[word] &= !bit;
        }
    }

    /// Sets a number's bit; whether it was not set before.
    fn set(&mut self, number: u64) -> bool {
        let (word, bit) = self.place(number);
        let new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        new
    }

    fn place(&self, number: u64) -> (usize, u64) {
        let position = number & (WINDOW - 1);
        ((position / 64) as usize, 1 << (position % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    #[test]
    fn in_order_nothing_is_missing() {
        let mut sequence = Sequence::new();
        for number in 0..1000 {
            assert_eq!(sequence.handle_packet(number), Arrival::Newest { missing: 0 });
        }
        assert_eq!((sequence.received(), sequence.missing(), sequence.late()), (1000, 0, 0));
    }

    // The example of RFC 4737 section 3.4 (packets numbered from 1 there): of 1 2 3 5 4 6
    // only packet 4 is reordered, and none is lost.
    #[test]
    fn one_swapped_packet_is_late_once() {
        let mut sequence = Sequence::new();
        let arrivals: Vec<Arrival> =
            [0, 1, 2, 4, 3, 5].iter().map(|&number| sequence.handle_packet(number)).collect();
        assert_eq!(arrivals[3], Arrival::Newest { missing: 1 });
        assert_eq!(arrivals[4], Arrival::Late);
        assert_eq!(arrivals[5], Arrival::Newest { missing: 0 });
        assert_eq!((sequence.missing(), sequence.late()), (0, 1));
    }

    #[test]
    fn a_jump_past_the_window_forgets_it() {
        let mut sequence = Sequence::new();
        for number in 0..100 {
            sequence.handle_packet(number);
        }
        assert_eq!(sequence.handle_packet(10 * WINDOW), Arrival::Newest { missing: 10 * WINDOW - 100 });
        assert_eq!(sequence.handle_packet(5), Arrival::Ancient);
        assert_eq!(sequence.handle_packet(10 * WINDOW - 7), Arrival::Late);
        assert_eq!(sequence.handle_packet(10 * WINDOW - 7), Arrival::Duplicate);
        assert_eq!(sequence.missing(), 10 * WINDOW + 1 - 102);
    }

    proptest! {
        // Against a set that remembers everything, over numbers that cross several windows.
        #[test]
        fn counts_equal_those_of_a_set(
            moves in proptest::collection::vec(
                (0_u64..5, prop_oneof![Just(0_u64), 0_u64..2000, 0..WINDOW * 2]),
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
                    Arrival::Newest { missing: number - next }
                } else if next - number > WINDOW {
                    Arrival::Ancient
                } else if seen.contains(&number) {
                    Arrival::Duplicate
                } else {
                    Arrival::Late
                };
                prop_assert_eq!(sequence.handle_packet(number), expected);
                if expected != Arrival::Ancient {
                    seen.insert(number);
                }
                newest = newest.max(number);
                prop_assert_eq!(sequence.received(), seen.len() as u64);
                prop_assert_eq!(sequence.missing(), sequence.next() - seen.len() as u64);
            }
        }
    }
}
