//! ICMP errors, MSS clamping and fragmentation.

use super::*;
use netstage_wire::tcp;

fn parse_error(frame: &[u8]) -> (IpAddr, IpAddr, u8, Vec<u8>) {
    let (vlan, packet) = opened(frame);
    assert_eq!(vlan, 100);
    let view = ip::View::new(packet).unwrap();
    let transport = view.transport().unwrap();
    assert_eq!(transport.protocol, if packet[0] >> 4 == 6 { protocol::ICMPV6 } else { protocol::ICMP });
    (view.source(), view.destination(), transport.payload[0], transport.payload[4..].to_vec())
}

#[test]
fn an_oversized_packet_causes_an_error_with_the_mtu() {
    for (way, around) in [
        (CoreEncapsulation::Mpls, 8),
        (CoreEncapsulation::MplsNextHop, 4),
        (CoreEncapsulation::Udp4, 32),
        (CoreEncapsulation::Udp6, 52),
    ] {
        for is_v6 in [false, true] {
            let mut router = router(&config(0, way, 1));
            let fits = 1500 - around;
            let at_most = packet(is_v6, 0, 0, 0, fits);
            let [back, out] = router.pass(CUSTOMERS, Instant(1), &frame(100, &at_most));
            assert_eq!((back.len(), out.last().unwrap().len()), (0, 1514), "{way:?}");
            let too_big = packet(is_v6, 0, 0, 0, fits + 1);
            let [back, out] = router.pass(CUSTOMERS, Instant(2), &frame(100, &too_big));
            assert_eq!((back.len(), out.len()), (1, 0));
            let (source, destination, kind, rest) = parse_error(&back[0]);
            let expected: [IpAddr; 2] = match is_v6 {
                false => [[10, 0, 0, 254].into(), [10, 0, 0, 1].into()],
                true => ["fd00:0::fe".parse().unwrap(), "fd00:0::1".parse().unwrap()],
            };
            assert_eq!(([source, destination], kind), (expected, if is_v6 { 2 } else { 3 }));
            assert_eq!(u32::from_be_bytes(*rest.first_chunk().unwrap()), fits as u32);
            assert!(too_big.starts_with(&rest[4..]));
            assert_eq!(router.engine.flow(0).count(Counter::TooBig), 1);
        }
    }
}

#[test]
fn either_router_reports_an_expired_ttl() {
    for is_v6 in [false, true] {
        for hops in 1..3 {
            let mut world = TwoRouters::new([
                config(0, CoreEncapsulation::Udp4, 1),
                config(1, CoreEncapsulation::Udp4, 1),
            ]);
            let mut sent = packet(is_v6, 0, 0, 1, 100);
            match is_v6 {
                false => v4::HeaderMut::new(&mut sent).unwrap().set_ttl(hops),
                true => v6::HeaderMut::new(&mut sent).unwrap().set_hop_limit(hops),
            }
            world.routers[0].give(CUSTOMERS, Instant::ZERO, &frame(100, &sent));
            world.run(Instant(1_000_000_000), &mut delay);
            assert_eq!((world.delivered[0].len(), world.delivered[1].len()), (1, 0), "{hops}");
            let (source, _, kind, rest) = parse_error(&world.delivered[0][0]);
            let reporter = hops - 1;
            let expected: IpAddr = match is_v6 {
                false => [10, 0, reporter, 254].into(),
                true => format!("fd00:{reporter}::fe").parse().unwrap(),
            };
            assert_eq!((source, kind), (expected, if is_v6 { 3 } else { 11 }));
            assert_eq!(rest[4..], after_hops(&sent, reporter));
        }
    }
}

#[test]
fn errors_are_rate_limited_and_need_a_source_address() {
    let mut router = router(&config(0, CoreEncapsulation::Mpls, 1));
    let too_big = frame(100, &packet(false, 0, 0, 0, 1500));
    for _ in 0..200 {
        router.give(CUSTOMERS, Instant(1), &too_big);
    }
    router.turn(Instant(1));
    assert_eq!(router.taken(CUSTOMERS).len(), 11);
    assert_eq!(router.count(Counter::NotAnswered), 189);
    let [later, _] = router.pass(CUSTOMERS, Instant(10_000_001), &too_big);
    assert_eq!(later.len(), 1);

    let mut config = config(0, CoreEncapsulation::Mpls, 1);
    config.router.circuits[0].addresses.retain(|(address, _)| address.is_ipv6());
    let mut router = super::router(&config);
    let [back, _] = router.pass(CUSTOMERS, Instant(1), &too_big);
    assert_eq!((back.len(), router.count(Counter::NotAnswered)), (0, 1));
    assert_eq!(router.engine.free_buffers(), router.buffers);
}

#[test]
fn the_mss_of_connections_is_clamped() {
    for (is_v6, around) in [(false, 20), (true, 40)] {
        let mut world =
            TwoRouters::new([config(0, CoreEncapsulation::Udp6, 1), config(1, CoreEncapsulation::Udp6, 1)]);
        let mut sent = packet(is_v6, 0, 0, 0, around + 24);
        let header = sent.len() - 24;
        match is_v6 {
            false => {
                let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 1, 1].into());
                let header =
                    v4::Header { protocol: protocol::TCP, source, destination, ..v4::Header::default() };
                header.write(&mut sent, 24).unwrap();
            }
            true => sent[6] = protocol::TCP,
        }
        let segment =
            [0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x60, tcp::flag::SYN, 1, 0, 0, 0, 0, 0, 2, 4, 0x05, 0xb4];
        sent[header..].copy_from_slice(&segment);
        let view = ip::View::new(&sent).unwrap();
        let pseudo = ip::pseudo_header(view.source(), view.destination(), protocol::TCP, 24);
        let checksum = pseudo.bytes(&segment).checksum();
        sent[header + 16..header + 18].copy_from_slice(&checksum.to_be_bytes());

        world.routers[0].give(CUSTOMERS, Instant::ZERO, &frame(100, &sent));
        world.run(Instant(1_000_000_000), &mut delay);
        let (_, delivered) = opened(&world.delivered[1][0]);
        let segment = &delivered[header..];
        let expected = 1500 - 52 - around as u16 - 20;
        assert_eq!(tcp::View::new(segment).unwrap().maximum_segment_size(), Some(expected));
        assert_eq!(pseudo.bytes(segment).folded(), 0xffff);
    }
}

#[test]
fn fragments_are_sent_and_reassemble() {
    let payload: Vec<u8> = (0..1400_u32).map(|number| number as u8).collect();
    let mut sent = vec![0; v4::HEADER];
    let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 1, 1].into());
    v4::Header { protocol: 253, source, destination, dont_fragment: false, ..v4::Header::default() }
        .write(&mut sent, payload.len())
        .unwrap();
    sent.extend(&payload);
    // The core MTU is too small, then that of the far circuit, then both.
    for (core, circuit) in [(1312, 1500), (1500, 600), (1312, 600)] {
        let mut configs = [config(0, CoreEncapsulation::Udp4, 1), config(1, CoreEncapsulation::Udp4, 1)];
        configs[0].router.peers[0].mtu = Some(core);
        configs[1].router.circuits[0].mtu = Some(circuit);
        let mut world = TwoRouters::new(configs);
        world.routers[0].give(CUSTOMERS, Instant::ZERO, &frame(100, &sent));
        world.run(Instant(1_000_000_000), &mut delay);
        let mut joined: Vec<u8> = Vec::new();
        for frame in &world.delivered[1] {
            let (_, packet) = opened(frame);
            let view = v4::View::new(packet).unwrap();
            assert!(packet.len() <= usize::from(circuit) && view.fragment_offset() == joined.len());
            assert_eq!(view.ttl(), 62);
            joined.extend(view.transport().payload);
        }
        assert_eq!(joined, payload);
        assert!(world.delivered[1].len() >= 2);
        let divided = world.routers.each_ref().map(|router| router.count(Counter::Divided));
        assert_eq!(divided, [u64::from(core < 1400), u64::from(circuit == 600)]);
        assert!(world.routers.iter().all(|router| router.engine.free_buffers() == router.buffers));
    }
}

#[test]
fn either_router_reports_a_missing_route() {
    for is_v6 in [false, true] {
        let mut sent = packet(is_v6, 0, 0, 1, 100);
        let mut near = router(&config(0, CoreEncapsulation::Udp4, 1));
        let mut unroutable = sent.clone();
        match is_v6 {
            false => {
                let destination = [192, 0, 2, 9].into();
                v4::Header {
                    protocol: 253,
                    source: [10, 0, 0, 1].into(),
                    destination,
                    ..v4::Header::default()
                }
                .write(&mut unroutable, 80)
                .unwrap();
            }
            true => unroutable[24] = 0xfc,
        }
        let [back, out] = near.pass(CUSTOMERS, Instant(1), &frame(100, &unroutable));
        assert_eq!((back.len(), out.len()), (1, 0));
        let (source, _, kind, rest) = parse_error(&back[0]);
        let reporter = |side: u8| -> IpAddr {
            match is_v6 {
                false => [10, 0, side, 254].into(),
                true => format!("fd00:{side}::fe").parse().unwrap(),
            }
        };
        assert_eq!((source, kind, rest[4..] == unroutable), (reporter(0), if is_v6 { 1 } else { 3 }, true));
        assert_eq!(near.count(Counter::NoRoute), 1);

        // The far circuit's prefixes hold only its own addresses; the ICMP error returns through the core.
        let mut far = config(1, CoreEncapsulation::Udp4, 1);
        far.router.circuits[0].addresses.iter_mut().for_each(|(_, length)| *length = 128);
        let mut world = TwoRouters::new([config(0, CoreEncapsulation::Udp4, 1), far]);
        world.routers[0].give(CUSTOMERS, Instant::ZERO, &frame(100, &sent));
        world.run(Instant(1_000_000_000), &mut delay);
        assert_eq!((world.delivered[0].len(), world.delivered[1].len()), (1, 0));
        let (source, _, kind, rest) = parse_error(&world.delivered[0][0]);
        sent = after_hops(&sent, 1);
        assert_eq!((source, kind, rest[4..] == sent), (reporter(1), if is_v6 { 1 } else { 3 }, true));
        // An ICMP error triggers no other ICMP error.
        assert_eq!(world.routers[0].count(Counter::NoRoute), 0);
    }
}
