//! Lateness of a sender: which packets may still leave after their scheduled time.
//!
//! A sender that was stopped for a moment has a backlog of packets. Sent back to back, the backlog is a burst that the
//! traffic pattern does not contain, and the losses it causes would be attributed to the network. A sender therefore
//! skips packets that are too late, and counts them. Loss and delay are measured over the packets that left.

use crate::time::{Duration, Instant};

/// Lateness up to which a packet counts as on time: less than the timing error of a general-purpose kernel.
const TOLERANCE: Duration = Duration::from_micros(50);
/// Lateness up to which a packet is sent at all, if the gaps are shorter.
const BACKLOG: Duration = Duration::from_micros(250);

/// Limits of a sender's lateness. Both are at least one gap: a packet less than one gap late adds at most one packet
/// to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatenessLimits {
    on_time: Duration,
    max: Duration,
}

/// Treatment of a packet by its lateness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Sent on time.
    OnTime,
    /// Sent, but late: a loss may be caused by the burst it belongs to.
    Late,
    /// Too late, not sent.
    Skipped,
}

impl LatenessLimits {
    /// Returns the limits of a sender with this mean gap between packets.
    pub fn for_gap(gap: Duration) -> LatenessLimits {
        LatenessLimits { on_time: gap.max(TOLERANCE), max: gap.max(BACKLOG) }
    }

    /// Returns the maximum lateness of a packet that is sent.
    pub fn max(&self) -> Duration {
        self.max
    }

    /// Returns the treatment of a packet that is due at `due`.
    pub fn departure(&self, due: Instant, now: Instant) -> Departure {
        match now.since(due) {
            lateness if lateness <= self.on_time => Departure::OnTime,
            lateness if lateness <= self.max => Departure::Late,
            _ => Departure::Skipped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_at_least_one_gap() {
        let treatment = |gap_us, late_us| {
            let due = Instant(1_000_000_000);
            let now = due + Duration::from_micros(late_us);
            LatenessLimits::for_gap(Duration::from_micros(gap_us)).departure(due, now)
        };
        assert_eq!(
            [0, 50, 51, 250, 251].map(|late| treatment(10, late)),
            [Departure::OnTime, Departure::OnTime, Departure::Late, Departure::Late, Departure::Skipped]
        );
        assert_eq!([800, 801].map(|late| treatment(800, late)), [Departure::OnTime, Departure::Skipped]);
    }
}
