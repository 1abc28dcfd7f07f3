//! Travel times of a flow's packets: histograms of the flow, and a summary of each bin.

use netstage_agent_api::results::Travel;
use netstage_core::measure::Histogram;
use netstage_core::time::Instant;

/// Travel times of packets: one-way or round-trip.
#[derive(Debug)]
pub struct TravelTimes {
    /// End of the warm-up. Earlier packets count only in their bins.
    settled: Instant,
    keep_bins: bool,
    travel: Histogram,
    variation: Histogram,
    /// Number and travel time of the newest packet.
    previous: Option<(u64, u64)>,
    /// Smoothed jitter in nanoseconds (RFC 3550).
    jitter: f64,
    bin: Travel,
    bins: Vec<Travel>,
}

impl TravelTimes {
    /// Creates empty travel times. Histograms include packets from `settled` on. With `keep_bins`, the result includes
    /// the bins.
    pub fn new(settled: Instant, keep_bins: bool) -> TravelTimes {
        TravelTimes {
            settled,
            keep_bins,
            travel: Histogram::default(),
            variation: Histogram::default(),
            previous: None,
            jitter: 0.0,
            bin: Travel::default(),
            bins: Vec::new(),
        }
    }

    /// Records the travel time of a packet.
    pub fn record(&mut self, at: Instant, number: u64, travel_ns: u64) {
        let settled = at >= self.settled;
        let bin = &mut self.bin;
        bin.min_ns = if bin.count == 0 { travel_ns } else { bin.min_ns.min(travel_ns) };
        bin.max_ns = bin.max_ns.max(travel_ns);
        bin.count += 1;
        bin.sum_ns = bin.sum_ns.saturating_add(travel_ns);
        if settled {
            self.travel.record(travel_ns);
        }
        if let Some((previous_number, previous)) = self.previous {
            let difference = travel_ns.abs_diff(previous);
            // RFC 3550 compares packets in order of arrival, RFC 3393 packets sent in succession.
            self.jitter += (difference as f64 - self.jitter) / 16.0;
            if number == previous_number + 1 {
                bin.variation_count += 1;
                bin.variation_sum_ns = bin.variation_sum_ns.saturating_add(difference);
                if settled {
                    self.variation.record(difference);
                }
            }
        }
        self.previous = Some((number, travel_ns));
    }

    /// Ends a bin and returns its summary.
    pub fn end_bin(&mut self) -> Travel {
        let bin = Travel { jitter_ns: self.jitter as u64, ..std::mem::take(&mut self.bin) };
        if self.keep_bins {
            self.bins.push(bin);
        }
        bin
    }

    /// Returns the histograms of travel times and of their variation, and the bins.
    pub fn finish(self) -> (Histogram, Histogram, Vec<Travel>) {
        (self.travel, self.variation, self.bins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netstage_agent_api::results::Buckets;

    #[test]
    fn a_bin_summarizes_its_packets_and_the_jitter_at_its_end() {
        let mut times = TravelTimes::new(Instant(10), true);
        // Number 2 is missing: no variation between 1 and 3, as RFC 3393 pairs packets.
        for (at, number, travel) in [(0, 0, 100), (5, 1, 260), (12, 3, 100)] {
            times.record(Instant(at), number, travel);
        }
        let bin = times.end_bin();
        assert_eq!((bin.count, bin.sum_ns, bin.min_ns, bin.max_ns), (3, 460, 100, 260));
        assert_eq!((bin.variation_count, bin.variation_sum_ns), (1, 160));
        // 160 / 16 = 10, then 10 + (160 − 10) / 16.
        assert_eq!(bin.jitter_ns, 19);
        assert_eq!(times.end_bin().count, 0);
        let (travel, variation, bins) = times.finish();
        assert_eq!(
            (Buckets::from(&travel).0, Buckets::from(&variation).0),
            (vec![(100, 1)], vec![]),
            "only after the warm-up"
        );
        assert_eq!(bins.len(), 2);
    }
}
