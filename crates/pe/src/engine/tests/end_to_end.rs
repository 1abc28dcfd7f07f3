//! Packets and reports from circuit to circuit.

use super::*;

fn world(way: CoreEncapsulation, vpns: u16) -> TwoRouters {
    TwoRouters::new([config(0, way, vpns), config(1, way, vpns)])
}

#[test]
fn packets_come_out_once_in_order_and_unchanged() {
    for way in WAYS {
        let mut world = world(way, 3);
        let mut expected: [Vec<(u16, Vec<u8>)>; 2] = Default::default();
        for number in 0..90 {
            let from = (number % 2) as usize;
            let vpn = (number / 2 % 3) as u16;
            let sizes = [46, 64, 500, 1300, 1400];
            let sent = packet(number % 7 < 3, from as u8, vpn, number, sizes[number as usize % 5]);
            let now = world.now;
            world.routers[from].give(CUSTOMERS, now, &frame(100 + vpn, &sent));
            expected[1 - from].push((100 + vpn, after_hops(&sent, 2)));
            world.run(now + Duration::from_micros(100), &mut delay);
        }
        world.run(world.now + Duration::from_secs(2), &mut delay);
        for (side, expected) in expected.iter().enumerate() {
            for vlan in 100..103 {
                let of_vlan = |frames: &mut dyn Iterator<Item = (u16, Vec<u8>)>| -> Vec<Vec<u8>> {
                    frames.filter(|(other, _)| *other == vlan).map(|(_, packet)| packet).collect()
                };
                let delivered = world.delivered[side].iter().map(|frame| opened(frame));
                let delivered = of_vlan(&mut delivered.map(|(vlan, packet)| (vlan, packet.to_vec())));
                assert!(delivered == of_vlan(&mut expected.iter().cloned()), "{way:?} {side} {vlan}");
            }
            let router = &world.routers[side];
            assert_eq!(router.engine.counters().iter().next(), None, "{way:?}");
            assert_eq!(router.engine.free_buffers(), router.buffers);
            for flow in router.engine.flows() {
                let counters = flow.window().unwrap().counters();
                assert_eq!((counters.sent, counters.received, counters.lost), (15, 15, 0), "{way:?}");
                assert_eq!((flow.received().packets, flow.sent().0), (15, 15));
                let round_trip = flow.window().unwrap().round_trip();
                assert!((round_trip - 0.01).abs() < 1e-4, "{way:?}: {round_trip}");
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares with the bytes shown in docs/pe.md.
#[test]
fn the_wire_format_is_as_documented() {
    // After one second of idle time a query precedes the packet.
    let now = Instant(1_000_000_000);
    let sent = |way| {
        let mut router = router(&config(0, way, 1));
        let [_, out] = router.pass(CUSTOMERS, now, &frame(100, &packet(false, 0, 0, 1, 30)));
        <[Vec<u8>; 2]>::try_from(out).unwrap().map(|frame| hex(&frame))
    };
    let ethernet = "020000000002020000000002";
    let packet = "4500001e000040003ffd25e20a0000010a000101";
    let payload = "00000000000000000001";
    let [query, data] = sent(CoreEncapsulation::Mpls);
    assert_eq!(data, format!("{ethernet}8847001f50ff007d01ff{packet}{payload}"));
    let (labels, message) = query.split_at(2 * (14 + 4 + 4 + 4 + 4));
    assert_eq!(labels, format!("{ethernet}8847001f50ff007d00ff0000d1ff1000000d"));
    // Version and flags, in-band response, length, 64-bit counters and PTP.
    assert!(message.starts_with("0000004c83000000") && message.len() == 2 * 76, "{message}");
    let [_, data] = sent(CoreEncapsulation::Udp4);
    let outer = "4500003e000040004011b6abc0000201c0000202";
    let udp = data[2 * 34..2 * 42].to_string();
    assert_eq!(data, format!("{ethernet}0800{outer}{udp}007d01ff{packet}{payload}"));
    assert!(u16::from_str_radix(&udp[..4], 16).unwrap() >= 0xc000 && udp[4..] == *"19eb002a0000");
}

#[test]
fn circuits_of_one_router_communicate_without_the_core() {
    let mut config = config(0, CoreEncapsulation::Mpls, 1);
    let first = config.router.circuits[0].clone();
    let addresses = vec![([10, 9, 0, 254].into(), 16)];
    config.router.circuits.push(pe::CircuitConfig {
        name: "other".into(),
        vlans: vec![7, 8],
        addresses,
        ..first
    });
    let mut router = router(&config);
    let mut sent = packet(false, 0, 0, 1, 100);
    sent[16..20].copy_from_slice(&[10, 9, 1, 1]);
    sent[10..12].fill(0);
    let checksum = Sum::ZERO.bytes(&sent[..20]).checksum();
    sent[10..12].copy_from_slice(&checksum.to_be_bytes());
    let [delivered, core] = router.pass(CUSTOMERS, Instant(1), &frame(100, &sent));
    assert!(core.is_empty());
    let view = ethernet::View::new(&delivered[0]).unwrap();
    let tags: Vec<(u16, u16)> = view.tags().map(|tag| (tag.kind, tag.vlan)).collect();
    assert_eq!(tags, [(ethertype::SERVICE_VLAN, 7), (ethertype::VLAN, 8)]);
    assert_eq!(view.payload(), after_hops(&sent, 1));
}

/// Offers 2,000 packets/s to each VPN from side 0 for `length`. Returns the number of packets delivered per
/// VPN.
fn offer(world: &mut TwoRouters, vpns: u16, length: Duration, fate: CoreModel<'_>) -> Vec<u64> {
    let end = world.now + length;
    while world.now < end {
        for vpn in 0..vpns {
            let (now, number) = (world.now, world.offered);
            world.routers[0].give(CUSTOMERS, now, &frame(100 + vpn, &packet(false, 0, vpn, number, 200)));
        }
        world.offered += 1;
        world.run(world.now + Duration::from_micros(500), fate);
    }
    let mut delivered = vec![0; usize::from(vpns)];
    let mut last = vec![None; usize::from(vpns)];
    for frame in world.delivered[1].drain(..) {
        let (vlan, packet) = opened(&frame);
        let (vpn, number) = numbers(packet);
        assert_eq!(vlan, 100 + vpn);
        assert!(last[usize::from(vpn)] < Some(number), "in order and once");
        last[usize::from(vpn)] = Some(number);
        delivered[usize::from(vpn)] += 1;
    }
    delivered
}

#[test]
fn half_of_the_management_packets_are_enough() {
    let mut world = world(CoreEncapsulation::Udp4, 1);
    let mut coin = 0x1234_5678_u32;
    let mut lossy = |now: Instant, _: usize, frame: &mut Vec<u8>| {
        // Xorshift (Marsaglia 2003).
        coin ^= coin << 13;
        coin ^= coin >> 17;
        coin ^= coin << 5;
        (!is_management(frame) || coin & 1 == 0).then_some(now + DELAY)
    };
    let delivered = offer(&mut world, 1, Duration::from_secs(3), &mut lossy);
    let router = &world.routers[0];
    let counters = router.engine.flow(0).window().unwrap().counters();
    assert_eq!((counters.lost, counters.silences, counters.bad_replies), (0, 0, 0));
    assert!(delivered[0] > 5_900, "{delivered:?} {counters:?}");
}

#[test]
fn windows_share_a_bottleneck_and_detect_losses() {
    // The bottleneck carries 1,000 packets/s with a queue of 100 and a delay of 25 ms each way; four times as
    // much is offered.
    const FAR: Duration = Duration::from_millis(25);
    let mut world = world(CoreEncapsulation::Udp4, 2);
    let mut free_at = Instant::ZERO;
    let mut bottleneck = |now: Instant, from: usize, frame: &mut Vec<u8>| {
        if from == 1 {
            return Some(now + FAR);
        }
        if is_management(frame) {
            return Some(free_at.max(now) + FAR);
        }
        let start = free_at.max(now);
        if start.since(now) > Duration::from_millis(100) {
            return None;
        }
        free_at = start + Duration::from_millis(1);
        Some(free_at + FAR)
    };
    let delivered = offer(&mut world, 2, Duration::from_secs(10), &mut bottleneck);
    let total: u64 = delivered.iter().sum();
    assert!((9_500..=10_001).contains(&total), "{delivered:?}");
    assert!(delivered.iter().all(|count| *count > total / 5), "{delivered:?}");
    for flow in world.routers[0].engine.flows() {
        let counters = flow.window().unwrap().counters();
        assert!(counters.lost > 0 && flow.count(Counter::QueueFull) > 0, "{counters:?}");
        // Acknowledged packets did arrive.
        assert!(counters.received + counters.lost <= counters.sent);
    }
}

#[test]
fn reordering_in_the_core_loses_nothing() {
    let mut world = world(CoreEncapsulation::Mpls, 1);
    let mut number = 0;
    let mut reordering = |now: Instant, _: usize, _: &mut Vec<u8>| {
        number += 1;
        Some(now + DELAY + Duration::from_micros(if number % 5 == 0 { 1_700 } else { 0 }))
    };
    for number in 0..1_000 {
        let now = world.now;
        world.routers[0].give(CUSTOMERS, now, &frame(100, &packet(false, 0, 0, number, 200)));
        world.run(now + Duration::from_micros(500), &mut reordering);
    }
    world.run(world.now + Duration::from_secs(3), &mut reordering);
    let mut numbers: Vec<u64> = world.delivered[1].iter().map(|frame| numbers(opened(frame).1).1).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..1_000));
}

#[test]
fn traffic_resumes_after_a_router_restart() {
    for restarted in [0, 1] {
        let mut world = world(CoreEncapsulation::Udp4, 1);
        let before = offer(&mut world, 1, Duration::from_secs(2), &mut delay)[0];
        assert!(before > 3_900, "{before}");
        // Counters restart at zero, sessions differ, and replies to the earlier run arrive late.
        let mut config = config(restarted as u8, CoreEncapsulation::Udp4, 1);
        config.machine.session_seed = 77;
        world.routers[restarted] = router(&config);
        let after = offer(&mut world, 1, Duration::from_secs(4), &mut delay)[0];
        assert!(after > 7_000, "{restarted}: {after}");
        let flow = world.routers[0].engine.flow(0);
        let counters = flow.window().unwrap().counters();
        assert!(counters.sent - counters.received - counters.lost < 200, "{restarted}: {counters:?}");
        if restarted == 0 {
            assert!(flow.count(Counter::ReplyEarlier) + flow.count(Counter::ReplyUnasked) > 0);
        }
    }
}

#[test]
fn a_vpn_that_fills_its_queues_leaves_room_for_others() {
    let mut configs = [config(0, CoreEncapsulation::Udp4, 3), config(1, CoreEncapsulation::Udp4, 3)];
    // Fewer buffers than the limit of one queue.
    configs[0].router.buffers = 100;
    let mut world = TwoRouters::new(configs);
    // Packets of VPNs 0 and 1 are lost, so their windows close.
    let mut drop_first_vpns = |now: Instant, from: usize, frame: &mut Vec<u8>| {
        let label = u32::from_be_bytes(*frame[42..].first_chunk().unwrap()) >> 12;
        (from == 1 || label == 2002).then_some(now + DELAY)
    };
    let mut number = 0;
    for _ in 0..1_000 {
        let now = world.now;
        for vpn in [0, 0, 0, 1, 1, 1, 2] {
            world.routers[0].give(CUSTOMERS, now, &frame(100 + vpn, &packet(false, 0, vpn, number, 200)));
            number += 1;
        }
        world.run(now + Duration::from_millis(1), &mut drop_first_vpns);
    }
    world.run(world.now + Duration::from_secs(1), &mut drop_first_vpns);
    assert_eq!(world.delivered[1].len(), 1_000);
    let counts: Vec<[u64; 3]> = world.routers[0]
        .engine
        .flows()
        .map(|flow| {
            [Counter::BuffersShared, Counter::BuffersExhausted, Counter::QueueFull]
                .map(|counter| flow.count(counter))
        })
        .collect();
    assert!(counts[0][0] > 1_000 && counts[1][0] > 1_000, "{counts:?}");
    assert_eq!(counts[2], [0; 3]);
}

#[test]
fn core_marks_reach_the_customer_and_the_ingress() {
    for (inner, expected) in [
        (Ecn::Capable0, Some(Ecn::CongestionExperienced)),
        (Ecn::Capable1, Some(Ecn::CongestionExperienced)),
        (Ecn::CongestionExperienced, Some(Ecn::CongestionExperienced)),
        (Ecn::NotCapable, None),
    ] {
        for is_v6 in [false, true] {
            let mut world = world(CoreEncapsulation::Udp4, 1);
            let mut sent = packet(is_v6, 0, 0, 1, 100);
            match is_v6 {
                false => v4::HeaderMut::new(&mut sent).unwrap().set_traffic_class(46 << 2 | inner as u8),
                true => v6::HeaderMut::new(&mut sent).unwrap().set_traffic_class(46 << 2 | inner as u8),
            }
            world.routers[0].give(CUSTOMERS, Instant::ZERO, &frame(100, &sent));
            let mut outer = Vec::new();
            let mut marking = |now: Instant, from: usize, frame: &mut Vec<u8>| {
                if from == 0 && !is_management(frame) {
                    outer.push((frame[15] >> 2, frame[15] & 3, frame[14 + 20 + 8 + 2] >> 1 & 7));
                    v4::HeaderMut::new(&mut frame[14..]).unwrap().set_ecn(Ecn::CongestionExperienced);
                }
                Some(now + DELAY)
            };
            world.run(Instant(3_000_000_000), &mut marking);
            assert_eq!(outer, [(46, inner as u8, 46 >> 3)]);
            let far = world.routers[1].engine.flow(0);
            let delivered = world.delivered[1].first().map(|frame| ip::View::new(opened(frame).1).unwrap());
            assert_eq!(delivered.map(|view| (view.ecn(), view.dscp())), expected.map(|ecn| (ecn, 46)));
            // An inner mark may have been set by the customer.
            let is_core_mark = expected.is_some() && inner != Ecn::CongestionExperienced;
            assert_eq!(far.received().marked, u64::from(is_core_mark));
            assert_eq!(far.count(Counter::MarkDropped), u64::from(expected.is_none()));
        }
    }
}
