//! How sessions come up, stay up and end.

use super::*;
use crate::ldp::receive::about;
use netstage_wire::ldp::message::Initialization;

#[test]
fn two_routers_find_each_other_and_the_higher_one_connects() {
    let mut network = Network::new(2, |_| ());
    network.link(1, 2);
    network.run(1);
    let up = [1, 2].map(|number| {
        let peer = Event::Up { peer: identifier(3 - number) };
        let at = network.events.iter().find(|(_, whose, event)| (*whose, event) == (number, &peer));
        at.expect("it is up").0
    });
    // A hello, an answer, a connection, two initializations and two keepalives are all it takes.
    assert!(up.iter().all(|up| *up <= Instant::ZERO + DELAY * 6), "{up:?}");
    // Both said hello at once, and yet there is one connection, and it is the higher one's.
    assert_eq!(network.connections, 2);
    assert!(network.ends.contains_key(&(2, Connection(1))));
    for number in [1, 2] {
        assert_eq!(network.speaker(number).peers().collect::<Vec<_>>(), [identifier(3 - number)]);
        assert_eq!(network.speaker(number).owner(address(3 - number)), Some(identifier(3 - number)));
    }
    assert_eq!(network.told(1)[..2], ["initialization", "keepalive"]);
}

#[test]
fn a_silent_session_stays_up_by_keepalives() {
    let mut network = Network::pair(|config| config.keepalive = Duration::from_secs(60));
    network.told(1);
    network.run(3600);
    assert!(network.downs().is_empty());
    let told = network.told(1);
    assert!(told.iter().all(|told| told == "keepalive"));
    // Three in the time after which silence counts.
    assert!((179..=181).contains(&told.len()), "{}", told.len());
}

#[test]
fn the_lesser_keepalive_counts_and_silence_ends_a_session() {
    let mut network = Network::new(2, |config| {
        config.keepalive = Duration::from_secs(if config.router == router(1) { 30 } else { 90 });
    });
    network.link(1, 2);
    network.run(1);
    network.ups();
    network.deaf = [1, 2].into();
    network.run(40);
    let downs = network.downs();
    assert_eq!((downs.len(), downs[0].2), (2, End::Sent(Status::KEEPALIVE_EXPIRED)));
    assert!(downs.iter().all(|(at, ..)| (seconds(30)..seconds(31)).contains(at)), "{downs:?}");
}

#[test]
fn a_lost_connection_returns_with_all_labels() {
    let mut network = Network::pair(|_| ());
    network.bind(1, "10.0.0.1/32", EGRESS);
    network.bind(2, "10.0.0.1/32", transit(20, 1));
    network.run(1);
    assert_eq!(network.speaker(2).outgoing(prefix("10.0.0.1/32")), [via(1, label(3))]);
    network.events.clear();
    network.cut_connections();
    network.settle();
    assert_eq!(network.downs().len(), 2);
    assert_eq!(network.speaker(2).outgoing(prefix("10.0.0.1/32")), []);
    assert_eq!(network.speaker(2).mappings_for(prefix("10.0.0.1/32")).count(), 0);
    network.run(2);
    assert_eq!(network.ups(), [1, 2]);
    assert_eq!(network.speaker(2).outgoing(prefix("10.0.0.1/32")), [via(1, label(3))]);
}

#[test]
fn a_peer_that_has_forgotten_its_session_opens_another_one() {
    let mut network = Network::pair(|_| ());
    let now = network.now;
    // Router 2 starts anew, and its connection's end is not told.
    let mut fresh = Speaker::new(Config::new(router(2), router(2)));
    fresh.add_interface(now, 0);
    *network.speaker(2) = fresh;
    network.ends.clear();
    network.run(6);
    assert_eq!(network.downs().len(), 1);
    assert_eq!(network.ups(), [1, 2]);
}

#[test]
fn hellos_hold_a_session_by_any_link() {
    let mut network = Network::new(2, |_| ());
    network.link(1, 2);
    network.link(1, 2);
    network.run(1);
    assert_eq!(network.ups(), [1, 2]);
    network.links[0].passes = [false, false];
    network.run(60);
    assert!(network.downs().is_empty());
    network.links[1].passes = [false, false];
    let cut = network.now;
    network.run(60);
    let downs = network.downs();
    assert_eq!(downs.len(), 2);
    // Whoever notices first tells the other.
    assert_eq!(downs[0].2, End::Sent(Status::HOLD_TIMER_EXPIRED));
    assert!(downs[0].0 <= cut + Duration::from_secs(15) && downs[0].0 >= cut + Duration::from_secs(9));
    network.links[1].passes = [true, true];
    network.run(30);
    assert_eq!(network.ups(), [1, 2]);
}

#[test]
fn a_connection_may_come_before_the_hello() {
    let mut alone = Alone::new(|_| ());
    alone.speaker.handle_accepted(alone.now, CONNECTION, router(PEER));
    alone.say(&[Outgoing::Initialization(Alone::initialization())]);
    assert!(alone.answers().is_empty());
    alone.hello(PEER, 15);
    assert_eq!(alone.answers(), ["initialization", "keepalive"]);
    // One whose hello never comes is told so.
    let mut alone = Alone::new(|_| ());
    alone.speaker.handle_accepted(alone.now, CONNECTION, router(PEER));
    alone.say(&[Outgoing::Initialization(Alone::initialization())]);
    alone.wait(14);
    assert!(alone.answers().is_empty());
    alone.wait(1);
    assert_eq!(alone.answers(), ["notify 0x80000010 0 None", "close"]);
}

#[test]
fn strangers_are_few() {
    let mut alone = Alone::new(|_| ());
    for number in 0..64 {
        alone.speaker.handle_accepted(alone.now, Connection(100 + number), router(PEER));
    }
    assert!(alone.answers().is_empty());
    alone.speaker.handle_accepted(alone.now, CONNECTION, router(PEER));
    assert_eq!(alone.answers(), ["close"]);
}

#[test]
fn refused_sessions_are_tried_later_and_later() {
    // Router 1 is the lower one: it is this end that connects.
    let mut alone = Alone::new(|_| ());
    let mut attempts = Vec::new();
    for round in 0.. {
        alone.hello(1, 15);
        if alone.answers().contains(&"connect".into()) {
            attempts.push(round);
            let connection = Connection(round);
            alone.speaker.handle_connected(alone.now, identifier(1), connection);
            assert_eq!(alone.answers(), ["initialization"]);
            let no = Outgoing::Notification(about(Status::NO_HELLO, 0, 0));
            alone.speaker.handle_bytes(alone.now, connection, &pdu(1, &[no]));
            assert_eq!(alone.answers(), ["close"]);
        }
        if attempts.len() == 7 {
            break;
        }
        alone.wait(1);
    }
    assert_eq!(attempts, [0, 15, 45, 105, 225, 345, 465]);
    // Once a session has been up, it begins anew.
    alone.wait(5);
    let connection = Connection(1000);
    for _ in 0..23 {
        alone.hello(1, 15);
        alone.wait(5);
    }
    assert!(alone.answers().contains(&"connect".into()));
    alone.speaker.handle_connected(alone.now, identifier(1), connection);
    let agreed = [Outgoing::Initialization(Alone::initialization()), Outgoing::KeepAlive];
    alone.speaker.handle_bytes(alone.now, connection, &pdu(1, &agreed));
    alone.speaker.handle_closed(alone.now, connection);
    alone.answers();
    alone.wait(1);
    assert!(alone.answers().contains(&"connect".into()));
    // Who cannot be reached at all is asked again soon.
    alone.speaker.handle_refused(alone.now, identifier(1));
    alone.wait(4);
    assert!(!alone.answers().contains(&"connect".into()));
    alone.wait(1);
    assert!(alone.answers().contains(&"connect".into()));
}

#[test]
fn what_cannot_be_agreed_on_is_refused() {
    let good = Alone::initialization();
    for (initialization, status) in [
        (Initialization { keepalive_seconds: 0, ..good }, Status::BAD_KEEPALIVE),
        (Initialization { receiver: identifier(9), ..good }, Status::NO_HELLO),
    ] {
        let mut alone = Alone::new(|_| ());
        alone.hello(PEER, 15);
        alone.speaker.handle_accepted(alone.now, CONNECTION, router(PEER));
        alone.say(&[Outgoing::Initialization(initialization)]);
        assert_eq!(alone.answers(), [format!("notify {:#x} 1 None", status.0), "close".into()]);
        assert_eq!(alone.events(), [Event::Refused { peer: identifier(PEER), why: End::Sent(status) }]);
    }
    // Labels on demand are not refused, but given unasked.
    let mut alone = Alone::new(|_| ());
    alone.hello(PEER, 15);
    alone.speaker.handle_accepted(alone.now, CONNECTION, router(PEER));
    let on_demand = Initialization { on_demand: true, ..good };
    alone.say(&[Outgoing::Initialization(on_demand), Outgoing::KeepAlive]);
    assert_eq!(alone.events(), [Event::Up { peer: identifier(PEER) }]);
}

#[test]
fn until_a_session_is_up_anything_else_refuses_it() {
    let mut alone = Alone::new(|_| ());
    alone.hello(PEER, 15);
    alone.speaker.handle_accepted(alone.now, CONNECTION, router(PEER));
    alone.say(&[Outgoing::KeepAlive]);
    assert_eq!(alone.answers(), ["notify 0x8000000a 1 None", "close"]);
    let mut alone = Alone::new(|_| ());
    alone.hello(PEER, 15);
    alone.speaker.handle_accepted(alone.now, CONNECTION, router(PEER));
    let request = Outgoing::LabelRequest(prefix("10.0.0.0/8"));
    alone.say(&[Outgoing::Initialization(Alone::initialization()), request]);
    assert_eq!(alone.answers(), ["notify 0x8000000a 2 None", "close"]);
    // And another initialization ends one that is up.
    let mut alone = Alone::up(|_| ());
    alone.say(&[Outgoing::Initialization(Alone::initialization())]);
    assert_eq!(alone.answers(), ["notify 0x8000000a 1 None", "close"]);
}

#[test]
fn a_shutdown_is_answered_and_another_fatal_status_is_not() {
    for (status, answers) in
        [(Status::SHUTDOWN, &["notify 0x8000000a 1 None", "close"][..]), (Status::INTERNAL_ERROR, &["close"])]
    {
        let mut alone = Alone::up(|_| ());
        alone.say(&[Outgoing::Notification(about(status, 0, 0))]);
        assert_eq!(alone.answers(), answers);
        assert_eq!(alone.events(), [Event::Down { peer: identifier(PEER), why: End::Received(status) }]);
    }
    let mut network = Network::pair(|_| ());
    let now = network.now;
    network.speaker(1).shut_down(now);
    network.run(1);
    let whys: Vec<End> = network.downs().iter().map(|(_, _, why)| *why).collect();
    assert_eq!(whys, [End::Sent(Status::SHUTDOWN), End::Received(Status::SHUTDOWN)]);
}

#[test]
fn pdus_are_as_short_as_the_peer_asks_for() {
    let mut alone = Alone::new(|config| config.loop_detection = Some(255));
    alone.speaker.set_addresses((0..100).flat_map(|number| {
        [Ipv4Addr::from(number).into(), core::net::Ipv6Addr::from(u128::from(number)).into()]
    }));
    for number in 0..100 {
        alone.speaker.bind(prefix(&format!("2001:db8::{number:x}/128")), EGRESS).unwrap();
    }
    alone.hello(PEER, 15);
    alone.speaker.handle_accepted(alone.now, CONNECTION, router(PEER));
    let short = Initialization { most_bytes: 256, ..Alone::initialization() };
    alone.say(&[Outgoing::Initialization(short), Outgoing::KeepAlive]);
    let (mut mappings, mut addresses) = (0, 0);
    while let Some(transmit) = alone.speaker.poll_transmit(alone.now) {
        let Transmit::Stream { bytes, .. } = transmit else { continue };
        assert!(bytes.len() <= 256);
        for message in messages(&bytes) {
            mappings += usize::from(message.starts_with("map"));
            addresses += message.strip_prefix("addresses ").map_or(0, |count| count.parse().unwrap());
        }
    }
    assert_eq!((mappings, addresses), (100, 200));
}

#[test]
fn hellos_are_as_frequent_as_the_peer_asks_for_and_strange_ones_are_ignored() {
    let mut alone = Alone::new(|_| ());
    assert_eq!(alone.speaker.poll_timeout(), Instant::ZERO);
    alone.wait(0);
    assert_eq!(alone.speaker.poll_timeout(), seconds(5));
    alone.hello(1, 3);
    assert_eq!(alone.speaker.poll_timeout(), seconds(1));
    // Its own, one at no address, and one that is none.
    let mut alone = Alone::new(|_| ());
    alone.wait(0);
    alone.hello(2, 15);
    alone.speaker.handle_hello(alone.now, 0, Ipv4Addr::UNSPECIFIED, &pdu(1, &[Outgoing::KeepAlive]));
    alone.speaker.handle_hello(alone.now, 0, router(1), &[0, 1, 0, 99]);
    alone.speaker.handle_hello(alone.now, 5, router(1), &[]);
    assert!(alone.speaker.adjacencies.is_empty() && alone.speaker.peers.is_empty());
}

/// Two routers without a link, of which the first looks for the second.
fn apart(configure: impl Fn(&mut Config)) -> Network {
    let mut network = Network::new(2, configure);
    network.speaker(1).add_target(Instant::ZERO, router(2));
    network.run(1);
    network
}

#[test]
fn routers_far_apart_are_looked_for_by_their_addresses() {
    let mut network = apart(|config| config.accepts_targeted = true);
    assert_eq!(network.ups(), [1, 2]);
    network.run(600);
    assert!(network.downs().is_empty(), "answers keep it up");
    let heard: Vec<Neighbour> = network.speaker(2).neighbours().collect();
    let [Neighbour { peer, transport, phase, addresses, .. }] = heard[..] else { panic!("{heard:?}") };
    assert_eq!((peer, transport, addresses), (identifier(1), router(1), 2));
    assert_eq!(phase, Some(Phase::Operational));

    // Who only answers falls silent as well, and the session ends when the last hello is too old.
    let now = network.now;
    network.speaker(1).remove_target(now, router(2));
    network.run(1);
    assert_eq!(network.downs()[0].2, End::Sent(Status::HOLD_TIMER_EXPIRED));
    network.run(45);
    assert_eq!(network.speaker(2).neighbours().count(), 0);
    assert!(network.speakers.iter().all(|speaker| speaker.poll_timeout() == Instant::NEVER));
}

#[test]
fn targeted_hellos_are_answered_only_by_who_is_to() {
    let mut network = apart(|_| ());
    network.run(100);
    assert_eq!(network.ups(), []);
    assert_eq!(network.speaker(2).neighbours().count(), 0);
    // Both may look for each other, too.
    let now = network.now;
    network.speaker(2).add_target(now, router(1));
    network.run(30);
    assert_eq!(network.ups(), [1, 2]);
}

#[test]
fn a_link_and_a_target_carry_one_session_and_either_keeps_it() {
    let mut network = Network::pair(|config| config.accepts_targeted = true);
    network.speaker(1).add_target(seconds(1), router(2));
    network.run(1);
    network.links[0].passes = [false, false];
    network.run(600);
    assert!(network.ups().is_empty() && network.downs().is_empty());
}

#[test]
fn hellos_hold_as_long_as_both_ends_say() {
    let mut network = Network::pair(|config| {
        config.link_hold = Duration::from_secs(if config.router == router(1) { 3 } else { 30 });
    });
    network.run(60);
    assert!(network.downs().is_empty(), "three are sent in the lesser time");
    network.links[0].passes = [false, true];
    let since = network.now;
    network.run(5);
    let downs = network.downs();
    assert_eq!(downs[0].1, 2, "{downs:?}");
    assert!(downs[0].0 <= since + Duration::from_secs(3));
    assert_eq!(downs[0].2, End::Sent(Status::HOLD_TIMER_EXPIRED));
}
