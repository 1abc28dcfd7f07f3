//! PEs that publish nonsense, and news that is lost or late: honest PEs keep their shares of a link, and the link stays
//! used.

use super::network::{GreedyPe, Link, Network};
use super::*;
use crate::fair::CoreMembership;
use crate::fair::crowd::{LinkNews, NEWS_INTERVAL, PeNews, Peers};
use crate::fair::paths::{FIRST_PATH, PathNews};

/// Rate of the link in bytes per second, and its buffer in bytes.
const RATE: f64 = 2.5e6;
const BUFFER: f64 = 150_000.0;
/// Delay to the link and behind it, and back.
const DELAY: Duration = Duration::from_millis(20);

/// Kinds of lies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    Low,
    High,
    Random,
    /// The receiver's own news, with another weight.
    Echo,
}

/// A link that PEs with these weights share, and what happens to their news.
#[derive(Clone, Copy, Debug)]
struct Trial<'a> {
    weights: &'a [f64],
    /// PEs that send nothing but news.
    liars: &'a [Lie],
    /// Whether PEs know that they share a link.
    is_known: bool,
    /// Share of the news that is lost, and delay of the rest.
    lost: f64,
    late: Duration,
    seed: u64,
}

impl<'a> Trial<'a> {
    fn new(weights: &'a [f64], liars: &'a [Lie], seed: u64) -> Trial<'a> {
        Trial { weights, liars, is_known: true, lost: 0.0, late: Duration::ZERO, seed }
    }
}

/// Returns news with any values of the ranges that receivers accept.
fn lie(kind: Lie, truth: Option<&LinkNews>, random: &mut RandomStream) -> LinkNews {
    let mut power = |from: f64, to: f64| libm::pow(10.0, from + (to - from) * random.uniform());
    let (weight, rate) = (power(-9.0, 15.0), power(-3.0, 15.0));
    let (settled, price, greatest) = (weight * power(-9.0, 0.0), power(-3.0, 6.0), power(-3.0, 15.0));
    let in_flight = rate * 10.0 * power(-6.0, 0.0);
    let level = match kind {
        Lie::Low => -64.0,
        Lie::High => 64.0,
        Lie::Random => -64.0 + 128.0 * random.uniform(),
        Lie::Echo => {
            let truth = truth.map(|news| news.flows).unwrap_or_default();
            return LinkNews { link: 0, flows: Peers { weight, settled: weight, ..truth } };
        }
    };
    LinkNews { link: 0, flows: Peers { weight, settled, level, price, greatest, rate, in_flight } }
}

/// Returns news about a path whose delay is that of no queue of the core.
fn lying_path(random: &mut RandomStream) -> PathNews {
    PathNews { path: FIRST_PATH, group: 0, delay: 0.1 * random.uniform(), target: 1e-3 }
}

/// Runs greedy PEs for 40 s. Returns the rate of each PE per weight from second 10 on, relative to its share of the link,
/// and the mean queue as a share of the buffer.
fn run(trial: Trial<'_>) -> (Vec<f64>, f64) {
    let Trial { weights, liars, is_known, lost, late, seed } = trial;
    let mut under_way: VecDeque<(Instant, usize, u64, PeNews)> = VecDeque::new();
    let mut random = RandomStream::new(seed, "liars");
    let honest = |(number, weight): (usize, &f64)| {
        let path = FIRST_PATH + number as u32;
        let membership = if is_known { CoreMembership::Links(vec![0]) } else { CoreMembership::Path(path) };
        GreedyPe::new(*weight, membership, &[0], DELAY)
    };
    let mut network =
        Network::new(vec![Link::new(RATE, BUFFER)], weights.iter().enumerate().map(honest).collect());
    let mut news_due = Instant::ZERO;
    while network.now < Instant(40_000_000_000) {
        let now = network.now;
        if now == Instant(10_000_000_000) {
            network.pes.iter_mut().for_each(|pe| pe.delivered = 0);
        }
        if now >= news_due {
            news_due = now + NEWS_INTERVAL;
            let pes = &mut network.pes;
            let published: Vec<PeNews> = pes.iter_mut().map(|pe| pe.edge.publish_news(now)).collect();
            for own in 0..pes.len() {
                for (publisher, news) in published.iter().enumerate().filter(|(number, _)| *number != own) {
                    if random.uniform() >= lost {
                        under_way.push_back((now + late, own, publisher as u64, news.clone()));
                    }
                }
                // Each is told something else.
                for (publisher, kind) in (1000..).zip(liars) {
                    let truth = published.get(own).and_then(|news| news.links.first());
                    let links = vec![lie(*kind, truth, &mut random)];
                    if random.uniform() >= lost {
                        let news = PeNews { links, paths: vec![lying_path(&mut random)] };
                        under_way.push_back((now + late, own, publisher, news));
                    }
                }
            }
            while let Some((_, own, publisher, news)) = under_way.pop_front_if(|(at, ..)| *at <= now) {
                pes[own].edge.handle_news(now, publisher, &news);
            }
            pes.iter_mut().for_each(|pe| pe.edge.consider_news(now));
        }
        network.step();
    }
    let sum: f64 = weights.iter().sum();
    let share = |(pe, weight): (&GreedyPe, &f64)| pe.delivered as f64 / 30.0 / (RATE * weight / sum);
    (network.pes.iter().zip(weights).map(share).collect(), network.queues()[0])
}

#[test]
fn without_liars_shares_follow_the_weights() {
    for weights in [&[1.0, 1.0][..], &[4.0, 1.0], &[1.0, 5.0, 2.0, 7.0]] {
        let (shares, queue) = run(Trial::new(weights, &[], 1));
        assert!(shares.iter().all(|share| (0.93..1.07).contains(share)), "{weights:?}: {shares:?}");
        assert!(queue < 0.3, "{queue}");
    }
}

#[test]
fn lost_and_late_news_leaves_the_shares() {
    let (late, seed) = (Duration::from_secs(1), 20_261_127);
    for weights in [&[1.0, 1.0][..], &[4.0, 1.0], &[1.0, 5.0, 2.0, 7.0]] {
        let trial = Trial::new(weights, &[], seed);
        for trial in
            [Trial { lost: 0.8, ..trial }, Trial { late, ..trial }, Trial { lost: 0.8, late, ..trial }]
        {
            let (shares, queue) = run(trial);
            assert!(shares.iter().all(|share| (0.8..1.2).contains(share)), "{trial:?}: {shares:?}");
            assert!(queue < 0.4, "{trial:?}: {queue}");
        }
    }
}

/// A minority that publishes nonsense moves no share by more than a factor of two, and leaves the link used, even if
/// news is lost or late.
#[test]
fn a_minority_of_liars_moves_nobody_by_more_than_a_factor_of_two() {
    let weights = [1.0, 5.0, 2.0, 7.0];
    let minorities = [
        &[Lie::Low][..],
        &[Lie::High],
        &[Lie::Random],
        &[Lie::Echo],
        &[Lie::Low, Lie::Random],
        &[Lie::High; 2],
        &[Lie::Echo, Lie::Low],
    ];
    let mut wrong = Vec::new();
    for liars in minorities {
        let trial = Trial::new(&weights, liars, 20_261_127);
        let late = Duration::from_secs(1);
        let unknown = Trial { is_known: false, ..trial };
        for trial in [trial, Trial { lost: 0.8, ..trial }, Trial { late, ..trial }, unknown] {
            let (shares, queue) = run(trial);
            let used = shares.iter().zip(weights).map(|(share, weight)| share * weight).sum::<f64>() / 15.0;
            let result = alloc::format!("{trial:?}: {shares:.3?}, used {used:.3}, queue {queue:.3}");
            if !shares.iter().all(|share| (0.5..2.0).contains(share)) || used < 0.8 {
                wrong.push(result);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A PE whose only peer lies cannot know better, but measures the link itself.
#[test]
fn a_lone_liar_neither_starves_nor_congests_a_pe() {
    for kind in [Lie::Low, Lie::High, Lie::Random, Lie::Echo] {
        let (shares, queue) = run(Trial::new(&[1.0], &[kind], 7));
        assert!(shares[0] > 0.7, "{kind:?}: {shares:?}");
        assert!(queue < 0.7, "{kind:?}: {queue}");
    }
}
