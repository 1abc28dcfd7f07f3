//! Distinction of policers from random loss by the spacing of losses.
//!
//! A token bucket is empty at each of its losses. Between two of them it passes what its rate filled, so the rate
//! between any two losses is the same. Random losses are independent of the rate, which therefore varies with
//! the congestion window.

use crate::time::Instant;
use alloc::vec::Vec;

/// Maximum number of loss events kept.
const MAX_EVENTS: usize = 256;
/// Minimum number of intervals for a decision.
const MIN_INTERVALS: usize = 8;
/// Spread of the rates below which the losses are a policer's, and above which they are random.
const POLICED: f64 = 0.12;
const RANDOM: f64 = 0.20;

/// Origin of losses without a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LossOrigin {
    /// Losses are independent of the rate.
    Random,
    /// Losses begin at one rate.
    Policer,
    /// The losses fit both.
    Unknown,
}

/// Loss events of a flow, with the data delivered before each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LossSpacing {
    events: Vec<(Instant, u64)>,
}

impl LossSpacing {
    /// Adds a loss event, at which this number of bytes had been delivered. The oldest half is dropped when the
    /// limit is reached.
    pub fn add(&mut self, time: Instant, delivered: u64) {
        if self.events.len() == MAX_EVENTS {
            self.events.drain(..MAX_EVENTS / 2);
        }
        self.events.push((time, delivered));
    }

    /// Returns the mean deviation of the data between two losses from what the mean rate gives, as a share of the
    /// data.
    fn spread(&self) -> Option<f64> {
        let (first, last) = (self.events.first()?, self.events.last()?);
        let (time, data) = (last.0.since(first.0).as_secs_f64(), last.1.saturating_sub(first.1) as f64);
        if time <= 0.0 || data <= 0.0 || self.events.len() <= MIN_INTERVALS {
            return None;
        }
        let deviation = |pair: &[(Instant, u64)]| {
            let expected = data / time * pair[1].0.since(pair[0].0).as_secs_f64();
            (pair[1].1.saturating_sub(pair[0].1) as f64 - expected).abs()
        };
        Some(self.events.windows(2).map(deviation).sum::<f64>() / data)
    }

    /// Returns the origin of the losses.
    pub fn origin(&self) -> LossOrigin {
        match self.spread() {
            Some(spread) if spread < POLICED => LossOrigin::Policer,
            Some(spread) if spread > RANDOM => LossOrigin::Random,
            _ => LossOrigin::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;

    const RATE: f64 = 1e6;

    /// Returns the origin of 20 losses with these rates between them, relative to the mean rate.
    fn origin(mut relative_rate: impl FnMut() -> f64) -> LossOrigin {
        let mut spacing = LossSpacing::default();
        let (mut time, mut delivered) = (0.0, 0.0);
        for interval in 0..20 {
            let length = 0.2 + 0.1 * f64::from(interval % 4);
            time += length;
            delivered += length * RATE * relative_rate();
            spacing.add(Instant((time * 1e9) as u64), delivered as u64);
        }
        spacing.origin()
    }

    #[test]
    fn equal_rates_between_losses_are_a_policer() {
        let mut random = RandomStream::new(1, "rates");
        assert_eq!(origin(|| 0.97 + 0.06 * random.uniform()), LossOrigin::Policer);
        assert_eq!(origin(|| 0.5 + random.uniform()), LossOrigin::Random);
        assert_eq!(LossSpacing::default().origin(), LossOrigin::Unknown);
    }

    #[test]
    fn memory_is_bounded() {
        let mut spacing = LossSpacing::default();
        (0..10_000).for_each(|n| spacing.add(Instant(n * 1_000_000), n * 1_000));
        assert!(spacing.events.len() <= MAX_EVENTS);
        assert_eq!(spacing.origin(), LossOrigin::Policer);
    }
}
