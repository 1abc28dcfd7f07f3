//! What one side of a flow writes down: counts per bin, and histograms.

use netstage_agent_api::results::{Buckets, Counts};
use netstage_core::measure::Histogram;
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::QualityBins;

/// Counts per bin.
#[derive(Debug)]
pub struct Ledger {
    interval: Duration,
    bins: Vec<Counts>,
}

impl Ledger {
    /// Empty bins from the start to the end of a run.
    pub fn new(interval: Duration, duration: Duration) -> Ledger {
        let interval = if interval == Duration::ZERO { duration } else { interval };
        let bins = duration.0.div_ceil(interval.0.max(1)).max(1);
        Ledger { interval: Duration(interval.0.max(1)), bins: vec![Counts::default(); bins as usize] }
    }

    /// The bin of a moment. What comes after the end belongs to the last.
    pub fn bin(&self, at: Instant) -> usize {
        ((at.0 / self.interval.0) as usize).min(self.bins.len() - 1)
    }

    /// The counts of the bin of a moment.
    pub fn at(&mut self, at: Instant) -> &mut Counts {
        let bin = self.bin(at);
        &mut self.bins[bin]
    }

    /// The counts of a bin. Panics where there is none.
    pub fn counts(&mut self, bin: usize) -> &mut Counts {
        &mut self.bins[bin]
    }

    /// Bins of the same width for what users notice.
    pub fn quality_bins(&self) -> QualityBins {
        QualityBins::new(self.interval, self.bins.len())
    }

    /// All bins.
    pub fn into_bins(self) -> Vec<Counts> {
        self.bins
    }
}

/// A histogram of nanoseconds with three significant digits; grows as needed.
#[derive(Debug, Default)]
pub struct Times(Histogram);

impl Times {
    /// Empty.
    pub fn new() -> Times {
        Times::default()
    }

    /// Adds a value.
    pub fn record(&mut self, ns: u64) {
        self.0.record(ns);
    }

    /// The value that this share of all does not exceed; zero where there are none.
    pub fn quantile(&self, share: f64) -> u64 {
        self.0.quantile(share).unwrap_or(0)
    }

    /// The largest value; zero where there are none.
    pub fn max(&self) -> u64 {
        self.quantile(1.0)
    }

    /// Values and how often each occurred.
    pub fn buckets(&self) -> Buckets {
        Buckets(self.0.buckets().collect())
    }
}
