//! What happens to a TCP sender's window, and how the flow stood: the same for a simulated sender and for
//! one of the kernel's. Where the events come from, and which flow they are of, is the caller's.

use crate::quantity::BitRate;
use crate::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// An event of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowEvent {
    /// When.
    pub time: Instant,
    /// What.
    #[serde(flatten)]
    pub kind: Kind,
    /// How the flow then stood.
    #[serde(flatten)]
    pub snapshot: Snapshot,
}

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event", content = "cause")]
pub enum Kind {
    /// The flow was established, or first seen.
    Began,
    /// An acknowledgement arrived; the snapshot is of before it was processed, when most was in flight.
    Acknowledged,
    /// A segment left again.
    Retransmitted,
    /// What may be in flight changed in another way than by growing.
    Window(Cause),
    /// Everything outstanding at the last loss or mark is acknowledged.
    Recovered,
    /// The flow was closed.
    Ended,
}

/// What a sender tells about its congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The window was reduced.
    Reduced(Cause),
    /// Everything outstanding at the last loss is acknowledged.
    Recovered,
}

/// Why what a sender may have in flight fell, or was put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A queue of the sender's own host refused a segment.
    LocalDevice,
    /// The receiver echoed a congestion mark.
    Ecn,
    /// Duplicate or selective acknowledgements told of a loss, or time since them (RFC 8985).
    FastRetransmit,
    /// A tail-loss probe repaired a loss (RFC 8985 section 7.4).
    TailLossProbe,
    /// The retransmission timer expired.
    Timeout,
    /// The reduction before was found needless, as by Eifel (RFC 3522), F-RTO (RFC 5682) or duplicate SACK
    /// (RFC 3708), and taken back.
    Undo,
    /// The flow sent nothing for longer than a timeout and begins anew (RFC 5681 section 4.1).
    IdleRestart,
    /// The receiver advertised less than the congestion window, and that is full.
    ReceiverWindow,
    /// For a whole round trip the application wrote too little to fill the window, or the unused part of it
    /// decays (RFC 2861).
    ApplicationLimited,
}

impl Cause {
    /// Every cause, in the order in which they are shown.
    pub const ALL: [Cause; 9] = [
        Cause::LocalDevice,
        Cause::Ecn,
        Cause::FastRetransmit,
        Cause::TailLossProbe,
        Cause::Timeout,
        Cause::Undo,
        Cause::IdleRestart,
        Cause::ReceiverWindow,
        Cause::ApplicationLimited,
    ];

    /// Whether it is a sign of congestion, here or on the way.
    pub const fn is_congestion(self) -> bool {
        use Cause::*;
        matches!(self, LocalDevice | Ecn | FastRetransmit | TailLossProbe | Timeout)
    }

    /// Its name, as events carry it.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::LocalDevice => "local-device",
            Cause::Ecn => "ecn",
            Cause::FastRetransmit => "fast-retransmit",
            Cause::TailLossProbe => "tail-loss-probe",
            Cause::Timeout => "timeout",
            Cause::Undo => "undo",
            Cause::IdleRestart => "idle-restart",
            Cause::ReceiverWindow => "receiver-window",
            Cause::ApplicationLimited => "application-limited",
        }
    }
}

/// How a flow stands. Sizes are bytes of payload; what a stage does not know is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The state of its congestion control.
    pub state: State,
    /// Payload of a full segment: windows over it are in segments.
    pub segment: u32,
    /// The congestion window.
    pub cwnd: u64,
    /// The slow-start threshold; none before the first reduction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssthresh: Option<u64>,
    /// What the sender takes to be in the network: outstanding, without what was received out of order or
    /// lost, and with what was sent again.
    pub in_flight: u64,
    /// Sent and not acknowledged, which the peer's window bounds.
    pub outstanding: u64,
    /// Written by the application and never sent.
    pub unsent: u64,
    /// The peer's advertised window.
    pub peer_window: u64,
    /// Smoothed round-trip time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smoothed_round_trip: Option<Duration>,
    /// Smallest round-trip time of late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_round_trip: Option<Duration>,
    /// The rate at which the host paces segments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing_rate: Option<BitRate>,
    /// The rate at which the latest data was delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_rate: Option<BitRate>,
    /// Acknowledged since the flow began.
    pub acknowledged: u64,
    /// Segments sent again since the flow began.
    pub retransmissions: u64,
}

/// The state of a sender's congestion control, by Linux's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Nothing is amiss.
    #[default]
    Open,
    /// Something is missing that may only be late.
    Disorder,
    /// The window is being reduced, and nothing is lost.
    Reducing,
    /// A loss is being repaired.
    Recovery,
    /// After a timeout.
    Loss,
}

/// What keeps a sender from sending more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// Its congestion window.
    CongestionWindow,
    /// The peer's advertised window.
    PeerWindow,
    /// The application: all it wrote is sent.
    Application,
    /// Pacing, or a queue of the host's: there is data and room in both windows.
    Pacing,
}

impl Limit {
    /// Every limit, in the order in which they are shown.
    pub const ALL: [Limit; 4] =
        [Limit::CongestionWindow, Limit::PeerWindow, Limit::Application, Limit::Pacing];

    /// Its name, as events carry it.
    pub const fn name(self) -> &'static str {
        match self {
            Limit::CongestionWindow => "congestion-window",
            Limit::PeerWindow => "peer-window",
            Limit::Application => "application",
            Limit::Pacing => "pacing",
        }
    }
}

impl Snapshot {
    /// What may be in flight: the smaller of the two windows.
    pub fn window(&self) -> u64 {
        self.cwnd.min(self.peer_window)
    }

    /// What keeps the sender from sending more.
    pub fn limit(&self) -> Limit {
        let next = u64::from(self.segment).min(self.unsent);
        if next == 0 {
            Limit::Application
        } else if self.in_flight + next > self.cwnd {
            Limit::CongestionWindow
        } else if self.outstanding + next > self.peer_window {
            Limit::PeerWindow
        } else {
            Limit::Pacing
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const SNAPSHOT: Snapshot = Snapshot {
        state: State::Open,
        segment: 1_000,
        cwnd: 10_000,
        ssthresh: None,
        in_flight: 10_000,
        outstanding: 10_000,
        unsent: 1 << 20,
        peer_window: 64_000,
        smoothed_round_trip: None,
        min_round_trip: None,
        pacing_rate: None,
        delivery_rate: None,
        acknowledged: 0,
        retransmissions: 0,
    };

    #[test]
    fn the_limit_is_what_refuses_the_next_segment() {
        assert_eq!(SNAPSHOT.limit(), Limit::CongestionWindow);
        assert_eq!(Snapshot { unsent: 0, ..SNAPSHOT }.limit(), Limit::Application);
        let small = Snapshot { in_flight: 4_500, outstanding: 4_500, peer_window: 5_000, ..SNAPSHOT };
        assert_eq!((small.limit(), small.window()), (Limit::PeerWindow, 5_000));
        // Half a segment fits where no more was written.
        assert_eq!(Snapshot { unsent: 500, ..small }.limit(), Limit::Pacing);
        // Received out of order: the congestion window has room, the peer's may not.
        let sacked = Snapshot { in_flight: 2_000, outstanding: 64_000, ..SNAPSHOT };
        assert_eq!(sacked.limit(), Limit::PeerWindow);
    }
}
