//! Statistics of a sender's schedule: packets as requested by the pattern, and as sent.

use netstage_agent_api::results::{Buckets, Schedule};
use netstage_core::measure::Histogram;
use netstage_core::measure::lateness::{Departure, LatenessLimits};
use netstage_core::time::{Duration, Instant};

/// Relative rate error above which a warning is given.
const RATE_TOLERANCE: f64 = 0.001;
/// 99th percentile of lateness above which a warning is given, or maximum with too few packets for the percentile.
const LATE_TOLERANCE_NS: u64 = 10_000_000;

/// Statistics of a sender's packets.
#[derive(Debug)]
pub struct ScheduleStatistics {
    requested: ScheduleTally,
    sent: ScheduleTally,
    gaps_requested: u64,
    /// Gaps within 5 % of the requested gap.
    accurate_gaps: u64,
    late: Histogram,
    gaps: Histogram,
    previous: Option<(Instant, Instant)>,
    limits: LatenessLimits,
    skipped: u64,
    late_packets: u64,
    /// Maximum time between the timestamp of a packet and its departure.
    held: Duration,
    /// Maximum lateness of a packet, sent or not, and its scheduled time.
    stall: (Duration, Instant),
}

/// Packets and bytes, and the times of the first and last packet.
#[derive(Debug, Default)]
struct ScheduleTally {
    packets: u64,
    bytes: u64,
    first: Option<Instant>,
    last: Instant,
    last_bytes: u64,
}

impl ScheduleStatistics {
    /// Creates empty statistics of a sender with this mean gap between calls.
    pub fn new(gap: Duration) -> ScheduleStatistics {
        ScheduleStatistics {
            requested: ScheduleTally::default(),
            sent: ScheduleTally::default(),
            gaps_requested: 0,
            accurate_gaps: 0,
            late: Histogram::default(),
            gaps: Histogram::default(),
            previous: None,
            limits: LatenessLimits::for_gap(gap),
            skipped: 0,
            late_packets: 0,
            held: Duration::ZERO,
            stall: (Duration::ZERO, Instant::ZERO),
        }
    }

    /// Returns whether `packets` packets due at `due` may still be sent at `now`. Otherwise they are counted as skipped.
    pub fn admit(&mut self, due: Instant, now: Instant, packets: u64) -> bool {
        let departure = self.limits.departure(due, now);
        if departure == Departure::Skipped {
            self.record_skipped(due, now, packets);
            return false;
        }
        self.record_stall(due, now);
        self.late_packets += if departure == Departure::Late { packets } else { 0 };
        true
    }

    /// Records a packet that is sent however late it is.
    pub fn record_late(&mut self, due: Instant, now: Instant) {
        self.record_stall(due, now);
        self.late_packets += u64::from(self.limits.departure(due, now) != Departure::OnTime);
    }

    /// Records that the pattern requests a packet at `due`.
    pub fn record_due(&mut self, due: Instant, bytes: u64) {
        self.requested.add(due, bytes);
    }

    /// Records that the packet due at `due` was sent.
    pub fn record_sent(&mut self, due: Instant, at: Instant, bytes: u64) {
        self.sent.add(at, bytes);
        self.late.record(at.since(due).0);
        if let Some((previous_due, previous_at)) = self.previous {
            let (requested, actual) = (due.since(previous_due).0, at.since(previous_at).0);
            self.gaps.record(actual);
            if requested > 0 {
                self.gaps_requested += 1;
                self.accurate_gaps += u64::from(actual.abs_diff(requested) <= requested / 20);
            }
        }
        self.previous = Some((due, at));
    }

    /// Records that the packet due at `due` left at `at`, after its timestamp. The thread may have been stopped between
    /// the two: the packet is then late, and its delay contains the stop.
    pub fn record_held(&mut self, due: Instant, stamped: Instant, at: Instant) {
        self.held = self.held.max(at.since(stamped));
        self.record_stall(due, at);
        let is_on_time = |now| self.limits.departure(due, now) == Departure::OnTime;
        self.late_packets += u64::from(is_on_time(stamped) && !is_on_time(at));
    }

    /// Returns whether a packet due at `due` must no longer be sent.
    pub fn is_too_late(&self, due: Instant, now: Instant) -> bool {
        now.since(due) > self.limits.max()
    }

    /// Counts packets due at `due` that are not sent.
    pub fn record_skipped(&mut self, due: Instant, now: Instant, packets: u64) {
        self.record_stall(due, now);
        self.skipped += packets;
    }

    fn record_stall(&mut self, due: Instant, now: Instant) {
        let lateness = now.since(due);
        if lateness > self.stall.0 {
            self.stall = (lateness, due);
        }
    }

    /// Returns the summary for the result.
    pub fn schedule(&self) -> Schedule {
        let percentile = |q| self.late.estimate(q).map(|estimate| estimate.value);
        let share = |part: u64, whole: u64| if whole > 0 { part as f64 / whole as f64 } else { 1.0 };
        Schedule {
            requested: self.requested.packets,
            sent: self.sent.packets,
            rate_error: self.rate_error(),
            gaps_within_5_percent: share(self.accurate_gaps, self.gaps_requested),
            late_ns: (percentile(0.5), percentile(0.99), self.late.quantile(1.0).unwrap_or(0)),
            skipped: self.skipped,
            late: self.late_packets,
            held_ns: self.held.0,
            stall_ns: (self.stall.0.0, self.stall.1.0),
            spun: None,
        }
    }

    /// Returns a warning if the sender did not keep its schedule.
    pub fn warning(&self) -> Option<String> {
        let schedule = self.schedule();
        let (_, p99, max) = schedule.late_ns;
        let (name, lateness) = p99.map_or(("maximum", max), |p99| ("99th percentile", p99));
        let is_off_schedule = schedule.rate_error.abs() > RATE_TOLERANCE
            && self.requested.packets > 1
            && schedule.sent < schedule.requested
            || lateness > LATE_TOLERANCE_NS;
        is_off_schedule.then(|| {
            format!(
                "the sender did not keep its schedule: {} of {} packets sent, rate error {:+.2} %, {name} of \
                 lateness {:.1} ms",
                schedule.sent,
                schedule.requested,
                schedule.rate_error * 100.0,
                lateness as f64 / 1e6
            )
        })
    }

    /// Returns the gaps between sent packets.
    pub fn gaps(&self) -> Buckets {
        (&self.gaps).into()
    }

    fn rate_error(&self) -> f64 {
        match (self.sent.rate(), self.requested.rate()) {
            (Some(sent), Some(requested)) => sent / requested - 1.0,
            _ if self.requested.packets == self.sent.packets => 0.0,
            _ => self.sent.bytes as f64 / self.requested.bytes.max(1) as f64 - 1.0,
        }
    }
}

impl ScheduleTally {
    fn add(&mut self, at: Instant, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
        self.first.get_or_insert(at);
        self.last = at;
        self.last_bytes = bytes;
    }

    /// Returns the rate from the first to the last packet in bytes per nanosecond. The last packet's bytes do not
    /// count.
    fn rate(&self) -> Option<f64> {
        let time = self.last.since(self.first?).0;
        (time > 0).then(|| (self.bytes - self.last_bytes) as f64 / time as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_late_packet_affects_two_gaps() {
        let mut punctuality = ScheduleStatistics::new(Duration::from_millis(1));
        for k in 0..101_u64 {
            let due = Instant(k * 1_000_000);
            let late = if k == 50 { 70_000 } else { 10_000 };
            punctuality.record_due(due, 1000);
            punctuality.record_sent(due, Instant(due.0 + late), 1000);
        }
        let schedule = punctuality.schedule();
        assert_eq!((schedule.requested, schedule.sent), (101, 101));
        assert!(schedule.rate_error.abs() < 1e-12);
        assert!((schedule.gaps_within_5_percent - 0.98).abs() < 1e-12);
        assert_eq!(schedule.late_ns.1, None, "101 packets have no 99th percentile");
        assert!((10_000..10_010).contains(&schedule.late_ns.0.unwrap()), "three digits");
        assert_eq!(punctuality.warning(), None);
        assert_eq!(punctuality.gaps().0.iter().map(|bucket| bucket.1).sum::<u64>(), 100);
    }

    #[test]
    fn a_packet_that_was_held_shows_when_and_how_long_its_thread_stopped() {
        let ms = |ms: u64| Instant(ms * 1_000_000);
        let mut punctuality = ScheduleStatistics::new(Duration::from_millis(20));
        punctuality.record_late(ms(100), ms(101));
        punctuality.record_held(ms(100), ms(101), ms(108));
        let schedule = punctuality.schedule();
        assert_eq!((schedule.held_ns, schedule.stall_ns), (7_000_000, (8_000_000, 100_000_000)));
        assert_eq!(schedule.late, 0, "less than a gap");
    }

    #[test]
    fn half_of_the_packets_give_half_of_the_rate() {
        let mut punctuality = ScheduleStatistics::new(Duration::from_micros(1));
        for k in 0..1001_u64 {
            punctuality.record_due(Instant(k * 1000), 100);
            if k % 2 == 0 {
                punctuality.record_sent(Instant(k * 500), Instant(k * 1000), 100);
            }
        }
        assert!((punctuality.schedule().rate_error + 0.5).abs() < 1e-9);
        assert!(punctuality.warning().is_some());
    }
}
