//! Delay variation: between consecutive packets (IPDV, RFC 3393) and against the least delay
//! (PDV), with the statistics RFC 5481 recommends.
//!
//! Neither needs synchronised clocks, only clocks that run alike: a constant offset drops out
//! of both.

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Summary of a delay variation, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variation {
    /// Values it rests on.
    pub count: usize,
    /// The smallest.
    pub minimum: i64,
    /// Mean of the absolute values.
    pub mean_absolute: f64,
    /// Half of the values are at most this.
    pub median: i64,
    /// 95 % are at most this.
    pub p95: i64,
    /// 99 % are at most this.
    pub p99: i64,
    /// 99.9 % are at most this (RFC 5481 section 4.2; Y.1540's upper quantile).
    pub p999: i64,
    /// The largest.
    pub maximum: i64,
}

impl Variation {
    /// Summarise values; `None` without any.
    pub fn of(mut values: Vec<i64>) -> Option<Variation> {
        values.sort_unstable();
        let (&minimum, &maximum) = (values.first()?, values.last()?);
        let sum: f64 = values.iter().map(|value| value.unsigned_abs() as f64).sum();
        Some(Variation {
            count: values.len(),
            minimum,
            mean_absolute: sum / values.len() as f64,
            median: quantile(&values, 0.5),
            p95: quantile(&values, 0.95),
            p99: quantile(&values, 0.99),
            p999: quantile(&values, 0.999),
            maximum,
        })
    }
}

/// The smallest of sorted values that at least this share of them does not exceed (the
/// empirical quantile, RFC 2330 section 11.3).
///
/// Panics without values, or if the share lies outside [0, 1].
pub fn quantile<T: Copy>(sorted: &[T], share: f64) -> T {
    assert!((0.0..=1.0).contains(&share), "{share} is not a share");
    // A hair less, so that 0.95 of 20 is 19 whatever its last bit.
    let rank = libm::ceil(share * sorted.len() as f64 - 1e-9) as usize;
    sorted[rank.max(1) - 1]
}

/// IPDV of consecutive packets (RFC 3393 section 3, packets selected by their sequence
/// numbers): each delay less that of the packet before, where both arrived. `delays` are
/// one-way, nanoseconds, in sending order; `None` was lost.
pub fn inter_packet(delays: &[Option<i64>]) -> Vec<i64> {
    let pairs = delays.windows(2).filter_map(|pair| pair[0].zip(pair[1]));
    pairs.map(|(before, after)| after.saturating_sub(before)).collect()
}

/// PDV: each delay less the least one (RFC 5481 section 4.2).
pub fn packet_delay(delays: &[Option<i64>]) -> Vec<i64> {
    let arrived = || delays.iter().flatten().copied();
    let least = arrived().min().unwrap_or(0);
    arrived().map(|delay| delay.saturating_sub(least)).collect()
}

/// Smoothed interarrival jitter, nanoseconds (RFC 3550 section 6.4.1), for comparison with
/// what RTP applications report: J += (|D| − J) / 16 from packet to packet as received.
pub fn rtp_jitter(delays: &[Option<i64>]) -> f64 {
    let arrived: Vec<i64> = delays.iter().flatten().copied().collect();
    let differences = arrived.windows(2).map(|pair| pair[1].abs_diff(pair[0]) as f64);
    differences.fold(0.0, |jitter, difference| jitter + (difference - jitter) / 16.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variations_by_hand() {
        // RFC 5481's example form: a lost packet breaks both its pairs.
        let delays = [Some(10), Some(12), None, Some(11), Some(20), Some(13)];
        assert_eq!(inter_packet(&delays), [2, 9, -7]);
        assert_eq!(packet_delay(&delays), [0, 2, 1, 10, 3]);
        let ipdv = Variation::of(inter_packet(&delays)).unwrap();
        assert_eq!((ipdv.minimum, ipdv.median, ipdv.maximum, ipdv.mean_absolute), (-7, 2, 9, 6.0));
    }

    #[test]
    fn an_offset_of_the_clocks_drops_out() {
        let delays: Vec<Option<i64>> = (0..1000).map(|k| Some((k * 7919) % 1013)).collect();
        let shifted: Vec<Option<i64>> =
            delays.iter().map(|delay| delay.map(|delay| delay - 5_000_000)).collect();
        assert_eq!(inter_packet(&delays), inter_packet(&shifted));
        assert_eq!(packet_delay(&delays), packet_delay(&shifted));
        assert_eq!(rtp_jitter(&delays), rtp_jitter(&shifted));
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<u32> = (1..=1000).collect();
        let at = |share| quantile(&values, share);
        assert_eq!([at(0.0), at(0.5), at(0.95), at(0.999), at(1.0)], [1, 500, 950, 999, 1000]);
        assert_eq!(quantile(&[7], 0.99), 7);
    }

    #[test]
    fn nothing_varies_without_packets() {
        assert_eq!(Variation::of(inter_packet(&[Some(1), None, Some(2)])), None);
        assert!(packet_delay(&[None]).is_empty());
        assert_eq!(rtp_jitter(&[]), 0.0);
    }

    #[test]
    fn jitter_settles_at_the_mean_difference() {
        let delays: Vec<Option<i64>> = (0..1000).map(|k| Some(k % 2 * 320)).collect();
        assert!((rtp_jitter(&delays) - 320.0).abs() < 1e-9);
    }
}
