//! Playout of a numbered stream: its received and its timely packets or frames.
//!
//! The playout delay is the minimum delay observed plus a fixed buffer, as in a receiver with a jitter buffer
//! of constant size.

use super::{Context, Observation};
use crate::time::Duration;

#[derive(Clone, Debug)]
pub(super) struct Playout {
    /// Size of the jitter buffer; `None` if no delay is too long.
    buffer: Option<Duration>,
    min_delay: Option<Duration>,
    /// Highest number reported, plus one.
    next: u32,
    /// Bitmap of the received numbers among the 64 before `next`, the highest number in the lowest bit.
    received: u64,
}

impl Playout {
    pub fn new(buffer: Option<Duration>) -> Playout {
        Playout { buffer, min_delay: None, next: 0, received: 0 }
    }

    /// Returns the time from sending to playout.
    pub fn delay(&self) -> Option<Duration> {
        Some(self.min_delay? + self.buffer?)
    }

    /// Handles the arrival of a number after a delay; returns whether it is played.
    pub fn arrive(&mut self, context: &mut Context, number: u32, delay: Duration) -> bool {
        let mut expected = 0;
        if number >= self.next {
            // A high first number indicates a stream joined late, not a loss.
            let shift = (number - self.next).saturating_add(1);
            expected = if self.min_delay.is_none() { 1 } else { shift };
            self.received = if shift < 64 { self.received << shift } else { 0 };
            self.next = number.saturating_add(1);
        }
        let age = self.next.wrapping_sub(1).wrapping_sub(number);
        if age >= 64 || self.received >> age & 1 == 1 {
            return false;
        }
        self.received |= 1 << age;
        let min_delay = self.min_delay.map_or(delay, |min_delay| min_delay.min(delay));
        self.min_delay = Some(min_delay);
        let played = self.buffer.is_none_or(|buffer| delay <= min_delay + buffer);
        context.observe(Observation::Delay { at: context.now, delay });
        context.observe(Observation::Media { at: context.now, expected, played: played.into() });
        played
    }

    /// Reports the next `count` numbers as lost.
    pub fn miss(&mut self, context: &mut Context, count: u32) {
        self.next = self.next.saturating_add(count);
        self.received = if count < 64 { self.received << count } else { 0 };
        context.observe(Observation::Media { at: context.now, expected: count, played: 0 });
    }
}
