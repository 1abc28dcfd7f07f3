//! Rates and sizes as types, so that bits are never taken for bytes.

use crate::time::Duration;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A rate in bits per second. The layer it counts is named where it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BitRate(pub u64);

/// As scenarios write it: `2.5 Mbit/s`.
impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1_000, "kbit/s")];
        match units.into_iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => write!(f, "{} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} bit/s", self.0),
        }
    }
}

impl BitRate {
    /// Time to put `bytes` on a line of this rate, rounded up to a nanosecond.
    ///
    /// Panics if the rate is zero; a plan never holds such a rate.
    #[inline]
    pub fn transmission_time(self, bytes: u32) -> Duration {
        let bits = u64::from(bytes) * 8 * 1_000_000_000;
        Duration(bits.div_ceil(self.0))
    }

    /// Bits per second as a float, for estimators and reports.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

/// How much a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    /// At most this many packets wait (the one being sent is not counted).
    Packets(u32),
    /// At most this many bytes wait.
    Bytes(u64),
}

impl Capacity {
    /// Whether a packet of `size` bytes still fits beside what waits.
    #[inline]
    pub fn admits(self, packets: usize, bytes: u64, size: u32) -> bool {
        match self {
            Capacity::Packets(limit) => packets < limit as usize,
            Capacity::Bytes(limit) => bytes + u64::from(size) <= limit,
        }
    }
}
