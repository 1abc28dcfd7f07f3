//! Lateness of the tester: which packets may still leave after their scheduled time, and which results the lateness of a
//! thread leaves valid. All limits of lateness are here.
//!
//! A sender that was stopped for a moment has a backlog of packets. Sent back to back, the backlog is a burst that the
//! traffic pattern does not contain, and the losses it causes would be attributed to the network. A sender therefore
//! skips packets that are too late, and counts them. Loss and delay are measured over the packets that left.
//!
//! Emulated links and STAMP reflectors cannot skip packets. What they send late is counted, and judged like the late
//! packets of a sender.

use super::void_reason::{FaultTime, VoidReason};
use crate::time::{Duration, Instant};
use alloc::format;

/// Lateness up to which a packet counts as on time: less than the timing error of a general-purpose kernel.
const TOLERANCE: Duration = Duration::from_micros(50);
/// Lateness up to which a packet is sent at all, if the gaps are shorter.
const BACKLOG: Duration = Duration::from_micros(250);

/// Maximum share of a flow's packets that may be skipped, or be late on an emulated link. Beyond, its results are void.
pub const MAX_SHARE: f64 = 0.01;
/// Maximum error of a delay that the tester itself caused, in a trial that measures delays. It is also the lateness up to
/// which an emulated link is on time.
pub const MAX_DELAY_ERROR: Duration = Duration::from_millis(1);

/// Maximum lateness of an emulated link in a trial that measures delays. Delays have an interval if it exceeds
/// [`MAX_DELAY_ERROR`].
pub const MAX_LINK_LATENESS: Duration = Duration::from_millis(5);

/// Delay of a wake-up that is no stall.
const WAKE_UP: Duration = Duration::from_millis(2);
/// Share of the run, and length of one stall, beyond which the run is void. Below, the throughput of TCP is wrong by less.
const MAX_STALLED: f64 = 0.05;
const MAX_STALL: Duration = Duration::from_millis(200);

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

    /// Returns the maximum lateness of a packet that counts as on time.
    pub fn on_time(&self) -> Duration {
        self.on_time
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

/// Stalls of one thread: times in which it was due to run and did not, because its process was stopped or the processor
/// was busy.
#[derive(Debug, Default)]
pub struct Stalls {
    total: Duration,
    /// Longest stall, and the time at which it began.
    max: (Duration, Instant),
}

impl Stalls {
    /// Records that the thread, which was due at `due`, ran at `now`.
    pub fn record(&mut self, due: Instant, now: Instant) {
        let stall = now.since(due);
        if stall > WAKE_UP {
            self.total = self.total + stall;
            self.max = self.max.max((stall, due));
        }
    }

    /// Returns how long the thread `party` did not run, if this makes the results of a run of this duration void.
    pub fn void_reason(&self, party: &str, duration: Duration) -> Option<VoidReason> {
        let is_void =
            self.total.as_secs_f64() > MAX_STALLED * duration.as_secs_f64() || self.max.0 > MAX_STALL;
        let milliseconds = |span: Duration| span.0 as f64 / 1e6;
        is_void.then(|| {
            let fault = format!(
                "did not run for {:.0} of {:.0} ms, at most {:.0} ms",
                milliseconds(self.total),
                milliseconds(duration),
                milliseconds(self.max.0)
            );
            VoidReason::new(party, fault, FaultTime::From(self.max.1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

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

    #[test]
    fn a_stopped_thread_is_reported_with_time_and_length() {
        let mut stalls = Stalls::default();
        let at = |ms: u64| Instant(ms * 1_000_000);
        (5..1_000).step_by(5).for_each(|ms| stalls.record(at(ms), at(ms + 1)));
        assert_eq!(stalls.void_reason("a thread", Duration::from_secs(10)), None);
        stalls.record(at(1_005), at(1_305));
        let reason = stalls.void_reason("a thread", Duration::from_secs(10)).unwrap();
        assert_eq!(
            reason.to_string(),
            "a thread did not run for 300 of 10000 ms, at most 300 ms from 1.005 s on"
        );
    }

    #[test]
    fn many_short_stalls_are_as_bad_as_a_long_one() {
        let mut stalls = Stalls::default();
        (0..60).for_each(|k| stalls.record(Instant(k * 20_000_000), Instant(k * 20_000_000 + 10_000_000)));
        assert!(stalls.void_reason("a thread", Duration::from_secs(10)).is_some());
        assert!(stalls.void_reason("a thread", Duration::from_secs(20)).is_none());
    }
}
