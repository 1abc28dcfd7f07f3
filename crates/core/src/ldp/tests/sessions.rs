//! Establishment, maintenance and end of sessions.

use super::*;
use crate::ldp::receive::notification_about;
use netstage_wire::ldp::message::Initialization;

#[test]
fn two_routers_discover_each_other_and_the_higher_address_connects() {
    let mut network = TestNetwork::new(2, |_| ());
    network.link(1, 2);
    network.run(1);
    let up = [1, 2].map(|number| {
        let peer = LdpEvent::Up { peer: identifier(3 - number) };
        let at = network.events.iter().find(|(_, at_router, event)| (*at_router, event) == (number, &peer));
        at.expect("the session is up").0
    });
    // Two hellos, a connection, two initializations and two keepalives suffice.
    assert!(up.iter().all(|up| *up <= Instant::ZERO + DELAY * 6), "{up:?}");
    // Although both sent hellos at once, there is one connection, opened by the higher address.
    assert_eq!(network.connections, 2);
    assert!(network.ends.contains_key(&(2, LdpConnection(1))));
    for number in [1, 2] {
        assert_eq!(network.speaker(number).peers().collect::<Vec<_>>(), [identifier(3 - number)]);
        assert_eq!(network.speaker(number).owner(address(3 - number)), Some(identifier(3 - number)));
    }
    assert_eq!(network.sent_messages(1)[..2], ["initialization", "keepalive"]);
}

#[test]
fn keepalives_maintain_an_idle_session() {
    let mut network = TestNetwork::pair(|config| config.keepalive = Duration::from_secs(60));
    network.sent_messages(1);
    network.run(3600);
    assert!(network.session_ends().is_empty());
    let sent = network.sent_messages(1);
    assert!(sent.iter().all(|message| message == "keepalive"));
    // Three per keepalive time.
    assert!((179..=181).contains(&sent.len()), "{}", sent.len());
}

#[test]
fn the_lower_keepalive_time_applies_and_silence_ends_a_session() {
    let mut network = TestNetwork::new(2, |config| {
        config.keepalive = Duration::from_secs(if config.router == router(1) { 30 } else { 90 });
    });
    network.link(1, 2);
    network.run(1);
    network.sessions_up();
    network.blackholed = [1, 2].into();
    network.run(40);
    let session_ends = network.session_ends();
    assert_eq!(
        (session_ends.len(), session_ends[0].2),
        (2, LdpSessionEnd::Sent(LdpStatus::KEEPALIVE_EXPIRED))
    );
    assert!(session_ends.iter().all(|(at, ..)| (seconds(30)..seconds(31)).contains(at)), "{session_ends:?}");
}

#[test]
fn a_lost_connection_is_restored_with_all_labels() {
    let mut network = TestNetwork::pair(|_| ());
    network.bind(1, "10.0.0.1/32", EGRESS);
    network.bind(2, "10.0.0.1/32", transit(20, 1));
    network.run(1);
    assert_eq!(network.speaker(2).outgoing(prefix("10.0.0.1/32")), [via(1, label(3))]);
    network.events.clear();
    network.cut_connections();
    network.settle();
    assert_eq!(network.session_ends().len(), 2);
    assert_eq!(network.speaker(2).outgoing(prefix("10.0.0.1/32")), []);
    assert_eq!(network.speaker(2).mappings_for(prefix("10.0.0.1/32")).count(), 0);
    network.run(2);
    assert_eq!(network.sessions_up(), [1, 2]);
    assert_eq!(network.speaker(2).outgoing(prefix("10.0.0.1/32")), [via(1, label(3))]);
}

#[test]
fn a_restarted_peer_opens_a_new_session() {
    let mut network = TestNetwork::pair(|_| ());
    let now = network.now;
    // Router 2 restarts without closing its connection.
    let mut restarted = LdpSpeaker::new(LdpConfig::new(router(2), router(2)));
    restarted.add_interface(now, 0);
    *network.speaker(2) = restarted;
    network.ends.clear();
    network.run(6);
    assert_eq!(network.session_ends().len(), 1);
    assert_eq!(network.sessions_up(), [1, 2]);
}

#[test]
fn hellos_on_any_link_maintain_a_session() {
    let mut network = TestNetwork::new(2, |_| ());
    network.link(1, 2);
    network.link(1, 2);
    network.run(1);
    assert_eq!(network.sessions_up(), [1, 2]);
    network.links[0].passes = [false, false];
    network.run(60);
    assert!(network.session_ends().is_empty());
    network.links[1].passes = [false, false];
    let cut = network.now;
    network.run(60);
    let session_ends = network.session_ends();
    assert_eq!(session_ends.len(), 2);
    // The router that detects the expiry first notifies the other.
    assert_eq!(session_ends[0].2, LdpSessionEnd::Sent(LdpStatus::HOLD_TIMER_EXPIRED));
    assert!(
        session_ends[0].0 <= cut + Duration::from_secs(15)
            && session_ends[0].0 >= cut + Duration::from_secs(9)
    );
    network.links[1].passes = [true, true];
    network.run(30);
    assert_eq!(network.sessions_up(), [1, 2]);
}

#[test]
fn a_connection_may_precede_the_hello() {
    let mut test = SpeakerTest::new(|_| ());
    test.speaker.handle_accepted(test.now, CONNECTION, router(PEER));
    test.receive(&[Outgoing::Initialization(SpeakerTest::initialization())]);
    assert!(test.replies().is_empty());
    test.hello(PEER, 15);
    assert_eq!(test.replies(), ["initialization", "keepalive"]);
    // A connection without a hello is closed with a notification.
    let mut test = SpeakerTest::new(|_| ());
    test.speaker.handle_accepted(test.now, CONNECTION, router(PEER));
    test.receive(&[Outgoing::Initialization(SpeakerTest::initialization())]);
    test.advance(14);
    assert!(test.replies().is_empty());
    test.advance(1);
    assert_eq!(test.replies(), ["notify 0x80000010 0 None", "close"]);
}

#[test]
fn the_number_of_unidentified_connections_is_limited() {
    let mut test = SpeakerTest::new(|_| ());
    for number in 0..64 {
        test.speaker.handle_accepted(test.now, LdpConnection(100 + number), router(PEER));
    }
    assert!(test.replies().is_empty());
    test.speaker.handle_accepted(test.now, CONNECTION, router(PEER));
    assert_eq!(test.replies(), ["close"]);
}

#[test]
fn failed_sessions_are_retried_with_increasing_delays() {
    // Router 1 has the lower address, so the speaker opens the connection.
    let mut test = SpeakerTest::new(|_| ());
    let mut attempts = Vec::new();
    for round in 0.. {
        test.hello(1, 15);
        if test.replies().contains(&"connect".into()) {
            attempts.push(round);
            let connection = LdpConnection(round);
            test.speaker.handle_connected(test.now, identifier(1), connection);
            assert_eq!(test.replies(), ["initialization"]);
            let rejection = Outgoing::Notification(notification_about(LdpStatus::NO_HELLO, 0, 0));
            test.speaker.handle_bytes(test.now, connection, &pdu(1, &[rejection]));
            assert_eq!(test.replies(), ["close"]);
        }
        if attempts.len() == 7 {
            break;
        }
        test.advance(1);
    }
    assert_eq!(attempts, [0, 15, 45, 105, 225, 345, 465]);
    // An established session resets the delay.
    test.advance(5);
    let connection = LdpConnection(1000);
    for _ in 0..23 {
        test.hello(1, 15);
        test.advance(5);
    }
    assert!(test.replies().contains(&"connect".into()));
    test.speaker.handle_connected(test.now, identifier(1), connection);
    let setup = [Outgoing::Initialization(SpeakerTest::initialization()), Outgoing::KeepAlive];
    test.speaker.handle_bytes(test.now, connection, &pdu(1, &setup));
    test.speaker.handle_closed(test.now, connection);
    test.replies();
    test.advance(1);
    assert!(test.replies().contains(&"connect".into()));
    // After a failed connection the delay is short.
    test.speaker.handle_connect_failed(test.now, identifier(1));
    test.advance(4);
    assert!(!test.replies().contains(&"connect".into()));
    test.advance(1);
    assert!(test.replies().contains(&"connect".into()));
}

#[test]
fn invalid_session_parameters_are_rejected() {
    let good = SpeakerTest::initialization();
    for (initialization, status) in [
        (Initialization { keepalive_seconds: 0, ..good }, LdpStatus::BAD_KEEPALIVE),
        (Initialization { receiver: identifier(9), ..good }, LdpStatus::NO_HELLO),
    ] {
        let mut test = SpeakerTest::new(|_| ());
        test.hello(PEER, 15);
        test.speaker.handle_accepted(test.now, CONNECTION, router(PEER));
        test.receive(&[Outgoing::Initialization(initialization)]);
        assert_eq!(test.replies(), [format!("notify {:#x} 1 None", status.0), "close".into()]);
        assert_eq!(
            test.events(),
            [LdpEvent::SetupFailed { peer: identifier(PEER), reason: LdpSessionEnd::Sent(status) }]
        );
    }
    // Downstream on demand is accepted, but labels are advertised unsolicited.
    let mut test = SpeakerTest::new(|_| ());
    test.hello(PEER, 15);
    test.speaker.handle_accepted(test.now, CONNECTION, router(PEER));
    let on_demand = Initialization { on_demand: true, ..good };
    test.receive(&[Outgoing::Initialization(on_demand), Outgoing::KeepAlive]);
    assert_eq!(test.events(), [LdpEvent::Up { peer: identifier(PEER) }]);
}

#[test]
fn unexpected_messages_during_setup_end_the_session() {
    let mut test = SpeakerTest::new(|_| ());
    test.hello(PEER, 15);
    test.speaker.handle_accepted(test.now, CONNECTION, router(PEER));
    test.receive(&[Outgoing::KeepAlive]);
    assert_eq!(test.replies(), ["notify 0x8000000a 1 None", "close"]);
    let mut test = SpeakerTest::new(|_| ());
    test.hello(PEER, 15);
    test.speaker.handle_accepted(test.now, CONNECTION, router(PEER));
    let request = Outgoing::LabelRequest(prefix("10.0.0.0/8"));
    test.receive(&[Outgoing::Initialization(SpeakerTest::initialization()), request]);
    assert_eq!(test.replies(), ["notify 0x8000000a 2 None", "close"]);
    // Another initialization ends an established session.
    let mut test = SpeakerTest::up(|_| ());
    test.receive(&[Outgoing::Initialization(SpeakerTest::initialization())]);
    assert_eq!(test.replies(), ["notify 0x8000000a 1 None", "close"]);
}

#[test]
fn a_shutdown_is_answered_and_another_fatal_status_is_not() {
    for (status, replies) in [
        (LdpStatus::SHUTDOWN, &["notify 0x8000000a 1 None", "close"][..]),
        (LdpStatus::INTERNAL_ERROR, &["close"]),
    ] {
        let mut test = SpeakerTest::up(|_| ());
        test.receive(&[Outgoing::Notification(notification_about(status, 0, 0))]);
        assert_eq!(test.replies(), replies);
        assert_eq!(
            test.events(),
            [LdpEvent::Down { peer: identifier(PEER), reason: LdpSessionEnd::Received(status) }]
        );
    }
    let mut network = TestNetwork::pair(|_| ());
    let now = network.now;
    network.speaker(1).shut_down(now);
    network.run(1);
    let reasons: Vec<LdpSessionEnd> = network.session_ends().iter().map(|(_, _, why)| *why).collect();
    assert_eq!(
        reasons,
        [LdpSessionEnd::Sent(LdpStatus::SHUTDOWN), LdpSessionEnd::Received(LdpStatus::SHUTDOWN)]
    );
}

#[test]
fn the_maximum_pdu_length_of_the_peer_is_respected() {
    let mut test = SpeakerTest::new(|config| config.loop_detection = Some(255));
    test.speaker.set_addresses((0..100).flat_map(|number| {
        [Ipv4Addr::from(number).into(), core::net::Ipv6Addr::from(u128::from(number)).into()]
    }));
    for number in 0..100 {
        test.speaker.bind(prefix(&format!("2001:db8::{number:x}/128")), EGRESS).unwrap();
    }
    test.hello(PEER, 15);
    test.speaker.handle_accepted(test.now, CONNECTION, router(PEER));
    let short = Initialization { max_pdu_length: 256, ..SpeakerTest::initialization() };
    test.receive(&[Outgoing::Initialization(short), Outgoing::KeepAlive]);
    let (mut mappings, mut addresses) = (0, 0);
    while let Some(transmit) = test.speaker.poll_transmit(test.now) {
        let LdpAction::Stream { bytes, .. } = transmit else { continue };
        assert!(bytes.len() <= 256);
        for message in messages(&bytes) {
            mappings += usize::from(message.starts_with("map"));
            addresses += message.strip_prefix("addresses ").map_or(0, |count| count.parse().unwrap());
        }
    }
    assert_eq!((mappings, addresses), (100, 200));
}

#[test]
fn the_hold_time_of_the_peer_sets_the_hello_interval_and_invalid_hellos_are_ignored() {
    let mut test = SpeakerTest::new(|_| ());
    assert_eq!(test.speaker.poll_timeout(), Instant::ZERO);
    test.advance(0);
    assert_eq!(test.speaker.poll_timeout(), seconds(5));
    test.hello(1, 3);
    assert_eq!(test.speaker.poll_timeout(), seconds(1));
    // A hello with its own identifier, and datagrams without a valid hello.
    let mut test = SpeakerTest::new(|_| ());
    test.advance(0);
    test.hello(2, 15);
    test.speaker.handle_hello(test.now, 0, Ipv4Addr::UNSPECIFIED, &pdu(1, &[Outgoing::KeepAlive]));
    test.speaker.handle_hello(test.now, 0, router(1), &[0, 1, 0, 99]);
    test.speaker.handle_hello(test.now, 5, router(1), &[]);
    assert!(test.speaker.adjacencies.is_empty() && test.speaker.peers.is_empty());
}

/// Creates two routers without a link, of which the first sends targeted hellos to the second.
fn remote_pair(configure: impl Fn(&mut LdpConfig)) -> TestNetwork {
    let mut network = TestNetwork::new(2, configure);
    network.speaker(1).add_target(Instant::ZERO, router(2));
    network.run(1);
    network
}

#[test]
fn targeted_hellos_establish_a_remote_session() {
    let mut network = remote_pair(|config| config.accepts_targeted = true);
    assert_eq!(network.sessions_up(), [1, 2]);
    network.run(600);
    assert!(network.session_ends().is_empty(), "answers maintain the session");
    let neighbors: Vec<LdpNeighbor> = network.speaker(2).neighbors().collect();
    let [LdpNeighbor { peer, transport, phase, addresses, .. }] = neighbors[..] else {
        panic!("{neighbors:?}")
    };
    assert_eq!((peer, transport, addresses), (identifier(1), router(1), 2));
    assert_eq!(phase, Some(LdpPhase::Operational));

    // The answering router stops as well, and the session ends when the last hello expires.
    let now = network.now;
    network.speaker(1).remove_target(now, router(2));
    network.run(1);
    assert_eq!(network.session_ends()[0].2, LdpSessionEnd::Sent(LdpStatus::HOLD_TIMER_EXPIRED));
    network.run(45);
    assert_eq!(network.speaker(2).neighbors().count(), 0);
    assert!(network.speakers.iter().all(|speaker| speaker.poll_timeout() == Instant::NEVER));
}

#[test]
fn targeted_hellos_are_answered_only_if_configured() {
    let mut network = remote_pair(|_| ());
    network.run(100);
    assert_eq!(network.sessions_up(), []);
    assert_eq!(network.speaker(2).neighbors().count(), 0);
    // Both routers may send targeted hellos.
    let now = network.now;
    network.speaker(2).add_target(now, router(1));
    network.run(30);
    assert_eq!(network.sessions_up(), [1, 2]);
}

#[test]
fn a_link_and_a_target_share_one_session_and_either_maintains_it() {
    let mut network = TestNetwork::pair(|config| config.accepts_targeted = true);
    network.speaker(1).add_target(seconds(1), router(2));
    network.run(1);
    network.links[0].passes = [false, false];
    network.run(600);
    assert!(network.sessions_up().is_empty() && network.session_ends().is_empty());
}

#[test]
fn the_lower_hold_time_applies() {
    let mut network = TestNetwork::pair(|config| {
        config.link_hold = Duration::from_secs(if config.router == router(1) { 3 } else { 30 });
    });
    network.run(60);
    assert!(network.session_ends().is_empty(), "three hellos are sent per hold time");
    network.links[0].passes = [false, true];
    let since = network.now;
    network.run(5);
    let session_ends = network.session_ends();
    assert_eq!(session_ends[0].1, 2, "{session_ends:?}");
    assert!(session_ends[0].0 <= since + Duration::from_secs(3));
    assert_eq!(session_ends[0].2, LdpSessionEnd::Sent(LdpStatus::HOLD_TIMER_EXPIRED));
}
