//! Labels along a path: in which order they are told, and that none leads back.

use super::*;

const FEC: &str = "10.0.0.9/32";

/// Routers in a row whose sessions are up, the prefix beyond the last.
fn chain(routers: usize, configure: impl Fn(&mut Config)) -> Network {
    let mut network = Network::new(routers, configure);
    for number in 1..routers {
        network.link(number, number + 1);
    }
    network.run(1);
    assert_eq!(network.ups().len(), 2 * (routers - 1));
    network
}

fn outgoing(network: &mut Network, number: usize) -> Option<u32> {
    network.speaker(number).outgoing(prefix(FEC)).first().map(|next_hop| next_hop.label.number())
}

#[test]
fn ordered_labels_are_told_from_the_end() {
    let mut network = chain(3, |config| config.control = Control::Ordered);
    network.bind(1, FEC, transit(100, 2));
    network.bind(2, FEC, transit(200, 3));
    network.run(1);
    // Nobody knows of an end.
    assert_eq!(network.speaker(1).mappings_for(prefix(FEC)).count(), 0);
    network.bind(3, FEC, EGRESS);
    network.run(1);
    assert_eq!([outgoing(&mut network, 1), outgoing(&mut network, 2)], [Some(200), Some(3)]);
    // Router 1's label is told upstream of it too, by way of router 2 alone.
    assert_eq!(network.speaker(2).mappings_for(prefix(FEC)).count(), 2);
    // With the end, all labels go.
    network.take_events(1);
    network.speaker(3).unbind(prefix(FEC));
    network.run(1);
    assert_eq!([outgoing(&mut network, 1), outgoing(&mut network, 2)], [None, None]);
    assert_eq!(network.speaker(1).mappings_for(prefix(FEC)).count(), 0);
    // And they come back with it, released ones too.
    network.bind(3, FEC, EGRESS);
    network.run(1);
    assert_eq!(outgoing(&mut network, 1), Some(200));
    // A session that ends takes what was told in it along.
    let now = network.now;
    network.speaker(3).shut_down(now);
    network.run(1);
    assert_eq!(outgoing(&mut network, 1), None);
}

#[test]
fn independent_labels_are_told_at_once() {
    let mut network = chain(3, |_| ());
    network.bind(1, FEC, transit(100, 2));
    network.bind(2, FEC, transit(200, 3));
    network.run(1);
    assert_eq!([outgoing(&mut network, 1), outgoing(&mut network, 2)], [Some(200), None]);
}

#[test]
fn a_kept_label_is_there_when_the_next_hop_changes() {
    let mut network = Network::new(3, |_| ());
    network.link(1, 2);
    network.link(1, 3);
    network.run(1);
    network.bind(1, FEC, transit(100, 2));
    network.bind(2, FEC, EGRESS);
    network.bind(3, FEC, transit(300, 9));
    network.run(1);
    assert_eq!(outgoing(&mut network, 1), Some(3));
    network.take_events(1);
    network.told(1);
    network.bind(1, FEC, transit(100, 3));
    let to = vec![via(3, label(300))];
    assert_eq!(network.take_events(1), [Event::Outgoing { fec: prefix(FEC), to }]);
    // Nobody need be told.
    network.run(1);
    assert_eq!(network.told(1), [""; 0]);
}

#[test]
fn hops_and_paths_are_told_where_loops_are_looked_for() {
    let mut network = chain(4, |config| config.loop_detection = Some(32));
    for number in 1..=3 {
        network.bind(number, FEC, transit(100 * number as u32, number + 1));
    }
    network.run(1);
    // How far it is to the end is unknown until there is one.
    assert!(network.told(2).contains(&"map 10.0.0.9/32 200 hops 0 10.0.0.3 10.0.0.2".into()));
    network.bind(4, FEC, EGRESS);
    network.run(1);
    let sent = network.sent.clone();
    let mut told = |number| {
        network.sent = sent.clone();
        network.told(number)
    };
    assert_eq!(told(4), ["map 10.0.0.9/32 3 hops 1"]);
    assert_eq!(told(3)[..1], ["map 10.0.0.9/32 300 hops 2 10.0.0.3"]);
    assert_eq!(told(2)[..1], ["map 10.0.0.9/32 200 hops 3 10.0.0.3 10.0.0.2"]);
    assert_eq!(outgoing(&mut network, 1), Some(200));
}

#[test]
fn a_ring_of_next_hops_is_broken() {
    for (control, most) in [(Control::Independent, 32), (Control::Ordered, 32), (Control::Independent, 2)] {
        let mut network = Network::new(3, |config| {
            config.control = control;
            config.loop_detection = Some(most);
        });
        for (one, other) in [(1, 2), (2, 3), (3, 1)] {
            network.link(one, other);
        }
        network.run(1);
        for (number, next) in [(1, 2), (2, 3), (3, 1)] {
            network.bind(number, FEC, transit(100 * number as u32, next));
        }
        network.run(60);
        let leads_on = (1..=3).filter(|number| outgoing(&mut network, *number).is_some()).count();
        assert!(leads_on < 3, "{control:?}");
        // It comes to rest.
        network.sent.clear();
        network.run(10);
        for (_, bytes) in &network.sent {
            assert!(messages(bytes).iter().all(|told| told == "keepalive" || told.starts_with("Hello")));
        }
        // And once the ring is none, all is well.
        network.bind(3, FEC, EGRESS);
        network.run(10);
        assert_eq!([1, 2].map(|number| outgoing(&mut network, number)), [Some(200), Some(3)]);
    }
}

#[test]
fn what_has_come_by_or_too_far_is_refused() {
    use netstage_wire::ldp::write::OutgoingMapping;
    let mut alone = Alone::up(|config| config.loop_detection = Some(3));
    let fec = prefix(FEC);
    let mapping = OutgoingMapping::new(fec, label(50));
    let (far, own) = ([router(6); 4], [router(6), router(2)]);
    alone.say(&[Outgoing::LabelMapping(OutgoingMapping { hops: Some(3), path: &far[..3], ..mapping })]);
    assert_eq!((alone.answers().len(), alone.speaker.mappings_for(fec).count()), (0, 1));
    for (hops, path) in [(4, &far[..1]), (2, &far[..]), (2, &own[..])] {
        alone.say(&[Outgoing::LabelMapping(OutgoingMapping { hops: Some(hops), path, ..mapping })]);
        assert_eq!(alone.answers(), ["release 10.0.0.9/32 50", "notify 0xb 1 None"]);
        assert_eq!(alone.speaker.mappings_for(fec).count(), 0);
    }
    // Where nobody looks for loops these say nothing.
    let mut alone = Alone::up(|_| ());
    alone.say(&[Outgoing::LabelMapping(OutgoingMapping { hops: Some(200), path: &own, ..mapping })]);
    assert_eq!((alone.answers().len(), alone.speaker.mappings_for(fec).count()), (0, 1));
}

#[test]
fn packets_go_to_all_next_hops_that_have_told_of_a_label() {
    let mut network = Network::new(4, |_| ());
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
    let both = [via(4, Label::IMPLICIT_NULL), via(2, label(200))];
    assert_eq!(network.speaker(1).outgoing(prefix(FEC)), both, "in the order of the binding");
    network.bind(3, FEC, transit(300, 9));
    network.run(1);
    assert_eq!(network.speaker(1).outgoing(prefix(FEC)).len(), 3);
    // One is no more, and the label that this router has given out stays.
    network.told(1);
    network.speaker(4).unbind(prefix(FEC));
    network.run(1);
    assert_eq!(network.speaker(1).outgoing(prefix(FEC)), [via(2, label(200)), via(3, label(300))]);
    assert!(network.told(1).iter().all(|told| !told.contains("withdraw")));
    let now = network.now;
    network.speaker(2).shut_down(now);
    network.run(1);
    network.bind(1, FEC, Binding::Transit { label: label(100), next_hops: vec![address(3)] });
    assert_eq!(network.speaker(1).outgoing(prefix(FEC)), [via(3, label(300))]);
    network.speaker(1).unbind(prefix(FEC));
    let events = network.take_events(1);
    assert_eq!(events.last(), Some(&Event::Outgoing { fec: prefix(FEC), to: vec![] }));
}

#[test]
fn several_ways_count_as_the_longest_and_as_one_by_all_their_routers() {
    let mut network = Network::new(5, |config| config.loop_detection = Some(8));
    for (one, other) in [(1, 2), (2, 3), (2, 4), (4, 5)] {
        network.link(one, other);
    }
    network.run(1);
    network.bind(3, FEC, EGRESS);
    network.bind(5, FEC, EGRESS);
    network.bind(4, FEC, transit(400, 5));
    network.run(1);
    network.told(2);
    network.bind(2, FEC, Binding::Transit { label: label(200), next_hops: vec![address(3), address(4)] });
    network.run(1);
    let told = network.told(2);
    assert!(told.contains(&format!("map {FEC} 200 hops 3 {} {}", router(4), router(2))), "{told:?}");
}
