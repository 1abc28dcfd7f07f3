//! Records of one side of a flow: counts per bin, and histograms.

use netstage_agent_api::results::{BinCounts, Buckets};
use netstage_core::measure::Histogram;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::QualityBins;

/// Counts per bin.
#[derive(Debug)]
pub struct FlowLedger {
    interval: Duration,
    bins: Vec<BinCounts>,
}

impl FlowLedger {
    /// Creates empty bins for the duration of a run.
    pub fn new(interval: Duration, duration: Duration) -> FlowLedger {
        let interval = if interval == Duration::ZERO { duration } else { interval };
        let bins = duration.0.div_ceil(interval.0.max(1)).max(1);
        FlowLedger { interval: Duration(interval.0.max(1)), bins: vec![BinCounts::default(); bins as usize] }
    }

    /// Returns the bin of a time. Times after the end belong to the last bin.
    pub fn bin(&self, at: Instant) -> usize {
        ((at.0 / self.interval.0) as usize).min(self.bins.len() - 1)
    }

    /// Returns the counts of the bin of a time.
    pub fn at(&mut self, at: Instant) -> &mut BinCounts {
        let bin = self.bin(at);
        &mut self.bins[bin]
    }

    /// Returns the counts of a bin.
    ///
    /// # Panics
    ///
    /// Panics if the bin does not exist.
    pub fn counts(&mut self, bin: usize) -> &mut BinCounts {
        &mut self.bins[bin]
    }

    /// Creates bins of the same width for the quality of an application.
    pub fn quality_bins(&self) -> QualityBins {
        QualityBins::new(self.interval, self.bins.len())
    }

    /// Returns the counts of all bins.
    pub fn into_bins(self) -> Vec<BinCounts> {
        self.bins
    }
}

/// Histogram of nanoseconds with three significant digits.
#[derive(Debug, Default)]
pub struct TimeHistogram(Histogram);

impl TimeHistogram {
    /// Creates an empty histogram.
    pub fn new() -> TimeHistogram {
        TimeHistogram::default()
    }

    /// Adds a value.
    pub fn record(&mut self, ns: u64) {
        self.0.record(ns);
    }

    /// Returns the value that this share of all values does not exceed, or zero if empty.
    pub fn quantile(&self, share: f64) -> u64 {
        self.0.quantile(share).unwrap_or(0)
    }

    /// Returns the largest value, or zero if empty.
    pub fn max(&self) -> u64 {
        self.quantile(1.0)
    }

    /// Returns the values, each with its number of occurrences.
    pub fn buckets(&self) -> Buckets {
        Buckets(self.0.buckets().collect())
    }
}
