//! How far another host's clock is from ours, by asking it the time: the on-wire
//! arithmetic of NTP (RFC 5905, section 8), keeping the exchange of smallest round trip.
//!
//! A clock that does not tick equally fast is not our business: ask again.

use serde::{Deserialize, Serialize};

/// One question and its answer: the moments of both, nanoseconds, each on the clock of the
/// side that saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// We asked (our clock).
    pub asked_ns: u64,
    /// The question came in (the other clock).
    pub received_ns: u64,
    /// The answer left (the other clock).
    pub answered_ns: u64,
    /// We had the answer (our clock).
    pub returned_ns: u64,
}

/// What is added to our clock's time to get the other's, and by how much it may be wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOffset {
    /// The other clock less ours, nanoseconds.
    pub offset_ns: i64,
    /// Bound of the error, nanoseconds: half the round trip.
    pub error_ns: u64,
    /// Both are one clock: offset and error are exactly zero.
    pub same_clock: bool,
}

impl ClockOffset {
    /// The offset of a clock from itself.
    pub const SAME_CLOCK: ClockOffset = ClockOffset { offset_ns: 0, error_ns: 0, same_clock: true };

    /// Whether it does not contradict that both are one clock.
    pub fn may_be_none(self) -> bool {
        self.offset_ns.unsigned_abs() <= self.error_ns
    }

    /// The error where the offset was estimated again afterwards: with the drift in between.
    pub fn error_with_drift(self, after: Option<ClockOffset>) -> u64 {
        if self.same_clock {
            return 0;
        }
        let drift = after.map_or(0, |after| after.offset_ns.abs_diff(self.offset_ns));
        self.error_ns.max(after.map_or(0, |after| after.error_ns)).saturating_add(drift)
    }

    /// From delays there and back as both clocks have it, each the time of arrival less that of leaving: what
    /// the clocks are apart, adds to one and takes from the other. None where both together are less than nothing.
    pub fn of_delays(forward_ns: i64, backward_ns: i64) -> Option<ClockOffset> {
        let (forward, backward) = (i128::from(forward_ns), i128::from(backward_ns));
        Some(ClockOffset {
            offset_ns: i64::try_from((forward - backward) / 2).ok()?,
            error_ns: u64::try_from(forward + backward).ok()?.div_ceil(2),
            same_clock: false,
        })
    }

    /// The first clock less ours, and another less that: the other less ours.
    pub fn then(self, next: ClockOffset) -> ClockOffset {
        ClockOffset {
            offset_ns: self.offset_ns.saturating_add(next.offset_ns),
            error_ns: self.error_ns.saturating_add(next.error_ns),
            same_clock: self.same_clock && next.same_clock,
        }
    }

    /// Our clock less the other.
    pub fn reversed(self) -> ClockOffset {
        ClockOffset { offset_ns: self.offset_ns.saturating_neg(), ..self }
    }

    /// Whether both can be true.
    pub fn agrees_with(self, other: ClockOffset) -> bool {
        self.offset_ns.abs_diff(other.offset_ns) <= self.error_ns.saturating_add(other.error_ns)
    }

    /// The other clock's time from ours.
    pub fn theirs(self, ours_ns: u64) -> u64 {
        ours_ns.saturating_add_signed(self.offset_ns)
    }
}

/// Estimates an offset. Feed it exchanges; a late one does no harm, since only the fastest
/// counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct OffsetEstimator {
    best: Option<ClockOffset>,
    refused: u32,
}

impl OffsetEstimator {
    /// Takes an exchange. One whose moments cannot be, because a clock was set back
    /// in between or the other side lies, is refused.
    pub fn handle_exchange(&mut self, exchange: Exchange) {
        match offset_of(exchange) {
            Some(offset) if self.best.is_none_or(|best| offset.error_ns < best.error_ns) => {
                self.best = Some(offset);
            }
            Some(_) => {}
            None => self.refused += 1,
        }
    }

    /// The best estimate so far.
    pub fn offset(&self) -> Option<ClockOffset> {
        self.best
    }

    /// Exchanges refused.
    pub fn refused(&self) -> u32 {
        self.refused
    }
}

fn offset_of(exchange: Exchange) -> Option<ClockOffset> {
    let Exchange { asked_ns, received_ns, answered_ns, returned_ns } = exchange;
    if answered_ns < received_ns || returned_ns < asked_ns {
        return None;
    }
    let apart = |later: u64, earlier: u64| i64::try_from(i128::from(later) - i128::from(earlier)).ok();
    ClockOffset::of_delays(apart(received_ns, asked_ns)?, apart(returned_ns, answered_ns)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An exchange with a clock `ahead` of ours, with these delays out, there and home.
    fn exchange(ahead: i64, out: u64, there: u64, home: u64) -> Exchange {
        let asked_ns = 10_000_000_000;
        let theirs = |ours: u64| ours.saturating_add_signed(ahead);
        Exchange {
            asked_ns,
            received_ns: theirs(asked_ns + out),
            answered_ns: theirs(asked_ns + out + there),
            returned_ns: asked_ns + out + there + home,
        }
    }

    fn estimate(exchanges: &[Exchange]) -> OffsetEstimator {
        let mut estimator = OffsetEstimator::default();
        exchanges.iter().for_each(|&exchange| estimator.handle_exchange(exchange));
        estimator
    }

    #[test]
    fn equal_delays_give_the_exact_offset_whatever_the_other_side_takes() {
        for ahead in [0, 1, -1, 5_000_000_000, -5_000_000_000] {
            let offset = estimate(&[exchange(ahead, 40_000, 900_000, 40_000)]).offset().unwrap();
            assert_eq!(offset, ClockOffset { offset_ns: ahead, error_ns: 40_000, same_clock: false });
        }
    }

    #[test]
    fn an_outlier_does_no_harm() {
        let good = exchange(7_000, 50_000, 1_000, 50_000);
        let late = exchange(7_000, 50_000, 1_000, 300_000_000);
        let stepped = exchange(7_000_000_000, 60_000, 1_000, 60_000);
        for order in [[good, late, stepped], [late, stepped, good], [stepped, good, late]] {
            assert_eq!(estimate(&order).offset().unwrap().offset_ns, 7_000);
        }
    }

    #[test]
    fn the_true_offset_is_always_within_the_error() {
        for (out, home) in [(0, 100_001), (100_001, 0), (3, 4), (1_000_000, 10), (17, 170_000)] {
            let offset = estimate(&[exchange(-123_456, out, 5_000, home)]).offset().unwrap();
            assert!((offset.offset_ns + 123_456).unsigned_abs() <= offset.error_ns, "{offset:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = exchange(0, 10, 10, 10);
        let impossible = [
            Exchange { returned_ns: good.asked_ns - 1, ..good },
            Exchange { answered_ns: good.received_ns - 1, ..good },
            Exchange { answered_ns: good.received_ns + 1_000, ..good },
            Exchange { received_ns: u64::MAX, answered_ns: u64::MAX, ..good },
        ];
        let estimator = estimate(&impossible);
        assert_eq!((estimator.offset(), estimator.refused()), (None, 4));
    }

    #[test]
    fn a_time_of_theirs_never_wraps() {
        let offset = ClockOffset { offset_ns: -5, error_ns: 1, same_clock: false };
        assert_eq!((offset.theirs(3), offset.theirs(9)), (0, 4));
    }
}
