//! Label distribution along a path: order of the advertisements, next hops and loop detection.

use super::*;

const FEC: &str = "10.0.0.9/32";

/// Creates routers in a row with established sessions.
fn chain(routers: usize, configure: impl Fn(&mut LdpConfig)) -> TestNetwork {
    let mut network = TestNetwork::new(routers, configure);
    for number in 1..routers {
        network.link(number, number + 1);
    }
    network.run(1);
    assert_eq!(network.sessions_up().len(), 2 * (routers - 1));
    network
}

fn outgoing(network: &mut TestNetwork, number: usize) -> Option<u32> {
    network.speaker(number).outgoing(prefix(FEC)).first().map(|next_hop| next_hop.label.number())
}

#[test]
fn ordered_labels_are_advertised_from_the_egress() {
    let mut network = chain(3, |config| config.control = LabelControl::Ordered);
    network.bind(1, FEC, transit(100, 2));
    network.bind(2, FEC, transit(200, 3));
    network.run(1);
    // Without an egress, no label is advertised.
    assert_eq!(network.speaker(1).mappings_for(prefix(FEC)).count(), 0);
    network.bind(3, FEC, EGRESS);
    network.run(1);
    assert_eq!([outgoing(&mut network, 1), outgoing(&mut network, 2)], [Some(200), Some(3)]);
    // Router 2 has the mappings of routers 1 and 3.
    assert_eq!(network.speaker(2).mappings_for(prefix(FEC)).count(), 2);
    // When the egress binding is removed, all labels are withdrawn.
    network.take_events(1);
    network.speaker(3).unbind(prefix(FEC));
    network.run(1);
    assert_eq!([outgoing(&mut network, 1), outgoing(&mut network, 2)], [None, None]);
    assert_eq!(network.speaker(1).mappings_for(prefix(FEC)).count(), 0);
    // When it is restored, all labels are advertised again, including released ones.
    network.bind(3, FEC, EGRESS);
    network.run(1);
    assert_eq!(outgoing(&mut network, 1), Some(200));
    // The end of a session removes the mappings received in it.
    let now = network.now;
    network.speaker(3).shut_down(now);
    network.run(1);
    assert_eq!(outgoing(&mut network, 1), None);
}

#[test]
fn independent_labels_are_advertised_at_once() {
    let mut network = chain(3, |_| ());
    network.bind(1, FEC, transit(100, 2));
    network.bind(2, FEC, transit(200, 3));
    network.run(1);
    assert_eq!([outgoing(&mut network, 1), outgoing(&mut network, 2)], [Some(200), None]);
}

#[test]
fn a_retained_label_is_used_when_the_next_hop_changes() {
    let mut network = TestNetwork::new(3, |_| ());
    network.link(1, 2);
    network.link(1, 3);
    network.run(1);
    network.bind(1, FEC, transit(100, 2));
    network.bind(2, FEC, EGRESS);
    network.bind(3, FEC, transit(300, 9));
    network.run(1);
    assert_eq!(outgoing(&mut network, 1), Some(3));
    network.take_events(1);
    network.sent_messages(1);
    network.bind(1, FEC, transit(100, 3));
    let to = vec![via(3, label(300))];
    assert_eq!(network.take_events(1), [LdpEvent::Outgoing { fec: prefix(FEC), to }]);
    // No message is needed.
    network.run(1);
    assert_eq!(network.sent_messages(1), [""; 0]);
}

#[test]
fn loop_detection_advertises_hop_counts_and_paths() {
    let mut network = chain(4, |config| config.loop_detection = Some(32));
    for number in 1..=3 {
        network.bind(number, FEC, transit(100 * number as u32, number + 1));
    }
    network.run(1);
    // The hop count is unknown until there is an egress.
    assert!(network.sent_messages(2).contains(&"map 10.0.0.9/32 200 hops 0 10.0.0.3 10.0.0.2".into()));
    network.bind(4, FEC, EGRESS);
    network.run(1);
    let sent = network.sent.clone();
    let mut messages_of = |number| {
        network.sent = sent.clone();
        network.sent_messages(number)
    };
    assert_eq!(messages_of(4), ["map 10.0.0.9/32 3 hops 1"]);
    assert_eq!(messages_of(3)[..1], ["map 10.0.0.9/32 300 hops 2 10.0.0.3"]);
    assert_eq!(messages_of(2)[..1], ["map 10.0.0.9/32 200 hops 3 10.0.0.3 10.0.0.2"]);
    assert_eq!(outgoing(&mut network, 1), Some(200));
}

#[test]
fn a_loop_of_next_hops_is_broken() {
    for (control, max_hops) in
        [(LabelControl::Independent, 32), (LabelControl::Ordered, 32), (LabelControl::Independent, 2)]
    {
        let mut network = TestNetwork::new(3, |config| {
            config.control = control;
            config.loop_detection = Some(max_hops);
        });
        for (one, other) in [(1, 2), (2, 3), (3, 1)] {
            network.link(one, other);
        }
        network.run(1);
        for (number, next) in [(1, 2), (2, 3), (3, 1)] {
            network.bind(number, FEC, transit(100 * number as u32, next));
        }
        network.run(60);
        let with_labels = (1..=3).filter(|number| outgoing(&mut network, *number).is_some()).count();
        assert!(with_labels < 3, "{control:?}");
        // The network converges.
        network.sent.clear();
        network.run(10);
        for (_, bytes) in &network.sent {
            let mut messages = messages(bytes).into_iter();
            assert!(messages.all(|message| message == "keepalive" || message.starts_with("Hello")));
        }
        // Without the loop, the prefix is reachable.
        network.bind(3, FEC, EGRESS);
        network.run(10);
        assert_eq!([1, 2].map(|number| outgoing(&mut network, number)), [Some(200), Some(3)]);
    }
}

#[test]
fn mappings_with_a_loop_or_too_many_hops_are_rejected() {
    use netstage_wire::ldp::write::OutgoingMapping;
    let mut test = SpeakerTest::up(|config| config.loop_detection = Some(3));
    let fec = prefix(FEC);
    let mapping = OutgoingMapping::new(fec, label(50));
    let (long, own) = ([router(6); 4], [router(6), router(2)]);
    test.receive(&[Outgoing::LabelMapping(OutgoingMapping { hops: Some(3), path: &long[..3], ..mapping })]);
    assert_eq!((test.replies().len(), test.speaker.mappings_for(fec).count()), (0, 1));
    for (hops, path) in [(4, &long[..1]), (2, &long[..]), (2, &own[..])] {
        test.receive(&[Outgoing::LabelMapping(OutgoingMapping { hops: Some(hops), path, ..mapping })]);
        assert_eq!(test.replies(), ["release 10.0.0.9/32 50", "notify 0xb 1 None"]);
        assert_eq!(test.speaker.mappings_for(fec).count(), 0);
    }
    // Without loop detection they are ignored.
    let mut test = SpeakerTest::up(|_| ());
    test.receive(&[Outgoing::LabelMapping(OutgoingMapping { hops: Some(200), path: &own, ..mapping })]);
    assert_eq!((test.replies().len(), test.speaker.mappings_for(fec).count()), (0, 1));
}

#[test]
fn all_next_hops_with_a_label_are_outgoing() {
    let mut network = TestNetwork::new(4, |_| ());
    for other in [2, 3, 4] {
        network.link(1, other);
    }
    network.run(1);
    network.take_events(1);
    let next_hops = vec![address(4), address(2), address(3)];
    network.bind(1, FEC, Binding::Transit { label: label(100), next_hops: next_hops.clone() });
    network.bind(2, FEC, transit(200, 9));
    network.bind(4, FEC, EGRESS);
    network.run(1);
    let both = [via(4, LabelValue::IMPLICIT_NULL), via(2, label(200))];
    assert_eq!(network.speaker(1).outgoing(prefix(FEC)), both, "in the order of the binding");
    network.bind(3, FEC, transit(300, 9));
    network.run(1);
    assert_eq!(network.speaker(1).outgoing(prefix(FEC)).len(), 3);
    // One next hop is lost; the advertised label of this router remains.
    network.sent_messages(1);
    network.speaker(4).unbind(prefix(FEC));
    network.run(1);
    assert_eq!(network.speaker(1).outgoing(prefix(FEC)), [via(2, label(200)), via(3, label(300))]);
    assert!(network.sent_messages(1).iter().all(|message| !message.contains("withdraw")));
    let now = network.now;
    network.speaker(2).shut_down(now);
    network.run(1);
    network.bind(1, FEC, Binding::Transit { label: label(100), next_hops: vec![address(3)] });
    assert_eq!(network.speaker(1).outgoing(prefix(FEC)), [via(3, label(300))]);
    network.speaker(1).unbind(prefix(FEC));
    let events = network.take_events(1);
    assert_eq!(events.last(), Some(&LdpEvent::Outgoing { fec: prefix(FEC), to: vec![] }));
}

#[test]
fn several_next_hops_are_advertised_with_the_maximum_hop_count_and_all_routers() {
    let mut network = TestNetwork::new(5, |config| config.loop_detection = Some(8));
    for (one, other) in [(1, 2), (2, 3), (2, 4), (4, 5)] {
        network.link(one, other);
    }
    network.run(1);
    network.bind(3, FEC, EGRESS);
    network.bind(5, FEC, EGRESS);
    network.bind(4, FEC, transit(400, 5));
    network.run(1);
    network.sent_messages(2);
    network.bind(2, FEC, Binding::Transit { label: label(200), next_hops: vec![address(3), address(4)] });
    network.run(1);
    let sent = network.sent_messages(2);
    assert!(sent.contains(&format!("map {FEC} 200 hops 3 {} {}", router(4), router(2))), "{sent:?}");
}
