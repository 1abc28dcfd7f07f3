//! Segments to send now: new data within both windows, and retransmissions after a timeout.

use super::{SenderPhase, TcpDataSender};
use crate::tcp::{CongestionEvent, DataSegment, Stack, TcpConfig, WindowChangeCause};
use crate::time::{Duration, Instant};

impl TcpDataSender {
    /// Returns new data, if the windows allow it.
    #[inline]
    pub(super) fn poll_new(&mut self, config: &TcpConfig, now: Instant) -> Option<DataSegment> {
        let segment = u64::from(config.max_segment_size);
        let mut flight = self.next - self.unacknowledged;
        let len = segment.min(self.written - self.next);
        if len == 0 {
            return None;
        }
        if flight == 0 {
            self.restart_if_idle(config, now);
        }
        let len = self.fit_peer_window(len, flight)?;
        let mut cwnd = self.window.bytes();
        if self.rack.is_some() || self.counted.is_some() {
            flight = self.bytes_in_flight();
        } else if config.limited_transmit && self.phase == SenderPhase::Open {
            // RFC 3042 without SACK. With SACK, the pipe has room for data already received (RFC 6675 section 5 step
            // 3).
            match &self.scoreboard {
                Some(scoreboard) => flight = scoreboard.pipe(self.unacknowledged, self.highest),
                None => cwnd += u64::from(self.duplicates.min(2)) * segment,
            }
        } else if self.phase == SenderPhase::Loss {
            flight = self.bytes_in_flight();
        }
        if flight + len > cwnd || (config.stack == Stack::Linux && self.defers(config, now, cwnd - flight)) {
            self.limited_until = self.next;
            return None;
        }
        if flight + len + segment > cwnd {
            self.limited_until = self.next + len;
        }
        Some(self.send_new(config, now, len))
    }

    /// Returns whether the segment waits for another one, as in Linux: segments leave in bursts of at least two, so
    /// less than a burst waits for the next ACK if that is near (`tcp_tso_should_defer`). `room` is that of the congestion
    /// window.
    fn defers(&mut self, config: &TcpConfig, now: Instant, room: u64) -> bool {
        /// Data after a pause does not wait.
        const PAUSE: Duration = Duration::from_millis(1);
        if self.burst > 0 {
            self.burst -= 1;
            return false;
        }
        let segment = u64::from(config.max_segment_size);
        let (cwnd, peer) = (self.window.bytes(), u64::from(self.peer_window));
        let room = room.min(peer.saturating_sub(self.next - self.unacknowledged));
        let size = self.burst_segments(segment);
        let smoothed = self.round_trip.smoothed().unwrap_or(Duration::ZERO);
        let soon = Duration(smoothed.0 / 2).min(PAUSE);
        let ack_is_far = match &self.rack {
            Some(rack) => rack.first().is_none_or(|first| first.sent() + smoothed > now + soon),
            // Without SACK, only the ACK of a missing segment is known to be late.
            None => self.counted.as_ref().is_none_or(|counted| counted.arrived == 0),
        };
        if self.phase != SenderPhase::Open
            || self.written - self.next < 2 * segment
            || now.since(self.last_sent) > PAUSE
            || room >= size * segment
            || room >= cwnd.min(peer) / 3
            || ack_is_far
        {
            let rest = size.min(room / segment).saturating_sub(1);
            self.burst = u8::try_from(rest).unwrap_or(u8::MAX);
            return false;
        }
        true
    }

    /// Returns the number of segments of a burst: what Linux would pace in a millisecond, and more for round trips
    /// below 16 ms (`tcp_tso_autosize`).
    fn burst_segments(&self, segment: u64) -> u64 {
        const MAX_BYTES: u64 = 65_536;
        let (Some(smoothed), Some(min)) = (self.round_trip.smoothed(), self.round_trip.min()) else {
            return 2;
        };
        let cwnd = self.window.exact();
        let gain = if cwnd < self.window.slow_start_threshold() / 2.0 { 2.0 } else { 1.2 };
        let per_millisecond = gain * cwnd / smoothed.as_secs_f64().max(1e-6) / 1024.0;
        let for_short_paths = MAX_BYTES.checked_shr((min.0 / 512_000) as u32).unwrap_or(0);
        (((per_millisecond as u64).saturating_add(for_short_paths)).min(MAX_BYTES) / segment).max(2)
    }

    /// Returns the part of a segment that fits the receiver's window: all or nothing, which prevents the silly window
    /// syndrome, unless no data is outstanding that would open the window (RFC 9293 section 3.8.6.2.1).
    #[inline]
    pub(super) fn fit_peer_window(&self, len: u64, flight: u64) -> Option<u64> {
        let room = u64::from(self.peer_window).saturating_sub(self.next - self.unacknowledged);
        if len <= room { Some(len) } else { (flight == 0 && room > 0).then_some(room) }
    }

    #[inline]
    pub(super) fn send_new(&mut self, config: &TcpConfig, now: Instant, len: u64) -> DataSegment {
        let seq = self.next;
        self.next += len;
        self.highest = self.next;
        if self.timed_at == Instant::NEVER && !config.timestamps && self.phase != SenderPhase::Recovery {
            self.timed = self.next;
            self.timed_at = now;
        }
        if self.phase == SenderPhase::Loss
            && let Some(scoreboard) = &mut self.scoreboard
        {
            scoreboard.mark_retransmitted(self.next);
        }
        let cwr = config.ecn && core::mem::take(&mut self.cwr_pending);
        self.sent(now);
        if let Some(rack) = &mut self.rack {
            rack.record_transmission(now, seq, len as u32);
            self.schedule_probe(config, now);
        }
        if let Some(counted) = &mut self.counted {
            counted.reduction.sent(len);
        }
        DataSegment { seq, sent: now, len: len as u32, syn: false, cwr, retransmission: false }
    }

    /// Returns the next retransmission after a timeout: all missing data, in order and by slow start. SACK
    /// information from before the timeout is kept, which spares retransmitting data that has arrived. RFC 6675
    /// section 5.1 allows this if reneging is detected, which the scoreboard does.
    #[cold]
    pub(super) fn poll_after_timeout(&mut self, config: &TcpConfig, now: Instant) -> Option<DataSegment> {
        let segment = u64::from(config.max_segment_size);
        let mut end = self.highest;
        if let Some(scoreboard) = &mut self.scoreboard {
            let hole = scoreboard.hole_from(self.next, self.highest);
            scoreboard.mark_retransmitted(hole.start);
            self.next = hole.start.min(self.highest);
            end = hole.end;
        }
        if self.next >= self.highest {
            return self.poll_new(config, now);
        }
        let len = segment.min(end - self.next);
        if self.bytes_in_flight() + len > self.window.bytes() {
            self.limited_until = self.limited_until.max(self.next);
            return None;
        }
        let start = self.next;
        self.next += len;
        self.limited_until = self.limited_until.max(self.next);
        if let Some(scoreboard) = &mut self.scoreboard {
            scoreboard.mark_retransmitted(self.next);
        }
        Some(self.retransmit(now, start, len))
    }

    /// Retransmits the first outstanding segment.
    #[cold]
    pub(super) fn retransmit_first(&mut self, config: &TcpConfig, now: Instant) -> DataSegment {
        let start = self.unacknowledged;
        let segment = u64::from(config.max_segment_size);
        let end = match &mut self.scoreboard {
            Some(scoreboard) => scoreboard.begin_retransmission(start, self.highest, segment),
            None => self.highest.min(start + segment),
        };
        self.retransmit(now, start, end - start)
    }

    pub(super) fn retransmit(&mut self, now: Instant, seq: u64, len: u64) -> DataSegment {
        // Karn's algorithm: neither a segment sent twice nor an ACK that waited for it is timed.
        self.timed_at = Instant::NEVER;
        self.retransmissions += 1;
        self.sent(now);
        if let Some(counted) = &mut self.counted {
            counted.lost = 0;
            counted.reduction.sent(len);
        }
        DataSegment { seq, sent: now, len: len as u32, syn: false, cwr: false, retransmission: true }
    }

    #[inline]
    fn sent(&mut self, now: Instant) {
        self.last_sent = now;
        if self.deadline == Instant::NEVER {
            self.deadline = now + self.round_trip.rto();
        }
    }

    fn restart_if_idle(&mut self, config: &TcpConfig, now: Instant) {
        if self.next > 0
            && self.phase == SenderPhase::Open
            && now.since(self.last_sent) > self.round_trip.rto()
        {
            let before = self.window.bytes();
            self.window.restart(config);
            self.window.pause(config, now);
            if self.window.bytes() < before {
                self.event = Some(CongestionEvent::Reduced(WindowChangeCause::IdleRestart));
            }
        }
    }
}
