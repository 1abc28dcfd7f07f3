//! Discovery of the largest packet that a path carries, by probes that the far end answers (DPLPMTUD, RFC 8899).
//!
//! Probes are sent in rounds. Each round contains an empty probe: if only the larger ones remain unanswered, the path
//! drops them for their size, and if none is answered, the round shows nothing. A search probes several sizes at once,
//! so that a path that has become smaller is measured within a few round trips.

use crate::time::{Duration, Instant};
use alloc::vec::Vec;

/// Interval of probes that confirm the size in use (CONFIRMATION_TIMER of RFC 8899 section 5.1.1). It bounds how long a
/// path that has become smaller is unnoticed without traffic.
const CONFIRMATION: Duration = Duration::from_secs(10);
/// Minimum interval of confirmations while losses suggest that the path has become smaller.
const SUSPICION: Duration = Duration::from_secs(1);
/// Interval of searches for a larger size (PMTU_RAISE_TIMER).
const RAISE: Duration = Duration::from_secs(600);
/// Time to wait for answers (PROBE_TIMER).
const TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum time to wait for the larger probes after the empty one is answered.
const REORDERING: Duration = Duration::from_millis(100);
/// Rounds after which an unanswered size is too large (MAX_PROBES).
const ROUNDS: u8 = 4;
/// Number of sizes probed in a round of a search.
const SIZES: u16 = 8;
/// Difference of sizes at which a search ends, bytes.
const RESOLUTION: u16 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Shows that the path still carries the size in use.
    Confirmation,
    /// Finds the largest size.
    Search,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    size: u16,
    is_sent: bool,
    is_answered: bool,
    /// It was answered in an earlier round.
    was_answered: bool,
}

impl Probe {
    /// Returns whether an answer in this round shows that the far end answers at all.
    fn is_new_answer(&self) -> bool {
        self.is_answered && !self.was_answered
    }
}

/// Discovery of a path's MTU. Sizes are those of the packets that the caller's tunnel carries, bytes.
#[derive(Clone, Debug)]
pub struct PathMtu {
    smallest: u16,
    largest: u16,
    used: u16,
    is_too_small: bool,
    purpose: Purpose,
    /// Round of the present sizes, from zero.
    round: u8,
    /// Probes of the present sizes; none between rounds. The first is empty.
    probes: Vec<Probe>,
    began: Instant,
    /// End of the round, or start of the next one.
    due: Instant,
    raise: Instant,
}

impl PathMtu {
    /// Creates the discovery for a path that probably carries `largest`. A path that does not carry `smallest` cannot be
    /// used fully.
    pub fn new(smallest: u16, largest: u16) -> PathMtu {
        PathMtu {
            smallest,
            largest: largest.max(smallest),
            used: largest.max(smallest),
            is_too_small: false,
            purpose: Purpose::Confirmation,
            round: 0,
            probes: Vec::new(),
            began: Instant::ZERO,
            due: Instant::ZERO,
            raise: Instant::ZERO,
        }
    }

    /// Returns the size to use.
    pub fn mtu(&self) -> u16 {
        self.used
    }

    /// Returns whether the path does not even carry the smallest size.
    pub fn is_too_small(&self) -> bool {
        self.is_too_small
    }

    /// Returns the largest size that is tried.
    pub fn largest(&self) -> u16 {
        self.largest
    }

    /// Returns the time by which [`poll_probe`](PathMtu::poll_probe) must be called.
    pub fn poll_timeout(&self) -> Instant {
        if self.probes.iter().any(|probe| !probe.is_sent) { Instant::ZERO } else { self.due }
    }

    /// Returns the size of the next probe; zero is a probe without padding. To be called until it returns `None`.
    pub fn poll_probe(&mut self, now: Instant) -> Option<u16> {
        if now >= self.due {
            self.end_round(now);
        }
        let probe = self.probes.iter_mut().find(|probe| !probe.is_sent)?;
        probe.is_sent = true;
        Some(probe.size)
    }

    /// Handles the answer to a probe.
    pub fn handle_reply(&mut self, now: Instant, size: u16) {
        let Some(probe) = self.probes.iter_mut().find(|probe| probe.size == size && probe.is_sent) else {
            return;
        };
        probe.is_answered = true;
        self.used = self.used.max(size);
        if size == 0 {
            let round_trip = now.since(self.began);
            self.due = self.due.min(now + round_trip.max(REORDERING));
        }
        if self.probes.iter().all(|probe| probe.is_answered) {
            self.due = now;
        }
    }

    /// Confirms the size soon, because many packets are lost.
    pub fn suspect(&mut self, now: Instant) {
        if self.probes.is_empty() {
            self.due = self.due.min(now.max(self.began + SUSPICION));
        }
    }

    /// Ends the present round, if there is one, and begins the next one if it is due.
    fn end_round(&mut self, now: Instant) {
        if self.probes.is_empty() {
            return match now >= self.raise && self.used < self.largest {
                true => self.search(now, self.used, self.largest),
                false => self.begin(now, Purpose::Confirmation, [self.used]),
            };
        }
        let is_complete = self.probes.iter().all(|probe| probe.is_answered);
        let is_any_answered = self.probes.iter().any(|probe| probe.is_new_answer());
        if !is_any_answered || !is_complete && self.round + 1 < ROUNDS {
            return self.repeat(now, is_any_answered);
        }
        let answered = self.probes.iter().rev().find(|probe| probe.is_answered).map_or(0, |probe| probe.size);
        match self.purpose {
            Purpose::Confirmation if is_complete => self.rest(now),
            Purpose::Confirmation => self.search(now, self.smallest, self.used),
            Purpose::Search => {
                let unanswered = self.probes.iter().map(|probe| probe.size).find(|size| *size > answered);
                self.is_too_small = answered < self.smallest;
                self.used = answered.max(self.smallest);
                match unanswered {
                    Some(above) if !self.is_too_small && above - answered > RESOLUTION => {
                        self.search(now, answered, above - 1);
                    }
                    _ => self.rest(now),
                }
            }
        }
    }

    /// Repeats the unanswered probes. A round without any answer does not count.
    fn repeat(&mut self, now: Instant, counts: bool) {
        self.round += u8::from(counts);
        for probe in &mut self.probes {
            probe.is_answered &= probe.size > 0;
            probe.is_sent = probe.is_answered;
            probe.was_answered = probe.is_answered;
        }
        (self.began, self.due) = (now, now + TIMEOUT);
    }

    /// Waits for the next confirmation.
    fn rest(&mut self, now: Instant) {
        self.probes.clear();
        self.due = now + CONFIRMATION;
    }

    /// Searches from a size that the path should carry to the largest.
    fn search(&mut self, now: Instant, low: u16, high: u16) {
        if high == self.largest {
            self.raise = now + RAISE;
        }
        let span = u32::from(high - low);
        let steps = u32::from(SIZES - 1).min(span).max(1);
        let sizes = (0..=steps).map(|step| low + (span * step / steps) as u16);
        self.begin(now, Purpose::Search, sizes);
    }

    fn begin(&mut self, now: Instant, purpose: Purpose, sizes: impl IntoIterator<Item = u16>) {
        self.purpose = purpose;
        self.round = 0;
        self.probes.clear();
        let mut last = None;
        for size in core::iter::once(0).chain(sizes).filter(|size| last.replace(*size) != Some(*size)) {
            self.probes.push(Probe { size, is_sent: false, is_answered: false, was_answered: false });
        }
        (self.began, self.due) = (now, now + TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::RandomStream;
    use alloc::collections::BTreeMap;

    const MILLISECOND: u64 = 1_000_000;
    const SMALLEST: u16 = 1_280;

    /// Path with a size limit that changes at some times.
    struct Path {
        random: RandomStream,
        loss: f64,
        round_trip: Duration,
        limits: Vec<(Instant, u16)>,
    }

    impl Path {
        fn limit(&self, now: Instant) -> u16 {
            self.limits.iter().rev().find(|(from, _)| *from <= now).map_or(u16::MAX, |(_, limit)| *limit)
        }

        /// Runs a discovery until `end`. Calls `check` with the size in use and the limit every millisecond. Returns the
        /// number of probes.
        fn run(
            &mut self,
            mtu: &mut PathMtu,
            end: Instant,
            has_traffic: bool,
            mut check: impl FnMut(Instant, u16, u16),
        ) -> usize {
            let mut answers: BTreeMap<(Instant, usize), u16> = BTreeMap::new();
            let (mut now, mut probes) = (Instant::ZERO, 0);
            while now < end {
                while let Some((&key, &size)) = answers.first_key_value().filter(|((at, _), _)| *at <= now) {
                    mtu.handle_reply(now, size);
                    answers.remove(&key);
                }
                while mtu.poll_timeout() <= now
                    && let Some(size) = mtu.poll_probe(now)
                {
                    probes += 1;
                    if size <= self.limit(now) && self.random.uniform() >= self.loss {
                        answers.insert((now + self.round_trip, probes), size);
                    }
                }
                if has_traffic && mtu.mtu() > self.limit(now) {
                    mtu.suspect(now);
                }
                check(now, mtu.mtu(), self.limit(now));
                let answer = answers.first_key_value().map_or(Instant::NEVER, |((at, _), _)| *at);
                let next = answer.min(mtu.poll_timeout()).min(now + Duration::from_millis(10));
                now = next.max(now + Duration(MILLISECOND));
            }
            probes
        }
    }

    fn seconds(seconds: f64) -> Instant {
        Instant((seconds * 1e9) as u64)
    }

    #[test]
    fn a_path_that_becomes_smaller_is_measured_within_seconds() {
        let seed = netstage_harness::seed("path-mtu");
        for case in seed..seed + 200 {
            let mut random = RandomStream::new(case, "case");
            let largest = SMALLEST + random.below(8_000) as u16;
            let limit = SMALLEST + random.below(u64::from(largest - SMALLEST) + 1) as u16;
            let round_trip = Duration((1.0 + random.uniform() * 400.0) as u64 * MILLISECOND);
            let change = seconds(random.uniform() * 20.0);
            let loss = random.uniform() * 0.05;
            let mut path = Path { random, loss, round_trip, limits: alloc::vec![(change, limit)] };
            let mut mtu = PathMtu::new(SMALLEST, largest);
            // A confirmation, two times four rounds of two round trips each, and up to four rounds whose empty probe is
            // lost.
            let has_traffic = case % 2 == 0;
            let confirmation = if has_traffic { SUSPICION } else { CONFIRMATION };
            let found = change
                + confirmation
                + Duration::from_secs(5)
                + Duration(16 * round_trip.0.max(REORDERING.0));
            // Chance loses all probes of a size rarely, and the next search for a larger one finds it.
            let end = change + Duration::from_secs(90) + RAISE;
            path.run(&mut mtu, end, has_traffic, |now, used, limit| {
                let is_found = now < found || used <= limit;
                assert!(is_found, "case {case}: {used} of {limit} B at {now:?}, {round_trip:?}");
                assert!((SMALLEST..=largest).contains(&used), "case {case}: {used}");
            });
            assert!(
                mtu.mtu() <= limit && limit - mtu.mtu() < RESOLUTION || limit >= largest,
                "case {case}: {mtu:?}, {limit}"
            );
            assert!(!mtu.is_too_small(), "case {case}");
        }
    }

    #[test]
    fn loss_lowers_no_size_and_a_larger_path_is_found() {
        let seed = netstage_harness::seed("path-mtu");
        for case in seed..seed + 20 {
            let random = RandomStream::new(case, "case");
            let round_trip = Duration::from_millis(40);
            let limits = alloc::vec![(seconds(0.0), 1_371), (seconds(100.0), 1_472)];
            let mut path = Path { random, loss: 0.05, round_trip, limits };
            let mut mtu = PathMtu::new(SMALLEST, 1_472);
            let probes = path.run(&mut mtu, seconds(900.0), true, |now, used, limit| {
                let is_known = now < seconds(7.0) || limit != 1_371 || limit - used < RESOLUTION;
                assert!(is_known, "case {case}: {used} at {now:?}");
            });
            assert_eq!(mtu.mtu(), 1_472, "case {case}");
            // Two probes every ten seconds, and the searches.
            assert!(probes < 400, "case {case}: {probes} probes");
        }
    }

    #[test]
    fn silence_shows_nothing_and_a_tiny_path_is_named() {
        let mut mtu = PathMtu::new(SMALLEST, 1_472);
        let round_trip = Duration::from_millis(10);
        let mut path =
            Path { random: RandomStream::new(1, "path"), loss: 1.0, round_trip, limits: Vec::new() };
        let probes = path.run(&mut mtu, seconds(60.0), true, |_, used, _| assert_eq!(used, 1_472));
        assert!(probes <= 122, "{probes}");
        path.loss = 0.0;
        path.limits = alloc::vec![(seconds(0.0), 576)];
        let mut mtu = PathMtu::new(SMALLEST, 1_472);
        path.run(&mut mtu, seconds(5.0), true, |_, _, _| {});
        assert_eq!((mtu.mtu(), mtu.is_too_small()), (SMALLEST, true));
    }
}
