//! Limit of the rate at which a host answers probes, such as that of ICMP errors (RFC 1812 section 4.3.2.8, RFC 4443
//! section 2.4 (f)). Beyond the limit, missing answers say nothing about losses, so the sender lowers its rate.

use crate::time::{Duration, Instant};
use alloc::vec::Vec;

/// Number of answers in the first window, which begins at the first missing answer.
const FIRST_WINDOW: usize = 16;
/// Maximum number of answers in a window.
const LAST_WINDOW: usize = 1_024;
/// Maximum share of answered probes.
const MAX_SHARE: f64 = 0.9;

/// Minimum evidence for a limit.
struct Evidence {
    answers: usize,
    /// Standard deviation, in probes, that random losses would cause in the middle of the answers.
    deviation: f64,
}

/// Evidence at the end of the measurement. Answers that are evenly spaced to within a probe are then accidental with a
/// probability of 10⁻⁴ (Kolmogorov's distribution of the maximum of a Brownian bridge).
const AT_END: Evidence = Evidence { answers: 8, deviation: 1.5 };
/// Evidence after each answer, which lowers the rate. 1 of 2,000 paths with random losses is mistaken for a limit.
const AT_ANY_TIME: Evidence = Evidence { answers: 14, deviation: 2.0 };

/// Maximum rate that is taken for a limit of answers, bits per second. Answers are also evenly spaced behind a line that is
/// slower than the probes; no line in use is that slow.
const MAX_LIMITED_RATE: f64 = 64_000.0;
/// Rate of probes after a limit was detected, relative to it. The detected limit has an error of up to 10 %.
const SHARE_OF_LIMIT: f64 = 0.75;

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
#[derive(Clone, Debug)]
pub struct AnswerLimitDetector {
    /// Next number, as long as no answer is missing.
    expected: u64,
    /// Number and time of the answers in the current window.
    answers: Vec<(u64, Instant)>,
    /// Number of answers in a complete window.
    window: usize,
    limit: Option<f64>,
}

impl Default for AnswerLimitDetector {
    fn default() -> AnswerLimitDetector {
        AnswerLimitDetector::from_number(0)
    }
}

impl AnswerLimitDetector {
    /// Creates a detector that ignores probes before this number.
    fn from_number(expected: u64) -> AnswerLimitDetector {
        AnswerLimitDetector { expected, answers: Vec::new(), window: FIRST_WINDOW, limit: None }
    }

    /// Records the answer to a probe.
    pub fn record(&mut self, number: u64, at: Instant) {
        let is_first_window = self.window == FIRST_WINDOW;
        if is_first_window && self.answers.is_empty() && number <= self.expected {
            self.expected = self.expected.max(number + 1);
            return;
        }
        if self.limit.is_some() {
            return;
        }
        self.answers.push((number, at));
        let is_complete = self.answers.len() == self.window;
        if is_complete || is_first_window {
            self.limit = self.limit_of_window(AT_ANY_TIME);
        }
        // The window can contain answers before the limit was reached, after a probe was lost. The next one is longer, since
        // random losses must not be mistaken for a limit in any of them.
        if is_complete && self.limit.is_none() {
            self.answers.clear();
            self.window = (self.window * 2).min(LAST_WINDOW);
        }
    }

    /// Returns the answers per second that the host sends at most, by all answers of a measurement; `None` if its answers are
    /// not limited, or too few are known.
    pub fn limit(&self) -> Option<f64> {
        self.limit.or_else(|| self.limit_of_window(AT_END))
    }

    fn limit_of_window(&self, required: Evidence) -> Option<f64> {
        let mut answers = self.answers.clone();
        answers.sort_unstable();
        let (&(first, start), &(last, end)) = answers.first().zip(answers.last())?;
        let gaps = answers.len() - 1;
        if answers.len() < required.answers || last <= first || end <= start {
            return None;
        }
        let share = gaps as f64 / (last - first) as f64;
        let deviation = libm::sqrt(gaps as f64 * (1.0 - share).max(0.0)) / share / 2.0;
        if share > MAX_SHARE || deviation < required.deviation {
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

/// Control of the rate of probes: after a limit of the answers was detected, probes are sent below it, so that the losses
/// from then on are known.
///
/// The sender calls [`record_sent`](ProbeBackoff::record_sent) for each probe and sends none before
/// [`not_before`](ProbeBackoff::not_before). The receiver calls [`record_answer`](ProbeBackoff::record_answer) once for each
/// answered probe.
#[derive(Clone, Debug, Default)]
pub struct ProbeBackoff {
    detector: AnswerLimitDetector,
    limit: Option<f64>,
    lowered: Option<LoweredRate>,
    /// Number of the next probe.
    next: u64,
    last_sent: Instant,
    not_before: Instant,
    answers: u64,
    answered_bytes: u64,
}

/// Probes at a rate below the limit of the answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoweredRate {
    /// Time of the reduction.
    pub from: Instant,
    /// Maximum number of probes per second.
    pub rate: f64,
    /// Number of the first probe.
    pub first: u64,
    /// Probes sent.
    pub sent: u64,
    /// Probes answered.
    pub answered: u64,
}

impl ProbeBackoff {
    /// Records a probe, sent at this time. Numbers are consecutive.
    pub fn record_sent(&mut self, number: u64, at: Instant) {
        self.next = number + 1;
        self.last_sent = at;
        if let Some(lowered) = &mut self.lowered {
            lowered.sent += 1;
            self.not_before = at + Duration::from_secs_f64(1.0 / lowered.rate);
        }
    }

    /// Returns the earliest time of the next probe.
    pub fn not_before(&self) -> Instant {
        self.not_before
    }

    /// Records the first answer to a probe of this size, and lowers the rate if a limit is detected.
    pub fn record_answer(&mut self, number: u64, at: Instant, bytes: u64) {
        self.answers += 1;
        self.answered_bytes += bytes;
        if let Some(lowered) = &mut self.lowered {
            if number < lowered.first {
                return;
            }
            lowered.answered += 1;
        }
        self.detector.record(number, at);
        let Some(limit) = self.detector.limit.filter(|limit| self.is_plausible(*limit)) else { return };
        self.limit = Some(limit);
        self.detector = AnswerLimitDetector::from_number(self.next);
        let rate = limit * SHARE_OF_LIMIT;
        // Probes sent since the answer arrived can have been answered, too.
        let from = at.max(self.last_sent);
        self.not_before = from + Duration::from_secs_f64(1.0 / rate);
        self.lowered = Some(LoweredRate { from, rate, first: self.next, sent: 0, answered: 0 });
    }

    fn is_plausible(&self, limit: f64) -> bool {
        limit * 8.0 * self.answered_bytes as f64 <= MAX_LIMITED_RATE * self.answers as f64
    }

    /// Returns the answers per second that the host sends at most, by all answers of a measurement, if it limits them.
    pub fn limit(&self) -> Option<f64> {
        self.limit.or_else(|| self.detector.limit().filter(|limit| self.is_plausible(*limit)))
    }

    /// Returns the probes since the rate was lowered, if it was.
    pub fn lowered(&self) -> Option<LoweredRate> {
        self.lowered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;
    use alloc::collections::VecDeque;
    use alloc::format;

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
            // Until the bucket is empty, and 60 answers more.
            let count = ((depth / (rate - limit) + 60.0 / limit) * rate) as u64;
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
    fn a_loss_before_the_limit_is_reached_delays_the_detection() {
        let mut host = Host { limit: 50.0, depth: 6.0, tokens: 6.0, last: 0.0 };
        let found = detected(2_000, 1_000.0, |number, at| number != 0 && host.answers(at));
        assert!(found.is_some_and(|found| (45.0..55.0).contains(&found)), "{found:?}");
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

    /// A host that answers as long as its bucket has tokens.
    struct Host {
        limit: f64,
        depth: f64,
        tokens: f64,
        last: f64,
    }

    impl Host {
        fn answers(&mut self, at: f64) -> bool {
            self.tokens = f64::min(self.tokens + (at - self.last) * self.limit, self.depth);
            self.last = at;
            let answers = self.tokens >= 1.0;
            self.tokens -= if answers { 1.0 } else { 0.0 };
            answers
        }
    }

    /// Probes a host in virtual time for `seconds`, `rate` times per second. `loss` is that of the path. Returns the
    /// control and the number of lost probes from each number on.
    fn probe(
        host: &mut Option<Host>,
        rate: f64,
        loss: f64,
        seconds: f64,
        stream: &mut RandomStream,
    ) -> (ProbeBackoff, Vec<u64>) {
        let round_trip = 0.001 + stream.uniform() * 0.2;
        let mut backoff = ProbeBackoff::default();
        let mut answers: VecDeque<(u64, f64)> = VecDeque::new();
        let (mut number, mut lost) = (0, Vec::new());
        for slot in 0..(seconds * rate) as u64 {
            let at = slot as f64 / rate;
            while answers.front().is_some_and(|(_, arrival)| *arrival <= at) {
                let (number, arrival) = answers.pop_front().unwrap();
                backoff.record_answer(number, Instant((arrival * 1e9) as u64), 64);
            }
            let now = Instant((at * 1e9) as u64);
            if now < backoff.not_before() {
                continue;
            }
            backoff.record_sent(number, now);
            let is_lost = stream.chance(loss);
            if is_lost {
                lost.push(number);
            } else if host.as_mut().is_none_or(|host| host.answers(at + round_trip / 2.0)) {
                answers.push_back((number, at + round_trip));
            }
            number += 1;
        }
        for (number, arrival) in answers {
            backoff.record_answer(number, Instant((arrival * 1e9) as u64), 64);
        }
        (backoff, lost)
    }

    #[test]
    fn losses_below_a_detected_limit_are_those_of_the_path() {
        let mut stream = RandomStream::new(5, "probe backoff");
        let mut lossy = 0;
        for case in 0..500 {
            let limit = 0.5 + stream.uniform() * 50.0;
            let depth = 1.0 + stream.below(20) as f64;
            let rate = limit * (1.5 + stream.uniform() * 20.0);
            let seconds = depth / (rate - limit) + 240.0 / limit;
            // The losses of a path with loss look like a limit only after many answers.
            let loss = if case % 2 == 0 { 0.0 } else { 0.01 };
            let mut host = Some(Host { limit, depth, tokens: depth, last: 0.0 });
            let (backoff, lost) = probe(&mut host, rate, loss, seconds, &mut stream);
            let about = format!("case {case}: {limit} of {rate}/s, {depth} tokens, loss {loss}: {backoff:?}");
            let Some(lowered) = backoff.lowered() else {
                assert!(loss > 0.0, "{about}");
                continue;
            };
            assert!(lowered.rate < limit && lowered.rate > limit * 0.5, "{about}");
            assert!(lowered.sent > 0, "{about}");
            let path = lost.iter().filter(|number| **number >= lowered.first).count() as u64;
            assert_eq!(lowered.sent - lowered.answered, path, "{about}");
            lossy += u32::from(loss > 0.0);
        }
        assert!(lossy > 125, "{lossy} of 250 limits detected on lossy paths");
    }

    #[test]
    fn the_rate_stays_as_it_is_without_a_limit() {
        let mut stream = RandomStream::new(6, "no limit");
        let mut lowered = 0;
        for case in 0..2_000 {
            let loss = if case % 4 == 0 { 0.0 } else { stream.uniform() * 0.9 };
            let (rate, seconds) = (1.0 + stream.uniform() * 99.0, 20.0);
            let (backoff, _) = probe(&mut None, rate, loss, seconds, &mut stream);
            lowered += u32::from(backoff.lowered().is_some());
        }
        // 99.9 % of the binomial distribution with 1 of 2,000.
        assert!(lowered <= 5, "{lowered} of 2,000");
    }
}
