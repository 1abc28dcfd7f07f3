//! HyStart++ (RFC 9406): when the delay of a round trip has increased, slow start continues at a quarter of its pace.
//! It ends after five such round trips, or is resumed if the delay decreases again.

use crate::time::Duration;

/// MIN_RTT_THRESH and MAX_RTT_THRESH.
const THRESHOLDS: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(16));
/// MIN_RTT_DIVISOR.
const DELAY_DIVISOR: u64 = 8;
/// N_RTT_SAMPLE.
const MIN_SAMPLES: u32 = 8;
/// CSS_GROWTH_DIVISOR.
const GROWTH_DIVISOR: f64 = 4.0;
/// CSS_ROUNDS.
const CONSERVATIVE_ROUNDS: u32 = 5;

const UNKNOWN: Duration = Duration(u64::MAX);

/// State of the first slow start of a connection.
#[derive(Clone, Debug)]
pub(super) struct HyStartPlusPlus {
    /// windowEnd; `None` before the first ACK.
    round_end: Option<u64>,
    last_round_delay: Duration,
    round_delay: Duration,
    samples: u32,
    /// cssBaselineMinRtt and the number of rounds, in Conservative Slow Start.
    conservative: Option<(Duration, u32)>,
}

impl HyStartPlusPlus {
    pub fn new() -> HyStartPlusPlus {
        HyStartPlusPlus {
            round_end: None,
            last_round_delay: UNKNOWN,
            round_delay: UNKNOWN,
            samples: 0,
            conservative: None,
        }
    }

    /// Handles an ACK in slow start, with a round-trip sample. `acknowledged` and `sent` are the sequence numbers up to
    /// which data is acknowledged and sent. Returns whether slow start ends.
    pub fn handle_ack(&mut self, (acknowledged, sent): (u64, u64), delay: Duration) -> bool {
        if self.round_end.is_none_or(|end| acknowledged >= end) {
            if let (Some((_, rounds)), Some(_)) = (&mut self.conservative, self.round_end) {
                *rounds += 1;
                if *rounds >= CONSERVATIVE_ROUNDS {
                    return true;
                }
            }
            self.round_end = Some(sent);
            self.last_round_delay = core::mem::replace(&mut self.round_delay, UNKNOWN);
            self.samples = 0;
        }
        self.round_delay = self.round_delay.min(delay);
        self.samples += 1;
        if self.samples < MIN_SAMPLES || self.last_round_delay == UNKNOWN {
            return false;
        }
        match self.conservative {
            None => {
                let threshold = Duration(self.last_round_delay.0 / DELAY_DIVISOR);
                let threshold = threshold.clamp(THRESHOLDS.0, THRESHOLDS.1);
                if self.round_delay >= self.last_round_delay + threshold {
                    self.conservative = Some((self.round_delay, 0));
                }
            }
            Some((baseline, _)) if self.round_delay < baseline => self.conservative = None,
            Some(_) => {}
        }
        false
    }

    /// Returns the divisor of the window's growth.
    pub fn growth_divisor(&self) -> f64 {
        if self.conservative.is_some() { GROWTH_DIVISOR } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MS: u64 = 1_000_000;

    /// Sends rounds of twenty segments with these delays in ms. Returns the divisor after each round, and 0 for the
    /// round in which slow start ends.
    fn divisors(delays: &[u64]) -> Vec<f64> {
        let mut slow_start = HyStartPlusPlus::new();
        let mut divisors = Vec::new();
        for (round, delay) in (0u64..).zip(delays) {
            for segment in 1..=20 {
                let sequences = (20 * round + segment, 20 * (round + 1) + segment);
                if slow_start.handle_ack(sequences, Duration(delay * MS)) {
                    divisors.push(0.0);
                    return divisors;
                }
            }
            divisors.push(slow_start.growth_divisor());
        }
        divisors
    }

    #[test]
    fn an_increase_by_an_eighth_slows_the_growth_and_five_rounds_end_it() {
        assert_eq!(divisors(&[80, 89, 90]), [1.0, 1.0, 1.0]);
        assert_eq!(divisors(&[80, 90, 90, 90, 90, 90, 90, 90]), [1.0, 4.0, 4.0, 4.0, 4.0, 4.0, 0.0]);
    }

    #[test]
    fn a_decrease_resumes_slow_start() {
        assert_eq!(divisors(&[80, 90, 85, 85]), [1.0, 4.0, 1.0, 1.0]);
    }

    #[test]
    fn thresholds_are_between_4_and_16_ms() {
        assert_eq!(divisors(&[8, 11]), [1.0, 1.0]);
        assert_eq!(divisors(&[8, 12]), [1.0, 4.0]);
        assert_eq!(divisors(&[400, 416]), [1.0, 4.0]);
    }
}
