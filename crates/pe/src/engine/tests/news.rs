//! News of VPN flows under rate consensus, exchanged between two routers.

use super::*;
use crate::engine::CoreNews;
use crate::replay::Replay;
use netstage_core::fair::CoreMembership;
use netstage_core::fair::crowd::NEWS_AGE;
use netstage_core::fair::paths::FIRST_PATH;

/// Weights of VPN 0 at the two sides.
const WEIGHTS: [f64; 2] = [3.0, 1.0];

/// VPN 0 is under rate consensus on both sides and crosses these links.
fn configs(way: CoreEncapsulation, keys: &Option<Keys>, links: &[u32]) -> [EngineConfig; 2] {
    let mut configs = [config(0, way, 2), config(1, way, 2)];
    for (side, config) in configs.iter_mut().enumerate() {
        set_consensus(config, side, links);
        config.machine.peers[0].keys.clone_from(keys);
    }
    configs
}

fn set_consensus(config: &mut EngineConfig, side: usize, links: &[u32]) {
    let control = VpnControl::RateConsensus(CoreMembership::Links(links.to_vec()));
    let weight = WEIGHTS[side];
    *config.settings(0) = VpnFlowSettings { weight, control, ..VpnFlowSettings::default() };
    config.machine.session_seed = 70 + side as u32;
}

/// Link of 0.5 MB/s that both directions share, with a queue of 50 ms.
#[derive(Default)]
struct SharedLink {
    free_at: Instant,
}

impl SharedLink {
    fn pass(&mut self, now: Instant, frame: &[u8]) -> Option<Instant> {
        let begins = self.free_at.max(now);
        if begins.since(now) > Duration::from_millis(50) {
            return None;
        }
        self.free_at = begins + Duration(2_000 * frame.len() as u64);
        Some(self.free_at + DELAY)
    }
}

fn keys() -> Option<Keys> {
    Keys::new(1, &[(1, b"one key".to_vec())])
}

fn is_news(frame: &[u8]) -> bool {
    frame.windows(4).any(|bytes| bytes == [0x10, 0, 0x7f, 0xfb])
}

/// Returns a frame with source and destination exchanged.
fn returned(frame: &[u8]) -> Vec<u8> {
    let mut back = frame.to_vec();
    let (ethernet, ip) = (0, 14 + 12);
    for (start, length) in [(ethernet, 6), (ip, 4)] {
        let (first, second) = (start..start + length, start + length..start + 2 * length);
        back[first.clone()].copy_from_slice(&frame[second.clone()]);
        back[second].copy_from_slice(&frame[first]);
    }
    back
}

/// Runs for a number of seconds while VPN 0 sends bursts of packets from both sides.
fn run(world: &mut TwoRouters, seconds: u64, fate: CoreModel<'_>) {
    for _ in 0..100 * seconds {
        let now = world.now;
        for side in 0..2 {
            for _ in 0..20 {
                let packet = packet(false, side, 0, 1, 1000);
                world.routers[usize::from(side)].give(CUSTOMERS, now, &frame(100, &packet));
            }
        }
        world.run(now + Duration::from_millis(10), fate);
    }
    // The last message arrives.
    world.run(world.now + DELAY + DELAY, fate);
}

fn others(world: &TwoRouters, side: usize) -> f64 {
    world.routers[side].engine.flow(0).paced().unwrap().peers().weight
}

#[test]
fn news_crosses_the_core_and_ages() {
    for way in WAYS {
        for keys in [None, keys()] {
            let mut world = TwoRouters::new(configs(way, &keys, &[0]));
            let (mut messages, mut link) = ([0; 2], SharedLink::default());
            run(&mut world, 2, &mut |now, from, frame| {
                messages[from] += usize::from(is_news(frame));
                link.pass(now, frame)
            });
            assert!(messages.iter().all(|count| (20..=21).contains(count)), "{way:?}: {messages:?}");
            assert_others_are_known(&world);
            // Without news, the peer is forgotten.
            let mut cut = |now, _: usize, frame: &mut Vec<u8>| match is_news(frame) {
                true => None,
                false => link.pass(now, frame),
            };
            run(&mut world, NEWS_AGE.0 / 1_000_000_000 + 1, &mut cut);
            assert_eq!([others(&world, 0), others(&world, 1)], [0.0; 2]);
            for counter in [Counter::NewsForeign, Counter::NewsForged, Counter::NewsMalformed] {
                assert_eq!(world.routers[0].count(counter), 0, "{counter:?}");
            }
        }
    }
}

/// Checks that each side knows the weight of the other, whose backlog is permanent.
fn assert_others_are_known(world: &TwoRouters) {
    for (side, weight) in [(0, WEIGHTS[1]), (1, WEIGHTS[0])] {
        let known = others(world, side);
        assert!((0.9 * weight..=weight).contains(&known), "side {side}: {known}");
    }
}

/// Side 0 has two cores with a VPN each; the first speaks for both. Side 1 has one core.
#[test]
fn cores_of_a_router_and_its_peer_know_all_flows() {
    const FAR: usize = 2;
    const STEP: Duration = Duration::from_millis(1);
    let way = CoreEncapsulation::Udp4;
    let mut configs = [config_of(0, way, 0..1), config_of(0, way, 1..2), config(1, way, 2)];
    let weights = [3.0, 1.0, 2.0];
    for (number, config) in configs.iter_mut().enumerate() {
        let control = VpnControl::RateConsensus(CoreMembership::Links(vec![0]));
        *config.settings(0) =
            VpnFlowSettings { weight: weights[number], control, ..VpnFlowSettings::default() };
        config.router.cores = if number == FAR { 1 } else { 2 };
        config.router.peers[0].news = number != 1;
        config.machine.session_seed = 70 + number as u32;
    }
    let mut routers = configs.each_ref().map(router);
    let (mut shared, mut link) = (CoreNews::default(), SharedLink::default());
    let mut in_flight: BTreeMap<(Instant, u64), (usize, Vec<u8>)> = BTreeMap::new();
    let (mut now, mut number) = (Instant::ZERO, 0);
    while now < Instant(3_000_000_000) {
        now += STEP;
        for (router, (side, vpn)) in routers.iter_mut().zip([(0, 0), (0, 1), (1, 0)]) {
            let packet = packet(false, side, vpn, 1, 1000);
            (0..2).for_each(|_| router.give(CUSTOMERS, now, &frame(100 + vpn, &packet)));
        }
        while let Some(entry) = in_flight.first_entry().filter(|entry| entry.key().0 <= now) {
            let (to, frame) = entry.remove();
            routers[to].give(CORE, now, &frame);
        }
        for (from, router) in routers.iter_mut().enumerate() {
            router.turn(now);
            if from != FAR && router.engine.has_news() {
                router.engine.exchange_news(from, &mut shared);
            }
            for frame in router.taken(CORE) {
                assert!(from != 1 || !is_news(&frame));
                let label = u32::from_be_bytes(*frame[14 + 20 + 8..].first_chunk().unwrap()) >> 12;
                let to = if from == FAR { usize::from(label == 1001) } else { FAR };
                number += 1;
                in_flight.extend(link.pass(now, &frame).map(|at| ((at, number), (to, frame))));
            }
            router.taken(CUSTOMERS);
        }
    }
    for (router, own) in routers.iter().zip(weights) {
        let others = weights.iter().sum::<f64>() - own;
        let known = router.engine.flow(0).paced().unwrap().peers().weight;
        assert!((0.9 * others..=others + 1e-9).contains(&known), "weight {own}: {known} of {others}");
        assert_eq!(router.count(Counter::NewsUnused), 0);
    }
}

#[test]
fn encrypted_news_crosses_the_core_and_shares_follow_the_weights() {
    for way in [CoreEncapsulation::Udp4, CoreEncapsulation::Udp6] {
        let mut configs = [0, 1].map(|side| secure::encrypted(side, way, 2));
        for (side, config) in configs.iter_mut().enumerate() {
            set_consensus(config, side, &[0]);
        }
        let mut world = TwoRouters::new(configs);
        let mut link = SharedLink::default();
        let mut core = |now, _: usize, frame: &mut Vec<u8>| {
            assert!(!is_news(frame), "news without encryption");
            link.pass(now, frame)
        };
        run(&mut world, 5, &mut core);
        assert_others_are_known(&world);
        let before = [0, 1].map(|side: usize| world.delivered[side].len());
        run(&mut world, 10, &mut core);
        // Packets from side 0 arrive at side 1.
        let [from_1, from_0] = [0, 1].map(|side| (world.delivered[side].len() - before[side]) as f64);
        let ratio = from_0 / from_1;
        assert!((2.85..3.15).contains(&ratio), "{way:?}: {from_0} to {from_1} packets");
    }
}

#[test]
fn news_without_encryption_from_the_address_of_an_encrypted_peer_is_dropped() {
    let mut trusted = TwoRouters::new(configs(CoreEncapsulation::Udp4, &None, &[0]));
    let mut seen = None;
    run(&mut trusted, 1, &mut |now, from, frame| {
        seen = (from == 0 && is_news(frame)).then(|| frame.clone()).or(seen.take());
        Some(now + DELAY)
    });
    let mut configs = [0, 1].map(|side| secure::encrypted(side, CoreEncapsulation::Udp4, 2));
    for (side, config) in configs.iter_mut().enumerate() {
        set_consensus(config, side, &[0]);
    }
    let [_, config] = configs;
    let mut router = router(&config);
    router.give(CORE, Instant(1_000_000_000), &seen.unwrap());
    router.turn(Instant(1_000_000_000));
    assert_eq!((router.count(Counter::Unencrypted), router.count(Counter::NewsForeign)), (1, 0));
    assert_eq!(router.engine.flow(0).paced().unwrap().peers().weight, 0.0);
}

#[test]
fn flows_of_different_links_do_not_influence_each_other() {
    let mut configs = configs(CoreEncapsulation::Udp4, &None, &[1]);
    configs[1].settings(0).control = VpnControl::RateConsensus(CoreMembership::Links(vec![2, 3]));
    let mut world = TwoRouters::new(configs);
    run(&mut world, 2, &mut delay);
    assert_eq!([others(&world, 0), others(&world, 1)], [0.0; 2]);
}

/// Returns the configurations of routers whose flows have no `links`.
fn configs_without_links() -> [EngineConfig; 2] {
    let mut configs = configs(CoreEncapsulation::Udp4, &None, &[]);
    for (side, config) in configs.iter_mut().enumerate() {
        let path = CoreMembership::Path(FIRST_PATH + side as u32);
        config.settings(0).control = VpnControl::RateConsensus(path);
    }
    configs
}

#[test]
fn flows_without_links_are_in_one_group_until_routers_know_more() {
    let (mut world, mut link) = (TwoRouters::new(configs_without_links()), SharedLink::default());
    run(&mut world, 5, &mut |now, _, frame| link.pass(now, frame));
    let others = [others(&world, 0), others(&world, 1)];
    assert!(others.iter().all(|weight| *weight > 0.5), "{others:?}");
}

#[test]
fn routers_without_such_flows_or_peers_exchange_no_news() {
    for change in [
        &(|config: &mut EngineConfig| config.settings(0).control = VpnControl::None) as &dyn Fn(&mut _),
        &|config: &mut EngineConfig| config.router.peers[0].news = false,
    ] {
        let mut configs = configs(CoreEncapsulation::Udp4, &None, &[0]);
        change(&mut configs[0]);
        let mut world = TwoRouters::new(configs);
        run(&mut world, 2, &mut |now, from, frame| {
            assert!(from == 1 || !is_news(frame));
            Some(now + DELAY)
        });
        // News that is not expected is counted, and is no attack.
        assert!(world.routers[0].count(Counter::NewsUnused) > 10);
        assert_eq!(world.routers[0].count(Counter::NewsForeign), 0);
    }
}

#[test]
fn forged_replayed_and_impossible_news_is_counted_and_ignored() {
    for keys in [None, keys()] {
        let is_signed = keys.is_some();
        let mut world = TwoRouters::new(configs(CoreEncapsulation::Udp4, &keys, &[0]));
        let mut recorded = Vec::new();
        run(&mut world, 2, &mut |now, from, frame| {
            recorded.extend((from == 0 && is_news(frame)).then(|| frame.clone()));
            Some(now + DELAY)
        });
        let newest = recorded.last().unwrap().clone();
        // Ethernet, IPv4, UDP, label and header of the channel.
        let fields = 14 + 20 + 8 + 4 + 4;
        let with = |at: usize, bytes: &[u8]| {
            let mut frame = newest.clone();
            frame[fields + 12] += 1;
            frame[fields + at..fields + at + bytes.len()].copy_from_slice(bytes);
            frame
        };
        // Without a key only impossible values are detected.
        let forged = if is_signed { Counter::NewsForged } else { Counter::NewsMalformed };
        let cases = [
            (newest.clone(), Counter::NewsReplayed),
            (recorded[0].clone(), Counter::NewsReplayed),
            (with(20 + 12, &f32::NAN.to_bits().to_be_bytes()), forged),
            (with(20 + 4, &(-1_f32).to_bits().to_be_bytes()), forged),
            (with(0, &[0x10]), Counter::NewsMalformed),
            (with(2, &[0xff]), Counter::NewsMalformed),
        ];
        let before = others(&world, 1);
        // The path returns the messages of a router.
        let now = world.now;
        world.routers[0].give(CORE, now, &returned(&newest));
        world.routers[0].turn(now);
        assert_eq!(world.routers[0].count(Counter::NewsReflected), 1);
        for (number, (frame, counter)) in cases.into_iter().enumerate() {
            let (now, count) = (world.now, world.routers[1].count(counter));
            world.routers[1].give(CORE, now, &frame);
            world.routers[1].turn(now);
            assert_eq!(world.routers[1].count(counter), count + 1, "case {number}, {counter:?}");
        }
        assert_eq!(others(&world, 1), before);
        // A router that is not a peer.
        let mut other_sender = with(0, &[0]);
        other_sender[14 + 15] ^= 1;
        other_sender[14 + 10..14 + 12].fill(0);
        let checksum = netstage_wire::checksum::checksum(&other_sender[14..14 + v4::HEADER]);
        other_sender[14 + 10..14 + 12].copy_from_slice(&checksum.to_be_bytes());
        let now = world.now;
        world.routers[1].give(CORE, now, &other_sender);
        world.routers[1].turn(now);
        assert_eq!(world.routers[1].count(Counter::NewsForeign), 1);
    }
}

#[test]
fn a_recorded_exchange_is_replayed_with_the_same_decisions() {
    let configs = configs(CoreEncapsulation::Udp4, &keys(), &[0]);
    let mut world = TwoRouters::new(configs.clone());
    world.routers.iter_mut().for_each(|router| router.engine.trace());
    let mut number = 0_u32;
    run(&mut world, 3, &mut |now, _, _| {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (number >> 26 != 0).then_some(now + DELAY)
    });
    for (config, router) in configs.iter().zip(&mut world.routers) {
        let events = router.engine.take_trace();
        let count =
            |is: fn(&netstage_core::edge::EdgeEvent) -> bool| events.iter().filter(|event| is(event)).count();
        assert!(count(|event| matches!(event, netstage_core::edge::EdgeEvent::News { .. })) > 20);
        let mut replay = Replay::new(config.router.clone(), 1);
        for event in &events {
            replay.step(event, |_| Err("no configuration".into())).unwrap();
        }
        // News of another content changes decisions.
        let mut replay = Replay::new(config.router.clone(), 1);
        let differs = events.into_iter().any(|mut event| {
            if let netstage_core::edge::EdgeEvent::News { news, .. } = &mut event {
                news.links.iter_mut().for_each(|link| link.flows.level += 0.1);
            }
            replay.step(&event, |_| Err("no configuration".into())).is_err()
        });
        assert!(differs);
    }
}

#[test]
fn a_reload_keeps_the_news() {
    reload_without_news(&configs(CoreEncapsulation::Udp4, &None, &[0]));
    reload_without_news(&configs_without_links());
}

/// Reloads a configuration. The core drops all news from then on.
fn reload_without_news(configs: &[EngineConfig; 2]) {
    let mut world = TwoRouters::new(configs.clone());
    let (mut last, mut link) = (Vec::new(), SharedLink::default());
    run(&mut world, 2, &mut |now, from, frame| {
        if from == 0 && is_news(frame) {
            last.clone_from(frame);
        }
        link.pass(now, frame)
    });
    let now = world.now;
    world.routers[1].engine.replace(now, configs[1].prepared(), Vec::new());
    let mut cut = |now, _: usize, frame: &mut Vec<u8>| match is_news(frame) {
        true => None,
        false => link.pass(now, frame),
    };
    run(&mut world, 1, &mut cut);
    assert_others_are_known(&world);
    let now = world.now;
    world.routers[1].give(CORE, now, &last);
    world.routers[1].turn(now);
    assert_eq!(world.routers[1].count(Counter::NewsReplayed), 1);
}
