//! Loss recovery without SACK as in Linux: every duplicate ACK counts as an arrived segment. The amount in flight
//! and Proportional Rate Reduction (RFC 9937) are based on this count. A recovery repairs one loss per round trip
//! ("slow but steady", RFC 6582 section 4).

use alloc::boxed::Box;

use super::{SenderPhase, TcpDataSender};
use crate::tcp::prr::Reduction;
use crate::tcp::scoreboard::DUPLICATE_THRESHOLD;
use crate::tcp::{Stack, TcpConfig, WindowChangeCause};
use crate::time::Instant;

/// Segments counted as arrived, and the reduction of the window.
#[derive(Clone, Debug, Default)]
pub(super) struct CountedArrivals {
    /// Bytes above the first missing segment.
    pub arrived: u64,
    /// Bytes lost and not retransmitted since.
    pub lost: u64,
    pub reduction: Reduction,
}

impl CountedArrivals {
    /// Returns the state for a configuration that uses it.
    pub fn new(config: &TcpConfig) -> Option<Box<CountedArrivals>> {
        (config.stack == Stack::Linux && !config.sack).then(Box::default)
    }

    /// Handles an ACK of `advanced` new bytes, or a duplicate ACK, with `outstanding` bytes still unacknowledged.
    /// Returns the bytes newly counted as arrived.
    fn count(&mut self, advanced: u64, outstanding: u64, segment: u64) -> u64 {
        if advanced == 0 {
            // The first segment is missing.
            let counted = (self.arrived + segment).min(outstanding.saturating_sub(segment));
            return counted.saturating_sub(core::mem::replace(&mut self.arrived, counted));
        }
        // One segment has filled the hole. Duplicates have counted the others.
        let delivered = advanced.saturating_sub(self.arrived).max(segment.min(advanced));
        self.arrived = self.arrived.saturating_sub(advanced.saturating_sub(segment));
        delivered
    }
}

impl TcpDataSender {
    /// Handles an ACK of `advanced` new bytes, or a duplicate ACK.
    pub(super) fn handle_counted(&mut self, config: &TcpConfig, now: Instant, advanced: u64) {
        let segment = u64::from(config.max_segment_size);
        let outstanding = self.highest - self.unacknowledged;
        let may_recover = self.may_recover();
        let Some(counted) = &mut self.counted else { return };
        if advanced == 0
            && (self.phase == SenderPhase::Loss || !may_recover && self.phase == SenderPhase::Open)
        {
            // It may come from a retransmission.
            return;
        }
        let delivered = counted.count(advanced, outstanding, segment);
        let enough = counted.arrived >= u64::from(DUPLICATE_THRESHOLD) * segment;
        let mut safe = advanced > 0;
        match self.phase {
            SenderPhase::Open | SenderPhase::Loss if advanced > 0 => {
                counted.arrived = 0;
                self.handle_progress(config, now, advanced);
            }
            SenderPhase::Open if enough => {
                let flight = self.flight();
                self.reduce_for_loss(config, flight, WindowChangeCause::FastRetransmit);
                let counted = self.counted.as_mut().expect("checked above");
                counted.reduction = Reduction::begin(flight);
                counted.lost = segment;
                self.phase = SenderPhase::Recovery;
                self.recover = self.highest;
                self.retransmit_head = true;
            }
            SenderPhase::Recovery if self.unacknowledged > self.recover => {
                counted.arrived = 0;
                self.window.set_to_threshold();
                self.finish_recovery();
                self.restart_timer(now);
            }
            SenderPhase::Recovery if advanced > 0 => {
                // Duplicates of the last ACK of a recovery may come from its retransmissions, so the recovery ends
                // only above it.
                self.retransmit_head = self.unacknowledged < self.recover;
                if self.retransmit_head {
                    counted.lost = segment;
                    safe = false;
                }
                self.restart_timer(now);
            }
            SenderPhase::Open | SenderPhase::Recovery | SenderPhase::Loss => {}
        }
        if self.phase == SenderPhase::Recovery && delivered > 0 {
            let (pipe, threshold) = (self.bytes_in_flight(), self.window.slow_start_threshold());
            let counted = self.counted.as_mut().expect("checked above");
            self.window.set(counted.reduction.window(threshold, pipe, delivered, safe, segment));
        }
    }
}
