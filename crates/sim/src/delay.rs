//! Delays of a flow's datagrams, one-way or round trip, and their variation.

use crate::bins::{BinnedSum, Grid};
use netstage_core::measure::Histogram;
use netstage_core::time::Instant;
use netstage_scenario::outcome::{Distribution, Metric, Series};

/// Delays of one flow.
#[derive(Debug)]
pub struct FlowDelays {
    /// Sum of delays in nanoseconds and number of packets, per bin of arrival.
    sums: [BinnedSum; 2],
    delay: Histogram,
    /// Delay differences between successive packets (RFC 3393).
    variation: Histogram,
    last: Option<u64>,
}

impl FlowDelays {
    /// Creates empty counters.
    pub fn new(grid: Grid) -> FlowDelays {
        let (delay, variation) = Default::default();
        FlowDelays { sums: [BinnedSum::new(grid), BinnedSum::new(grid)], delay, variation, last: None }
    }

    /// Records the arrival of a packet.
    pub fn arrived(&mut self, now: Instant, sent: Instant) {
        let delay = now.0.saturating_sub(sent.0);
        self.sums[0].add(now, delay);
        self.sums[1].add(now, 1);
        self.delay.record(delay);
        if let Some(last) = self.last.replace(delay) {
            self.variation.record(delay.abs_diff(last));
        }
    }

    /// Returns the mean delay per bin; NaN for bins without packets.
    pub fn series(&self, subject: &str) -> Series {
        let (sums, counts) = (self.sums[0].scaled(1e-9), self.sums[1].scaled(1.0));
        let values = sums.iter().zip(counts).map(|(sum, count)| sum / count).collect();
        Series { metric: Metric::FlowDelay, subject: subject.into(), values }
    }

    /// Returns the distribution of round trips, for flows whose delays are round trips.
    pub fn round_trips(&self, subject: &str) -> Distribution {
        let [delay, _] = self.distributions(subject);
        Distribution { metric: Metric::FlowRoundTrip, ..delay }
    }

    /// Returns the distributions of delay and delay variation.
    pub fn distributions(&self, subject: &str) -> [Distribution; 2] {
        [(Metric::FlowDelay, &self.delay), (Metric::FlowDelayVariation, &self.variation)].map(
            |(metric, histogram)| Distribution {
                metric,
                subject: subject.into(),
                buckets: histogram.buckets().collect(),
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_core::time::Duration;

    #[test]
    fn series_has_the_mean_delay_per_bin() {
        let mut delays = FlowDelays::new(Grid { interval: Duration(1_000), bins: 3 });
        for (now, sent) in [(100, 90), (200, 170), (2_500, 2_450)] {
            delays.arrived(Instant(now), Instant(sent));
        }
        let values = delays.series("voice").values;
        for (value, nanoseconds) in [(values[0], 20.0), (values[2], 50.0)] {
            assert!((value * 1e9 - nanoseconds).abs() < 1e-6, "{value}");
        }
        assert!(values[1].is_nan());
        let [delay, variation] = delays.distributions("voice");
        assert_eq!(delay.buckets, [(10, 1), (30, 1), (50, 1)]);
        assert_eq!(variation.buckets, [(20, 2)]);
    }
}
