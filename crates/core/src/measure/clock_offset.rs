//! Offset of a remote host's clock, by the on-wire arithmetic of NTP (RFC 5905 section 8). The exchange with
//! the smallest round trip determines the estimate.
//!
//! Frequency errors are not corrected: repeat the estimate instead.

use serde::{Deserialize, Serialize};

/// Timestamps of one request and its response, nanoseconds, each taken on the clock of the host named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Departure of the request (local clock).
    pub request_sent_ns: u64,
    /// Arrival of the request (remote clock).
    pub request_received_ns: u64,
    /// Departure of the response (remote clock).
    pub response_sent_ns: u64,
    /// Arrival of the response (local clock).
    pub response_received_ns: u64,
}

/// Offset to add to local time to get remote time, and its error bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffset {
    /// Remote clock minus local clock, nanoseconds.
    pub offset_ns: i64,
    /// Error bound, nanoseconds: half the round trip.
    pub error_ns: u64,
    /// Both hosts share one clock, so offset and error are exactly zero.
    pub same_clock: bool,
}

impl ClockOffset {
    /// Offset of a clock from itself.
    pub const SAME_CLOCK: ClockOffset = ClockOffset { offset_ns: 0, error_ns: 0, same_clock: true };

    /// Returns whether the true offset may be zero.
    pub fn may_be_zero(self) -> bool {
        self.offset_ns.unsigned_abs() <= self.error_ns
    }

    /// Returns the error including the drift until a second estimate, `after`.
    pub fn error_with_drift(self, after: Option<ClockOffset>) -> u64 {
        if self.same_clock {
            return 0;
        }
        let drift = after.map_or(0, |after| after.offset_ns.abs_diff(self.offset_ns));
        self.error_ns.max(after.map_or(0, |after| after.error_ns)).saturating_add(drift)
    }

    /// Computes the offset from one-way delays, each the arrival time minus the departure time on different
    /// clocks. The clock offset adds to the forward delay and is subtracted from the backward delay. Returns
    /// `None` if the sum of both is negative.
    pub fn from_delays(forward_ns: i64, backward_ns: i64) -> Option<ClockOffset> {
        let (forward, backward) = (i128::from(forward_ns), i128::from(backward_ns));
        Some(ClockOffset {
            offset_ns: i64::try_from((forward - backward) / 2).ok()?,
            error_ns: u64::try_from(forward + backward).ok()?.div_ceil(2),
            same_clock: false,
        })
    }

    /// Chains offsets: with `self` from A to B and `next` from B to C, returns the offset from A to C.
    pub fn chain(self, next: ClockOffset) -> ClockOffset {
        ClockOffset {
            offset_ns: self.offset_ns.saturating_add(next.offset_ns),
            error_ns: self.error_ns.saturating_add(next.error_ns),
            same_clock: self.same_clock && next.same_clock,
        }
    }

    /// Returns the offset in the opposite direction: local clock minus remote clock.
    pub fn reversed(self) -> ClockOffset {
        ClockOffset { offset_ns: self.offset_ns.saturating_neg(), ..self }
    }

    /// Returns whether both estimates can be true.
    pub fn agrees_with(self, other: ClockOffset) -> bool {
        self.offset_ns.abs_diff(other.offset_ns) <= self.error_ns.saturating_add(other.error_ns)
    }

    /// Converts local time to remote time.
    pub fn to_remote(self, ours_ns: u64) -> u64 {
        ours_ns.saturating_add_signed(self.offset_ns)
    }
}

/// Estimates an offset from exchanges. Delayed exchanges do no harm, since only the fastest one is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct OffsetEstimator {
    best: Option<ClockOffset>,
    refused: u32,
}

impl OffsetEstimator {
    /// Adds an exchange. An exchange with impossible timestamps, from a clock set back in between or a faulty
    /// remote host, is rejected.
    pub fn handle_exchange(&mut self, exchange: Exchange) {
        match offset_of(exchange) {
            Some(offset) if self.best.is_none_or(|best| offset.error_ns < best.error_ns) => {
                self.best = Some(offset);
            }
            Some(_) => {}
            None => self.refused += 1,
        }
    }

    /// Returns the best estimate so far.
    pub fn offset(&self) -> Option<ClockOffset> {
        self.best
    }

    /// Returns the number of exchanges rejected.
    pub fn rejected(&self) -> u32 {
        self.refused
    }
}

fn offset_of(exchange: Exchange) -> Option<ClockOffset> {
    let Exchange {
        request_sent_ns: asked_ns,
        request_received_ns: received_ns,
        response_sent_ns: answered_ns,
        response_received_ns: returned_ns,
    } = exchange;
    if answered_ns < received_ns || returned_ns < asked_ns {
        return None;
    }
    let difference = |later: u64, earlier: u64| i64::try_from(i128::from(later) - i128::from(earlier)).ok();
    ClockOffset::from_delays(difference(received_ns, asked_ns)?, difference(returned_ns, answered_ns)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an exchange with a clock `offset` ahead of the local one, and these delays: forward, at the remote
    /// host, and backward.
    fn exchange(offset: i64, forward: u64, remote: u64, backward: u64) -> Exchange {
        let asked_ns = 10_000_000_000;
        let remote_time = |local: u64| local.saturating_add_signed(offset);
        Exchange {
            request_sent_ns: asked_ns,
            request_received_ns: remote_time(asked_ns + forward),
            response_sent_ns: remote_time(asked_ns + forward + remote),
            response_received_ns: asked_ns + forward + remote + backward,
        }
    }

    fn estimate(exchanges: &[Exchange]) -> OffsetEstimator {
        let mut estimator = OffsetEstimator::default();
        exchanges.iter().for_each(|&exchange| estimator.handle_exchange(exchange));
        estimator
    }

    #[test]
    fn equal_delays_give_the_exact_offset_for_any_processing_time() {
        for ahead in [0, 1, -1, 5_000_000_000, -5_000_000_000] {
            let offset = estimate(&[exchange(ahead, 40_000, 900_000, 40_000)]).offset().unwrap();
            assert_eq!(offset, ClockOffset { offset_ns: ahead, error_ns: 40_000, same_clock: false });
        }
    }

    #[test]
    fn slow_exchanges_do_not_change_the_estimate() {
        let good = exchange(7_000, 50_000, 1_000, 50_000);
        let late = exchange(7_000, 50_000, 1_000, 300_000_000);
        let stepped = exchange(7_000_000_000, 60_000, 1_000, 60_000);
        for order in [[good, late, stepped], [late, stepped, good], [stepped, good, late]] {
            assert_eq!(estimate(&order).offset().unwrap().offset_ns, 7_000);
        }
    }

    #[test]
    fn true_offset_is_within_the_error_bound() {
        for (out, home) in [(0, 100_001), (100_001, 0), (3, 4), (1_000_000, 10), (17, 170_000)] {
            let offset = estimate(&[exchange(-123_456, out, 5_000, home)]).offset().unwrap();
            assert!((offset.offset_ns + 123_456).unsigned_abs() <= offset.error_ns, "{offset:?}");
        }
    }

    #[test]
    fn impossible_exchanges_are_rejected() {
        let good = exchange(0, 10, 10, 10);
        let impossible = [
            Exchange { response_received_ns: good.request_sent_ns - 1, ..good },
            Exchange { response_sent_ns: good.request_received_ns - 1, ..good },
            Exchange { response_sent_ns: good.request_received_ns + 1_000, ..good },
            Exchange { request_received_ns: u64::MAX, response_sent_ns: u64::MAX, ..good },
        ];
        let estimator = estimate(&impossible);
        assert_eq!((estimator.offset(), estimator.rejected()), (None, 4));
    }

    #[test]
    fn converted_time_saturates_at_zero() {
        let offset = ClockOffset { offset_ns: -5, error_ns: 1, same_clock: false };
        assert_eq!((offset.to_remote(3), offset.to_remote(9)), (0, 4));
    }
}
