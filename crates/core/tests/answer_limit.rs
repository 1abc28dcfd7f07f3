//! Limits of answers on simulated hosts and paths, whose truth the simulation counts itself.

use netstage_core::measure::AnswerLimitDetector;
use netstage_core::rng::RandomStream;
use netstage_core::time::Instant;
use netstage_harness::needs;
use std::collections::BTreeMap;

/// Seed of all cases.
const SEED: u64 = 20_261_126;
/// Minimum share of the answers that a limiter suppresses, and duration and number of answers during which it does so.
const MIN_CUT: f64 = 0.15;
const MIN_SECONDS: f64 = 1.0;
const MIN_ANSWERS: u64 = 50;

/// Function of the path or host that can discard a probe.
#[derive(Clone, Debug)]
enum Element {
    /// Token bucket.
    Bucket { rate: f64, depth: f64 },
    /// Token bucket that is filled at intervals.
    Interval { rate: f64, seconds: f64, depth: f64 },
    /// Limit of all ICMP errors of Linux (`icmp_msgs_per_sec`, `icmp_msgs_burst`): filled when empty, after 20 ms at the
    /// earliest, and random in the tokens that it takes for an answer.
    Linux { rate: f64, burst: i64, ticks_per_second: f64 },
    /// Drop-tail queue in front of a line, with other traffic in bursts of an exponential size.
    Queue { rate: f64, packets: u64, others: f64, mean_burst: f64 },
    /// Independent losses.
    Bernoulli { loss: f64 },
    /// Losses in bursts: probabilities that a burst begins and ends with the next packet.
    Gilbert { begins: f64, ends: f64 },
}

/// State of an element, in numbers whose meaning depends on the kind.
#[derive(Default)]
struct State {
    tokens: f64,
    credit: i64,
    last: f64,
    is_bad: bool,
    next_other: f64,
}

impl Element {
    fn state(&self, stream: &mut RandomStream) -> State {
        match self {
            Element::Bucket { depth, .. } | Element::Interval { depth, .. } => {
                State { tokens: *depth, ..State::default() }
            }
            Element::Linux { burst, .. } => State { credit: *burst, ..State::default() },
            Element::Queue { others, .. } if *others > 0.0 => {
                State { next_other: stream.exponential(1.0 / others), ..State::default() }
            }
            Element::Queue { .. } => State { next_other: f64::INFINITY, ..State::default() },
            Element::Bernoulli { .. } | Element::Gilbert { .. } => State::default(),
        }
    }

    /// Returns when a packet that arrives at `at` leaves the element, if it does.
    fn pass(&self, state: &mut State, at: f64, stream: &mut RandomStream) -> Option<f64> {
        let take = |state: &mut State| {
            let passes = state.tokens >= 1.0;
            state.tokens -= if passes { 1.0 } else { 0.0 };
            passes.then_some(at)
        };
        match *self {
            Element::Bucket { rate, depth } => {
                state.tokens = f64::min(state.tokens + (at - state.last) * rate, depth);
                state.last = at;
                take(state)
            }
            Element::Interval { rate, seconds, depth } => {
                let interval = (at / seconds).floor();
                state.tokens = f64::min(state.tokens + (interval - state.last) * seconds * rate, depth);
                state.last = interval;
                take(state)
            }
            Element::Linux { rate, burst, ticks_per_second } => {
                if state.credit <= 0 {
                    let now = (at * ticks_per_second).floor();
                    let ticks = (now - state.last).min(ticks_per_second);
                    let tokens = (rate * ticks / ticks_per_second) as i64;
                    if ticks < (ticks_per_second / 50.0).floor() || tokens == 0 {
                        return None;
                    }
                    state.last = now;
                    state.credit = (state.credit + tokens).min(burst);
                }
                state.credit -= stream.below(3) as i64;
                Some(at)
            }
            Element::Queue { rate, packets, others, mean_burst } => {
                let enter = |state: &mut State, at: f64| {
                    let waiting = ((state.last - at).max(0.0) * rate).ceil() as u64;
                    let enters = waiting <= packets;
                    state.last = if enters { state.last.max(at) + 1.0 / rate } else { state.last };
                    enters
                };
                while state.next_other < at {
                    let at = state.next_other;
                    for _ in 0..=stream.exponential(mean_burst) as u64 {
                        enter(state, at);
                    }
                    state.next_other += stream.exponential(1.0 / others);
                }
                enter(state, at).then_some(state.last)
            }
            Element::Bernoulli { loss } => (!stream.chance(loss)).then_some(at),
            Element::Gilbert { begins, ends } => {
                state.is_bad = stream.chance(if state.is_bad { 1.0 - ends } else { begins });
                (!state.is_bad).then_some(at)
            }
        }
    }
}

/// Probes through a path to a host.
#[derive(Clone, Debug)]
struct Course {
    /// Probes per second, and their number.
    rate: f64,
    probes: u64,
    /// Whether gaps are exponential instead of equal.
    is_poisson: bool,
    /// Round trip without queues, and the maximum or mean of its variation on the way to the host, seconds. Packets overtake
    /// each other if it is longer than their gaps.
    round_trip: f64,
    jitter: f64,
    has_exponential_jitter: bool,
    path: Element,
    host: Element,
}

/// Answers in the order of arrival, and what the host suppressed since it did so first.
struct Answers {
    /// Number, departure and arrival.
    answers: Vec<(u64, Instant, Instant)>,
    arrived: u64,
    answered: u64,
    seconds: f64,
}

impl Course {
    /// Draws a path without losses.
    fn draw(rate: f64, probes: f64, stream: &mut RandomStream) -> Course {
        Course {
            rate,
            probes: probes as u64,
            is_poisson: false,
            round_trip: log_uniform(0.000_5, 0.3, stream),
            jitter: 0.0,
            has_exponential_jitter: stream.chance(0.5),
            path: Element::Bernoulli { loss: 0.0 },
            host: Element::Bernoulli { loss: 0.0 },
        }
    }

    fn run(&self, stream: &mut RandomStream) -> Answers {
        let (mut path, mut host) = (self.path.state(stream), self.host.state(stream));
        // Limiters and probes have independent phases.
        let mut sent = stream.uniform();
        let mut arrivals = Vec::new();
        for number in 0..self.probes {
            sent += if self.is_poisson { stream.exponential(1.0 / self.rate) } else { 1.0 / self.rate };
            if let Some(left) = self.path.pass(&mut path, sent, stream) {
                let jitter = match self.has_exponential_jitter {
                    true => stream.exponential(self.jitter),
                    false => stream.uniform() * self.jitter,
                };
                arrivals.push((left + self.round_trip / 2.0 + jitter, sent, number));
            }
        }
        arrivals.sort_by(|one, other| one.0.total_cmp(&other.0));
        let instant = |seconds: f64| Instant((seconds * 1e9) as u64);
        let (mut answers, mut arrived, mut answered) = (Vec::new(), 0, 0);
        let mut first_suppressed = None;
        for (at, sent, number) in arrivals {
            arrived += u64::from(first_suppressed.is_some());
            if let Some(left) = self.host.pass(&mut host, at, stream) {
                answered += u64::from(first_suppressed.is_some());
                answers.push((number, instant(sent), instant(left + self.round_trip / 2.0)));
            } else {
                first_suppressed.get_or_insert(at);
            }
        }
        answers.sort_by_key(|answer| answer.2);
        Answers { answers, arrived, answered, seconds: sent - first_suppressed.unwrap_or(sent) }
    }
}

impl Answers {
    fn detected(&self) -> Option<f64> {
        let mut detector = AnswerLimitDetector::default();
        for (number, sent, at) in &self.answers {
            detector.record(*number, *sent, *at);
        }
        detector.limit()
    }

    /// Returns whether the host suppressed enough answers for long enough.
    fn are_limited(&self) -> bool {
        self.seconds >= MIN_SECONDS
            && self.answered >= MIN_ANSWERS
            && self.answered as f64 <= (1.0 - MIN_CUT) * self.arrived as f64
    }
}

fn uniform(from: f64, to: f64, stream: &mut RandomStream) -> f64 {
    from + (to - from) * stream.uniform()
}

fn log_uniform(from: f64, to: f64, stream: &mut RandomStream) -> f64 {
    uniform(from.ln(), to.ln(), stream).exp()
}

/// Draws a limiter of this kind, probes above its limit, and a path of this kind.
fn limited(kind: &str, path: &str, stream: &mut RandomStream) -> Course {
    let rate = if kind == "linux" { 1_000.0 } else { log_uniform(1.0, 5_000.0, stream) };
    let depth = log_uniform(1.0, 200.0, stream).floor();
    let (host, depth) = match kind {
        "bucket" => (Element::Bucket { rate, depth }, depth),
        "interval" => {
            let seconds = log_uniform(0.001, 0.1, stream);
            let depth = depth.max((seconds * rate).ceil());
            (Element::Interval { rate, seconds, depth }, depth)
        }
        _ => {
            let ticks_per_second = [100.0, 250.0, 300.0, 1_000.0][stream.below(4) as usize];
            (Element::Linux { rate, burst: 50, ticks_per_second }, 50.0)
        }
    };
    let probes_per_second = (rate / uniform(0.05, 1.0 - MIN_CUT, stream)).min(20_000.0);
    let seconds = depth / (probes_per_second - rate)
        + f64::max(MIN_SECONDS, 1.2 * MIN_ANSWERS as f64 / rate) * log_uniform(1.0, 10.0, stream);
    Course {
        path: match path {
            "lossy" => Element::Bernoulli { loss: uniform(0.0, 0.1, stream) },
            // Other traffic on a line that is faster than the probes.
            "variable" => {
                let rate = probes_per_second * log_uniform(1.5, 100.0, stream);
                let mean_burst = log_uniform(0.1, 20.0, stream);
                let others = uniform(0.1, 0.9, stream) * (rate - probes_per_second) / (1.0 + mean_burst);
                Element::Queue { rate, packets: u64::MAX, others, mean_burst }
            }
            _ => Element::Bernoulli { loss: 0.0 },
        },
        jitter: if path == "reordering" { log_uniform(1e-5, 0.01, stream) } else { 0.0 },
        host,
        ..Course::draw(probes_per_second, f64::min(seconds * probes_per_second, 200_000.0), stream)
    }
}

#[test]
fn limits_are_recognized() {
    let cases = needs::cases(1_000);
    let kinds = ["bucket", "interval", "linux"];
    // Losses, delays and reordering before the limiter hide some of the limits.
    let paths = [("clean", 10), ("variable", 50), ("lossy", 50), ("reordering", 200)];
    for (kind, (path, per_thousand)) in kinds.into_iter().flat_map(|kind| paths.map(|path| (kind, path))) {
        let name = format!("{kind}, {path} path");
        let mut stream = RandomStream::new(SEED, &name);
        let (mut tried, mut missed, mut wrong, mut example) = (0, 0, 0, None);
        while tried < cases {
            let course = limited(kind, path, &mut stream);
            let answers = course.run(&mut stream);
            if !answers.are_limited() {
                continue;
            }
            tried += 1;
            let limit = answers.answered as f64 / answers.seconds;
            let found = answers.detected();
            missed += u32::from(found.is_none());
            let is_wrong = found.is_some_and(|found| !(0.75..1.25).contains(&(found / limit)));
            wrong += u32::from(is_wrong);
            if found.is_none() || is_wrong {
                example = Some(format!("{found:?} instead of {limit}: {course:?}"));
            }
        }
        println!("{name}: {missed} missed, {wrong} wrong by more than 25 %, of {tried}");
        let bound = tried * per_thousand / 1_000;
        assert!(
            missed <= bound && wrong <= bound,
            "seed {SEED}, {name}: {missed} and {wrong} of {tried}, as {example:?}"
        );
    }
}

#[test]
fn losses_of_paths_are_no_limits() {
    let cases = needs::cases(10_000);
    let mut found = BTreeMap::new();
    for kind in ["independent", "bursts", "queue", "shared queue"] {
        let mut stream = RandomStream::new(SEED, kind);
        let (mut mistaken, mut example) = (0, None);
        for _ in 0..cases {
            let rate = log_uniform(1.0, 20_000.0, &mut stream);
            let loss = uniform(0.0, 0.6, &mut stream);
            let mut course = Course::draw(rate, log_uniform(60.0, 20_000.0, &mut stream), &mut stream);
            course.is_poisson = stream.chance(0.25);
            course.jitter = if stream.chance(0.5) { 0.0 } else { log_uniform(1e-5, 0.02, &mut stream) };
            match kind {
                "independent" => course.path = Element::Bernoulli { loss },
                "bursts" => {
                    let ends = 1.0 / log_uniform(1.0, 100.0, &mut stream);
                    let begins = f64::min(ends * loss / (1.0 - loss), 1.0 - ends);
                    course.path = Element::Gilbert { begins, ends };
                }
                "queue" => {
                    let packets = log_uniform(4.0, 1_000.0, &mut stream) as u64;
                    let rate = rate * uniform(0.1, 0.98, &mut stream);
                    course.host = Element::Queue { rate, packets, others: 0.0, mean_burst: 0.0 };
                }
                _ => {
                    let line = rate * log_uniform(0.3, 10.0, &mut stream);
                    let mean_burst = log_uniform(0.1, 20.0, &mut stream);
                    let load = f64::max(uniform(0.7, 1.5, &mut stream) * line - rate, 0.1 * line);
                    let packets = log_uniform(4.0, 300.0, &mut stream) as u64;
                    let others = load / (1.0 + mean_burst);
                    course.host = Element::Queue { rate: line, packets, others, mean_burst };
                }
            }
            if let Some(limit) = course.run(&mut stream).detected() {
                mistaken += 1;
                example = Some(format!("{limit}: {course:?}"));
            }
        }
        println!("{kind}: {mistaken} of {cases} taken for a limit");
        found.insert(kind, (mistaken, example));
    }
    for (kind, (mistaken, example)) in found {
        assert!(mistaken <= cases / 1_000, "seed {SEED}, {kind}: {mistaken} of {cases}, as {example:?}");
    }
}
