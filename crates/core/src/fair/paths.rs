//! Groups of paths that share a bottleneck, for PEs that do not know the links of the core.
//!
//! Paths that share a bottleneck see its queue grow and shrink at the same time. Every PE publishes the queueing delay of
//! its paths, and compares it with that of others. At first, all paths are in one group. A path leaves the group if its
//! delay is unlike that of most PEs in the group, and joins a group if it is like that of most PEs there. Groups have
//! numbers as links do, and the law treats them in the same way.
//!
//! A path over several bottlenecks is like the paths of each. It is then in several groups, of which the one with the
//! lowest level limits it.

use super::crowd::{NEWS_AGE, News};
use crate::rng::RandomStream;
use crate::time::{Duration, Instant};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use libm::sqrt;
use serde::{Deserialize, Serialize};

/// Lowest number of a path, and of a group that begins with it. Links have lower numbers.
pub const FIRST_PATH: u32 = 1 << 31;

/// Returns the number of a path with a name that is unique in the core.
pub fn path_number(name: &str) -> u32 {
    FIRST_PATH | (RandomStream::new(0, name).next_u64() >> 33) as u32
}

/// Group of all paths about which nothing is known.
const COMMON: u32 = 0;
/// Publisher that stands for this PE.
const OWN: u64 = u64::MAX;
/// Greatest number of paths of other PEs that a PE compares with its own ones, and of paths that it publishes.
const MOST_PATHS: usize = 64;

/// Samples that are compared, and the fewest.
const SAMPLES: usize = 200;
const LEAST_SAMPLES: usize = 60;
/// Weights of a sample in the mean of the last seconds, and in that of a longer time.
const RECENT: f64 = 0.05;
const LONG: f64 = 0.03;
/// Least number of samples between two comparisons of a path. Of many paths, one is compared per sample, since the router
/// forwards nothing meanwhile.
const COMPARISON: usize = 10;
/// Greatest shift between the samples of two PEs, whose replies and news take different times.
const GREATEST_SHIFT: usize = 6;
/// Correlation from which two paths count as alike, and below which they count as unlike.
const ALIKE: f64 = 0.5;
const UNLIKE: f64 = 0.3;
/// Least standard deviation of a delay that shows something, in seconds, and the greatest ratio of the standard deviations
/// of two paths that share a queue.
const LEAST_DEVIATION: f64 = 0.001;
const GREATEST_RATIO: f64 = 5.0;
/// Mean delay from which a path sees a queue that others keep up, in target delays, and the delay of a path that does not see
/// the same queue, relative to it.
const BUSY: f64 = 3.0;
const CALM: f64 = 0.25;
/// Time for which a group is published after its last path has left, and for which the delay of a path is kept.
const KEPT: Duration = Duration::from_secs(10);

/// News about a path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathNews {
    /// Number of the path.
    pub path: u32,
    /// Group that limits it.
    pub group: u32,
    /// Queueing delay on the way there, in seconds.
    pub delay: f64,
    /// Target of this delay, in seconds.
    pub target: f64,
}

/// Publisher and number of a path.
type PathKey = (u64, u32);

/// Delays of a path.
#[derive(Clone, Debug, Default)]
struct Delays {
    /// Differences to the mean of the last seconds, in the order of their measurement; NaN where there is none. Trends, such
    /// as those of a start, would be alike on all paths.
    fluctuations: VecDeque<f64>,
    /// Mean of the last seconds, and that of a longer time.
    recent: f64,
    mean: f64,
    /// Latest target.
    target: f64,
}

impl Delays {
    fn add(&mut self, measured: Option<(f64, f64)>) {
        if self.fluctuations.len() == SAMPLES {
            self.fluctuations.pop_front();
        }
        let Some((delay, target)) = measured else {
            self.fluctuations.push_back(f64::NAN);
            return;
        };
        if self.target == 0.0 {
            (self.recent, self.mean) = (delay, delay);
        }
        self.recent += RECENT * (delay - self.recent);
        self.mean += LONG * (delay - self.mean);
        self.target = target;
        self.fluctuations.push_back(delay - self.recent);
    }

    fn deviation(&self) -> f64 {
        let moments = Moments::of(self.fluctuations.iter().map(|delay| (*delay, 0.0)));
        sqrt(moments.squares[0] / moments.count.max(1.0))
    }

    /// Returns the greatest correlation with other delays over all shifts. Returns `None` if the delays do not show whether
    /// they are those of one queue: nobody sees a queue, or all see one, but not the same fluctuations. That may be
    /// different queues, which do no harm in one group as long as all are used, or the sum of several.
    fn likeness(&self, other: &Delays) -> Option<f64> {
        let shifts = -(GREATEST_SHIFT as isize)..=GREATEST_SHIFT as isize;
        let greatest = shifts.filter_map(|shift| self.correlation(other, shift)).max_by(f64::total_cmp)?;
        let [one, two] = [self.deviation(), other.deviation()];
        let is_alike = one.max(two) >= LEAST_DEVIATION && one.max(two) < GREATEST_RATIO * one.min(two);
        let [one, two] = [self.mean / self.target, other.mean / other.target];
        let is_apart = one.max(two) > BUSY && one.min(two) < CALM * one.max(two);
        match is_alike && greatest >= UNLIKE {
            true => (greatest >= ALIKE).then_some(greatest),
            false => is_apart.then_some(0.0),
        }
    }

    /// Returns the correlation with other delays that are `shift` samples younger.
    fn correlation(&self, other: &Delays, shift: isize) -> Option<f64> {
        // The latest samples are of the same time.
        let (own, other) = (self.fluctuations.iter().rev(), other.fluctuations.iter().rev());
        let (own, other) = (own.skip(shift.max(0) as usize), other.skip((-shift).max(0) as usize));
        Moments::of(own.copied().zip(other.copied())).correlation()
    }
}

/// Sums over pairs of values.
#[derive(Default)]
struct Moments {
    count: f64,
    sums: [f64; 2],
    squares: [f64; 2],
    products: f64,
}

impl Moments {
    fn of(pairs: impl Iterator<Item = (f64, f64)>) -> Moments {
        pairs.filter(|(a, b)| !a.is_nan() && !b.is_nan()).fold(Moments::default(), |moments, (a, b)| {
            Moments {
                count: moments.count + 1.0,
                sums: [moments.sums[0] + a, moments.sums[1] + b],
                squares: [moments.squares[0] + a * a, moments.squares[1] + b * b],
                products: moments.products + a * b,
            }
        })
    }

    fn correlation(&self) -> Option<f64> {
        if self.count < LEAST_SAMPLES as f64 {
            return None;
        }
        let covariance = self.products - self.sums[0] * self.sums[1] / self.count;
        let variance = |index: usize| self.squares[index] - self.sums[index] * self.sums[index] / self.count;
        let product = variance(0) * variance(1);
        Some(if product > 0.0 { covariance / sqrt(product) } else { 0.0 })
    }
}

/// Path of another PE.
#[derive(Clone, Debug)]
struct HeardPath {
    at: Instant,
    news: PathNews,
    delays: Delays,
}

/// Path of this PE.
#[derive(Clone, Debug)]
struct OwnPath {
    /// Groups to which it belongs.
    groups: Vec<u32>,
    /// Sums over its flows with a backlog: weight, and delay and target times weight.
    weight: f64,
    delay: f64,
    target: f64,
    /// Group that limits its flows.
    limited: u32,
    delays: Delays,
    /// Latest clear likeness to other paths.
    alike: BTreeMap<PathKey, f64>,
}

/// Paths whose links are not known.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    own: BTreeMap<u32, OwnPath>,
    heard: BTreeMap<PathKey, HeardPath>,
    /// Number of samples.
    samples: usize,
    /// Groups that paths of this PE belong to or have left, with the time of their last path.
    groups: BTreeMap<u32, Instant>,
}

impl Paths {
    /// Adds a path of this PE.
    pub fn add(&mut self, path: u32) {
        let new = || OwnPath {
            groups: alloc::vec![COMMON],
            weight: 0.0,
            delay: 0.0,
            target: 0.0,
            limited: COMMON,
            delays: Delays::default(),
            alike: BTreeMap::new(),
        };
        self.own.entry(path).or_insert_with(new);
    }

    /// Forgets the measurements of the paths of this PE.
    pub fn clear_own(&mut self) {
        self.own.values_mut().for_each(|path| (path.weight, path.delay, path.target) = (0.0, 0.0, 0.0));
    }

    /// Adds the measurement of a flow of this PE.
    pub fn add_own(&mut self, path: u32, news: &News) {
        let Some(path) = self.own.get_mut(&path) else { return };
        path.limited = news.link.unwrap_or(path.limited);
        let weight = news.active_weight();
        path.weight += weight;
        path.delay += weight * news.delay;
        path.target += weight * news.target;
    }

    /// Returns the news to publish about paths with a backlog.
    pub fn news(&self) -> Vec<PathNews> {
        let active = self.own.iter().filter_map(|(path, own)| {
            let (delay, target) = own.measured()?;
            Some(PathNews { path: *path, group: own.limited, delay, target })
        });
        active.take(MOST_PATHS).collect()
    }

    /// Stores news of another PE.
    pub fn handle_news(&mut self, at: Instant, publisher: u64, news: &[PathNews]) {
        if self.own.is_empty() {
            return;
        }
        for news in news {
            let is_full = self.heard.len() >= MOST_PATHS;
            match self.heard.get_mut(&(publisher, news.path)) {
                Some(heard) => (heard.at, heard.news) = (at, *news),
                None if is_full => {}
                None => {
                    let heard = HeardPath { at, news: *news, delays: Delays::default() };
                    self.heard.insert((publisher, news.path), heard);
                }
            }
        }
    }

    /// Takes what another instance has heard and measured.
    pub fn adopt(&mut self, other: &mut Paths) {
        self.heard = core::mem::take(&mut other.heard);
        self.groups = core::mem::take(&mut other.groups);
        for (path, own) in &mut self.own {
            if let Some(other) = other.own.remove(path) {
                *own = other;
            }
        }
    }

    /// Compares the paths of this PE with all others. Returns the groups that they have left for good.
    pub fn consider(&mut self, now: Instant) -> Vec<u32> {
        self.heard.retain(|_, heard| now.since(heard.at) <= KEPT);
        for heard in self.heard.values_mut() {
            let PathNews { delay, target, .. } = heard.news;
            heard.delays.add((now.since(heard.at) <= NEWS_AGE).then_some((delay, target)));
        }
        for own in self.own.values_mut() {
            let measured = own.measured();
            own.delays.add(measured);
        }
        self.samples += 1;
        let turn = self.samples % self.own.len().max(COMPARISON);
        if let Some(path) = self.own.keys().nth(turn).copied() {
            self.compare(now, path);
        }
        let groups = self.own.values().flat_map(|own| own.groups.iter().copied());
        self.groups.extend(groups.map(|group| (group, now)));
        let is_left = |at: &Instant| now.since(*at) > KEPT;
        let left = self.groups.iter().filter(|(_, at)| is_left(at)).map(|(group, _)| *group).collect();
        self.groups.retain(|_, at| !is_left(at));
        left
    }

    /// Returns the groups that paths of this PE belong to or have left a short time ago.
    pub fn known_groups(&self) -> impl Iterator<Item = u32> {
        self.groups.keys().copied()
    }

    /// Returns the groups that a path belongs to.
    pub fn groups(&self, path: u32) -> &[u32] {
        self.own.get(&path).map_or(&[], |own| &own.groups)
    }

    /// Compares a path of this PE with the others that have a backlog, and chooses its groups.
    fn compare(&mut self, now: Instant, path: u32) {
        let Some(mut own) = self.own.remove(&path) else { return };
        let others = self.own.iter().filter(|(_, other)| other.weight > 0.0).take(MOST_PATHS);
        let others = others.map(|(other, own)| ((OWN, *other), (own.limited, &own.delays)));
        let heard = self.heard.iter().filter(|(_, heard)| now.since(heard.at) <= NEWS_AGE);
        let heard = heard.map(|(key, heard)| (*key, (heard.news.group, &heard.delays)));
        let others: BTreeMap<PathKey, (u32, &Delays)> = others.chain(heard).collect();
        own.compare(&others);
        own.groups = own.choose(path, &others);
        self.own.insert(path, own);
    }
}

impl OwnPath {
    /// Returns mean delay and target of the flows with a backlog.
    fn measured(&self) -> Option<(f64, f64)> {
        (self.weight > 0.0).then(|| (self.delay / self.weight, self.target / self.weight))
    }

    /// Finds out which of the other paths are like this one.
    fn compare(&mut self, others: &BTreeMap<PathKey, (u32, &Delays)>) {
        self.alike.retain(|key, _| others.contains_key(key));
        for (key, (_, delays)) in others {
            let likeness = self.delays.likeness(delays);
            self.alike.extend(likeness.map(|likeness| (*key, likeness)));
        }
    }

    /// Returns the groups to which the path belongs: those of which it is like most PEs.
    fn choose(&self, path: u32, others: &BTreeMap<PathKey, (u32, &Delays)>) -> Vec<u32> {
        let mut groups: BTreeMap<u32, Vec<(PathKey, &Delays)>> = BTreeMap::new();
        for (key, (group, delays)) in others {
            groups.entry(*group).or_default().push((*key, delays));
        }
        let is_whole =
            |(group, members): &(&u32, &Vec<_>)| members.len() > usize::from(**group != self.limited);
        let (whole, single): (BTreeMap<&u32, _>, BTreeMap<&u32, _>) = groups.iter().partition(is_whole);
        let mut liked: Vec<u32> = Vec::new();
        for (group, members) in whole {
            if !self.likes(*group, members) {
                continue;
            }
            // Of two groups that are like each other, the lower number remains.
            match liked.iter().any(|other| are_alike(&groups[other], members)) {
                true => continue,
                false => liked.push(*group),
            }
        }
        if !liked.is_empty() {
            return liked;
        }
        // Of two paths that are alone, the one with the higher number joins the other.
        let alone = if groups.contains_key(&self.limited) { path } else { self.limited };
        let likeness = |(_, members): &(&u32, &Vec<(PathKey, &Delays)>)| {
            members.iter().filter_map(|(key, _)| self.alike.get(key).copied()).fold(0.0, f64::max)
        };
        let nearest = single.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
        let nearest = nearest.filter(|nearest| likeness(nearest) >= ALIKE && *nearest.0 < alone);
        alloc::vec![nearest.map_or(alone, |(group, _)| *group)]
    }

    /// Returns whether the path is like most PEs of a group; to stay in one, half of them are enough. Each PE has one vote,
    /// which its paths share.
    fn likes(&self, group: u32, members: &[(PathKey, &Delays)]) -> bool {
        let is_member = self.groups.contains(&group);
        let mut votes: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for (key, _) in members {
            let (sum, count) = votes.entry(key.0).or_default();
            let unknown = if is_member { 0.5 } else { 0.0 };
            *sum += self.alike.get(key).map_or(unknown, |likeness| f64::from(*likeness >= ALIKE));
            *count += 1.0;
        }
        let yes: f64 = votes.values().map(|(sum, count)| sum / count).sum();
        let half = 0.5 * votes.len() as f64;
        yes > half || (is_member && yes == half)
    }
}

/// Returns whether most pairs of members of two groups are alike.
fn are_alike(one: &[(PathKey, &Delays)], other: &[(PathKey, &Delays)]) -> bool {
    let pairs = one.iter().flat_map(|(_, a)| other.iter().filter_map(|(_, b)| a.likeness(b)));
    let (count, alike) =
        pairs.fold((0, 0), |(count, alike), likeness| (count + 1, alike + usize::from(likeness >= ALIKE)));
    2 * alike > count
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const OWN_PATH: u32 = FIRST_PATH + 9;
    const TARGET: f64 = 0.006;

    /// Delays of a queue that fluctuates around a mean, in seconds.
    fn queue(mean: f64, seed: u64) -> impl Iterator<Item = f64> {
        let mut random = RandomStream::new(seed, "queue");
        let mut fluctuation = 0.0;
        core::iter::repeat_with(move || {
            fluctuation = 0.8 * fluctuation + 0.3 * mean * (random.uniform() - 0.5);
            (mean + fluctuation).max(0.0)
        })
    }

    fn own(delay: f64) -> News {
        News {
            weight: 1.0,
            level: 10.0,
            rate: 1e6,
            used: 1.0,
            is_probing: false,
            price: 1.0,
            delay,
            target: TARGET,
            round_trip: 0.05,
            link: None,
        }
    }

    /// Compares a path with those of other PEs for 30 s. Each has a number and its delays. Returns the groups of the path.
    fn groups_after(
        mut delays: Vec<(u64, u32, impl Iterator<Item = f64>)>,
        own_delays: impl Iterator<Item = f64>,
    ) -> Vec<u32> {
        let mut paths = Paths::default();
        paths.add(OWN_PATH);
        for (number, delay) in own_delays.take(300).enumerate() {
            let now = Instant(number as u64 * 100_000_000);
            for (publisher, group, delays) in &mut delays {
                let path = FIRST_PATH + *publisher as u32;
                let delay = delays.next().unwrap();
                let news = PathNews { path, group: *group, delay, target: TARGET };
                paths.handle_news(now, *publisher, &[news]);
            }
            paths.clear_own();
            paths.add_own(OWN_PATH, &own(delay));
            paths.consider(now);
        }
        paths.groups(OWN_PATH).to_vec()
    }

    #[test]
    fn paths_of_one_queue_stay_in_one_group() {
        let others = vec![(1, COMMON, queue(0.02, 1)), (2, COMMON, queue(0.02, 1))];
        // Replies of the own path arrive 300 ms later.
        let own = core::iter::repeat_n(0.02, 3).chain(queue(0.02, 1));
        assert_eq!(groups_after(others, own), [COMMON]);
    }

    #[test]
    fn a_path_without_a_queue_leaves_paths_with_a_long_one_and_joins_a_path_like_it() {
        let busy = || vec![(1, COMMON, queue(0.05, 1)), (2, COMMON, queue(0.05, 1))];
        assert_eq!(groups_after(busy(), core::iter::repeat(0.0001)), [OWN_PATH], "alone");
        // A newcomer is like one of two groups.
        let others = vec![
            (1, FIRST_PATH, queue(0.05, 1)),
            (2, FIRST_PATH, queue(0.05, 1)),
            (3, FIRST_PATH + 3, queue(0.02, 2)),
        ];
        let others = others.into_iter().chain([(4, FIRST_PATH + 3, queue(0.02, 2))]).collect();
        assert_eq!(groups_after(others, queue(0.02, 2)), [FIRST_PATH + 3]);
    }

    #[test]
    fn a_path_over_two_queues_is_in_both_groups() {
        let other = |publisher, group, seed| (publisher, group, queue(0.02, seed));
        let others = vec![other(1, 7, 1), other(2, 7, 1), other(3, 8, 2), other(4, 8, 2)];
        let own = queue(0.02, 1).zip(queue(0.02, 2)).map(|(first, second)| first + second);
        assert_eq!(groups_after(others, own), [7, 8]);
    }

    #[test]
    fn queues_that_all_are_long_and_invisible_ones_give_no_reason_to_leave() {
        let others = |mean| vec![(1, COMMON, queue(mean, 1)), (2, COMMON, queue(mean, 1))];
        assert_eq!(groups_after(others(0.02), queue(0.02, 5)), [COMMON]);
        assert_eq!(groups_after(others(0.0), queue(0.0, 5)), [COMMON]);
    }

    /// A PE that publishes other delays than all others does not separate them, with however many paths.
    #[test]
    fn a_liar_has_one_vote() {
        let mut paths = Paths::default();
        paths.add(OWN_PATH);
        let mut truth = queue(0.05, 1);
        for number in 0..300 {
            let (now, delay) = (Instant(number * 100_000_000), truth.next().unwrap());
            let news = |path, delay| PathNews { path, group: COMMON, delay, target: TARGET };
            (1..=2).for_each(|honest| paths.handle_news(now, honest, &[news(FIRST_PATH, delay)]));
            let lies: Vec<PathNews> = (0..200).map(|path| news(path, 0.0)).collect();
            paths.handle_news(now, 3, &lies);
            assert!(paths.heard.len() <= MOST_PATHS);
            paths.clear_own();
            paths.add_own(OWN_PATH, &own(delay));
            paths.consider(now);
        }
        assert_eq!(paths.groups(OWN_PATH), [COMMON]);
    }

    #[test]
    fn old_news_and_left_groups_are_forgotten() {
        let mut paths = Paths::default();
        paths.add(OWN_PATH);
        paths.handle_news(Instant(0), 1, &[PathNews { path: 1, group: 5, delay: 0.0, target: TARGET }]);
        assert_eq!(paths.consider(Instant(0)), []);
        paths.own.get_mut(&OWN_PATH).unwrap().groups = vec![5];
        assert_eq!(paths.consider(Instant(1)), []);
        assert!(paths.known_groups().eq([COMMON, 5]));
        assert_eq!(paths.consider(Instant(1) + KEPT + Duration(1)), [COMMON]);
        assert!(paths.known_groups().eq([5]));
        assert!(paths.heard.is_empty());
    }
}
