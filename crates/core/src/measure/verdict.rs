//! What limits a TCP transfer: its window, the path's loss, the line, the application or the
//! peer. Each cause has a rate the transfer could not exceed; the transfer's own rate, and the
//! kernel's account of what it waited for, say which of them it met.

use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// What is known of a transfer. Rates count TCP payload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Payload bits per second it reached.
    pub throughput: BitRate,
    /// Payload of a full segment, bytes.
    pub segment: u32,
    /// Round trip while it ran, mean.
    pub round_trip: Duration,
    /// Retransmission timeout, for the PFTK formula; `None` for four round trips, at least 200 ms.
    pub retransmission_timeout: Option<Duration>,
    /// Largest window the receiver advertised, bytes.
    pub receive_window: Option<u64>,
    /// Send buffer, bytes.
    pub send_buffer: Option<u64>,
    /// Loss events per segment: retransmitted over sent is an upper bound of it.
    pub loss: Option<f64>,
    /// What the line carries in payload bits per second (a plateau search's capacity).
    pub capacity: Option<BitRate>,
    /// Segments per acknowledgement: 2 with delayed acknowledgements.
    pub segments_per_ack: f64,
    /// The kernel's account.
    pub limited: Option<LimitedTimes>,
}

/// How long the transfer lasted and what it waited for (Linux TCP_INFO).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitedTimes {
    /// Length of the transfer.
    pub elapsed: Duration,
    /// Time with data outstanding (tcpi_busy_time).
    pub busy: Duration,
    /// Of that, time stopped by the receiver's window (tcpi_rwnd_limited).
    pub receive_window: Duration,
    /// Of that, time stopped by the send buffer (tcpi_sndbuf_limited).
    pub send_buffer: Duration,
}

/// What a transfer cannot exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Receive window or send buffer, one of which is all that can be under way in a round trip.
    Window,
    /// Packet loss keeps the congestion window small.
    Loss,
    /// The line is full.
    Line,
    /// The sending application offers no more.
    Application,
    /// The receiving application reads slowly: the window closes below its full size.
    Peer,
    /// Nothing that was measured explains so low a rate.
    Unexplained,
}

/// The rate a cause allows, and by which formula.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// What sets it.
    pub cause: Cause,
    /// The formula.
    pub formula: Formula,
    /// Payload bits per second.
    pub rate: f64,
}

/// Where a ceiling comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Formula {
    /// Receive window over round trip (RFC 6349 section 3.3.1).
    ReceiveWindow,
    /// Send buffer over round trip (likewise).
    SendBuffer,
    /// Mathis, Semke, Mahdavi and Ott 1997.
    Mathis,
    /// Padhye, Firoiu, Towsley and Kurose 1998.
    Pftk,
    /// Measured.
    Capacity,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What limits the transfer.
    pub cause: Cause,
    /// Throughput over the ceiling that decided: near 1 where one did.
    pub reached: Option<f64>,
    /// Share of the transfer's time that decided, where the kernel's account did.
    pub share_of_time: Option<f64>,
    /// All ceilings, lowest first.
    pub ceilings: Vec<Ceiling>,
}

/// Throughput of a transfer under loss p per segment, bits per second: (MSS / RTT) · √(3 / 2bp),
/// b segments per acknowledgement. Good below about 2 % loss, without timeouts or window limits.
pub fn mathis(segment: u32, round_trip: Duration, loss: f64, segments_per_ack: f64) -> f64 {
    8.0 * f64::from(segment) / round_trip.as_secs_f64() * libm::sqrt(1.5 / (segments_per_ack * loss))
}

/// The same with timeouts and a largest window (PFTK, equation 30 of the SIGCOMM paper), bits
/// per second. `window` is in bytes.
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
            push(Cause::Window, Formula::ReceiveWindow, per_round_trip(window));
        }
        if let Some(buffer) = self.send_buffer {
            push(Cause::Window, Formula::SendBuffer, per_round_trip(buffer));
        }
        if let Some(loss) = self.loss.filter(|&loss| loss > 0.0) {
            let usual = Duration::from_secs_f64((4.0 * rtt).max(0.2));
            let timeout = self.retransmission_timeout.unwrap_or(usual);
            let (segment, b) = (self.segment, self.segments_per_ack);
            push(Cause::Loss, Formula::Mathis, mathis(segment, self.round_trip, loss, b));
            push(Cause::Loss, Formula::Pftk, pftk(segment, self.round_trip, timeout, loss, b, None));
        }
        if let Some(capacity) = self.capacity {
            push(Cause::Line, Formula::Capacity, capacity.as_f64());
        }
        ceilings.sort_by(|one, other| one.rate.total_cmp(&other.rate));
        ceilings
    }

    /// Throughput over the receive window's ceiling.
    fn window_use(&self) -> Option<f64> {
        let window = self.receive_window? as f64;
        Some(self.throughput.as_f64() * self.round_trip.as_secs_f64() / (8.0 * window))
    }
}

/// Throughput from this share of a ceiling on has met it: headers, slow start and the
/// formulas' own coarseness take the rest.
const MET: f64 = 0.8;
/// The loss formulas hold within a factor of two or so.
const MET_BY_LOSS: f64 = 0.5;
/// A transfer that spent more than this share of its time on one thing was limited by it.
const MOST: f64 = 0.5;

/// Judge a transfer. A full line is told first, since loss and full windows then follow from
/// it; then what the kernel accounts for; then the lowest ceiling, if the transfer met it.
///
/// Panics if segment or round trip is zero.
pub fn judge(evidence: &Evidence) -> Verdict {
    assert!(evidence.segment > 0 && evidence.round_trip > Duration::ZERO, "{evidence:?}");
    let ceilings = evidence.ceilings();
    let throughput = evidence.throughput.as_f64();
    let verdict =
        |cause, reached, share_of_time| Verdict { cause, reached, share_of_time, ceilings: ceilings.clone() };
    let line = ceilings.iter().find(|ceiling| ceiling.cause == Cause::Line);
    if let Some(reached) = line.map(|line| throughput / line.rate).filter(|&reached| reached >= 0.9) {
        return verdict(Cause::Line, Some(reached), None);
    }
    if let Some((cause, share)) = evidence.limited.and_then(|times| by_account(evidence, times)) {
        return verdict(cause, evidence.window_use().filter(|_| cause == Cause::Window), Some(share));
    }
    let Some(lowest) = ceilings.first() else {
        return verdict(Cause::Unexplained, None, None);
    };
    let reached = throughput / lowest.rate;
    let met = if lowest.cause == Cause::Loss { MET_BY_LOSS } else { MET };
    if reached >= met {
        return verdict(lowest.cause, Some(reached), None);
    }
    verdict(Cause::Unexplained, Some(reached), None)
}

/// What the kernel's account says, if one thing took most of the time.
fn by_account(evidence: &Evidence, times: LimitedTimes) -> Option<(Cause, f64)> {
    let share = |of: Duration, whole: Duration| of.as_secs_f64() / whole.as_secs_f64();
    if times.elapsed == Duration::ZERO {
        return None;
    }
    let idle = 1.0 - share(times.busy, times.elapsed);
    if idle > MOST {
        return Some((Cause::Application, idle));
    }
    let by_receiver = share(times.receive_window, times.elapsed);
    if by_receiver > MOST {
        // A reader that keeps up leaves the window open: then a window a round trip passes.
        let open = evidence.window_use().is_none_or(|used| used >= MOST);
        return Some((if open { Cause::Window } else { Cause::Peer }, by_receiver));
    }
    let by_sender = share(times.send_buffer, times.elapsed);
    (by_sender > MOST).then_some((Cause::Window, by_sender))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transfer over 100 Mbit/s and 100 ms that reached this.
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
    fn the_papers_window() {
        // STAGE: 16,000 B at 100 ms allow 1.28 Mbit/s on a line of 2 Mbit/s.
        let evidence = Evidence {
            receive_window: Some(16_000),
            capacity: Some(BitRate(1_930_000)),
            ..reached(1_250_000)
        };
        let verdict = judge(&evidence);
        assert_eq!(verdict.cause, Cause::Window);
        assert!((verdict.ceilings[0].rate - 1_280_000.0).abs() < 1e-6);
        assert!((verdict.reached.unwrap() - 0.9766).abs() < 1e-3);
    }

    #[test]
    fn formulas_by_hand() {
        // 1460 B, 100 ms, 1 %, no delayed acknowledgements: 116,800 · √150.
        let rtt = Duration::from_millis(100);
        assert!((mathis(1460, rtt, 0.01, 1.0) - 116_800.0 * 150_f64.sqrt()).abs() < 1e-6);
        // PFTK at 1 %, b = 2, T0 = 1 s: 0.1·√(0.04/3) + 1·(3·√0.0075)·0.01·1.0032 s a segment.
        let per_segment = 0.1 * (0.04_f64 / 3.0).sqrt() + 3.0 * 0.0075_f64.sqrt() * 0.01 * 1.0032;
        let second = Duration::from_secs(1);
        assert!((pftk(1460, rtt, second, 0.01, 2.0, None) - 11_680.0 / per_segment).abs() < 1e-6);
        assert_eq!(pftk(1460, rtt, second, 1e-9, 2.0, Some(100_000)), 8e6);
    }

    #[test]
    fn each_cause_is_found() {
        assert_eq!(judge(&reached(95_000_000)).cause, Cause::Line);
        // A full line loses packets and fills windows: it stays the cause.
        let full = Evidence { loss: Some(0.01), limited: times(10, 9), ..reached(95_000_000) };
        assert_eq!(judge(&full).cause, Cause::Line);
        let lossy = Evidence { loss: Some(0.001), ..reached(2_800_000) };
        assert_eq!(judge(&lossy).cause, Cause::Loss);
        let idle = Evidence { limited: times(2, 0), ..reached(5_000_000) };
        assert_eq!((judge(&idle).cause, judge(&idle).share_of_time), (Cause::Application, Some(0.8)));
        let open = Evidence { receive_window: Some(200_000), limited: times(10, 9), ..reached(15_500_000) };
        assert_eq!(judge(&open).cause, Cause::Window);
        let closed = Evidence { limited: times(10, 9), ..reached(15_500_000) };
        assert_eq!(judge(&closed).cause, Cause::Peer);
        assert_eq!(judge(&reached(1_000_000)).cause, Cause::Unexplained);
        let nothing = Evidence { receive_window: None, capacity: None, ..reached(1_000_000) };
        assert_eq!(judge(&nothing).cause, Cause::Unexplained);
    }

    #[test]
    fn ceilings_come_lowest_first() {
        let verdict =
            judge(&Evidence { loss: Some(0.001), send_buffer: Some(1 << 16), ..reached(2_800_000) });
        assert!(verdict.ceilings.is_sorted_by(|one, other| one.rate <= other.rate));
        assert_eq!(verdict.ceilings.len(), 5);
    }
}
