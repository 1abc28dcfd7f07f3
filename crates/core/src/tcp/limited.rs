//! When something other than congestion begins to hold a sender back.

use super::event::{Cause, Limit, Snapshot};

/// What holds a sender back, from one ACK to the next.
///
/// Hand it the snapshot of each ACK, in order, as it is before the ACK is processed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limited {
    by_peer: bool,
    /// Once so much is acknowledged, the application has held the sender back for a whole round trip.
    round_ends: Option<u64>,
    by_application: bool,
}

impl Limited {
    /// What begins to hold the sender back: the peer's window at once, the application after a round trip in
    /// which nothing else did, since every transfer ends by having nothing more to send. Each is told again
    /// once the congestion window has held the sender back in between.
    pub fn observe(&mut self, snapshot: &Snapshot) -> Option<Cause> {
        let limit = snapshot.limit();
        if limit != Limit::Application {
            self.round_ends = None;
        }
        match limit {
            Limit::PeerWindow => {
                let begins = !self.by_peer && snapshot.peer_window < snapshot.cwnd;
                self.by_peer |= begins;
                begins.then_some(Cause::ReceiverWindow)
            }
            Limit::CongestionWindow => {
                (self.by_peer, self.by_application) = (false, false);
                None
            }
            Limit::Application => {
                let end = *self.round_ends.get_or_insert(snapshot.acknowledged + snapshot.outstanding);
                let begins = !self.by_application && snapshot.acknowledged >= end;
                self.by_application |= begins;
                begins.then_some(Cause::ApplicationLimited)
            }
            Limit::Pacing => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::event::tests::SNAPSHOT;

    const HELD: Snapshot = Snapshot { in_flight: 4_000, outstanding: 4_000, peer_window: 4_000, ..SNAPSHOT };
    const SHORT: Snapshot = Snapshot { unsent: 0, ..SNAPSHOT };

    #[test]
    fn a_small_peer_window_is_told_once() {
        let mut limited = Limited::default();
        let told = [HELD, HELD, SHORT, HELD, SNAPSHOT, HELD].map(|snapshot| limited.observe(&snapshot));
        let cause = Some(Cause::ReceiverWindow);
        assert_eq!(told, [cause, None, None, None, None, cause]);
    }

    #[test]
    fn an_application_is_told_after_a_round_trip() {
        let mut limited = Limited::default();
        let short = |acknowledged| Snapshot { acknowledged, outstanding: 10_000 - acknowledged, ..SHORT };
        assert_eq!([0, 4_000, 9_000].map(|acked| limited.observe(&short(acked))), [None; 3]);
        // A transfer ends, and the next begins with a full window.
        assert_eq!(limited.observe(&Snapshot { acknowledged: 10_000, ..SNAPSHOT }), None);
        // One that goes on with too little.
        assert_eq!(limited.observe(&short(0)), None);
        let next = Snapshot { acknowledged: 10_000, outstanding: 3_000, ..SHORT };
        assert_eq!(
            [next, next].map(|snapshot| limited.observe(&snapshot)),
            [Some(Cause::ApplicationLimited), None]
        );
    }
}
