//! Fair sharing of a best-effort core among VPNs: the I2VFC controller and the alternatives it is compared
//! with.
//!
//! The simulator and the PE router use the same implementation. The mechanism is described in docs/i2vfc.md.

pub mod allocation;
pub mod balance;
pub mod consensus;
pub mod crowd;
pub mod estimator;
pub mod feedback;
pub mod ingress;
pub mod management;
pub mod news;
pub mod parameters;
pub mod paths;
pub mod publication;
pub mod shaper;
pub mod wire;

pub use consensus::PacedFlow;
pub use ingress::{Ingress, IngressTransmit, PublishedReference, REFERENCE_AGE};
pub use management::{Egress, Query, Reply};
pub use shaper::Shaper;

use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::vec::Vec;

/// Control of a VPN flow at its ingress PE.
#[derive(Clone, Debug, PartialEq)]
pub enum VpnControl {
    /// No control: packets pass unchanged.
    None,
    /// An AIMD window per VPN flow.
    I2vfc(I2vfcConfig),
    /// A rate per VPN flow, by consensus with the flows that share its bottleneck.
    RateConsensus(CoreMembership),
    /// A fixed rate (a shaper with a burst of one packet) and a queue.
    FixedRate {
        /// Rate at the IP layer.
        rate: BitRate,
        /// Capacity of the queue in packets.
        queue: u32,
    },
}

/// Place of a VPN flow among the flows of a core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoreMembership {
    /// Links that the flow crosses and shares with others, numbered in the same way on all PEs.
    Links(Vec<u32>),
    /// The links are not known. The number of the path from ingress to egress PE is unique in the core and at least
    /// [`FIRST_PATH`](paths::FIRST_PATH).
    Path(u32),
}

impl Default for CoreMembership {
    fn default() -> CoreMembership {
        CoreMembership::Links(Vec::new())
    }
}

/// Configuration of a VPN flow's window.
#[derive(Clone, Debug, PartialEq)]
pub struct I2vfcConfig {
    /// Additive increase a, in packets per round trip.
    pub increase: f64,
    /// Multiplicative decrease b.
    pub decrease: Decrease,
    /// Reference for the weights.
    pub reference: WeightReference,
    /// Rule that selects which of a and b is set from the weight.
    pub rule: WeightRule,
    /// Initial window in packets.
    pub initial_window: f64,
    /// Capacity of the queue at the ingress PE in packets.
    pub queue: u32,
    /// Data packets per management packet (Δ).
    pub report_every: u32,
    /// Longest time between two queries while data packets are in flight, the window is open and fewer than
    /// Δ packets follow the previous query. A query is never sent before the reply to the previous one is
    /// overdue. At most half a second, because a longer silence counts as a loss.
    pub report_within: Duration,
    /// Longest interval between probes of an idle flow, at least one second. The first probe is sent one
    /// second after the last packet; each further interval is twice as long, up to this limit.
    pub idle_probe: Duration,
    /// Whether packets are spread over the round trip instead of leaving as soon as the window opens.
    pub pacing: bool,
    /// Method of loss measurement.
    pub loss_measure: LossMeasure,
    /// Whether a congestion mark from the core counts as a lost packet.
    pub marks_are_losses: bool,
    /// Reaction to a silent egress PE.
    pub silence: SilencePolicy,
}

/// The single set of defaults, used for every figure; docs/i2vfc.md explains the choices.
impl Default for I2vfcConfig {
    fn default() -> I2vfcConfig {
        I2vfcConfig {
            increase: 0.1,
            decrease: Decrease::FromWeight,
            reference: WeightReference::Nominal(NominalReference::default()),
            rule: WeightRule::DecreaseThenIncrease,
            initial_window: 100.0,
            queue: 128,
            report_every: 4,
            report_within: Duration::from_millis(10),
            idle_probe: Duration::from_secs(30),
            pacing: true,
            loss_measure: LossMeasure::LossEvents,
            marks_are_losses: false,
            silence: SilencePolicy::default(),
        }
    }
}

/// The time after which an egress PE counts as silent, and the reaction of the ingress PE. Queries continue
/// during the silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SilencePolicy {
    /// Minimum time between the first and the latest of a series of unanswered queries.
    pub after: Duration,
    /// Treatment of the data.
    pub action: SilenceAction,
}

impl Default for SilencePolicy {
    fn default() -> SilencePolicy {
        SilencePolicy { after: Duration::from_secs(5), action: SilenceAction::Shrink }
    }
}

/// Treatment of data to an egress PE that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SilenceAction {
    /// Send the data, and count each second of silence as a loss: the window shrinks toward its minimum.
    Shrink,
    /// Send the data at the rate of the last window ("fail open"), for a peer that cannot answer or a
    /// broken return path. One window of packets per second is sent until the peer counts as silent, and
    /// afterwards as well if pacing is off.
    Open,
    /// Hold the data; packets that do not fit the queue are dropped ("fail closed").
    Closed,
}

/// Multiplicative decrease of a VPN flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decrease {
    /// A configured value.
    Fixed(f64),
    /// A value computed from the weight, the measured loss and the round trip.
    FromWeight,
}

/// Reference for the weight of a VPN flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WeightReference {
    /// Another VPN flow whose ingress PE publishes its measurements: an index into the plan, or into the
    /// references of a [`ProviderEdge`](crate::edge::ProviderEdge).
    Vpn(usize),
    /// A nominal flow that exists only as shared constants; the loss ratio to it is taken as 1.
    Nominal(NominalReference),
}

/// Constants of a nominal flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NominalReference {
    /// Weight.
    pub weight: f64,
    /// Multiplicative decrease.
    pub decrease: f64,
    /// Round trip.
    pub round_trip: Duration,
}

impl Default for NominalReference {
    fn default() -> NominalReference {
        NominalReference { weight: 1.0, decrease: 0.1, round_trip: Duration::from_millis(100) }
    }
}

impl NominalReference {
    fn basis(&self) -> parameters::Basis {
        parameters::Basis { weight: self.weight, round_trip: self.round_trip.as_secs_f64(), loss: None }
    }
}

/// The window parameter that is set from the weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightRule {
    /// Adjust b within its feasible range, and a beyond it.
    DecreaseThenIncrease,
    /// Adjust b only; an infeasible weight is reported.
    Decrease,
    /// Keep b and scale a.
    Increase,
}

/// Loss measure of a VPN flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossMeasure {
    /// Loss events per packet over the last eight intervals, as in RFC 5348.
    LossEvents,
    /// Dropped packets per packet sent, smoothed (the measure of the I2VFC paper).
    DropRatio,
}
