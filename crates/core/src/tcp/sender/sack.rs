//! Loss recovery with selective acknowledgments (RFC 6675 section 5).

use alloc::boxed::Box;

use super::{SenderPhase, TcpDataSender};
use crate::tcp::scoreboard::{DUPLICATE_THRESHOLD, Scoreboard};
use crate::tcp::{Ack, DataSegment, TcpConfig, WindowChangeCause};
use crate::time::Instant;

impl TcpDataSender {
    /// Handles an ACK that has blocks, or that arrives while the scoreboard is in use.
    #[cold]
    pub(super) fn handle_sack(&mut self, config: &TcpConfig, now: Instant, ack: &Ack, advanced: u64) {
        let segment = u64::from(config.max_segment_size);
        let blocks = ack.sack.iter().take_while(|block| block.1 != 0).map(|&(start, len)| {
            let start = ack.ack.saturating_add(u64::from(start));
            (start, start.saturating_add(u64::from(len)))
        });
        let retransmitted = if self.phase == SenderPhase::Loss { self.next } else { self.unacknowledged };
        let scoreboard = self.scoreboard.get_or_insert_with(|| Box::new(Scoreboard::new(retransmitted)));
        let has_news = scoreboard.update(self.unacknowledged, self.highest, blocks, segment);
        let head_lost = scoreboard.is_lost(self.unacknowledged);

        if self.phase == SenderPhase::Recovery {
            if advanced > 0 {
                self.restart_timer(now);
            }
            if self.unacknowledged >= self.recover {
                self.duplicates = 0;
                self.finish_recovery();
            }
        } else if advanced > 0 {
            self.handle_progress(config, now, advanced);
        }
        if has_news && self.phase == SenderPhase::Open {
            self.duplicates = self.duplicates.saturating_add(1);
            if u32::from(self.duplicates) >= DUPLICATE_THRESHOLD || head_lost {
                self.enter_sack_recovery(config);
            }
        }
        if self.phase != SenderPhase::Recovery && self.scoreboard.as_ref().is_some_and(|s| s.is_empty()) {
            self.scoreboard = None;
        }
    }

    /// RFC 6675 section 5 step 4.
    fn enter_sack_recovery(&mut self, config: &TcpConfig) {
        self.reduce_for_loss(config, self.flight(), WindowChangeCause::FastRetransmit);
        self.window.set_to_threshold();
        self.phase = SenderPhase::Recovery;
        self.recover = self.highest;
        self.retransmit_head = true;
    }

    /// RFC 6675 section 5 step C with NextSeg() of section 4.
    pub(super) fn poll_sack(&mut self, config: &TcpConfig, now: Instant) -> Option<DataSegment> {
        let segment = u64::from(config.max_segment_size);
        let scoreboard = self.scoreboard.as_mut()?;
        if scoreboard.pipe(self.unacknowledged, self.highest) + segment > self.window.bytes() {
            self.limited_until = self.next;
            return None;
        }
        if let Some(lost) = scoreboard.next_hole(false, segment) {
            scoreboard.mark_retransmitted(lost.end);
            return Some(self.retransmit(now, lost.start, lost.len()));
        }
        let unsent = segment.min(self.written - self.next);
        if unsent > 0
            && let Some(len) = self.fit_peer_window(unsent, self.next - self.unacknowledged)
        {
            return Some(self.send_new(config, now, len));
        }
        let scoreboard = self.scoreboard.as_mut()?;
        if let Some(missing) = scoreboard.next_hole(true, segment) {
            scoreboard.mark_retransmitted(missing.end);
            return Some(self.retransmit(now, missing.start, missing.len()));
        }
        let last = scoreboard.rescue(self.unacknowledged, self.highest, self.recover, segment)?;
        Some(self.retransmit(now, last.start, last.len()))
    }
}
