//! Detection of the time when a limit other than congestion begins to restrict a sender.

use super::event::{FlowSnapshot, SendLimit, WindowChangeCause};

/// Detector for limits of a sender, from one ACK to the next.
///
/// Pass the snapshot of each ACK, in order and from before the ACK is processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitDetector {
    peer_limited: bool,
    /// Number of acknowledged bytes at which the application has limited the sender for a whole round trip.
    round_ends: Option<u64>,
    application_limited: bool,
    closed: bool,
}

impl LimitDetector {
    /// Returns the limit that begins. The peer's window counts at once, each time it closes, the application after a round trip without
    /// other limits, because every transfer ends with nothing more to send. Each is reported again only after the
    /// congestion window has limited the sender in between.
    pub fn observe(&mut self, snapshot: &FlowSnapshot) -> Option<WindowChangeCause> {
        let is_closed = snapshot.is_window_closed();
        if core::mem::replace(&mut self.closed, is_closed) != is_closed && is_closed {
            self.peer_limited = true;
            return Some(WindowChangeCause::ZeroWindow);
        }
        let limit = snapshot.limit();
        if limit != SendLimit::Application {
            self.round_ends = None;
        }
        match limit {
            SendLimit::PeerWindow => {
                let begins = !self.peer_limited && snapshot.peer_window < snapshot.cwnd;
                self.peer_limited |= begins;
                begins.then_some(WindowChangeCause::ReceiverWindow)
            }
            SendLimit::CongestionWindow => {
                (self.peer_limited, self.application_limited) = (false, false);
                None
            }
            SendLimit::Application => {
                let end = *self.round_ends.get_or_insert(snapshot.acknowledged + snapshot.outstanding);
                let begins = !self.application_limited && snapshot.acknowledged >= end;
                self.application_limited |= begins;
                begins.then_some(WindowChangeCause::ApplicationLimited)
            }
            SendLimit::Pacing | SendLimit::SendBuffer => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::event::tests::SNAPSHOT;

    const PEER_LIMITED: FlowSnapshot =
        FlowSnapshot { in_flight: 4_000, outstanding: 4_000, peer_window: 4_000, ..SNAPSHOT };
    const APPLICATION_LIMITED: FlowSnapshot = FlowSnapshot { unsent: 0, ..SNAPSHOT };

    #[test]
    fn small_peer_window_is_reported_once() {
        let mut limited = LimitDetector::default();
        let causes = [PEER_LIMITED, PEER_LIMITED, APPLICATION_LIMITED, PEER_LIMITED, SNAPSHOT, PEER_LIMITED]
            .map(|snapshot| limited.observe(&snapshot));
        let cause = Some(WindowChangeCause::ReceiverWindow);
        assert_eq!(causes, [cause, None, None, None, None, cause]);
    }

    #[test]
    fn closed_window_is_reported_each_time_it_closes() {
        let mut limited = LimitDetector::default();
        let closed = FlowSnapshot { in_flight: 0, outstanding: 0, peer_window: 0, ..SNAPSHOT };
        let causes =
            [PEER_LIMITED, closed, closed, PEER_LIMITED, closed].map(|snapshot| limited.observe(&snapshot));
        let zero = Some(WindowChangeCause::ZeroWindow);
        assert_eq!(causes, [Some(WindowChangeCause::ReceiverWindow), zero, None, None, zero]);
    }

    #[test]
    fn application_limit_is_reported_after_a_round_trip() {
        let mut limited = LimitDetector::default();
        let limited_at = |acknowledged| FlowSnapshot {
            acknowledged,
            outstanding: 10_000 - acknowledged,
            ..APPLICATION_LIMITED
        };
        assert_eq!([0, 4_000, 9_000].map(|acked| limited.observe(&limited_at(acked))), [None; 3]);
        // The transfer ends, and the next begins with a full window.
        assert_eq!(limited.observe(&FlowSnapshot { acknowledged: 10_000, ..SNAPSHOT }), None);
        // That transfer continues with too little data.
        assert_eq!(limited.observe(&limited_at(0)), None);
        let next = FlowSnapshot { acknowledged: 10_000, outstanding: 3_000, ..APPLICATION_LIMITED };
        assert_eq!(
            [next, next].map(|snapshot| limited.observe(&snapshot)),
            [Some(WindowChangeCause::ApplicationLimited), None]
        );
    }
}
