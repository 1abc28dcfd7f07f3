//! Round-trip and loss estimators of a VPN flow.

use super::LossMeasure;
use crate::time::Duration;

/// Smoothed round trip between two PEs (the filter of RFC 6298).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundTripEstimator {
    smoothed: f64,
    variation: f64,
}

impl RoundTripEstimator {
    /// Adds a sample.
    #[inline]
    pub fn sample(&mut self, round_trip: Duration) {
        let sample = round_trip.as_secs_f64();
        if self.smoothed == 0.0 {
            self.smoothed = sample;
            self.variation = sample / 2.0;
        } else {
            self.variation += ((sample - self.smoothed).abs() - self.variation) / 4.0;
            self.smoothed += (sample - self.smoothed) / 8.0;
        }
    }

    /// Returns the smoothed round trip in seconds; zero before the first sample.
    #[inline]
    pub fn seconds(&self) -> f64 {
        self.smoothed
    }

    /// Returns the time after which a reply is overdue.
    #[inline]
    pub fn overdue(&self) -> Duration {
        Duration::from_secs_f64(self.smoothed + 4.0 * self.variation)
    }
}

/// Weights of the averaged loss intervals, newest first (RFC 5348 section 5.4).
const INTERVAL_WEIGHTS: [f64; 8] = [1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2];

/// Number of packets over which the drop ratio is smoothed.
const DROP_RATIO_HORIZON: f64 = 5_000.0;

/// Loss of a VPN flow, by the configured measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossEstimator {
    measure: LossMeasure,
    /// Packets in each closed interval between loss events, newest first.
    intervals: [f64; 8],
    /// Packets since the last loss event.
    open: f64,
    /// Loss events so far.
    events: u64,
    /// Packets and drops, both decaying over `DROP_RATIO_HORIZON` packets.
    faded_packets: f64,
    faded_drops: f64,
}

impl LossEstimator {
    /// Creates an estimator without samples.
    pub fn new(measure: LossMeasure) -> LossEstimator {
        LossEstimator {
            measure,
            intervals: [0.0; 8],
            open: 0.0,
            events: 0,
            faded_packets: 0.0,
            faded_drops: 0.0,
        }
    }

    /// Adds a report: `packets` more packets left the ingress, `dropped` of them were lost.
    #[inline]
    pub fn sample(&mut self, packets: u64, dropped: u64) {
        self.open += packets as f64;
        let keep = 1.0 - (packets as f64 / DROP_RATIO_HORIZON).min(1.0);
        self.faded_packets = self.faded_packets * keep + packets as f64;
        self.faded_drops = self.faded_drops * keep + dropped as f64;
    }

    /// Records a loss event: a reduction of the window, regardless of the number of packets lost.
    pub fn event(&mut self) {
        self.intervals.copy_within(0..7, 1);
        self.intervals[0] = self.open.max(1.0);
        self.open = 0.0;
        self.events += 1;
    }

    /// Returns the number of loss events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Returns the loss rate, or `None` before the first loss event.
    pub fn rate(&self) -> Option<f64> {
        if self.events == 0 {
            return None;
        }
        match self.measure {
            LossMeasure::LossEvents => Some(1.0 / self.mean_interval()),
            LossMeasure::DropRatio => Some((self.faded_drops / self.faded_packets).max(1e-9)),
        }
    }

    /// Returns the mean loss interval; the open interval counts only if it increases the mean (RFC 5348
    /// section 5.4).
    fn mean_interval(&self) -> f64 {
        let known = (self.events as usize).min(INTERVAL_WEIGHTS.len());
        let weighted = |values: &[f64]| {
            let pairs = values.iter().zip(INTERVAL_WEIGHTS);
            let (sum, weights) = pairs.fold((0.0, 0.0), |(s, w), (v, weight)| (s + v * weight, w + weight));
            sum / weights
        };
        let closed = weighted(&self.intervals[..known]);
        let mut with_open = [0.0; 8];
        with_open[0] = self.open;
        with_open[1..known].copy_from_slice(&self.intervals[..known - 1]);
        closed.max(weighted(&with_open[..known]))
    }
}
