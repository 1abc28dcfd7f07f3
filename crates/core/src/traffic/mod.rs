//! Traffic: when bytes are handed to a transport. The simulator and the live generator draw
//! from the same descriptions. A [`Pattern`] goes one way whatever the network does, and
//! [`Source`] turns it into emissions; an [`Application`](application::Application) is a
//! dialogue of two ends.

pub mod application;
mod source;

pub use source::{Emission, Source};

use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// What a flow carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// One way, from the flow's `from` to its `to`.
    Pattern(Pattern),
    /// A dialogue between a client at `from` and a server at `to`.
    Application(application::Application),
}

impl Traffic {
    /// The pattern, where it is one.
    pub fn pattern(&self) -> Option<&Pattern> {
        match self {
            Traffic::Pattern(pattern) => Some(pattern),
            Traffic::Application(_) => None,
        }
    }

    /// The application, where it is one.
    pub fn application(&self) -> Option<&application::Application> {
        match self {
            Traffic::Pattern(_) => None,
            Traffic::Application(application) => Some(application),
        }
    }
}

impl From<application::Application> for Traffic {
    fn from(application: application::Application) -> Traffic {
        Traffic::Application(application)
    }
}

impl From<Pattern> for Traffic {
    fn from(pattern: Pattern) -> Traffic {
        Traffic::Pattern(pattern)
    }
}

/// What an application sends. Rates count payload bits; sizes are payload bytes.
///
/// A pattern starts when its flow does. With a constant bit rate the first packet is sent
/// at once, packet k after k packet times; while a pattern of phases is off, the count of
/// packet times stands still and goes on where it stopped. So the long-run mean rate is
/// exactly what [`mean_rate`](Pattern::mean_rate) says, however short the phases are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// As much as the transport takes, up to `size` bytes where given.
    Bulk {
        /// Total bytes, or no end.
        size: Option<u64>,
    },
    /// Constant bit rate: one packet of `packet` bytes at equal gaps.
    Cbr {
        /// Payload rate.
        rate: BitRate,
        /// Payload bytes per packet.
        packet: u32,
    },
    /// Exponential gaps, the one before the first packet too.
    Poisson {
        /// Mean payload rate.
        rate: BitRate,
        /// Payload bytes per packet.
        packet: u32,
    },
    /// Constant bit rate while on; both phases exponential. Starts with an on phase.
    OnOff {
        /// Payload rate while on.
        rate: BitRate,
        /// Payload bytes per packet.
        packet: u32,
        /// Mean length of an on phase.
        on: Duration,
        /// Mean length of an off phase.
        off: Duration,
    },
    /// Constant bit rate while on; both phases Pareto (self-similar in aggregate). Starts
    /// with an on phase.
    Pareto {
        /// Payload rate while on.
        rate: BitRate,
        /// Payload bytes per packet.
        packet: u32,
        /// Mean length of an on phase.
        on: Duration,
        /// Mean length of an off phase.
        off: Duration,
        /// Shape, above 1; below 2 is heavy-tailed.
        shape: f64,
    },
    /// Markov-modulated Poisson process: Poisson in each state, exponential sojourns.
    /// Starts by entering state 0.
    Mmpp {
        /// Mean payload rate and mean sojourn of each state; the next state is drawn
        /// uniformly among the others.
        states: Vec<(BitRate, Duration)>,
        /// Payload bytes per packet.
        packet: u32,
    },
    /// Gaps and payload sizes read from a file; repeated from the start when `repeat`.
    Trace {
        /// Gap before each packet, and its payload bytes.
        packets: Arc<[(Duration, u32)]>,
        /// Start again at the end.
        repeat: bool,
    },
}

/// Why a pattern cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// A rate is zero, or with several states every rate.
    ZeroRate,
    /// Packets are empty, so no rate can be reached.
    EmptyPacket,
    /// A phase or a state has no length.
    EmptyPhase,
    /// Phases or states are so brief that more than 10,000 pass between two packets, which
    /// would take that many draws for each packet.
    BriefPhase,
    /// A Pareto shape is not above 1, so the phases would have no mean.
    Shape,
    /// There are no states, or no packets in the trace.
    Empty,
    /// A repeating trace takes no time: it would send without end at one instant.
    InstantTrace,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PatternError::ZeroRate => "the rate is zero",
            PatternError::EmptyPacket => "the packet size is zero",
            PatternError::EmptyPhase => "a phase has no length",
            PatternError::BriefPhase => "more than 10,000 phases would pass between two packets",
            PatternError::Shape => "the Pareto shape must be above 1",
            PatternError::Empty => "nothing is listed",
            PatternError::InstantTrace => "a repeating trace needs a gap above zero",
        })
    }
}

impl core::error::Error for PatternError {}

impl Pattern {
    /// Whether the pattern can be sent as it stands. A [`Source`] of one that cannot
    /// emits nothing.
    pub fn check(&self) -> Result<(), PatternError> {
        let positive = |rate: BitRate| if rate.0 > 0 { Ok(()) } else { Err(PatternError::ZeroRate) };
        let filled = |packet: u32| if packet > 0 { Ok(()) } else { Err(PatternError::EmptyPacket) };
        let lasting = |phase: Duration| if phase.0 > 0 { Ok(()) } else { Err(PatternError::EmptyPhase) };
        let unhurried = |packet: u32, rate: f64, phase: f64| {
            let phases_per_packet = f64::from(packet) * 8.0 / rate / phase;
            if phases_per_packet <= 10_000.0 { Ok(()) } else { Err(PatternError::BriefPhase) }
        };
        match self {
            Pattern::Bulk { .. } => Ok(()),
            &Pattern::Cbr { rate, packet } | &Pattern::Poisson { rate, packet } => {
                positive(rate)?;
                filled(packet)
            }
            &Pattern::OnOff { rate, packet, on, off: _ } => {
                positive(rate)?;
                filled(packet)?;
                lasting(on)?;
                unhurried(packet, rate.as_f64(), on.as_secs_f64())
            }
            &Pattern::Pareto { rate, packet, on, off: _, shape } => {
                positive(rate)?;
                filled(packet)?;
                lasting(on)?;
                if !(shape > 1.0 && shape.is_finite()) {
                    return Err(PatternError::Shape);
                }
                unhurried(packet, rate.as_f64(), on.as_secs_f64())
            }
            Pattern::Mmpp { states, packet } => {
                filled(*packet)?;
                if states.is_empty() {
                    return Err(PatternError::Empty);
                }
                states.iter().try_for_each(|&(_, sojourn)| lasting(sojourn))?;
                let rate = self.mean_rate().unwrap_or(0.0);
                if rate <= 0.0 {
                    return Err(PatternError::ZeroRate);
                }
                let time: f64 = states.iter().map(|(_, sojourn)| sojourn.as_secs_f64()).sum();
                unhurried(*packet, rate, time / states.len() as f64)
            }
            Pattern::Trace { packets, repeat } => {
                if packets.is_empty() {
                    Err(PatternError::Empty)
                } else if *repeat && packets.iter().all(|&(gap, _)| gap == Duration::ZERO) {
                    Err(PatternError::InstantTrace)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Payload bytes of the largest packet handed over at once; zero for bulk.
    pub fn largest_packet(&self) -> u32 {
        let of_trace = || match self {
            Pattern::Trace { packets, .. } => packets.iter().map(|&(_, bytes)| bytes).max(),
            _ => None,
        };
        self.packet().or_else(of_trace).unwrap_or(0)
    }

    /// Payload bytes of every packet, where all are alike.
    pub fn packet(&self) -> Option<u32> {
        match *self {
            Pattern::Cbr { packet, .. }
            | Pattern::Poisson { packet, .. }
            | Pattern::OnOff { packet, .. }
            | Pattern::Pareto { packet, .. }
            | Pattern::Mmpp { packet, .. } => Some(packet),
            Pattern::Bulk { .. } | Pattern::Trace { .. } => None,
        }
    }

    /// Long-run mean payload rate, bits per second.
    ///
    /// On-off and Pareto: rate · on / (on + off). MMPP: the states' rates weighted by their
    /// mean sojourns, since a walk to any other state with equal chance enters all states
    /// equally often. A trace: its bits over its own length, sent once or repeated. `None`
    /// for bulk, which takes what the transport gives, and for a trace without length.
    pub fn mean_rate(&self) -> Option<f64> {
        match self {
            Pattern::Bulk { .. } => None,
            Pattern::Cbr { rate, .. } | Pattern::Poisson { rate, .. } => Some(rate.as_f64()),
            Pattern::OnOff { rate, on, off, .. } | Pattern::Pareto { rate, on, off, .. } => {
                Some(rate.as_f64() * on.as_secs_f64() / (on.as_secs_f64() + off.as_secs_f64()))
            }
            Pattern::Mmpp { states, .. } => {
                let time: f64 = states.iter().map(|(_, sojourn)| sojourn.as_secs_f64()).sum();
                let bits: f64 =
                    states.iter().map(|(rate, sojourn)| rate.as_f64() * sojourn.as_secs_f64()).sum();
                (time > 0.0).then(|| bits / time)
            }
            Pattern::Trace { packets, .. } => {
                let time: f64 = packets.iter().map(|(gap, _)| gap.as_secs_f64()).sum();
                let bits: f64 = packets.iter().map(|&(_, bytes)| 8.0 * f64::from(bytes)).sum();
                (time > 0.0).then(|| bits / time)
            }
        }
    }
}
