//! Time-based loss detection, RACK-TLP (RFC 8985): the segments in flight, their transmission times, and the lost
//! segments.
//!
//! A segment is lost once one sent later has arrived and a reordering window has passed since. Segments sent once are
//! in the order of their sequence numbers, which is that of their transmission; retransmissions have a separate
//! queue, in the order of transmission. The cost of an ACK therefore depends on its new information, not on the
//! amount of data in flight.
//!
//! The reordering window is a quarter of the minimum round trip once reordering was seen. It does not grow, because
//! that needs duplicate SACK (RFC 2883), which receivers here do not send. The reordering timer waits for the first
//! segment that may be lost; the RFC's single timer waits for all of them.

use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::congestion::CongestionWindow;
use super::prr::Reduction;
use super::ranges::{Range, Ranges};
use super::scoreboard::DUPLICATE_THRESHOLD;
use crate::time::{Duration, Instant};

/// A segment that is sent and not acknowledged cumulatively.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentSegment {
    pub seq: u64,
    /// Time of the last transmission.
    sent: Instant,
    /// Number of the last transmission. It is more precise than the time if several are sent at once.
    transmission: u64,
    pub len: u32,
    sacked: bool,
    lost: bool,
    /// Whether a retransmission is in flight.
    retransmission_in_flight: bool,
    /// Whether it was ever retransmitted.
    retransmitted: bool,
}

impl SentSegment {
    fn end(&self) -> u64 {
        self.seq + u64::from(self.len)
    }

    /// Returns the time of the last transmission.
    pub fn sent(&self) -> Instant {
        self.sent
    }

    fn bytes(&self) -> u64 {
        u64::from(self.len)
    }
}

/// State of the tail-loss probe (RFC 8985 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TailLossProbeState {
    None,
    /// The probe is sent next.
    Wanted,
    Sent {
        /// TLP.end_seq.
        end: u64,
        /// Whether the probe was a retransmission.
        retransmission: bool,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Rack {
    /// In the order of sequence numbers, without gaps.
    segments: VecDeque<SentSegment>,
    /// Transmission and sequence numbers of retransmissions, in order. Entries are skipped if the segment has arrived
    /// or was retransmitted again since.
    retransmissions: VecDeque<(u64, u64)>,
    transmissions: u64,
    /// Lost segments not retransmitted since.
    lost: BTreeSet<u64>,
    ranges: Ranges,
    /// Ranges first reported by a block; kept to reuse the memory.
    new_ranges: Vec<Range>,
    outstanding_bytes: u64,
    sacked_bytes: u64,
    lost_bytes: u64,
    retransmitted_bytes: u64,
    sacked_segments: u32,
    /// All segments below this that were sent once have arrived or are lost.
    checked_until: u64,
    /// Number of the latest transmission that has arrived, a more precise equivalent of RACK.xmit_ts and
    /// RACK.end_seq.
    newest: u64,
    /// RACK.rtt.
    round_trip: Duration,
    /// RACK.fack.
    forward: u64,
    reordering_seen: bool,
    pub reordering_deadline: Instant,
    pub probe: TailLossProbeState,
    pub probe_deadline: Instant,
    pub reduction: Reduction,
    pub undo: Undo,
}

/// State to undo a needless reduction, as in Linux.
#[derive(Clone, Debug)]
pub(super) struct Undo {
    /// Window and threshold before the reduction, in bytes.
    pub before: (f64, f64),
    /// First retransmission since the reduction.
    pub retransmitted_at: Instant,
    pub forward: ForwardRto,
    /// Data up to here was sent before the timeout.
    pub sent_before: u64,
    /// Whether the last ACK reported data that was sent once, before the timeout.
    pub original_arrived: bool,
    /// Whether the last ACK reported new data out of order.
    pub range_arrived: bool,
}

/// State of F-RTO (RFC 5682 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForwardRto {
    Off,
    /// The next ACKs decide whether the timeout was in time.
    Watching,
    /// As [`ForwardRto::Watching`], and no lost segment is retransmitted until the next ACK.
    NewDataOnly,
}

impl Undo {
    /// Records the window at a reduction that later ACKs may show to be needless.
    pub fn begin(&mut self, window: &CongestionWindow) {
        self.before = (window.exact(), window.slow_start_threshold());
        self.retransmitted_at = Instant::NEVER;
        self.forward = ForwardRto::Off;
    }
}

/// Segments in flight.
impl Rack {
    pub fn new() -> Rack {
        Rack {
            segments: VecDeque::new(),
            retransmissions: VecDeque::new(),
            transmissions: 0,
            lost: BTreeSet::new(),
            ranges: Ranges::default(),
            new_ranges: Vec::new(),
            outstanding_bytes: 0,
            sacked_bytes: 0,
            lost_bytes: 0,
            retransmitted_bytes: 0,
            sacked_segments: 0,
            checked_until: 0,
            newest: 0,
            round_trip: Duration::ZERO,
            forward: 0,
            reordering_seen: false,
            reordering_deadline: Instant::NEVER,
            probe: TailLossProbeState::None,
            probe_deadline: Instant::NEVER,
            reduction: Reduction::default(),
            undo: Undo {
                before: (0.0, 0.0),
                retransmitted_at: Instant::NEVER,
                forward: ForwardRto::Off,
                original_arrived: false,
                range_arrived: false,
                sent_before: 0,
            },
        }
    }

    /// Returns the bytes in flight: neither arrived nor lost, plus retransmissions.
    #[inline]
    pub fn pipe(&self) -> u64 {
        self.outstanding_bytes - self.sacked_bytes - self.lost_bytes + self.retransmitted_bytes
    }

    /// Returns the bytes not known to have arrived.
    pub fn missing(&self) -> u64 {
        self.outstanding_bytes - self.sacked_bytes
    }

    /// Returns whether a lost segment has not arrived since.
    pub fn has_losses(&self) -> bool {
        self.lost_bytes > 0
    }

    #[inline]
    pub fn first(&self) -> Option<&SentSegment> {
        self.segments.front()
    }

    pub fn last(&self) -> Option<&SentSegment> {
        self.segments.back()
    }

    /// Returns the next lost segment to retransmit.
    #[inline]
    pub fn next_lost(&self) -> Option<&SentSegment> {
        if self.lost.is_empty() {
            return None;
        }
        self.lost.first().and_then(|&seq| self.segments.get(self.find(seq)?))
    }

    /// Records a transmission of new data.
    #[inline]
    pub fn record_transmission(&mut self, now: Instant, seq: u64, len: u32) {
        self.transmissions += 1;
        self.segments.push_back(SentSegment {
            seq,
            sent: now,
            transmission: self.transmissions,
            len,
            sacked: false,
            lost: false,
            retransmission_in_flight: false,
            retransmitted: false,
        });
        self.outstanding_bytes += u64::from(len);
        self.reduction.sent(u64::from(len));
    }

    /// Records a retransmission.
    pub fn record_retransmission(&mut self, now: Instant, seq: u64) {
        let Some(segment) = self.find(seq).and_then(|index| self.segments.get_mut(index)) else { return };
        self.transmissions += 1;
        segment.sent = now;
        segment.transmission = self.transmissions;
        segment.retransmitted = true;
        if !segment.retransmission_in_flight {
            segment.retransmission_in_flight = true;
            self.retransmitted_bytes += segment.bytes();
        }
        self.reduction.sent(segment.bytes());
        self.undo.retransmitted_at = self.undo.retransmitted_at.min(now);
        self.retransmissions.push_back((self.transmissions, seq));
        self.lost.remove(&seq);
    }

    fn find(&self, seq: u64) -> Option<usize> {
        let index = self.segments.partition_point(|segment| segment.seq < seq);
        self.segments.get(index).is_some_and(|segment| segment.seq == seq).then_some(index)
    }
}

/// Processing of ACKs: RFC 8985 section 6.2 steps 2 and 3.
impl Rack {
    /// Processes an ACK of everything below `ack` and of the `blocks` above it, which are in order. Blocks outside
    /// the outstanding data are ignored. Returns the bytes newly known to have arrived.
    ///
    /// A segment acknowledged in part stays unchanged, because no receiver does this.
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
        (self.undo.original_arrived, self.undo.range_arrived) = (false, false);
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
                self.record_arrival(now, segment, min_round_trip);
            }
        }
        self.ranges.remove_below(ack, |_| ());
        let highest = self.segments.back().map_or(ack, SentSegment::end);
        for block in blocks {
            if ack < block.start && block.start < block.end && block.end <= highest {
                delivered += self.handle_block(now, block, min_round_trip);
            }
        }
        delivered
    }

    fn handle_block(&mut self, now: Instant, block: Range, min_round_trip: Option<Duration>) -> u64 {
        let mut new_ranges = core::mem::take(&mut self.new_ranges);
        let mut from = block.start;
        let whole = self.ranges.insert(block, |old| {
            if from < old.start {
                new_ranges.push(Range { start: from, end: old.start });
            }
            from = from.max(old.end);
        });
        if from < block.end {
            new_ranges.push(Range { start: from, end: block.end });
        }
        let mut delivered = 0;
        for piece in new_ranges.drain(..) {
            let mut index = self.segments.partition_point(|segment| segment.end() <= piece.start);
            while let Some(&segment) = self.segments.get(index)
                && segment.seq < piece.end
            {
                if !segment.sacked && whole.start <= segment.seq && segment.end() <= whole.end {
                    self.record_arrival(now, segment, min_round_trip);
                    self.segments[index] =
                        SentSegment { sacked: true, lost: false, retransmission_in_flight: false, ..segment };
                    self.sacked_bytes += segment.bytes();
                    self.sacked_segments += 1;
                    delivered += segment.bytes();
                    self.undo.range_arrived = true;
                }
                index += 1;
            }
        }
        self.new_ranges = new_ranges;
        delivered
    }

    /// Records an arrival: the segment is no longer lost or in flight, and segments sent before it are late.
    fn record_arrival(&mut self, now: Instant, segment: SentSegment, min_round_trip: Option<Duration>) {
        if segment.lost {
            self.lost_bytes -= segment.bytes();
            self.lost.remove(&segment.seq);
        }
        if segment.retransmission_in_flight {
            self.retransmitted_bytes -= segment.bytes();
        }
        let end = segment.end();
        if end > self.forward {
            self.forward = end;
        } else if end < self.forward && !segment.retransmitted {
            self.reordering_seen = true;
        }
        self.undo.original_arrived |= !segment.retransmitted && end <= self.undo.sent_before;
        let round_trip = now.since(segment.sent);
        if segment.retransmitted && min_round_trip.is_some_and(|min| round_trip < min) {
            // The arrival is of an earlier transmission.
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
        self.checked_until = 0;
    }
}

/// Loss detection: RFC 8985 section 6.2 steps 4 and 5, and section 6.3.
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

    /// RACK_detect_loss(): returns the bytes newly lost and sets the reordering timer.
    pub fn detect_losses(&mut self, now: Instant, reordering_window: Duration) -> u64 {
        self.reordering_deadline = Instant::NEVER;
        if self.ranges.is_empty() && self.retransmissions.is_empty() {
            return 0;
        }
        let wait = self.round_trip + reordering_window;
        self.detect_lost_segments(now, wait) + self.detect_lost_retransmissions(now, wait)
    }

    fn detect_lost_segments(&mut self, now: Instant, wait: Duration) -> u64 {
        let mut newly_lost = 0;
        let mut index = self.segments.partition_point(|segment| segment.seq < self.checked_until);
        while let Some(&segment) = self.segments.get(index) {
            if !(segment.sacked || segment.lost || segment.retransmitted) {
                if self.newest < segment.transmission {
                    break;
                }
                if segment.sent + wait > now {
                    self.reordering_deadline = segment.sent + wait;
                    break;
                }
                newly_lost += self.mark_lost(index);
            }
            self.checked_until = segment.end();
            index += 1;
        }
        newly_lost
    }

    fn detect_lost_retransmissions(&mut self, now: Instant, wait: Duration) -> u64 {
        let mut newly_lost = 0;
        while let Some(&(transmission, seq)) = self.retransmissions.front() {
            if let Some(index) = self.find(seq)
                && let segment = self.segments[index]
                && segment.retransmission_in_flight
                && segment.transmission == transmission
            {
                if self.newest < transmission {
                    break;
                }
                if segment.sent + wait > now {
                    self.reordering_deadline = self.reordering_deadline.min(segment.sent + wait);
                    break;
                }
                newly_lost += self.mark_lost(index);
            }
            self.retransmissions.pop_front();
        }
        newly_lost
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
        self.probe = TailLossProbeState::None;
    }

    /// Takes all lost segments as in flight again.
    pub fn forget_losses(&mut self) {
        for segment in &mut self.segments {
            segment.lost = false;
        }
        self.lost.clear();
        self.lost_bytes = 0;
    }

    fn mark_lost(&mut self, index: usize) -> u64 {
        let segment = &mut self.segments[index];
        let bytes = segment.bytes();
        if !segment.lost {
            segment.lost = true;
            self.lost_bytes += bytes;
        }
        if segment.retransmission_in_flight {
            segment.retransmission_in_flight = false;
            self.retransmitted_bytes -= bytes;
        }
        self.lost.insert(segment.seq);
        bytes
    }
}

/// Scheduling of probes: RFC 8985 section 7.2.
impl Rack {
    /// Returns whether data is in flight whose loss only a timer would show, and no probe was sent for it.
    pub fn may_probe(&self) -> bool {
        self.probe == TailLossProbeState::None && self.sacked_segments == 0 && !self.segments.is_empty()
    }

    /// TLP_calc_PTO(), not yet bounded by the retransmission timeout. `delayed_ack` is the time to wait for the ACK of
    /// a single segment.
    pub fn probe_timeout(&self, smoothed: Option<Duration>, delayed_ack: Duration) -> Duration {
        match smoothed {
            None => Duration::from_secs(1),
            Some(smoothed) if self.segments.len() == 1 => smoothed * 2 + delayed_ack,
            Some(smoothed) => smoothed * 2,
        }
    }
}
