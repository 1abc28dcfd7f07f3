//! Loss recovery with RACK-TLP's loss detection (RFC 8985) and Proportional Rate Reduction (RFC 9937), as in Linux.
//!
//! Losses found during a recovery or the repair after a timeout are repaired within it, including those of
//! retransmissions. The loss of data first sent after its start begins the next one.

use super::{SenderPhase, TcpDataSender};
use crate::tcp::prr::Reduction;
use crate::tcp::rack::{ForwardRto, TailLossProbeState};
use crate::tcp::ranges::Range;
use crate::tcp::{Ack, CongestionEvent, DataSegment, Stack, TcpConfig, WindowChangeCause};
use crate::time::{Duration, Instant};

impl TcpDataSender {
    pub(super) fn handle_rack(&mut self, config: &TcpConfig, now: Instant, ack: &Ack, advanced: u64) {
        let Some(rack) = &mut self.rack else { return };
        let mut blocks = ack.sack.map(|(start, len)| {
            let start = ack.ack.saturating_add(u64::from(start));
            Range { start, end: start.saturating_add(u64::from(len)) }
        });
        // Reordering is detected by the order of arrivals, so the blocks of one ACK are processed in sequence order.
        blocks.sort_unstable_by_key(|block| block.start);
        let delivered = rack.acknowledge(now, ack.ack, blocks.into_iter(), self.round_trip.min());
        let plain_duplicate = advanced == 0 && ack.sack[0].1 == 0;
        self.handle_probe_ack(config, ack.ack, plain_duplicate);
        if config.stack == Stack::Linux && self.phase != SenderPhase::Open {
            self.undo_if_needless(config, ack, advanced);
            self.continue_forward_rto(advanced);
        }
        if self.phase == SenderPhase::Recovery {
            if advanced > 0 {
                self.restart_timer(now);
            }
            if self.unacknowledged >= self.recover {
                self.window.set_to_threshold();
                self.finish_recovery();
                if self.unacknowledged <= self.limited_until {
                    // This ACK already counts for congestion avoidance, as in Linux.
                    self.window.grow(config, now, &self.round_trip, delivered, false);
                }
            }
        } else if advanced > 0 {
            self.handle_progress(config, now, advanced);
        }
        let lost = self.detect_losses(config, now, delivered);
        if delivered > 0 {
            self.reduce_proportionally(config, delivered, advanced > 0 && lost == 0);
        }
        if !plain_duplicate {
            self.schedule_probe(config, now);
        }
    }

    /// Handles the reordering timer and the probe timer. Returns whether one of them expired.
    pub(super) fn handle_rack_timeout(&mut self, config: &TcpConfig, now: Instant) -> bool {
        let Some(rack) = &mut self.rack else { return false };
        if rack.reordering_deadline <= now {
            if self.detect_losses(config, now, 0) > 0 {
                // Nothing was delivered, but the lost data has left the network.
                self.reduce_proportionally(config, u64::from(config.max_segment_size), false);
            }
            return true;
        }
        if rack.probe_deadline <= now {
            rack.probe_deadline = Instant::NEVER;
            rack.probe = TailLossProbeState::Wanted;
            // The ACK of the probe arrives a round trip later.
            self.deadline = now + self.round_trip.rto();
            return true;
        }
        false
    }

    /// Returns the next segment: the probe, a lost segment, or new data.
    #[inline]
    pub(super) fn poll_rack(&mut self, config: &TcpConfig, now: Instant) -> Option<DataSegment> {
        let rack = self.rack.as_mut()?;
        if rack.probe == TailLossProbeState::Wanted {
            rack.probe = TailLossProbeState::None;
            return self.send_probe(config, now);
        }
        if let Some(first) = rack.first().filter(|_| self.retransmit_head) {
            self.retransmit_head = false;
            let (seq, len) = (first.seq, first.len);
            return Some(self.retransmit_segment(now, seq, len));
        }
        if rack.undo.forward == ForwardRto::NewDataOnly {
            return self.poll_new(config, now);
        }
        let Some(lost) = rack.next_lost() else { return self.poll_new(config, now) };
        let (seq, len) = (lost.seq, lost.len);
        if rack.pipe() + u64::from(len) > self.window.bytes() {
            self.limited_until = self.highest;
            return None;
        }
        Some(self.retransmit_segment(now, seq, len))
    }

    fn retransmit_segment(&mut self, now: Instant, seq: u64, len: u32) -> DataSegment {
        let end = seq + u64::from(len);
        if let Some(rack) = &mut self.rack {
            rack.record_retransmission(now, seq);
        }
        if seq <= self.unacknowledged {
            // The timer waits for the oldest segment, as in Linux.
            self.deadline = now + self.round_trip.rto();
        }
        self.limited_until = self.limited_until.max(end);
        self.retransmit(now, seq, u64::from(len))
    }

    fn detect_losses(&mut self, config: &TcpConfig, now: Instant, delivered: u64) -> u64 {
        let Some(rack) = &mut self.rack else { return 0 };
        let recovering = self.phase != SenderPhase::Open;
        let reordering_window =
            rack.reordering_window(recovering, self.round_trip.min(), self.round_trip.smoothed());
        let lost = rack.detect_losses(now, reordering_window);
        if !recovering && rack.has_losses() {
            rack.reduction = Reduction::begin(rack.missing() + delivered);
            rack.probe = TailLossProbeState::None;
            rack.probe_deadline = Instant::NEVER;
            rack.undo.begin(&self.window);
            let flight = self.flight();
            self.reduce_for_loss(config, flight, WindowChangeCause::FastRetransmit);
            self.phase = SenderPhase::Recovery;
            self.recover = self.highest;
        }
        lost
    }

    fn reduce_proportionally(&mut self, config: &TcpConfig, delivered: u64, safe: bool) {
        if self.phase == SenderPhase::Recovery
            && let Some(rack) = &mut self.rack
        {
            let segment = u64::from(config.max_segment_size);
            let threshold = self.window.slow_start_threshold();
            let pipe = rack.pipe();
            self.window.set(rack.reduction.window(threshold, pipe, delivered, safe, segment));
        }
    }
}

/// Recognition of needless reductions, as in Linux.
impl TcpDataSender {
    /// Begins the repair after a timeout: marks losses, and retransmits the first segment.
    pub(super) fn repair_after_timeout(&mut self, config: &TcpConfig, now: Instant, forward: bool) {
        let Some(rack) = &mut self.rack else { return };
        let reordering_window = match config.stack {
            Stack::Rfc => rack.reordering_window(true, self.round_trip.min(), self.round_trip.smoothed()),
            Stack::Linux => Duration::ZERO,
        };
        rack.mark_losses_on_timeout(now, reordering_window);
        self.retransmit_head = true;
        if config.stack == Stack::Linux {
            self.window.set((rack.pipe() + u64::from(config.max_segment_size)) as f64);
            rack.undo.sent_before = self.highest;
            rack.undo.forward = if forward { ForwardRto::Watching } else { ForwardRto::Off };
        }
    }

    /// Restores the window if the losses were none: the ACK echoes a timestamp from before the first retransmission
    /// (RFC 3522), or F-RTO has seen data arrive that was sent once, before the timeout (RFC 5682).
    fn undo_if_needless(&mut self, config: &TcpConfig, ack: &Ack, advanced: u64) {
        let Some(rack) = &mut self.rack else { return };
        let undo = &rack.undo;
        let echoed_earlier = advanced > 0 && config.timestamps && ack.echo < undo.retransmitted_at;
        let arrived_late = undo.forward != ForwardRto::Off && undo.original_arrived;
        if undo.retransmitted_at == Instant::NEVER || !(echoed_earlier || arrived_late) {
            return;
        }
        let (cwnd, threshold) = undo.before;
        rack.undo.forward = ForwardRto::Off;
        rack.forget_losses();
        self.window.restore(cwnd, threshold);
        self.phase = SenderPhase::Open;
        self.event = Some(CongestionEvent::Recovered);
    }

    /// F-RTO (RFC 5682 section 3.1): if the ACK of the first retransmission does not cover everything, new data is
    /// sent next. If duplicate ACKs answer it, the older data is lost.
    fn continue_forward_rto(&mut self, advanced: u64) {
        let may_send_new = self.written > self.next && self.fit_peer_window(1, 1).is_some();
        let new_data_sent = self.next > self.recover;
        let Some(rack) = &mut self.rack else { return };
        rack.undo.forward = match rack.undo.forward {
            ForwardRto::Off => ForwardRto::Off,
            _ if new_data_sent && (advanced == 0 || rack.undo.range_arrived) => ForwardRto::Off,
            _ if new_data_sent || advanced == 0 || self.unacknowledged >= self.recover => {
                ForwardRto::Watching
            }
            _ if may_send_new => {
                self.recover = self.highest;
                ForwardRto::NewDataOnly
            }
            _ => ForwardRto::Off,
        };
    }
}

/// The tail-loss probe (RFC 8985 section 7).
impl TcpDataSender {
    /// Sets the probe timer after new data was sent or acknowledged.
    #[inline]
    pub(super) fn schedule_probe(&mut self, config: &TcpConfig, now: Instant) {
        let Some(rack) = &mut self.rack else { return };
        rack.probe_deadline = if self.phase == SenderPhase::Open && rack.may_probe() {
            let wait = if config.stack == Stack::Linux { config.min_rto } else { config.delayed_ack };
            let timeout = rack.probe_timeout(self.round_trip.smoothed(), wait);
            (now + timeout).min(self.deadline)
        } else {
            Instant::NEVER
        };
    }

    /// Sends the probe: new data that fits the receiver's window, beyond the congestion window if necessary;
    /// otherwise a retransmission of the last segment.
    fn send_probe(&mut self, config: &TcpConfig, now: Instant) -> Option<DataSegment> {
        let flight = self.next - self.unacknowledged;
        let unsent = u64::from(config.max_segment_size).min(self.written - self.next);
        let fits = (unsent > 0).then(|| self.fit_peer_window(unsent, flight)).flatten();
        let data = match fits {
            Some(len) => self.send_new(config, now, len),
            None => {
                let last = self.rack.as_ref()?.last()?;
                let (seq, len) = (last.seq, last.len);
                self.retransmit_segment(now, seq, len)
            }
        };
        let rack = self.rack.as_mut()?;
        rack.probe = TailLossProbeState::Sent { end: self.highest, retransmission: data.retransmission };
        rack.probe_deadline = Instant::NEVER;
        Some(data)
    }

    /// TLP_process_ack(). Without duplicate SACK, a needless probe is recognized by the plain duplicate ACK that it
    /// causes.
    fn handle_probe_ack(&mut self, config: &TcpConfig, ack: u64, plain_duplicate: bool) {
        let Some(rack) = &mut self.rack else { return };
        let TailLossProbeState::Sent { end, retransmission } = rack.probe else { return };
        if ack < end || (retransmission && ack == end && !plain_duplicate) {
            return;
        }
        rack.probe = TailLossProbeState::None;
        if retransmission && ack > end && self.phase == SenderPhase::Open {
            // The probe has repaired a loss that was not detected otherwise: the tail of a window of data. Little of
            // it was still in flight, so the reduction is based on the window.
            self.reduce_for_loss(config, self.window.bytes(), WindowChangeCause::TailLossProbe);
            self.window.set_to_threshold();
        }
    }
}
