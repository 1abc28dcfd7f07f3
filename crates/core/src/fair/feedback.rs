//! Queries of an ingress PE, their replies, and the counts of the way to its egress PE.

use super::estimator::RoundTripEstimator;
use super::management::{Query, Reply};
use crate::time::{Duration, Instant};

/// Number of consecutive replies with an impossible count after which the egress PE is assumed to have
/// restarted.
const RESTARTED_AFTER: u8 = 3;

/// Minimum time without a reply, with packets in flight, after which they are given up; at least four round
/// trips.
const SILENCE: Duration = Duration::from_secs(1);

/// Interval between queries of an idle VPN flow, which keep its round trip up to date.
pub const IDLE_PROBE: Duration = Duration::from_secs(1);

/// New information in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Data packets sent before the query.
    pub packets_sent: u64,
    /// Data packets newly confirmed.
    pub confirmed: u64,
    /// Data packets whose fate is newly known: confirmed, lost or given up before.
    pub settled: u64,
    /// Data packets newly known as lost.
    pub lost: u64,
    /// Data packets newly confirmed with a congestion mark.
    pub marked: u64,
    /// Round trip of the query, without the time at the egress PE.
    pub round_trip: Duration,
    /// Transit of the query, with the unknown offset of the clocks, in nanoseconds.
    pub transit: i64,
    /// The reply ends a silence for which packets had been given up.
    pub ends_silence: bool,
}

/// Cumulative counters of a VPN flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data packets sent to the core.
    pub sent: u64,
    /// Data packets confirmed by the egress PE.
    pub received: u64,
    /// Data packets lost in the core, according to the replies.
    pub lost: u64,
    /// Data packets dropped because the queue was full.
    pub queue_drops: u64,
    /// Management packets sent.
    pub queries: u64,
    /// Replies ignored because they were replayed or impossible.
    pub bad_replies: u64,
    /// Number of times the egress PE was silent for too long.
    pub silences: u64,
}

/// Counts of a VPN flow, and its unanswered queries.
#[derive(Clone, Debug)]
pub struct Feedback {
    /// Counters.
    pub counters: Counters,
    round_trip: RoundTripEstimator,
    /// Packets confirmed or given up by the newest reply, which are those sent before its query.
    settled: u64,
    /// Data packets sent since the last query.
    since_query: u32,
    /// Sequence number of the next query, and the one after the newest answered query.
    next_sequence: u32,
    answered: u32,
    /// Marked packets according to the newest reply.
    marked: u64,
    /// Packets missing from the count of a restarted egress PE.
    received_offset: u64,
    /// Consecutive replies with an impossible count.
    impossible: u8,
    /// Packets were given up, and no reply has arrived since.
    is_lapsed: bool,
    last_query: Instant,
    /// Time of the first query since the last reply; `NEVER` if there was none.
    unanswered_since: Instant,
    last_progress: Instant,
}

impl Default for Feedback {
    fn default() -> Feedback {
        Feedback {
            counters: Counters::default(),
            round_trip: RoundTripEstimator::default(),
            settled: 0,
            since_query: 0,
            next_sequence: 0,
            answered: 0,
            marked: 0,
            received_offset: 0,
            impossible: 0,
            is_lapsed: false,
            last_query: Instant::ZERO,
            unanswered_since: Instant::NEVER,
            last_progress: Instant::ZERO,
        }
    }
}

impl Feedback {
    /// Counts a data packet that leaves now.
    #[inline]
    pub fn sent(&mut self, now: Instant) {
        if self.in_flight() == 0 {
            self.last_progress = now;
        }
        self.counters.sent += 1;
        self.since_query += 1;
    }

    /// Creates the query that leaves now.
    #[inline]
    pub fn query(&mut self, now: Instant) -> Query {
        let query = Query { sequence: self.next_sequence, sent_at: now, packets_sent: self.counters.sent };
        self.next_sequence = self.next_sequence.wrapping_add(1);
        self.counters.queries += 1;
        self.since_query = 0;
        self.last_query = now;
        self.unanswered_since = self.unanswered_since.min(now);
        query
    }

    /// Handles a reply. An impossible or replayed reply is counted, and gives no report.
    pub fn handle_reply(&mut self, now: Instant, reply: &Reply) -> Option<Report> {
        let query = reply.query;
        let fresh = self.next_sequence.wrapping_sub(query.sequence).wrapping_sub(1)
            < self.next_sequence.wrapping_sub(self.answered);
        if !fresh || query.sent_at > now || query.packets_sent > self.counters.sent {
            self.counters.bad_replies += 1;
            return None;
        }
        let mut received = reply.packets_received.wrapping_add(self.received_offset);
        if !(self.counters.received..=query.packets_sent).contains(&received) {
            self.counters.bad_replies += 1;
            self.impossible += 1;
            if self.impossible < RESTARTED_AFTER {
                return None;
            }
            // A single such reply is an error or an attack; several in a row come from a PE that restarted
            // and counts from zero. No loss is known since the restart.
            received = query.packets_sent.saturating_sub(self.counters.lost).max(self.counters.received);
            self.received_offset = received.wrapping_sub(reply.packets_received);
        }
        self.impossible = 0;
        self.answered = query.sequence.wrapping_add(1);
        let round_trip = now.since(query.sent_at) - reply.residence_time;
        self.round_trip.sample(round_trip);
        self.last_progress = now;
        self.unanswered_since = Instant::NEVER;
        let report = Report {
            packets_sent: query.packets_sent,
            confirmed: received - self.counters.received,
            settled: query.packets_sent.saturating_sub(self.settled),
            // A restarted PE may answer a query that is older than the packets already known to be received.
            lost: query.packets_sent.saturating_sub(received).saturating_sub(self.counters.lost),
            // A restarted egress PE also counts marks from zero.
            marked: reply.packets_marked.saturating_sub(self.marked),
            round_trip,
            transit: reply.transit,
            ends_silence: core::mem::take(&mut self.is_lapsed),
        };
        self.counters.received = received;
        self.counters.lost += report.lost;
        self.settled = self.settled.max(query.packets_sent);
        self.marked = reply.packets_marked;
        Some(report)
    }

    /// Gives up the packets in flight, once, if the egress PE has not answered for too long, and returns
    /// whether it did.
    pub fn gives_up(&mut self, now: Instant) -> bool {
        let silence = SILENCE.max(Duration::from_secs_f64(4.0 * self.round_trip.seconds()));
        let is_silent = self.in_flight() > 0 && now.since(self.last_progress) >= silence;
        if is_silent {
            self.counters.silences += 1;
            self.settled = self.counters.sent;
            self.is_lapsed = true;
            self.last_progress = now;
        }
        is_silent
    }

    /// Returns the number of packets sent and neither confirmed nor given up.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        self.counters.sent - self.settled
    }

    /// Returns the number of data packets sent since the last query.
    #[inline]
    pub fn since_query(&self) -> u32 {
        self.since_query
    }

    /// Returns whether all queries are answered.
    #[inline]
    pub fn is_answered(&self) -> bool {
        self.next_sequence == self.answered
    }

    /// Returns the time of the last query.
    #[inline]
    pub fn last_query(&self) -> Instant {
        self.last_query
    }

    /// Returns the smoothed round trip.
    #[inline]
    pub fn round_trip(&self) -> &RoundTripEstimator {
        &self.round_trip
    }

    /// Returns whether queries over at least this time are unanswered.
    #[inline]
    pub fn is_silent(&self, after: Duration) -> bool {
        self.last_query.since(self.unanswered_since) >= after
    }

    /// Returns the time of the first unanswered query; `NEVER` if there is none.
    pub fn unanswered_since(&self) -> Instant {
        self.unanswered_since
    }
}
