//! Limit of the rate at which a host answers probes, such as that of ICMP errors (RFC 1812 section 4.3.2.8, RFC 4443
//! section 2.4 (f)). Beyond the limit, missing answers say nothing about losses.

use crate::time::Instant;
use alloc::vec::Vec;

/// Maximum answers that are compared.
const MAX_ANSWERS: usize = 1_024;
/// Minimum answers after the first missing one.
const MIN_ANSWERS: usize = 8;
/// Maximum share of answered probes.
const MAX_SHARE: f64 = 0.9;
/// Minimum standard deviation, in probes, that random losses would cause in the middle of the answers. Answers that are
/// evenly spaced to within a probe are then accidental with a probability of 10⁻⁴ (Kolmogorov's distribution of the maximum
/// of a Brownian bridge).
const MIN_DEVIATION: f64 = 1.5;
/// Maximum rate that is taken for a limit of answers, bits per second. Answers are also evenly spaced behind a line that is
/// slower than the probes; no line in use is that slow.
pub const MAX_LIMITED_RATE: f64 = 64_000.0;

/// Detector of a limit. A limiter with a token bucket answers some probes, and from then on at a constant rate, however many
/// probes arrive. After random losses, the times of the answers would wander like a random walk.
///
/// ```
/// use netstage_core::measure::AnswerLimitDetector;
/// use netstage_core::time::Instant;
///
/// // Ten probes a second, of which six and then one a second are answered.
/// let mut detector = AnswerLimitDetector::default();
/// for number in (0..6).chain((10..200).step_by(10)) {
///     detector.record(number, Instant(number * 100_000_000));
/// }
/// assert_eq!(detector.limit(), Some(1.0));
/// ```
#[derive(Clone, Debug, Default)]
pub struct AnswerLimitDetector {
    /// Next number, as long as no answer is missing.
    expected: u64,
    /// Number and time of the answers since the first missing one.
    answers: Vec<(u64, Instant)>,
}

impl AnswerLimitDetector {
    /// Records the answer to a probe.
    pub fn record(&mut self, number: u64, at: Instant) {
        if self.answers.is_empty() && number <= self.expected {
            self.expected = self.expected.max(number + 1);
        } else if self.answers.len() < MAX_ANSWERS {
            self.answers.push((number, at));
        }
    }

    /// Returns the answers per second that the host sends at most; `None` if its answers are not limited, or too few are
    /// known.
    pub fn limit(&self) -> Option<f64> {
        let mut answers = self.answers.clone();
        answers.sort_unstable();
        let (&(first, start), &(last, end)) = answers.first().zip(answers.last())?;
        let gaps = answers.len() - 1;
        if gaps + 1 < MIN_ANSWERS || last <= first || end <= start {
            return None;
        }
        let share = gaps as f64 / (last - first) as f64;
        let deviation = libm::sqrt(gaps as f64 * (1.0 - share).max(0.0)) / share / 2.0;
        if share > MAX_SHARE || deviation < MIN_DEVIATION {
            return None;
        }
        let span = end.since(start).as_secs_f64();
        let (mean, probe) = (span / gaps as f64, span / (last - first) as f64);
        let tolerance = probe * (deviation / 4.0).max(1.0);
        let is_even = answers.iter().enumerate().all(|(index, (_, at))| {
            let residual = at.since(start).as_secs_f64() - index as f64 * mean;
            libm::fabs(residual) <= tolerance
        });
        is_even.then_some(1.0 / mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;

    /// Returns what is detected for `count` probes at `rate` per second, of which `answers` selects those answered.
    fn detected(count: u64, rate: f64, mut answers: impl FnMut(u64, f64) -> bool) -> Option<f64> {
        let mut detector = AnswerLimitDetector::default();
        for number in 0..count {
            let at = number as f64 / rate;
            if answers(number, at) {
                detector.record(number, Instant((at * 1e9) as u64));
            }
        }
        detector.limit()
    }

    #[test]
    fn token_buckets_are_detected() {
        let mut stream = RandomStream::new(3, "token buckets");
        for case in 0..500 {
            let (limit, depth) = (0.5 + stream.uniform() * 50.0, 1.0 + stream.below(20) as f64);
            let rate = limit * (1.5 + stream.uniform() * 20.0);
            let (mut tokens, mut last) = (depth, 0.0);
            // Until the bucket is empty, and 40 answers more.
            let count = ((depth / (rate - limit) + 40.0 / limit) * rate) as u64;
            let found = detected(count, rate, |_, at| {
                tokens = f64::min(tokens + (at - last) * limit, depth);
                last = at;
                let answers = tokens >= 1.0;
                tokens -= if answers { 1.0 } else { 0.0 };
                answers
            });
            let found = found.unwrap_or_else(|| panic!("case {case}: {limit} of {rate}/s, {depth} tokens"));
            // A bucket of a single token loses what it gains until the next probe.
            let least = rate / (rate / limit).ceil();
            assert!((0.9 * least..1.1 * limit).contains(&found), "case {case}: {found} instead of {limit}");
        }
    }

    #[test]
    fn random_losses_are_no_limit() {
        let mut stream = RandomStream::new(4, "random losses");
        let mut found = 0;
        for _ in 0..5_000 {
            let (loss, count) = (0.02 + stream.uniform() * 0.95, 20 + stream.below(2_000));
            found += usize::from(detected(count, 10.0, |_, _| stream.uniform() >= loss).is_some());
        }
        assert!(found <= 5, "{found} of 5,000");
    }

    #[test]
    fn complete_and_missing_answers_are_no_limit() {
        assert_eq!(detected(1_000, 10.0, |_, _| true), None);
        assert_eq!(detected(1_000, 10.0, |_, _| false), None);
        assert_eq!(detected(1_000, 10.0, |number, _| number != 500), None);
        // An outage.
        assert_eq!(detected(1_000, 10.0, |number, _| !(300..700).contains(&number)), None);
    }
}
