//! Configuration changes with packets in flight.

use super::*;
use netstage_core::fair::{SilenceAction, SilencePolicy};

fn replace(world: &mut TwoRouters, side: usize, config: &EngineConfig) {
    let now = world.now;
    let closed = world.routers[side].engine.replace(now, config.prepared(), Vec::new());
    assert!(closed.is_empty());
}

/// Sends `count` packets of a VPN from side 0, one per millisecond.
fn offer(world: &mut TwoRouters, vpn: u16, count: u64, fate: CoreModel<'_>) {
    for _ in 0..count {
        let (now, number) = (world.now, world.offered);
        world.offered += 1;
        world.routers[0].give(CUSTOMERS, now, &frame(100 + vpn, &packet(false, 0, vpn, number, 200)));
        world.run(now + Duration::from_millis(1), fate);
    }
}

#[test]
fn no_packet_is_lost_and_remaining_flows_keep_their_state() {
    let mut world =
        TwoRouters::new([config(0, CoreEncapsulation::Udp4, 2), config(1, CoreEncapsulation::Udp4, 2)]);
    offer(&mut world, 1, 200, &mut delay);
    let window = world.routers[0].engine.flow(1).window().unwrap().window();
    for (step, weight) in [(0, 2.0), (1, 3.0), (2, 1.0)] {
        // With packets in flight, VPN 0 is removed and added again, and a third VPN is added.
        let vpns = [1..3, 0..2, 0..4][step].clone();
        for side in 0..2 {
            let mut config = config_of(side as u8, CoreEncapsulation::Udp4, vpns.clone());
            config.settings(1 - usize::from(vpns.start)).weight = weight;
            replace(&mut world, side, &config);
        }
        offer(&mut world, 1, 200, &mut delay);
    }
    world.run(world.now + Duration::from_secs(3), &mut delay);
    let mut numbers: Vec<u64> = world.delivered[1].iter().map(|frame| numbers(opened(frame).1).1).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..800));
    let [near, far] = &world.routers;
    assert_eq!(near.engine.flows().len(), 4);
    let flow = near.engine.flow(1);
    let counters = flow.window().unwrap().counters();
    assert_eq!((flow.vpn(), counters.sent, counters.received, counters.lost), ("vpn1", 800, 800, 0));
    assert!(flow.window().unwrap().window() >= window && far.engine.flow(1).received().packets == 800);
    assert_eq!(near.count(Counter::ReplyEarlier) + near.count(Counter::ReplyUnasked), 0);
    for router in &world.routers {
        assert_eq!(router.engine.free_buffers(), router.buffers);
    }
}

#[test]
fn queued_packets_survive_a_change_of_control_but_not_the_removal_of_their_flow() {
    let slow = |vpns: Range<u16>, kind: VpnControl| {
        let mut config = config_of(0, CoreEncapsulation::Udp4, vpns);
        config.router.vpns.iter_mut().for_each(|vpn| vpn.flows[0].settings.control = kind.clone());
        config
    };
    let rate = |rate| VpnControl::FixedRate { rate: netstage_core::quantity::BitRate(rate), queue: 50 };
    let mut world = TwoRouters::new([slow(0..2, rate(16_000)), config(1, CoreEncapsulation::Udp4, 2)]);
    for vpn in [0, 1] {
        offer(&mut world, vpn, 30, &mut delay);
    }
    assert!(world.routers[0].engine.flows().all(|flow| flow.queue_len() > 25));
    // One flow is removed with its waiting packets; the other changes to a window.
    replace(&mut world, 0, &slow(1..2, VpnControl::I2vfc(fair::I2vfcConfig::default())));
    world.run(world.now + Duration::from_secs(3), &mut delay);
    let mut delivered = [0; 2];
    for frame in &world.delivered[1] {
        delivered[usize::from(numbers(opened(frame).1).0)] += 1;
    }
    assert!(delivered[0] < 5 && delivered[1] == 30, "{delivered:?}");
    assert_eq!(world.routers[0].engine.free_buffers(), world.routers[0].buffers);
}

#[test]
fn the_route_to_a_peer_may_be_removed_and_restored() {
    let mut world =
        TwoRouters::new([config(0, CoreEncapsulation::Udp4, 1), config(1, CoreEncapsulation::Udp4, 1)]);
    world.routers[0].engine.set_peer_route(0, None);
    offer(&mut world, 0, 5, &mut delay);
    // The packets, and the answers to two probes of the far router.
    assert_eq!(world.routers[0].engine.flow(0).count(Counter::PeerUnreachable), 5 + 2);
    world.routers[0].engine.set_peer_route(0, Some((CORE, [9; 6], 1500)));
    offer(&mut world, 0, 5, &mut delay);
    world.run(world.now + Duration::from_millis(10), &mut delay);
    // The far router ignores frames to another MAC address.
    assert!(world.delivered[1].is_empty());
    world.routers[0].engine.set_peer_route(0, Some((CORE, CORE_PORT, 1500)));
    let mut larger = config(0, CoreEncapsulation::Udp4, 1);
    larger.router.buffers = 9_000;
    replace(&mut world, 0, &larger);
    offer(&mut world, 0, 5, &mut delay);
    world.run(world.now + Duration::from_millis(10), &mut delay);
    assert_eq!(world.delivered[1].len(), 5);
}

#[test]
fn a_silent_peer_is_detected_and_stops_its_flow_if_configured() {
    for stops in [false, true] {
        let mut configs = [config(0, CoreEncapsulation::Udp4, 1), config(1, CoreEncapsulation::Udp4, 1)];
        let then = if stops { SilenceAction::Closed } else { SilenceAction::Shrink };
        let silence = SilencePolicy { after: Duration::from_secs(5), action: then };
        configs[0].settings(0).control =
            VpnControl::I2vfc(fair::I2vfcConfig { silence, ..fair::I2vfcConfig::default() });
        let mut world = TwoRouters::new(configs);
        offer(&mut world, 0, 100, &mut delay);
        assert_eq!(world.routers[0].engine.silence_changes(), []);
        let mut drop_all = |_: Instant, _: usize, _: &mut Vec<u8>| None;
        world.run(world.now + Duration::from_secs(1), &mut delay);
        let (mut noticed, silent_from) = (None, world.now);
        while noticed.is_none() && world.now < silent_from + Duration::from_secs(20) {
            offer(&mut world, 0, 100, &mut drop_all);
            noticed = world.routers[0].engine.silence_changes().pop().map(|change| (change, world.now));
        }
        let (change, at) = noticed.unwrap();
        assert_eq!(change, (0, true));
        let after = at.since(silent_from);
        assert!((5_000..7_000).contains(&(after.0 / 1_000_000)), "{after:?}");
        let dropped = |world: &TwoRouters| world.routers[0].engine.flow(0).count(Counter::PeerSilent);
        let before = dropped(&world);
        offer(&mut world, 0, 100, &mut drop_all);
        assert_eq!(dropped(&world) - before, if stops { 100 } else { 0 });
        // The peer answers again. It is probed soon because there is traffic to send, and packets flow again.
        let before = world.delivered[1].len();
        for _ in 0..30 {
            offer(&mut world, 0, 100, &mut delay);
            world.routers[0].engine.silence_changes();
        }
        assert!(world.routers[0].engine.flow(0).silent_since().is_none());
        // The window has shrunk to one packet and grows by small steps.
        assert!(world.delivered[1].len() > before + 100, "{stops}: {}", world.delivered[1].len() - before);
    }
}
