//! Distinction of policers from random loss by the rates between and at losses.
//!
//! A token bucket is empty at each of its losses. Losses therefore begin at the same window, and what passes between
//! two of them is what the bucket's rate filled. Random losses are independent of the rate: the window at a loss and
//! the rate between two losses vary.

use crate::quantity::BitRate;
use crate::tcp::event::FlowSnapshot;
use crate::time::{Duration, Instant};
use alloc::vec::Vec;

/// Maximum number of loss events kept.
const MAX_EVENTS: usize = 256;
/// Minimum number of intervals for a decision.
const MIN_INTERVALS: usize = 8;
/// Deviation of the rates between losses, below which the losses are a policer's and above which they are random.
const POLICED_RATE: f64 = 0.12;
const RANDOM_RATE: f64 = 0.22;
/// Standard deviation of the window at losses, as a share of its mean.
const POLICED_WINDOW: f64 = 0.18;
const RANDOM_WINDOW: f64 = 0.29;

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

/// Loss event.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Loss {
    time: Instant,
    /// Data delivered before, and outstanding, bytes.
    delivered: u64,
    outstanding: u64,
    round_trip: Duration,
    /// Another limit than the congestion window, which is the same at all losses.
    is_capped: bool,
}

/// Loss events of a flow.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LossSpacing {
    events: Vec<Loss>,
}

impl LossSpacing {
    /// Adds a loss event and the state of the flow. The oldest half is dropped when the limit is reached.
    pub fn add(&mut self, time: Instant, snapshot: &FlowSnapshot) {
        if self.events.len() == MAX_EVENTS {
            self.events.drain(..MAX_EVENTS / 2);
        }
        let (delivered, outstanding) = (snapshot.acknowledged, snapshot.outstanding);
        let round_trip = snapshot.smoothed_round_trip.unwrap_or(Duration::ZERO);
        let is_capped =
            snapshot.unsent == 0 || outstanding.saturating_mul(3) >= snapshot.peer_window.saturating_mul(2);
        self.events.push(Loss { time, delivered, outstanding, round_trip, is_capped });
    }

    /// Returns the mean deviation of the data between two losses from what the mean rate gives, as a share of the
    /// data.
    fn rate_deviation(&self) -> Option<f64> {
        let (first, last) = (self.events.first()?, self.events.last()?);
        let time = last.time.since(first.time).as_secs_f64();
        let data = last.delivered.saturating_sub(first.delivered) as f64;
        if time <= 0.0 || data <= 0.0 || self.events.len() <= MIN_INTERVALS {
            return None;
        }
        let deviation = |pair: &[Loss]| {
            let expected = data / time * pair[1].time.since(pair[0].time).as_secs_f64();
            (pair[1].delivered.saturating_sub(pair[0].delivered) as f64 - expected).abs()
        };
        Some(self.events.windows(2).map(deviation).sum::<f64>() / data)
    }

    /// Returns the standard deviation of the outstanding data at losses, as a share of its mean. The first loss, which
    /// ends slow start, does not count.
    fn window_deviation(&self) -> f64 {
        let windows = || self.events.iter().skip(1).map(|loss| loss.outstanding as f64);
        let count = windows().count().max(1) as f64;
        let mean = windows().sum::<f64>() / count;
        let variance = windows().map(|window| (window - mean) * (window - mean)).sum::<f64>() / count;
        if mean > 0.0 { libm::sqrt(variance) / mean } else { 0.0 }
    }

    /// Returns the mean rate at losses: the outstanding data in a round trip. The first loss does not count.
    pub fn rate(&self) -> Option<BitRate> {
        let counted = || self.events.iter().skip(1);
        let bytes: f64 = counted().map(|loss| loss.outstanding as f64).sum();
        let time: f64 = counted().map(|loss| loss.round_trip.as_secs_f64()).sum();
        (time > 0.0).then(|| BitRate(libm::round(8.0 * bytes / time) as u64))
    }

    /// Returns the origin of the losses.
    pub fn origin(&self) -> LossOrigin {
        let Some(rate) = self.rate_deviation() else { return LossOrigin::Unknown };
        let window = self.window_deviation();
        let capped = self.events.iter().filter(|loss| loss.is_capped).count();
        if rate < POLICED_RATE && window < POLICED_WINDOW && 4 * capped <= self.events.len() {
            LossOrigin::Policer
        } else if rate > RANDOM_RATE && window > RANDOM_WINDOW {
            LossOrigin::Random
        } else {
            LossOrigin::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;
    use crate::tcp::event::tests::SNAPSHOT;

    const RATE: f64 = 1e6;

    #[test]
    fn equal_windows_of_another_limit_are_no_policer() {
        let mut spacing = LossSpacing::default();
        for n in 0..20 {
            let (time, acknowledged) = (Instant(n * 100_000_000), n * 100_000);
            spacing.add(time, &FlowSnapshot { acknowledged, peer_window: SNAPSHOT.outstanding, ..SNAPSHOT });
        }
        assert_eq!(spacing.origin(), LossOrigin::Unknown);
    }

    fn lost(spacing: &mut LossSpacing, time: f64, delivered: f64, outstanding: f64) {
        let (acknowledged, outstanding) = (delivered as u64, outstanding as u64);
        let smoothed_round_trip = Some(Duration::from_millis(10));
        let snapshot = FlowSnapshot { acknowledged, outstanding, smoothed_round_trip, ..SNAPSHOT };
        spacing.add(Instant((time * 1e9) as u64), &snapshot);
    }

    /// Returns the origin of 20 losses with these rates between them and these windows at them, relative to the mean.
    fn origin(
        mut relative_rate: impl FnMut() -> f64,
        mut relative_window: impl FnMut() -> f64,
    ) -> LossOrigin {
        let mut spacing = LossSpacing::default();
        let (mut time, mut delivered) = (0.0, 0.0);
        for interval in 0..20 {
            let length = 0.2 + 0.1 * f64::from(interval % 4);
            time += length;
            delivered += length * RATE * relative_rate();
            lost(&mut spacing, time, delivered, 1e4 * relative_window());
        }
        spacing.origin()
    }

    #[test]
    fn equal_rates_and_windows_are_a_policer() {
        let (mut rates, mut windows) = (RandomStream::new(1, "rates"), RandomStream::new(1, "windows"));
        let near = |random: &mut RandomStream| 0.97 + 0.06 * random.uniform();
        let far = |random: &mut RandomStream| 0.3 + 1.4 * random.uniform();
        assert_eq!(origin(|| near(&mut rates), || near(&mut windows)), LossOrigin::Policer);
        assert_eq!(origin(|| far(&mut rates), || far(&mut windows)), LossOrigin::Random);
        assert_eq!(origin(|| near(&mut rates), || far(&mut windows)), LossOrigin::Unknown);
        assert_eq!(origin(|| far(&mut rates), || near(&mut windows)), LossOrigin::Unknown);
        assert_eq!(LossSpacing::default().origin(), LossOrigin::Unknown);
        assert_eq!(LossSpacing::default().rate(), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut spacing = LossSpacing::default();
        (0..10_000).for_each(|n| lost(&mut spacing, f64::from(n) * 1e-3, f64::from(n) * 1e3, 1e4));
        assert!(spacing.events.len() <= MAX_EVENTS);
        assert_eq!(spacing.origin(), LossOrigin::Policer);
        assert_eq!(spacing.rate(), Some(BitRate(8_000_000)));
    }
}
