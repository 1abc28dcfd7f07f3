//! What of a numbered stream came, and what of it in time to be played.
//!
//! The play-out point is the smallest delay seen so far and a fixed buffer after it, as in a
//! receiver with a jitter buffer of constant size.

use super::{Context, Observation};
use crate::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct Playout {
    /// What is buffered against varying delay; `None` where nothing comes too late.
    buffer: Option<Duration>,
    smallest: Option<Duration>,
    /// One past the highest number accounted for.
    next: u32,
    /// Which of the 64 numbers before `next` have come, the latest in the lowest bit.
    seen: u64,
}

impl Playout {
    pub fn new(buffer: Option<Duration>) -> Playout {
        Playout { buffer, smallest: None, next: 0, seen: 0 }
    }

    /// From sending to play-out.
    pub fn delay(&self) -> Option<Duration> {
        Some(self.smallest? + self.buffer?)
    }

    /// Number so-and-so has come after this delay. Says whether it is played.
    pub fn arrive(&mut self, context: &mut Context, number: u32, delay: Duration) -> bool {
        let mut expected = 0;
        if number >= self.next {
            // A first number far beyond zero is a stream joined late, not a loss.
            let shift = (number - self.next).saturating_add(1);
            expected = if self.smallest.is_none() { 1 } else { shift };
            self.seen = if shift < 64 { self.seen << shift } else { 0 };
            self.next = number.saturating_add(1);
        }
        let back = self.next.wrapping_sub(1).wrapping_sub(number);
        if back >= 64 || self.seen >> back & 1 == 1 {
            return false;
        }
        self.seen |= 1 << back;
        let smallest = self.smallest.map_or(delay, |smallest| smallest.min(delay));
        self.smallest = Some(smallest);
        let played = self.buffer.is_none_or(|buffer| delay <= smallest + buffer);
        context.observe(Observation::Delay { at: context.now, delay });
        context.observe(Observation::Media { at: context.now, expected, played: played.into() });
        played
    }

    /// Nothing came of the next few, though all of them were due.
    pub fn miss(&mut self, context: &mut Context, count: u32) {
        self.next = self.next.saturating_add(count);
        self.seen = if count < 64 { self.seen << count } else { 0 };
        context.observe(Observation::Media { at: context.now, expected: count, played: 0 });
    }
}
