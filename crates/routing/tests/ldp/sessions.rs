//! Two or more netstage speakers with each other.

use crate::pair::{LEFT_MAC, Pair, RIGHT_MAC};
use crate::running::{LEFT, RIGHT, Running, config, fec, identifier, left, link, right, start, transit};
use netstage_core::ldp::{
    Binding, GracefulRestart, LdpConfig, LdpEvent, LdpNeighbor, LdpPhase, LdpSessionEnd,
};
use netstage_core::time::Duration;
use netstage_harness::needs;
use netstage_host::netns::Namespace;
use netstage_host::netns::netlink::{Netlink, VethOptions};
use netstage_host::netns::routes::{Metrics, StaticRoute};
use netstage_routing::ldp::counter::Counter;
use netstage_routing::ldp::{LdpCommand, LdpFault, LdpReport, LdpSnapshot, LdpSockets, SessionEnding};
use netstage_wire::ldp::LdpStatus;
use netstage_wire::mpls::LabelValue;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

#[tokio::main(flavor = "current_thread")]
async fn ten_thousand_labels_are_advertised_and_withdrawn_and_sessions_shut_down() {
    needs::namespaces();
    const MAPPINGS: u32 = 10_000;
    let pair = Pair::new(VethOptions::default());
    let (mut here, mut there) = (start(config(LEFT), left(&pair)), start(config(RIGHT), right(&pair)));
    here.tell(LdpCommand::SetAddresses(vec![LEFT.into(), Ipv4Addr::new(192, 0, 2, 1).into()]));
    here.tell(LdpCommand::Bind((0..MAPPINGS).map(|number| transit(number, RIGHT)).collect()));
    assert_eq!(there.up().await, identifier(LEFT));
    assert_eq!(here.up().await, identifier(RIGHT));

    let (mut labels, mut addresses) = (BTreeMap::new(), Vec::new());
    there
        .event("all mappings", |event| {
            match event {
                LdpEvent::Mapping { peer, fec, label } => {
                    assert_eq!(peer, identifier(LEFT));
                    labels.insert(fec, label.number());
                }
                LdpEvent::Address { address, is_advertised: true, .. } => addresses.push(address),
                event => panic!("{event:?}"),
            }
            (labels.len() == MAPPINGS as usize).then_some(())
        })
        .await;
    assert!((0..MAPPINGS).all(|number| labels[&fec(number)] == 1000 + number));
    assert_eq!(addresses, [IpAddr::from(LEFT), Ipv4Addr::new(192, 0, 2, 1).into()]);
    let LdpSnapshot { neighbors, counters, .. } = there.snapshot().await;
    let [LdpNeighbor { peer, transport, phase, mappings, addresses, .. }] = neighbors[..] else { panic!() };
    assert_eq!((peer, transport, phase), (identifier(LEFT), LEFT, Some(LdpPhase::Operational)));
    assert_eq!((mappings, addresses), (MAPPINGS as usize, 2));
    // The speaker with the higher address connects.
    assert_eq!((counters.get(Counter::Connected), counters.get(Counter::Accepted)), (1, 0));
    assert_eq!(counters.get(Counter::Mappings), u64::from(MAPPINGS));

    here.tell(LdpCommand::Unbind((0..MAPPINGS).map(fec).collect()));
    let mut left = MAPPINGS;
    there
        .event("all withdrawals", |event| {
            left -= u32::from(matches!(event, LdpEvent::Withdrawn { .. }));
            (left == 0).then_some(())
        })
        .await;
    let mut free = Vec::new();
    here.event("all releases", |event| {
        free.extend(matches!(event, LdpEvent::Free { .. }).then_some(()));
        (free.len() == MAPPINGS as usize).then_some(())
    })
    .await;

    here.stop().await;
    assert_eq!(there.down().await, LdpSessionEnd::Received(LdpStatus::SHUTDOWN));
}

#[tokio::main(flavor = "current_thread")]
async fn a_suspended_speaker_is_silent_until_it_resumes() {
    let pair = Pair::new(VethOptions::default());
    let hold = |address| LdpConfig { link_hold: Duration::from_secs(3), ..config(address) };
    let restart = GracefulRestart {
        reconnect: Duration::from_secs(60),
        recovery: Duration::from_secs(60),
        neighbor_liveness: Duration::from_secs(60),
        max_recovery: Duration::from_secs(60),
    };
    // The suspended speaker has the higher address, so that it connects.
    let mut here = start(hold(RIGHT), right(&pair));
    let mut there = start(LdpConfig { restart: Some(restart), ..hold(LEFT) }, left(&pair));
    here.tell(LdpCommand::SetAddresses(vec![RIGHT.into()]));
    here.tell(LdpCommand::Bind(vec![transit(0, LEFT)]));
    here.up().await;
    there.up().await;
    // A reset has no notification, and a shutdown has one. Bindings survive both.
    for (ending, expected) in [
        (SessionEnding::Reset, LdpSessionEnd::Lost),
        (SessionEnding::Shutdown, LdpSessionEnd::Received(LdpStatus::SHUTDOWN)),
    ] {
        here.tell(LdpCommand::Suspend { ending, resume_after: None });
        assert_eq!(there.down().await, expected);
        let address = (RIGHT, netstage_wire::ldp::PORT);
        let connecting = pair.left.run(|| std::net::TcpStream::connect(address)).unwrap();
        assert_eq!(connecting.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        let LdpSnapshot { neighbors, .. } = here.snapshot().await;
        assert_eq!(neighbors, []);
        here.tell(LdpCommand::Resume);
        let mapped = |event| matches!(event, LdpEvent::Mapping { .. }).then_some(());
        there.event("the mapping after the session", mapped).await;
    }
    // With graceful restart at both ends, the peer keeps the labels until the speaker is back by itself.
    here.tell(LdpCommand::SetRestart(Some(restart)));
    here.tell(LdpCommand::Suspend { ending: SessionEnding::Shutdown, resume_after: Some(Duration::ZERO) });
    there.down().await;
    there.up().await;
    let LdpSnapshot { neighbors, .. } = here.snapshot().await;
    assert_eq!(neighbors[0].ft_session.map(|found| found.reconnect_timeout_ms), Some(60_000));
    let resume_after = Some(Duration::from_millis(100));
    here.tell(LdpCommand::Suspend { ending: SessionEnding::Reset, resume_after });
    let restarting = |event| match event {
        LdpEvent::Down { .. } => panic!("the labels are void"),
        LdpEvent::Restarting { reason, .. } => Some(reason),
        _ => None,
    };
    assert_eq!(there.event("a restart", restarting).await, LdpSessionEnd::Lost);
    there.up().await;
    here.stop().await;
    there.down().await;
}

#[tokio::main(flavor = "current_thread")]
async fn failed_bindings_and_sockets_are_reported() {
    let pair = Pair::new(VethOptions::default());
    let mut here = start(config(LEFT), left(&pair));
    let (fec, _) = transit(0, RIGHT);
    let reserved = Binding::Egress { label: LabelValue::new(15) };
    here.tell(LdpCommand::Bind(vec![(fec, reserved)]));
    let fault = here.told("a fault", |report| match report {
        LdpReport::Fault(fault) => Some(fault.to_string()),
        LdpReport::Event(_) => None,
    });
    let expected = "cannot bind 11.0.0.0/24: labels below 16 are reserved (RFC 7274)";
    assert_eq!(fault.await, expected);
    for (place, transport, expected) in [
        (link(&pair.left, "left1", LEFT), LEFT, "cannot send hellos on left1 from 10.1.0.0"),
        (link(&pair.left, "left0", RIGHT), LEFT, "cannot send hellos on left0 from 10.1.0.1"),
        (left(&pair), RIGHT, "cannot listen on 10.1.0.1, TCP port 646"),
        (left(&pair), LEFT, "cannot listen on 10.1.0.0, TCP port 646: Address already in use"),
    ] {
        let error = start(config(transport), place).task.await.unwrap().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    here.stop().await;
}

#[tokio::main(flavor = "current_thread")]
async fn many_speakers_share_an_interface() {
    needs::namespaces();
    const SPEAKERS: u8 = 64;
    let pair = Pair::new(VethOptions::default());
    let inside = |number: u8| Ipv4Addr::new(10, 2, 0, number);
    let mut router = Netlink::open(&pair.right).unwrap();
    router.add_address("right0", inside(254).into(), 24).unwrap();
    let mut tester = Netlink::open(&pair.left).unwrap();
    for number in 1..=SPEAKERS {
        tester.add_address("left0", inside(number).into(), 24).unwrap();
        router.add_neighbor("right0", inside(number).into(), LEFT_MAC).unwrap();
    }
    tester.add_neighbor("left0", inside(254).into(), RIGHT_MAC).unwrap();
    let mut there = start(config(inside(254)), link(&pair.right, "right0", inside(254)));
    let mut speakers: Vec<Running> = (1..=SPEAKERS)
        .map(|number| start(config(inside(number)), link(&pair.left, "left0", inside(number))))
        .collect();
    for (number, speaker) in (1..).zip(&speakers) {
        speaker.tell(LdpCommand::SetAddresses(vec![inside(number).into()]));
        speaker.tell(LdpCommand::Bind(vec![transit(number.into(), inside(254))]));
    }
    let mut labels = BTreeMap::new();
    there
        .event("a label of each", |event| {
            if let LdpEvent::Mapping { peer, fec, label } = event {
                labels.insert(peer.router, (fec, label.number()));
            }
            (labels.len() == usize::from(SPEAKERS)).then_some(())
        })
        .await;
    for number in 1..=SPEAKERS {
        assert_eq!(labels[&inside(number)], (fec(number.into()), 1000 + u32::from(number)));
    }
    for speaker in &mut speakers {
        assert_eq!(speaker.up().await, identifier(inside(254)));
        let neighbors = speaker.snapshot().await.neighbors;
        assert_eq!(neighbors.len(), 1, "speakers of one host do not receive each other's hellos");
    }
    for speaker in speakers {
        speaker.stop().await;
    }
    for _ in 0..SPEAKERS {
        assert_eq!(there.down().await, LdpSessionEnd::Received(LdpStatus::SHUTDOWN));
    }
}

#[tokio::main(flavor = "current_thread")]
async fn remote_routers_are_found_by_targeted_hellos() {
    let pair = Pair::new(VethOptions::default());
    let [near, far] = [1, 2].map(|number| Ipv4Addr::new(192, 0, 2, number));
    for (namespace, link, own, other, via) in
        [(&pair.left, "left0", near, far, RIGHT), (&pair.right, "right0", far, near, LEFT)]
    {
        let mut netlink = Netlink::open(namespace).unwrap();
        netlink.add_address("lo", own.into(), 32).unwrap();
        let route = StaticRoute {
            destination: (other.into(), 32),
            gateway: Some(via.into()),
            link,
            preferred_source: None,
            metrics: Metrics::default(),
        };
        netlink.add_route(&route).unwrap();
    }
    let place = |namespace: &Namespace, targets| LdpSockets {
        namespace: namespace.try_clone().unwrap(),
        interfaces: vec![],
        targets,
        md5_keys: vec![],
    };
    let mut here = start(config(near), place(&pair.left, vec![far]));
    let answering = LdpConfig { accepts_targeted: true, ..config(far) };
    let mut there = start(answering, place(&pair.right, vec![]));
    assert_eq!(here.up().await, identifier(far));
    assert_eq!(there.up().await, identifier(near));
    here.tell(LdpCommand::Bind(vec![transit(7, far)]));
    let label = there.event("a mapping", |event| match event {
        LdpEvent::Mapping { label, .. } => Some(label.number()),
        _ => None,
    });
    assert_eq!(label.await, 1007);
    here.stop().await;
    assert_eq!(there.down().await, LdpSessionEnd::Received(LdpStatus::SHUTDOWN));
}

#[tokio::main(flavor = "current_thread")]
async fn different_keys_are_reported_at_both_ends_and_equal_keys_allow_a_session() {
    let pair = Pair::new(VethOptions::default());
    let with_key =
        |place: LdpSockets, peer, key: &[u8]| LdpSockets { md5_keys: vec![(peer, key.to_vec())], ..place };
    let mut here = start(config(LEFT), with_key(left(&pair), RIGHT, b"secret"));
    let mut there = start(config(RIGHT), with_key(right(&pair), LEFT, b"wrong"));
    let fault = |report| match report {
        LdpReport::Fault(fault) => Some(fault),
        LdpReport::Event(event) => panic!("{event:?}"),
    };
    let report = here.told("segments with a different key", fault).await;
    let LdpFault::Signatures { dropped, peers } = &report else { panic!("{report:?}") };
    assert!(dropped.wrong > 0 && dropped.missing == 0 && dropped.unexpected == 0, "{dropped:?}");
    assert_eq!(peers[..], [identifier(RIGHT)]);
    let text = report.to_string();
    assert!(text.starts_with("no session with 10.1.0.1: ") && text.contains("a different MD5 key"), "{text}");
    let text = there.told("no answer", fault).await.to_string();
    assert!(
        text.contains("10.1.0.0 does not answer on TCP port 646; check that both ends have the same MD5 key"),
        "{text}"
    );
    there.stop().await;

    let mut there = start(config(RIGHT), with_key(right(&pair), LEFT, b"secret"));
    assert_eq!(there.up().await, identifier(LEFT));
    let up = here.told("a session", |report| match report {
        LdpReport::Event(LdpEvent::Up { peer }) => Some(peer),
        _ => None,
    });
    assert_eq!(up.await, identifier(RIGHT));
    here.stop().await;
}

netstage_harness::tests![
    ten_thousand_labels_are_advertised_and_withdrawn_and_sessions_shut_down,
    a_suspended_speaker_is_silent_until_it_resumes,
    failed_bindings_and_sockets_are_reported,
    many_speakers_share_an_interface,
    remote_routers_are_found_by_targeted_hellos,
    different_keys_are_reported_at_both_ends_and_equal_keys_allow_a_session,
];
