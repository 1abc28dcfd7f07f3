//! What a VPN flow knows of its path: round trip and loss.

use super::LossMeasure;
use crate::time::Duration;

/// Smoothed round trip between two PEs (RFC 6298's filter).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RoundTrip {
    smoothed: f64,
    variation: f64,
}

impl RoundTrip {
    /// Takes one sample.
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

    /// Seconds; zero before the first sample.
    #[inline]
    pub fn seconds(&self) -> f64 {
        self.smoothed
    }

    /// A reply later than this is overdue.
    #[inline]
    pub fn overdue(&self) -> Duration {
        Duration::from_secs_f64(self.smoothed + 4.0 * self.variation)
    }
}

/// Number of loss intervals averaged, and their weights, newest first (RFC 5348 section 5.4).
const INTERVAL_WEIGHTS: [f64; 8] = [1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2];

/// Packets over which a drop ratio forgets.
const DROP_RATIO_HORIZON: f64 = 5_000.0;

/// Loss of a VPN flow, by the measure its configuration names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    measure: LossMeasure,
    /// Packets in each closed interval between loss events, newest first.
    intervals: [f64; 8],
    /// Packets since the last loss event.
    open: f64,
    /// Loss events so far.
    events: u64,
    /// Packets and drops, both fading over `DROP_RATIO_HORIZON` packets.
    faded_packets: f64,
    faded_drops: f64,
}

impl Loss {
    /// Nothing seen yet.
    pub fn new(measure: LossMeasure) -> Loss {
        Loss { measure, intervals: [0.0; 8], open: 0.0, events: 0, faded_packets: 0.0, faded_drops: 0.0 }
    }

    /// `packets` more left the ingress and `dropped` of them did not arrive.
    #[inline]
    pub fn sample(&mut self, packets: u64, dropped: u64) {
        self.open += packets as f64;
        let keep = 1.0 - (packets as f64 / DROP_RATIO_HORIZON).min(1.0);
        self.faded_packets = self.faded_packets * keep + packets as f64;
        self.faded_drops = self.faded_drops * keep + dropped as f64;
    }

    /// The window was reduced: one loss event, however many packets it cost.
    pub fn event(&mut self) {
        self.intervals.copy_within(0..7, 1);
        self.intervals[0] = self.open.max(1.0);
        self.open = 0.0;
        self.events += 1;
    }

    /// Loss events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Loss, or `None` before the first loss event.
    pub fn rate(&self) -> Option<f64> {
        if self.events == 0 {
            return None;
        }
        match self.measure {
            LossMeasure::LossEvents => Some(1.0 / self.mean_interval()),
            LossMeasure::DropRatio => Some((self.faded_drops / self.faded_packets).max(1e-9)),
        }
    }

    /// RFC 5348 section 5.4: the open interval counts only where it makes the mean longer.
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
