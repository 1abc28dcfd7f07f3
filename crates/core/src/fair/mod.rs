//! Sharing a best-effort core fairly among VPNs: the I2VFC controller and its rivals.
//!
//! One implementation serves the simulator and the PE router. The mechanism is
//! described in docs/i2vfc.md.

pub mod allocation;
pub mod estimator;
pub mod ingress;
pub mod management;
pub mod parameters;
pub mod publication;
pub mod shaper;
pub mod wire;

pub use ingress::{Ingress, Published, REFERENCE_AGE, Transmit};
pub use management::{Egress, Query, Reply};
pub use shaper::Shaper;

use crate::quantity::BitRate;
use crate::time::Duration;

/// How a VPN flow is controlled at its ingress PE.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// Not at all: packets pass.
    None,
    /// One AIMD window per VPN flow.
    I2vfc(Config),
    /// A fixed rate (a shaper with one packet of burst) and a queue.
    FixedRate {
        /// Rate at the IP layer.
        rate: BitRate,
        /// Packets that may wait.
        queue: u32,
    },
}

/// Parameters of one VPN flow's window.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Additive increase a, packets per round trip.
    pub increase: f64,
    /// Multiplicative decrease b.
    pub decrease: Decrease,
    /// What the weights are relative to.
    pub reference: Reference,
    /// Which of a and b carries the weight.
    pub rule: Rule,
    /// Initial window, packets.
    pub initial_window: f64,
    /// Packets that may wait at the ingress PE.
    pub queue: u32,
    /// Data packets per management packet (Δ).
    pub report_every: u32,
    /// Data packets under way are asked for at the latest so long after the query before, where
    /// the window is open and fewer than Δ have followed; never before a reply would be overdue.
    /// At most half a second, after which silence is a loss.
    pub report_within: Duration,
    /// Longest time between two probes of an idle flow, from one second up. They come ever more
    /// rarely: a second after the last packet, then after twice as long each time.
    pub idle_probe: Duration,
    /// Spread packets over the round trip instead of sending them as the window opens.
    pub pacing: bool,
    /// How loss is measured.
    pub loss_measure: LossMeasure,
    /// A congestion mark of the core counts as a lost packet does.
    pub marks_count: bool,
    /// What to do while nothing is heard of the egress PE.
    pub silence: Silence,
}

/// The one default set, for every figure and every user; docs/i2vfc.md says how it was chosen.
impl Default for Config {
    fn default() -> Config {
        Config {
            increase: 0.1,
            decrease: Decrease::FromWeight,
            reference: Reference::Nominal(Nominal::default()),
            rule: Rule::DecreaseThenIncrease,
            initial_window: 100.0,
            queue: 128,
            report_every: 4,
            report_within: Duration::from_millis(10),
            idle_probe: Duration::from_secs(30),
            pacing: true,
            loss_measure: LossMeasure::LossEvents,
            marks_count: false,
            silence: Silence::default(),
        }
    }
}

/// When an egress PE counts as silent, and what its ingress PE does then. It goes on asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Two queries this far apart, or more, have gone unanswered, and all between them.
    pub after: Duration,
    /// What becomes of the data.
    pub then: WhenSilent,
}

impl Default for Silence {
    fn default() -> Silence {
        Silence { after: Duration::from_secs(5), then: WhenSilent::Shrink }
    }
}

/// What becomes of data for an egress PE that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenSilent {
    /// It is sent, and each second of silence is a loss: the window goes towards its least.
    Shrink,
    /// It is sent at the rate of the last window ("fail open"): for a peer that cannot answer, or
    /// a way back that is broken. Until the peer counts as silent a window's packets leave
    /// each second, and without pacing after that as well.
    Open,
    /// It waits, and what finds no room in the queue is lost ("fail closed").
    Closed,
}

/// Multiplicative decrease of a VPN flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decrease {
    /// Given.
    Fixed(f64),
    /// Computed from the weight, measured loss and round trip.
    FromWeight,
}

/// What a VPN flow's weight is relative to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reference {
    /// Another VPN flow (by index in the plan, or among the references of an
    /// [`Edge`](crate::edge::Edge)), whose ingress PE publishes what it measures.
    Vpn(usize),
    /// A flow that exists only as shared constants; the ratio of losses is taken as 1.
    Nominal(Nominal),
}

/// The constants of a nominal flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nominal {
    /// Its weight.
    pub weight: f64,
    /// Its multiplicative decrease.
    pub decrease: f64,
    /// Its round trip.
    pub round_trip: Duration,
}

impl Default for Nominal {
    fn default() -> Nominal {
        Nominal { weight: 1.0, decrease: 0.1, round_trip: Duration::from_millis(100) }
    }
}

impl Nominal {
    fn basis(&self) -> parameters::Basis {
        parameters::Basis { weight: self.weight, round_trip: self.round_trip.as_secs_f64(), loss: None }
    }
}

/// Which parameter carries the weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Move b while it is feasible, and a beyond that.
    DecreaseThenIncrease,
    /// Move b only; an infeasible weight is reported.
    Decrease,
    /// Keep b, scale a.
    Increase,
}

/// How a VPN flow measures its loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossMeasure {
    /// Loss events per packet over the last eight intervals (as RFC 5348).
    LossEvents,
    /// Dropped packets per packet sent, smoothed (the paper's measure).
    DropRatio,
}
