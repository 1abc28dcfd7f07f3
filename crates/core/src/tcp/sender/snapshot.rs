//! State of a sender, for observers.

use super::{SenderPhase, TcpDataSender};
use crate::tcp::TcpConfig;
use crate::tcp::event::{CongestionState, FlowSnapshot};

impl TcpDataSender {
    fn is_disordered(&self) -> bool {
        self.duplicates > 0 || self.counted.as_ref().is_some_and(|counted| counted.arrived > 0)
    }

    /// Returns the current state.
    pub fn snapshot(&self, config: &TcpConfig) -> FlowSnapshot {
        let ssthresh = self.window.slow_start_threshold();
        FlowSnapshot {
            state: match self.phase {
                SenderPhase::Open
                    if self.reduced_without_loss && self.unacknowledged < self.reduced_until =>
                {
                    CongestionState::Reducing
                }
                SenderPhase::Open if self.is_disordered() => CongestionState::Disorder,
                SenderPhase::Open => CongestionState::Open,
                SenderPhase::Recovery => CongestionState::Recovery,
                SenderPhase::Loss => CongestionState::Loss,
            },
            segment: config.max_segment_size,
            cwnd: self.window.bytes(),
            ssthresh: ssthresh.is_finite().then_some(ssthresh as u64),
            in_flight: self.bytes_in_flight(),
            outstanding: self.highest - self.unacknowledged,
            unsent: self.written - self.highest.min(self.written),
            peer_window: self.advertised_window(),
            smoothed_round_trip: self.smoothed_round_trip(),
            min_round_trip: self.min_round_trip(),
            latest_round_trip: None,
            pacing_rate: None,
            delivery_rate: None,
            acknowledged: self.unacknowledged,
            retransmissions: self.retransmissions,
            send_buffer_full: false,
            model_based: false,
        }
    }
}
