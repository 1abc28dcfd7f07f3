//! Records of one side of a flow: counts per bin.

use netstage_agent_api::results::{BinCounts, Drained};
use netstage_core::time::{Duration, Instant};
use netstage_core::traffic::application::QualityBins;

/// Counts per bin.
#[derive(Debug)]
pub struct FlowLedger {
    interval: Duration,
    end: Instant,
    bins: Vec<BinCounts>,
    drained: Drained,
}

impl FlowLedger {
    /// Creates empty bins for the duration of a run.
    pub fn new(interval: Duration, duration: Duration) -> FlowLedger {
        let interval = if interval == Duration::ZERO { duration } else { interval };
        let bins = duration.0.div_ceil(interval.0.max(1)).max(1);
        FlowLedger {
            interval: Duration(interval.0.max(1)),
            end: Instant::ZERO + duration,
            bins: vec![BinCounts::default(); bins as usize],
            drained: Drained::default(),
        }
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

    /// Counts packets and payload bytes that arrived at this time. What arrives after the end of the run is counted apart,
    /// because it would raise the throughput of the last bin above the rate of the line.
    pub fn receive(&mut self, at: Instant, packets: u64, bytes: u64) {
        self.receive_in(self.bin(at), at, packets, bytes);
    }

    /// Counts an arrival, like [`receive`](FlowLedger::receive), in a bin that may be later than that of the time.
    pub fn receive_in(&mut self, bin: usize, at: Instant, packets: u64, bytes: u64) {
        if at >= self.end {
            self.drained.packets += packets;
            self.drained.bytes += bytes;
        } else {
            self.bins[bin].received += packets;
            self.bins[bin].received_bytes += bytes;
        }
    }

    /// Returns what arrived after the end of the run.
    pub fn drained(&self) -> Drained {
        self.drained
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
