//! Travel times of a flow's packets: of the whole flow as histograms, of each bin in brief.

use super::ledger::Times;
use netstage_agent_api::results::Travel;
use netstage_core::time::Instant;

/// Follows travel times: one way, or there and back.
#[derive(Debug)]
pub struct TravelTimes {
    /// Packets that come before count for their bin only.
    settled: Instant,
    keep_bins: bool,
    travel: Times,
    variation: Times,
    /// Number and travel time of the newest packet.
    previous: Option<(u64, u64)>,
    /// Nanoseconds, with a fraction.
    jitter: f64,
    bin: Travel,
    bins: Vec<Travel>,
}

impl TravelTimes {
    /// None yet. Histograms take what comes from `settled` on; bins are kept for the result
    /// where asked for.
    pub fn new(settled: Instant, keep_bins: bool) -> TravelTimes {
        TravelTimes {
            settled,
            keep_bins,
            travel: Times::new(),
            variation: Times::new(),
            previous: None,
            jitter: 0.0,
            bin: Travel::default(),
            bins: Vec::new(),
        }
    }

    /// A packet's travel time.
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
            // RFC 3550 takes packets as they come, RFC 3393 those sent one after the other.
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

    /// A bin has ended.
    pub fn end_bin(&mut self) -> Travel {
        let ended = Travel { jitter_ns: self.jitter as u64, ..std::mem::take(&mut self.bin) };
        if self.keep_bins {
            self.bins.push(ended);
        }
        ended
    }

    /// The histograms of travel times and of their variation, and the bins.
    pub fn finish(self) -> (Times, Times, Vec<Travel>) {
        (self.travel, self.variation, self.bins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bin_tells_of_its_own_packets_and_the_jitter_so_far() {
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
        assert_eq!((travel.buckets().0, variation.buckets().0), (vec![(100, 1)], vec![]), "once settled");
        assert_eq!(bins.len(), 2);
    }
}
