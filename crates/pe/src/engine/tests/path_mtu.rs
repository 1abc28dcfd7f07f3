//! Paths whose MTU is smaller than that of the first link.

use super::secure::encrypted;
use super::*;

const SECOND: u64 = 1_000_000_000;

/// Runs two routers whose core drops frames above these sizes of IP or MPLS packets, from these seconds on. Returns them
/// after `seconds`.
fn run(configs: [EngineConfig; 2], limits: &[(u64, usize)], seconds: u64) -> TwoRouters {
    let mut world = TwoRouters::new(configs);
    let mut core = |now: Instant, _: usize, frame: &mut Vec<u8>| {
        let limit = limits
            .iter()
            .rev()
            .find(|(from, _)| from * SECOND <= now.0)
            .map_or(usize::MAX, |(_, size)| *size);
        (frame.len() - 14 <= limit).then_some(now + DELAY)
    };
    world.run(Instant(seconds * SECOND), &mut core);
    world
}

fn mtus(world: &TwoRouters) -> [u16; 2] {
    [0, 1].map(|side: usize| world.routers[side].engine.path_mtus().next().unwrap().1.mtu)
}

#[test]
fn the_path_mtu_is_found_for_each_encapsulation() {
    for (way, headers) in [
        (CoreEncapsulation::MplsNextHop, 4),
        (CoreEncapsulation::Udp4, 20 + 8 + 4),
        (CoreEncapsulation::Udp6, 40 + 8 + 4),
    ] {
        let configs = || [0, 1].map(|side| config(side, way, 2));
        let full = run(configs(), &[], 4);
        assert_eq!(mtus(&full), [1_500 - headers; 2], "{way:?}");
        let smaller = run(configs(), &[(0, 1_500), (3, 1_400)], 15);
        assert!(
            mtus(&smaller).iter().all(|mtu| (1_397 - headers..=1_400 - headers).contains(mtu)),
            "{way:?}: {:?}",
            mtus(&smaller)
        );
        for router in &smaller.routers {
            assert_eq!(router.count(Counter::MoreReceived) + router.count(Counter::QueryRepeated), 0);
            assert_eq!(router.engine.free_buffers(), router.buffers);
        }
    }
    let configs = [0, 1].map(|side| encrypted(side, CoreEncapsulation::Udp4, 1));
    let world = run(configs, &[(3, 1_400)], 15);
    let mtu = 1_400 - 2 * 28 - 32 - 4;
    assert!(mtus(&world).iter().all(|found| (mtu - 3..=mtu).contains(found)), "{:?}", mtus(&world));
}

#[test]
fn customers_are_told_of_the_path_mtu() {
    let configs = [0, 1].map(|side| config(side, CoreEncapsulation::Udp4, 1));
    let mut world = run(configs, &[(0, 1_400)], 4);
    let [mtu, _] = mtus(&world);
    let changes = world.routers[0].engine.path_mtu_changes();
    assert_eq!(changes.iter().map(|(_, path)| (path.mtu, path.largest)).collect::<Vec<_>>(), [(mtu, 1_468)]);
    assert!(world.routers[0].engine.path_mtu_changes().is_empty());
    let now = world.now;
    let [customers, core] =
        world.routers[0].pass(CUSTOMERS, now, &frame(100, &packet(false, 0, 0, 1, 1_400)));
    // ICMP fragmentation needed (RFC 1191) with the MTU of the path.
    let [answer] = &customers[..] else { panic!("{customers:?}") };
    let (_, bytes) = opened(answer);
    assert_eq!((bytes[20], bytes[21], u16::from_be_bytes([bytes[26], bytes[27]])), (3, 4, mtu));
    assert!(core.is_empty());
    let [_, core] = world.routers[0].pass(CUSTOMERS, now, &frame(100, &packet(false, 0, 0, 2, mtu.into())));
    assert_eq!(core.iter().filter(|frame| !is_management(frame)).count(), 1);
}

#[test]
fn losses_of_large_packets_hasten_the_measurement() {
    let configs = [0, 1].map(|side| config(side, CoreEncapsulation::Udp4, 1));
    let mut world = TwoRouters::new(configs);
    let mut core = |now: Instant, _: usize, frame: &mut Vec<u8>| {
        (now.0 < 3 * SECOND || frame.len() - 14 <= 1_400).then_some(now + DELAY)
    };
    let mut number = 0;
    while world.now.0 < 6 * SECOND {
        let now = world.now;
        world.routers[0].give(CUSTOMERS, now, &frame(100, &packet(false, 0, 0, number, 1_468)));
        world.run(now + Duration::from_millis(10), &mut core);
        number += 1;
    }
    let [mtu, _] = mtus(&world);
    assert!((1_365..=1_368).contains(&mtu), "{mtu}");
}

#[test]
fn a_silent_peer_and_a_lossy_core_lower_nothing() {
    let configs = [0, 1].map(|side| config(side, CoreEncapsulation::Udp4, 1));
    let mut world = TwoRouters::new(configs);
    let mut number = 0_u64;
    let mut core = |now: Instant, from: usize, _: &mut Vec<u8>| {
        number += 1;
        // Router 0 hears nothing for 20 s, and every tenth frame is lost.
        let is_silent = from == 1 && now.0 > 5 * SECOND && now.0 < 25 * SECOND;
        (!is_silent && !number.is_multiple_of(10)).then_some(now + DELAY)
    };
    while world.now.0 < 40 * SECOND {
        world.run(world.now + Duration::from_millis(100), &mut core);
        assert_eq!(mtus(&world), [1_468; 2], "{:?}", world.now);
    }
}
