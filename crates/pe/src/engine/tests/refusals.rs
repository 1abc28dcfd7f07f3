//! Rejected frames and their counters.

use super::*;
use netstage_scenario::pe::ReversePathCheck;
use std::net::Ipv6Addr;

/// Returns two routers with authenticated management packets, and frames that crossed the core: a query and a
/// data packet from side 0 to side 1, and the response.
fn recorded(keys: Option<Keys>) -> (TwoRouters, [Vec<u8>; 3]) {
    let mut configs = [config(0, CoreEncapsulation::Udp4, 2), config(1, CoreEncapsulation::Udp4, 2)];
    for config in &mut configs {
        config.machine.peers[0].keys = keys.clone();
    }
    let mut world = TwoRouters::new(configs);
    world.run(Instant(500_000_000), &mut delay);
    world.routers[0].give(CUSTOMERS, Instant(500_000_000), &frame(100, &packet(false, 0, 0, 1, 100)));
    let mut seen: [Option<Vec<u8>>; 3] = Default::default();
    let mut recording = |now: Instant, from: usize, frame: &mut Vec<u8>| {
        // The idle flow of the other VPN may probe meanwhile.
        let label = u32::from_be_bytes(*frame[42..].first_chunk().unwrap()) >> 12;
        let kind = match (from, label, is_management(frame)) {
            (0, 2000, true) => Some(0),
            (0, 2000, false) => Some(1),
            (1, 1000, true) if frame[14 + 20 + 8 + 12] & 8 != 0 => Some(2),
            _ => None,
        };
        if let Some(kind) = kind {
            seen[kind].get_or_insert(frame.clone());
        }
        Some(now + DELAY)
    };
    world.run(Instant(600_000_000), &mut recording);
    (world, seen.map(Option::unwrap))
}

fn keys(number: u8) -> Option<Keys> {
    Keys::new(number, &[(1, b"one key".to_vec()), (2, b"another".to_vec())])
}

#[test]
fn replayed_and_forged_messages_are_rejected() {
    for keys in [None, keys(1)] {
        let is_signed = keys.is_some();
        let (mut world, [query, _, response]) = recorded(keys);
        let before = world.routers[0].engine.flow(0).window().unwrap().counters();
        let now = world.now;
        let [_, out] = world.routers[0].pass(CORE, now, &response);
        assert_eq!((out.len(), world.routers[0].engine.flow(0).count(Counter::ReplyUnasked)), (0, 1));
        // A duplicate query is answered again; the second response matches no pending query.
        let [_, out] = world.routers[1].pass(CORE, now, &query);
        assert_eq!(out.len(), 1);
        world.routers[0].pass(CORE, now, &out[0]);
        assert_eq!(world.routers[0].engine.flow(0).count(Counter::ReplyUnasked), 2);
        let after = world.routers[0].engine.flow(0).window().unwrap().counters();
        assert_eq!((before.received, before.lost), (after.received, after.lost));

        // Only the digest can detect a changed counter.
        let mut forged = query.clone();
        forged[14 + 20 + 8 + 12 + 50] ^= 1;
        let [_, out] = world.routers[1].pass(CORE, now, &forged);
        let count = world.routers[1].engine.flow(0).count(Counter::QueryForged);
        assert_eq!((out.len(), count), if is_signed { (0, 1) } else { (1, 0) });
        let mut forged = response.clone();
        forged[14 + 20 + 8 + 12 + 60] ^= 1;
        world.routers[0].pass(CORE, now, &forged);
        assert_eq!(world.routers[0].engine.flow(0).count(Counter::ReplyForged), u64::from(is_signed));
        // Moved to the other VPN, whose label is higher by one.
        let mut moved = query.clone();
        moved[14 + 20 + 8 + 2] ^= 0x10;
        let [_, out] = world.routers[1].pass(CORE, now, &moved);
        assert_eq!(out.is_empty(), is_signed);
        assert_eq!(world.routers[1].engine.flow(1).count(Counter::QueryForged), u64::from(is_signed));
    }
}

#[test]
fn keys_can_be_changed_without_a_gap() {
    let mut configs = [config(0, CoreEncapsulation::Udp4, 1), config(1, CoreEncapsulation::Udp4, 1)];
    configs[0].machine.peers[0].keys = keys(1);
    configs[1].machine.peers[0].keys = keys(2);
    let mut world = TwoRouters::new(configs);
    world.routers[0].give(CUSTOMERS, Instant::ZERO, &frame(100, &packet(false, 0, 0, 1, 100)));
    world.run(Instant(2_000_000_000), &mut delay);
    assert_eq!(world.routers[0].engine.flow(0).window().unwrap().counters().received, 1);
    assert!(Keys::new(3, &[(1, vec![1])]).is_none());
}

#[test]
fn truncated_frames_are_counted_and_leave_nothing_behind() {
    let (mut world, frames) = recorded(keys(1));
    let now = world.now;
    for frame in &frames {
        for length in 0..frame.len() {
            for way in [false, true] {
                // First cut as on the wire, then with length fields that hide the cut.
                let mut cut = frame[..length].to_vec();
                if way && length >= 14 + 28 {
                    v4_lengths(&mut cut);
                }
                for router in &mut world.routers {
                    let before: u64 = router.engine.counters().iter().map(|(_, count)| count).sum();
                    let [delivered, out] = router.pass(CORE, now, &cut);
                    let after: u64 = router.engine.counters().iter().map(|(_, count)| count).sum();
                    assert_eq!((delivered.len(), out.len(), after - before), (0, 0, 1), "{length} {way}");
                    assert_eq!(router.engine.free_buffers(), router.buffers);
                }
            }
        }
    }
}

/// Adapts outer length fields and checksum to the length of the frame.
fn v4_lengths(frame: &mut [u8]) {
    let length = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    frame[14 + 24..14 + 26].copy_from_slice(&(length - 20).to_be_bytes());
    frame[24..26].fill(0);
    let checksum = Sum::ZERO.bytes(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn labels_are_valid_only_from_the_peer_they_were_assigned_to() {
    let (world, [_, data, _]) = recorded(None);
    let now = world.now;
    let [_, mut router] = world.routers;
    let mut refused = |change: &dyn Fn(&mut Vec<u8>), counter: Counter| {
        let mut frame = data.clone();
        change(&mut frame);
        let before = router.count(counter);
        let [delivered, out] = router.pass(CORE, now, &frame);
        assert_eq!((delivered.len(), out.len(), router.count(counter) - before), (0, 0, 1), "{counter:?}");
    };
    let address = |at: usize| {
        move |frame: &mut Vec<u8>| {
            frame[at + 3] ^= 8;
            v4_lengths(frame);
        }
    };
    refused(&address(14 + 12), Counter::WrongSender);
    refused(&address(14 + 16), Counter::WrongSender);
    // Same labels without the tunnel.
    let bare = |frame: &mut Vec<u8>| {
        frame.drain(14..14 + 28);
        frame[12..14].copy_from_slice(&ethertype::MPLS.to_be_bytes());
    };
    refused(&bare, Counter::WrongSender);
    refused(&|frame| frame[0] ^= 1, Counter::NotForUs);
    refused(&|frame| frame[14 + 28] ^= 0x80, Counter::LabelUnknown);
    refused(&|frame| frame[14 + 28..14 + 31].copy_from_slice(&[0, 0, 0x31]), Counter::LabelStack);
    let pushed = |frame: &mut Vec<u8>| {
        frame.splice(14 + 28..14 + 28, [0, 0x10, 0, 64]);
        v4_lengths(frame);
    };
    refused(&pushed, Counter::LabelUnexpected);
    refused(&|frame| frame[14 + 9] = protocol::TCP, Counter::TunnelMalformed);
    refused(
        &|frame| {
            frame[14 + 9] = protocol::TCP;
            v4_lengths(frame);
        },
        Counter::NotATunnel,
    );
    refused(&|frame| frame[14 + 32 + 11] ^= 1, Counter::InnerMalformed);
    refused(
        &|frame| {
            frame.truncate(14 + 32);
            v4_lengths(frame);
        },
        Counter::InnerMalformed,
    );
    // A route back to the core would be a loop.
    let back = |frame: &mut Vec<u8>| {
        frame.truncate(14 + 32);
        frame.extend(packet(false, 1, 0, 0, 60));
        v4_lengths(frame);
    };
    refused(&back, Counter::NotLocal);
    assert_eq!(router.engine.flow(0).count(Counter::WrongSender), 3);
}

#[test]
fn only_the_peers_label_or_none_is_allowed_above_the_vpn_label() {
    for (above, is_right) in
        [(&[][..], true), (&[0, 0x1f, 0x50, 64], true), (&[0, 0, 0, 64], true), (&[0, 0x1f, 0x60, 64], false)]
    {
        let mut router = router(&config(1, CoreEncapsulation::Mpls, 1));
        let mut frame = [&CORE_PORT[..], &CORE_PORT, &ethertype::MPLS.to_be_bytes()].concat();
        frame.extend(above);
        frame.extend((2000_u32 << 12 | 0x1ff).to_be_bytes());
        frame.extend(packet(false, 0, 0, 9, 60));
        let [delivered, _] = router.pass(CORE, Instant(1), &frame);
        assert_eq!(delivered.len(), usize::from(is_right), "{above:?}");
        assert_eq!(router.engine.flow(0).count(Counter::LabelUnexpected), u64::from(!is_right));
    }
}

#[test]
fn invalid_customer_frames_are_counted() {
    let mut router = router(&config(0, CoreEncapsulation::Mpls, 1));
    let good = frame(100, &packet(false, 0, 0, 1, 100));
    let mut refused = |change: &dyn Fn(&mut Vec<u8>), counter: Counter| {
        let mut frame = good.clone();
        change(&mut frame);
        let before = router.count(counter);
        let [back, out] = router.pass(CUSTOMERS, Instant(1), &frame);
        // A packet without a route causes an ICMP error.
        let errors = usize::from(counter == Counter::NoRoute);
        assert_eq!((back.len(), out.len(), router.count(counter) - before), (errors, 0, 1), "{counter:?}");
    };
    refused(&|frame| frame.truncate(13), Counter::FrameMalformed);
    refused(&|frame| frame[..6].fill(0xff), Counter::NotForUs);
    refused(&|frame| frame[15] = 101, Counter::NoCircuit);
    refused(&|frame| frame[16..18].copy_from_slice(&ethertype::ARP.to_be_bytes()), Counter::NotIp);
    // Labels from a customer are ignored.
    refused(&|frame| frame[16..18].copy_from_slice(&ethertype::MPLS.to_be_bytes()), Counter::NotIp);
    refused(&|frame| frame.truncate(18 + 99), Counter::IpMalformed);
    refused(&|frame| frame[18 + 15] ^= 1, Counter::IpChecksum);
    let elsewhere = |frame: &mut Vec<u8>| {
        frame[18 + 16] = 9;
        frame[28..30].fill(0);
        let checksum = Sum::ZERO.bytes(&frame[18..38]).checksum();
        frame[28..30].copy_from_slice(&checksum.to_be_bytes());
    };
    refused(&elsewhere, Counter::NoRoute);
}

/// A customer sends with source addresses of its circuit, of a route on it, of another circuit of the VPN, of the far
/// site, of this router, and of nobody.
#[test]
fn source_addresses_are_checked_by_the_reverse_path() {
    let sources =
        [[10, 0, 0, 1], [10, 8, 1, 1], [10, 9, 0, 1], [10, 0, 1, 1], [10, 0, 0, 254], [203, 0, 113, 1]];
    for (rpf, accepted) in [
        (ReversePathCheck::Off, [true; 6]),
        (ReversePathCheck::Loose, [true, true, true, true, false, false]),
        (ReversePathCheck::Strict, [true, true, false, false, false, false]),
    ] {
        let mut config = config(0, CoreEncapsulation::Udp4, 1);
        let own = &mut config.router.circuits[0];
        own.rpf = rpf;
        own.routes.push((prefix("10.8.0.0/16"), [10, 0, 0, 2].into()));
        let other = pe::CircuitConfig {
            name: "other".into(),
            vlans: vec![7],
            addresses: vec![([10, 9, 0, 254].into(), 16)],
            routes: Vec::new(),
            ..own.clone()
        };
        config.router.circuits.push(other);
        let mut router = router(&config);
        for (source, is_accepted) in sources.into_iter().zip(accepted) {
            // The second packet is too large for the path and for the buffers: the router tells its sender.
            for (size, sent_on, answered) in [(100, 1, 0), (9_000, 0, 1)] {
                let before = router.count(Counter::SourceInvalid);
                let mut sent = packet(false, 0, 0, 1, size);
                sent[12..16].copy_from_slice(&source);
                sent[10..12].fill(0);
                let checksum = Sum::ZERO.bytes(&sent[..20]).checksum();
                sent[10..12].copy_from_slice(&checksum.to_be_bytes());
                let [answers, core] = router.pass(CUSTOMERS, Instant(1), &frame(100, &sent));
                let refused = router.count(Counter::SourceInvalid) - before;
                assert_eq!(refused, u64::from(!is_accepted), "{rpf:?} {source:?} {size}");
                let expected = if is_accepted { (sent_on, answered) } else { (0, 0) };
                // The query after some data packets does not count.
                let data = core.iter().filter(|frame| !is_management(frame)).count();
                assert_eq!((data, answers.len()), expected, "{rpf:?} {source:?} {size}");
            }
        }
    }
}

/// With a strict check, a neighbor's link-local address may reach this router, and nothing behind it.
#[test]
fn link_local_sources_are_valid_towards_the_router_only() {
    let mut config = config(0, CoreEncapsulation::Udp4, 1);
    config.router.circuits[0].rpf = ReversePathCheck::Strict;
    let mut router = router(&config);
    for (destination, is_accepted) in [("fd00:0::fe", true), ("fd00:1::1", false)] {
        let before = router.count(Counter::SourceInvalid);
        let mut sent = packet(true, 0, 0, 1, 100);
        let [source, destination] = ["fe80::1", destination].map(|text| text.parse::<Ipv6Addr>().unwrap());
        sent[8..24].copy_from_slice(&source.octets());
        sent[24..40].copy_from_slice(&destination.octets());
        let [_, core] = router.pass(CUSTOMERS, Instant(1), &frame(100, &sent));
        assert_eq!((core.len(), router.count(Counter::SourceInvalid) - before), (0, u64::from(!is_accepted)));
    }
}
