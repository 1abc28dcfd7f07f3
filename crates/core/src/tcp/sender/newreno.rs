//! Fast retransmit and fast recovery without SACK: Reno (RFC 5681 section 3.2) and NewReno (RFC 6582).
//!
//! Options of RFC 6582: the careful test without the heuristics of section 4 (a recovery begins only for ACKs beyond
//! the end of the last one); the retransmission timer restarts only at the first partial ACK ("impatient"); a full
//! ACK sets the window by option 1, so that no burst follows. Reno applies the test only after timeouts, because RFC
//! 5681 lets each loss found in one window reduce it again.

use super::{SenderPhase, TcpDataSender};
use crate::tcp::scoreboard::DUPLICATE_THRESHOLD;
use crate::tcp::{Algorithm, CongestionEvent, TcpConfig, WindowChangeCause};
use crate::time::Instant;

impl TcpDataSender {
    #[inline]
    pub(super) fn handle_new_ack(&mut self, config: &TcpConfig, now: Instant, advanced: u64) {
        if self.phase != SenderPhase::Recovery {
            self.handle_progress(config, now, advanced);
            return;
        }
        if config.algorithm == Algorithm::Reno {
            self.window.set_to_threshold();
            self.leave_recovery(now);
        } else if self.unacknowledged >= self.recover {
            let segment = f64::from(config.max_segment_size);
            let flight = (self.highest - self.unacknowledged) as f64;
            let window = self.window.slow_start_threshold().min(flight.max(segment) + segment);
            self.window.set(window);
            self.leave_recovery(now);
        } else {
            self.handle_partial_ack(config, now, advanced);
        }
    }

    fn leave_recovery(&mut self, now: Instant) {
        self.phase = SenderPhase::Open;
        self.duplicates = 0;
        self.event = Some(CongestionEvent::Recovered);
        self.restart_timer(now);
    }

    /// Handles a partial ACK: retransmits the next hole, deflates the window by the data that left the network, and
    /// adds one segment for the retransmission (RFC 6582 section 3.2 step 3).
    fn handle_partial_ack(&mut self, config: &TcpConfig, now: Instant, advanced: u64) {
        let segment = f64::from(config.max_segment_size);
        self.retransmit_head = true;
        let advanced = advanced as f64;
        let refill = if advanced >= segment { segment } else { 0.0 };
        self.window.set((self.window.exact() - advanced + refill).max(segment));
        if !self.partial {
            self.partial = true;
            self.restart_timer(now);
        }
    }

    #[cold]
    pub(super) fn handle_duplicate(&mut self, config: &TcpConfig) {
        let segment = f64::from(config.max_segment_size);
        match self.phase {
            SenderPhase::Loss => {}
            SenderPhase::Recovery => {
                // Not more segments can have left the network than were outstanding (RFC 5681 section 3.2 step 4).
                let outstanding = (self.highest - self.unacknowledged) as f64;
                let limit = self.window.slow_start_threshold() + outstanding;
                self.window.set((self.window.exact() + segment).min(limit).max(self.window.exact()));
            }
            SenderPhase::Open => {
                self.duplicates = self.duplicates.saturating_add(1);
                if u32::from(self.duplicates) == DUPLICATE_THRESHOLD && self.may_recover() {
                    self.reduce_for_loss(config, self.flight(), WindowChangeCause::FastRetransmit);
                    let inflated =
                        self.window.slow_start_threshold() + f64::from(DUPLICATE_THRESHOLD) * segment;
                    self.window.set(inflated);
                    self.phase = SenderPhase::Recovery;
                    if config.algorithm != Algorithm::Reno {
                        self.recover = self.highest;
                    }
                    self.partial = false;
                    self.retransmit_head = true;
                }
            }
        }
    }

    /// Returns whether the ACK covers more than the last recovery repaired, so that its duplicates cannot come from
    /// retransmissions of that recovery.
    pub(super) fn may_recover(&self) -> bool {
        self.unacknowledged > self.recover || self.recover == 0
    }
}
