//! Encrypted tunnels: headers, sizes, sessions.

use super::*;
use crate::private_key::PrivateKey;
use std::collections::BTreeSet;

/// UDP ports of the two sides, by default and in the test of a configured port.
const PORTS: [u16; 2] = [51_820; 2];
const OTHER_PORTS: [u16; 2] = [51_820, 51_821];
const SECOND: u64 = 1_000_000_000;

fn key(side: u8) -> PrivateKey {
    PrivateKey::new([side + 1; 32])
}

/// Returns the configuration of [`config`] with an encrypted tunnel.
pub(super) fn encrypted(side: u8, way: CoreEncapsulation, vpns: u16) -> EngineConfig {
    encrypted_at(PORTS, side, way, vpns)
}

fn encrypted_at(ports: [u16; 2], side: u8, way: CoreEncapsulation, vpns: u16) -> EngineConfig {
    let mut config = config(side, way, vpns);
    let far = 1 - side;
    config.router.peers[0].protection =
        pe::PeerProtection::Encrypted { public_key: key(far).public(), port: ports[usize::from(far)] };
    config.router.encryption_port = ports[usize::from(side)];
    config.machine.peers[0].private_key = Some(key(side));
    config
}

fn pair() -> TwoRouters {
    TwoRouters::new([0, 1].map(|side| encrypted(side, CoreEncapsulation::Udp4, 1)))
}

#[test]
fn the_largest_packet_fills_the_core_mtu_and_carries_dscp_and_marks_outside() {
    for (way, header, mtu) in [
        // IP and UDP headers twice, type, receiver, counter and tag of WireGuard, label.
        (CoreEncapsulation::Udp4, 20, 1500 - 2 * 28 - 32 - 4),
        (CoreEncapsulation::Udp6, 40, 1500 - 2 * 48 - 32 - 4),
    ] {
        let configs = [0, 1].map(|side| encrypted_at(OTHER_PORTS, side, way, 1));
        let mut world = TwoRouters::new(configs);
        world.run(Instant(SECOND), &mut delay);
        let mut inner = packet(true, 0, 0, 1, mtu);
        // DSCP 46, ECT(0).
        let class = 46 << 2 | 2_u8;
        (inner[0], inner[1]) = (0x60 | class >> 4, class << 4);
        let larger = packet(true, 0, 0, 2, mtu + 1);
        world.routers[0].give(CUSTOMERS, world.now, &frame(100, &inner));
        world.routers[0].give(CUSTOMERS, world.now, &frame(100, &larger));
        let mut largest = 0;
        let mut marking = |now: Instant, from: usize, frame: &mut Vec<u8>| {
            let class = match header {
                20 => frame[15],
                _ => frame[14] << 4 | frame[15] >> 4,
            };
            let port = u16::from_be_bytes(*frame[14 + header + 2..].first_chunk().unwrap());
            assert_eq!(port, OTHER_PORTS[1 - from]);
            if from == 0 && frame.len() > largest {
                largest = frame.len();
                if frame.len() > 1_000 {
                    assert_eq!(class, 46 << 2 | 2);
                    match header {
                        20 => {
                            frame[15] |= 3;
                            frame[24..26].fill(0);
                            let sum = netstage_wire::checksum::checksum(&frame[14..34]);
                            frame[24..26].copy_from_slice(&sum.to_be_bytes());
                        }
                        _ => frame[15] |= 3 << 4,
                    }
                }
            }
            Some(now + DELAY)
        };
        world.run(Instant(2 * SECOND), &mut marking);
        assert_eq!(largest, 14 + 1500);
        assert_eq!(world.routers[0].engine.counters().get(Counter::TooBig), 1);
        let [delivered] = &world.delivered[1][..] else { panic!("{} packets", world.delivered[1].len()) };
        let (_, bytes) = opened(delivered);
        assert_eq!((bytes.len(), bytes[1] >> 4 & 3), (mtu, 3));
        assert_eq!(world.routers[1].engine.flow(0).received().marked, 1);
        for router in &world.routers {
            assert_eq!(router.engine.free_buffers(), router.buffers);
        }
    }
}

#[test]
fn sessions_are_renewed_without_loss() {
    let mut world = pair();
    let mut sessions: [BTreeSet<Option<Instant>>; 2] = Default::default();
    let mut frames = 0_u64;
    // Every third message of a handshake is lost.
    let mut core = |now: Instant, _: usize, frame: &mut Vec<u8>| {
        let is_handshake = matches!(frame[42], 1 | 2);
        frames += u64::from(is_handshake);
        (!is_handshake || !frames.is_multiple_of(3)).then_some(now + DELAY)
    };
    let packets = 4_000;
    for number in 0..packets {
        let now = world.now;
        world.routers[0].give(CUSTOMERS, now, &frame(100, &packet(false, 0, 0, number, 200)));
        world.run(now + Duration::from_millis(100), &mut core);
        for (router, sessions) in world.routers.iter().zip(&mut sessions) {
            sessions.extend(router.engine.tunnels(now).map(|(_, since)| since));
        }
    }
    world.run(world.now + Duration::from_millis(10_000), &mut core);
    assert_eq!(world.delivered[1].len() as u64, packets);
    // 400 s with a new session after 110 s.
    for sessions in sessions {
        assert!((4..=12).contains(&sessions.len()), "{sessions:?}");
    }
}

#[test]
fn a_restarted_router_is_reached_at_once() {
    let mut world = pair();
    let mut number = 0;
    let mut send = |world: &mut TwoRouters, milliseconds: u64| {
        for _ in 0..milliseconds / 10 {
            let now = world.now;
            number += 1;
            world.routers[0].give(CUSTOMERS, now, &frame(100, &packet(false, 0, 0, number, 200)));
            world.run(now + Duration::from_millis(10), &mut delay);
        }
    };
    send(&mut world, 2_000);
    world.routers[1] = router(&encrypted(1, CoreEncapsulation::Udp4, 1));
    let before = world.delivered[1].len();
    send(&mut world, 2_000);
    let after = world.delivered[1].len() - before;
    // A handshake takes a round trip of 10 ms.
    assert!((190..=200).contains(&after), "{after}");
}

#[test]
fn a_reload_keeps_the_session_unless_keys_change() {
    let mut world = pair();
    world.run(Instant(SECOND), &mut delay);
    let since = |world: &TwoRouters| world.routers[0].engine.tunnels(world.now).next().unwrap().1;
    let before = since(&world);
    assert!(before.is_some());
    let mut config = encrypted(0, CoreEncapsulation::Udp4, 1);
    let now = world.now;
    world.routers[0].engine.replace(now, config.prepared(), vec![]);
    assert_eq!(since(&world), before);
    config.router.peers[0].protection =
        pe::PeerProtection::Encrypted { public_key: key(7).public(), port: PORTS[1] };
    world.routers[0].engine.replace(now, config.prepared(), vec![]);
    assert_eq!(since(&world), None);
    // Nothing is delivered to a peer without the key, nor accepted from it.
    world.routers[0].give(CUSTOMERS, now, &frame(100, &packet(false, 0, 0, 1, 100)));
    world.run(Instant(3 * SECOND), &mut delay);
    assert!(world.delivered[1].is_empty());
    assert!(
        world.routers[1].count(Counter::EncryptionForged)
            + world.routers[1].count(Counter::EncryptionUnknown)
            > 0
    );
}

#[test]
fn a_flood_of_handshakes_leaves_the_session_alone() {
    let mut world = pair();
    // A third router with the public key of side 1 starts handshakes from the address of side 0.
    let mut stranger = encrypted(0, CoreEncapsulation::Udp4, 1);
    stranger.machine.peers[0].private_key = Some(key(9));
    let mut stranger = router(&stranger);
    world.run(Instant(SECOND), &mut delay);
    for step in 0..200_u64 {
        let now = Instant(SECOND + step * SECOND / 2);
        stranger.turn(now);
        for frame in stranger.taken(CORE) {
            for _ in 0..50 {
                world.routers[1].give(CORE, world.now, &frame);
            }
        }
        let now = world.now;
        world.routers[0].give(CUSTOMERS, now, &frame(100, &packet(false, 0, 0, step, 200)));
        world.run(now + Duration::from_millis(20), &mut delay);
    }
    assert_eq!(world.delivered[1].len(), 200);
    let far = &world.routers[1];
    assert!(far.count(Counter::HandshakeLimited) > 1_000, "{}", far.count(Counter::HandshakeLimited));
    assert!(far.count(Counter::EncryptionForged) > 0);
    assert_eq!(far.engine.free_buffers(), far.buffers);
}
