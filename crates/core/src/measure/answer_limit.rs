//! Limit of the rate at which a host answers probes, such as that of ICMP errors (RFC 1812 section 4.3.2.8, RFC 4443
//! section 2.4 (f)). Beyond the limit, missing answers say nothing about losses, so the sender lowers its rate.

use super::binomial::chi_square_tail;
use crate::time::{Duration, Instant};
use alloc::vec::Vec;

/// Number of runs in the first window.
const FIRST_WINDOW: usize = 16;
/// Maximum number of runs in a window.
const LAST_WINDOW: usize = 1_024;
/// Minimum number of cycles, and of their sums.
const MIN_CYCLES: usize = 5;
/// Maximum share of answered probes.
const MAX_SHARE: f64 = 0.9;
/// Probability that memoryless losses are as regular, for one window and kind of cycles. Including all windows, 1 of 2,000
/// paths is mistaken for a limit.
const SIGNIFICANCE: f64 = 1e-5;
/// Maximum dispersion of regular cycles, relative to memoryless losses. The distribution of logarithms is approximate, and
/// its error grows with the number of cycles.
const MAX_DISPERSION: f64 = 1.0 / 1.2;
/// Number of answers, at the start, whose shortest round trip is that of an empty queue.
const UNLOADED_ANSWERS: usize = 16;
/// Rate of probes after a limit was detected, relative to it. The detected limit has an error of up to 10 %.
const SHARE_OF_LIMIT: f64 = 0.75;

/// Detector of a limit of the answers.
///
/// Losses begin where a limiter has used up its answers, and end when it has received new ones. These cycles are regular
/// for any limiter: a token bucket, a bucket that is filled at intervals, or the limit of all ICMP errors of Linux, which
/// spends a random number of tokens per answer, but is filled every 20 ms. Random losses are memoryless, even in bursts
/// (Gilbert's model): the length of a cycle is then the sum of two geometric variables. The detector fits their means, and
/// compares the dispersion of the cycles by Bartlett's statistic (the logarithm of their mean minus the mean of their
/// logarithms), for sums of 1, 2, 4, … cycles, and for the losses of at least 1, 2, 4, … probes, since the path can cause the
/// short ones. If reordering before the limiter hides the cycles, the number of probes per answers still is regular.
///
/// A queue in front of a line that is slower than the probes loses packets as regularly. It is full when it does, so all
/// answers are delayed; a limiter delays none.
///
/// ```
/// use netstage_core::measure::AnswerLimitDetector;
/// use netstage_core::time::{Duration, Instant};
///
/// // Ten probes a second, of which six and then one a second are answered.
/// let mut detector = AnswerLimitDetector::default();
/// for number in (0..6).chain((10..200).step_by(10)) {
///     let sent = Instant(number * 100_000_000);
///     detector.record(number, sent, sent + Duration::from_millis(3));
/// }
/// assert_eq!(detector.limit(), Some(1.0));
/// ```
#[derive(Clone, Debug)]
pub struct AnswerLimitDetector {
    /// Answered probes of the window, by number.
    runs: Vec<Run>,
    /// Number of runs in a complete window.
    window: usize,
    limit: Option<f64>,
    longest: Duration,
    /// Shortest round trip of the first answers, and their number.
    unloaded: (Duration, usize),
}

/// Probes with consecutive numbers, all of which were answered.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    /// Number after the last probe.
    end: u64,
    /// Departure of the first probe.
    sent: Instant,
    shortest: Duration,
}

impl Default for AnswerLimitDetector {
    fn default() -> AnswerLimitDetector {
        AnswerLimitDetector {
            runs: Vec::new(),
            window: FIRST_WINDOW,
            limit: None,
            longest: Duration::ZERO,
            unloaded: (Duration(u64::MAX), 0),
        }
    }
}

impl AnswerLimitDetector {
    /// Forgets the answers so far, except the round trips of the first ones.
    fn restart(&mut self) {
        *self = AnswerLimitDetector { unloaded: self.unloaded, ..AnswerLimitDetector::default() };
    }

    /// Records the first answer to a probe, which was sent and answered at these times.
    pub fn record(&mut self, number: u64, sent: Instant, at: Instant) {
        let round_trip = at.since(sent);
        if self.unloaded.1 < UNLOADED_ANSWERS {
            self.unloaded = (self.unloaded.0.min(round_trip), self.unloaded.1 + 1);
        }
        self.longest = self.longest.max(round_trip);
        if self.limit.is_some() {
            return;
        }
        // Answers can be reordered, but most are the latest.
        let place = self.runs.iter().rposition(|run| run.first <= number).map_or(0, |before| before + 1);
        let (before, after) = self.runs.split_at_mut(place);
        let answered = Run { first: number, end: number + 1, sent, shortest: round_trip };
        let joined = match before.last_mut().filter(|run| run.end >= number) {
            Some(run) if run.end > number => return,
            Some(run) => {
                run.append(answered);
                Some(run)
            }
            None => None,
        };
        let touching = after.first_mut().filter(|run| run.first == number + 1);
        match (joined, touching) {
            (Some(run), Some(next)) => {
                run.append(*next);
                self.runs.remove(place);
            }
            (None, Some(next)) => {
                let mut run = answered;
                run.append(*next);
                *next = run;
            }
            (Some(_), None) => {}
            (None, None) => self.insert(place, answered, at),
        }
    }

    fn insert(&mut self, place: usize, run: Run, at: Instant) {
        self.runs.insert(place, run);
        // The answers to later probes can be reordered.
        let settled = self.runs.partition_point(|run| run.sent + self.longest <= at);
        if settled > self.window {
            self.limit = self.limit_of(&self.runs[..settled]);
            // The next window is longer, since random losses must not be mistaken for a limit in any of them. The older
            // half can contain losses from the time before the limit was reached.
            self.runs.drain(..self.window / 2);
            self.window = (self.window * 2).min(LAST_WINDOW);
        }
    }

    /// Returns the answers per second that the host sends at most, by all answers of a measurement; `None` if its answers are
    /// not limited, or too few are known.
    pub fn limit(&self) -> Option<f64> {
        self.limit.or_else(|| self.limit_of(&self.runs))
    }

    fn limit_of(&self, runs: &[Run]) -> Option<f64> {
        // The first run can contain the answers before the limit was reached.
        let (first, last) = (runs.get(1)?, runs.last()?);
        let share = answers(&runs[1..]) / (last.first - first.first) as f64;
        let mut min_loss = 1;
        let regular = loop {
            let (is_regular, probes) = losses(runs, min_loss).filter(|_| share <= MAX_SHARE)?;
            if is_regular {
                break probes;
            }
            min_loss *= 2;
        };
        // So can the older half, if the path lost some of them.
        let (begin, end) = (regular[regular.len() / 2], regular.last()?);
        let limited = &runs
            [runs.partition_point(|run| run.first < begin)..=runs.partition_point(|run| run.first < *end)];
        let limit = answers(limited) / limited.last()?.sent.since(limited[0].sent).as_secs_f64();
        let shortest = runs[1..].iter().map(|run| run.shortest).min()?;
        let is_queue = (shortest - self.unloaded.0).as_secs_f64() > 0.5 / limit;
        (!is_queue && limit.is_finite()).then_some(limit)
    }
}

/// Returns the number of answers before the last run.
fn answers(runs: &[Run]) -> f64 {
    runs[..runs.len() - 1].iter().map(|run| run.end - run.first).sum::<u64>() as f64
}

impl Run {
    fn append(&mut self, next: Run) {
        self.end = next.end;
        self.shortest = self.shortest.min(next.shortest);
    }
}

/// Losses that begin and end with the next probe with these probabilities (Gilbert's model).
struct MemorylessLosses {
    begin: f64,
    end: f64,
}

impl MemorylessLosses {
    /// Variance of the number of probes from the end of one loss to the end of the next.
    fn variance_of_cycle(&self) -> f64 {
        let geometric = |p: f64| (1.0 - p) / (p * p);
        geometric(self.begin) + geometric(self.end)
    }

    /// Variance of the number of probes from one answer to the next.
    fn variance_of_gap(&self) -> f64 {
        self.begin * (2.0 - self.begin - self.end) / (self.end * self.end)
    }
}

/// Returns whether the losses of at least `min_loss` probes are regular, and the first answered probe after each; `None` if
/// they are too few.
fn losses(runs: &[Run], min_loss: u64) -> Option<(bool, Vec<u64>)> {
    let mut ends = Vec::new();
    let mut lost = 0;
    for pair in runs.windows(2) {
        let missing = pair[1].first - pair[0].end;
        if missing >= min_loss {
            lost += if ends.is_empty() { 0 } else { missing };
            ends.push(pair[1].first);
        }
    }
    let cycles = ends.len().checked_sub(1).filter(|cycles| *cycles >= MIN_CYCLES)?;
    let (probes, lost, cycles) = ((ends[cycles] - ends[0]) as f64, lost as f64, cycles as f64);
    let mut losses = MemorylessLosses {
        begin: cycles / (probes - lost),
        end: 1.0 / (lost / cycles - (min_loss - 1) as f64),
    };
    if min_loss > 1 {
        return Some((is_regular(&ends, losses.variance_of_cycle()), ends));
    }
    if losses.begin + losses.end > 1.0 {
        // Losses that avoid each other are those of a limiter; those of a path are independent or in bursts.
        losses = MemorylessLosses { begin: lost / probes, end: 1.0 - lost / probes };
    }
    // As many answers as contain a loss on average.
    let step = (1.0 / losses.begin) as usize + 1;
    let answers = runs.iter().flat_map(|run| run.first..run.end).step_by(step).collect::<Vec<_>>();
    let is_regular = is_regular(&ends, losses.variance_of_cycle())
        || is_regular(&answers, losses.variance_of_gap() * step as f64);
    Some((is_regular, ends))
}

/// Returns whether the intervals between these probes, or the sums of 2, 4, … intervals, vary less than those of memoryless
/// losses, which have this variance.
fn is_regular(probes: &[u64], mut variance: f64) -> bool {
    let mut step = 1;
    while probes.len() > MIN_CYCLES * step && variance > 0.0 {
        let count = (probes.len() - 1) / step;
        let mean = (probes[count * step] - probes[0]) as f64 / count as f64;
        let ends = probes.iter().step_by(step).skip(1);
        let sums = probes.iter().step_by(step).zip(ends).map(|(start, end)| (end - start) as f64);
        let logarithms: f64 = sums.map(|sum| libm::log(sum / mean)).sum();
        // Both ends of an interval are rounded to a probe.
        let rounding = count as f64 / (6.0 * variance);
        let statistic = rounding - 2.0 * mean * mean / variance * logarithms;
        if 1.0 - chi_square_tail(statistic / MAX_DISPERSION, count as f64 - 1.0) < SIGNIFICANCE {
            return true;
        }
        step *= 2;
        variance *= 2.0;
    }
    false
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

    /// Records the first answer to a probe, which was sent and answered at these times. Lowers the rate if a limit is detected.
    pub fn record_answer(&mut self, number: u64, sent: Instant, at: Instant) {
        if let Some(lowered) = &mut self.lowered {
            if number < lowered.first {
                return;
            }
            lowered.answered += 1;
        }
        self.detector.record(number, sent, at);
        let Some(limit) = self.detector.limit else { return };
        self.limit = Some(limit);
        self.detector.restart();
        let rate = limit * SHARE_OF_LIMIT;
        // Probes sent since the answer arrived can have been answered, too.
        let from = at.max(self.last_sent);
        self.not_before = from + Duration::from_secs_f64(1.0 / rate);
        self.lowered = Some(LoweredRate { from, rate, first: self.next, sent: 0, answered: 0 });
    }

    /// Returns the answers per second that the host sends at most, by all answers of a measurement, if it limits them.
    pub fn limit(&self) -> Option<f64> {
        self.limit.or_else(|| self.detector.limit())
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
                let sent = Instant((at * 1e9) as u64);
                detector.record(number, sent, sent + Duration::from_millis(1));
            }
        }
        detector.limit()
    }

    #[test]
    fn a_loss_before_the_limit_is_reached_delays_the_detection() {
        let mut host = Host { limit: 50.0, depth: 6.0, tokens: 6.0, last: 0.0 };
        let found = detected(2_000, 1_000.0, |number, at| number != 0 && host.answers(at));
        assert!(found.is_some_and(|found| (45.0..55.0).contains(&found)), "{found:?}");
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
        let mut answers: VecDeque<(u64, Instant, Instant)> = VecDeque::new();
        let (mut number, mut lost) = (0, Vec::new());
        for slot in 0..(seconds * rate) as u64 {
            let at = slot as f64 / rate;
            while let Some((number, sent, arrival)) =
                answers.pop_front_if(|answer| answer.2.as_secs_f64() <= at)
            {
                backoff.record_answer(number, sent, arrival);
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
                answers.push_back((number, now, now + Duration::from_secs_f64(round_trip)));
            }
            number += 1;
        }
        for (number, sent, arrival) in answers {
            backoff.record_answer(number, sent, arrival);
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
