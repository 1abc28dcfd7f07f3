//! Diagnosis of a TCP flow from its sender's events: the time lost to each bottleneck, and the verdict.
//!
//! [`FlowAccount`] divides the time of a flow among the bottlenecks, so that their shares always add up to the
//! whole. [`Diagnosis`] names the bottleneck, or the two between which the events do not decide. Sources of events
//! are kernels, captures and simulated senders ([`super::event`]).
//!
//! After Zhang, Breslau, Paxson and Shenker, "On the Characteristics and Origins of Internet Flow Rates" (T-RAT, 2002),
//! and Flach et al., "An Internet-Wide Analysis of Traffic Policing" (2016).

mod account;
mod policing;

pub use account::FlowAccount;

use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Reason why a sender does not send faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    /// The path carries its full rate, with a queue of acceptable length.
    PathFull,
    /// The path carries its full rate, with a queue that delays all packets by more than a base round trip.
    Bufferbloat,
    /// Losses that no queue explains keep the congestion window small.
    Loss,
    /// Losses begin at one rate, without a queue: a policer, or a queue of only a few packets.
    Policer,
    /// Nothing passes the path for several retransmission timeouts.
    Outage,
    /// Segments are larger than the path MTU.
    PathMtu,
    /// The receive buffer holds less than the path.
    ReceiveBuffer,
    /// The receiving application reads slowly.
    SlowReader,
    /// The receiving application stopped reading, and the window was closed.
    ZeroWindow,
    /// The send buffer holds less than the path.
    SendBuffer,
    /// The sending application offers no more data.
    Application,
    /// The congestion window still grows from its initial value.
    SlowStart,
    /// The congestion window grows again after a pause of the application (RFC 5681 section 4.1).
    IdleRestart,
    /// The congestion window grows again after a reduction before the observation.
    EarlierReduction,
    /// Congestion marks without a queue keep the congestion window small (RFC 3168).
    Ecn,
    /// A queue, the pacing or the processor of the sending host.
    LocalDevice,
    /// A model-based congestion control empties the path to measure its round trip.
    ProbeRoundTrip,
    /// The congestion window does not grow although nothing is lost: it is clamped.
    WindowClamp,
}

impl Bottleneck {
    /// All bottlenecks, in display order.
    pub const ALL: [Bottleneck; 18] = [
        Bottleneck::PathFull,
        Bottleneck::Bufferbloat,
        Bottleneck::Loss,
        Bottleneck::Policer,
        Bottleneck::Outage,
        Bottleneck::PathMtu,
        Bottleneck::ReceiveBuffer,
        Bottleneck::SlowReader,
        Bottleneck::ZeroWindow,
        Bottleneck::SendBuffer,
        Bottleneck::Application,
        Bottleneck::SlowStart,
        Bottleneck::IdleRestart,
        Bottleneck::EarlierReduction,
        Bottleneck::Ecn,
        Bottleneck::LocalDevice,
        Bottleneck::ProbeRoundTrip,
        Bottleneck::WindowClamp,
    ];

    /// Returns the name used in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Bottleneck::PathFull => "path-full",
            Bottleneck::Bufferbloat => "bufferbloat",
            Bottleneck::Loss => "loss",
            Bottleneck::Policer => "policer",
            Bottleneck::Outage => "outage",
            Bottleneck::PathMtu => "path-mtu",
            Bottleneck::ReceiveBuffer => "receive-buffer",
            Bottleneck::SlowReader => "slow-reader",
            Bottleneck::ZeroWindow => "zero-window",
            Bottleneck::SendBuffer => "send-buffer",
            Bottleneck::Application => "application",
            Bottleneck::SlowStart => "slow-start",
            Bottleneck::IdleRestart => "idle-restart",
            Bottleneck::EarlierReduction => "earlier-reduction",
            Bottleneck::Ecn => "ecn",
            Bottleneck::LocalDevice => "local-device",
            Bottleneck::ProbeRoundTrip => "probe-round-trip",
            Bottleneck::WindowClamp => "window-clamp",
        }
    }
}

/// Time of a flow lost to a bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BottleneckShare {
    /// Bottleneck.
    pub bottleneck: Bottleneck,
    /// Time.
    pub time: Duration,
    /// Share of the flow's time, percent. The shares of a flow add up to 100.
    pub percent: u8,
}

/// Conclusion about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// The flow was observed too briefly.
    TooShort,
    /// One bottleneck explains most of the flow's time.
    Certain {
        /// Bottleneck.
        bottleneck: Bottleneck,
    },
    /// Two bottlenecks share the time, and removing one of them would not suffice.
    Shared {
        /// Bottleneck of the larger share.
        bottleneck: Bottleneck,
        /// Bottleneck of the next share.
        second: Bottleneck,
    },
    /// The events fit two bottlenecks.
    Unsure {
        /// More probable bottleneck.
        bottleneck: Bottleneck,
        /// Alternative.
        alternative: Bottleneck,
    },
}

impl Verdict {
    /// Returns the named bottlenecks, the more probable one first.
    pub fn bottlenecks(self) -> [Option<Bottleneck>; 2] {
        match self {
            Verdict::TooShort => [None; 2],
            Verdict::Certain { bottleneck } => [Some(bottleneck), None],
            Verdict::Shared { bottleneck, second } => [Some(bottleneck), Some(second)],
            Verdict::Unsure { bottleneck, alternative } => [Some(bottleneck), Some(alternative)],
        }
    }
}

/// Round-trip times of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrips {
    /// Latest smoothed value.
    pub now: Duration,
    /// Minimum.
    pub min: Duration,
    /// Maximum of the smoothed values.
    pub max: Duration,
}

/// Diagnosis of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Conclusion.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Observed time of the flow.
    pub time: Duration,
    /// Time of each bottleneck, longest first; empty for a time of zero.
    pub shares: Vec<BottleneckShare>,
    /// Mean payload rate.
    pub rate: BitRate,
    /// Mean payload rate while the path was full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_rate: Option<BitRate>,
    /// Round-trip times; `None` without a sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<RoundTrips>,
    /// Mean queueing delay while the path was full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Duration>,
    /// Payload of a full segment, bytes.
    pub segment: u32,
    /// Payload acknowledged during the observation, bytes.
    pub acknowledged: u64,
    /// Retransmitted segments during the observation.
    pub retransmissions: u64,
    /// Mean rate at losses without a queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_at_losses: Option<BitRate>,
    /// Retransmission timeouts during the observation.
    pub timeouts: u64,
    /// Longest time without an acknowledgment of new data after a timeout.
    pub longest_stall: Duration,
    /// Largest window advertised by the peer, bytes.
    pub peer_window: u64,
    /// Most data sent and not acknowledged, bytes.
    pub outstanding: u64,
}

impl Diagnosis {
    /// Returns the share of a bottleneck, percent.
    pub fn percent(&self, bottleneck: Bottleneck) -> u8 {
        self.shares.iter().find(|share| share.bottleneck == bottleneck).map_or(0, |share| share.percent)
    }

    /// Returns retransmitted segments divided by transmitted segments.
    pub fn loss_ratio(&self) -> f64 {
        let segments = self.acknowledged / u64::from(self.segment.max(1)) + self.retransmissions;
        if segments == 0 { 0.0 } else { self.retransmissions as f64 / segments as f64 }
    }
}

/// Converts times to shares, longest first. Percentages are rounded so that they add up to 100, by the largest
/// remainder.
fn shares(times: impl Iterator<Item = (Bottleneck, Duration)>) -> Vec<BottleneckShare> {
    let mut shares: Vec<BottleneckShare> = times
        .filter(|(_, time)| *time > Duration::ZERO)
        .map(|(bottleneck, time)| BottleneckShare { bottleneck, time, percent: 0 })
        .collect();
    let total: u128 = shares.iter().map(|share| u128::from(share.time.0)).sum();
    let mut left = 100;
    for share in &mut shares {
        share.percent = (u128::from(share.time.0) * 100 / total) as u8;
        left -= usize::from(share.percent);
    }
    let remainder = |share: &BottleneckShare| u128::from(share.time.0) * 100 % total;
    shares.sort_by_key(|share| core::cmp::Reverse(remainder(share)));
    shares.iter_mut().take(left).for_each(|share| share.percent += 1);
    shares.sort_by_key(|share| (core::cmp::Reverse(share.time), share.bottleneck));
    shares
}

#[cfg(test)]
mod tests;
