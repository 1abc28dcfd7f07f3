//! TCP throughput testing by RFC 6349: path MTU, base round trip and bottleneck rate first,
//! then how a transfer compares with what they allow.

use super::trial::{FrameSize, Layer};
use crate::quantity::BitRate;
use crate::time::Duration;
use serde::{Deserialize, Serialize};

/// Search of the path MTU by probes that are answered or not (packetization layer path MTU
/// discovery, RFC 4821 section 7): it needs no ICMP.
///
/// Call [`PathMtu::probe`] for the size to try, send it with "don't fragment" set, and tell
/// [`PathMtu::answered`] or, after the driver's timeout, [`PathMtu::unanswered`]; until `probe`
/// answers `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathMtu {
    /// Largest size that came through.
    low: Option<u32>,
    /// Smallest size that did not, or one above the largest to try.
    high: u32,
    floor: u32,
    tried_top: bool,
    unanswered: u32,
}

/// A size is given up after so many probes without answer, since loss is not a small MTU.
const PROBES: u32 = 3;

impl PathMtu {
    /// Search IP packet sizes from `floor` (what every path carries: 68 in IPv4, 1280 in IPv6) to
    /// `top` (the interface's MTU). Panics unless 0 < floor ≤ top.
    pub fn new(floor: u32, top: u32) -> PathMtu {
        assert!(floor > 0 && floor <= top, "{floor} to {top}");
        PathMtu { low: None, high: top.saturating_add(1), floor, tried_top: false, unanswered: 0 }
    }

    /// Size of the next probe, bytes of IP packet; `None` at the end.
    pub fn probe(&self) -> Option<u32> {
        // The top first: most often it is the answer. Then whether anything comes through.
        match self.low {
            _ if !self.tried_top => Some(self.high - 1),
            None if self.high > self.floor => Some(self.floor),
            Some(low) if self.high - low > 1 => Some(low.midpoint(self.high)),
            _ => None,
        }
    }

    /// The probe came through. Panics if none was asked for.
    pub fn answered(&mut self) {
        self.low = Some(self.probe().expect("an answer follows a probe"));
        (self.tried_top, self.unanswered) = (true, 0);
    }

    /// The probe was not answered in time. Panics if none was asked for.
    pub fn unanswered(&mut self) {
        let size = self.probe().expect("a missing answer follows a probe");
        self.unanswered += 1;
        if self.unanswered == PROBES {
            self.high = size;
            (self.tried_top, self.unanswered) = (true, 0);
        }
    }

    /// The path MTU, bytes of IP packet: `None` if nothing came through, or not yet.
    pub fn result(&self) -> Option<u32> {
        self.low.filter(|_| self.probe().is_none())
    }
}

/// What the path was found to be, before the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Baseline {
    /// IP packet, bytes.
    pub path_mtu: u32,
    /// Least round trip without load.
    pub round_trip: Duration,
    /// Rate of the narrowest link, at the layer named.
    pub bottleneck: BitRate,
    /// What `bottleneck` counts.
    pub layer: Layer,
    /// Bytes a full packet takes on the bottleneck, at each layer; `payload` is the TCP segment.
    pub full_packet: FrameSize,
}

impl Baseline {
    /// Bandwidth-delay product, bytes (RFC 6349 section 3.3.1).
    pub fn bandwidth_delay_product(&self) -> f64 {
        self.bottleneck.as_f64() * self.round_trip.as_secs_f64() / 8.0
    }

    /// Largest TCP payload rate the bottleneck allows, bits per second: packets per second of
    /// full size times the segment (section 4.1.1).
    pub fn maximum_throughput(&self) -> f64 {
        let packets = super::trial::Load::of_bits(self.bottleneck, self.layer, self.full_packet);
        packets.bits_per_second(Layer::Payload, self.full_packet)
    }

    /// What a window of so many bytes allows, bits per second: at most the bottleneck's.
    pub fn window_throughput(&self, window: u64) -> f64 {
        (8.0 * window as f64 / self.round_trip.as_secs_f64()).min(self.maximum_throughput())
    }
}

/// What a transfer was measured to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// Payload bytes delivered.
    pub bytes: u64,
    /// From the first byte sent to the last one acknowledged.
    pub duration: Duration,
    /// Payload bytes sent, retransmissions included.
    pub transmitted: u64,
    /// Of these, retransmitted.
    pub retransmitted: u64,
    /// Mean round trip while it ran.
    pub round_trip: Duration,
    /// The smaller of receive window and send buffer, bytes, if known.
    pub window: Option<u64>,
}

/// The three metrics of RFC 6349, and what they rest on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TcpThroughput {
    /// Payload rate reached, bits per second.
    pub throughput: f64,
    /// Payload rate the bottleneck (and window, if known) allows, bits per second.
    pub ideal: f64,
    /// Actual over ideal transfer time: 1 is perfect (section 4.1.2).
    pub transfer_time_ratio: f64,
    /// Share of transmitted bytes that were not retransmissions, 0 to 1 (section 4.2).
    pub efficiency: f64,
    /// Growth of the round trip under load over the base, 0.3 for 30 % (section 4.3).
    pub buffer_delay: f64,
    /// Bytes that fill the path.
    pub bandwidth_delay_product: f64,
    /// The window does not fill the path: the ideal is the window's, not the line's.
    pub window_too_small: bool,
}

/// Compare a transfer with its path. Panics if a duration or `transmitted` is zero.
pub fn assess(baseline: &Baseline, transfer: &Transfer) -> TcpThroughput {
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

    /// Ethernet with an MTU of 1500 and TCP without options, as RFC 6349 reckons.
    const ETHERNET: FrameSize = FrameSize { payload: 1460, ip: 1500, link: 1518, line: 1538 };

    fn gigabit() -> Baseline {
        Baseline {
            path_mtu: 1500,
            round_trip: Duration::from_millis(25),
            bottleneck: BitRate(1_000_000_000),
            layer: Layer::Line,
            full_packet: ETHERNET,
        }
    }

    #[test]
    fn maximum_throughput_is_the_rfcs() {
        // Section 4.1.1: Gigabit Ethernet carries 81,274 frames per second, 949 Mbit/s of TCP.
        let maximum = gigabit().maximum_throughput();
        assert_eq!((maximum / (1460.0 * 8.0)) as u64, 81_274);
        assert_eq!((maximum / 1e6) as u64, 949);
    }

    #[test]
    fn bandwidth_delay_product_is_the_rfcs() {
        // Section 3.3.1: a T3 (44.21 Mbit/s) at 25 ms holds 1,105,000 bits, 138 kB.
        let t3 = Baseline { bottleneck: BitRate(44_210_000), ..gigabit() };
        assert_eq!(t3.bandwidth_delay_product(), 138_156.25);
    }

    #[test]
    fn metrics_are_those_of_the_rfcs_examples() {
        let transfer = Transfer {
            bytes: 100_000_000,
            duration: Duration::from_secs_f64(8e8 / 949_284_785.0 * 1.25),
            transmitted: 102_000,
            retransmitted: 2_000,
            round_trip: Duration::from_millis(32),
            window: None,
        };
        let found = assess(&gigabit(), &transfer);
        assert!((found.transfer_time_ratio - 1.25).abs() < 1e-6, "{found:?}");
        // Section 4.2: 2,000 of 102,000 bytes again make 98.03 %; section 4.3: 25 to 32 ms make 28 %.
        assert!((found.efficiency - 0.9803).abs() < 1e-4 && (found.buffer_delay - 0.28).abs() < 1e-12);
        assert!(!found.window_too_small);
    }

    #[test]
    fn a_small_window_is_named() {
        // STAGE: 16,000 B at 100 ms is 1.28 Mbit/s on any faster line.
        let path =
            Baseline { round_trip: Duration::from_millis(100), bottleneck: BitRate(2_000_000), ..gigabit() };
        let transfer = Transfer {
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

    /// Search on a path of this MTU that loses the probes of these indices.
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
    fn path_mtu_is_found() {
        assert_eq!(found(9000, &[]), (Some(9000), 1));
        for mtu in [68, 69, 1280, 1492, 1500, 8999] {
            assert_eq!(found(mtu, &[]).0, Some(mtu));
        }
        assert_eq!(found(10, &[]), (None, 6));
        // A lost probe is not a small MTU.
        assert_eq!(found(1500, &[3, 4, 9]).0, Some(1500));
    }
}
