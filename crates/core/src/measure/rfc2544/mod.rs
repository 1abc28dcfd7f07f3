//! Benchmarks of RFC 2544 (with RFC 9004's back-to-back): what a device carries without
//! loss, how long it delays, what it loses when asked for more, and how much it buffers.
//!
//! Each is a [`Search`](super::trial::Search) of one frame size. They assume a path that
//! loses nothing by itself: see `docs/measurement.md` for when they mislead.

mod back_to_back;
mod frame_loss;
mod latency;
mod throughput;

pub use back_to_back::{BackToBack, BackToBackConfig, BackToBackResult};
pub use frame_loss::{FrameLoss, FrameLossConfig, FrameLossResult, LossAtLoad};
pub use latency::{Latency, LatencyConfig, LatencyResult};
pub use throughput::{Throughput, ThroughputConfig, ThroughputResult};

use super::trial::Pauses;
use crate::time::Duration;
use serde::{Deserialize, Serialize};

/// Ethernet frame sizes to test, bytes with check sequence (RFC 2544 section 9.1).
pub const ETHERNET_FRAME_SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// How trials differ from what the RFC asks: stated with every result, since such results
/// do not compare with those of the full procedure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deviation {
    /// Trials were shorter.
    ShortTrials {
        /// What the RFC asks for.
        required: Duration,
        /// What was run.
        used: Duration,
    },
    /// Pauses after trials were shorter.
    ShortPauses {
        /// What the RFC asks for.
        required: Pauses,
        /// What was waited.
        used: Pauses,
    },
    /// Fewer repeats were averaged.
    FewRepeats {
        /// What the RFC asks for.
        required: u32,
        /// What was run.
        used: u32,
    },
    /// Loads were stepped more coarsely, in shares of the maximum.
    CoarseSteps {
        /// The largest step the RFC allows.
        required: f64,
        /// The step used.
        used: f64,
    },
}

impl Deviation {
    fn of_pauses(used: Pauses) -> Option<Deviation> {
        let required = Pauses::RFC2544;
        let short = used.drain < required.drain || used.settle < required.settle;
        short.then_some(Deviation::ShortPauses { required, used })
    }

    fn of_duration(required: Duration, used: Duration) -> Option<Deviation> {
        (used < required).then_some(Deviation::ShortTrials { required, used })
    }

    fn of_repeats(required: u32, used: u32) -> Option<Deviation> {
        (used < required).then_some(Deviation::FewRepeats { required, used })
    }
}
