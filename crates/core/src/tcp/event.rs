//! Window changes and state of a TCP sender, the same for a simulated sender and one of the kernel. The caller keeps
//! track of the source of the events and of their flow.

use crate::quantity::BitRate;
use crate::time::{Duration, Instant};
use serde::{Deserialize, Serialize};

/// An event of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowEvent {
    /// Time of the event.
    pub time: Instant,
    /// Kind of the event.
    #[serde(flatten)]
    pub kind: FlowEventKind,
    /// State of the flow at the event.
    #[serde(flatten)]
    pub snapshot: FlowSnapshot,
}

/// Kind of an event of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event", content = "cause")]
pub enum FlowEventKind {
    /// The flow was established or first observed.
    Began,
    /// An acknowledgment arrived. The snapshot precedes its processing, when the most data is in flight.
    Acknowledged,
    /// A segment was retransmitted.
    Retransmitted,
    /// The usable window changed other than by growth.
    Window(WindowChangeCause),
    /// Everything outstanding at the last loss or mark is acknowledged.
    Recovered,
    /// The flow was closed.
    Ended,
}

/// Congestion control event of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionEvent {
    /// The window was reduced.
    Reduced(WindowChangeCause),
    /// Everything outstanding at the last loss is acknowledged.
    Recovered,
}

/// Cause of a reduction or restoration of the usable window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WindowChangeCause {
    /// A queue of the sender's own host refused a segment.
    LocalDevice,
    /// The receiver echoed a congestion mark.
    Ecn,
    /// Duplicate or selective acknowledgments, or the time since them (RFC 8985), indicated a loss.
    FastRetransmit,
    /// A tail-loss probe repaired a loss (RFC 8985 section 7.4).
    TailLossProbe,
    /// The retransmission timer expired.
    Timeout,
    /// The last reduction was found needless, as by Eifel (RFC 3522), F-RTO (RFC 5682) or duplicate SACK (RFC 3708),
    /// and was reverted.
    Undo,
    /// The flow sent nothing for longer than a timeout and restarts (RFC 5681 section 4.1).
    IdleRestart,
    /// The advertised window is smaller than the congestion window, and full.
    ReceiverWindow,
    /// The application wrote too little to fill the window for a whole round trip, or the unused part of the window
    /// decays (RFC 2861).
    ApplicationLimited,
    /// Segments exceeded the path MTU, and were split and retransmitted (RFC 1191, RFC 8201).
    PathMtu,
    /// The peer advertised a window without room for a segment (RFC 9293 section 3.8.6.1).
    ZeroWindow,
    /// A model-based congestion control emptied the path to measure its round trip, as BBR does.
    ProbeRoundTrip,
}

impl WindowChangeCause {
    /// All causes, in display order.
    pub const ALL: [WindowChangeCause; 12] = [
        WindowChangeCause::LocalDevice,
        WindowChangeCause::Ecn,
        WindowChangeCause::FastRetransmit,
        WindowChangeCause::TailLossProbe,
        WindowChangeCause::Timeout,
        WindowChangeCause::Undo,
        WindowChangeCause::IdleRestart,
        WindowChangeCause::ReceiverWindow,
        WindowChangeCause::ApplicationLimited,
        WindowChangeCause::PathMtu,
        WindowChangeCause::ZeroWindow,
        WindowChangeCause::ProbeRoundTrip,
    ];

    /// Returns whether the cause is a sign of congestion, in the host or on the path.
    pub const fn is_congestion(self) -> bool {
        use WindowChangeCause::*;
        matches!(self, LocalDevice | Ecn | FastRetransmit | TailLossProbe | Timeout)
    }

    /// Returns the name used in events.
    pub const fn name(self) -> &'static str {
        match self {
            WindowChangeCause::LocalDevice => "local-device",
            WindowChangeCause::Ecn => "ecn",
            WindowChangeCause::FastRetransmit => "fast-retransmit",
            WindowChangeCause::TailLossProbe => "tail-loss-probe",
            WindowChangeCause::Timeout => "timeout",
            WindowChangeCause::Undo => "undo",
            WindowChangeCause::IdleRestart => "idle-restart",
            WindowChangeCause::ReceiverWindow => "receiver-window",
            WindowChangeCause::ApplicationLimited => "application-limited",
            WindowChangeCause::PathMtu => "path-mtu",
            WindowChangeCause::ZeroWindow => "zero-window",
            WindowChangeCause::ProbeRoundTrip => "probe-round-trip",
        }
    }
}

/// State of a flow. Sizes are bytes of payload; values unknown to the stage are absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowSnapshot {
    /// State of congestion control.
    pub state: CongestionState,
    /// Payload of a full segment. Windows divided by it are in segments.
    pub segment: u32,
    /// Congestion window.
    pub cwnd: u64,
    /// Slow start threshold; `None` before the first reduction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssthresh: Option<u64>,
    /// Data that the sender assumes to be in the network: outstanding data without that received out of order or
    /// lost, plus retransmissions.
    pub in_flight: u64,
    /// Data sent and not acknowledged. The peer's window limits it.
    pub outstanding: u64,
    /// Data written by the application and never sent.
    pub unsent: u64,
    /// Advertised window of the peer.
    pub peer_window: u64,
    /// Smoothed round-trip time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smoothed_round_trip: Option<Duration>,
    /// Recent minimum round-trip time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_round_trip: Option<Duration>,
    /// Round-trip time of the segment delivered last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_round_trip: Option<Duration>,
    /// Rate at which the host paces segments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing_rate: Option<BitRate>,
    /// Rate at which the latest data was delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_rate: Option<BitRate>,
    /// Data acknowledged since the flow began.
    pub acknowledged: u64,
    /// Segments retransmitted since the flow began.
    pub retransmissions: u64,
    /// Set if all written data is sent and the full send buffer keeps the application from writing more.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub send_buffer_full: bool,
    /// Set if the congestion control follows a path model instead of single losses, as BBR does.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub model_based: bool,
}

/// State of a sender's congestion control, modeled on Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CongestionState {
    /// Normal operation.
    #[default]
    Open,
    /// Data is missing that may only be late.
    Disorder,
    /// The window is being reduced without a loss.
    Reducing,
    /// A loss is being repaired.
    Recovery,
    /// After a timeout.
    Loss,
}

/// Limit on what a sender may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendLimit {
    /// The congestion window.
    CongestionWindow,
    /// The peer's advertised window.
    PeerWindow,
    /// The application: all written data is sent.
    Application,
    /// Pacing, or a queue of the host: both windows have room for unsent data.
    Pacing,
    /// The send buffer: all written data is sent, and the buffer has no room for more.
    SendBuffer,
}

impl SendLimit {
    /// All limits, in display order.
    pub const ALL: [SendLimit; 5] = [
        SendLimit::CongestionWindow,
        SendLimit::PeerWindow,
        SendLimit::Application,
        SendLimit::Pacing,
        SendLimit::SendBuffer,
    ];

    /// Returns the name used in events.
    pub const fn name(self) -> &'static str {
        match self {
            SendLimit::CongestionWindow => "congestion-window",
            SendLimit::PeerWindow => "peer-window",
            SendLimit::Application => "application",
            SendLimit::Pacing => "pacing",
            SendLimit::SendBuffer => "send-buffer",
        }
    }
}

impl FlowSnapshot {
    /// Returns the usable window: the smaller of the congestion window and the peer's window.
    pub fn window(&self) -> u64 {
        self.cwnd.min(self.peer_window)
    }

    /// Returns whether the peer's window has no room for a segment, although data waits to be sent.
    pub fn is_window_closed(&self) -> bool {
        self.unsent > 0 && self.peer_window < u64::from(self.segment).min(self.unsent)
    }

    /// Returns the limit that prevents the sender from sending more.
    pub fn limit(&self) -> SendLimit {
        let next = u64::from(self.segment).min(self.unsent);
        if next == 0 {
            if self.send_buffer_full { SendLimit::SendBuffer } else { SendLimit::Application }
        } else if self.in_flight + next > self.cwnd {
            SendLimit::CongestionWindow
        } else if self.outstanding + next > self.peer_window {
            SendLimit::PeerWindow
        } else if self.in_flight + 2 * next > self.cwnd {
            // Linux waits for room for two segments.
            SendLimit::CongestionWindow
        } else {
            SendLimit::Pacing
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub const SNAPSHOT: FlowSnapshot = FlowSnapshot {
        state: CongestionState::Open,
        segment: 1_000,
        cwnd: 10_000,
        ssthresh: None,
        in_flight: 10_000,
        outstanding: 10_000,
        unsent: 1 << 20,
        peer_window: 64_000,
        smoothed_round_trip: None,
        min_round_trip: None,
        latest_round_trip: None,
        pacing_rate: None,
        delivery_rate: None,
        acknowledged: 0,
        retransmissions: 0,
        send_buffer_full: false,
        model_based: false,
    };

    #[test]
    fn limit_is_determined_by_the_next_segments() {
        assert_eq!(SNAPSHOT.limit(), SendLimit::CongestionWindow);
        assert_eq!(FlowSnapshot { unsent: 0, ..SNAPSHOT }.limit(), SendLimit::Application);
        let full = FlowSnapshot { unsent: 0, send_buffer_full: true, ..SNAPSHOT };
        assert_eq!(full.limit(), SendLimit::SendBuffer);
        let small = FlowSnapshot { in_flight: 4_500, outstanding: 4_500, peer_window: 5_000, ..SNAPSHOT };
        assert_eq!((small.limit(), small.window()), (SendLimit::PeerWindow, 5_000));
        // Half a segment fits if no more was written.
        assert_eq!(FlowSnapshot { unsent: 500, ..small }.limit(), SendLimit::Pacing);
        // Data received out of order leaves room in the congestion window, but not in the peer's.
        let sacked = FlowSnapshot { in_flight: 2_000, outstanding: 64_000, ..SNAPSHOT };
        assert_eq!(sacked.limit(), SendLimit::PeerWindow);
        let room_for =
            |segments: u64| FlowSnapshot { in_flight: 10_000 - 1_000 * segments, ..SNAPSHOT }.limit();
        assert_eq!([1, 2].map(room_for), [SendLimit::CongestionWindow, SendLimit::Pacing]);
    }
}
