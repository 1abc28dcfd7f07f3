//! News of PEs about their VPN flows, and the state of a link that follows from it.
//!
//! A PE publishes, for each link that its flows cross, sums over the flows that the link limits ([`LinkNews`]). News of
//! others is not trusted: [`LinkPeers`] and [`Heard`] bound what the news of a PE can move.

use super::consensus::CONSENSUS;
use super::paths::PathNews;
use crate::time::{Duration, Instant};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::f64::consts::LN_2;
use libm::{exp, log};
use serde::{Deserialize, Serialize};

/// Shortest interval at which a PE publishes the state of its VPN flows.
pub const NEWS_INTERVAL: Duration = Duration::from_millis(100);

/// Longest interval of a PE with many receivers.
const LONGEST_NEWS_INTERVAL: Duration = Duration::from_secs(1);
/// Interval per receiver, which limits the news to 1,000 messages per second.
const INTERVAL_PER_RECEIVER: Duration = Duration::from_millis(1);

/// Age from which news is not used: its VPN flows have ended, or its PE is cut off.
pub const NEWS_AGE: Duration = Duration::from_secs(3);

/// Share of time with a backlog below which a flow takes no part in consensus.
const LEAST_USE: f64 = 0.1;

/// Distance from the median level beyond which the level of a PE counts as at this distance: a factor of two of the
/// rate.
const LONGEST_DISTANCE: f64 = LN_2;
/// Greatest weight of a PE, relative to the median of the PEs' weights.
const GREATEST_WEIGHT: f64 = 20.0;
/// Greatest ratio of the mean round trip of a PE to the median of the PEs, and of the median to it.
const ROUND_TRIP_RANGE: f64 = 4.0;
/// Time constant with which what a PE has moved is forgotten, in seconds, and the age from which it is.
const PULL_TIME: f64 = 20.0;
const PULL_AGE: Duration = Duration::from_secs(60);
/// Longest interval between considerations that counts, in seconds.
const LONGEST_INTERVAL: f64 = 1.0;
/// Greatest price of a link that news can claim.
const GREATEST_PRICE: f64 = 2.0;

/// Returns the interval at which a PE publishes its news to this number of others.
pub fn news_interval(receivers: usize) -> Duration {
    let interval = INTERVAL_PER_RECEIVER.0.saturating_mul(receivers as u64);
    Duration(interval.clamp(NEWS_INTERVAL.0, LONGEST_NEWS_INTERVAL.0))
}

/// State of a VPN flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct News {
    /// Weight.
    pub weight: f64,
    /// Natural logarithm of the permitted rate per unit of weight, in bytes per second.
    pub level: f64,
    /// Rate sent, in bytes per second.
    pub rate: f64,
    /// Share of time with a backlog, 0 to 1.
    pub used: f64,
    /// The flow has seen neither congestion nor others.
    pub is_probing: bool,
    /// Price of the link that limits the flow: 1 at the target.
    pub price: f64,
    /// Queueing delay on the way there, in seconds.
    pub delay: f64,
    /// Target of this delay, in seconds.
    pub target: f64,
    /// Round trip in seconds.
    pub round_trip: f64,
    /// Link that limits the flow; `None` if none of the shared links does.
    pub link: Option<u32>,
}

impl News {
    /// Returns the weight with which the flow takes part in consensus.
    pub(super) fn active_weight(&self) -> f64 {
        if self.used < LEAST_USE { 0.0 } else { self.weight * self.used }
    }
}

/// Flows that a link limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peers {
    /// Sum of their weights, each times its share of time with a backlog.
    pub weight: f64,
    /// The part of it that has found its rate.
    pub settled: f64,
    /// Mean level, weighted in the same way.
    pub level: f64,
    /// Mean price, weighted in the same way.
    pub price: f64,
    /// Greatest rate sent per unit of weight.
    pub greatest: f64,
    /// Sum of their rates, in bytes per second.
    pub rate: f64,
    /// Sum of their rates times round trips, in bytes.
    pub in_flight: f64,
}

impl Peers {
    /// Adds others to these, whose level and price are sums as long as they are added to, and not yet [`means`].
    fn add(&mut self, others: &Peers) {
        self.weight += others.weight;
        self.settled += others.settled;
        self.level += others.weight * others.level;
        self.price += others.weight * others.price;
        self.greatest = self.greatest.max(others.greatest);
        self.rate += others.rate;
        self.in_flight += others.in_flight;
    }
}

/// State of the flows of a PE that a link limits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkNews {
    /// Number of the link.
    pub link: u32,
    /// Sums over the flows.
    pub flows: Peers,
}

/// News of a PE.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeNews {
    /// State of each link that flows of the PE cross.
    pub links: Vec<LinkNews>,
    /// Paths whose links are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathNews>,
}

/// Sums over flows of the own PE that a link limits.
#[derive(Clone, Copy, Debug, Default)]
struct OwnSums {
    /// Sums, with level and price multiplied by the weight.
    sums: Peers,
    /// The two greatest rates per weight.
    greatest: [f64; 2],
}

impl OwnSums {
    fn add(&mut self, news: &News) {
        let (weight, sums) = (news.active_weight(), &mut self.sums);
        sums.weight += weight;
        sums.settled += if news.is_probing { 0.0 } else { weight };
        sums.level += weight * news.level;
        sums.price += weight * news.price;
        sums.rate += news.rate;
        sums.in_flight += news.rate * news.round_trip;
        let own = news.rate / news.weight;
        let [first, second] = self.greatest;
        self.greatest = [first.max(own), second.max(first.min(own))];
    }

    /// Returns the flows without one that was added.
    fn without(&self, news: &News) -> Peers {
        let (weight, Peers { level, price, rate, in_flight, .. }) = (news.active_weight(), self.sums);
        let settled = if news.is_probing { 0.0 } else { weight };
        let is_greatest = news.rate / news.weight >= self.greatest[0];
        let sums = Peers {
            weight: (self.sums.weight - weight).max(0.0),
            settled: (self.sums.settled - settled).max(0.0),
            level: level - weight * news.level,
            price: (price - weight * news.price).max(0.0),
            greatest: self.greatest[usize::from(is_greatest)],
            rate: (rate - news.rate).max(0.0),
            in_flight: (in_flight - news.rate * news.round_trip).max(0.0),
        };
        means(sums)
    }

    fn all(&self) -> Peers {
        means(Peers { greatest: self.greatest[0], ..self.sums })
    }
}

/// Combines the news of the parts of a PE, such as its cores, into the news of all their flows.
pub fn combined<'a>(parts: impl IntoIterator<Item = &'a PeNews>) -> PeNews {
    let mut links: BTreeMap<u32, Peers> = BTreeMap::new();
    let mut paths: BTreeMap<u32, PathNews> = BTreeMap::new();
    for part in parts {
        // All parts measure the same path.
        paths.extend(part.paths.iter().map(|news| (news.path, *news)));
        part.links.iter().for_each(|news| links.entry(news.link).or_default().add(&news.flows));
    }
    let links = links.into_iter().map(|(link, sums)| LinkNews { link, flows: means(sums) }).collect();
    PeNews { links, paths: paths.into_values().collect() }
}

/// Divides the sums of level and price by the weight.
fn means(sums: Peers) -> Peers {
    match sums.weight {
        0.0 => Peers { level: 0.0, price: 0.0, ..sums },
        weight => Peers { level: sums.level / weight, price: sums.price / weight, ..sums },
    }
}

/// Latest news of another PE about a link.
///
/// Honest PEs converge: each moves the others by a limited distance, because it moves toward them. A PE that goes on
/// pulling away from the median has moved the level of this PE by `pull`. Beyond a factor of two, in addition to what its
/// weight justifies, it pulls no further than to the median until that is forgotten.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// Time of arrival.
    at: Instant,
    flows: Peers,
    pull: f64,
}

/// Latest news about the links that the VPN flows of a PE cross.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    /// News of other PEs, by link and publisher.
    heard: BTreeMap<(u32, u64), Heard>,
    /// Flows of this PE.
    own: BTreeMap<u32, OwnSums>,
    /// News of each flow of this PE, by its number.
    flows: Vec<Option<News>>,
    /// Time of the last consideration.
    considered: Instant,
}

impl Crowd {
    /// Adds a link that flows of this PE cross. News about other links is ignored.
    pub fn add_link(&mut self, link: u32) {
        self.own.entry(link).or_default();
    }

    /// Removes a link that flows of this PE do not cross any more.
    pub fn remove_link(&mut self, link: u32) {
        self.own.remove(&link);
        self.heard.retain(|(other, _), _| *other != link);
    }

    /// Stores the news of another PE. `publisher` identifies the PE.
    pub fn handle_news(&mut self, at: Instant, publisher: u64, news: &LinkNews) {
        if self.own.contains_key(&news.link) {
            let new = Heard { at, flows: news.flows, pull: 0.0 };
            let heard = self.heard.entry((news.link, publisher)).or_insert(new);
            (heard.at, heard.flows) = (at, news.flows);
        }
    }

    /// Takes the news that another instance has received.
    pub fn adopt(&mut self, other: &mut Crowd) {
        let heard = core::mem::take(&mut other.heard);
        self.heard.extend(heard.into_iter().filter(|((link, _), _)| self.own.contains_key(link)));
    }

    /// Replaces the state of the flows of this PE, given by their numbers in increasing order, and returns the news to
    /// publish.
    pub fn set_own(&mut self, flows: impl Iterator<Item = (usize, News)>) -> Vec<LinkNews> {
        self.flows.clear();
        self.own.values_mut().for_each(|own| *own = OwnSums::default());
        for (flow, news) in flows {
            self.flows.resize(flow, None);
            self.flows.push(Some(news));
            if let Some(own) = news.link.and_then(|link| self.own.get_mut(&link)) {
                own.add(&news);
            }
        }
        self.own.iter().map(|(link, own)| LinkNews { link: *link, flows: own.all() }).collect()
    }

    /// Returns the state of a flow of this PE.
    pub fn flow(&self, flow: usize) -> Option<&News> {
        self.flows.get(flow)?.as_ref()
    }

    /// Returns the present state of each link. News that is too old is not used.
    pub fn links(&mut self, now: Instant) -> BTreeMap<u32, LinkPeers> {
        let elapsed = now.since(self.considered).as_secs_f64().min(LONGEST_INTERVAL);
        self.considered = now;
        self.heard.retain(|_, heard| now.since(heard.at) <= PULL_AGE);
        let heard = &mut self.heard;
        let link = |(link, own): (&u32, &OwnSums)| {
            let heard = heard.range_mut((*link, 0)..=(*link, u64::MAX)).map(|(_, heard)| heard);
            (*link, LinkPeers::new(*own, heard, (now, elapsed)))
        };
        self.own.iter().map(link).collect()
    }
}

/// Flows that a link limits: those of this PE, and those of others.
///
/// PEs may publish nonsense, by mistake or on purpose. A level counts as at most a factor of two from the median of
/// the PEs' levels, a weight as at most a multiple of the median of the weights, and a PE that pulls away from the median
/// for too long does not count there ([`Heard`]).
#[derive(Clone, Debug)]
pub struct LinkPeers {
    own: OwnSums,
    others: Vec<Peers>,
    /// Levels of the other PEs with a backlog, in increasing order.
    levels: Vec<f64>,
}

impl LinkPeers {
    fn new<'a>(
        own: OwnSums,
        heard: impl Iterator<Item = &'a mut Heard>,
        (now, elapsed): (Instant, f64),
    ) -> LinkPeers {
        let mut heard: Vec<&mut Heard> = heard.collect();
        heard.iter_mut().for_each(|heard| heard.pull *= exp(-elapsed / PULL_TIME));
        heard.retain(|heard| now.since(heard.at) <= NEWS_AGE);
        let mut others: Vec<Peers> = heard.iter().map(|heard| heard.flows).collect();
        bound_weights(own.sums.weight, &mut others);
        bound_round_trips(&own.sums, &mut others);
        let mut link = LinkPeers { own, others, levels: Vec::new() };
        link.sort_levels();
        let own = link.own.all();
        if own.settled > 0.0 {
            let center = median(&link.levels, Some(own.level)).unwrap_or(own.level);
            let sum: f64 = own.weight + link.others.iter().map(|peers| peers.weight).sum::<f64>();
            let toward = own.level.min(center)..=own.level.max(center);
            for (peers, heard) in link.others.iter_mut().zip(heard) {
                let level = peers.level.clamp(center - LONGEST_DISTANCE, center + LONGEST_DISTANCE);
                let nearest = level.clamp(*toward.start(), *toward.end());
                let (beyond, weight) = (level - nearest, peers.weight / sum);
                if heard.may_pull(beyond, weight) {
                    heard.pull += (1.0 - exp(-CONSENSUS * elapsed)) * weight * beyond;
                } else {
                    peers.level = nearest;
                }
            }
            link.sort_levels();
        }
        link
    }

    fn sort_levels(&mut self) {
        let active = self.others.iter().filter(|peers| peers.weight > 0.0);
        self.levels = active.map(|peers| peers.level).collect();
        self.levels.sort_unstable_by(f64::total_cmp);
    }

    /// Returns the flows that the link limits other than one of this PE.
    pub fn others(&self, link: u32, own: &News) -> Peers {
        let local = if own.link == Some(link) { self.own.without(own) } else { self.own.all() };
        let center = self.median_level(own);
        let mut sums = Peers::default();
        sums.add(&local);
        for peers in &self.others {
            sums.add(&Peers {
                level: peers.level.clamp(center - LONGEST_DISTANCE, center + LONGEST_DISTANCE),
                price: peers.price.min(GREATEST_PRICE),
                greatest: peers.greatest.min(exp(center + LONGEST_DISTANCE)),
                ..*peers
            });
        }
        means(sums)
    }

    /// Returns the median of the levels of the PEs with a backlog and of the own one. A newcomer does not know the level
    /// of the link.
    pub fn median_level(&self, own: &News) -> f64 {
        median(&self.levels, (!own.is_probing).then_some(own.level)).unwrap_or(0.0)
    }
}

/// Returns the median of increasing values and of the own value if given; of two middle ones, the nearer one to the own
/// value.
fn median(others: &[f64], own: Option<f64>) -> Option<f64> {
    let Some(own) = own else { return others.get(others.len() / 2).copied() };
    let below = others.partition_point(|other| *other < own);
    let at = |index: usize| match index.cmp(&below) {
        core::cmp::Ordering::Less => others[index],
        core::cmp::Ordering::Equal => own,
        core::cmp::Ordering::Greater => others[index - 1],
    };
    let upper = others.len().div_ceil(2);
    Some(match others.len() % 2 {
        0 => at(upper),
        _ if upper > below => at(upper - 1),
        _ => at(upper),
    })
}

impl Heard {
    /// Returns whether the PE may pull over this distance from the median. `weight` is its share of all weights, so that
    /// a newcomer may move the others to what remains.
    fn may_pull(&self, distance: f64, weight: f64) -> bool {
        let limit = LONGEST_DISTANCE - log(1.0 - weight.min(0.99));
        self.pull.abs() < limit || self.pull.is_sign_positive() != distance.is_sign_positive()
    }
}

/// Limits the mean round trips of other PEs to a range around the median of all PEs.
fn bound_round_trips(own: &Peers, others: &mut [Peers]) {
    let mean = |peers: &Peers| (peers.rate > 0.0).then(|| peers.in_flight / peers.rate);
    let mut all: Vec<f64> = others.iter().filter_map(mean).collect();
    all.sort_unstable_by(f64::total_cmp);
    let Some(center) = median(&all, mean(own)) else { return };
    for peers in others {
        let range = center / ROUND_TRIP_RANGE * peers.rate..=center * ROUND_TRIP_RANGE * peers.rate;
        peers.in_flight = peers.in_flight.clamp(*range.start(), *range.end());
    }
}

/// Limits the weights of other PEs to a multiple of the median of all PEs with a backlog.
fn bound_weights(own: f64, others: &mut [Peers]) {
    let all = core::iter::once(own).chain(others.iter().map(|peers| peers.weight));
    let mut weights: Vec<f64> = all.filter(|weight| *weight > 0.0).collect();
    weights.sort_unstable_by(f64::total_cmp);
    let Some(median) = weights.get((weights.len().max(1) - 1) / 2) else { return };
    for peers in others.iter_mut().filter(|peers| peers.weight > GREATEST_WEIGHT * median) {
        let scale = GREATEST_WEIGHT * median / peers.weight;
        peers.settled *= scale;
        peers.weight = GREATEST_WEIGHT * median;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn news(weight: f64, level: f64, rate: f64) -> News {
        let (used, price, round_trip) = (1.0, 0.5, 0.1);
        let (delay, target) = (0.005, 0.01);
        News { weight, level, rate, used, is_probing: false, price, delay, target, round_trip, link: Some(3) }
    }

    fn peers(level: f64, weight: f64) -> Peers {
        Peers { weight, settled: weight, level, ..Peers::default() }
    }

    proptest! {
        #[test]
        fn combined_news_of_parts_is_that_of_all_flows(
            flows in proptest::collection::vec((0.1..100.0, 1.0..20.0, 1.0..1e9, any::<bool>()), 1..20),
            place in 0_usize..20,
        ) {
            let flows: Vec<News> = flows
                .into_iter()
                .map(|(weight, level, rate, is_probing)| News { is_probing, ..news(weight, level, rate) })
                .collect();
            let published = |flows: &[News]| {
                let mut crowd = Crowd::default();
                crowd.add_link(3);
                crowd.set_own(flows.iter().copied().enumerate())
            };
            let (first, second) = flows.split_at(place.min(flows.len()));
            let part = |flows| PeNews { links: published(flows), paths: Vec::new() };
            let parts = combined(&[part(first), part(second)]).links;
            let all = published(&flows);
            prop_assert_eq!(parts.len(), 1);
            let values = |news: &LinkNews| {
                let Peers { weight, settled, level, price, greatest, rate, in_flight } = news.flows;
                [weight, settled, level, price, greatest, rate, in_flight]
            };
            for (part, all) in values(&parts[0]).into_iter().zip(values(&all[0])) {
                prop_assert!((part - all).abs() <= 1e-9 * all.abs().max(1.0), "{} {}", part, all);
            }
        }
    }

    #[test]
    fn a_pe_publishes_sums_of_its_flows() {
        let mut crowd = Crowd::default();
        crowd.add_link(3);
        crowd.add_link(4);
        let flows = [
            news(1.0, 10.0, 100.0),
            News { is_probing: true, ..news(3.0, 6.0, 900.0) },
            News { used: 0.05, ..news(9.0, 1.0, 90.0) },
            News { link: None, ..news(7.0, 1.0, 70.0) },
        ];
        let published = crowd.set_own([0, 1, 2, 5].into_iter().zip(flows));
        let flows = Peers {
            weight: 4.0,
            settled: 1.0,
            level: 7.0,
            price: 0.5,
            greatest: 300.0,
            rate: 1090.0,
            in_flight: 109.0,
        };
        let idle = LinkNews { link: 4, flows: Peers::default() };
        assert_eq!(published, [LinkNews { link: 3, flows }, idle]);
        assert_eq!((crowd.flow(4), crowd.flow(5).map(|news| news.weight)), (None, Some(7.0)));
        // Each flow sees the others.
        let links = crowd.links(Instant::ZERO);
        let others = |flow: usize| links[&3].others(3, crowd.flow(flow).unwrap());
        assert_eq!((others(0).weight, others(0).level, others(0).greatest), (3.0, 6.0, 300.0));
        assert_eq!((others(1).weight, others(1).level, others(1).greatest), (1.0, 10.0, 100.0));
        assert_eq!((others(5).weight, others(5).rate), (4.0, 1090.0));
    }

    /// Returns the state of a link with these other PEs, of which nothing was known before.
    fn link(own: OwnSums, others: Vec<Peers>) -> LinkPeers {
        let mut heard: Vec<Heard> =
            others.into_iter().map(|flows| Heard { at: Instant::ZERO, flows, pull: 0.0 }).collect();
        LinkPeers::new(own, heard.iter_mut(), (Instant::ZERO, 0.1))
    }

    #[test]
    fn news_is_used_for_three_seconds_and_only_about_own_links() {
        let mut crowd = Crowd::default();
        crowd.add_link(3);
        for (link, publisher) in [(3, 0), (3, u64::MAX), (4, 1)] {
            crowd.handle_news(Instant(5), publisher, &LinkNews { link, flows: peers(8.0, 2.0) });
        }
        assert_eq!(crowd.heard.len(), 2);
        let weight =
            |crowd: &mut Crowd, at: u64| crowd.links(Instant(at))[&3].others(3, &news(1.0, 8.0, 1.0)).weight;
        assert_eq!(weight(&mut crowd, 5 + NEWS_AGE.0), 4.0);
        assert_eq!(weight(&mut crowd, 6 + NEWS_AGE.0), 0.0);
        assert_eq!((crowd.heard.len(), weight(&mut crowd, 6 + PULL_AGE.0)), (2, 0.0));
        assert!(crowd.heard.is_empty());
    }

    #[test]
    fn a_pe_that_goes_on_pulling_is_limited() {
        let mut crowd = Crowd::default();
        crowd.add_link(3);
        let own = news(1.0, 10.0, 1.0);
        // The second PE pulls in the same direction, but converges.
        let mut level = 9.4;
        let mut considered = |crowd: &mut Crowd, step: u64| {
            let now = Instant(step * NEWS_INTERVAL.0);
            level += 0.3 * (10.0 - level);
            crowd.handle_news(now, 1, &LinkNews { link: 3, flows: peers(9.5, 1.0) });
            crowd.handle_news(now, 2, &LinkNews { link: 3, flows: peers(level, 1.0) });
            crowd.set_own(core::iter::once((0, own)));
            crowd.links(now)[&3].others(3, &own).level - level / 2.0
        };
        // The level that counts for the first PE, halved.
        let counted: Vec<f64> = (1..200).map(|step| considered(&mut crowd, step)).collect();
        let is_full = |level: &f64| (level - 4.75).abs() < 1e-9;
        // Its pull is 0.39 · 1/3 · 0.5 per step, of which ln 2 - ln(1 - 1/3) is permitted.
        assert!(counted[..16].iter().all(is_full), "{counted:?}");
        let later = counted[20..].iter().filter(|level| is_full(level)).count();
        assert!((1..30).contains(&later), "{later}: {counted:?}");
        // Otherwise it counts as the median, which is the own level or that of the second PE.
        assert!(counted[20..].iter().all(|level| is_full(level) || (level - 5.0).abs() < 0.1), "{counted:?}");
        assert!(crowd.heard[&(3, 2)].pull.abs() < 0.3);
    }

    #[test]
    fn round_trips_far_from_the_median_are_bounded() {
        let peers = |round_trip: f64| Peers { rate: 8.0, in_flight: 8.0 * round_trip, ..Peers::default() };
        let bounded = |own: Option<f64>, others: &[f64]| {
            let mut others: Vec<Peers> = others.iter().map(|other| peers(*other)).collect();
            bound_round_trips(&own.map(peers).unwrap_or_default(), &mut others);
            others.iter().map(|peers| peers.in_flight / peers.rate).collect::<Vec<f64>>()
        };
        assert_eq!(bounded(None, &[8.0]), [8.0], "nothing else is known");
        assert_eq!(bounded(Some(0.25), &[8.0]), [1.0]);
        assert_eq!(bounded(Some(1.0), &[8.0, 100.0, 12.0, 1.0]), [8.0, 32.0, 12.0, 2.0]);
    }

    #[test]
    fn weights_beyond_a_multiple_of_the_median_are_reduced() {
        let others = |own: f64, weights: &[f64]| {
            let mut others: Vec<Peers> = weights.iter().map(|weight| peers(9.0, *weight)).collect();
            bound_weights(own, &mut others);
            others.iter().map(|peers| peers.weight).collect::<Vec<f64>>()
        };
        assert_eq!(others(1.0, &[20.0]), [20.0]);
        assert_eq!(others(1.0, &[21.0, 1.0]), [20.0, 1.0]);
        assert_eq!(others(20.0, &[1e15, 1.0]), [400.0, 1.0]);
        assert_eq!(others(0.0, &[1e15, 0.0]), [1e15, 0.0]);
        assert!(others(0.0, &[]).is_empty());
    }

    #[test]
    fn the_interval_grows_with_the_receivers() {
        let milliseconds = |receivers| news_interval(receivers).0 / 1_000_000;
        assert_eq!([0, 1, 100, 200, 1000, usize::MAX].map(milliseconds), [100, 100, 100, 200, 1000, 1000]);
    }

    proptest! {
        /// The mean level stays within a factor of two of the levels of an honest majority, whatever others publish.
        #[test]
        fn a_minority_moves_the_mean_by_a_factor_of_two(
            honest in prop::collection::vec((8.0..12.0, 0.1..20.0), 2..8),
            liars in prop::collection::vec((-64.0..64.0, prop::num::f64::POSITIVE), 1..8),
        ) {
            // The own PE is one of the honest ones.
            let liars = &liars[..liars.len().min(honest.len() - 1)];
            let (own, weight) = honest[0];
            let others = honest[1..].iter().chain(liars).map(|(level, weight)| peers(*level, weight.min(1e15)));
            let link = self::link(OwnSums::default(), others.collect());
            let mean = link.others(3, &news(weight, own, 1.0)).level;
            let levels = || honest.iter().map(|(level, _)| *level);
            let (low, high) = (levels().fold(f64::MAX, f64::min), levels().fold(f64::MIN, f64::max));
            prop_assert!(mean >= low - LN_2 - 1e-9 && mean <= high + LN_2 + 1e-9, "{mean}, {honest:?}");
        }

        /// PEs within a factor of two of each other are not affected by the bound.
        #[test]
        fn near_levels_count_in_full(levels in prop::collection::vec((10.0..10.6, 0.1..20.0), 1..9)) {
            let others = levels.iter().map(|(level, weight)| peers(*level, *weight)).collect();
            let link = self::link(OwnSums::default(), others);
            let (sum, weight) = levels.iter().fold((0.0, 0.0), |(s, w), (level, weight)| (s + level * weight, w + weight));
            let mean = link.others(3, &news(1.0, 10.3, 1.0));
            let greatest = levels.iter().map(|(_, weight)| *weight).fold(0.0, f64::max);
            let mut weights: Vec<f64> = levels.iter().map(|(_, weight)| *weight).collect();
            weights.sort_by(f64::total_cmp);
            prop_assume!(greatest <= GREATEST_WEIGHT * weights[(weights.len() - 1) / 2]);
            prop_assert!((mean.level - sum / weight).abs() < 1e-9 && (mean.weight - weight).abs() < 1e-9);
        }

        #[test]
        fn the_median_is_that_of_the_sorted_levels(
            levels in prop::collection::vec(0.0..1.0, 0..9), own in 0.0..1.0,
        ) {
            let others: Vec<Peers> = levels.iter().map(|level| peers(*level, 1.0)).collect();
            let found = median(&link(OwnSums::default(), others).levels, Some(own));
            let mut all = [levels, vec![own]].concat();
            all.sort_by(f64::total_cmp);
            let middle = [all[(all.len() - 1) / 2], all[all.len() / 2]];
            let nearest = middle.into_iter().min_by(|a, b| (a - own).abs().total_cmp(&(b - own).abs()));
            prop_assert_eq!(found, nearest);
        }
    }
}
