//! Exchange of labels and addresses between two routers.

use super::*;
use netstage_wire::ldp::write::OutgoingMapping;
use proptest::prelude::*;

const FEC: &str = "10.0.0.1/32";

fn map(fec: &str, number: u32) -> Outgoing<'static> {
    Outgoing::LabelMapping(OutgoingMapping::new(prefix(fec), label(number)))
}

fn released(peer: usize, fec: &str, number: u32) -> LdpEvent {
    LdpEvent::Released { peer: identifier(peer), fec: prefix(fec), label: label(number) }
}

#[test]
fn mappings_are_exchanged_and_the_egress_advertises_implicit_null() {
    let mut network = TestNetwork::pair(|_| ());
    network.bind(1, FEC, EGRESS);
    network.bind(2, FEC, transit(20, 1));
    network.bind(2, "10.0.0.2/32", EGRESS);
    network.bind(1, "10.0.0.2/32", transit(30, 2));
    network.run(1);
    for (number, other, fec) in [(1, 2, "10.0.0.2/32"), (2, 1, FEC)] {
        let to = vec![via(other, LabelValue::IMPLICIT_NULL)];
        assert_eq!(network.speaker(number).outgoing(prefix(fec)), to);
        let events = network.take_events(number);
        assert!(events.contains(&LdpEvent::Outgoing { fec: prefix(fec), to }));
    }
    // All mappings are kept, used or not.
    let mappings: Vec<_> = network.speaker(1).mappings_of(identifier(2)).collect();
    assert_eq!(mappings, [(prefix(FEC), label(20)), (prefix("10.0.0.2/32"), LabelValue::IMPLICIT_NULL)]);
    assert_eq!(
        network.speaker(1).mappings_for(prefix(FEC)).collect::<Vec<_>>(),
        [(identifier(2), label(20))]
    );
}

#[test]
fn the_egress_may_advertise_explicit_null_or_a_label() {
    let mut test = SpeakerTest::up(|config| config.null = NullLabel::Explicit);
    test.speaker.bind(prefix(FEC), EGRESS).unwrap();
    test.speaker.bind(prefix("2001:db8::/32"), EGRESS).unwrap();
    test.speaker.bind(prefix("10.1.0.0/16"), Binding::Egress { label: Some(label(99)) }).unwrap();
    let expected = ["map 10.0.0.1/32 0", "map 10.1.0.0/16 99", "map 2001:db8::/32 2"];
    assert_eq!(test.replies(), expected);
}

#[test]
fn invalid_bindings_are_rejected() {
    let mut test = SpeakerTest::new(|_| ());
    let too_long = Fec::Prefix { address: address(1), length: 33 };
    assert_eq!(test.speaker.bind(too_long, EGRESS), Err(BindingError::NotAPrefix));
    assert_eq!(test.speaker.bind(Fec::Wildcard, EGRESS), Err(BindingError::NotAPrefix));
    assert_eq!(test.speaker.bind(prefix(FEC), transit(15, 1)), Err(BindingError::ReservedLabel));
    let with_host_bits = Fec::Prefix { address: "10.0.0.99".parse().unwrap(), length: 8 };
    test.speaker.bind(with_host_bits, transit(16, 1)).unwrap();
    assert_eq!(test.speaker.binding(prefix("10.0.0.0/8")), Some(&transit(16, 1)));
}

#[test]
fn a_label_is_free_once_all_peers_have_released_it() {
    let mut network = TestNetwork::new(3, |_| ());
    network.link(1, 2);
    network.link(1, 3);
    network.run(1);
    network.bind(1, FEC, transit(100, 9));
    network.run(1);
    network.take_events(1);
    network.take_events(2);
    network.blackholed = [3].into();
    network.speaker(1).unbind(prefix(FEC));
    network.run(1);
    // Router 3 has not received the withdrawal, and may still send packets with the label.
    assert_eq!(network.take_events(1), [released(2, FEC, 100)]);
    let withdrawn = LdpEvent::Withdrawn { peer: identifier(1), fec: prefix(FEC), label: label(100) };
    assert_eq!(network.take_events(2), [withdrawn]);
    network.cut_connections();
    assert!(network.take_events(1).contains(&LdpEvent::Free { label: label(100) }));
    // A label that was not advertised is free at once.
    network.blackholed.clear();
    network.bind(1, FEC, transit(101, 9));
    network.speaker(1).unbind(prefix(FEC));
    assert_eq!(network.take_events(1), [LdpEvent::Free { label: label(101) }]);
}

#[test]
fn a_new_label_is_advertised_at_once_and_a_withdrawn_one_after_its_release() {
    let mut test = SpeakerTest::up(|_| ());
    let fec = prefix(FEC);
    test.speaker.bind(fec, transit(100, 9)).unwrap();
    assert_eq!(test.replies(), ["map 10.0.0.1/32 100"]);
    test.speaker.bind(fec, transit(101, 9)).unwrap();
    assert_eq!(test.replies(), ["withdraw 10.0.0.1/32 100", "map 10.0.0.1/32 101"]);
    // Back to the previous label, whose release is pending.
    test.speaker.bind(fec, transit(100, 9)).unwrap();
    assert_eq!(test.replies(), ["withdraw 10.0.0.1/32 101"]);
    test.receive(&[Outgoing::LabelRelease(fec, Some(label(100)))]);
    assert_eq!(test.replies(), ["map 10.0.0.1/32 100"]);
    test.receive(&[Outgoing::LabelRelease(fec, Some(label(101)))]);
    let events = [released(PEER, FEC, 100), released(PEER, FEC, 101), LdpEvent::Free { label: label(101) }];
    assert_eq!(test.events(), events);
    // A change that is reverted before the next poll is not advertised.
    test.speaker.bind(fec, transit(102, 9)).unwrap();
    test.speaker.bind(fec, transit(100, 8)).unwrap();
    assert_eq!(test.replies(), [""; 0]);
    assert_eq!(test.events(), [LdpEvent::Free { label: label(102) }]);
}

#[test]
fn two_prefixes_may_share_a_label() {
    let mut test = SpeakerTest::up(|_| ());
    test.speaker.bind(prefix(FEC), transit(100, 9)).unwrap();
    test.speaker.bind(prefix("10.2.0.0/16"), transit(100, 9)).unwrap();
    assert_eq!(test.replies().len(), 2);
    test.speaker.unbind(prefix(FEC));
    test.replies();
    test.receive(&[Outgoing::LabelRelease(prefix(FEC), None)]);
    assert_eq!(test.events(), [released(PEER, FEC, 100)]);
    test.speaker.unbind(prefix("10.2.0.0/16"));
    assert_eq!(test.replies(), ["withdraw 10.2.0.0/16 100"]);
    test.receive(&[Outgoing::LabelRelease(Fec::Wildcard, None)]);
    let events = [released(PEER, "10.2.0.0/16", 100), LdpEvent::Free { label: label(100) }];
    assert_eq!(test.events(), events);
}

#[test]
fn a_peer_may_release_an_unused_label() {
    let mut test = SpeakerTest::up(|_| ());
    let fec = prefix(FEC);
    test.speaker.bind(fec, transit(100, 9)).unwrap();
    test.replies();
    test.receive(&[Outgoing::LabelRelease(fec, Some(label(100))), Outgoing::LabelRelease(fec, None)]);
    // The label is advertised again only on request.
    assert_eq!(test.replies(), [""; 0]);
    test.receive(&[Outgoing::KeepAlive, Outgoing::LabelRequest(fec)]);
    assert_eq!(test.replies(), ["map 10.0.0.1/32 100 for 2"]);
    // The release may refer to the previous mapping, so the label is withdrawn before it is free.
    test.receive(&[Outgoing::LabelRelease(fec, Some(label(100)))]);
    test.speaker.unbind(fec);
    assert_eq!(test.replies(), ["withdraw 10.0.0.1/32 100"]);
    assert_eq!(test.events(), []);
    test.receive(&[Outgoing::LabelRelease(fec, Some(label(100)))]);
    assert_eq!(test.events(), [released(PEER, FEC, 100), LdpEvent::Free { label: label(100) }]);
    test.speaker.bind(fec, transit(100, 9)).unwrap();
    assert_eq!(test.replies(), ["map 10.0.0.1/32 100"]);
}

#[test]
fn withdrawals_are_answered_by_releases() {
    let mut test = SpeakerTest::up(|_| ());
    let other = "10.0.0.9/32";
    test.receive(&[map(FEC, 50), map(other, 50), map("10.3.0.0/16", 51)]);
    assert_eq!(test.events().len(), 3);
    // A label that is not current for the prefix, and one that is.
    test.receive(&[Outgoing::LabelWithdraw(prefix(FEC), Some(label(49)))]);
    assert_eq!((test.replies(), test.events()), (Vec::from(["release 10.0.0.1/32 49".into()]), Vec::new()));
    test.receive(&[Outgoing::LabelWithdraw(Fec::Wildcard, Some(label(50)))]);
    assert_eq!(test.replies(), ["release * 50"]);
    let withdrawn =
        |fec, number| LdpEvent::Withdrawn { peer: identifier(PEER), fec: prefix(fec), label: label(number) };
    assert_eq!(test.events(), [withdrawn(FEC, 50), withdrawn(other, 50)]);
    test.receive(&[Outgoing::LabelWithdraw(Fec::Wildcard, None)]);
    assert_eq!(test.replies(), ["release * -1"]);
    assert_eq!(test.events(), [withdrawn("10.3.0.0/16", 51)]);
}

#[test]
fn a_replaced_label_is_released() {
    let mut test = SpeakerTest::up(|_| ());
    test.receive(&[map(FEC, 50), map(FEC, 51), map(FEC, 51)]);
    assert_eq!(test.replies(), ["release 10.0.0.1/32 50"]);
    assert_eq!(test.events().len(), 2);
    assert_eq!(test.speaker.mappings_for(prefix(FEC)).collect::<Vec<_>>(), [(identifier(PEER), label(51))]);
}

#[test]
fn requests_are_answered_by_a_label_or_an_error() {
    let mut test = SpeakerTest::up(|config| config.control = LabelControl::Ordered);
    let (fec, own) = (prefix(FEC), prefix("10.0.0.2/32"));
    test.speaker.bind(own, EGRESS).unwrap();
    test.speaker.bind(fec, transit(100, 9)).unwrap();
    test.speaker.bind(prefix("10.4.0.0/16"), transit(101, PEER)).unwrap();
    test.receive(&[Outgoing::Address(&[address(PEER)])]);
    assert_eq!(test.replies(), ["map 10.0.0.2/32 3"]);
    let unknown = Outgoing::LabelRequest(prefix("10.9.0.0/16"));
    test.receive(&[
        Outgoing::LabelRequest(own),
        unknown,
        Outgoing::LabelRequest(prefix("10.4.0.0/16")),
        Outgoing::LabelRequest(fec),
    ]);
    // The third request is a loop through the peer itself; the fourth is pending until there is a label.
    let expected = ["notify 0xd 2 Some(2)", "notify 0xb 3 Some(3)", "map 10.0.0.2/32 3 for 1"];
    assert_eq!(test.replies(), expected);
    test.receive(&[
        Outgoing::KeepAlive,
        Outgoing::LabelAbortRequest(fec, 3),
        Outgoing::LabelAbortRequest(fec, 4),
    ]);
    assert_eq!(test.replies(), ["notify 0x15 4 Some(4)"]);
    test.receive(&[Outgoing::LabelRequest(fec)]);
    test.speaker.unbind(fec);
    assert_eq!(test.replies(), ["notify 0xd 1 Some(1)"]);
    test.receive(&[Outgoing::LabelRequest(Fec::Wildcard)]);
    assert_eq!(test.replies(), ["notify 0x80000008 1 None", "close"]);
}

#[test]
fn mappings_over_the_limit_are_released_and_reported_once() {
    let mut test = SpeakerTest::up(|config| config.max_bindings = 2);
    test.receive(&[
        map("10.1.0.0/16", 50),
        map("10.2.0.0/16", 51),
        map("10.3.0.0/16", 52),
        map("10.4.0.0/16", 53),
    ]);
    assert_eq!(test.replies(), ["release 10.3.0.0/16 52", "release 10.4.0.0/16 53"]);
    let full = LdpEvent::Full { peer: identifier(PEER) };
    assert_eq!(test.events().iter().filter(|event| **event == full).count(), 1);
    // A known mapping may change.
    test.receive(&[map("10.2.0.0/16", 60)]);
    assert_eq!(test.speaker.mappings_of(identifier(PEER)).count(), 2);
    assert_eq!(test.replies(), ["release 10.2.0.0/16 51"]);
}

#[test]
fn next_hops_follow_the_addresses_of_peers() {
    let mut network = TestNetwork::pair(|_| ());
    network.bind(1, FEC, EGRESS);
    network.bind(2, FEC, transit(20, 77));
    network.run(1);
    assert_eq!(network.speaker(2).outgoing(prefix(FEC)), []);
    network.sent_messages(1);
    network.speaker(1).set_addresses([address(77), address(1), core::net::Ipv6Addr::LOCALHOST.into()]);
    network.run(1);
    assert_eq!(network.sent_messages(1), ["no addresses 1", "addresses 1", "addresses 1"]);
    assert_eq!(
        network.speaker(2).outgoing(prefix(FEC)),
        [NextHop { address: address(77), ..via(1, LabelValue::IMPLICIT_NULL) }]
    );
    network.speaker(1).set_addresses([address(1)]);
    network.run(1);
    assert_eq!(network.speaker(2).outgoing(prefix(FEC)), []);
    let events = network.take_events(2);
    assert!(events.contains(&LdpEvent::Outgoing { fec: prefix(FEC), to: vec![] }));
}

#[test]
fn many_mappings_share_few_pdus() {
    let mut network = TestNetwork::pair(|_| ());
    for number in 0..10_000_u32 {
        let address = Ipv4Addr::from(0x0b00_0000 | number << 8).into();
        network.speaker(1).bind(Fec::Prefix { address, length: 24 }, transit(16 + number, 9)).unwrap();
    }
    network.sent.clear();
    network.run(1);
    assert_eq!(network.speaker(2).mappings_of(identifier(1)).count(), 10_000);
    let pdus = network.sent.iter().filter(|(from, _)| *from == 1);
    let lengths: Vec<usize> = pdus.map(|(_, bytes)| bytes.len()).collect();
    // A mapping of a prefix of three bytes has 27 bytes, so 151 mappings fit into a PDU.
    assert_eq!(lengths.len(), 10_000_usize.div_ceil((MAX_PDU_LENGTH - 10) / 27));
    assert!(lengths.iter().all(|length| *length <= MAX_PDU_LENGTH));
    // Withdrawals and releases need as few.
    network.sent.clear();
    for number in 0..10_000_u32 {
        let address = Ipv4Addr::from(0x0b00_0000 | number << 8).into();
        network.speaker(1).unbind(Fec::Prefix { address, length: 24 });
    }
    network.run(1);
    assert!(network.sent.len() <= 140, "{}", network.sent.len());
    let free = network.take_events(1).iter().filter(|event| matches!(event, LdpEvent::Free { .. })).count();
    assert_eq!(free, 10_000);
}

#[test]
fn advertisements_to_a_blocked_connection_are_merged() {
    let mut test = SpeakerTest::up(|_| ());
    test.speaker.set_writable(CONNECTION, false);
    for round in 0..1000 {
        test.speaker.bind(prefix(FEC), transit(100 + round, 9)).unwrap();
    }
    for _ in 0..3 {
        test.hello(PEER, 15);
        test.advance(9);
    }
    assert_eq!(test.replies(), [""; 0]);
    test.speaker.set_writable(CONNECTION, true);
    assert_eq!(test.replies(), ["keepalive", "map 10.0.0.1/32 1099"]);
    // Replies cannot be merged: a peer that does not read them is disconnected.
    test.speaker.set_writable(CONNECTION, false);
    let many = [Outgoing::LabelWithdraw(Fec::Wildcard, None); 250];
    for _ in 0..300 {
        test.receive(&many);
    }
    assert_eq!(test.replies().last().unwrap(), "close");
    let reason = LdpSessionEnd::Sent(LdpStatus::INTERNAL_ERROR);
    assert!(test.events().contains(&LdpEvent::Down { peer: identifier(PEER), reason }));
}

proptest! {
    /// After any changes of bindings and losses of connections, peers have each other's bindings, each label is
    /// free or bound, and with loop detection no loop remains.
    #[test]
    fn routers_converge_after_any_changes(
        steps in prop::collection::vec((0..8_u8, 1..4_usize, 0..5_u8, 0..6_u32, any::<bool>()), 0..60),
        is_ordered in any::<bool>(),
        detects_loops in any::<bool>(),
    ) {
        let mut network = TestNetwork::new(3, |config| {
            config.control = if is_ordered { LabelControl::Ordered } else { LabelControl::Independent };
            config.loop_detection = detects_loops.then_some(8);
        });
        for (one, other) in [(1, 2), (2, 3), (3, 1)] {
            network.link(one, other);
        }
        network.run(1);
        for (step, number, net, choice, is_settled) in steps {
            let fec = Fec::prefix(Ipv4Addr::new(10, net, 0, 0).into(), 16).unwrap();
            let own_label = label(100 + 10 * u32::from(net) + choice);
            let next_hop = address(1 + number % 3);
            match step {
                0 => network.speaker(number).bind(fec, EGRESS).unwrap(),
                1..=3 => {
                    network.speaker(number).bind(fec, Binding::Transit { label: own_label, next_hops: vec![next_hop] }).unwrap();
                }
                4 | 5 => network.speaker(number).unbind(fec),
                6 if choice == 0 => network.cut_connections(),
                _ => network.run(u64::from(choice)),
            }
            if is_settled {
                network.settle();
            }
        }
        network.run(60);
        for (number, other) in [(1, 2), (2, 3), (3, 1), (2, 1), (3, 2), (1, 3)] {
            let mappings: Vec<_> = network.speaker(other).mappings_of(identifier(number)).collect();
            let mut bound = 0;
            for (fec, label) in &mappings {
                let binding = network.speaker(number).binding(*fec).expect("the prefix is bound");
                prop_assert_eq!(binding.label().unwrap_or(LabelValue::IMPLICIT_NULL), *label);
                bound += 1;
            }
            if !is_ordered && !detects_loops {
                prop_assert_eq!(bound, network.speaker(number).table.bound_prefixes().count());
            }
        }
        if detects_loops {
            // Each next hop is the next router of the ring.
            for net in 0..5 {
                let fec = Fec::prefix(Ipv4Addr::new(10, net, 0, 0).into(), 16).unwrap();
                let with_labels = (1..4).filter(|number| !network.speaker(*number).outgoing(fec).is_empty());
                prop_assert!(with_labels.count() < 3);
            }
        }
        for number in 1..4 {
            let fecs: Vec<Fec> = network.speaker(number).table.bound_prefixes().collect();
            for fec in fecs {
                let downstream = network.speaker(number).table.downstream(fec);
                let to: Vec<NextHop> = downstream.map(|(next_hop, _)| next_hop).collect();
                prop_assert_eq!(network.speaker(number).outgoing(fec), to);
                network.speaker(number).unbind(fec);
            }
        }
        network.run(1);
        for number in 1..4 {
            prop_assert!(network.speaker(number).table.holders().next().is_none());
        }
    }
}
