//! Bytes of a peer that is broken or means harm: nothing panics, memory is bounded, and a session that ends
//! does so with the status of RFC 5036 section 3.5.1.

use super::*;
use netstage_wire::ldp::message::{Hello, Notification, tlv};
use netstage_wire::ldp::write::OutgoingMapping;
use proptest::prelude::*;

/// Messages of all kinds, among them those a session begins with.
fn outgoing() -> impl Strategy<Value = Outgoing<'static>> {
    const ADDRESSES: &[IpAddr] =
        &[IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3)), IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9))];
    const PATH: &[Ipv4Addr] = &[Ipv4Addr::new(10, 0, 0, 7), Ipv4Addr::new(10, 0, 0, 2)];
    let fec = (0..4_u8, any::<bool>()).prop_map(|(net, is_long)| {
        Fec::prefix(Ipv4Addr::new(10, net, 0, 0).into(), if is_long { 32 } else { 16 }).unwrap()
    });
    let removed = prop_oneof![3 => fec.clone(), 1 => Just(Fec::Wildcard)];
    let maybe = prop::option::of(prop_oneof![Just(3), 16..20_u32].prop_map(label));
    let mapping = (fec.clone(), prop_oneof![Just(3), 16..20_u32], prop::option::of(0..40_u8), 0..=2_usize);
    prop_oneof![
        4 => mapping.prop_map(|(fec, number, hops, path)| {
            let path = &PATH[..path];
            Outgoing::LabelMapping(OutgoingMapping { hops, path, ..OutgoingMapping::new(fec, label(number)) })
        }),
        2 => (removed.clone(), maybe.clone()).prop_map(|(fec, label)| Outgoing::LabelWithdraw(fec, label)),
        2 => (removed, maybe).prop_map(|(fec, label)| Outgoing::LabelRelease(fec, label)),
        1 => fec.clone().prop_map(Outgoing::LabelRequest),
        1 => (fec, 0..9_u32).prop_map(|(fec, id)| Outgoing::LabelAbortRequest(fec, id)),
        1 => (0..=2_usize).prop_map(|count| Outgoing::Address(&ADDRESSES[..count])),
        1 => (0..=2_usize).prop_map(|count| Outgoing::AddressWithdraw(&ADDRESSES[..count])),
        1 => Just(Outgoing::KeepAlive),
    ]
}

/// A speaker that has something to tell, and a connection on which nothing has been said.
fn victim(loop_detection: Option<u8>, control: Control) -> Alone {
    let mut alone = Alone::new(|config| {
        config.most_bindings = 5;
        config.loop_detection = loop_detection;
        config.control = control;
    });
    for net in 0..4_u8 {
        let fec = Fec::prefix(Ipv4Addr::new(10, net, 0, 0).into(), 16).unwrap();
        alone.speaker.bind(fec, transit(100 + u32::from(net), if net < 2 { PEER } else { 9 })).unwrap();
    }
    alone.speaker.set_addresses([address(2)]);
    alone.hello(PEER, 15);
    alone.speaker.handle_accepted(alone.now, CONNECTION, router(PEER));
    alone
}

/// Feeds a stream in pieces; gives what was answered and what happened.
fn feed(alone: &mut Alone, stream: &[u8], pieces: &[usize]) -> (Vec<String>, Vec<Event>) {
    let mut rest = stream;
    for piece in pieces.iter().cycle() {
        let (head, tail) = rest.split_at((*piece).clamp(1, rest.len().max(1)).min(rest.len()));
        alone.speaker.handle_bytes(alone.now, CONNECTION, head);
        rest = tail;
        for session in alone.speaker.sessions.values() {
            assert!(session.input.len() < MOST_BYTES);
            assert!(session.upstream.requests.len() <= 4);
        }
        assert!(alone.speaker.mappings_of(identifier(PEER)).count() <= 5);
        if rest.is_empty() {
            break;
        }
    }
    // What is told does not depend on the pieces if it is only asked for at the end.
    let answers = alone.answers();
    (answers, alone.events())
}

/// What must hold of what a victim said and made of it.
fn check(alone: &mut Alone, (answers, events): &(Vec<String>, Vec<Event>)) {
    let ends = events.iter().filter_map(|event| match event {
        Event::Down { why, .. } | Event::Refused { why, .. } => Some(*why),
        _ => None,
    });
    let ends: Vec<End> = ends.collect();
    assert!(ends.len() <= 1, "{ends:?}");
    let has_closed = answers.iter().filter(|answer| *answer == "close").count();
    match ends.first() {
        Some(End::Sent(status)) => {
            let told = format!("notify {:#x} ", status.0);
            assert!(has_closed == 1 && answers.iter().any(|answer| answer.starts_with(&told)), "{answers:?}");
        }
        Some(_) => assert_eq!(has_closed, 1),
        None => assert!(has_closed <= 1),
    }
    // Once nobody holds a label any more it is free, and once only.
    alone.speaker.handle_closed(alone.now, CONNECTION);
    for net in 0..4_u8 {
        alone.speaker.unbind(Fec::prefix(Ipv4Addr::new(10, net, 0, 0).into(), 16).unwrap());
    }
    let events = alone.events();
    let mut free: Vec<u32> = events
        .iter()
        .filter_map(|event| match event {
            Event::Free { label } => Some(label.number()),
            _ => None,
        })
        .collect();
    free.sort();
    assert_eq!(free, [100, 101, 102, 103]);
    assert!(alone.speaker.sessions.is_empty());
}

fn stream(is_greeted: bool, pdus: &[Vec<Outgoing<'_>>]) -> Vec<u8> {
    let mut stream = Vec::new();
    if is_greeted {
        stream.extend(pdu(PEER, &[Outgoing::Initialization(Alone::initialization()), Outgoing::KeepAlive]));
    }
    for messages in pdus {
        stream.extend(pdu(PEER, messages));
    }
    stream
}

proptest! {
    #[test]
    fn random_bytes_do_no_harm(
        is_greeted in any::<bool>(),
        random in prop::collection::vec(any::<u8>(), 0..300),
        pieces in prop::collection::vec(1..50_usize, 1..5),
    ) {
        let mut alone = victim(None, Control::Independent);
        let mut bytes = stream(is_greeted, &[]);
        bytes.extend(random);
        let found = feed(&mut alone, &bytes, &pieces);
        check(&mut alone, &found);
    }

    #[test]
    fn valid_streams_that_were_damaged_do_no_harm(
        is_greeted in prop::bool::weighted(0.9),
        pdus in prop::collection::vec(prop::collection::vec(outgoing(), 1..6), 0..6),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        pieces in prop::collection::vec(1..200_usize, 1..5),
        loop_detection in prop::option::of(1..40_u8),
        is_ordered in any::<bool>(),
    ) {
        let control = if is_ordered { Control::Ordered } else { Control::Independent };
        let mut bytes = stream(is_greeted, &pdus);
        for (place, value) in damage {
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
        }
        let mut alone = victim(loop_detection, control);
        let found = feed(&mut alone, &bytes, &pieces);
        check(&mut alone, &found);
        // Where a stream is cut is nobody's business.
        let mut whole = victim(loop_detection, control);
        prop_assert_eq!(feed(&mut whole, &bytes, &[usize::MAX]), found);
    }

    #[test]
    fn hellos_of_any_kind_do_no_harm(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..5),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        source in any::<u32>(),
    ) {
        let mut alone = Alone::new(|_| ());
        let hello = Hello {
            hold_seconds: 15,
            is_targeted: false,
            asks_for_targeted: false,
            transport: Some(router(PEER).into()),
            configuration: Some(1),
        };
        let mut valid = pdu(PEER, &[Outgoing::Hello(hello)]);
        for (place, value) in damage {
            let place = place.index(valid.len());
            valid[place] = value;
        }
        for datagram in datagrams.iter().chain([&valid]) {
            alone.speaker.handle_hello(alone.now, 0, source.into(), datagram);
        }
        alone.answers();
        for _ in 0..20 {
            alone.wait(1);
            alone.answers();
        }
        prop_assert!(alone.speaker.peers.is_empty() && alone.speaker.adjacencies.is_empty());
    }
}

#[test]
fn peers_on_interfaces_are_bounded() {
    let mut alone = Alone::new(|_| ());
    for number in 1..3000_u32 {
        let peer = Identifier { router: Ipv4Addr::from(0xc000_0000 + number), space: 0 };
        let hello = Hello {
            hold_seconds: 15,
            is_targeted: false,
            asks_for_targeted: false,
            transport: None,
            configuration: None,
        };
        let mut bytes = [0; 64];
        let mut writer = Writer::new(&mut bytes, peer).unwrap();
        writer.message(1, &Outgoing::Hello(hello)).unwrap();
        alone.speaker.handle_hello(alone.now, 0, peer.router, writer.bytes());
    }
    assert_eq!((alone.speaker.adjacencies.len(), alone.speaker.peers.len()), (1024, 1024));
}

#[test]
fn what_is_wrong_is_told_as_section_3_5_1_has_it() {
    let mapping = || {
        let mapping = OutgoingMapping::new(prefix("10.0.0.0/8"), label(99));
        pdu(PEER, &[Outgoing::LabelMapping(mapping), Outgoing::KeepAlive])
    };
    // The PDU's header takes 10 bytes, the message's 8, and the prefix's and the label's TLV begin at 18
    // and 27.
    let at = |place: usize, value: u8| {
        let mut bytes = mapping();
        bytes[place] = value;
        bytes
    };
    for (bytes, status) in [
        (at(1, 2), Status::BAD_VERSION),
        (at(2, 0x20), Status::BAD_PDU_LENGTH),
        (at(3, 4), Status::BAD_PDU_LENGTH),
        (at(7, 9), Status::BAD_IDENTIFIER),
        (at(9, 1), Status::BAD_IDENTIFIER),
        (at(12, 1), Status::BAD_MESSAGE_LENGTH),
        (at(21, 0xff), Status::BAD_TLV_LENGTH),
        (at(25, 33), Status::MALFORMED_TLV),
        (at(32, 0xff), Status::MALFORMED_TLV),
        // A label that no mapping may have.
        (
            {
                let mut bytes = mapping();
                bytes[31..35].copy_from_slice(&[0, 0, 0, 13]);
                bytes
            },
            Status::MALFORMED_TLV,
        ),
        (pdu(PEER, &[Outgoing::Initialization(Alone::initialization())]), Status::SHUTDOWN),
    ] {
        let mut alone = Alone::up(|_| ());
        alone.speaker.handle_bytes(alone.now, CONNECTION, &bytes);
        let why = End::Sent(status);
        assert_eq!(alone.events(), [Event::Down { peer: identifier(PEER), why }]);
        assert_eq!(alone.answers().last().unwrap(), "close");
        // Whatever follows is nobody's.
        alone.speaker.handle_bytes(alone.now, CONNECTION, &mapping());
        assert_eq!((alone.answers().len(), alone.events().len()), (0, 0));
    }
    for (bytes, status) in [
        (at(11, 0x99), Status::UNKNOWN_MESSAGE),
        (at(28, 0x99), Status::UNKNOWN_TLV),
        (at(22, 0x99), Status::UNKNOWN_FEC),
        (at(24, 0x99), Status::UNSUPPORTED_FAMILY),
        (at(28, 1), Status::UNKNOWN_TLV),
    ] {
        let mut alone = Alone::up(|_| ());
        alone.speaker.handle_bytes(alone.now, CONNECTION, &bytes);
        assert_eq!(alone.answers(), [format!("notify {:#x} 1 None", status.0)]);
        assert_eq!(alone.events(), []);
    }
    // What is unknown and may be ignored is, and the rest of its PDU is not.
    for place in [10, 27] {
        let mut bytes = mapping();
        bytes[place] |= 0x80;
        bytes[place + 1] = 0x77;
        let mut alone = Alone::up(|_| ());
        alone.speaker.handle_bytes(alone.now, CONNECTION, &bytes);
        let without_label = format!("notify {:#x} 1 None", Status::MISSING_PARAMETERS.0);
        let answers = if place == 27 { Vec::from([without_label]) } else { Vec::new() };
        assert_eq!((alone.answers(), alone.events()), (answers, Vec::new()));
    }
    // A notification that is wrong is not worth another one.
    let mut alone = Alone::up(|_| ());
    let status = Status::NO_ROUTE;
    let notification = Notification { status, message_id: 0, message_kind: 0, request_id: None };
    let mut bytes = pdu(PEER, &[Outgoing::Notification(notification)]);
    bytes[18..20].copy_from_slice(&tlv::REQUEST_ID.to_be_bytes());
    alone.speaker.handle_bytes(alone.now, CONNECTION, &bytes);
    assert_eq!((alone.answers().len(), alone.events().len()), (0, 0));
    alone.say(&[Outgoing::Notification(notification)]);
    assert_eq!(alone.events(), [Event::Notified { peer: identifier(PEER), status }]);
}

#[test]
fn capabilities_are_passed_over() {
    // An initialization as of RFC 5561, with a capability and a bit that lets it be ignored.
    let mut bytes = pdu(PEER, &[Outgoing::Initialization(Alone::initialization())]);
    bytes.extend([0x85, 0x06, 0, 1, 0x80]);
    let (pdu_length, message_length) = (bytes.len() - 4, bytes.len() - 14);
    bytes[2..4].copy_from_slice(&(pdu_length as u16).to_be_bytes());
    bytes[12..14].copy_from_slice(&(message_length as u16).to_be_bytes());
    let mut alone = Alone::new(|_| ());
    alone.hello(PEER, 15);
    alone.speaker.handle_accepted(alone.now, CONNECTION, router(PEER));
    alone.speaker.handle_bytes(alone.now, CONNECTION, &bytes);
    assert_eq!(alone.answers(), ["initialization", "keepalive"]);
}
