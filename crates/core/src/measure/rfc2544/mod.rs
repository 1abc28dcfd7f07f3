//! Benchmarks of RFC 2544, with the back-to-back test of RFC 9004: throughput, latency, frame loss above the
//! throughput, and buffer size of a device.
//!
//! Each benchmark is a [`TrialSearch`](super::trial::TrialSearch) for one frame size. The benchmarks assume a
//! path without random loss; `docs/measurement.md` explains when their results mislead.

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

/// Ethernet frame sizes to test, bytes including check sequence (RFC 2544 section 9.1).
pub const ETHERNET_FRAME_SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// Deviation of a test from the RFC's procedure. Reported with every result, because results with deviations
/// are not comparable with those of the full procedure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deviation {
    /// Trials shorter than required.
    ShortTrials {
        /// Duration required by the RFC.
        required: Duration,
        /// Duration used.
        used: Duration,
    },
    /// Pauses after trials shorter than required.
    ShortPauses {
        /// Pauses required by the RFC.
        required: Pauses,
        /// Pauses used.
        used: Pauses,
    },
    /// Fewer repeats than required.
    FewRepeats {
        /// Number required by the RFC.
        required: u32,
        /// Number used.
        used: u32,
    },
    /// Steps between loads larger than allowed, as shares of the maximum load.
    CoarseSteps {
        /// Largest step the RFC allows.
        required: f64,
        /// Step used.
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
