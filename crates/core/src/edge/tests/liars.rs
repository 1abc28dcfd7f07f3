//! PEs that publish nonsense, and news that is lost or late: honest PEs keep their shares of a link, and the link stays
//! used.

use super::*;
use crate::fair::crowd::{LinkNews, NEWS_INTERVAL, Peers};
use crate::fair::{CoreMembership, Reply};

/// Rate of the link in bytes per second, and its buffer in bytes.
const RATE: f64 = 2.5e6;
const BUFFER: f64 = 150_000.0;
/// Delay to the link and behind it, and back.
const DELAY: Duration = Duration::from_millis(20);
const STEP: Duration = Duration::from_micros(500);

/// A PE with a greedy VPN flow.
struct HonestPe {
    edge: ProviderEdge<NumberedPacket>,
    egress: Egress,
    replies: VecDeque<(Instant, Reply)>,
    delivered: u64,
}

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
    /// Share of the news that is lost, and delay of the rest.
    lost: f64,
    late: Duration,
    seed: u64,
}

impl<'a> Trial<'a> {
    fn new(weights: &'a [f64], liars: &'a [Lie], seed: u64) -> Trial<'a> {
        Trial { weights, liars, lost: 0.0, late: Duration::ZERO, seed }
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

/// Runs greedy PEs for 40 s. Returns the rate of each PE per weight from second 10 on, relative to its share of the link,
/// and the mean queue as a share of the buffer.
fn run(trial: Trial<'_>) -> (Vec<f64>, f64) {
    let Trial { weights, liars, lost, late, seed } = trial;
    let mut under_way: VecDeque<(Instant, usize, u64, LinkNews)> = VecDeque::new();
    let mut random = RandomStream::new(seed, "liars");
    let mut pes: Vec<HonestPe> = weights.iter().map(|weight| honest(*weight)).collect();
    // The link: time at which it has sent all, and packets on their way to the egress.
    let (mut free_at, mut number) = (0.0_f64, 0);
    let mut wire: VecDeque<(Instant, usize, IngressTransmit<NumberedPacket>)> = VecDeque::new();
    let (mut now, mut news_due, mut queue, mut steps) = (Instant::ZERO, Instant::ZERO, 0.0, 0.0);
    while now < Instant(40_000_000_000) {
        while let Some((at, from, transmit)) = wire.pop_front_if(|(at, ..)| *at <= now) {
            let pe = &mut pes[from];
            match transmit {
                IngressTransmit::Data(packet) => {
                    pe.egress.handle_packet(packet.size, false);
                    pe.delivered += u64::from(packet.size) * u64::from(now >= Instant(10_000_000_000));
                }
                IngressTransmit::Query(query) => {
                    pe.replies.push_back((at + DELAY, pe.egress.handle_query(query, at)));
                }
            }
        }
        if now >= news_due {
            news_due = now + NEWS_INTERVAL;
            let published: Vec<LinkNews> = pes.iter_mut().flat_map(|pe| pe.edge.publish_news(now)).collect();
            for own in 0..pes.len() {
                for (publisher, news) in published.iter().enumerate().filter(|(number, _)| *number != own) {
                    if random.uniform() >= lost {
                        under_way.push_back((now + late, own, publisher as u64, *news));
                    }
                }
                // Each is told something else.
                for (publisher, kind) in (1000..).zip(liars) {
                    let lie = lie(*kind, published.get(own), &mut random);
                    if random.uniform() >= lost {
                        under_way.push_back((now + late, own, publisher, lie));
                    }
                }
            }
            while let Some((_, own, publisher, news)) = under_way.pop_front_if(|(at, ..)| *at <= now) {
                pes[own].edge.handle_news(now, publisher, &news);
            }
            pes.iter_mut().for_each(|pe| pe.edge.consider_news(now));
        }
        for turn in 0..pes.len() {
            // No PE is always the first one to fill the queue.
            let own = (turn + steps as usize) % pes.len();
            let pe = &mut pes[own];
            while let Some((at, reply)) = pe.replies.pop_front_if(|(at, _)| *at <= now) {
                pe.edge.handle_reply(at, 0, &reply);
            }
            while pe.edge.handle_packet(now, 0, NumberedPacket::new(number, 1500)).is_ok() {
                number += 1;
            }
            for (_, transmit) in sent(&mut pe.edge, now) {
                let size = if let IngressTransmit::Data(packet) = &transmit { packet.size } else { 88 };
                let seconds = now.0 as f64 / 1e9;
                free_at = free_at.max(seconds);
                if (free_at - seconds) * RATE + f64::from(size) > BUFFER {
                    continue;
                }
                free_at += f64::from(size) / RATE;
                wire.push_back((Instant((free_at * 1e9) as u64) + DELAY, own, transmit));
            }
        }
        queue += (free_at - now.0 as f64 / 1e9).max(0.0) * RATE / BUFFER;
        steps += 1.0;
        now += STEP;
    }
    let sum: f64 = weights.iter().sum();
    let share = |(pe, weight): (&HonestPe, &f64)| pe.delivered as f64 / 30.0 / (RATE * weight / sum);
    (pes.iter().zip(weights).map(share).collect(), queue / steps)
}

fn honest(weight: f64) -> HonestPe {
    let control = VpnControl::RateConsensus(CoreMembership { links: vec![0] });
    let mut edge = ProviderEdge::new(TICK);
    let settings = VpnFlowSettings { weight, control, ..VpnFlowSettings::default() };
    edge.add(Instant::ZERO, &settings, RandomStream::new(1, "edge"));
    HonestPe { edge, egress: Egress::default(), replies: VecDeque::new(), delivered: 0 }
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
        for trial in [trial, Trial { lost: 0.8, ..trial }, Trial { late, ..trial }] {
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
