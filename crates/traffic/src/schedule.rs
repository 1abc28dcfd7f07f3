//! How well a sender keeps its schedule: what the pattern asked for next to what was sent.

use super::ledger::Times;
use netstage_agent_api::results::{Buckets, Schedule};
use netstage_core::time::Instant;

/// A sender that is this much off its rate, or
const RATE_TOLERANCE: f64 = 0.001;
/// later than this with its 99th percentile, has slipped.
const LATE_TOLERANCE_NS: u64 = 10_000_000;

/// Follows a sender's packets.
#[derive(Debug)]
pub struct Punctuality {
    asked: Tally,
    sent: Tally,
    gaps_asked: u64,
    gaps_kept: u64,
    late: Times,
    gaps: Times,
    previous: Option<(Instant, Instant)>,
}

/// Packets and bytes over the time from the first to the last.
#[derive(Debug, Default)]
struct Tally {
    packets: u64,
    bytes: u64,
    first: Option<Instant>,
    last: Instant,
    last_bytes: u64,
}

impl Punctuality {
    /// Nothing asked, nothing sent.
    pub fn new() -> Punctuality {
        Punctuality {
            asked: Tally::default(),
            sent: Tally::default(),
            gaps_asked: 0,
            gaps_kept: 0,
            late: Times::new(),
            gaps: Times::new(),
            previous: None,
        }
    }

    /// The pattern asked for a packet at `due`.
    pub fn ask(&mut self, due: Instant, bytes: u64) {
        self.asked.add(due, bytes);
    }

    /// It was sent.
    pub fn send(&mut self, due: Instant, at: Instant, bytes: u64) {
        self.sent.add(at, bytes);
        self.late.record(at.since(due).0);
        if let Some((previous_due, previous_at)) = self.previous {
            let (asked, kept) = (due.since(previous_due).0, at.since(previous_at).0);
            self.gaps.record(kept);
            if asked > 0 {
                self.gaps_asked += 1;
                self.gaps_kept += u64::from(kept.abs_diff(asked) <= asked / 20);
            }
        }
        self.previous = Some((due, at));
    }

    /// The balance.
    pub fn schedule(&self) -> Schedule {
        let share = |part: u64, whole: u64| if whole > 0 { part as f64 / whole as f64 } else { 1.0 };
        Schedule {
            asked: self.asked.packets,
            sent: self.sent.packets,
            rate_error: self.rate_error(),
            gaps_within_5_percent: share(self.gaps_kept, self.gaps_asked),
            late_ns: (self.late.quantile(0.5), self.late.quantile(0.99), self.late.max()),
        }
    }

    /// What to tell a reader, where the schedule has slipped.
    pub fn warning(&self) -> Option<String> {
        let schedule = self.schedule();
        let slipped = schedule.rate_error.abs() > RATE_TOLERANCE
            && self.asked.packets > 1
            && schedule.sent < schedule.asked
            || schedule.late_ns.1 > LATE_TOLERANCE_NS;
        slipped.then(|| {
            format!(
                "the sender did not keep its schedule: {} of {} packets sent, rate {:+.2} %, 99 % of them less than \
                 {:.1} ms late",
                schedule.sent,
                schedule.asked,
                schedule.rate_error * 100.0,
                schedule.late_ns.1 as f64 / 1e6
            )
        })
    }

    /// Gaps between packets as sent.
    pub fn gaps(&self) -> Buckets {
        self.gaps.buckets()
    }

    fn rate_error(&self) -> f64 {
        match (self.sent.rate(), self.asked.rate()) {
            (Some(sent), Some(asked)) => sent / asked - 1.0,
            _ if self.asked.packets == self.sent.packets => 0.0,
            _ => self.sent.bytes as f64 / self.asked.bytes.max(1) as f64 - 1.0,
        }
    }
}

impl Tally {
    fn add(&mut self, at: Instant, bytes: u64) {
        self.packets += 1;
        self.bytes += bytes;
        self.first.get_or_insert(at);
        self.last = at;
        self.last_bytes = bytes;
    }

    /// Bytes per nanosecond from the first packet to the last, which itself counts no more.
    fn rate(&self) -> Option<f64> {
        let time = self.last.since(self.first?).0;
        (time > 0).then(|| (self.bytes - self.last_bytes) as f64 / time as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_late_packet_spoils_two_gaps() {
        let mut punctuality = Punctuality::new();
        for k in 0..101_u64 {
            let due = Instant(k * 1_000_000);
            let late = if k == 50 { 70_000 } else { 10_000 };
            punctuality.ask(due, 1000);
            punctuality.send(due, Instant(due.0 + late), 1000);
        }
        let schedule = punctuality.schedule();
        assert_eq!((schedule.asked, schedule.sent), (101, 101));
        assert!(schedule.rate_error.abs() < 1e-12);
        assert!((schedule.gaps_within_5_percent - 0.98).abs() < 1e-12);
        assert!((10_000..10_010).contains(&schedule.late_ns.0), "three digits");
        assert_eq!(punctuality.warning(), None);
        assert_eq!(punctuality.gaps().0.iter().map(|bucket| bucket.1).sum::<u64>(), 100);
    }

    #[test]
    fn half_the_packets_are_half_the_rate() {
        let mut punctuality = Punctuality::new();
        for k in 0..1001_u64 {
            punctuality.ask(Instant(k * 1000), 100);
            if k % 2 == 0 {
                punctuality.send(Instant(k * 500), Instant(k * 1000), 100);
            }
        }
        assert!((punctuality.schedule().rate_error + 0.5).abs() < 1e-9);
        assert!(punctuality.warning().is_some());
    }
}
