//! Round-trip estimation and the retransmission timeout (RFC 6298).

use super::{Stack, TcpConfig};
use crate::time::Duration;

/// Clock granularity G of RFC 6298. It keeps the timeout above a constant round trip, whose variation tends to zero.
const GRANULARITY_NS: f64 = 1e6;
/// RFC 6298 section 2.5 allows a ceiling of 60 s or more.
const MAX_RTO: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(super) struct RttEstimator {
    smoothed_ns: f64,
    variation_ns: f64,
    /// Minimum sample; the maximum value before the first sample.
    min: Duration,
    /// Retransmission timeout including back-off; the next sample recomputes it (RFC 6298 section 5.7).
    rto: Duration,
}

impl RttEstimator {
    pub fn new(config: &TcpConfig) -> RttEstimator {
        RttEstimator {
            smoothed_ns: 0.0,
            variation_ns: 0.0,
            min: Duration(u64::MAX),
            rto: config.initial_rto.max(Duration(1)),
        }
    }

    /// Adds a sample. `share` is its share of the samples of a round trip: 1 if one segment is timed per round trip,
    /// less with timestamps, so that the estimator's memory stays the same length (RFC 7323 appendix G).
    #[inline]
    pub fn sample(&mut self, config: &TcpConfig, measured: Duration, share: f64) {
        let sample = measured.0 as f64;
        if self.min.0 == u64::MAX {
            self.smoothed_ns = sample;
            self.variation_ns = sample / 2.0;
        } else {
            let error = sample - self.smoothed_ns;
            self.variation_ns += share * 0.25 * (error.abs() - self.variation_ns);
            self.smoothed_ns += share * 0.125 * error;
        }
        self.min = self.min.min(measured);
        let (lower_limit, margin) = match config.stack {
            Stack::Rfc => (config.min_rto, GRANULARITY_NS),
            Stack::Linux => (Duration::ZERO, config.min_rto.0 as f64),
        };
        let rto = self.smoothed_ns + (4.0 * self.variation_ns).max(margin);
        self.rto = Duration(rto as u64).min(MAX_RTO).max(lower_limit);
    }

    /// Doubles the timeout (RFC 6298 section 5.5).
    pub fn back_off(&mut self) {
        self.rto = (self.rto * 2).min(MAX_RTO.max(self.rto));
    }

    /// Raises the timeout after a lost SYN to 3 s when data begins (RFC 6298 section 5.7).
    pub fn syn_was_lost(&mut self) {
        self.rto = self.rto.max(Duration::from_secs(3));
    }

    #[inline]
    pub fn rto(&self) -> Duration {
        self.rto
    }

    #[inline]
    pub fn smoothed_ns(&self) -> f64 {
        self.smoothed_ns
    }

    /// Returns the minimum; 0 before the first sample.
    pub fn min_ns(&self) -> f64 {
        self.min().map_or(0.0, |min| min.0 as f64)
    }

    pub fn smoothed(&self) -> Option<Duration> {
        self.min().map(|_| Duration(self.smoothed_ns as u64))
    }

    pub fn min(&self) -> Option<Duration> {
        (self.min.0 != u64::MAX).then_some(self.min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_match_rfc_6298_section_2() {
        let config = TcpConfig { min_rto: Duration::ZERO, ..TcpConfig::default() };
        let mut rtt = RttEstimator::new(&config);
        assert_eq!(rtt.rto(), config.initial_rto);
        rtt.sample(&config, Duration::from_millis(100), 1.0);
        // SRTT = 100, RTTVAR = 50, RTO = 100 + 4 · 50.
        assert_eq!(rtt.rto(), Duration::from_millis(300));
        rtt.sample(&config, Duration::from_millis(180), 1.0);
        // RTTVAR = 3/4 · 50 + 1/4 · 80 = 57.5; SRTT = 7/8 · 100 + 1/8 · 180 = 110.
        assert_eq!(rtt.smoothed(), Some(Duration::from_millis(110)));
        assert_eq!(rtt.rto(), Duration::from_millis(340));
        assert_eq!(rtt.min(), Some(Duration::from_millis(100)));
        for _ in 0..200 {
            rtt.sample(&config, Duration::from_millis(100), 1.0);
        }
        assert_eq!(rtt.rto().0 / 1_000_000, 101);
    }

    #[test]
    fn timeouts_back_off_within_bounds() {
        let config = TcpConfig { min_rto: Duration::from_secs(1), ..TcpConfig::default() };
        let mut rtt = RttEstimator::new(&config);
        rtt.sample(&config, Duration::from_millis(10), 1.0);
        assert_eq!(rtt.rto(), Duration::from_secs(1));
        let doubled = [2, 4, 8, 16, 32, 60, 60].map(|_| {
            rtt.back_off();
            rtt.rto().0 / 1_000_000_000
        });
        assert_eq!(doubled, [2, 4, 8, 16, 32, 60, 60]);
    }
}
