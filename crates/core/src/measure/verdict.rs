//! Limit of a TCP transfer: window, loss, line, application or peer. Each cause has a ceiling, the highest
//! rate it allows. The rate of the transfer and the kernel's accounting of its waiting time show which
//! ceiling it reached.

use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Measurements of a transfer. Rates count TCP payload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Achieved payload rate.
    pub throughput: BitRate,
    /// Payload of a full segment, bytes.
    pub segment: u32,
    /// Mean round trip during the transfer.
    pub round_trip: Duration,
    /// Retransmission timeout for the PFTK formula; `None` for four round trips, at least 200 ms.
    pub retransmission_timeout: Option<Duration>,
    /// Largest window advertised by the receiver, bytes.
    pub receive_window: Option<u64>,
    /// Send buffer, bytes.
    pub send_buffer: Option<u64>,
    /// Loss events per segment; retransmitted over sent segments is an upper bound.
    pub loss: Option<f64>,
    /// Payload capacity of the line, as found by a plateau search.
    pub capacity: Option<BitRate>,
    /// Segments per ACK: 2 with delayed ACKs.
    pub segments_per_ack: f64,
    /// The kernel's accounting of waiting time.
    pub limited: Option<LimitedTimes>,
}

/// Duration of a transfer and its waiting times (Linux TCP_INFO).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitedTimes {
    /// Duration of the transfer.
    pub elapsed: Duration,
    /// Time with data outstanding (tcpi_busy_time).
    pub busy: Duration,
    /// Part of the busy time limited by the receive window (tcpi_rwnd_limited).
    pub receive_window: Duration,
    /// Part of the busy time limited by the send buffer (tcpi_sndbuf_limited).
    pub send_buffer: Duration,
}

/// Limit of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitCause {
    /// Receive window or send buffer, either of which limits the data in flight.
    Window,
    /// Packet loss, which keeps the congestion window small.
    Loss,
    /// Capacity of the line.
    Line,
    /// Sending application that offers no more data.
    Application,
    /// Receiving application that reads slowly: the advertised window falls below its full size.
    Peer,
    /// No measured cause explains the low rate.
    Unexplained,
}

/// Highest rate that a cause allows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Cause of the limit.
    pub cause: LimitCause,
    /// Source of the rate.
    pub formula: Formula,
    /// Payload bits per second.
    pub rate: f64,
}

/// Source of a ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Formula {
    /// Receive window divided by round trip (RFC 6349 section 3.3.1).
    ReceiveWindow,
    /// Send buffer divided by round trip (RFC 6349 section 3.3.1).
    SendBuffer,
    /// Formula of Mathis, Semke, Mahdavi and Ott 1997.
    Mathis,
    /// Formula of Padhye, Firoiu, Towsley and Kurose 1998.
    Pftk,
    /// Measured capacity.
    Capacity,
}

/// Result of the analysis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferVerdict {
    /// Limit of the transfer.
    pub cause: LimitCause,
    /// Throughput divided by the deciding ceiling: near 1 if a ceiling was decisive.
    pub reached: Option<f64>,
    /// Share of the transfer's time behind the verdict, if the kernel's accounting was decisive.
    pub share_of_time: Option<f64>,
    /// All ceilings, lowest first.
    pub ceilings: Vec<Ceiling>,
}

/// Returns the throughput of a transfer with loss p per segment, bits per second: (MSS / RTT) · √(3 / 2bp), b
/// segments per ACK. Accurate below about 2 % loss, without timeouts or window limits.
pub fn mathis(segment: u32, round_trip: Duration, loss: f64, segments_per_ack: f64) -> f64 {
    8.0 * f64::from(segment) / round_trip.as_secs_f64() * libm::sqrt(1.5 / (segments_per_ack * loss))
}

/// Returns the throughput including timeouts and a maximum window, bits per second (PFTK, equation 30 of the
/// SIGCOMM paper). `window` is in bytes.
pub fn pftk(
    segment: u32,
    round_trip: Duration,
    timeout: Duration,
    loss: f64,
    segments_per_ack: f64,
    window: Option<u64>,
) -> f64 {
    let (rtt, rto) = (round_trip.as_secs_f64(), timeout.as_secs_f64());
    let by_loss = rtt * libm::sqrt(2.0 * segments_per_ack * loss / 3.0);
    let by_timeout = rto
        * (3.0 * libm::sqrt(3.0 * segments_per_ack * loss / 8.0)).min(1.0)
        * loss
        * (1.0 + 32.0 * loss * loss);
    let segments_per_second = 1.0 / (by_loss + by_timeout);
    let rate = 8.0 * f64::from(segment) * segments_per_second;
    window.map_or(rate, |window| rate.min(8.0 * window as f64 / rtt))
}

impl Evidence {
    fn ceilings(&self) -> Vec<Ceiling> {
        let rtt = self.round_trip.as_secs_f64();
        let per_round_trip = |window: u64| 8.0 * window as f64 / rtt;
        let mut ceilings = Vec::new();
        let mut push = |cause, formula, rate: f64| ceilings.push(Ceiling { cause, formula, rate });
        if let Some(window) = self.receive_window {
            push(LimitCause::Window, Formula::ReceiveWindow, per_round_trip(window));
        }
        if let Some(buffer) = self.send_buffer {
            push(LimitCause::Window, Formula::SendBuffer, per_round_trip(buffer));
        }
        if let Some(loss) = self.loss.filter(|&loss| loss > 0.0) {
            let usual = Duration::from_secs_f64((4.0 * rtt).max(0.2));
            let timeout = self.retransmission_timeout.unwrap_or(usual);
            let (segment, b) = (self.segment, self.segments_per_ack);
            push(LimitCause::Loss, Formula::Mathis, mathis(segment, self.round_trip, loss, b));
            push(LimitCause::Loss, Formula::Pftk, pftk(segment, self.round_trip, timeout, loss, b, None));
        }
        if let Some(capacity) = self.capacity {
            push(LimitCause::Line, Formula::Capacity, capacity.as_f64());
        }
        ceilings.sort_by(|one, other| one.rate.total_cmp(&other.rate));
        ceilings
    }

    /// Returns the throughput divided by the ceiling of the receive window.
    fn window_use(&self) -> Option<f64> {
        let window = self.receive_window? as f64;
        Some(self.throughput.as_f64() * self.round_trip.as_secs_f64() / (8.0 * window))
    }
}

/// Share of a ceiling from which a transfer has reached it; headers, slow start and the inaccuracy of the
/// formulas take the rest.
const REACHED: f64 = 0.8;
/// Share of a ceiling from which it did not limit the transfer. The window grows by other rules than those of the
/// formulas (CUBIC), or the measured loss was not that of the transfer.
const EXCEEDED: f64 = 1.25;
/// Share of a loss ceiling from which a transfer has reached it; the loss formulas are accurate to about a
/// factor of two.
const REACHED_BY_LOSS: f64 = 0.5;
/// Share of its time above which a transfer was limited by one cause.
const DOMINANT: f64 = 0.5;

/// Determines the limit of a transfer. A full line comes first, since loss and full windows follow from it;
/// then the kernel's accounting; then the lowest ceiling that the transfer did not exceed, if it reached it.
///
/// Panics if the segment size or the round trip is zero.
pub fn judge(evidence: &Evidence) -> TransferVerdict {
    assert!(evidence.segment > 0 && evidence.round_trip > Duration::ZERO, "{evidence:?}");
    let ceilings = evidence.ceilings();
    let throughput = evidence.throughput.as_f64();
    let verdict = |cause, reached, share_of_time| TransferVerdict {
        cause,
        reached,
        share_of_time,
        ceilings: ceilings.clone(),
    };
    let line = ceilings.iter().find(|ceiling| ceiling.cause == LimitCause::Line);
    if let Some(reached) = line.map(|line| throughput / line.rate).filter(|&reached| reached >= 0.9) {
        return verdict(LimitCause::Line, Some(reached), None);
    }
    if let Some((cause, share)) = evidence.limited.and_then(|times| limit_by_time(evidence, times)) {
        return verdict(cause, evidence.window_use().filter(|_| cause == LimitCause::Window), Some(share));
    }
    let Some(lowest) = ceilings.iter().find(|ceiling| throughput < EXCEEDED * ceiling.rate) else {
        return verdict(LimitCause::Unexplained, None, None);
    };
    let reached = throughput / lowest.rate;
    let threshold = if lowest.cause == LimitCause::Loss { REACHED_BY_LOSS } else { REACHED };
    if reached >= threshold {
        return verdict(lowest.cause, Some(reached), None);
    }
    verdict(LimitCause::Unexplained, Some(reached), None)
}

/// Returns the cause that took most of the time by the kernel's accounting, and its share of the time.
fn limit_by_time(evidence: &Evidence, times: LimitedTimes) -> Option<(LimitCause, f64)> {
    let share = |part: Duration, whole: Duration| part.as_secs_f64() / whole.as_secs_f64();
    if times.elapsed == Duration::ZERO {
        return None;
    }
    let idle = 1.0 - share(times.busy, times.elapsed);
    if idle > DOMINANT {
        return Some((LimitCause::Application, idle));
    }
    let by_receiver = share(times.receive_window, times.elapsed);
    if by_receiver > DOMINANT {
        // If the application keeps up, the window stays fully open and one window passes per round trip.
        let open = evidence.window_use().is_none_or(|used| used >= DOMINANT);
        return Some((if open { LimitCause::Window } else { LimitCause::Peer }, by_receiver));
    }
    let by_sender = share(times.send_buffer, times.elapsed);
    (by_sender > DOMINANT).then_some((LimitCause::Window, by_sender))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a transfer over 100 Mbit/s and 100 ms with this throughput.
    fn reached(throughput: u64) -> Evidence {
        Evidence {
            throughput: BitRate(throughput),
            segment: 1460,
            round_trip: Duration::from_millis(100),
            retransmission_timeout: None,
            receive_window: Some(4 << 20),
            send_buffer: None,
            loss: Some(0.0),
            capacity: Some(BitRate(100_000_000)),
            segments_per_ack: 2.0,
            limited: None,
        }
    }

    fn times(busy: u64, receive_window: u64) -> Option<LimitedTimes> {
        Some(LimitedTimes {
            elapsed: Duration::from_secs(10),
            busy: Duration::from_secs(busy),
            receive_window: Duration::from_secs(receive_window),
            send_buffer: Duration::ZERO,
        })
    }

    #[test]
    fn window_limit_of_the_stage_paper() {
        // STAGE paper: 16,000 B at 100 ms allow 1.28 Mbit/s on a line of 2 Mbit/s.
        let evidence = Evidence {
            receive_window: Some(16_000),
            capacity: Some(BitRate(1_930_000)),
            ..reached(1_250_000)
        };
        let verdict = judge(&evidence);
        assert_eq!(verdict.cause, LimitCause::Window);
        assert!((verdict.ceilings[0].rate - 1_280_000.0).abs() < 1e-6);
        assert!((verdict.reached.unwrap() - 0.9766).abs() < 1e-3);
    }

    #[test]
    fn formulas_match_hand_calculation() {
        // 1460 B, 100 ms, 1 % loss, no delayed ACKs: 116,800 · √150.
        let rtt = Duration::from_millis(100);
        assert!((mathis(1460, rtt, 0.01, 1.0) - 116_800.0 * 150_f64.sqrt()).abs() < 1e-6);
        // PFTK at 1 % loss, b = 2, T0 = 1 s: 0.1·√(0.04/3) + 1·(3·√0.0075)·0.01·1.0032 s per segment.
        let per_segment = 0.1 * (0.04_f64 / 3.0).sqrt() + 3.0 * 0.0075_f64.sqrt() * 0.01 * 1.0032;
        let second = Duration::from_secs(1);
        assert!((pftk(1460, rtt, second, 0.01, 2.0, None) - 11_680.0 / per_segment).abs() < 1e-6);
        assert_eq!(pftk(1460, rtt, second, 1e-9, 2.0, Some(100_000)), 8e6);
    }

    #[test]
    fn each_cause_is_found() {
        assert_eq!(judge(&reached(95_000_000)).cause, LimitCause::Line);
        // A full line loses packets and fills windows, but remains the cause.
        let full = Evidence { loss: Some(0.01), limited: times(10, 9), ..reached(95_000_000) };
        assert_eq!(judge(&full).cause, LimitCause::Line);
        let lossy = Evidence { loss: Some(0.001), ..reached(2_800_000) };
        assert_eq!(judge(&lossy).cause, LimitCause::Loss);
        // A ceiling that was exceeded is no limit.
        let faster = Evidence { capacity: Some(BitRate(8_000_000)), ..lossy };
        let [exceeded, cubic] =
            [7_000_000, 6_000_000].map(|rate| judge(&Evidence { throughput: BitRate(rate), ..faster }));
        assert_eq!((exceeded.cause, cubic.cause), (LimitCause::Line, LimitCause::Unexplained));
        let idle = Evidence { limited: times(2, 0), ..reached(5_000_000) };
        assert_eq!((judge(&idle).cause, judge(&idle).share_of_time), (LimitCause::Application, Some(0.8)));
        let open = Evidence { receive_window: Some(200_000), limited: times(10, 9), ..reached(15_500_000) };
        assert_eq!(judge(&open).cause, LimitCause::Window);
        let closed = Evidence { limited: times(10, 9), ..reached(15_500_000) };
        assert_eq!(judge(&closed).cause, LimitCause::Peer);
        assert_eq!(judge(&reached(1_000_000)).cause, LimitCause::Unexplained);
        let nothing = Evidence { receive_window: None, capacity: None, ..reached(1_000_000) };
        assert_eq!(judge(&nothing).cause, LimitCause::Unexplained);
    }

    #[test]
    fn ceilings_are_sorted_lowest_first() {
        let verdict =
            judge(&Evidence { loss: Some(0.001), send_buffer: Some(1 << 16), ..reached(2_800_000) });
        assert!(verdict.ceilings.is_sorted_by(|one, other| one.rate <= other.rate));
        assert_eq!(verdict.ceilings.len(), 5);
    }
}
