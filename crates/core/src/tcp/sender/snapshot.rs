//! State of a sender, for observers.

use super::{Phase, Sender};
use crate::tcp::Config;
use crate::tcp::event::{Snapshot, State};

impl Sender {
    /// Returns the current state.
    pub fn snapshot(&self, config: &Config) -> Snapshot {
        let ssthresh = self.window.slow_start_threshold();
        Snapshot {
            state: match self.phase {
                Phase::Open if self.reduced_without_loss && self.unacknowledged < self.reduced_until => {
                    State::Reducing
                }
                Phase::Open if self.duplicates > 0 => State::Disorder,
                Phase::Open => State::Open,
                Phase::Recovery => State::Recovery,
                Phase::Loss => State::Loss,
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
            pacing_rate: None,
            delivery_rate: None,
            acknowledged: self.unacknowledged,
            retransmissions: self.retransmissions,
        }
    }
}
