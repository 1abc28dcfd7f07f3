//! Traffic patterns: when an application hands over how many bytes. The simulator and
//! the live generator draw from the same patterns.

use crate::quantity::BitRate;
use crate::time::Duration;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// What an application sends. Rates count payload bits; sizes are payload bytes.
#[derive(Clone, Debug, PartialEq)]
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
    /// Exponential gaps.
    Poisson {
        /// Mean payload rate.
        rate: BitRate,
        /// Payload bytes per packet.
        packet: u32,
    },
    /// Constant bit rate while on; both phases exponential.
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
    /// Constant bit rate while on; both phases Pareto (self-similar in aggregate).
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
    /// Markov-modulated Poisson process: a ring of states.
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
