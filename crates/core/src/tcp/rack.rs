//! Loss detection by time, RACK-TLP (RFC 8985): what is under way, when each segment left, and
//! which are lost.
//!
//! A segment is lost once one that left later has arrived and a reordering window has passed
//! since. Segments that have left once stand in the order of their numbers, which is that of
//! their times; retransmissions wait in a queue of their own, in the order of theirs. So an
//! ACK costs a few steps for what it tells, however much is under way.
//!
//! The reordering window is a quarter of the smallest round trip once reordering was seen,
//! and does not grow: that needs duplicate SACK (RFC 2883), which receivers here do not
//! send. The reordering timer waits for the first segment that may be lost, where the RFC
//! lets one timer wait for all of them.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::prr::Reduction;
use super::ranges::{Range, Ranges};
use super::scoreboard::DUPLICATE_THRESHOLD;
use crate::time::{Duration, Instant};

/// A segment sent and not acknowledged cumulatively.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub seq: u64,
    /// When it left last.
    sent: Instant,
    /// The how many-th transmission that was, which tells more than the time where several leave at once.
    transmission: u64,
    pub len: u32,
    sacked: bool,
    lost: bool,
    /// A retransmission of it is under way.
    resent: bool,
    /// Sent more than once.
    again: bool,
}

impl Segment {
    fn end(&self) -> u64 {
        self.seq + u64::from(self.len)
    }

    fn bytes(&self) -> u64 {
        u64::from(self.len)
    }
}

/// The tail-loss probe (RFC 8985 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    None,
    /// It goes next.
    Wanted,
    Sent {
        /// TLP.end_seq.
        end: u64,
        /// It was no new data.
        retransmission: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Rack {
    /// In the order of their numbers, without gaps.
    segments: VecDeque<Segment>,
    /// Transmissions that were sent again, and of what, in order; what has arrived or was sent once
    /// more since is skipped when its turn comes.
    retransmissions: VecDeque<(u64, u64)>,
    transmissions: u64,
    /// What is lost and has not been sent again since.
    lost: BTreeSet<u64>,
    ranges: Ranges,
    /// What a block tells anew; kept for its memory.
    news: Vec<Range>,
    outstanding_bytes: u64,
    sacked_bytes: u64,
    lost_bytes: u64,
    resent_bytes: u64,
    sacked_segments: u32,
    /// Segments below this that were sent once have arrived or are lost.
    judged: u64,
    /// Of the transmissions that have arrived, the last to leave: RACK.xmit_ts and RACK.end_seq, which
    /// tell the same less exactly.
    newest: u64,
    /// RACK.rtt.
    round_trip: Duration,
    /// RACK.fack.
    forward: u64,
    reordering_seen: bool,
    pub reordering_deadline: Instant,
    pub probe: Probe,
    pub probe_deadline: Instant,
    pub reduction: Reduction,
}

/// What is under way.
impl Rack {
    pub fn new() -> Rack {
        Rack {
            segments: VecDeque::new(),
            retransmissions: VecDeque::new(),
            transmissions: 0,
            lost: BTreeSet::new(),
            ranges: Ranges::default(),
            news: Vec::new(),
            outstanding_bytes: 0,
            sacked_bytes: 0,
            lost_bytes: 0,
            resent_bytes: 0,
            sacked_segments: 0,
            judged: 0,
            newest: 0,
            round_trip: Duration::ZERO,
            forward: 0,
            reordering_seen: false,
            reordering_deadline: Instant::NEVER,
            probe: Probe::None,
            probe_deadline: Instant::NEVER,
            reduction: Reduction::default(),
        }
    }

    /// Bytes under way: neither arrived nor lost, and those sent again.
    #[inline]
    pub fn pipe(&self) -> u64 {
        self.outstanding_bytes - self.sacked_bytes - self.lost_bytes + self.resent_bytes
    }

    /// Bytes that have not arrived, as far as is known.
    pub fn missing(&self) -> u64 {
        self.outstanding_bytes - self.sacked_bytes
    }

    /// Something is lost, and has not arrived since.
    pub fn has_losses(&self) -> bool {
        self.lost_bytes > 0
    }

    #[inline]
    pub fn first(&self) -> Option<&Segment> {
        self.segments.front()
    }

    pub fn last(&self) -> Option<&Segment> {
        self.segments.back()
    }

    /// The lost segment to send again next.
    #[inline]
    pub fn next_lost(&self) -> Option<&Segment> {
        if self.lost.is_empty() {
            return None;
        }
        self.lost.first().and_then(|&seq| self.segments.get(self.find(seq)?))
    }

    /// New data left.
    #[inline]
    pub fn sent(&mut self, now: Instant, seq: u64, len: u32) {
        self.transmissions += 1;
        self.segments.push_back(Segment {
            seq,
            sent: now,
            transmission: self.transmissions,
            len,
            sacked: false,
            lost: false,
            resent: false,
            again: false,
        });
        self.outstanding_bytes += u64::from(len);
        self.reduction.sent(u64::from(len));
    }

    /// A segment left again.
    pub fn sent_again(&mut self, now: Instant, seq: u64) {
        let Some(segment) = self.find(seq).and_then(|index| self.segments.get_mut(index)) else { return };
        self.transmissions += 1;
        segment.sent = now;
        segment.transmission = self.transmissions;
        segment.again = true;
        if !segment.resent {
            segment.resent = true;
            self.resent_bytes += segment.bytes();
        }
        self.reduction.sent(segment.bytes());
        self.retransmissions.push_back((self.transmissions, seq));
        self.lost.remove(&seq);
    }

    fn find(&self, seq: u64) -> Option<usize> {
        let index = self.segments.partition_point(|segment| segment.seq < seq);
        self.segments.get(index).is_some_and(|segment| segment.seq == seq).then_some(index)
    }
}

/// What ACKs tell: RFC 8985 section 6.2 steps 2 and 3.
impl Rack {
    /// Everything below `ack` has arrived, and `blocks` above it, which come in order; those
    /// outside of what is outstanding are ignored. Returns the bytes newly told to have arrived.
    ///
    /// A segment acknowledged in part stays as it is: no receiver does that.
    pub fn acknowledge(
        &mut self,
        now: Instant,
        ack: u64,
        blocks: impl Iterator<Item = Range>,
        min_round_trip: Option<Duration>,
    ) -> u64 {
        if self.ranges.first().is_some_and(|r| r.start <= ack && ack < r.end) {
            // The receiver has reneged, as in the scoreboard of RFC 6675.
            self.forget_sacks();
        }
        let mut delivered = 0;
        while let Some(&segment) = self.segments.front()
            && segment.end() <= ack
        {
            self.segments.pop_front();
            self.outstanding_bytes -= segment.bytes();
            if segment.sacked {
                self.sacked_bytes -= segment.bytes();
                self.sacked_segments -= 1;
            } else {
                delivered += segment.bytes();
                self.arrived(now, segment, min_round_trip);
            }
        }
        self.ranges.remove_below(ack, |_| ());
        let highest = self.segments.back().map_or(ack, Segment::end);
        for block in blocks {
            if ack < block.start && block.start < block.end && block.end <= highest {
                delivered += self.handle_block(now, block, min_round_trip);
            }
        }
        delivered
    }

    fn handle_block(&mut self, now: Instant, block: Range, min_round_trip: Option<Duration>) -> u64 {
        let mut news = core::mem::take(&mut self.news);
        let mut from = block.start;
        let whole = self.ranges.insert(block, |old| {
            if from < old.start {
                news.push(Range { start: from, end: old.start });
            }
            from = from.max(old.end);
        });
        if from < block.end {
            news.push(Range { start: from, end: block.end });
        }
        let mut delivered = 0;
        for piece in news.drain(..) {
            let mut index = self.segments.partition_point(|segment| segment.end() <= piece.start);
            while let Some(&segment) = self.segments.get(index)
                && segment.seq < piece.end
            {
                if !segment.sacked && whole.start <= segment.seq && segment.end() <= whole.end {
                    self.arrived(now, segment, min_round_trip);
                    self.segments[index] = Segment { sacked: true, lost: false, resent: false, ..segment };
                    self.sacked_bytes += segment.bytes();
                    self.sacked_segments += 1;
                    delivered += segment.bytes();
                }
                index += 1;
            }
        }
        self.news = news;
        delivered
    }

    /// A segment has arrived: it is no longer lost or under way, and what left before it is late.
    fn arrived(&mut self, now: Instant, segment: Segment, min_round_trip: Option<Duration>) {
        if segment.lost {
            self.lost_bytes -= segment.bytes();
            self.lost.remove(&segment.seq);
        }
        if segment.resent {
            self.resent_bytes -= segment.bytes();
        }
        let end = segment.end();
        if end > self.forward {
            self.forward = end;
        } else if end < self.forward && !segment.again {
            self.reordering_seen = true;
        }
        let round_trip = now.since(segment.sent);
        if segment.again && min_round_trip.is_some_and(|min| round_trip < min) {
            // What has arrived was sent before.
            return;
        }
        self.round_trip = round_trip;
        self.newest = self.newest.max(segment.transmission);
    }

    fn forget_sacks(&mut self) {
        for segment in &mut self.segments {
            segment.sacked = false;
        }
        self.ranges.clear();
        self.sacked_bytes = 0;
        self.sacked_segments = 0;
        self.judged = 0;
    }
}

/// What is lost: RFC 8985 section 6.2 steps 4 and 5, and section 6.3.
impl Rack {
    /// RACK_update_reo_wnd().
    pub fn reordering_window(
        &self,
        recovering: bool,
        min: Option<Duration>,
        smoothed: Option<Duration>,
    ) -> Duration {
        let enough = recovering || self.sacked_segments >= DUPLICATE_THRESHOLD;
        match (min, smoothed) {
            (Some(min), Some(smoothed)) if self.reordering_seen || !enough => (min / 4).min(smoothed),
            _ => Duration::ZERO,
        }
    }

    /// RACK_detect_loss(): bytes newly lost; sets the reordering timer.
    pub fn detect_losses(&mut self, now: Instant, reordering_window: Duration) -> u64 {
        self.reordering_deadline = Instant::NEVER;
        if self.ranges.is_empty() && self.retransmissions.is_empty() {
            return 0;
        }
        let wait = self.round_trip + reordering_window;
        self.detect_lost_segments(now, wait) + self.detect_lost_retransmissions(now, wait)
    }

    fn detect_lost_segments(&mut self, now: Instant, wait: Duration) -> u64 {
        let mut found = 0;
        let mut index = self.segments.partition_point(|segment| segment.seq < self.judged);
        while let Some(&segment) = self.segments.get(index) {
            if !(segment.sacked || segment.lost || segment.again) {
                if self.newest < segment.transmission {
                    break;
                }
                if segment.sent + wait > now {
                    self.reordering_deadline = segment.sent + wait;
                    break;
                }
                found += self.mark_lost(index);
            }
            self.judged = segment.end();
            index += 1;
        }
        found
    }

    fn detect_lost_retransmissions(&mut self, now: Instant, wait: Duration) -> u64 {
        let mut found = 0;
        while let Some(&(transmission, seq)) = self.retransmissions.front() {
            if let Some(index) = self.find(seq)
                && let segment = self.segments[index]
                && segment.resent
                && segment.transmission == transmission
            {
                if self.newest < transmission {
                    break;
                }
                if segment.sent + wait > now {
                    self.reordering_deadline = self.reordering_deadline.min(segment.sent + wait);
                    break;
                }
                found += self.mark_lost(index);
            }
            self.retransmissions.pop_front();
        }
        found
    }

    /// RACK_mark_losses_on_RTO().
    pub fn mark_losses_on_timeout(&mut self, now: Instant, reordering_window: Duration) {
        let wait = self.round_trip + reordering_window;
        for index in 0..self.segments.len() {
            let segment = &self.segments[index];
            if !segment.sacked && (index == 0 || segment.sent + wait <= now) {
                self.mark_lost(index);
            }
        }
        self.reordering_deadline = Instant::NEVER;
        self.probe_deadline = Instant::NEVER;
        self.probe = Probe::None;
    }

    fn mark_lost(&mut self, index: usize) -> u64 {
        let segment = &mut self.segments[index];
        let bytes = segment.bytes();
        if !segment.lost {
            segment.lost = true;
            self.lost_bytes += bytes;
        }
        if segment.resent {
            segment.resent = false;
            self.resent_bytes -= bytes;
        }
        self.lost.insert(segment.seq);
        bytes
    }
}

/// When to probe: RFC 8985 section 7.2.
impl Rack {
    /// Something is under way that nothing but a timer would show lost, and no probe has left for it.
    pub fn may_probe(&self) -> bool {
        self.probe == Probe::None && self.sacked_segments == 0 && !self.segments.is_empty()
    }

    /// TLP_calc_PTO(), not yet bounded by the retransmission timeout.
    pub fn probe_timeout(&self, smoothed: Option<Duration>, delayed_ack: Duration) -> Duration {
        match smoothed {
            None => Duration::from_secs(1),
            Some(smoothed) if self.segments.len() == 1 => smoothed * 2 + delayed_ack,
            Some(smoothed) => smoothed * 2,
        }
    }
}
