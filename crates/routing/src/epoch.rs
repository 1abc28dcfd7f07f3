//! Time of the speakers.

use netstage_core::time::Instant;

/// Returns the time since the epoch of a speaker.
pub fn now_since(epoch: std::time::Instant) -> Instant {
    Instant(u64::try_from(epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
