//! References published from one router to another.

use super::super::MeasurementSource;
use super::*;
use netstage_core::fair::Decrease;
use netstage_core::fair::parameters::Basis;
use netstage_scenario::pe::{ReferenceConfig, ReferenceSource};

/// Multiplicative decrease of a follower, relative to a reference with its own round-trip time and weight,
/// and relative to the nominal flow with ten times that round-trip time.
const FOLLOWING: f64 = 0.1;
const NOMINAL: f64 = 0.5;

fn reference(name: &str, number: u32, source: ReferenceSource) -> ReferenceConfig {
    ReferenceConfig { name: name.into(), number, source }
}

fn own(publish_to: &[usize]) -> ReferenceSource {
    ReferenceSource::Flow { vpn: 0, peer: 0, publish_to: publish_to.into() }
}

fn control(config: &mut EngineConfig, vpn: usize, decrease: Decrease, reference: fair::WeightReference) {
    config.settings(vpn).control =
        VpnControl::I2vfc(fair::I2vfcConfig { decrease, reference, ..fair::I2vfcConfig::default() });
}

const HERE: fair::WeightReference = fair::WeightReference::Vpn(0);

/// VPN 0 is the reference, measured on side 0. VPN 1 follows it on side 1, where the reference has another
/// index.
fn configs(way: CoreEncapsulation, keys: &Option<Keys>) -> [EngineConfig; 2] {
    let mut configs = [config(0, way, 2), config(1, way, 2)];
    let nominal = fair::I2vfcConfig::default().reference;
    control(&mut configs[0], 0, Decrease::Fixed(0.1), nominal);
    configs[0].router.references = vec![reference("gold", 7, own(&[0]))];
    configs[1].router.references = vec![
        reference("another", 6, ReferenceSource::Peer(0)),
        reference("ours", 7, ReferenceSource::Peer(0)),
    ];
    control(&mut configs[1], 1, Decrease::FromWeight, fair::WeightReference::Vpn(1));
    configs.iter_mut().for_each(|config| config.machine.peers[0].keys.clone_from(keys));
    configs
}

fn keys() -> Option<Keys> {
    Keys::new(1, &[(1, b"one key".to_vec())])
}

fn is_reference(frame: &[u8]) -> bool {
    frame.windows(4).any(|bytes| bytes == [0x10, 0, 0x7f, 0xfa])
}

/// Runs for a number of seconds while VPN 1 sends a packet every 100 ms from side 1.
fn run(world: &mut TwoRouters, seconds: u64, fate: CoreModel<'_>) {
    for _ in 0..10 * seconds {
        let now = world.now;
        world.routers[1].give(CUSTOMERS, now, &frame(101, &packet(false, 1, 1, 1, 100)));
        world.run(now + Duration::from_millis(100), fate);
    }
    // Delivers the frames in flight.
    world.run(world.now + DELAY + DELAY, fate);
}

fn decrease(world: &TwoRouters, side: usize, flow: usize) -> f64 {
    world.routers[side].engine.flow(flow).window().unwrap().parameters().decrease
}

fn is_near(value: f64, expected: f64) -> bool {
    (value / expected - 1.0).abs() < 0.05
}

#[test]
fn a_reference_crosses_the_core_and_becomes_stale_without_updates() {
    for way in WAYS {
        for keys in [None, keys()] {
            let mut world = TwoRouters::new(configs(way, &keys));
            let mut messages = 0;
            run(&mut world, 3, &mut |now, from, frame| {
                messages += usize::from(is_reference(frame));
                assert!(from == 0 || !is_reference(frame));
                Some(now + DELAY)
            });
            // In an idle flow the reference is known one second after the start, after the first round trip.
            assert!((7..=8).contains(&messages), "{way:?}: {messages} messages");
            let [near, far] = &world.routers;
            let published = near.engine.references().next().unwrap();
            let source = MeasurementSource::Flow { vpn: "vpn0", peer: "far", publish_to: vec!["far"] };
            assert_eq!(
                (published.source, published.counts.published, published.followers),
                (source, messages as u64, 0)
            );
            let received = far.engine.references().nth(1).unwrap();
            assert_eq!((received.name, received.number, received.followers), ("ours", 7, 1));
            assert_eq!((received.counts.received, received.counts.refused), (messages as u64, 0));
            let (published, received) = (published.published.unwrap(), received.published.unwrap());
            assert_eq!((published.basis, published.decrease), (received.basis, received.decrease));
            assert!(is_near(decrease(&world, 1, 1), FOLLOWING), "{way:?}: {}", decrease(&world, 1, 1));
            // Only the reference without a publisher becomes stale in time.
            let now = world.now;
            assert!(world.routers[1].engine.watch_references(now).is_empty());
            run(&mut world, 3, &mut delay);
            let now = world.now;
            assert_eq!(world.routers[1].engine.watch_references(now), [(0, true)]);

            // The last values are used for a while, then the nominal flow.
            let mut cut = |now, _: usize, frame: &mut Vec<u8>| (!is_reference(frame)).then_some(now + DELAY);
            run(&mut world, 4, &mut cut);
            assert!(is_near(decrease(&world, 1, 1), FOLLOWING));
            run(&mut world, 2, &mut cut);
            let now = world.now;
            assert_eq!(world.routers[1].engine.watch_references(now), [(1, true)]);
            assert_eq!(decrease(&world, 1, 1), NOMINAL);
            run(&mut world, 1, &mut delay);
            let now = world.now;
            assert_eq!(world.routers[1].engine.watch_references(now), [(1, false)]);
            assert!(is_near(decrease(&world, 1, 1), FOLLOWING));
            for router in &world.routers {
                assert_eq!(router.engine.free_buffers(), router.buffers);
            }
        }
    }
}

#[test]
fn losing_half_of_the_messages_makes_no_difference() {
    let mut world = TwoRouters::new(configs(CoreEncapsulation::Udp4, &None));
    let mut number = 0u32;
    run(&mut world, 2, &mut delay);
    for _ in 0..60 {
        run(&mut world, 1, &mut |now, _, frame| {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (!is_reference(frame) || number >> 31 == 0).then_some(now + DELAY)
        });
        assert!(is_near(decrease(&world, 1, 1), FOLLOWING));
    }
}

#[test]
fn forged_replayed_and_impossible_messages_are_counted_and_ignored() {
    for keys in [None, keys()] {
        let is_signed = keys.is_some();
        let mut world = TwoRouters::new(configs(CoreEncapsulation::Udp4, &keys));
        let mut recorded = Vec::new();
        run(&mut world, 3, &mut |now, _, frame| {
            recorded.extend(is_reference(frame).then(|| frame.clone()));
            Some(now + DELAY)
        });
        let before = world.routers[1].engine.references().nth(1).unwrap();
        let newest = recorded.last().unwrap().clone();
        // Ethernet, IPv4, UDP, label and header of the channel.
        let fields = 14 + 20 + 8 + 4 + 4;
        let later = |mut frame: Vec<u8>| {
            frame[fields + 8] += 1;
            frame
        };
        let with = |at: isize, bytes: &[u8]| {
            let mut frame = later(newest.clone());
            let at = fields.checked_add_signed(at).unwrap();
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            frame
        };
        let real = |value: f64| value.to_bits().to_be_bytes();
        // Without a key only impossible values are detected.
        let forged = if is_signed { Counter::ReferenceForged } else { Counter::ReferenceMalformed };
        let mut other_sender = later(newest.clone());
        other_sender[14 + 15] ^= 1;
        let header = v4::HEADER;
        other_sender[14 + 10..14 + 12].fill(0);
        let checksum = netstage_wire::checksum::checksum(&other_sender[14..14 + header]);
        other_sender[14 + 10..14 + 12].copy_from_slice(&checksum.to_be_bytes());
        let cases = [
            (newest.clone(), Counter::ReferenceReplayed),
            (recorded[0].clone(), Counter::ReferenceReplayed),
            (with(16, &real(0.0)), forged),
            (with(16, &real(f64::NAN)), forged),
            (with(32, &real(1.5)), forged),
            (with(48, &real(1.0)), forged),
            (with(4, &[0, 0, 0, 9]), Counter::ReferenceUnknown),
            (with(0, &[0x10]), Counter::ReferenceMalformed),
            (with(2, &[0xff]), Counter::ReferenceMalformed),
            (with(-2, &[0]), Counter::ChannelUnknown),
            (with(-4, &[0x45]), Counter::MessageMalformed),
            (other_sender, Counter::ReferenceForeign),
        ];
        let before = (before.published, before.counts.received);
        for (number, (frame, counter)) in cases.into_iter().enumerate() {
            let (now, count) = (world.now, world.routers[1].count(counter));
            let out = world.routers[1].pass(CORE, now, &frame);
            assert_eq!(out, [vec![], Vec::<Vec<u8>>::new()]);
            assert_eq!(world.routers[1].count(counter), count + 1, "case {number}, {counter:?}");
            let after = world.routers[1].engine.references().nth(1).unwrap();
            assert_eq!((after.published, after.counts.received), before, "case {number}");
        }
        // The router that measures a reference accepts values from no peer.
        let mut reflected = later(newest.clone());
        for at in [14 + 12, 14 + 13, 14 + 14, 14 + 15] {
            reflected.swap(at, at + 4);
        }
        let now = world.now;
        world.routers[0].pass(CORE, now, &reflected);
        assert_eq!(world.routers[0].count(Counter::ReferenceForeign), 1);
        for router in &world.routers {
            assert_eq!(router.engine.free_buffers(), router.buffers);
        }
    }
}

#[test]
fn flows_of_one_router_follow_without_a_message() {
    let mut configs = [config(0, CoreEncapsulation::Udp4, 2), config(1, CoreEncapsulation::Udp4, 2)];
    control(&mut configs[1], 0, Decrease::Fixed(0.1), fair::I2vfcConfig::default().reference);
    control(&mut configs[1], 1, Decrease::FromWeight, HERE);
    configs[1].router.references = vec![reference("gold", 7, own(&[]))];
    let mut world = TwoRouters::new(configs);
    run(&mut world, 3, &mut |now, _, frame| {
        assert!(!is_reference(frame));
        Some(now + DELAY)
    });
    assert!(is_near(decrease(&world, 1, 1), FOLLOWING));
    let view = world.routers[1].engine.references().next().unwrap();
    assert_eq!((view.followers, view.counts.published), (1, 0));
}

#[test]
fn a_reference_with_a_silent_peer_is_not_published() {
    let mut world = TwoRouters::new(configs(CoreEncapsulation::Udp4, &None));
    run(&mut world, 3, &mut delay);
    // Replies of the flow are lost; published messages would arrive.
    run(&mut world, 60, &mut |now, from, frame| {
        let answers = from == 1 && u32::from_be_bytes(*frame[42..].first_chunk().unwrap()) >> 12 == 1000;
        (!answers).then_some(now + DELAY)
    });
    assert!(world.routers[0].engine.flow(0).silent_since().is_some());
    let now = world.now;
    assert!(world.routers[0].engine.watch_references(now).contains(&(0, true)));
    assert!(world.routers[1].engine.watch_references(now).contains(&(1, true)));
    assert_eq!(decrease(&world, 1, 1), NOMINAL);
}

#[test]
fn a_reload_keeps_known_values() {
    let mut world = TwoRouters::new(configs(CoreEncapsulation::Udp4, &None));
    let mut last = Vec::new();
    run(&mut world, 3, &mut |now, _, frame| {
        if is_reference(frame) {
            last.clone_from(frame);
        }
        Some(now + DELAY)
    });
    let known = world.routers[1].engine.references().nth(1).unwrap().published;
    for side in 0..2 {
        let mut config = configs(CoreEncapsulation::Udp4, &None)[side].clone();
        // New name and index, same number.
        config.router.references.last_mut().unwrap().name = "renamed".into();
        if side == 1 {
            config.router.references.remove(0);
            control(&mut config, 1, Decrease::FromWeight, HERE);
        }
        let now = world.now;
        world.routers[side].engine.replace(now, config.prepared(), Vec::new());
    }
    let view = world.routers[1].engine.references().next().unwrap();
    assert_eq!((view.name, view.published), ("renamed", known));
    let now = world.now;
    world.routers[1].pass(CORE, now, &last);
    assert_eq!(world.routers[1].count(Counter::ReferenceReplayed), 1);
    run(&mut world, 3, &mut delay);
    assert!(is_near(decrease(&world, 1, 1), FOLLOWING));
    assert_eq!(world.routers[1].count(Counter::ReferenceReplayed), 1);
}

#[test]
fn values_of_another_engine_are_accepted() {
    let [mut config, _] = configs(CoreEncapsulation::Udp4, &None);
    control(&mut config, 1, Decrease::FromWeight, HERE);
    // This engine forwards only VPN 1.
    config.router.vpns[0].flows.clear();
    config.router.circuits.remove(0);
    let mut router = router(&config);
    let view = router.engine.references().next().unwrap();
    assert_eq!((view.source, view.published, view.followers), (MeasurementSource::Elsewhere, None, 1));
    let basis = Basis { weight: 1.0, round_trip: 0.1, loss: None };
    let published = fair::PublishedReference { at: Instant(1), basis, decrease: 0.1 };
    router.engine.update_reference(0, published);
    assert_eq!(router.engine.reference(0), Some(published));
}
