//! Departures of a flow's packets: taken from the pattern when they are due, numbered, and counted when sent. Packets
//! that are too late are skipped, so that a sender that was stopped continues on its schedule.

use super::emissions::Emissions;
use super::records::FlowLedger;
use super::schedule::ScheduleStatistics;
use netstage_agent_api::results::{BinCounts, Buckets, Schedule};
use netstage_core::time::{Duration, Instant};
use std::collections::VecDeque;

/// Packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledPacket {
    /// Scheduled time.
    pub due: Instant,
    /// Sequence number.
    pub number: u64,
    /// Payload bytes.
    pub bytes: u64,
}

/// Schedule of a flow's packets, in groups that leave together.
#[derive(Debug)]
pub struct Departures {
    emissions: Emissions,
    /// Packets that leave together: more than one with UDP segmentation offload.
    group: usize,
    min_bytes: u64,
    /// Next packets, as many as a group needs: due time and size.
    ahead: VecDeque<(Instant, u64)>,
    number: u64,
    padded: u64,
    ledger: FlowLedger,
    statistics: ScheduleStatistics,
}

impl Departures {
    /// Creates the schedule. Smaller packets are padded to `min_bytes`.
    pub fn new(emissions: Emissions, group: usize, min_bytes: usize, ledger: FlowLedger) -> Departures {
        let rate = emissions.packet_rate().filter(|rate| *rate > 0.0);
        let gap = rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(group as f64 / rate));
        let mut departures = Departures {
            emissions,
            group,
            min_bytes: min_bytes as u64,
            ahead: VecDeque::new(),
            number: 0,
            padded: 0,
            ledger,
            statistics: ScheduleStatistics::new(gap),
        };
        departures.look_ahead();
        departures
    }

    /// Returns the due time of the next group, which is that of its last packet, so that no packet leaves early.
    pub fn due(&self) -> Instant {
        self.ahead.back().map_or(Instant::NEVER, |&(due, _)| due)
    }

    /// Removes the packets that are due before this time from the schedule. They are neither offered nor skipped.
    pub fn withhold(&mut self, until: Instant) {
        while !self.is_empty() && self.due() < until {
            self.ahead.clear();
            self.look_ahead();
        }
    }

    /// Returns the time at which the flow ends.
    pub fn stop(&self) -> Instant {
        self.emissions.stop()
    }

    /// Returns whether all packets were taken.
    pub fn is_empty(&self) -> bool {
        self.ahead.is_empty()
    }

    /// Moves the next group of packets that is due and not too late to `taken`. Returns the number of packets.
    pub fn take(&mut self, now: Instant, taken: &mut VecDeque<ScheduledPacket>) -> usize {
        if now >= self.stop() {
            self.discard_rest(now);
        }
        while self.due() <= now && !self.is_empty() {
            let is_sent = self.statistics.admit(self.due(), now, self.ahead.len() as u64);
            let count = taken.len();
            for (due, bytes) in self.offer_group() {
                if is_sent {
                    self.padded += u64::from(bytes < self.min_bytes);
                    let bytes = bytes.max(self.min_bytes);
                    taken.push_back(ScheduledPacket { due, number: self.number, bytes });
                    self.number += 1;
                }
            }
            if is_sent {
                return taken.len() - count;
            }
        }
        0
    }

    /// Removes the next group from the schedule and counts its packets as offered.
    fn offer_group(&mut self) -> VecDeque<(Instant, u64)> {
        let group = std::mem::take(&mut self.ahead);
        for &(due, bytes) in &group {
            self.statistics.record_due(due, bytes);
            self.ledger.at(due).offered_bytes += bytes;
        }
        self.look_ahead();
        group
    }

    /// Clears the last packets taken, which were not sent, if the first of them is too late. Returns whether it was.
    pub fn expire(&mut self, unsent: &mut VecDeque<ScheduledPacket>, now: Instant) -> bool {
        let Some(first) = unsent.front().filter(|first| self.statistics.is_too_late(first.due, now)) else {
            return false;
        };
        self.statistics.record_skipped(first.due, now, unsent.len() as u64);
        self.take_back(unsent);
        true
    }

    /// Clears the last packets taken, which were not sent, and reuses their numbers. Missing numbers would count as
    /// losses at the receiver.
    pub fn take_back(&mut self, unsent: &mut VecDeque<ScheduledPacket>) {
        self.number -= unsent.len() as u64;
        unsent.clear();
    }

    /// Counts a packet with the timestamp `stamped` that left at `at`.
    pub fn record_sent(&mut self, packet: &ScheduledPacket, stamped: Instant, at: Instant) {
        self.statistics.record_held(packet.due, stamped, at);
        self.statistics.record_sent(packet.due, at, packet.bytes);
        let counts = self.ledger.at(at);
        counts.sent += 1;
        counts.sent_bytes += packet.bytes;
    }

    /// Discards the packets that were not taken. Those already due count as offered, and as skipped.
    pub fn discard_rest(&mut self, now: Instant) {
        while self.ahead.back().is_some_and(|&(due, _)| due <= now) {
            self.statistics.record_skipped(self.due(), now, self.ahead.len() as u64);
            self.offer_group();
        }
        self.ahead.clear();
    }

    /// Returns the number of padded packets.
    pub fn padded(&self) -> u64 {
        self.padded
    }

    /// Returns the counts of a bin.
    pub fn counts(&mut self, bin: usize) -> BinCounts {
        *self.ledger.counts(bin)
    }

    /// Returns a warning if the schedule was not kept, the schedule, the gaps between packets, and the bins.
    pub fn finish(self) -> (Option<String>, Schedule, Buckets, Vec<BinCounts>) {
        let Departures { statistics, ledger, .. } = self;
        (statistics.warning(), statistics.schedule(), statistics.gaps(), ledger.into_bins())
    }

    fn look_ahead(&mut self) {
        while self.ahead.len() < self.group {
            let Some(next) = self.emissions.next_emission() else { return };
            self.ahead.push_back(next);
        }
    }
}
