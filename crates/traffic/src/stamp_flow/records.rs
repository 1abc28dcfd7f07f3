//! Counts of both ends of a STAMP session in the bins of a run. Sockets and clocks are elsewhere.

use super::super::records::FlowLedger;
use super::super::schedule::ScheduleStatistics;
use crate::stamp::{DelayHistogram, PacketDeparture, StampSessionResult};
use netstage_agent_api::results::{BinCounts, Buckets, FlowResult};
use netstage_core::measure::Histogram;
use netstage_core::measure::sequence::{Sequence, SequenceArrival};
use netstage_core::measure::stamp::{RejectReason, StampSample};
use netstage_core::time::{Duration, Instant};

/// Counts of a session-sender.
pub struct SenderRecords {
    /// Bytes of every packet and reply.
    bytes: u64,
    interval: Duration,
    ledger: FlowLedger,
    punctuality: ScheduleStatistics,
    /// Skipped packets that are in the statistics.
    counted_skips: u32,
}

impl SenderRecords {
    /// Creates the empty counts of a session with packets of this size and interval.
    pub fn new(bytes: u64, interval: Duration, ledger: FlowLedger) -> SenderRecords {
        let punctuality = ScheduleStatistics::new(interval);
        SenderRecords { bytes, interval, ledger, punctuality, counted_skips: 0 }
    }

    /// Records a call of the session at `now`: the packets skipped since the last one, and the packet sent. `schedule` is
    /// the number of packets skipped so far, and the scheduled time of the packet sent or skipped last.
    pub fn record_departure(
        &mut self,
        (skipped, last): (u32, Instant),
        departure: Option<PacketDeparture>,
        now: Instant,
    ) {
        for back in (0..u64::from(skipped - self.counted_skips)).rev() {
            let later = back + u64::from(departure.is_some());
            let due = Instant(last.0.saturating_sub(later * self.interval.0));
            self.punctuality.admit(due, now, 1);
            self.record_due(due);
        }
        self.counted_skips = skipped;
        let Some(departure) = departure else { return };
        self.record_due(departure.due);
        if let Some(left) = departure.left {
            self.punctuality.record_late(departure.due, departure.stamped);
            self.punctuality.record_held(departure.due, departure.stamped, left);
            self.punctuality.record_sent(departure.due, departure.stamped, self.bytes);
            let counts = self.ledger.at(departure.stamped);
            counts.sent += 1;
            counts.sent_bytes += self.bytes;
        }
    }

    fn record_due(&mut self, due: Instant) {
        self.punctuality.record_due(due, self.bytes);
        self.ledger.at(due).offered_bytes += self.bytes;
    }

    /// Records a reply of this length that arrived at `at`.
    pub fn record_reply(&mut self, at: Instant, length: u64, sample: &Result<StampSample, RejectReason>) {
        match sample {
            // The packet arrived, but its delay is unknown.
            Ok(_) | Err(RejectReason::ReflectorClock) => self.ledger.receive(at, 1, length),
            Err(RejectReason::NotOutstanding) => self.ledger.at(at).duplicated += 1,
            Err(_) => {}
        }
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        *self.ledger.counts(bin)
    }

    /// Returns the result of a session in a run that ended at `end`.
    pub fn finish(
        mut self,
        name: String,
        session: &StampSessionResult,
        end: Instant,
        warnings: &mut Vec<String>,
    ) -> FlowResult {
        if let Some(warning) = self.punctuality.warning() {
            warnings.push(format!("flow {name}: {warning}"));
        }
        if let Some(reason) = session.rejection.as_ref().filter(|_| session.counts.rejected > 0) {
            warnings
                .push(format!("flow {name}: {} replies were rejected: {reason}", session.counts.rejected));
        }
        // Reordering is known only for the whole session, so it counts in the last bin.
        self.ledger.at(end).reordered += u64::from(session.counts.reordered);
        let negative = session.negative;
        if negative.iter().sum::<u64>() > 0 {
            warnings.push(format!(
                "flow {name}: {} packets and {} answers have negative delays: a clock was set during the run, or the \
                 clocks of the hosts differ",
                negative[0], negative[1]
            ));
        }
        let change = session.clock_change.found();
        if let Some(change) = change {
            warnings.push(format!(
                "flow {name}: the clocks of the two hosts changed against each other by at least {:.3} s during the run; \
                 one-way delays are unknown",
                change as f64 / 1e9
            ));
        }
        let one_way = |delays| if change.is_some() { Buckets::default() } else { buckets(delays) };
        let failed = session.failed_sends.as_ref();
        FlowResult {
            sends: true,
            round_trip: buckets(&session.round_trip),
            delay: one_way(&session.forward),
            answer_delay: one_way(&session.backward),
            gaps: self.punctuality.gaps(),
            schedule: Some(self.punctuality.schedule()),
            drained: self.ledger.drained(),
            bins: self.ledger.into_bins(),
            error: failed.map(|(count, error)| format!("{count} packets were not sent: {error}")),
            name,
            ..FlowResult::default()
        }
    }
}

/// Counts of a session-reflector. Replies are due when their packets arrive.
pub struct ReflectorRecords {
    sequence: Sequence,
    ledger: FlowLedger,
    punctuality: ScheduleStatistics,
}

impl ReflectorRecords {
    /// Creates the empty counts of a session with this interval.
    pub fn new(interval: Duration, ledger: FlowLedger) -> ReflectorRecords {
        ReflectorRecords { sequence: Sequence::new(), ledger, punctuality: ScheduleStatistics::new(interval) }
    }

    /// Records a packet with this number and length that arrived at `at`, and its reply with the timestamp `stamped`, which
    /// left at `left`. Each packet counts once.
    pub fn record(&mut self, number: u64, length: u64, at: Instant, (stamped, left): (Instant, Instant)) {
        let counts = self.ledger.at(at);
        match self.sequence.handle_packet(number) {
            SequenceArrival::Newest { .. } => {}
            SequenceArrival::Late => counts.reordered += 1,
            SequenceArrival::Duplicate | SequenceArrival::TooOld => {
                counts.duplicated += 1;
                return;
            }
        }
        self.ledger.receive(at, 1, length);
        self.punctuality.record_due(at, length);
        self.punctuality.record_late(at, stamped);
        self.punctuality.record_held(at, stamped, left);
        self.punctuality.record_sent(at, left, length);
    }

    /// Returns the number of packets that arrived.
    pub fn received(&self) -> u64 {
        self.sequence.received()
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        *self.ledger.counts(bin)
    }

    /// Returns the result.
    pub fn finish(self, name: String) -> FlowResult {
        FlowResult {
            name,
            schedule: Some(self.punctuality.schedule()),
            drained: self.ledger.drained(),
            bins: self.ledger.into_bins(),
            ..FlowResult::default()
        }
    }
}

fn buckets(delays: &DelayHistogram) -> Buckets {
    let mut times = Histogram::default();
    let known = delays.buckets().into_iter();
    known.for_each(|(ns, count)| times.record_many(u64::try_from(ns).unwrap_or(0), count));
    (&times).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_leave_late_are_counted_with_their_lateness() {
        let ms = |ms: u64| Instant(ms * 1_000_000);
        let ledger = FlowLedger::new(Duration::from_secs(1), Duration::from_secs(1));
        let mut records = ReflectorRecords::new(Duration::from_millis(20), ledger);
        for (number, arrived, stamped, left) in [
            (0, 0, 0, 0),
            (1, 20, 90, 90),
            (2, 40, 90, 90),
            (3, 60, 90, 90),
            (4, 80, 90, 90),
            (5, 100, 100, 107),
        ] {
            records.record(number, 44, ms(arrived), (ms(stamped), ms(left)));
        }
        // A duplicate is answered, but counts once.
        records.record(5, 44, ms(108), (ms(108), ms(108)));
        let result = records.finish("f".into());
        let schedule = result.schedule.unwrap();
        assert_eq!((result.received(), schedule.sent, schedule.late), (6, 6, 3));
        assert_eq!((schedule.stall_ns.0, schedule.held_ns), (70_000_000, 7_000_000));
    }
}
