//! Distributions of message sizes.

use super::{ApplicationError, HEADER};
use crate::rng::RandomStream;
use serde::{Deserialize, Serialize};

/// Distribution of a size: constant, or log-normal and redrawn until it is within the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizeDistribution {
    /// Mean before truncation, bytes.
    pub mean: f64,
    /// Standard deviation before truncation, bytes; 0 for a constant.
    pub deviation: f64,
    /// Minimum, bytes.
    pub min: f64,
    /// Maximum, bytes.
    pub max: f64,
}

impl SizeDistribution {
    /// Creates a constant size.
    pub fn constant(bytes: u32) -> SizeDistribution {
        let bytes = f64::from(bytes);
        SizeDistribution { mean: bytes, deviation: 0.0, min: bytes, max: bytes }
    }

    /// Creates a log-normal distribution with a maximum of `max`.
    pub fn lognormal(mean: f64, deviation: f64, max: f64) -> SizeDistribution {
        SizeDistribution { mean, deviation, min: f64::from(HEADER), max }
    }

    /// Checks that the sizes are valid for messages.
    pub(super) fn check(&self) -> Result<(), ApplicationError> {
        let limit = f64::from(u32::MAX);
        let is_valid =
            self.mean > 0.0 && self.mean <= limit && self.deviation >= 0.0 && self.deviation <= limit;
        if !is_valid || self.max.is_nan() || self.max > limit || self.min > self.max {
            Err(ApplicationError::Size)
        } else if self.max < f64::from(HEADER) || self.mean < f64::from(HEADER) {
            Err(ApplicationError::SmallMessage)
        } else {
            Ok(())
        }
    }

    /// Draws a size in bytes.
    pub fn draw(&self, rng: &mut RandomStream) -> u32 {
        if self.deviation == 0.0 {
            return self.mean as u32;
        }
        // The maximum is returned if hardly any draw is within the bounds.
        for _ in 0..100 {
            let value = rng.lognormal(self.mean, self.deviation);
            if (self.min..=self.max).contains(&value) {
                return value as u32;
            }
        }
        self.max as u32
    }
}
