//! Rates and sizes as types, so that bits are not mistaken for bytes.

use crate::time::Duration;
use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// A rate in bits per second. Each use states the layer at which the bits are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BitRate(pub u64);

/// Formats the rate as scenario files write it: `2.5 Mbit/s`.
impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1_000, "kbit/s")];
        match units.into_iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => write!(f, "{} {name}", self.0 as f64 / unit as f64),
            None => write!(f, "{} bit/s", self.0),
        }
    }
}

/// Parses what `Display` formats.
impl FromStr for BitRate {
    type Err = ();

    fn from_str(text: &str) -> Result<BitRate, ()> {
        let (value, unit) = text.split_once(' ').ok_or(())?;
        let units = [("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)];
        let (_, factor) = units.into_iter().find(|(name, _)| *name == unit).ok_or(())?;
        let value: f64 = value.parse().map_err(|_| ())?;
        Ok(BitRate(libm::round(value * factor) as u64))
    }
}

impl BitRate {
    /// Returns the time to transmit `bytes` at this rate, rounded up to a nanosecond.
    ///
    /// # Panics
    ///
    /// Panics if the rate is zero; a validated plan contains no such rate.
    #[inline]
    pub fn transmission_time(self, bytes: u32) -> Duration {
        let bits = u64::from(bytes) * 8 * 1_000_000_000;
        Duration(bits.div_ceil(self.0))
    }

    /// Returns the rate in bits per second as a float, for estimators and reports.
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

/// Capacity of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    /// Maximum number of waiting packets, not counting the one in transmission.
    Packets(u32),
    /// Maximum number of waiting bytes.
    Bytes(u64),
}

impl Capacity {
    /// Returns whether a packet of `size` bytes fits into a buffer that already holds `packets` and `bytes`.
    #[inline]
    pub fn admits(self, packets: usize, bytes: u64, size: u32) -> bool {
        match self {
            Capacity::Packets(limit) => packets < limit as usize,
            Capacity::Bytes(limit) => bytes + u64::from(size) <= limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString as _;

    #[test]
    fn a_formatted_rate_is_parsed() {
        for rate in [0, 1, 999, 1_000, 2_500_000, 50_000_000, 123_456_789, 400_000_000_000] {
            assert_eq!(BitRate(rate).to_string().parse(), Ok(BitRate(rate)));
        }
        for text in ["", "unlimited", "5", "5 bit", "x Mbit/s"] {
            assert_eq!(text.parse::<BitRate>(), Err(()), "{text}");
        }
    }
}
