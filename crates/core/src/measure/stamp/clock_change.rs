//! Changes of the difference between two clocks in a session. One-way delays contain this difference, so a change of it
//! makes them and their variation meaningless.

use super::sender::StampSample;
use alloc::collections::VecDeque;

/// Number of replies before and after a step.
const SIDE: usize = 8;
/// Smallest change that is not an error of timestamps, nanoseconds.
const MIN_CHANGE: i64 = 1_000_000;

/// Detector of changes between the clocks of sender and reflector.
///
/// - *Step*: the one-way delays of successive replies change in opposite directions, by more than four times their range
///   before and after, while their round trip stays.
/// - *Any change*: no delay is negative, so the shortest delays of the two directions cannot have a negative sum while the
///   difference of the clocks stays.
#[derive(Clone, Debug, Default)]
pub struct ClockChange {
    /// Reflector's clock minus the sender's, as far as the one-way delays are equal, and the round trips of the last
    /// replies, nanoseconds.
    last: VecDeque<(i64, i64)>,
    /// Minimum one-way delays forward and backward.
    min: Option<[i64; 2]>,
    largest_step: i64,
}

impl ClockChange {
    /// Records a reply, in the order of arrival.
    pub fn record(&mut self, sample: &StampSample) {
        let [forward, backward] = self.min.unwrap_or([i64::MAX; 2]);
        self.min = Some([forward.min(sample.forward), backward.min(sample.backward)]);
        let offset = (sample.forward / 2).saturating_sub(sample.backward / 2);
        self.last.push_back((offset, sample.round_trip));
        if self.last.len() > 2 * SIDE {
            self.last.pop_front();
        }
        if self.last.len() == 2 * SIDE {
            self.largest_step = self.largest_step.max(self.step());
        }
    }

    /// Returns the size of the step in the middle of the last replies, or zero.
    fn step(&self) -> i64 {
        let side = |from: usize, value: fn(&(i64, i64)) -> i64| {
            let mut values: [i64; SIDE] = core::array::from_fn(|index| value(&self.last[from + index]));
            values.sort_unstable();
            (values[SIDE / 2], values[SIDE - 1].saturating_sub(values[0]))
        };
        let [(before, spread_before), (after, spread_after)] = [0, SIDE].map(|from| side(from, |one| one.0));
        let [(trip_before, _), (trip_after, _)] = [0, SIDE].map(|from| side(from, |one| one.1));
        let step = after.saturating_sub(before).saturating_abs();
        let longer = trip_after.saturating_sub(trip_before).saturating_abs();
        let is_step =
            step > spread_before.max(spread_after).saturating_mul(4) && step > longer.saturating_mul(4);
        if is_step { step } else { 0 }
    }

    /// Returns a lower bound of the change of the difference between the clocks, nanoseconds, if there was one.
    pub fn found(&self) -> Option<u64> {
        let negative = self.min.map_or(0, |[forward, backward]| forward.saturating_add(backward).min(0));
        let change = self.largest_step.max(negative.saturating_neg());
        (change >= MIN_CHANGE).then_some(change.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;

    /// Returns the change found in a session of 100 replies over a path with this jitter, whose reflector's clock differs by
    /// `clock` at each reply. All times are in nanoseconds.
    fn found(random: &mut RandomStream, jitter: u64, clock: impl Fn(i64) -> i64) -> Option<u64> {
        let mut change = ClockChange::default();
        let [one, other] = [0; 2].map(|_: i32| random.below(50_000_000) as i64);
        for number in 0..100 {
            let [forward, backward] = [one, other].map(|delay| delay + random.below(jitter + 1) as i64);
            change.record(&StampSample {
                forward: forward + clock(number),
                backward: backward - clock(number),
                round_trip: forward + backward,
                ..StampSample::default()
            });
        }
        change.found()
    }

    #[test]
    fn steps_are_found_and_queues_are_not() {
        let mut random = RandomStream::new(1, "clock change");
        for _ in 0..200 {
            let jitter = [0, 10_000, 300_000][random.below(3) as usize];
            let at = 10 + random.below(80) as i64;
            let step =
                (2_000_000 + random.below(4_000_000_000) as i64) * if random.chance(0.5) { 1 } else { -1 };
            let offset = random.next_u64() as i64 / 4;
            let size = found(&mut random, jitter, |number| offset + if number < at { 0 } else { step });
            let size = size.expect("a step is found");
            assert!(size.abs_diff(step.unsigned_abs()) <= jitter.max(1), "{size} of {step}, jitter {jitter}");
            let jitter = [0, 300_000, 40_000_000][random.below(3) as usize];
            assert_eq!(found(&mut random, jitter, |_| offset), None, "jitter {jitter}");
        }
    }

    #[test]
    fn a_growing_queue_is_no_step_and_a_drifting_clock_is_a_change() {
        let mut change = ClockChange::default();
        for number in 0..100_i64 {
            let queue = if number < 50 { 0 } else { 80_000_000 };
            let (forward, backward) = (20_000_000 + queue, 20_000_000);
            change.record(&StampSample {
                forward,
                backward,
                round_trip: forward + backward,
                ..StampSample::default()
            });
        }
        assert_eq!(change.found(), None);
        let mut random = RandomStream::new(2, "clock change");
        assert!(found(&mut random, 1_000, |number| number * 2_000_000) > Some(50_000_000));
    }
}
