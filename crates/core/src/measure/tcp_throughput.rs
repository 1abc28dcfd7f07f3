//! TCP throughput testing by RFC 6349: measures path MTU, base round trip and bottleneck rate, then compares
//! a transfer with what they allow.

use super::trial::{CountedLayer, FrameSize};
use crate::quantity::BitRate;
use crate::time::Duration;
use serde::{Deserialize, Serialize};

/// Search for the path MTU by probes that are answered or not (packetization layer path MTU discovery, RFC
/// 4821 section 7). Needs no ICMP.
///
/// Call [`PathMtu::probe`] for the size to try and send it with "don't fragment" set. Then call
/// [`PathMtu::answered`], or [`PathMtu::unanswered`] after the driver's timeout. Repeat until `probe` returns
/// `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// Largest size that was answered.
    low: Option<u32>,
    /// Smallest size given up, or one above the largest to try.
    high: u32,
    floor: u32,
    tried_top: bool,
    unanswered: u32,
}

/// Number of unanswered probes after which a size is given up: a single loss does not mean a small MTU.
const PROBES: u32 = 3;

impl PathMtu {
    /// Creates a search over IP packet sizes from `floor` (supported by every path: 68 for IPv4, 1280 for
    /// IPv6) to `top` (the interface MTU). Panics unless 0 < `floor` ≤ `top`.
    pub fn new(floor: u32, top: u32) -> PathMtu {
        assert!(floor > 0 && floor <= top, "{floor} to {top}");
        PathMtu { low: None, high: top.saturating_add(1), floor, tried_top: false, unanswered: 0 }
    }

    /// Returns the size of the next probe, bytes of IP packet; `None` at the end.
    pub fn probe(&self) -> Option<u32> {
        // First the top, the most frequent result, then the floor, to learn whether any probe is answered.
        match self.low {
            _ if !self.tried_top => Some(self.high - 1),
            None if self.high > self.floor => Some(self.floor),
            Some(low) if self.high - low > 1 => Some(low.midpoint(self.high)),
            _ => None,
        }
    }

    /// Records an answer to the proposed probe. Panics if no probe was proposed.
    pub fn answered(&mut self) {
        self.low = Some(self.probe().expect("an answer is recorded after a probe"));
        (self.tried_top, self.unanswered) = (true, 0);
    }

    /// Records a timeout of the proposed probe. Panics if no probe was proposed.
    pub fn unanswered(&mut self) {
        let size = self.probe().expect("a timeout is recorded after a probe");
        self.unanswered += 1;
        if self.unanswered == PROBES {
            self.high = size;
            (self.tried_top, self.unanswered) = (true, 0);
        }
    }

    /// Returns the path MTU, bytes of IP packet; `None` before the end of the search or if no probe was
    /// answered.
    pub fn result(&self) -> Option<u32> {
        self.low.filter(|_| self.probe().is_none())
    }
}

/// Properties of the path measured before the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// Path MTU, bytes of IP packet.
    pub path_mtu: u32,
    /// Minimum round trip without load.
    pub round_trip: Duration,
    /// Rate of the bottleneck, counted at `layer`.
    pub bottleneck: BitRate,
    /// Layer at which `bottleneck` counts bytes.
    pub layer: CountedLayer,
    /// Bytes of a full packet at each layer of the bottleneck; `payload` is the TCP segment.
    pub full_packet: FrameSize,
}

impl Baseline {
    /// Returns the bandwidth-delay product, bytes (RFC 6349 section 3.3.1).
    pub fn bandwidth_delay_product(&self) -> f64 {
        self.bottleneck.as_f64() * self.round_trip.as_secs_f64() / 8.0
    }

    /// Returns the maximum TCP payload rate of the bottleneck, bits per second: full-size packets per second
    /// times the segment size (section 4.1.1).
    pub fn maximum_throughput(&self) -> f64 {
        let packets = super::trial::OfferedLoad::from_bit_rate(self.bottleneck, self.layer, self.full_packet);
        packets.bits_per_second(CountedLayer::Payload, self.full_packet)
    }

    /// Returns the maximum payload rate with a window of `window` bytes, bits per second, limited by the
    /// bottleneck.
    pub fn window_throughput(&self, window: u64) -> f64 {
        (8.0 * window as f64 / self.round_trip.as_secs_f64()).min(self.maximum_throughput())
    }
}

/// Measurements of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferMeasurement {
    /// Payload bytes delivered.
    pub bytes: u64,
    /// From the first byte sent to the last one acknowledged.
    pub duration: Duration,
    /// Payload bytes sent, including retransmissions.
    pub transmitted: u64,
    /// Payload bytes retransmitted.
    pub retransmitted: u64,
    /// Mean round trip during the transfer.
    pub round_trip: Duration,
    /// Smaller of receive window and send buffer, bytes, if known.
    pub window: Option<u64>,
}

/// The three metrics of RFC 6349 and the values they are based on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TcpThroughput {
    /// Achieved payload rate, bits per second.
    pub throughput: f64,
    /// Ideal payload rate, bits per second: the limit set by the bottleneck and, if known, the window.
    pub ideal: f64,
    /// Actual transfer time divided by ideal transfer time: 1 is perfect (section 4.1.2).
    pub transfer_time_ratio: f64,
    /// Share of transmitted bytes that were not retransmissions, 0 to 1 (section 4.2).
    pub efficiency: f64,
    /// Growth of the round trip under load relative to the base, e.g. 0.3 for 30 % (section 4.3).
    pub buffer_delay: f64,
    /// Bandwidth-delay product, bytes.
    pub bandwidth_delay_product: f64,
    /// True if the window is smaller than the bandwidth-delay product, so that the ideal rate is limited by
    /// the window and not by the line.
    pub window_too_small: bool,
}

/// Compares a transfer with its path. Panics if a duration or `transmitted` is zero.
pub fn assess(baseline: &Baseline, transfer: &TransferMeasurement) -> TcpThroughput {
    assert!(transfer.duration > Duration::ZERO && baseline.round_trip > Duration::ZERO);
    assert!(transfer.transmitted > 0, "{transfer:?}");
    let maximum = baseline.maximum_throughput();
    let ideal = transfer.window.map_or(maximum, |window| baseline.window_throughput(window));
    let throughput = 8.0 * transfer.bytes as f64 / transfer.duration.as_secs_f64();
    let base = baseline.round_trip.as_secs_f64();
    TcpThroughput {
        throughput,
        ideal,
        transfer_time_ratio: ideal / throughput,
        efficiency: 1.0 - transfer.retransmitted as f64 / transfer.transmitted as f64,
        buffer_delay: (transfer.round_trip.as_secs_f64() - base) / base,
        bandwidth_delay_product: baseline.bandwidth_delay_product(),
        window_too_small: transfer
            .window
            .is_some_and(|window| (window as f64) < baseline.bandwidth_delay_product()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet with an MTU of 1500 and TCP without options, as in RFC 6349.
    const ETHERNET: FrameSize = FrameSize { payload: 1460, ip: 1500, link: 1518, line: 1538 };

    fn gigabit() -> Baseline {
        Baseline {
            path_mtu: 1500,
            round_trip: Duration::from_millis(25),
            bottleneck: BitRate(1_000_000_000),
            layer: CountedLayer::Line,
            full_packet: ETHERNET,
        }
    }

    #[test]
    fn maximum_throughput_matches_the_rfc() {
        // Section 4.1.1: Gigabit Ethernet carries 81,274 frames per second, or 949 Mbit/s of TCP payload.
        let maximum = gigabit().maximum_throughput();
        assert_eq!((maximum / (1460.0 * 8.0)) as u64, 81_274);
        assert_eq!((maximum / 1e6) as u64, 949);
    }

    #[test]
    fn bandwidth_delay_product_matches_the_rfc() {
        // Section 3.3.1: the bandwidth-delay product of a T3 (44.21 Mbit/s) at 25 ms is 1,105,000 bits, or
        // 138 kB.
        let t3 = Baseline { bottleneck: BitRate(44_210_000), ..gigabit() };
        assert_eq!(t3.bandwidth_delay_product(), 138_156.25);
    }

    #[test]
    fn metrics_match_the_examples_of_the_rfc() {
        let transfer = TransferMeasurement {
            bytes: 100_000_000,
            duration: Duration::from_secs_f64(8e8 / 949_284_785.0 * 1.25),
            transmitted: 102_000,
            retransmitted: 2_000,
            round_trip: Duration::from_millis(32),
            window: None,
        };
        let found = assess(&gigabit(), &transfer);
        assert!((found.transfer_time_ratio - 1.25).abs() < 1e-6, "{found:?}");
        // Section 4.2: 2,000 of 102,000 bytes retransmitted give 98.03 %. Section 4.3: 25 ms growing to 32 ms
        // gives 28 %.
        assert!((found.efficiency - 0.9803).abs() < 1e-4 && (found.buffer_delay - 0.28).abs() < 1e-12);
        assert!(!found.window_too_small);
    }

    #[test]
    fn too_small_window_is_reported() {
        // STAGE paper: 16,000 B at 100 ms allow 1.28 Mbit/s on any faster line.
        let path =
            Baseline { round_trip: Duration::from_millis(100), bottleneck: BitRate(2_000_000), ..gigabit() };
        let transfer = TransferMeasurement {
            bytes: 3_000_000,
            duration: Duration::from_secs(19),
            transmitted: 3_000_000,
            retransmitted: 0,
            round_trip: Duration::from_millis(100),
            window: Some(16_000),
        };
        let found = assess(&path, &transfer);
        assert!((found.ideal - 1_280_000.0).abs() < 1e-6 && found.window_too_small);
        assert_eq!(found.buffer_delay, 0.0);
    }

    /// Runs the search on a path with this MTU that loses the probes with these indices.
    fn found(mtu: u32, lost: &[u32]) -> (Option<u32>, u32) {
        let (mut search, mut probes) = (PathMtu::new(68, 9000), 0);
        while let Some(size) = search.probe() {
            if size <= mtu && !lost.contains(&probes) {
                search.answered()
            } else {
                search.unanswered()
            }
            probes += 1;
        }
        (search.result(), probes)
    }

    #[test]
    fn search_finds_the_path_mtu() {
        assert_eq!(found(9000, &[]), (Some(9000), 1));
        for mtu in [68, 69, 1280, 1492, 1500, 8999] {
            assert_eq!(found(mtu, &[]).0, Some(mtu));
        }
        assert_eq!(found(10, &[]), (None, 6));
        // A lost probe is not taken for a small MTU.
        assert_eq!(found(1500, &[3, 4, 9]).0, Some(1500));
    }
}
