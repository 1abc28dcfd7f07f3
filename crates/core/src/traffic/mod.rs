//! Traffic models: sizes and times of the data passed to a transport. The simulator and the live generator
//! use the same models. A [`Pattern`] is one-way and independent of the network, and [`PatternSource`] generates its
//! emissions. An [`Application`](application::Application) is an exchange of messages between two endpoints.

pub mod application;
mod source;

pub use source::{Emission, PatternSource};

use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Traffic of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowTraffic {
    /// One-way traffic from the flow's `from` to its `to`.
    Pattern(Pattern),
    /// Exchange of messages between a client at `from` and a server at `to`.
    Application(application::Application),
}

impl FlowTraffic {
    /// Returns the pattern, if the traffic is a pattern.
    pub fn pattern(&self) -> Option<&Pattern> {
        match self {
            FlowTraffic::Pattern(pattern) => Some(pattern),
            FlowTraffic::Application(_) => None,
        }
    }

    /// Returns the application, if the traffic is an application.
    pub fn application(&self) -> Option<&application::Application> {
        match self {
            FlowTraffic::Pattern(_) => None,
            FlowTraffic::Application(application) => Some(application),
        }
    }
}

impl From<application::Application> for FlowTraffic {
    fn from(application: application::Application) -> FlowTraffic {
        FlowTraffic::Application(application)
    }
}

impl From<Pattern> for FlowTraffic {
    fn from(pattern: Pattern) -> FlowTraffic {
        FlowTraffic::Pattern(pattern)
    }
}

/// One-way traffic pattern. Rates are in payload bits per second, sizes in payload bytes.
///
/// A pattern starts with its flow. With a constant bit rate the first packet is sent at once, and packet k
/// after k packet times. An off phase suspends the count of packet times, so that the long-run mean rate is
/// exactly [`mean_rate`](Pattern::mean_rate) even with short phases.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Bulk transfer at the rate of the transport.
    Bulk {
        /// Total bytes; `None` for unlimited.
        size: Option<u64>,
    },
    /// Constant bit rate: one packet of `packet` bytes at equal gaps.
    Cbr {
        /// Payload rate.
        rate: BitRate,
        /// Payload bytes per packet.
        packet: u32,
    },
    /// Exponential gaps, including the gap before the first packet.
    Poisson {
        /// Mean payload rate.
        rate: BitRate,
        /// Payload bytes per packet.
        packet: u32,
    },
    /// Constant bit rate in on phases; both phases exponential. Starts with an on phase.
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
    /// Constant bit rate in on phases; both phases Pareto (self-similar in aggregate). Starts with an on phase.
    Pareto {
        /// Payload rate while on.
        rate: BitRate,
        /// Payload bytes per packet.
        packet: u32,
        /// Mean length of an on phase.
        on: Duration,
        /// Mean length of an off phase.
        off: Duration,
        /// Shape, above 1; heavy-tailed below 2.
        shape: f64,
    },
    /// Markov-modulated Poisson process: Poisson in each state, exponential sojourns.
    /// Starts by entering state 0.
    Mmpp {
        /// Mean payload rate and mean sojourn time of each state; the next state is drawn uniformly from the
        /// others.
        states: Vec<(BitRate, Duration)>,
        /// Payload bytes per packet.
        packet: u32,
    },
    /// Recorded gaps and payload sizes.
    Trace {
        /// Gap before each packet, and its payload bytes.
        packets: Arc<[(Duration, u32)]>,
        /// Endless repetition of the trace.
        repeat: bool,
    },
}

/// Error in the parameters of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// A rate, or the rate of all states, is zero.
    ZeroRate,
    /// The packet size is zero.
    EmptyPacket,
    /// The mean length of a phase or state is zero.
    EmptyPhase,
    /// More than 10,000 phases or states would pass between two packets, each with a random draw.
    BriefPhase,
    /// A Pareto shape is not above 1, so the phases have no mean.
    Shape,
    /// The pattern has no states, or the trace no packets.
    Empty,
    /// A repeated trace has zero length and would send endlessly at one instant.
    InstantTrace,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PatternError::ZeroRate => "the rate is zero",
            PatternError::EmptyPacket => "the packet size is zero",
            PatternError::EmptyPhase => "the length of a phase is zero",
            PatternError::BriefPhase => "more than 10,000 phases would pass between two packets",
            PatternError::Shape => "the Pareto shape must be above 1",
            PatternError::Empty => "the list is empty",
            PatternError::InstantTrace => "a repeated trace must have a gap above zero",
        })
    }
}

impl core::error::Error for PatternError {}

impl Pattern {
    /// Checks the parameters. A [`PatternSource`] of an invalid pattern emits nothing.
    pub fn check(&self) -> Result<(), PatternError> {
        let positive = |rate: BitRate| if rate.0 > 0 { Ok(()) } else { Err(PatternError::ZeroRate) };
        let non_empty = |packet: u32| if packet > 0 { Ok(()) } else { Err(PatternError::EmptyPacket) };
        let non_zero = |phase: Duration| if phase.0 > 0 { Ok(()) } else { Err(PatternError::EmptyPhase) };
        let not_brief = |packet: u32, rate: f64, phase: f64| {
            let phases_per_packet = f64::from(packet) * 8.0 / rate / phase;
            if phases_per_packet <= 10_000.0 { Ok(()) } else { Err(PatternError::BriefPhase) }
        };
        match self {
            Pattern::Bulk { .. } => Ok(()),
            &Pattern::Cbr { rate, packet } | &Pattern::Poisson { rate, packet } => {
                positive(rate)?;
                non_empty(packet)
            }
            &Pattern::OnOff { rate, packet, on, off: _ } => {
                positive(rate)?;
                non_empty(packet)?;
                non_zero(on)?;
                not_brief(packet, rate.as_f64(), on.as_secs_f64())
            }
            &Pattern::Pareto { rate, packet, on, off: _, shape } => {
                positive(rate)?;
                non_empty(packet)?;
                non_zero(on)?;
                if !(shape > 1.0 && shape.is_finite()) {
                    return Err(PatternError::Shape);
                }
                not_brief(packet, rate.as_f64(), on.as_secs_f64())
            }
            Pattern::Mmpp { states, packet } => {
                non_empty(*packet)?;
                if states.is_empty() {
                    return Err(PatternError::Empty);
                }
                states.iter().try_for_each(|&(_, sojourn)| non_zero(sojourn))?;
                let rate = self.mean_rate().unwrap_or(0.0);
                if rate <= 0.0 {
                    return Err(PatternError::ZeroRate);
                }
                let time: f64 = states.iter().map(|(_, sojourn)| sojourn.as_secs_f64()).sum();
                not_brief(*packet, rate, time / states.len() as f64)
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

    /// Returns the payload bytes of the largest packet; zero for bulk.
    pub fn max_packet_size(&self) -> u32 {
        let max_of_trace = || match self {
            Pattern::Trace { packets, .. } => packets.iter().map(|&(_, bytes)| bytes).max(),
            _ => None,
        };
        self.packet().or_else(max_of_trace).unwrap_or(0)
    }

    /// Returns the payload bytes of a packet, if all packets have the same size.
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

    /// Returns the long-run mean payload rate in bits per second.
    ///
    /// - On-off and Pareto: rate · on / (on + off).
    /// - MMPP: the rates of the states weighted by their mean sojourn times. All states are entered equally
    ///   often, because the next state is drawn uniformly from the others.
    /// - Trace: its bits divided by its length, sent once or repeated; `None` for a length of zero.
    /// - Bulk: `None`, because the rate depends on the transport.
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

    /// Returns the mean payload of a packet in bytes; `None` for a bulk transfer or an empty trace.
    pub fn mean_packet(&self) -> Option<f64> {
        match self {
            Pattern::Bulk { .. } => None,
            Pattern::Cbr { packet, .. }
            | Pattern::Poisson { packet, .. }
            | Pattern::OnOff { packet, .. }
            | Pattern::Pareto { packet, .. }
            | Pattern::Mmpp { packet, .. } => Some(f64::from(*packet)),
            Pattern::Trace { packets, .. } => {
                let bytes: f64 = packets.iter().map(|&(_, bytes)| f64::from(bytes)).sum();
                (!packets.is_empty()).then(|| bytes / packets.len() as f64)
            }
        }
    }

    /// Returns the highest payload rate that lasts for more than a packet, in bits per second: that of an on
    /// phase or of the fastest state; `None` for a bulk transfer or a trace, whose packets may have any gaps.
    pub fn peak_rate(&self) -> Option<f64> {
        match self {
            Pattern::Bulk { .. } | Pattern::Trace { .. } => None,
            Pattern::Cbr { rate, .. }
            | Pattern::Poisson { rate, .. }
            | Pattern::OnOff { rate, .. }
            | Pattern::Pareto { rate, .. } => Some(rate.as_f64()),
            Pattern::Mmpp { states, .. } => states.iter().map(|(rate, _)| rate.as_f64()).reduce(f64::max),
        }
    }
}
